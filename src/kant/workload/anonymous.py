"""Anonymizes a workload: removes the names, contents and dates that scheduling does not need."""

from __future__ import annotations

from dataclasses import replace

from kant.model.units import DAY, WEEK
from kant.workload.workload import Workload

MONDAY = 4 * DAY
"""The first Monday after 1970-01-01, which was a Thursday."""


def anonymous(workload: Workload) -> Workload:
    """Return the same jobs with numbers for names, and with time zero on the Monday before the first submission.

    Queues become `queue-1`, `queue-2`, users `user-1` and names of jobs `job-1`, in order of first appearance. Equal
    names stay equal, as learned run times need. No name can be guessed from its number. Times of day and days of the
    week are kept.
    """
    first = workload.origin
    week = (first - MONDAY) // WEEK * WEEK + MONDAY
    return replace(
        workload,
        name="anonymous",
        ids=[str(row) for row in range(len(workload))],
        queues=_numbered("queue", workload.queues),
        users=_numbered("user", workload.users),
        titles=_numbered("job", workload.titles),
        affinities=_numbered("group", workload.affinities),
        origin=first - week,
    )


def _numbered(kind: str, names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(f"{kind}-{number}" if name else "" for number, name in enumerate(names, start=1))
