"""What queues have used, handed from one state to the next: after a restart, and to a new leader."""

from __future__ import annotations

import base64
import gzip
from datetime import datetime

import msgspec
from msgspec import Struct

from kant.cluster.columns import J_STARTED
from kant.cluster.state import ClusterState
from kant.cluster.usage import HOURS, UsageHours
from kant.model.event import BudgetsUsed, QueuesUsed, QueueUse

CHANGED_EVERY = 300_000_000
"""Microseconds after which increased use is worth saving again."""

MONTHS = 24
"""Number of months whose ends are given in advance; later months count as 30 days."""

MOST = 8192
"""Maximum bytes of a note (saved use as text). The Kubernetes Lease that carries it is written every few seconds."""

EXACT_HOURS = (HOURS, 168, 48, 12, 3, 0)
"""Numbers of hours to keep one by one in a note: the first that makes the note short enough applies. Older hours are
summed."""


class SavedUse(Struct, frozen=True):
    """What each queue had used until `at` (µs since the Unix epoch), `phase` µs after the beginning of an hour."""

    at: int
    phase: int
    queues: dict[str, QueueUse]
    spent: dict[str, dict[str, int]] = {}
    """Use in the month of `at` by queue and user, in milli-GPU-microseconds; empty if there are no budgets."""


def use_of(state: ClusterState, zero: int, now: int) -> SavedUse | None:
    """Return what queues have used up to `now`, for a state whose clock began at `zero`; None if use is not tracked."""
    hours, budgets = state.quota_usage.hours, state.quota_usage.budgets
    if hours is None and budgets is None:
        return None
    phase, used = hours.used(now) if hours is not None else (0, [])
    names, users, spent = list(state.queues), list(state.users), dict[str, dict[str, int]]()
    for (queue, user), milli in budgets.used(now).items() if budgets is not None else ():
        spent.setdefault(names[queue], {})[users[user]] = milli
    known = {names[code]: use for code, use in enumerate(used) if use.present or use.hours}
    return SavedUse(zero + now, phase, known, spent)


def use_version(state: ClusterState, now: int) -> int:
    """Return a number that changes when the use should be saved again; 0 if there is nothing to save."""
    hours, budgets = state.quota_usage.hours, state.quota_usage.budgets
    if budgets is None and (hours is None or not hours.running):
        return 0
    return 1 + now // CHANGED_EVERY + (budgets.version if budgets is not None else 0)


def restored_use(state: ClusterState, zero: int, now: int, saved: SavedUse) -> QueuesUsed | None:
    """Return the event that restores saved use in a rebuilt state at `now`; None if use is not tracked.

    Running jobs count as using their GPUs since `saved.at`, or since a later start. Use by jobs ended since is lost.
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


def budgets_go_on(state: ClusterState, zero: int, now: int, saved: SavedUse | None) -> BudgetsUsed | None:
    """Return the event that restores the budgets' saved use of this month at `now`; None if no queue has a budget.

    Months are calendar months, by the local time of this process. A running job counts as having used its GPUs since
    `saved.at` or its start, whichever is later. The use of jobs that ended in between is lost.
    """
    if state.quota_usage.budgets is None:
        return None
    begun, *ends = _months(zero + now)
    spent = saved.spent if saved is not None and saved.at >= begun else {}
    since = saved.at if spent and saved is not None else begun
    names, users = list(state.queues), list(state.users)
    found = {queue: dict(of_users) for queue, of_users in spent.items()}
    for row in state.running:
        code, user, held, _ = state.quota_usage.charged[row]
        own = found.setdefault(names[code], {})
        ran = max(zero + now - max(zero + int(state.jobs[row, J_STARTED]), since), 0)
        own[users[user]] = own.get(users[user], 0) + held[0] * ran
    return BudgetsUsed(now, tuple(end - zero for end in ends), found)


def _months(at: int) -> list[int]:
    """Return the beginning and the end of the month of `at`, and the ends of later months (µs since the Unix epoch)."""
    day = datetime.fromtimestamp(at / 1e6)
    months = [divmod(day.month - 1 + ahead, 12) for ahead in range(MONTHS + 1)]
    return [round(datetime(day.year + years, month + 1, 1).timestamp() * 1e6) for years, month in months]


def note_of(saved: SavedUse | None) -> str:
    """Return the saved use as a text of at most `MOST` bytes; "" if there is none, or if there are too many queues."""
    if saved is None or not (saved.queues or saved.spent):
        return ""
    for exact in EXACT_HOURS:
        queues = {name: _summed_up(use, exact) for name, use in saved.queues.items()}
        packed = gzip.compress(msgspec.json.encode(SavedUse(saved.at, saved.phase, queues, saved.spent)), mtime=0)
        text = base64.b64encode(packed).decode()
        if len(text) <= MOST:
            return text
    return ""


def _summed_up(use: QueueUse, exact: int) -> QueueUse:
    """Return the use with all hours but the `exact` latest summed by power of two of their age, at a middle age."""
    found: dict[int, int] = {}
    for age, spent in use.hours:
        half = 1 << age.bit_length() - 1
        at = age if age <= exact else min(half + half // 2, HOURS - 1)
        found[at] = found.get(at, 0) + spent
    return QueueUse(use.present, tuple(sorted(found.items())))


def read_note(text: str) -> SavedUse | None:
    """Return the content of a note; None for one that cannot be read."""
    try:
        return msgspec.json.decode(gzip.decompress(base64.b64decode(text)), type=SavedUse)
    except (OSError, EOFError, ValueError, msgspec.MsgspecError):
        return None
