"""Preemption by node for constraints that only the driver knows: it checks nodes, the core says which jobs may stop.

For such a job the core finds free capacity, so it searches for no victims; but a rule of the pod, or a device that the
core does not track, excludes these nodes. This module searches node by node. The job may stop the same jobs as always
(`queueing/preemption/rules.py`), within the profile's bounds, and clear of all reservations. On each node as few jobs
stop as necessary; the node with the cheapest victims is taken. No job is stopped unless the waiting job has been proven
to fit there.

Source: kube-scheduler's DefaultPreemption, which removes all candidates from a node, restores those that need not
leave, the most important first, and then picks a node.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from types import SimpleNamespace

import numpy as np

from kant.cluster.columns import POOL, STATUS
from kant.cluster.node_sets import admitting
from kant.cluster.shapes import Shape
from kant.model.decision import NoFit, Plan
from kant.model.placement import Allocation
from kant.model.status import NodeStatus
from kant.placement.victims import ASKING, as_bits
from kant.queueing.admission import awaits_node_until
from kant.queueing.cycle_plan import CyclePlan
from kant.queueing.evictable import RECLAIMED
from kant.queueing.preemption.candidate import Admits, Candidate, members
from kant.queueing.preemption.policy import Preemption, candidates_of, evict_victims
from kant.queueing.preemption.reservations import keeps_reservations
from kant.scheduler.cycle import Scheduler

NODES = 100
"""After this many nodes with victims the cheapest is taken, as kube-scheduler does (minCandidateNodesAbsolute)."""

InTheWay = Callable[[str], Collection[str]]
"""Returns the jobs that may be in the way on a node."""

WillDo = Callable[[str, Collection[str]], bool]
"""Returns whether a node meets the constraints that the core does not track, once these jobs are gone."""


def preempt_by_node(scheduler: Scheduler, now: int, row: int, in_the_way: InTheWay, will_do: WillDo) -> Plan | None:
    """Return a plan that stops jobs on one node and starts a waiting job of one pod there; None if there is none.

    Elastic gangs are stopped whole, and never shrunk.
    """
    policy = scheduler.profile.preemption
    shape = scheduler.state.shape_of(row)
    if policy is None or not shape.ask.preempts or shape.pods != 1:
        return None
    cycle = scheduler.begin(now)
    if awaits_node_until(cycle.state, row, now) or (cycle.limited and cycle.admission.closed(row) is not None):
        return None
    if cycle.state.books and not cycle.booked.has_begun(row):
        return None
    for option in cycle.admission.options(row, shape) if cycle.limited else [shape]:
        with cycle.beside_bookings(row):
            if _makes_room(cycle, policy, row, option, in_the_way, will_do):
                return cycle.plan
    return None


def _makes_room(
    cycle: CyclePlan, policy: Preemption, row: int, shape: Shape, in_the_way: InTheWay, will_do: WillDo
) -> bool:
    """Write the plan for a job in one of its shapes; return whether there is one."""
    rules = policy.rules(cycle, row, shape)
    for level in rules.levels():
        places, marks, until = rules.victims(level)
        rows, ready = rules.entitlements.rows[places], until <= cycle.now
        found = list(candidates_of(cycle, rows[ready], marks[ready]))
        admits = rules.quota(level)
        search = _Search(cycle, row, shape, found, int(policy.most * shape.charged_milli), admits)
        best = search.best(in_the_way, will_do)
        if best is None:
            continue
        victims, node = best
        mark = cycle.placer.trial.checkpoint()
        for victim in victims:
            cycle.placer.trial.evict(victim.allocation)
        place = search.place(node)
        if isinstance(place, NoFit) or not keeps_reservations(cycle, row, victims, place):
            cycle.placer.trial.rollback(mark)
            continue
        evict_victims(cycle, victims, row, "priority", set(rows[marks & RECLAIMED > 0].tolist()))
        cycle.start(row, place)
        return True
    return False


class _Search:
    """Searches for the node whose victims are the cheapest."""

    def __init__(
        self, cycle: CyclePlan, row: int, shape: Shape, found: Sequence[Candidate], cap: int, admits: Admits | None
    ) -> None:
        self.cycle, self.row, self.shape, self.cap, self.admits = cycle, row, shape, cap, admits
        self.ids = cycle.state.ids
        self.ordered = sorted(found, key=lambda who: (who.rank, who.cost, who.milli, who.row))
        self._place_of = {self.ids[who.row]: place for place, who in enumerate(self.ordered)}

    def best(self, in_the_way: InTheWay, will_do: WillDo) -> tuple[list[Candidate], int] | None:
        """Return the victims and the node; None if no set of victims makes a node usable."""
        found: list[tuple[tuple[object, ...], list[Candidate], int]] = []
        names = self.cycle.state.nodes
        for node in self._nodes() if self.ordered else ():
            places = {self._place_of.get(job, -1) for job in in_the_way(names[node].name)}
            near = [self.ordered[place] for place in sorted(places) if place >= 0]
            victims = self._fewest(near, node, partial(will_do, names[node].name)) if near else None
            if victims:
                found.append((_key(victims), victims, node))
            if len(found) >= NODES:
                break
        if not found:
            return None
        _, victims, node = min(found, key=lambda one: (one[0], one[2]))
        return victims, node

    def _nodes(self) -> Iterator[int]:
        table = self.cycle.placer.trial.table
        open_to = admitting(self.cycle.state.shapes.demands[self.shape.parts[0][1]], table[:, POOL])
        yield from np.flatnonzero((table[:, STATUS] == NodeStatus.IN_SERVICE) & open_to).tolist()

    def _fewest(
        self, near: list[Candidate], node: int, will_do: Callable[[Collection[str]], bool]
    ) -> list[Candidate] | None:
        """Return the fewest of `near` that must leave the node; None if all do not suffice, or hold too many GPUs."""

        def chosen(which: int) -> list[Candidate]:
            return [near[at] for at in members(which)]

        def suffices(which: int) -> bool:
            leaving = chosen(which)
            if self.admits is not None and not self.admits(leaving):
                return False
            return will_do([self.ids[who.row] for who in leaving]) and self._fits(leaving, node)

        everyone = (1 << len(near)) - 1
        if not suffices(everyone):
            return None
        needed = np.ones(len(near), dtype=np.int64)
        ASKING.without_unneeded(SimpleNamespace(suffices=suffices), needed, np.arange(len(near))[::-1], False)
        victims = chosen(as_bits(needed))
        charged = self.cycle.state.quota_usage.charged
        held = sum(charged[who.row][2][0] for who in victims if not who.passed)
        return victims if victims and held <= self.cap else None

    def _fits(self, leaving: Sequence[Candidate], node: int) -> bool:
        trial = self.cycle.placer.trial
        mark = trial.checkpoint()
        for who in leaving:
            trial.evict(who.allocation)
        fits = not isinstance(self.place(node), NoFit)
        trial.rollback(mark)
        return fits

    def place(self, node: int) -> Allocation | NoFit:
        """Place the job's pod on this node, on the trial."""
        with self.cycle.placer.trial.within([node]):
            return self.cycle.placer.place(self.shape, self.row)


def _key(victims: Sequence[Candidate]) -> tuple[object, ...]:
    """Return the sort key of victims, the smallest is the best: worst rank, lost work, milli-GPUs, number and rows."""
    cost, milli = sum(who.cost for who in victims), sum(who.milli for who in victims)
    return victims[-1].rank, cost, milli, len(victims), tuple(sorted(who.row for who in victims))
