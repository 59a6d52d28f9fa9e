"""Tables for the terminal."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import contextmanager
from io import StringIO
from typing import TYPE_CHECKING, Any

from rich.color import ColorSystem
from rich.console import Console
from rich.table import Table
from rich.text import Text

from kant.cli.output import printable
from kant.model.units import SECOND, SIZE_CLASSES, show_duration

if TYPE_CHECKING:
    from kant.metrics.result import RunResult


WIDEST = 10_000
"""The width of the widest possible table, in characters."""


class StandardOutput(Console):
    """Standard output. Names come from files and users, so no text is interpreted as markup or terminal commands."""

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(printable(text), **options)

    def print(self, *objects: Any, **options: Any) -> None:
        """Print. Tables are never truncated: a text that is too long for its column continues on the next line.

        If neither a terminal nor COLUMNS sets a line width, a table is as wide as it needs.
        """
        tables = [one for one in objects if isinstance(one, Table)]
        for column in (column for one in tables for column in one.columns):
            column.overflow = "fold"
        before = self._width
        if tables and before is None and not self.is_terminal:
            boundless = self.options.update(width=WIDEST)
            self._width = max(self.width, *(self.measure(one, options=boundless).maximum for one in tables))
        try:
            super().print(*objects, **options)
        finally:
            self._width = before

    @contextmanager
    def recorded(self, columns: int, colours: bool) -> Iterator[StringIO]:
        """Capture what is printed in this block, in lines of `columns` characters (0: unlimited)."""
        text = StringIO()
        own = {name: getattr(self, name) for name in ("_file", "_width", "_force_terminal", "_color_system")}
        self._file, self._width, self._force_terminal = text, columns or None, colours
        self._color_system = ColorSystem.EIGHT_BIT if colours else None
        try:
            yield text
        finally:
            for name, value in own.items():
                setattr(self, name, value)

    def on_broken_pipe(self) -> None:
        """Handle a reader that has closed the pipe: print nothing more, and let the verb finish."""
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


console = StandardOutput(highlight=False, markup=False, emoji=False)


def print_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[str | Text]],
    title: str = "",
    left: Container[str] | None = None,
    frame: bool = True,
    most: int | None = None,
    ends: Container[int] = (),
) -> None:
    """Print rows under the names of their columns. Columns in `left` (None: the first) are left-aligned, others
    right-aligned.

    If there are more than `most` rows, the first are printed, with the number of the rest. A line follows each row
    whose number is in `ends`.
    """
    rows = list(rows)
    table = Table(title=title, title_justify="left") if frame else Table(box=None, pad_edge=False)
    for at, name in enumerate(columns):
        is_left = at == 0 if left is None else name in left
        table.add_column(name, justify="left" if is_left else "right")
    for number, row in enumerate(rows[:most]):
        table.add_row(*row, end_section=number in ends)
    console.print(table)
    if most is not None and len(rows) > most:
        console.print(f"and {len(rows) - most:,} more (--json has all)")


SHOWN = 40
"""The maximum number of rows of a long table."""

Show = Callable[[float], str]


def percent(value: float) -> str:
    return f"{100 * value:.2f} %"


def seconds(value: float) -> str:
    return show_duration(value * SECOND)


def plain(value: float) -> str:
    return f"{value:,.0f}"


def ratio(value: float) -> str:
    return f"{value:.4f}"


def points(new: float, old: float) -> str:
    return f"{100 * (new - old):+.2f} points"


def relative(new: float, old: float) -> str:
    if old == 0:
        return "" if new == 0 else "from 0"
    return f"{100 * (new / old - 1):+.1f} %"


Row = tuple[str, tuple[str, ...], Show, Callable[[float, float], str] | None, int]

ROWS: tuple[Row, ...] = (
    ("GAR mean", ("gar", "mean"), percent, points, 1),
    ("GAR median", ("gar", "median"), percent, points, 1),
    ("SOR", ("sor",), percent, points, 1),
    ("GFR mean", ("gfr", "mean"), percent, points, -1),
    ("GFR median", ("gfr", "median"), percent, points, -1),
    ("JWTD wait mean", ("wait_s", "mean"), seconds, relative, -1),
    ("JWTD wait P50", ("wait_s", "p50"), seconds, relative, -1),
    ("JWTD wait P90", ("wait_s", "p90"), seconds, relative, -1),
    ("JWTD wait P99", ("wait_s", "p99"), seconds, relative, -1),
    ("JTTED mean", ("jtted", "mean"), ratio, relative, -1),
    ("completion time mean", ("jct_s", "mean"), seconds, relative, -1),
    ("makespan", ("makespan_s",), seconds, relative, -1),
    ("jobs", ("jobs",), plain, None, 0),
    ("completed", ("completed",), plain, None, 0),
    ("censored", ("censored",), plain, None, 0),
    ("rejected", ("rejected",), plain, None, 0),
    ("preemptions", ("preemptions",), plain, None, 0),
)
"""Label, path in the summary, formats of a value and of a gain; 1: more is better, -1: less is better, 0: neither."""

TENANT_ROWS: tuple[Row, ...] = (
    ("evictions", ("evictions",), plain, None, 0),
    ("GPU time lost", ("lost_gpu_s",), seconds, relative, -1),
    ("finish-time fairness, worst", ("fairness", "worst"), ratio, relative, -1),
    ("finish-time fairness, mean", ("fairness", "mean"), ratio, relative, -1),
)
"""Rows shown if queues have quotas."""


DUE_ROWS: tuple[Row, ...] = (
    ("late jobs", ("tardiness_s", "late"), plain, None, 0),
    ("tardiness mean", ("tardiness_s", "mean"), seconds, relative, -1),
    ("tardiness sum", ("tardiness_s", "sum"), seconds, relative, -1),
)
"""Rows shown if jobs have due dates."""


def value_at(summary: dict[str, Any], path: Sequence[str]) -> float | None:
    """Return the number at `path` in a summary, or None."""
    found: Any = summary
    for key in path:
        found = found.get(key) if isinstance(found, dict) else None
    return found  # type: ignore[no-any-return]


def show_runs(results: Sequence[RunResult]) -> None:
    """Print the metrics of one run, or of several side by side with the gain over the first."""
    first = results[0].summary
    columns = ["metric", results[0].profile, *(name for result in results[1:] for name in (result.profile, "gain"))]
    rows: list[list[str | Text]] = []
    shared = any(value_at(result.summary, ("fairness", "mean")) is not None for result in results)
    due = any(value_at(result.summary, ("tardiness_s", "count")) for result in results)
    for label, path, show, gain, better in (*ROWS, *(TENANT_ROWS if shared else ()), *(DUE_ROWS if due else ())):
        old = value_at(first, path)
        rows.append([label])
        for result in results:
            value = value_at(result.summary, path)
            rows[-1] += ["-" if value is None else show(value), _gain(value, old, gain, better)]
        del rows[-1][2]  # the first run has no gain
    last = ("GFR median", "JTTED mean", "makespan", ROWS[-1][0], TENANT_ROWS[-1][0])
    title = f"{results[0].workload} on {results[0].cluster.name}"
    print_table(columns, rows, title, ends=[number for number, row in enumerate(rows) if row[0] in last])
    if len(results) == 1:
        _show_sizes(first)
    for result in results:
        if result.interrupted:
            console.print(
                f"{result.profile}: interrupted at {show_duration(result.end)} of simulated time: a partial result",
                style="bold yellow",
            )


def _gain(new: float | None, old: float | None, gain: Callable[[float, float], str] | None, better: int) -> Text:
    if new is None or old is None or gain is None:
        return Text()
    change = (new - old) * better
    colour = "green" if change > 0 else "red" if change < 0 else "dim"
    return Text(gain(new, old), style=colour)


def _show_sizes(summary: dict[str, Any]) -> None:
    rows = []
    for name, _ in SIZE_CLASSES:
        row = summary["wait_by_size"][name]
        if row["count"]:
            waits = (seconds(row[key]) for key in ("mean", "p50", "p90", "p99", "max"))
            rows.append((name, plain(row["count"]), plain(row["censored"]), *waits))
    columns = ("GPUs", "jobs", "censored", "mean", "P50", "P90", "P99", "max")
    print_table(columns, rows, "Waits by size class (GPUs)", left=())


def show_rejected(result: RunResult) -> None:
    """Print why some jobs can never run on this cluster, at most a few reasons."""
    reasons: dict[str, int] = result.summary.get("rejected_because", {})
    for reason, count in list(reasons.items())[:5]:
        console.print(f"rejected {count:,}: {reason}", style="yellow")


def show_mapping(title: str, mapping: dict[str, Any]) -> None:
    """Print a nested mapping as indented lines."""
    console.print(title, style="bold")
    _lines(mapping, 1)


def _lines(mapping: dict[str, Any], depth: int) -> None:
    for key, value in mapping.items():
        pad = "  " * depth
        if isinstance(value, dict):
            console.print(f"{pad}{key}")
            _lines(value, depth + 1)
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            console.print(f"{pad}{key}")
            for entry in value:
                console.print(pad + "  " + "  ".join(f"{k} {_short(v)}" for k, v in entry.items()))
        else:
            console.print(f"{pad}{key or 'unnamed'}: {_short(value)}")


def _short(value: Any) -> str:
    return f"{value:,.4g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)


def section(title: str, lines: list[str]) -> None:
    """Print a title and its indented lines; print nothing if there are no lines."""
    if lines:
        console.print(title, style="cyan")
        for line in lines:
            console.print(f"  {line}", soft_wrap=True)
