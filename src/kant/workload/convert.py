"""Writes a Workload as Kant's own table: CSV, gzip CSV or Parquet, completely or not at all."""

from __future__ import annotations

import csv
import gzip
import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from kant.files import replacing, write_parquet
from kant.model.errors import InputError
from kant.workload.kant_table import FIELDS, seconds_text, to_table
from kant.workload.table import Table
from kant.workload.workload import Workload


def write_workload(workload: Workload, path: Path) -> None:
    """Write `workload` to `path`, in the format given by the suffix: `.csv`, `.csv.gz` or `.parquet`.

    An existing file is replaced at once, when the new file is complete. The bytes depend only on the workload. Raises
    InputError for another suffix, a path that cannot be written, or a workload that the table cannot represent.
    """
    write = _writer(path)
    table = to_table(workload)
    try:
        with replacing(path) as out:
            write(table, out)
    except OSError as error:
        raise InputError(str(path), "a place that can be written", error.strerror) from error
    except UnicodeEncodeError as error:
        raise InputError(str(path), "names that UTF-8 can write", error.object) from error


def _writer(path: Path) -> Callable[[Table, BinaryIO], None]:
    name = path.name.lower()
    if name.endswith(".parquet"):
        return _write_parquet
    if name.endswith(".csv"):
        return _write_csv
    if name.endswith(".csv.gz"):
        return _write_gzip
    raise InputError(str(path), "a name that ends with .csv, .csv.gz or .parquet")


def _write_parquet(table: Table, out: BinaryIO) -> None:
    from kant.workload.kant_parquet import to_frame

    write_parquet(to_frame(table), out)


def _write_gzip(table: Table, out: BinaryIO) -> None:
    with gzip.GzipFile(filename="", fileobj=out, mode="wb", compresslevel=6, mtime=0) as packed:
        _write_csv(table, packed)  # type: ignore[arg-type]


def _write_csv(table: Table, out: BinaryIO) -> None:
    """Write each column that has any value other than its default, and always `id` and the required columns."""
    text = io.TextIOWrapper(out, encoding="utf-8", newline="", write_through=False)
    columns = dict(_columns(table))
    returns = any("\r" in cell for cells in table.texts.values() for cell in cells)
    # QUOTE_MINIMAL would not quote a single carriage return, and readers refuse that.
    writer = csv.writer(text, lineterminator="\n", quoting=csv.QUOTE_ALL if returns else csv.QUOTE_MINIMAL)
    writer.writerow(columns)
    writer.writerows(zip(*columns.values(), strict=True))
    text.flush()
    text.detach()


def _columns(table: Table) -> Iterator[tuple[str, list[str] | list[int]]]:
    yield "id", table.texts["id"]
    for field in FIELDS:
        if field.kind == "text":
            if field.name != "id" and any(text != field.default for text in table.texts[field.name]):
                yield field.name, table.texts[field.name]
            continue
        column = table.numbers[field.name]
        if field.default is not None and (column == field.default).all():
            continue
        if field.kind == "whole":
            yield field.name, column.tolist()
        else:
            yield field.name, ["" if value < 0 else seconds_text(value) for value in column.tolist()]
