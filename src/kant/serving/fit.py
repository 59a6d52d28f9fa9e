"""Fits a latency model to measured steps, checks it on others, and stores it with the measurement's conditions."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
from msgspec import Struct

from kant.files import read_bytes, write_bytes
from kant.model.errors import InputError
from kant.serving.columns import Times
from kant.serving.latency import LatencyModel

COLUMNS = ("tokens", "decode", "chunks", "ms")
HELD_BACK = 3
"""Every third step is held back from the fit, to check it."""

CHANGES = 4
"""The maximum number of times that a fit assigns the steps anew to the two branches of the model: floor and line."""

FEWEST = 15
"""The minimum number of steps for a fit."""


class Check(Struct, frozen=True, forbid_unknown_fields=True):
    """How a latency model was checked: the method in words (`how`), GPU, software, and date.

    `steps` is the number of steps held back from the fit; the errors are the relative errors of their predicted times.
    """

    how: str
    gpu: str
    software: str
    date: str
    steps: int
    error_p50: float
    error_p90: float

    @property
    def sentence(self) -> str:
        """The check in words."""
        on = f" on {self.gpu}" if self.gpu else ""
        return (
            f"checked with {self.how}{on} ({self.date}): of {self.steps} held-out steps half are within"
            f" {100 * self.error_p50:.1f} %, nine in ten within {100 * self.error_p90:.1f} %"
        )


class LatencyFile(Struct, frozen=True, forbid_unknown_fields=True):
    """A fitted latency model. `kv_tokens` is how many tokens' KV fits in the GPU's memory; 0: unknown."""

    model: str
    tensor_parallel: int
    latency: LatencyModel
    kv_tokens: int
    check: Check
    measured: list[tuple[float, float, float, float]] = []
    """The measured steps: tokens, decode, chunks and milliseconds of each."""


def fitted(steps: Times, missed: float, kv_bytes: int) -> LatencyModel:
    """Return the model that minimises squared relative errors. `steps` has the columns tokens, decode, chunks, ms.

    The overhead is included in the floor and in the fixed part.
    """
    tokens, ms = steps[:, 0], steps[:, 3]
    reached = 1 - missed**tokens if missed else np.zeros(len(steps))
    best: tuple[float, Times] | None = None
    # A step is on the floor or on the line. Try several token counts as the border, then reassign steps.
    for edge in np.unique(np.quantile(tokens, np.linspace(0, 1, 41))):
        line = tokens > edge
        for _ in range(CHANGES):
            columns = [~line, ~line * reached, line * tokens, line, steps[:, 1], steps[:, 2]]
            found = _not_negative(np.column_stack(columns) / ms[:, None])
            error = float((_errors(found, steps, reached) ** 2).sum())
            if best is None or error < best[0]:
                best = (error, found)
            before, line = line, found[2] * tokens + found[3] > found[0] + found[1] * reached
            if np.array_equal(before, line):
                break
    assert best is not None
    floor, experts, slope, fixed, kv, context = best[1].tolist()
    return LatencyModel(floor, slope, fixed, kv, context, 0.0, kv_bytes, experts, missed)


def _not_negative(matrix: Times) -> Times:
    """Return non-negative least-squares coefficients for target 1: the most negative is removed until none is left."""
    left = np.flatnonzero(matrix.any(axis=0)).tolist()
    while True:
        found = np.zeros(matrix.shape[1])
        found[left], *_ = np.linalg.lstsq(matrix[:, left], np.ones(len(matrix)), rcond=None)
        if found.min() >= 0:
            return found
        left.remove(int(np.argmin(found)))


def _errors(found: Times, steps: Times, reached: Times) -> Times:
    floor, experts, slope, fixed, kv, context = found.tolist()
    linear = np.maximum(floor + experts * reached, slope * steps[:, 0] + fixed)
    errors: Times = (linear + kv * steps[:, 1] + context * steps[:, 2]) / steps[:, 3] - 1
    return errors


def checked(steps: Times, missed: float, kv_bytes: int) -> tuple[LatencyModel, int, float, float]:
    """Fit a model to two thirds of the steps. Return it, and the number, median error and P90 error of the others.

    Raises InputError for fewer than fifteen steps.
    """
    if len(steps) < FEWEST:
        raise InputError("the steps", f"at least {FEWEST} steps", len(steps))
    order = np.lexsort((steps[:, 3], steps[:, 2], steps[:, 1], steps[:, 0]))
    held = np.arange(len(steps)) % HELD_BACK == 1
    model = fitted(steps[order][~held], missed, kv_bytes)
    others = steps[order][held]
    said = np.array([model.step_ms(int(tokens), int(decode), chunks) for tokens, decode, chunks, _ in others.tolist()])
    errors = np.abs(said / others[:, 3] - 1)
    return model, len(others), float(np.quantile(errors, 0.5)), float(np.quantile(errors, 0.9))


def read_steps(path: Path) -> Times:
    """Read measured steps from a CSV file with the columns tokens, decode, chunks and ms. Raises InputError."""
    import polars as pl

    try:
        table = pl.read_csv(io.BytesIO(read_bytes(path)), infer_schema=False)
        rows = table.select(pl.col(name).str.strip_chars().cast(pl.Float64) for name in COLUMNS).to_numpy()
    except (pl.exceptions.PolarsError, UnicodeDecodeError):
        raise InputError(str(path), f"a CSV file of numbers with the columns {', '.join(COLUMNS)}") from None
    found: Times = np.array(rows)
    if not np.isfinite(found).all() or (found < 0).any() or (found[:, 3] <= 0).any():
        raise InputError(str(path), "steps of numbers from 0 on, with ms above 0")
    return found


def write_latency(found: LatencyFile, path: Path) -> None:
    """Write a fitted latency. Raises InputError."""
    try:
        write_bytes(path, msgspec.json.encode(found) + b"\n")
    except OSError as error:
        raise InputError(str(path), f"a file that can be written ({error.strerror})") from None


def read_latency(path: Path) -> LatencyFile:
    """Read a latency that `kant serve fit` has written. Raises InputError."""
    try:
        found = msgspec.json.decode(read_bytes(path), type=LatencyFile)
    except msgspec.MsgspecError as error:
        raise InputError(str(path), f"a latency as `kant serve fit` writes it ({error})") from None
    model = found.latency
    if model.row().min() < 0 or model.missed > 1 or model.step_ms(1) <= 0:
        raise InputError(str(path), "numbers from 0 on, with which every step takes time")
    return found


def rows_of(steps: Sequence[tuple[float, float, float, float]]) -> Times:
    """Return steps as the array that `fitted` takes, of shape [steps, 4]."""
    return np.array(steps, dtype=np.float64).reshape(-1, 4)
