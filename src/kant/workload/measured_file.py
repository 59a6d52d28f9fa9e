"""Measurements of a cluster: a CSV file of samples, and a TOML file of the costs that were fitted to them.

operation,place,size,seconds,beside
all_to_all,leaf,1048576,0.000034,
all_to_all,leaf,1048576,0.000049,1     # while messages inside the node ran too
gemm,,17179869184,0.000091,
"""

from __future__ import annotations

import math
from pathlib import Path

from kant.files import open_text
from kant.model.errors import InputError
from kant.placement.perf.fit import Fit, Sample
from kant.placement.perf.layer import CONTENTION, Cost
from kant.placement.perf.on_fabric import OPERATIONS, PLACES, Measured
from kant.toml_file import parse_tree
from kant.workload.table import Field, read_table

FIELDS = (
    Field("operation", "text", f"one of {', '.join(OPERATIONS)}"),
    Field("place", "text", f"what its GPUs span: {', '.join(PLACES)}; empty for gemm", default=""),
    Field("size", "text", "bytes of one GPU, or multiply-adds"),
    Field("seconds", "text", "how long it took"),
    Field("beside", "whole", "1: the other stream of messages was busy all that time", high=1, default=0),
)


def read_samples(path: Path) -> list[Sample]:
    """Return the rows of a file. Raises InputError for the first invalid row."""
    table = read_table(path, FIELDS, strict=True)
    if not table.rows:
        raise InputError(str(path), "at least one row")
    places = table.texts.get("place", [""] * table.rows)
    found = []
    for row in range(table.rows):
        where = f"{path}, row {row + 1}"
        operation, place = table.texts["operation"][row].strip(), places[row].strip()
        if operation not in OPERATIONS:
            raise InputError(f"{where}, field operation", f"one of {', '.join(OPERATIONS)}", operation)
        if place not in (("",) if operation == "gemm" else PLACES):
            expected = "nothing for gemm" if operation == "gemm" else f"one of {', '.join(PLACES)}"
            raise InputError(f"{where}, field place", expected, place)
        size, seconds = (_positive(f"{where}, field {name}", table.texts[name][row]) for name in ("size", "seconds"))
        beside = bool(table.numbers["beside"][row])
        if beside and operation == "gemm":
            raise InputError(f"{where}, field beside", "0 for gemm, which is no message", 1)
        found.append(Sample(operation, place, size, seconds, beside))
    for operation, place in sorted({(sample.operation, sample.place) for sample in found}):
        if len({s.size for s in found if (s.operation, s.place, s.beside) == (operation, place, False)}) < 2:
            raise InputError(str(path), f"{' '.join((operation, place)).strip()} measured alone at two sizes or more")
    return found


def costs_text(fit: Fit) -> str:
    """Return the text of the TOML file of fitted costs, without rounding."""
    parts = [f"contention = {fit.contention!r}"]
    for line in fit.lines:
        parts.append(
            f'\n[[cost]]\noperation = "{line.operation}"\nplace = "{line.place}"\n'
            f"alpha_s = {line.cost.alpha!r}\nbeta_s = {line.cost.beta!r}"
        )
    return "\n".join(parts) + "\n"


def read_costs(path: Path) -> Measured:
    """Read the costs of a file that contains the text of `costs_text`. Raises InputError."""
    with open_text(path) as stream:
        text = stream.read()
    file = parse_tree(str(path), text)
    tables = file.pop("cost", [])
    contention = file.pop("contention", CONTENTION)
    if file or not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise InputError(str(path), "the field contention and [[cost]] tables", next(iter(file), None))
    if not _number(contention) or not 0 < contention <= 1:
        raise InputError(f"{path}, field contention", "a number above 0, at most 1", contention)
    costs = {}
    for number, table in enumerate(tables, 1):
        where = f"{path}, cost {number}"
        operation, place = table.get("operation"), table.get("place", "")
        if operation not in OPERATIONS:
            raise InputError(f"{where}, field operation", f"one of {', '.join(OPERATIONS)}", operation)
        if place not in (("",) if operation == "gemm" else PLACES):
            raise InputError(f"{where}, field place", f"one of {', '.join(PLACES)}; nothing for gemm", place)
        unknown = next((name for name in table if name not in ("operation", "place", "alpha_s", "beta_s")), None)
        if unknown is not None:
            raise InputError(where, "the fields operation, place, alpha_s, beta_s", unknown)
        for name in ("alpha_s", "beta_s"):
            if not _number(table.get(name)) or table[name] < 0:
                raise InputError(f"{where}, field {name}", "seconds, from 0", table.get(name))
        if (operation, place) in costs:
            raise InputError(where, f"{operation} {place} once")
        costs[operation, place] = Cost(float(table["alpha_s"]), float(table["beta_s"]))
    return Measured(costs, float(contention))


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _positive(where: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise InputError(where, "a number above 0", text)
    return value
