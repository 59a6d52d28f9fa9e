"""A latency model from measured steps: a CSV file with one step a row."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import polars as pl

from kant.model.errors import InputError
from kant.serving.columns import Times
from kant.serving.latency import LatencyModel
from kant.serving.source import read_bytes

COLUMNS = ("tokens", "decode", "chunks", "ms")


def fit_latency(path: Path, kv_bytes: int = 131072) -> LatencyModel:
    """The model with the least squared error for the steps of a file with the columns tokens, decode, chunks and ms.

    The overhead is part of the floor and of the fixed part. Raises InputError where the file is no such table, or has
    fewer than ten steps.
    """
    try:
        table = pl.read_csv(io.BytesIO(read_bytes(path)), infer_schema=False)
        rows = table.select(pl.col(name).str.strip_chars().cast(pl.Float64) for name in COLUMNS).to_numpy()
    except (pl.exceptions.PolarsError, UnicodeDecodeError):
        raise InputError(str(path), f"a CSV file of numbers with the columns {', '.join(COLUMNS)}") from None
    if len(rows) < 10 or not np.isfinite(rows).all() or (rows < 0).any() or (rows[:, 3] <= 0).any():
        raise InputError(str(path), "at least ten steps of numbers from 0 on, each of some milliseconds")
    best: tuple[float, Times] | None = None
    # Below a count of tokens a step takes the floor, above it the line; every split of the steps is tried.
    for edge in np.unique(np.quantile(rows[:, 0], np.linspace(0, 1, 41))):
        on_line = (rows[:, 0] > edge).astype(np.float64)
        matrix = np.column_stack([1 - on_line, on_line * rows[:, 0], on_line, rows[:, 1], rows[:, 2]])
        found, *_ = np.linalg.lstsq(matrix, rows[:, 3], rcond=None)
        found = np.maximum(found, 0.0)
        linear = np.maximum(found[0], found[1] * rows[:, 0] + found[2])
        error = float(((linear + matrix[:, 3:] @ found[3:] - rows[:, 3]) ** 2).sum())
        if best is None or error < best[0]:
            best = (error, found)
    assert best is not None
    floor, slope, fixed, kv, context = best[1].tolist()
    return LatencyModel(floor, slope, fixed, kv, context, overhead=0.0, kv_bytes=kv_bytes)
