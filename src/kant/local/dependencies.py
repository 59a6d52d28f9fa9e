"""Whether jobs would wait for each other for ever."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from kant.local.record import JobRecord


def circle(records: Mapping[str, JobRecord], changed: JobRecord) -> str:
    """The job through which one would wait for itself if it were as `changed` says; "" where it would not.

    `records` are the jobs that are not over, in the order of their submission. A singleton counts as waiting for every
    earlier job of its user and name, those of its own array too. Linear in the jobs and what they come after.
    """
    alike = defaultdict[tuple[str, str], list[JobRecord]](list)
    for record in records.values():
        now = changed if record.id == changed.id else record
        alike[now.user, now.submission.name].append(now)
    taken = dict.fromkeys(alike, 0)  # so many of each list have been followed
    open_, seen = [(changed, "")], set[str]()
    while open_:
        record, first = open_.pop()
        ahead = record.ahead
        if record.submission.singleton:
            key = record.user, record.submission.name
            while taken[key] < len(alike[key]) and alike[key][taken[key]].seq < record.seq:
                ahead.append(alike[key][taken[key]].id)
                taken[key] += 1
        for other in ahead:
            if other == changed.id:
                return first or other
            if other in records and other not in seen:
                seen.add(other)
                open_.append((records[other], first or other))
    return ""
