"""Rounds: when a solver is asked under a profile, what it is told, and what it proposes.

A driver asks `Rounds` when a round is due, takes the moment to a solver, and hands what that proposes to the core as an
event. What is learned of the queue on the way is told to the solver with the moment.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Literal

from msgspec import Struct

from kant.cluster import columns as c
from kant.cluster.columns import J_SINCE
from kant.cluster.state import ClusterState
from kant.insight.diagnosis import Diagnosis
from kant.model.event import PlanProposed, ProposedPlace
from kant.model.placement import NODE
from kant.model.status import NodeStatus
from kant.model.units import FOREVER, GPU, HOUR, SECOND
from kant.optimize.defragment.leaves import leftover_leaves, moves_of, wanted_leaves
from kant.optimize.defragment.leftovers import empty_nodes
from kant.optimize.defragment_round import Round as DefragmentRound
from kant.optimize.defragment_round import allowing
from kant.optimize.optimality import nobody_stops
from kant.optimize.packing.portfolio import solve
from kant.optimize.packing.problem import WAITS, Problem
from kant.optimize.packing.snapshot import snapshot_of
from kant.scheduler.cycle import Scheduler
from kant.scheduler.profile import Profile
from kant.scheduler.proposals import may_start

Round = Literal["fallback", "defragment"]

LOOKED_AT = 200
"""Waiting jobs that are looked at to learn whether idle nodes are wanted."""


class Learned(Struct, frozen=True):
    """What rounds have learned: of each pool the share of the time at which waiting jobs wanted more idle nodes, and
    that at which gangs wanted more of them in one leaf.
    """

    wanted: tuple[float, ...] = ()
    leaves: tuple[float, ...] = ()


class Rounds:
    """When rounds are due under a profile. `due` is the next time; FOREVER where the profile has none."""

    def __init__(self, profile: Profile, now: int = 0) -> None:
        self.profile = profile
        self.learned = Learned()
        self._next: dict[Round, int] = {}
        if profile.fallback is not None:
            self._next["fallback"] = now + profile.fallback.every_s * SECOND
        if profile.defragment is not None:
            self._next["defragment"] = now + profile.defragment.every_s * SECOND

    @property
    def due(self) -> int:
        return min(self._next.values(), default=FOREVER)

    def begin(self, state: ClusterState, now: int) -> list[Round]:
        """The rounds that begin at `now`, and have something to look at."""
        found: list[Round] = []
        fallback, defragment = self.profile.fallback, self.profile.defragment
        if fallback is not None and self._next["fallback"] <= now:
            self._next["fallback"] = now + fallback.every_s * SECOND
            since = now - fallback.wait_s * SECOND
            if any(int(state.jobs[row, J_SINCE]) <= since for row in state.pending):
                found.append("fallback")
        if defragment is not None and self._next["defragment"] <= now:
            self._next["defragment"] = now + defragment.every_s * SECOND
            part = min(defragment.every_s / (defragment.horizon_h * (HOUR // SECOND)), 1.0)
            leaves = _later(self.learned.leaves, wanted_leaves(state), part) if defragment.leaves else ()
            self.learned = Learned(_later(self.learned.wanted, wanted_nodes(state), part), leaves)
            if max(*self.learned.wanted, *leaves, defragment.floor) > 0:
                found.append("defragment")
        return found


def _later(before: tuple[float, ...], here: Sequence[bool], part: float) -> tuple[float, ...]:
    """Shares of the time, after one more look that counts for a `part` of it."""
    return tuple(old + part * (new - old) for old, new in zip(before or (0.0,) * len(here), here, strict=True))


def wanted_nodes(state: ClusterState) -> list[bool]:
    """Of each pool, whether a waiting job wants more of its nodes idle than are."""
    table = state.table
    gpus = [0] * len(state.pools)
    idle = [0] * len(state.pools)
    whole = (table[:, c.STATUS] == NodeStatus.IN_SERVICE) & (table[:, c.GPUS] > 0)
    for pool in range(len(state.pools)):
        mine = whole & (table[:, c.POOL] == pool)
        gpus[pool] = int(table[mine, c.GPUS].max(initial=0))
        idle[pool] = int((mine & (table[:, c.FREE] == table[:, c.GPUS] * GPU)).sum())
    found = [False] * len(state.pools)
    for row in list(state.pending)[:LOOKED_AT]:
        shape = state.shape_of(row)
        for pool in shape.pools:
            pods = sum(
                count for count, demand in ((g.count, g.demand) for g in shape.groups) if 0 < gpus[pool] <= demand.gpus
            )
            found[pool] = found[pool] or pods > idle[pool]
    return found


def propose(
    what: Round, scheduler: Scheduler, now: int, learned: Learned, movable: frozenset[str] | None = None
) -> PlanProposed | None:
    """What would be better at `now`; None where nothing is. Of the running jobs only those `movable` move (None: all).

    Raises InputError where the packer is not installed.
    """
    if what == "fallback":
        return _fallback(scheduler, now, movable)
    return _defragment(scheduler, now, learned, movable)


def _fallback(scheduler: Scheduler, now: int, movable: frozenset[str] | None) -> PlanProposed | None:
    """Jobs that have waited long start where others move, by the portfolio packer; nobody stops for good."""
    settings, profile = scheduler.profile.fallback, scheduler.profile
    assert settings is not None
    diagnosis = Diagnosis(scheduler, now)
    state, cycle = diagnosis.state, diagnosis.cycle
    rows = cycle.waiting_rows()
    since = now - settings.wait_s * SECOND
    waiting: dict[int, None] = {}
    for row in rows[cycle.ranking(rows)].tolist() if len(rows) else ():
        if len(waiting) == settings.most_jobs:
            break
        if int(state.jobs[row, J_SINCE]) > since or not may_start(cycle, row, waiting):
            continue
        if not diagnosis.uses_quotas or _is_admitted(diagnosis, row):
            waiting[row] = None
    if not waiting:
        return None
    snapshot = snapshot_of(state, waiting, allowing(cycle, profile, settings.jobs, movable))
    problem = Problem(nobody_stops(snapshot.instance))
    found = solve(problem, settings.limit_s).assignment
    places: dict[str, Counter[str]] = {}
    for pod, node in zip(problem.instance.pods, found, strict=True):
        if node != WAITS:
            places.setdefault(pod.group or pod.name, Counter())[problem.instance.nodes[node].name] += 1
    pods = problem.instance.pods
    moved = dict.fromkeys(pods[i].group or pods[i].name for i in problem.moved(found))
    starts = [state.ids[row] for row in waiting if state.ids[row] in places]
    if not starts or len(moved) > settings.moves:
        return None
    return PlanProposed(now, "fallback", _proposed(places, list(moved)), _proposed(places, starts))


def _is_admitted(diagnosis: Diagnosis, row: int) -> bool:
    """Whether the quotas let a job start beside those that were admitted before; then they count it."""
    admission, shape = diagnosis.admission, diagnosis.state.shape_of(row)
    if not diagnosis.cycle.limited:
        return True
    if admission.closed(row) is not None:
        return False
    if all(admission.shortage(row, option) is not None for option in admission.options(row, shape)):
        return False
    usage = diagnosis.state.quota_usage
    queue, user = diagnosis.state.jobs[row, [c.J_QUEUE, c.J_USER]].tolist()
    if usage.tree is not None and usage.node_of[queue] >= 0:
        admission.quota_tree.charge(usage.node_of[queue], user, usage.amounts(shape))
    return True


def _proposed(places: dict[str, Counter[str]], jobs: list[str]) -> tuple[ProposedPlace, ...]:
    return tuple(ProposedPlace(job, dict(sorted(places[job].items()))) for job in jobs)


def _defragment(
    scheduler: Scheduler, now: int, learned: Learned, movable: frozenset[str] | None
) -> PlanProposed | None:
    """Jobs move together so that nodes (with `leaves` also leaves) in use in part become idle, as far as that pays."""
    settings = scheduler.profile.defragment
    assert settings is not None
    round_ = DefragmentRound(scheduler, now, settings, movable)
    state, wanted = round_.state, learned.wanted
    moves = [(who.row, node) for who, node in round_.moves(lambda pool: wanted[pool] if wanted else 0.0)]
    if any(learned.leaves):
        taken = {node for row, target in moves for node in (target, int(state.running[row][0, NODE]))}
        for each in leftover_leaves(state, round_.price_of, round_.allows, taken):
            share = learned.leaves[each.leaves.pool]
            found = empty_nodes(each.leaves, settings.moves - len(moves), round_.worth_of(each.leaves, share))
            moves += moves_of(state, each, found)
    if not moves:
        return None
    nodes = state.nodes
    places = tuple(ProposedPlace(state.ids[row], {nodes[at].name: int(state.jobs[row, c.J_PODS])}) for row, at in moves)
    return PlanProposed(now, "defragment", places)
