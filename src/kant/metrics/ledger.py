"""The ledger: to what each job's waiting is owed, over time. The causes of a job add up to its wait exactly.

Jobs of one queue that ask for the very same thing wait for the same cause, so the time is kept once for all of them in
an *account*: the microseconds that it has spent in each cause since it was opened. What one job owes to a cause is the
difference between two readings, when it came to wait and when it left. Causes are found anew when something happened.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import numpy as np

from kant.cluster.columns import (
    CPU,
    CPU_FREE,
    FREE,
    J_CORE,
    J_QUEUE,
    J_RETURNS,
    J_SHAPE,
    J_SINCE,
    J_STATUS,
    J_USER,
    J_WAITED,
    MEMORY,
    MEMORY_FREE,
    P_ALLOCATED,
    P_CAPACITY,
    POOL,
    STATUS,
    Table,
)
from kant.cluster.shapes import Shape
from kant.cluster.state import ClusterState
from kant.metrics.result import Ints, JobTable
from kant.model.decision import NoFit
from kant.model.status import JobStatus, NodeStatus
from kant.model.units import FOREVER, SECOND
from kant.queueing.admission import Admission
from kant.scheduler.cycle import Scheduler
from kant.scheduler.inquiry import Inquiry


class Cause(StrEnum):
    """What a job waits for."""

    QUOTA = "quota"  # it is beyond its own quota, or its user's
    QUOTA_LENT = "quota-lent"  # its queue stays within its own quota, but others use what they borrowed of it
    CAPACITY = "capacity"  # less is free in all, on the pools that admit it, than it asks for
    FRAGMENTATION = "fragmentation"  # enough is free in all, but it does not fit
    TOPOLOGY = "topology"  # no policy looks at the fabric yet: always 0
    RESERVATION = "reservation"  # it would fit, but the place is promised to others
    ORDER = "order"  # others stand before it where nobody may pass
    GATED = "gated"  # its queue is closed, its back-off runs, or its core does not run
    OTHER = "other"  # nothing keeps it, or no cycle has looked at it yet


CAUSES = tuple(Cause)
_AT = {cause: i for i, cause in enumerate(CAUSES)}

Key = tuple[int | str, ...]


class Account:
    """Time by cause; since `since` it counts for `cause`.

    `row` is the job that it was opened for, `options` the shapes in which its members may be tried.
    """

    __slots__ = ("cause", "members", "node", "options", "row", "shape", "since", "spent", "tried", "user")

    def __init__(self, row: int, shape: Shape, now: int) -> None:
        self.row = row
        self.shape = shape
        self.options = [shape]
        self.node = -1  # of its queue in the tree of quotas
        self.user = 0
        self.spent = [0] * len(CAUSES)
        self.cause = Cause.OTHER
        self.since = now
        self.members = 0
        self.tried: tuple[int, bool] = (-1, False)  # when it was last tried, by a stamp, and whether it fitted

    def reading(self, at: int) -> list[int]:
        """The time spent in each cause up to `at`, which is not before the cause last changed."""
        spent = self.spent.copy()
        spent[_AT[self.cause]] += at - self.since
        return spent

    def turn_to(self, cause: Cause, now: int) -> None:
        """From `now` on another cause counts."""
        self.spent[_AT[self.cause]] += now - self.since
        self.cause, self.since = cause, now


class Ledger:
    """Follows the state of one scheduler. Call `observe` at the end of every instant, when its plan is carried out."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.state = scheduler.state
        self.spent: Table = np.zeros((1024, len(CAUSES)), dtype=np.int64)  # of each job, up to when it last joined
        discipline = scheduler.profile.discipline
        self._heeds = discipline.quotas
        self._strict = discipline.lanes and discipline.lane(0, 1) == discipline.lane(0, 2)
        self._tries_all = discipline.lanes
        self._accounts: dict[Key, Account] = {}
        self._joined: dict[int, tuple[Key, list[int]]] = {}  # member -> its account, and the reading when it joined
        self._gated: dict[int, tuple[int, int, Key]] = {}  # job -> since when, until when (-1: its core), account
        self._moved = 0
        self._tree: object = None
        self._mark: tuple[int, ...] = ()

    # --- following the state ---------------------------------------------------------------------------------

    def observe(self, now: int) -> None:
        """Take in what happened at `now`: who came to wait, who left, and what the others wait for from now on."""
        state = self.state
        moved = state.moved.since(self._moved)
        self._moved = state.moved.end
        mark = (state.openings, state.services, state.holdings.refunds, len(state.reserved))
        anew = moved is None or state.holdings.tree is not self._tree
        if not (moved or anew) and mark == self._mark:
            return
        self._mark, self._tree = mark, state.holdings.tree
        for row in [row for row, (_, until, _) in self._gated.items() if 0 <= until <= now]:
            since, until, key = self._gated.pop(row)
            self._row(row)[_AT[Cause.GATED]] += until - since
            self._joined[row] = (key, self._accounts[key].reading(until))
        rows = list(moved or ())
        if anew:
            rows = list(dict.fromkeys([*self._joined, *self._gated, *state.pending]))
        rows += [row for row, (_, until, _) in self._gated.items() if until < 0 and self._core_runs(row)]
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
        self._judge(now)

    def _core_runs(self, row: int) -> bool:
        return int(self.state.jobs[row, J_CORE]) in self.state.running

    def _enter(self, row: int, now: int) -> None:
        """A job comes to wait: it joins its account, now or when nothing of its own keeps it any more."""
        jobs = self.state.jobs
        until = now
        if self._heeds:
            if jobs[row, J_CORE] >= 0 and not self._core_runs(row):
                self._settle(row, now, Cause.OTHER)
                self._gated[row] = (now, -1, ())
                return
            if jobs[row, J_RETURNS]:
                back_off = self.scheduler.profile.requeue.back_off(self.state, row)
                until = max(now, back_off.until) if back_off is not None else now
        self._settle(row, now, Cause.OTHER)
        self._join(row, self._rest(row), now, until)

    def _rest(self, row: int) -> Key:
        """The account of a job that is no head."""
        queue, shape, user = self.state.jobs[row, [J_QUEUE, J_SHAPE, J_USER]].tolist()
        if self._strict:
            return ("rest", *self.scheduler.profile.discipline.lane(queue, shape))
        return (queue, shape, user if self.state.holdings.limits_users else -1)

    def _join(self, row: int, key: Key, now: int, until: int) -> None:
        account = self._accounts.get(key)
        if account is None:
            account = self._accounts[key] = self._open(row, now)
        account.members += 1
        if until > now:
            self._gated[row] = (now, until, key)
        else:
            self._joined[row] = (key, account.reading(now))

    def _open(self, row: int, now: int) -> Account:
        account = Account(row, self.state.shape_of(row), now)
        if self._heeds and self.state.holdings.tree is not None:
            queue, account.user = self.state.jobs[row, [J_QUEUE, J_USER]].tolist()
            account.node = self.state.holdings.node_of[queue]
            account.options = Admission(self.state).options(row, account.shape)
        return account

    def _leave(self, row: int, now: int) -> None:
        """Enter what a job's account has spent since it joined."""
        if row in self._joined:
            key, then = self._joined.pop(row)
            account = self._accounts[key]
            self._row(row)[:] += _difference(account.reading(now), then)
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
        """Make the causes of a job add up to its wait, though something happened before `now` that nobody observed.

        What it did not wait in the end is taken from the `last` cause; what it waited unobserved is OTHER.
        """
        own, waited = self._row(row), int(waits_at(self.state, now, row))
        left = waited - int(own.sum())
        own[_AT[Cause.OTHER if left > 0 else last]] += left

    def _row(self, row: int) -> Table:
        while row >= len(self.spent):
            self.spent = np.concatenate([self.spent, np.zeros_like(self.spent)])
        own: Table = self.spent[row]
        return own

    def _find_heads(self, now: int) -> None:
        """Where nobody may pass, the head of a lane has an account of its own, and those behind it share another."""
        self.scheduler.waiting.refresh(now)
        heads = {entry[2] for entry, _ in self.scheduler.waiting.heads() if entry[2] in self._joined}
        old = {key[1] for key in self._accounts if key[0] == "head"}
        for row in old | heads:
            assert isinstance(row, int)
            if row in self._joined and (self._joined[row][0][0] == "head") != (row in heads):
                self._leave(row, now)
                self._join(row, ("head", row) if row in heads else self._rest(row), now, now)

    # --- finding causes ----------------------------------------------------------------------------------------

    def _judge(self, now: int) -> None:
        """Find the cause of every account."""
        free = Room(self.state)
        self._inquiry: Inquiry | None = None
        for key, account in self._accounts.items():
            cause = self._gate(account) if account.node >= 0 or self._tree is not None else None
            if cause is None and key[0] == "rest":
                cause = Cause.ORDER
            if cause is None and account.node >= 0:
                cause = self._kept_by_quota(account)
            if cause is None:
                cause = Cause.CAPACITY if free.lacks(account.shape) else self._in_spite_of_room(account)
            if cause is not account.cause:
                account.turn_to(cause, now)

    def _gate(self, account: Account) -> Cause | None:
        tree = self.state.holdings.tree
        if not self._heeds or tree is None:
            return None
        return Cause.GATED if account.node < 0 or not tree.starts[account.node] else None

    def _kept_by_quota(self, account: Account) -> Cause | None:
        """The cause, where the quotas do not let the job start in any of its shapes."""
        holdings = self.state.holdings
        tree = holdings.tree
        assert tree is not None
        kept: Cause | None = None
        for shape in account.options:
            amounts = holdings.amounts(shape)
            short = tree.shortage(account.node, account.user, amounts)
            if short is None:
                return None
            if kept is None:
                entitled = short.kind != "user" and all(
                    tree.usage(account.node, key) + amount <= tree.nominal(account.node, key)
                    for key, amount in enumerate(amounts)
                    if amount > 0
                )
                kept = Cause.QUOTA_LENT if entitled else Cause.QUOTA
        return kept

    def _in_spite_of_room(self, account: Account) -> Cause:
        """The cause, where enough is free in all."""
        if self._tries_all:  # the cycle has tried it
            return Cause.FRAGMENTATION
        if not self._fits(account):
            return Cause.FRAGMENTATION
        if self.state.reserved:
            return Cause.RESERVATION
        return Cause.OTHER if self.scheduler.forecast is not None else Cause.ORDER

    def _fits(self, account: Account) -> bool:
        """Whether there is a place, if promises are not looked at. A "no" holds until something comes free."""
        state, shape = self.state, account.shape
        several = len(shape.parts) > 1
        freed = int(state.log[0]) if several else sum(state.freed[pool] for pool in shape.pools)
        stamp, fitted = account.tried
        if fitted or stamp != freed:
            if self._inquiry is None:
                self._inquiry = Inquiry(self.scheduler)
            with self._inquiry.trial():
                fitted = not isinstance(self._inquiry.placer.place(shape, account.row), NoFit)
            account.tried = (freed, fitted)
        return fitted

    # --- what it says --------------------------------------------------------------------------------------------

    def splits(self, end: int) -> Table:
        """Of each job a row of microseconds by cause, as things stand at `end`. Changes nothing."""
        found: Table = np.zeros((len(self.state.ids), len(CAUSES)), dtype=np.int64)
        known = min(len(found), len(self.spent))
        found[:known] = self.spent[:known]
        for row, (key, then) in self._joined.items():
            found[row] += _difference(self._accounts[key].reading(end), then)
        for row, (since, until, key) in self._gated.items():
            gone = until if 0 <= until < end else end
            found[row, _AT[Cause.GATED]] += gone - since
            if gone < end:
                found[row] += _difference(self._accounts[key].reading(end), self._accounts[key].reading(gone))
        left = waits_at(self.state, end, slice(len(found))) - found.sum(axis=1)
        for row in np.flatnonzero(left).tolist():  # moved since the last time that anybody observed
            last = self._accounts[self._joined[row][0]].cause if row in self._joined else Cause.GATED
            found[row, _AT[Cause.OTHER if left[row] > 0 else last]] += left[row]
        return found

    def columns(self, end: int) -> dict[str, Ints]:
        """Of each cause a column over the jobs, microseconds."""
        splits = self.splits(end)
        return {cause.value: splits[:, i].copy() for i, cause in enumerate(CAUSES)}


class Room:
    """What is free in all, for each set of pools: on nodes in service, whether in one piece or not."""

    def __init__(self, state: ClusterState) -> None:
        self.state = state
        self.demands = state.shapes.demands
        self._gpus: dict[int, int] = {}
        self._rest: dict[int, tuple[int, int]] = {}

    def lacks(self, shape: Shape) -> bool:
        """Whether the gang asks for more GPUs, CPU or memory than there are."""
        free = self._gpus.get(shape.pool_bits)
        if free is None:
            free = self._gpus[shape.pool_bits] = self._free_gpus(shape)
        if shape.gpu_milli > free:
            return True
        if not shape.cpu and not shape.memory:
            return False
        rest = self._rest.get(shape.pool_bits)
        if rest is None:
            rest = self._rest[shape.pool_bits] = self._free_rest(shape.pool_bits)
        return shape.cpu > rest[0] or shape.memory > rest[1]

    def _free_gpus(self, shape: Shape) -> int:
        state = self.state
        if state.services:  # cordoned nodes have capacity that nobody can have
            table = state.table
            open_nodes = (table[:, STATUS] == NodeStatus.IN_SERVICE) & ((shape.pool_bits >> table[:, POOL]) & 1 == 1)
            return int(table[open_nodes, FREE].sum())
        return sum(int(state.pools[pool, P_CAPACITY] - state.pools[pool, P_ALLOCATED]) for pool in shape.pools)

    def _free_rest(self, pool_bits: int) -> tuple[int, int]:
        """CPU and memory; FOREVER where some node does not limit them."""
        table = self.state.table
        nodes = table[(table[:, STATUS] == NodeStatus.IN_SERVICE) & ((pool_bits >> table[:, POOL]) & 1 == 1)]
        free = []
        for left, limit in ((CPU_FREE, CPU), (MEMORY_FREE, MEMORY)):
            free.append(FOREVER if (nodes[:, limit] >= FOREVER).any() else int(nodes[:, left].sum()))
        return free[0], free[1]


def waits_at(state: ClusterState, end: int, rows: int | slice) -> Ints:
    """How long these jobs have waited up to `end`."""
    jobs = state.jobs[rows]
    waits: Ints = jobs[..., J_WAITED] + np.where(jobs[..., J_STATUS] == JobStatus.PENDING, end - jobs[..., J_SINCE], 0)
    return waits


def _difference(late: list[int], early: list[int]) -> Table:
    difference: Table = np.array(late, dtype=np.int64) - np.array(early, dtype=np.int64)
    return difference


def wait_by_cause(columns: dict[str, Ints], table: JobTable, queues: tuple[str, ...]) -> dict[str, Any]:
    """Seconds waited by cause, in total and by queue, of all jobs but those rejected and cancelled."""
    admitted = (table.status != JobStatus.REJECTED) & (table.status != JobStatus.CANCELLED)

    def seconds(mask: np.ndarray) -> dict[str, float]:
        # whole seconds and the rest apart: half a million waits of a year pass 2^63 microseconds
        parts = {cause: (column[mask] // SECOND, column[mask] % SECOND) for cause, column in columns.items()}
        return {cause: int(whole.sum()) + int(rest.sum()) / SECOND for cause, (whole, rest) in parts.items()}

    by_queue = {name: seconds(admitted & (table.queue == code)) for code, name in enumerate(queues)}
    return {"total": seconds(admitted), "by_queue": by_queue}
