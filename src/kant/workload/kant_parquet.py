"""Kant's trace table as Parquet. Seconds are decimals with six places, so nothing is rounded."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import numpy as np
import polars as pl

from kant.model.errors import InputError
from kant.model.units import SECOND
from kant.workload.kant_table import FIELDS
from kant.workload.table import Field, Ints, Table, cell_error, check_header, header_names, parse_number

_FAILURES = (Exception, pl.exceptions.PanicException)


def decode(path: Path) -> Table:
    """Return the table of a file, decoded in this process (callers use kant_parquet_process).

    Integers, floats, decimals and texts are accepted if they are exact. Raises InputError if the file is not Parquet,
    or if a column or cell is invalid. The `line` of the error counts rows from 1.
    """
    try:
        with path.open("rb") as file:
            frame = pl.read_parquet(file)
    except _FAILURES as error:
        raise InputError(str(path), "a whole Parquet file", str(error).split("\n", 1)[0]) from error
    return table_of(frame, path)


def table_of(frame: pl.DataFrame, path: Path) -> Table:
    """Return the columns of a frame; `path` names it in error messages. Raises InputError like `decode`."""
    header = header_names(frame.columns)
    fields = FIELDS if "id" in header else tuple(field for field in FIELDS if field.name != "id")
    check_header(f"{path}, columns", header, fields, strict=True)
    numbers: dict[str, Ints] = {}
    texts: dict[str, list[str]] = {}
    for field in fields:
        if field.name not in header:
            if isinstance(field.default, int):
                numbers[field.name] = np.full(len(frame), field.default, dtype=np.int64)
            continue
        column = frame.to_series(header.index(field.name))
        try:
            if field.kind == "text":
                texts[field.name] = _texts(path, field, column)
            else:
                numbers[field.name] = _numbers(path, field, column)
        except _FAILURES as error:
            if isinstance(error, InputError):
                raise
            where = f"{path}, column {field.name}"
            raise InputError(where, field.expected, f"a column of {column.dtype}") from error
    return Table(len(frame), numbers, texts)


def _texts(path: Path, field: Field, column: pl.Series) -> list[str]:
    if not (column.dtype == pl.String or column.dtype == pl.Categorical or column.dtype.is_integer()):
        raise InputError(f"{path}, column {field.name}", "texts", f"a column of {column.dtype}")
    cells = column.cast(pl.String).fill_null("").to_list()
    if "" in cells:
        if not isinstance(field.default, str):
            raise cell_error(path, cells.index("") + 1, field, "")
        cells = [cell or field.default for cell in cells]
    return cells


def _numbers(path: Path, field: Field, column: pl.Series) -> Ints:
    if column.dtype.is_integer() and not column.null_count():
        scale = SECOND if field.kind == "seconds" else 1
        low, high = -(-field.low // scale), field.high // scale
        if bool(((column >= low) & (column <= high)).all()):
            whole: Ints = column.cast(pl.Int64).to_numpy().astype(np.int64) * scale
            return whole
    if not (column.dtype.is_numeric() or column.dtype == pl.String or column.dtype == pl.Null):
        raise InputError(f"{path}, column {field.name}", "numbers", f"a column of {column.dtype}")
    values: list[int] = []
    for row, cell in enumerate(column.to_list(), start=1):
        try:
            values.append(_value(field, cell))
        except ValueError:
            raise cell_error(path, row, field, cell) from None
    return np.array(values, dtype=np.int64)


def _value(field: Field, cell: int | float | Decimal | str | None) -> int:
    """Return the integer of one cell. A float counts as the shortest decimal that is parsed to it."""
    if cell is None:
        return parse_number(field, "")
    return parse_number(field, str(cell))


def to_frame(table: Table) -> pl.DataFrame:
    """Return a table as a frame with types from which `decode` restores it exactly."""
    columns = [pl.Series("id", table.texts["id"], dtype=pl.String)]
    for field in FIELDS:
        if field.kind == "text":
            if field.name != "id":
                columns.append(pl.Series(field.name, table.texts[field.name], dtype=pl.String))
        elif field.kind == "whole":
            columns.append(pl.Series(field.name, table.numbers[field.name], dtype=pl.Int64))
        else:
            cells = [None if value < 0 else Decimal(value).scaleb(-6) for value in table.numbers[field.name].tolist()]
            columns.append(pl.Series(field.name, cells, dtype=pl.Decimal(20, 6)))
    return pl.DataFrame(columns)
