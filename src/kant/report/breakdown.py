"""The metrics by pool and by queue, folded away until somebody asks."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from kant.metrics.result import RunResult
from kant.report.summary import dig, number, show

MOST = 40
"""Pools or queues shown: those with most GPU-hours over all runs."""

Column = tuple[str, tuple[str, ...], str]

POOL: tuple[Column, ...] = (
    ("GPU-hours", ("gpu_hours",), "count"),
    ("SOR", ("sor",), "share"),
    ("GFR mean", ("gfr_mean",), "share"),
)
QUEUE: tuple[Column, ...] = (
    ("jobs", ("jobs",), "count"),
    ("GPU-hours", ("gpu_hours",), "count"),
    ("part of SOR", ("sor",), "share"),
    ("wait mean", ("wait_s", "mean"), "time"),
    ("wait P50", ("wait_s", "p50"), "time"),
    ("wait P90", ("wait_s", "p90"), "time"),
    ("wait P99", ("wait_s", "p99"), "time"),
    ("fairness", ("rho",), "factor"),
)


def breakdowns(runs: Sequence[RunResult], labels: Sequence[str]) -> str:
    """A table by pool and one by queue, where the summaries have more than one."""
    return _table(runs, labels, "by_pool", "pool", POOL) + _table(runs, labels, "by_queue", "queue", QUEUE)


def _table(runs: Sequence[RunResult], labels: Sequence[str], key: str, word: str, columns: Sequence[Column]) -> str:
    weight: dict[str, float] = {}
    for run in runs:
        parts = dig(run.summary, key)
        for name in parts if isinstance(parts, dict) else ():
            hours = number(dig(run.summary, key, name, "gpu_hours"))
            weight[name] = weight.get(name, 0.0) + (hours or 0.0)
    if len(weight) < 2:
        return ""
    names = sorted(weight, key=lambda name: (-weight[name], name))
    body = "".join(_rows(runs, labels, key, name, columns) for name in names[:MOST])
    heads = "".join(f'<th scope="col">{head}</th>' for head in (word, "run", *(name for name, _, _ in columns)))
    more = f", the {MOST} with most GPU-hours" if len(names) > MOST else ""
    return (
        f"<details><summary>By {word} ({len(names):,}{more})</summary>"
        f'<div class="scroll" tabindex="0" role="region" aria-label="By {word}">'
        f'<table class="parts"><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table></div></details>'
    )


def _rows(runs: Sequence[RunResult], labels: Sequence[str], key: str, name: str, columns: Sequence[Column]) -> str:
    rows = ""
    for i, (run, label) in enumerate(zip(runs, labels, strict=True)):
        shown = escape(name) or "(no name)"
        head = f'<th scope="rowgroup" rowspan="{len(runs)}">{shown}</th>' if i == 0 else ""
        values = ((dig(run.summary, key, name, *keys), kind) for _, keys, kind in columns)
        cells = "".join(f"<td>{escape(show(value, kind))}</td>" for value, kind in values)
        first = ' class="first"' if i == 0 else ""
        whose = f'<th scope="row"><span class="run r{i % 6}">{escape(label)}</span></th>'
        rows += f"<tr{first}>{head}{whose}{cells}</tr>"
    return rows
