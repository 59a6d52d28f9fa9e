"""The proposals of a solver in a round: some jobs start or move, so that more jobs start or nodes become idle."""

from __future__ import annotations

from collections import Counter

from kant.cluster import columns as c
from kant.cluster.columns import J_SINCE
from kant.insight.diagnosis import Diagnosis
from kant.model.event import PlanProposed, ProposedPlace
from kant.model.placement import NODE
from kant.model.units import SECOND
from kant.optimize.answers import LearnedShares, Round
from kant.optimize.defragment.leaves import leftover_leaves, moves_of
from kant.optimize.defragment.leftovers import empty_nodes
from kant.optimize.defragment_round import MoveRound as DefragmentRound
from kant.optimize.defragment_round import allowing
from kant.optimize.optimality import without_preemption
from kant.optimize.packing.portfolio import solve
from kant.optimize.packing.problem import WAITS, Problem
from kant.optimize.packing.snapshot import snapshot_of
from kant.scheduler.cycle import Scheduler
from kant.scheduler.proposals import may_start


def propose(
    what: Round, scheduler: Scheduler, now: int, learned: LearnedShares, movable: frozenset[str] | None = None
) -> PlanProposed | None:
    """Propose an improvement at `now`; None if there is none. Only the running jobs in `movable` move (None: all).

    Raises InputError if the packer is not installed.
    """
    if what == "fallback":
        return _fallback(scheduler, now, movable)
    return _defragment(scheduler, now, learned, movable)


def _fallback(scheduler: Scheduler, now: int, movable: frozenset[str] | None) -> PlanProposed | None:
    """Start jobs that wait long by moving others, with the portfolio packer. No job is stopped for good."""
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
    problem = Problem(without_preemption(snapshot.instance))
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
    """Whether the quotas let a job start besides the jobs admitted before. If so, the job is charged to them."""
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
        admission.charge(usage.node_of[queue], user, usage.amounts(shape))
    return True


def _proposed(places: dict[str, Counter[str]], jobs: list[str]) -> tuple[ProposedPlace, ...]:
    return tuple(ProposedPlace(job, dict(sorted(places[job].items()))) for job in jobs)


def _defragment(
    scheduler: Scheduler, now: int, learned: LearnedShares, movable: frozenset[str] | None
) -> PlanProposed | None:
    """Move jobs together so that partly used nodes (with `leaves` also leaves) become idle, if the gain exceeds the
    cost.
    """
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
