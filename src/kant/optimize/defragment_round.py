"""A round of defragmentation: which jobs to move so that partly used nodes become idle, and whether that pays off.

A profile may have periodic rounds (`rounds.py`). A person may request a single round (`DefragmentOrder`), with a
preview of its changes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kant.cluster import columns as c
from kant.cluster.columns import J_MILLI, J_PODS, J_STARTED
from kant.insight.diagnosis import Diagnosis
from kant.model.matching import Match
from kant.model.status import NodeStatus
from kant.model.units import GPU, HOUR, MINUTE, SECOND
from kant.optimize.answers import DefragmentMove, DefragmentOrder, DefragmentPlan
from kant.optimize.defragment.leftovers import Leftovers, Lodger, empty_nodes, leftovers
from kant.queueing.cycle_plan import CyclePlan
from kant.queueing.preemption.shrinking import lost_work
from kant.scheduler.cycle import Scheduler
from kant.scheduler.profile import Profile
from kant.scheduler.proposals import may_move
from kant.scheduler.solvers import Defragment


def allowing(cycle: CyclePlan, profile: Profile, match: Match, movable: frozenset[str] | None) -> Callable[[int], bool]:
    """A test, by row, whether a running job may move: `movable` has it (None: has all), and the profile permits it."""
    state = cycle.state

    def allows(row: int) -> bool:
        known = movable is None or state.ids[row] in movable
        return known and match.admits(state.live[row]) and may_move(cycle, profile, row)

    return allows


class MoveRound:
    """The jobs that leave nodes, pool by pool, under `settings` at `now`. `moves` takes a function that returns, for a
    pool, the share of time in which its idle nodes are needed.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        now: int,
        settings: Defragment,
        movable: frozenset[str] | None,
        nodes: frozenset[str] | None = None,
    ) -> None:
        self.now = now
        self.settings = settings
        self.cycle = Diagnosis(scheduler, now).cycle
        self.state = self.cycle.state
        self.allows = allowing(self.cycle, scheduler.profile, settings.jobs, movable)
        self.pools = leftovers(self.state, self.price_of, self.allows)
        if nodes is not None:
            index = self.state.node_index
            named = {index[name] for name in nodes if name in index}
            self.pools = [_only(own, named) for own in self.pools]
        self.price = self.worth = 0
        self.emptied: list[int] = []

    def price_of(self, row: int) -> int:
        """The cost of moving a job in milli-GPU-seconds: the work that it loses, and its restart."""
        return lost_work(self.cycle, row) + int(self.state.jobs[row, J_MILLI]) * self.settings.restart_s

    def worth_of(self, own: Leftovers, share: float) -> Callable[[int, Sequence[Lodger]], int]:
        """A function of an emptied node's worth: its GPU time for as long as its jobs have run, divided by `gain`."""
        horizon = int(self.settings.horizon_h * HOUR)

        def of(place: int, who: Sequence[Lodger]) -> int:
            stays = max(self.now - int(self.state.jobs[one.row, J_STARTED]) for one in who)
            span = min(max(stays, MINUTE), horizon)
            return int(share * own.gpus[place] * GPU * (span // SECOND) / self.settings.gain)

        return of

    def moves(self, share_of: Callable[[int], float]) -> list[tuple[Lodger, int]]:
        """The jobs that move, each with its new node."""
        found: list[tuple[Lodger, int]] = []
        for own in self.pools:
            worth = self.worth_of(own, max(share_of(own.pool), self.settings.floor))
            emptied = empty_nodes(own, self.settings.moves - len(found), worth)
            found += emptied.moves
            self.emptied += emptied.emptied
            self.price += emptied.price
            self.worth += sum(worth(node, own.lodgers[node]) for node in emptied.emptied)
            if len(found) == self.settings.moves:
                break
        return found


def _only(own: Leftovers, named: set[int]) -> Leftovers:
    """The leftovers, restricted to some nodes."""
    return Leftovers(
        own.pool,
        {node: gpus for node, gpus in own.gpus.items() if node in named},
        {node: free for node, free in own.free.items() if node in named},
        {node: who for node, who in own.lodgers.items() if node in named},
        own.fixed & named,
    )


def defragment_round(
    scheduler: Scheduler, now: int, order: DefragmentOrder, movable: frozenset[str] | None = None
) -> DefragmentPlan:
    """The changes of a requested round at `now`. Only the running jobs in `movable` move (None: all)."""
    round_ = MoveRound(scheduler, now, order.settings, movable, order.nodes)
    found = round_.moves(lambda pool: 1.0)
    state = round_.state
    names = [node.name for node in state.nodes]
    table = state.table
    looked = [
        at
        for at, name in enumerate(names)
        if (order.nodes is None or name in order.nodes)
        and table[at, c.STATUS] == NodeStatus.IN_SERVICE
        and table[at, c.GPUS] > 0
    ]
    free = {at: int(table[at, c.FREE]) for at in looked}
    whole = {at: int(table[at, c.GPUS]) * GPU for at in looked}
    before = sum(0 < free[at] < whole[at] for at in looked)
    for who, at in found:
        free[who.node] += who.asks[0] * GPU
        free[at] -= who.asks[0] * GPU
    there = dict.fromkeys(
        row for own in round_.pools for row, held in state.running.items() if not own.gpus.keys().isdisjoint(held[:, 0])
    )
    able = sum(len(who) for own in round_.pools for who in own.lodgers.values())
    return DefragmentPlan(
        tuple(
            tuple(
                DefragmentMove(
                    state.ids[who.row], names[who.node], names[at], int(state.jobs[who.row, J_PODS]), who.asks[0]
                )
                for who, at in step
            )
            for step in _steps(found)
        ),
        tuple(names[at] for at in round_.emptied),
        len(looked),
        before,
        sum(0 < free[at] < whole[at] for at in looked),
        round_.price,
        int(round_.worth * order.settings.gain),
        len(there),
        len(there) - able,
    )


def _steps(moves: Sequence[tuple[Lodger, int]]) -> list[list[tuple[Lodger, int]]]:
    """Group moves that share a node; groups do not depend on each other."""
    found: list[tuple[set[int], list[tuple[Lodger, int]]]] = []
    for who, at in moves:
        nodes, own = {who.node, at}, [(who, at)]
        for other in [one for one in found if one[0] & nodes]:
            found.remove(other)
            nodes |= other[0]
            own = [*other[1], *own]
        found.append((nodes, own))
    return [own for _, own in found]
