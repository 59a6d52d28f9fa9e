"""Budgets: GPU time that queues and their users have used in the current month, and which budgets are used up.

An event gives the ends of months on the clock of the run. Without such an event, months are 30 days long from time 0
on. The state keeps the use of each pair of queue and user; the use of a budget is summed up on demand. All arithmetic
is on integers, so a budget is used up at the same microsecond on every machine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from kant.cluster.over_budget import ALL_USERS, OverBudget, Scope, covering
from kant.cluster.quota_limits import QuotaLimits
from kant.model.tenant import Budget
from kant.model.units import DAY, FOREVER, HOUR

MONTH = 30 * DAY
"""The length of a month whose end no event gives, microseconds."""


class ScopeUse(NamedTuple):
    """GPU time used in a scope (milli-GPU-µs), its `rate` (milli-GPUs) and limits (milli-GPU-hours; below 0: none)."""

    used: int
    rate: int
    hard: int
    soft: int

    def dry_at(self, now: int, soft: bool = False) -> int:
        """Return when the running jobs use up the hard (or `soft`) limit, µs: at least `now`; FOREVER if never."""
        left = (self.soft if soft else self.hard) * HOUR - self.used
        if (self.soft if soft else self.hard) < 0:
            return FOREVER
        return now if left <= 0 else now - (-left // self.rate) if self.rate else FOREVER


class Budgets:
    """GPU time of the current month, by the queue and the user that jobs name. Call `changed` in order of time;
    queries change no later result."""

    def __init__(self, now: int) -> None:
        self.ends: tuple[int, ...] = ()
        self.begun = now // MONTH * MONTH
        self.end = self.begun + MONTH
        self.version = 0
        self._accounts: dict[tuple[int, int], tuple[int, int, int]] = {}  # used, rate (held milli-GPUs), since
        self._known: tuple[int, int, OverBudget] = (-1, -1, OverBudget(0, frozenset(), frozenset()))

    def changed(self, queue: int, user: int, milli_delta: int, now: int) -> None:
        """Record that jobs of `user` in `queue` hold `milli_delta` milli-GPUs more from `now` (microseconds) on."""
        self._turn(now)
        used, rate, since = self._accounts.get((queue, user), (0, 0, now))
        self._accounts[queue, user] = used + rate * (now - since), rate + milli_delta, now
        self.version += 1

    def restore(self, now: int, ends: Sequence[int], used: Mapping[tuple[int, int], int]) -> None:
        """Continue at `now` with the given use of the month, milli-GPU-microseconds, and the given ends of months."""
        running = {key: (0, rate, now) for key, (_, rate, _) in self._accounts.items() if rate}
        before = {key: (spent, running.get(key, (0, 0, 0))[1], now) for key, spent in used.items()}
        self._accounts = running | before
        self.ends = tuple(ends)
        self.begun = now
        self.end = next((end for end in self.ends if end > now), now + MONTH)
        self.version += 1

    def ends_of(self, now: int) -> int:
        """Return when the month that contains `now` ends, µs."""
        self._turn(now)
        return self.end

    def used(self, now: int) -> dict[tuple[int, int], int]:
        """Return the use of each pair of queue and user in the month up to `now`, milli-GPU-microseconds."""
        self._turn(now)
        return {key: used + rate * (now - since) for key, (used, rate, since) in self._accounts.items()}

    def scopes(self, tree: QuotaLimits, node_of: Sequence[int], now: int) -> dict[Scope, ScopeUse]:
        """Return the scopes that the budgets of the tree limit, with their use up to `now`."""
        spent, found = self.used(now), dict[Scope, list[int]]()
        for node, budget in tree.budgets.items():
            if budget.hard >= 0 or budget.soft >= 0:
                found[node, ALL_USERS] = [0, 0]
        for (queue, user), used in spent.items():
            node, rate = node_of[queue], self._accounts[queue, user][1]
            for scope in covering(tree, node, user) if node >= 0 else ():
                own = found.setdefault(scope, [0, 0])
                own[0] += used
                own[1] += rate
        return {
            (node, user): ScopeUse(used, rate, *_limits(tree.budgets[node], user))
            for (node, user), (used, rate) in found.items()
        }

    def over(self, tree: QuotaLimits, node_of: Sequence[int], now: int) -> OverBudget:
        """Return the scopes that have used up a budget by `now`."""
        if self._known[:2] != (now, self.version):
            uses = self.scopes(tree, node_of, now)
            hard = frozenset(scope for scope, use in uses.items() if use.dry_at(now) <= now)
            soft = frozenset(scope for scope, use in uses.items() if use.dry_at(now, soft=True) <= now)
            self._known = now, self.version, OverBudget(self.begun, hard, soft)
        return self._known[2]

    def next_change(self, tree: QuotaLimits, node_of: Sequence[int], now: int) -> int:
        """Return when the next budget is used up (if all running jobs run on) or renewed, µs; -1 if never."""
        uses = self.scopes(tree, node_of, now).values()
        times = [use.dry_at(now, soft) for use in uses for soft in (False, True)]
        return min([time if time > now else self.end for time in times if time < FOREVER], default=-1)

    def _turn(self, now: int) -> None:
        """Begin a new month if `now` is past the end of the current one."""
        if now < self.end:
            return
        while now >= self.end:
            self.begun = self.end
            self.end = next((end for end in self.ends if end > self.begun), self.begun + MONTH)
        self._accounts = {key: (0, rate, self.begun) for key, (_, rate, _) in self._accounts.items() if rate}
        self.version += 1


def _limits(budget: Budget, user: int) -> tuple[int, int]:
    return (budget.hard, budget.soft) if user == ALL_USERS else (budget.user_hard, budget.user_soft)
