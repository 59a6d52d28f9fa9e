"""Reads a workload from a file: first the format, then the window, time zero and the slice."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np

from kant.model.errors import InputError
from kant.model.units import show_duration
from kant.workload.formats import detect, format_named
from kant.workload.trace import Trace
from kant.workload.workload import Workload, only_value

_SHOWN = 20


def read_workload(
    path: Path,
    *,
    format: str | None = None,
    slice: str | None = None,
    window: tuple[int, int] | None = None,
) -> Workload:
    """Return the jobs of a trace in order of submission; equal submissions are in file order.

    `format` is a name in `kant.workload.formats.FORMATS` (None: detected from the content). `slice` selects one trace,
    workload or queue of a file with several. `window` (A, B), in microseconds on the trace's own clock, keeps
    submissions A <= t < B. Time zero (`origin`) is the first submission in the window over all queues of the file, so
    that slices of one cluster share a clock. Traces that only share a file have separate clocks. A replica without its
    base job is left out. Raises InputError, and no other error, for invalid input.
    """
    return _cut(path, _parsed(path, format), slice, window)


def read_parts(
    path: Path,
    *,
    parts: int,
    format: str | None = None,
    slice: str | None = None,
    window: tuple[int, int] | None = None,
) -> list[tuple[Workload, tuple[int, int]]]:
    """Cut the trace of `read_workload` by time into `parts` with about equally many jobs; return each with its window.

    Jobs submitted at the same time stay together. Each part has its own time zero, as if no job had preceded it.
    Raises InputError if a part would be empty.
    """
    trace = _parsed(path, format)
    whole = _cut(path, trace, slice, window)
    submit = whole.submit + whole.origin
    cuts = [int(submit[len(submit) * part // parts]) for part in range(parts)] if parts <= len(submit) else []
    if len(set(cuts)) < parts:
        expected = f"at least {parts} moments of submission to be cut into {parts} parts"
        raise InputError(str(path), expected, f"{len(np.unique(submit))} of them")
    spans = list(pairwise([*cuts, int(submit[-1]) + 1]))
    return [(_cut(path, trace, slice, span), span) for span in spans]


def whole(trace: Trace, path: Path) -> Workload:
    """Return all jobs of a trace with one clock, in order of submission. `path` is its name. Raises InputError."""
    return _cut(path, trace, None, None)


def _parsed(path: Path, format: str | None) -> Trace:
    form = format_named(format) if format is not None else detect(path)
    trace = form.parse(path)
    if not len(trace.jobs):
        raise InputError(str(path), "a trace with at least one job", "none")
    return trace


def _cut(path: Path, trace: Trace, slice: str | None, window: tuple[int, int] | None) -> Workload:
    """Return the jobs of a slice and a window, with their time zero."""
    keep = np.ones(len(trace.jobs), dtype=np.bool_)
    chosen = _slice_mask(path, trace, slice)
    if trace.apart:
        keep &= chosen
    if window is not None:
        keep &= (trace.jobs.submit >= window[0]) & (trace.jobs.submit < window[1])
    if not keep.any():
        raise InputError(str(path), "a window that holds jobs", _shown_span(trace.jobs))
    origin = int(trace.jobs.submit[keep].min())
    keep &= chosen
    base = trace.jobs.base_job
    keep &= (base < 0) | keep[base]
    if not keep.any():
        raise InputError(str(path), f"a window in which {slice} has jobs", _shown_span(trace.jobs.take(chosen)))
    rows = np.flatnonzero(keep)
    jobs = trace.jobs.take(rows[np.argsort(trace.jobs.submit[rows], kind="stable")])
    name = path.name if slice is None else f"{path.name}:{slice}"
    due = jobs.due
    if only_value(due) != -1:
        due = np.where(due >= 0, np.maximum(due - origin, 0), -1)
    return replace(jobs, name=name, submit=jobs.submit - origin, due=due, origin=origin)


def _slice_mask(path: Path, trace: Trace, slice: str | None) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    names = trace.names
    listed = ", ".join(sorted(names)[:_SHOWN]) + (", …" if len(names) > _SHOWN else "")
    if slice is None:
        if trace.apart and len(names) > 1:
            raise InputError(str(path), f"a choice of one {trace.slice_kind}: {listed}")
        return np.ones(len(trace.jobs), dtype=np.bool_)
    if slice not in names:
        raise InputError(str(path), f"a {trace.slice_kind} that the file holds ({listed})", slice)
    return np.asarray(trace.slices == names.index(slice))


def _shown_span(jobs: Workload) -> str:
    first, last = int(jobs.submit.min()), int(jobs.submit.max())
    return f"submissions from {show_duration(first)} to {show_duration(last)}"
