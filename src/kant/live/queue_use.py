"""What queues have used, as one state hands it on to the next: after a restart, and to a new leader."""

from __future__ import annotations

from msgspec import Struct

from kant.cluster.columns import J_STARTED
from kant.cluster.state import ClusterState
from kant.cluster.usage import UsageHours
from kant.model.event import QueuesUsed, QueueUse

CHANGED_EVERY = 300_000_000
"""Microseconds after which use that has grown is worth writing again."""


class SavedUse(Struct, frozen=True):
    """What each queue had used up to `at`, microseconds since the Unix epoch; the clock hour had lasted `phase` µs."""

    at: int
    phase: int
    queues: dict[str, QueueUse]


def use_of(state: ClusterState, zero: int, now: int) -> SavedUse | None:
    """What queues have used up to `now` of a state whose clock began at `zero`; None where nobody keeps it."""
    hours = state.quota_usage.hours
    if hours is None:
        return None
    phase, used = hours.used(now)
    names = list(state.queues)
    return SavedUse(zero + now, phase, {names[code]: use for code, use in enumerate(used) if use.present or use.hours})


def use_version(state: ClusterState, now: int) -> int:
    """A number that changes from time to time while there is something to keep; 0 where there is not."""
    hours = state.quota_usage.hours
    return 1 + now // CHANGED_EVERY if hours is not None and hours.running else 0


def goes_on(state: ClusterState, zero: int, now: int, saved: SavedUse) -> QueuesUsed | None:
    """The event by which a state that was built anew goes on at `now` with what was saved; None where nobody keeps it.

    What runs now has used its GPUs since then, or since it started. What ended in between is not known.
    """
    if state.quota_usage.hours is None:
        return None
    names = list(state.queues)
    names += [name for name in saved.queues if name not in state.queues]
    codes = {name: code for code, name in enumerate(names)}
    until, hours = zero + now, UsageHours()
    since = min(saved.at, until)
    hours.restore(since, saved.phase, {codes[name]: use for name, use in saved.queues.items()})
    starts = [(max(zero + int(state.jobs[row, J_STARTED]), since), row) for row in state.running]
    for start, row in sorted(starts):
        queue, _, held, _ = state.quota_usage.charged[row]
        hours.changed(queue, held[0], start)
    phase, used = hours.used(until)
    found = {names[code]: use for code, use in enumerate(used) if use.present or use.hours}
    return QueuesUsed(now, phase, found) if found else None
