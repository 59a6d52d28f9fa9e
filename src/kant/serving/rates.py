"""Request rates by minute: read from a file of rates by hour or by minute; and request counts drawn from them."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import polars as pl

from kant.files import read_bytes
from kant.model.errors import InputError
from kant.serving.columns import Times

STEPS = {"hour": 60, "minute": 1}
"""Minutes per row of a file, by the name of its first column."""

MOST = 1e6
LONGEST = 60 * 24 * 366


def read_rates(path: Path) -> Times:
    """Read the requests a second of each minute from a CSV file with the columns `hour,rate` or `minute,rate`.

    Rows are numbered from 0. Raises InputError, with the line, if they are not, or if a rate is negative or no number.
    """
    try:
        table = pl.read_csv(io.BytesIO(read_bytes(path)), infer_schema=False)
    except (pl.exceptions.PolarsError, UnicodeDecodeError):
        raise InputError(str(path), "a CSV file with the columns hour,rate or minute,rate") from None
    names = [name.strip() for name in table.columns]
    if len(names) != 2 or names[0] not in STEPS or names[1] != "rate":
        raise InputError(f"{path}: header", "hour,rate or minute,rate", ",".join(names))
    if not 0 < len(table) * STEPS[names[0]] <= LONGEST:
        raise InputError(str(path), "rates for a minute to a year")
    found = []
    for i, (number, rate) in enumerate(table.iter_rows()):
        if (number or "").strip() != str(i):
            raise InputError(f"{path}:{i + 2}: {names[0]}", f"{i}: rows count from 0", number)
        try:
            value = float(rate or "")
        except ValueError:
            value = -1.0
        if not 0 <= value <= MOST:
            raise InputError(f"{path}:{i + 2}: rate", "requests a second, from 0 on", rate)
        found.append(value)
    return np.repeat(np.array(found), STEPS[names[0]])


def drawn_counts(rates: Times, seed: int) -> Times:
    """Draw the requests of each minute from a Poisson process with these rates."""
    draw = np.random.Generator(np.random.PCG64([seed, 0x7A]))
    return draw.poisson(rates * 60.0).astype(np.float64)
