"""How far the present state is from the optimum: which waiting jobs a solver could start that the policy has not
started, how large a gang could start, and which jobs strand how much capacity.

Two packings answer the first question: one without moves, and one in which running jobs may move, but none stops. Only
jobs that their queue, quotas and back-off allow to start are counted. The solver of each packing has a limit, so the
shares are lower bounds. A proven packing starts as many pods as possible, the highest priority first.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

from msgspec.structs import replace

from kant.cluster import columns as c
from kant.cluster.state import ClusterState
from kant.insight.diagnosis import Diagnosis
from kant.model.placement import MASK, MILLI, NODE
from kant.model.status import NodeStatus
from kant.model.units import GPU
from kant.optimize.answers import Gang, Optimality, Startable, Stranded
from kant.optimize.defragment.leftovers import empty_nodes, leftovers
from kant.optimize.packing.instance import PackingInstance
from kant.optimize.packing.portfolio import solve
from kant.optimize.packing.problem import WAITS, Problem
from kant.optimize.packing.snapshot import anybody, snapshot_of
from kant.queueing.preemption.shrinking import lost_work
from kant.queueing.rejection import never_starts
from kant.scheduler.cycle import Scheduler
from kant.scheduler.proposals import may_move

LIMIT = 1.0
"""The limit of each of the two packings, in deterministic seconds."""

MOST_JOBS = 200
"""The number of waiting jobs that are tried, in queue order."""

MOST_MOVES = 1 << 20


def optimality(scheduler: Scheduler, now: int, limit: float = LIMIT) -> Optimality:
    """Measure the scheduler's state. Raises InputError if the extra `optimize` is not installed."""
    state = scheduler.state
    allowed = _may_start(scheduler, now)
    in_place, left_out = _packed(state, allowed, lambda row: False, limit)
    with_moves = in_place
    if len(in_place.jobs) < len(allowed) - left_out:
        moved, _ = _packed(state, allowed, anybody, limit)
        with_moves = moved if moved.gpu_milli >= in_place.gpu_milli else in_place
    stranded = _stranded(state)
    return Optimality(
        time=now,
        waiting=len(state.pending),
        waiting_milli=state.waiting_milli,
        held_back=len(state.pending) - len(allowed),
        in_place=in_place,
        with_moves=with_moves,
        gangs=_gangs(scheduler, now),
        stranded=stranded,
        stranded_milli=sum(one.gpu_milli for one in stranded),
        left_out=left_out,
        limit_s=limit,
    )


def _may_start(scheduler: Scheduler, now: int) -> list[int]:
    """The waiting jobs that lack only free capacity, in queue order, as long as the quotas suffice for all of them."""
    if not scheduler.state.pending:
        return []
    diagnosis = Diagnosis(scheduler, now)
    rows = diagnosis.cycle.waiting_rows()
    found = []
    for row in rows[diagnosis.cycle.ranking(rows)].tolist()[:MOST_JOBS]:
        if never_starts(diagnosis.cycle, row) or diagnosis.gating_reason(row):
            continue
        if diagnosis.uses_quotas and diagnosis.cycle.limited:
            shape = diagnosis.state.shape_of(row)
            if all(diagnosis.admission.shortage(row, one) for one in diagnosis.admission.options(row, shape)):
                continue
            charge = diagnosis.state.quota_usage
            queue, user = diagnosis.state.jobs[row, [c.J_QUEUE, c.J_USER]].tolist()
            if charge.tree is not None and charge.node_of[queue] >= 0:
                diagnosis.admission.charge(charge.node_of[queue], user, charge.amounts(shape))
        found.append(row)
    return found


def _packed(
    state: ClusterState, waiting: list[int], may_move: Callable[[int], bool], limit: float
) -> tuple[Startable, int]:
    """The jobs that a packing starts, and the number of waiting jobs that the packer's format cannot express."""
    if not waiting:
        return Startable(), 0
    snapshot = snapshot_of(state, waiting, may_move)
    problem = Problem(without_preemption(snapshot.instance))
    found = solve(problem, limit)
    pods = problem.instance.pods
    started = {pods[i].group or pods[i].name for i, node in enumerate(found.assignment) if node != WAITS}
    started &= {pod.group or pod.name for pod in pods if pod.node is None}
    jobs = tuple(state.ids[row] for row in waiting if state.ids[row] in started)
    milli = sum(int(state.jobs[state.rows[job], c.J_MILLI]) for job in jobs)
    moved = dict.fromkeys(pods[i].group or pods[i].name for i in problem.moved(found.assignment))
    share = milli / state.waiting_milli if state.waiting_milli else 0.0
    return Startable(jobs, milli, share, tuple(moved), found.proven), len(snapshot.left_out)


def without_preemption(instance: PackingInstance) -> PackingInstance:
    """Give running pods a higher priority than all waiting ones, so that each keeps a place on its node or another."""
    highest = max((pod.priority for pod in instance.pods), default=0) + 1
    pods = tuple(replace(pod, priority=highest) if pod.node is not None else pod for pod in instance.pods)
    return replace(instance, pods=pods)


def _gangs(scheduler: Scheduler, now: int) -> tuple[Gang, ...]:
    """The GPUs on idle nodes of each pool, now and after a consolidation of jobs."""
    state = scheduler.state
    cycle = Diagnosis(scheduler, now).cycle
    emptied: dict[int, tuple[int, int]] = {}
    profile = scheduler.profile
    for own in leftovers(state, lambda row: lost_work(cycle, row), lambda row: may_move(cycle, profile, row)):
        found = empty_nodes(own, MOST_MOVES, lambda node, who: 1 << 62)
        emptied[own.pool] = sum(own.gpus[node] for node in found.emptied), len(found.moves)
    gangs = []
    table = state.table
    idle = (table[:, c.STATUS] == NodeStatus.IN_SERVICE) & (table[:, c.FREE] == table[:, c.GPUS] * GPU)
    for pool, (_, capacity, _, _) in enumerate(state.pools[:, :4].tolist()):
        if capacity:
            gpus = int(table[idle & (table[:, c.POOL] == pool), c.GPUS].sum())
            more, moves = emptied.get(pool, (0, 0))
            gangs.append(Gang(state.shapes.pool_name(pool), gpus, gpus + more, moves))
    return tuple(gangs)


def _stranded(state: ClusterState) -> tuple[Stranded, ...]:
    """The free GPUs of partly used nodes, by queue and by the jobs on these nodes; the largest queue comes first."""
    holders: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for row, held in state.running.items():
        for piece in held.tolist():
            milli = piece[MASK].bit_count() * piece[MILLI]
            if milli:
                holders[piece[NODE]].append((row, milli))
    table, parts = state.table, defaultdict[int, int](int)
    for node, whose in holders.items():
        free = int(table[node, c.FREE])
        if not free or table[node, c.STATUS] != NodeStatus.IN_SERVICE:
            continue
        total, given = sum(milli for _, milli in whose), 0
        for place, (row, milli) in enumerate(whose):
            part = free - given if place == len(whose) - 1 else free * milli // total
            parts[row] += part
            given += part
    names, queues = list(state.queues), defaultdict[str, dict[str, int]](dict)
    for row, part in parts.items():
        queues[names[int(state.jobs[row, c.J_QUEUE])]][state.ids[row]] = part
    found = [
        Stranded(queue, sum(jobs.values()), tuple(sorted(jobs.items(), key=lambda one: (-one[1], one[0]))))
        for queue, jobs in queues.items()
    ]
    return tuple(sorted(found, key=lambda one: (-one.gpu_milli, one.queue)))
