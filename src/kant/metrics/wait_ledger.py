"""The ledger attributes each job's waiting time to causes. The causes of a job add up to its wait exactly.

Jobs that wait for the same cause by the same rule (wait_causes.py) share an *account*: the microseconds spent in each
cause since it was opened. The time attributed to a cause for one job is the difference between two readings: when the
job began to wait, and when it left. Causes are found again after every change.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from kant.cluster import columns as c
from kant.cluster.columns import Table, longer
from kant.cluster.state import ClusterState
from kant.metrics.wait_causes import Cause, WaitClassifier, Waiter
from kant.model.status import JobStatus
from kant.model.units import SECOND
from kant.scheduler.cycle import Scheduler

if TYPE_CHECKING:
    from kant.metrics.result import Ints, JobTable

CAUSES = tuple(Cause)
_AT = {cause: i for i, cause in enumerate(CAUSES)}

Key = tuple[int | str, ...]


class WaitAccount:
    """The time spent in each cause (µs). Time from `since` on counts for `cause`."""

    __slots__ = ("cause", "members", "since", "spent", "waiter")

    def __init__(self, waiter: Waiter, now: int) -> None:
        self.waiter = waiter
        self.spent = [0] * len(CAUSES)
        self.cause = Cause.OTHER
        self.since = now
        self.members = 0

    def reading(self, at: int) -> list[int]:
        """Return the time spent in each cause up to `at`, which must not be before the last change of cause."""
        spent = self.spent.copy()
        spent[_AT[self.cause]] += at - self.since
        return spent

    def turn_to(self, cause: Cause, now: int) -> None:
        """Switch to another cause from `now` on."""
        self.spent[_AT[self.cause]] += now - self.since
        self.cause, self.since = cause, now


class WaitLedger:
    """Follows the state of one scheduler. Call `observe` at the end of every instant, once its plan is carried out."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.state = scheduler.state
        self.spent: Table = np.zeros((1024, len(CAUSES)), dtype=np.int64)  # by job, until it last joined an account
        self.before: Ints = np.zeros(0, dtype=np.int64)  # by initial job: its wait at `begin`
        self._judge = WaitClassifier(scheduler)
        self._strict = self._judge.strict
        self._accounts: dict[Key, WaitAccount] = {}
        self._joined: dict[int, tuple[Key, list[int]]] = {}  # member -> its account, and the reading when it joined
        self._gated: dict[int, tuple[int, int, Key]] = {}  # job -> since when, until when (-1: its base job), account
        self._moved = 0
        self._tree: object = None
        self._mark: tuple[int, ...] = ()

    # --- following the state ---------------------------------------------------------------------------------

    def begin(self, now: int) -> None:
        """Start recording: the waits of existing jobs up to `now` are `before`, and are not split."""
        self.before = waits_at(self.state, now, slice(len(self.state.ids)))

    def observe(self, now: int) -> None:
        """Record which jobs began or ceased to wait at `now`, and the causes from now on."""
        state = self.state
        moved = state.job_changes.since(self._moved)
        self._moved = state.job_changes.end
        mark = (state.capacity_version, state.node_version, state.quota_usage.quota_version, len(state.reserved))
        anew = moved is None or state.quota_usage.tree is not self._tree
        ended = [row for row, (_, until, _) in self._gated.items() if 0 <= until <= now]
        if not (moved or anew or ended) and mark == self._mark:
            return
        self._mark, self._tree = mark, state.quota_usage.tree
        for row in ended:
            since, until, key = self._gated.pop(row)
            self._row(row)[_AT[Cause.GATED]] += until - since
            self._joined[row] = (key, self._accounts[key].reading(until))
        rows = list(moved or ())
        if anew:
            rows = list(dict.fromkeys([*self._joined, *self._gated, *state.pending]))
        rows += [row for row, (_, until, _) in self._gated.items() if until < 0 and self._base_runs(row)]
        for row in rows:
            self._leave(row, now)
        if anew:
            self._accounts.clear()
        for row in rows:
            if row in state.pending and row not in self._joined and row not in self._gated:
                self._enter(row, now)
        if self._strict:
            self._find_heads(now)
        for key in [key for key, account in self._accounts.items() if account.members == 0]:
            del self._accounts[key]
        self._judge.follow(moved)
        for account in self._accounts.values():
            cause = self._judge.cause(account.waiter)
            if cause is not account.cause:
                account.turn_to(cause, now)

    def _base_runs(self, row: int) -> bool:
        return int(self.state.jobs[row, c.J_BASE]) in self.state.running

    def _enter(self, row: int, now: int) -> None:
        """Add a job that begins to wait. It joins its account now, or once its base job runs and its back-off ends."""
        jobs = self.state.jobs
        until = now
        if self.scheduler.profile.discipline.quotas:
            if jobs[row, c.J_BASE] >= 0 and not self._base_runs(row):
                self._settle(row, now, Cause.OTHER)
                self._gated[row] = (now, -1, ())
                return
            if jobs[row, c.J_RETURNS]:
                back_off = self.scheduler.profile.requeue.back_off(self.state, row)
                until = max(now, back_off.until) if back_off is not None else now
        self._settle(row, now, Cause.OTHER)
        self._join(row, self._rest(row), now, until)

    def _bucket(self, row: int) -> tuple[int, ...]:
        return self.scheduler.profile.discipline.bucket(*self.state.jobs[row, [c.J_QUEUE, c.J_SHAPE]].tolist())

    def _rest(self, row: int) -> Key:
        """Return the key of the account of a job that is not the first one of its bucket."""
        queue, shape, user, priority = self.state.jobs[row, [c.J_QUEUE, c.J_SHAPE, c.J_USER, c.J_PRIORITY]].tolist()
        if not self.scheduler.profile.order.by_priority:
            priority = 0
        if self._strict:
            return ("rest", priority, *self._bucket(row))
        return (queue, shape, priority, user if self.state.quota_usage.limits_users else -1)

    def _join(self, row: int, key: Key, now: int, until: int) -> None:
        account = self._accounts.get(key)
        if account is None:
            behind = self._bucket(row) if key[0] == "rest" else None
            account = self._accounts[key] = WaitAccount(self._judge.waiter(row, behind), now)
        account.members += 1
        if until > now:
            self._gated[row] = (now, until, key)
        else:
            self._joined[row] = (key, account.reading(now))

    def _leave(self, row: int, now: int) -> None:
        """Add to a job the time that its account has recorded since the job joined."""
        if row in self._joined:
            key, then = self._joined.pop(row)
            account, own = self._accounts[key], self._row(row)
            for at, (late, early) in enumerate(zip(account.reading(now), then, strict=True)):
                if late > early:  # otherwise a clock went back between the readings
                    own[at] += late - early
            self._settle(row, now, account.cause)
        elif row in self._gated:
            since, _, key = self._gated.pop(row)
            self._row(row)[_AT[Cause.GATED]] += now - since
            self._settle(row, now, Cause.GATED)
        else:
            return
        if key:
            self._accounts[key].members -= 1

    def _settle(self, row: int, now: int, last: Cause) -> None:
        """Make the causes of a job add up to its wait, though changes before `now` were not observed.

        Excess is taken from the `last` cause; unobserved waiting is OTHER.
        """
        own, jobs = self._row(row), self.state.jobs
        waited = jobs.item(row, c.J_WAITED)
        if jobs.item(row, c.J_STATUS) == JobStatus.PENDING:
            waited += now - jobs.item(row, c.J_SINCE)
        before = self.before.item(row) if row < len(self.before) else 0
        _even(own, waited - before - sum(own.tolist()), last)

    def _row(self, row: int) -> Table:
        while row >= len(self.spent):
            self.spent = longer(self.spent)
        own: Table = self.spent[row]
        return own

    def _find_heads(self, now: int) -> None:
        """Under a strict order give the head of each bucket its own account, and the jobs behind it a shared one."""
        self.scheduler.begin(now)
        pending = self.scheduler.pending
        self._judge.heads = {pending.keys[bucket]: row for row, _, bucket, _ in pending.heads()}
        heads = {row for row in self._judge.heads.values() if row in self._joined}
        old = {key[1] for key in self._accounts if key[0] == "head"}
        for row in old | heads:
            assert isinstance(row, int)
            if row in self._joined and (self._joined[row][0][0] == "head") != (row in heads):
                self._leave(row, now)
                self._join(row, ("head", row) if row in heads else self._rest(row), now, now)

    # --- results -------------------------------------------------------------------------------------------------

    def splits(self, end: int, rows: Sequence[int] | None = None) -> Table:
        """Return for each job (or those of `rows`) microseconds by cause, as of `end`. Changes nothing.

        They add up to its wait, without its wait `before`.
        """
        wanted = np.arange(len(self.state.ids)) if rows is None else np.array(rows, dtype=np.int64)
        found: Table = np.zeros((len(wanted), len(CAUSES)), dtype=np.int64)
        known = wanted < len(self.spent)
        found[known] = self.spent[wanted[known]]
        at = dict(zip(wanted.tolist(), range(len(wanted)), strict=True))
        among: Iterable[int] = self._joined if rows is None else at
        joined = [(at[row], *self._joined[row]) for row in among if row in self._joined]
        if joined:
            places, keys, early = zip(*joined, strict=True)
            accounts = dict.fromkeys(keys)
            number = dict(zip(accounts, range(len(accounts)), strict=True))
            late = np.array([self._accounts[key].reading(end) for key in accounts], dtype=np.int64)
            found[list(places)] += _difference(late[[number[key] for key in keys]], early)
        among = self._gated if rows is None else at
        for row in [row for row in among if row in self._gated]:
            since, until, key = self._gated[row]
            gone = until if 0 <= until < end else end
            found[at[row], _AT[Cause.GATED]] += max(gone - since, 0)
            if gone < end:
                found[at[row]] += _difference(self._accounts[key].reading(end), self._accounts[key].reading(gone))
        left = waits_at(self.state, end, wanted) - found.sum(axis=1)
        old = wanted < len(self.before)
        left[old] -= self.before[wanted[old]]
        for i in np.flatnonzero(left).tolist():  # changed since the last observation
            row = int(wanted[i])
            last = self._accounts[self._joined[row][0]].cause if row in self._joined else Cause.GATED
            _even(found[i], int(left[i]), last)
        return found

    def columns(self, end: int) -> dict[str, Ints]:
        """Return for each cause a column over the jobs, microseconds."""
        splits = self.splits(end)
        return {cause.value: splits[:, i].copy() for i, cause in enumerate(CAUSES)}


def waits_at(state: ClusterState, end: int, rows: int | slice | Ints) -> Ints:
    """Return how long these jobs have waited up to `end`."""
    jobs = state.jobs[rows]
    waiting = jobs[..., c.J_STATUS] == JobStatus.PENDING
    waits: Ints = jobs[..., c.J_WAITED] + np.where(waiting, end - jobs[..., c.J_SINCE], 0)
    return waits


def _even(own: Table, left: int, last: Cause) -> None:
    """Make the causes of a job add up: positive `left` is added to OTHER, negative is taken from the `last` cause.

    The others are reduced only if a clock went back by more than the `last` cause has.
    """
    if left >= 0:
        if left:
            own[_AT[Cause.OTHER]] += left
        return
    for i in (_AT[last], *np.argsort(-own, kind="stable").tolist()):
        less = min(int(own[i]), -left)
        own[i] -= less
        left += less


def _difference(late: Table | Sequence[int], early: Sequence[Any]) -> Table:
    """Return the time between two readings; 0 if a clock went back between them."""
    difference: Table = np.asarray(late, dtype=np.int64) - np.array(early, dtype=np.int64)
    return np.maximum(difference, 0, out=difference)


def wait_by_cause(columns: dict[str, Ints], table: JobTable, queues: tuple[str, ...]) -> dict[str, Any]:
    """Return the seconds waited by cause, in total and by queue, of all jobs except rejected and cancelled ones."""
    admitted = (table.status != JobStatus.REJECTED) & (table.status != JobStatus.CANCELLED)

    def seconds(mask: np.ndarray) -> dict[str, float]:
        # whole seconds and the rest separately: half a million waits of a year exceed 2^63 microseconds
        parts = {cause: (column[mask] // SECOND, column[mask] % SECOND) for cause, column in columns.items()}
        return {cause: int(whole.sum()) + int(rest.sum()) / SECOND for cause, (whole, rest) in parts.items()}

    by_queue = {name: seconds(admitted & (table.queue == code)) for code, name in enumerate(queues)}
    return {"total": seconds(admitted), "by_queue": by_queue}
