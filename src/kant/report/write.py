"""The report as one file, written in one step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from kant.files import replacing
from kant.metrics.result import RunResult
from kant.report.bundle import page
from kant.report.data import as_json, report_data

NO_PARTS: Mapping[str, str] = MappingProxyType({})


def write_report(
    path: Path, runs: Sequence[RunResult], title: str, zero: int | None = None, parts: Mapping[str, str] = NO_PARTS
) -> None:
    """Write `runs` side by side to `path`, the first as the baseline of the others.

    The page shows times as dates if `zero` is given: the run's time zero in microseconds since the Unix epoch. `parts`
    are further pages by name, each with a tab. The file is written completely or not at all.
    """
    text = render(runs, title, zero, parts)
    with replacing(path) as out:
        out.write(text.encode("utf-8", "replace"))


def render(runs: Sequence[RunResult], title: str, zero: int | None = None, parts: Mapping[str, str] = NO_PARTS) -> str:
    """Return the page as text. It depends only on its arguments."""
    if not runs:
        raise ValueError("a report needs at least one run")
    return page(title, as_json(report_data(runs, title, zero)), parts=parts)
