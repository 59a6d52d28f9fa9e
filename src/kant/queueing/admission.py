"""Admission: whether a queue may start a job at all. Admission is decided before the placement is tried.

Source: the two steps of Kant (arXiv 2510.01256), static then dynamic admission; the quota tree is that of Kueue.
"""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import TYPE_CHECKING

from kant.cluster.columns import J_BASE, J_QUEUE, J_SHAPE, J_SINCE, J_USER
from kant.cluster.over_budget import ALL_USERS, first_of
from kant.cluster.shapes import Shape
from kant.cluster.state import ClusterState
from kant.model.decision import BaseJobWaits, Booked, Closed, NoReservation, OutOfBudget, OverQuota, TooLong
from kant.model.placement import Allocation
from kant.model.units import HOUR

if TYPE_CHECKING:
    from kant.cluster.quota_limits import Amounts
    from kant.cluster.quota_tree import QuotaTree, Shortage


class Admission:
    """The admission checks of one cycle at `now` (by default the state's time): quotas, base jobs and reservations.

    Call `starts` and `stops` for every decision of the plan, so that the plan cannot spend a quota twice.
    """

    def __init__(self, state: ClusterState, now: int = -1) -> None:
        self.state = state
        self.now = now if now > state.now else state.now
        self.quota_usage = state.quota_usage
        self.burst_replicas = (
            {replica for replicas in state.burst_replicas.values() for replica in replicas}
            if state.burst_replicas
            else frozenset()
        )
        if state.quota_usage.tree is not None:
            self.quota_tree: QuotaTree = state.quota_usage.tree.copy()
            """The usage of the quotas as the plan leaves it. Set only if there is a quota tree."""
        self._short: dict[tuple[int, int, int], OverQuota | None] = {}  # by queue, user and shape, until usage changes
        self._runs: dict[int, bool] = {}  # for each job that the plan starts or stops: whether it runs afterwards

    def closed(self, row: int) -> Closed | OutOfBudget | BaseJobWaits | Booked | None:
        """Return why the job may not start, regardless of free capacity; None if it may."""
        if self.state.books and (name := self.state.shape_of(row).ask.reservation):
            booking = self.state.bookings.get(name)
            if booking is not None and booking.start > self.now:
                return Booked(name, booking.start, True)
        base, tree = int(self.state.jobs[row, J_BASE]), self.quota_usage.tree
        if base >= 0 and not self._runs.get(base, base in self.state.running):
            return BaseJobWaits(self.state.ids[base])
        if tree is None:
            return None
        queue = int(self.state.jobs[row, J_QUEUE])
        node = self.quota_usage.node_of[queue]
        if node < 0:
            return Closed(self._queue_name(queue), "unknown")
        if tree.starts[node]:
            return self._out_of_budget(tree, node, int(self.state.jobs[row, J_USER])) if tree.budgets else None
        where = next(above for above in tree.paths[node] if tree.queues[above].state in ("hold", "stop"))
        return Closed(tree.queues[where].name, tree.queues[where].state)

    def _out_of_budget(self, tree: QuotaTree, node: int, user: int) -> OutOfBudget | None:
        usage = self.quota_usage
        over = usage.over_budget(self.now)
        scope = first_of(over.hard, tree, node, user) if over is not None else None
        if scope is None:
            return None
        assert usage.budgets is not None
        use = usage.budgets.scopes(tree, usage.node_of, self.now)[scope]
        name = "" if scope[1] == ALL_USERS else list(self.state.users)[user]
        return OutOfBudget(tree.queues[scope[0]].name, use.used // HOUR, use.hard, usage.budgets.end, name)

    def _queue_name(self, queue: int) -> str:
        return list(self.state.queues)[queue]

    def options(self, row: int, shape: Shape) -> list[Shape]:
        """Return the shapes to try for a job, in order: its own shape, or one shape for each GPU model.

        There is one shape for each model if a quota or a price names a model; a gang then stays on one model. Models
        are tried in the order in which the job lists them, or the cheapest first if its queue is set to do so.
        """
        tree, queue_config = self.quota_usage.tree, self.quota_usage.queue_config
        if shape.model is not None or tree is None or not (queue_config.prices or any(model for model, _ in tree.keys)):
            return [shape]
        shapes = self.state.shapes
        own = reduce(or_, shape.ask.gpu_roles, 0) or shape.pool_bits
        offered = sorted([shapes.pool_keys[pool][0] for pool in shape.pools if own >> pool & 1])
        job = self.state.live[row]
        liked = job.models or tuple(model for role in job.roles for model in role.models)
        models = list(dict.fromkeys(model for model in liked if model in offered) or dict.fromkeys(offered))
        node = self.quota_usage.node_of[int(self.state.jobs[row, J_QUEUE])]
        if node >= 0 and tree.queues[node].fallback == "cheapest":
            prices = dict(queue_config.prices)
            models.sort(key=lambda model: prices.get(model, 1 << 62))
        return [shapes.on_model(shape, model) for model in models] or [shape]

    def shortage(self, row: int, shape: Shape) -> OverQuota | None:
        """Return which quota keeps the job from starting now as `shape`; None if none does."""
        if self.quota_usage.tree is None:
            return None
        queue, user = self.state.jobs.item(row, J_QUEUE), self.state.jobs.item(row, J_USER)
        node = self.quota_usage.node_of[queue]
        if node < 0:
            return None
        asked = node, user if self.quota_usage.limits_users else 0, shape.index
        if asked not in self._short:
            short = self.quota_tree.shortage(node, user, self.quota_usage.amounts(shape))
            self._short[asked] = None if short is None else over_quota(self.quota_tree, short, ever=False)
        return self._short[asked]

    def unwanted(self, row: int) -> Closed | TooLong | BaseJobWaits | NoReservation | None:
        """Return why the job can never start; None if it may. Either its queue did not accept such jobs when it
        arrived, or its base job or its reservation has ended.
        """
        if self.state.books and (name := self.state.shape_of(row).ask.reservation):
            booking = self.state.bookings.get(name)
            if booking is None or booking.end <= self.now:
                return NoReservation(name)
        queue, base = self.state.jobs[row, [J_QUEUE, J_BASE]].tolist()
        if row in self.state.unwanted:
            limit = self.state.live[row].limit
            most, where = self.quota_usage.max_time(queue)
            if most and limit > most:
                return TooLong(where, limit, most)
            return Closed(self._queue_name(queue), "drain")
        if base >= 0 and base not in self.state.live:
            return BaseJobWaits(self.state.ids[base])
        return None

    def never(self, row: int, shape: Shape) -> OverQuota | None:
        """Return why the job can never start as `shape` under the present quotas; None if it could."""
        node, _ = self._place_in_tree(row)
        if node < 0:
            return None
        short = self.quota_tree.shortage_ever(node, self.quota_usage.amounts(shape))
        return None if short is None else over_quota(self.quota_tree, short, ever=True)

    def _place_in_tree(self, row: int) -> tuple[int, int]:
        """Return the tree node of the job's queue (-1: not limited), and the job's user."""
        if self.quota_usage.tree is None:
            return -1, 0
        jobs = self.state.jobs
        return self.quota_usage.node_of[int(jobs[row, J_QUEUE])], int(jobs[row, J_USER])

    def starts(self, row: int, allocation: Allocation) -> None:
        """Charge a job that the plan starts."""
        self._runs[row] = True
        self.resizes(row, allocation, 1)

    def resizes(self, row: int, pieces: Allocation, sign: int) -> None:
        """Charge `pieces` that the plan adds to an elastic gang (`sign` 1), or refund those that it takes back (-1)."""
        node, user = self._place_in_tree(row)
        if node >= 0:
            self.charge(node, user, self.quota_usage.amounts(self.state.shape_of(row), pieces), sign)

    def charge(self, node: int, user: int, amounts: Amounts, sign: int = 1) -> None:
        """Charge the queue `node` of the tree for what the plan gives to a job of `user`; with `sign` -1 refund it."""
        self._short.clear()
        (self.quota_tree.charge if sign > 0 else self.quota_tree.refund)(node, user, amounts)

    def stops(self, row: int) -> None:
        """Refund a running job that the plan stops."""
        self._runs[row] = False
        if self.quota_usage.tree is None:
            return
        queue, user, _, amounts = self.quota_usage.charged[row]
        if self.quota_usage.node_of[queue] >= 0:
            self.charge(self.quota_usage.node_of[queue], user, amounts, -1)


def over_quota(tree: QuotaTree, short: Shortage, ever: bool) -> OverQuota:
    """Return a shortage of quota as the reason why a job waits. `ever`: even an unused quota is too small."""
    model, resource = short.key
    return OverQuota(tree.queues[short.queue].name, model, resource, short.asked, short.available, short.kind, ever)


def awaits_node_until(state: ClusterState, row: int, now: int) -> int:
    """Return until when (µs) a job preempts no other because it waits for a node from an autoscaler; 0: it may preempt.

    The job or its queue sets the length of the wait. Call this only for a job in quota: a new node helps no other job.
    """
    tree, jobs = state.quota_usage.tree, state.jobs
    wait = state.shapes.shapes[jobs.item(row, J_SHAPE)].ask.node_wait
    if tree is not None and tree.node_waits:
        wait = max(wait, tree.node_waits.get(state.quota_usage.node_of[jobs.item(row, J_QUEUE)], 0))
    until = jobs.item(row, J_SINCE) + wait
    return until if wait and until > now and row not in state.without_node else 0
