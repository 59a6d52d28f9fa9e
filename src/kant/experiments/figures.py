"""The figures of a summary, by name: `wait_s.p90` is `summary["wait_s"]["p90"]`; and whether a figure is better higher
or lower.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from kant.model.errors import InputError
from kant.model.units import SECOND, show_duration

APART = {"by_queue", "by_pool", "rejected_because", "waiting_because"}
"""Parts of a summary whose keys are names of a workload or a cluster: not the same in every run."""
ABOUT = {"profile", "workload", "cluster", "seed", "interrupted", "digest", "peak_rss_mib", "jobs_per_cpu_s"}
"""The parts of a summary that are not figures, or that depend on the machine."""

HIGHER = {"gar", "sor", "sor_all_nodes", "completed"}
LOWER = {
    "wait_s", "first_wait_s", "wait_by_size", "jct_s", "makespan_s", "gfr", "jtted", "tardiness_s", "preemptions",
    "evictions", "lost_gpu_s", "censored", "rejected", "fairness",
}  # fmt: skip
SHARES = {"gar", "sor", "sor_all_nodes", "gfr"}

SHOWN = ("wait_s.mean", "wait_s.p90", "jct_s.mean", "gar.mean", "sor", "gfr.mean")
"""The figures that tables show by default."""


def figures(summary: dict[str, Any]) -> dict[str, float | None]:
    """Return every number of a summary that all runs have, by name, in the order of the summary; None if the run has
    none.
    """
    return dict(_walk({key: value for key, value in summary.items() if key not in ABOUT}, ""))


def _walk(part: dict[str, Any], before: str) -> Iterator[tuple[str, float | None]]:
    for key, value in part.items():
        name = f"{before}{key}"
        if key in APART:
            continue
        if isinstance(value, dict):
            yield from _walk(value, f"{name}.")
        elif value is None or (isinstance(value, int | float) and not isinstance(value, bool)):
            yield name, value


def figure(summary: dict[str, Any], name: str) -> float | None:
    """Return the figure called `name`, or None if the run has none."""
    found: Any = summary
    for part in name.split("."):
        found = found.get(part) if isinstance(found, dict) else None
    return float(found) if isinstance(found, int | float) else None


def check_figure(name: str, where: str) -> str:
    """Return `name` if it can be the name of a figure. Raises InputError otherwise."""
    if name.partition(".")[0] not in HIGHER | LOWER | {"cpu_s", "decisions"} or not all(name.split(".")):
        raise InputError(where, f"figures of a summary such as {', '.join(SHOWN)}", name)
    return name


def is_better_higher(name: str) -> bool:
    """Whether a higher value is better."""
    return name.partition(".")[0] in HIGHER


def show_difference(name: str) -> Callable[[float], str]:
    """The formatter of a difference of a figure, in percentage points for shares."""
    if name.partition(".")[0] in SHARES:
        return lambda value: f"{100 * value:.2f} points"
    return show(name)


def show(name: str) -> Callable[[float], str]:
    """The formatter of a figure."""
    first = name.partition(".")[0]
    if first in SHARES:
        return lambda value: f"{100 * value:.2f} %"
    if first.endswith("_s") or first == "wait_by_size":
        return lambda value: show_duration(round(value * SECOND))
    return lambda value: f"{value:,.4g}" if value != int(value) or abs(value) < 1e4 else f"{value:,.0f}"
