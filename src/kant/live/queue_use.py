"""What queues have used, as one state hands it on to the next: after a restart, and to a new leader."""

from __future__ import annotations

import base64
import gzip

import msgspec
from msgspec import Struct

from kant.cluster.columns import J_STARTED
from kant.cluster.state import ClusterState
from kant.cluster.usage import HOURS, UsageHours
from kant.model.event import QueuesUsed, QueueUse

CHANGED_EVERY = 300_000_000
"""Microseconds after which use that has grown is worth writing again."""

MOST = 8192
"""Bytes of a note at most. It is written every few seconds, together with the Lease that it is on."""

EXACT_HOURS = (HOURS, 168, 48, 12, 3, 0)
"""The latest hours that a note has one by one, the first number with which it is short enough. Older ones are summed
up: those of ages from a power of two to the next."""


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


def note_of(saved: SavedUse | None) -> str:
    """What was saved as a text of at most `MOST` bytes; "" where nothing is, or where there are too many queues."""
    if saved is None or not saved.queues:
        return ""
    for exact in EXACT_HOURS:
        queues = {name: _summed_up(use, exact) for name, use in saved.queues.items()}
        packed = gzip.compress(msgspec.json.encode(SavedUse(saved.at, saved.phase, queues)), mtime=0)
        text = base64.b64encode(packed).decode()
        if len(text) <= MOST:
            return text
    return ""


def _summed_up(use: QueueUse, exact: int) -> QueueUse:
    """The use with the hours beyond the `exact` latest summed up, each sum as old as the middle of its hours."""
    found: dict[int, int] = {}
    for age, spent in use.hours:
        half = 1 << age.bit_length() - 1
        at = age if age <= exact else min(half + half // 2, HOURS - 1)
        found[at] = found.get(at, 0) + spent
    return QueueUse(use.present, tuple(sorted(found.items())))


def read_note(text: str) -> SavedUse | None:
    """What a note says; None for one that cannot be read."""
    try:
        return msgspec.json.decode(gzip.decompress(base64.b64decode(text)), type=SavedUse)
    except (OSError, EOFError, ValueError, msgspec.MsgspecError):
        return None
