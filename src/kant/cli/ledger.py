"""Prints the ledger of one or several runs: waits by cause, in total and by queue."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kant.cli.show import percent, print_table, seconds

if TYPE_CHECKING:
    from kant.metrics.result import RunResult

MOST_QUEUES = 6
"""The maximum number of queues shown: those with the longest waits. The summary has all queues."""


def show_causes(results: Sequence[RunResult]) -> None:
    """Print the causes of waits if a ledger was kept: runs side by side, and the queues of a single run."""
    splits = {result.profile: result.summary["wait_by_cause"] for result in results if result.wait_by_cause is not None}
    if len(splits) == 1:
        ((profile, split),) = splits.items()
        queues = sorted(split["by_queue"].items(), key=lambda entry: -sum(entry[1].values()))
        columns = {"all": split["total"]} | dict(queues[:MOST_QUEUES] if len(queues) > 1 else ())
        _show(f"Waits by cause under {profile}", columns, {"all"})
    elif splits:
        _show("Waits by cause", {profile: split["total"] for profile, split in splits.items()}, set(splits))


def _show(title: str, columns: dict[str, dict[str, float]], parts: set[str]) -> None:
    """Print a row for each cause; columns in `parts` also show the share of the total."""
    rows = []
    sums = {name: sum(split.values()) for name, split in columns.items()}
    for cause in next(iter(columns.values())):
        if any(split[cause] for split in columns.values()):
            cells = []
            for name, split in columns.items():
                part = f" ({percent(split[cause] / sums[name])})" if name in parts and split[cause] else ""
                cells.append(f"{seconds(split[cause])}{part}" if split[cause] else "-")
            rows.append((cause, *cells))
    rows.append(("wait, all jobs together", *(seconds(total) for total in sums.values())))
    print_table(("cause", *columns), rows, title, ends=[len(rows) - 2])
