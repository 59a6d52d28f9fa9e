"""Carries out a solver's proposal completely, or not at all.

The solver worked on an earlier state, and knows less than the core: jobs have ended or started since, and it names only
nodes and pod counts. So the core checks again. A job that is to move must still run, be preemptible, and be past its
minimum run time. All jobs that move stop on the trial first. Then the profile's own placement places each on its named
nodes, then the jobs that are to start, in queue order and within quotas. If every job has its pods where the proposal
says, that is the plan; otherwise the plan is empty. No job is stopped unless the same plan starts it again.
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from kant.cluster.columns import J_PREEMPTIBLE, J_QUEUE, J_STARTED, POOL
from kant.model.decision import Plan
from kant.model.event import PlanProposed, ProposedPlace
from kant.model.placement import NODE, PODS, Allocation
from kant.model.units import SECOND
from kant.queueing.cycle_plan import CyclePlan
from kant.queueing.rejection import never_starts
from kant.scheduler.cycle import Scheduler
from kant.scheduler.profile import Profile


def carry_out_proposal(scheduler: Scheduler, now: int) -> Plan:
    """Return the plan at `now` that carries out the last proposal, or an empty plan."""
    cycle = scheduler.begin(now)
    cycle.plan.proposed = True
    proposal = scheduler.state.proposal
    if proposal is not None:
        places = _places(cycle, scheduler.profile, proposal)
        if places is not None:
            winner = proposal.starts[0].job if len(proposal.starts) == 1 else ""
            for one in proposal.moves:
                cycle.preempt(cycle.state.rows[one.job], moved=True, by=winner, why=proposal.by)
            for row, allocation in places.items():
                cycle.start(row, allocation)
            cycle.wake_at(now + 1)
    return cycle.plan


def may_move(cycle: CyclePlan, profile: Profile, row: int) -> bool:
    """Return whether a running job may be stopped alone now: it is preemptible and past its minimum run time."""
    state = cycle.state
    if row not in state.running or not state.jobs[row, J_PREEMPTIBLE]:
        return False
    if row in state.elastic or state.burst_replicas.get(row) or state.shape_of(row).ask.reservation:
        return False
    usage = state.quota_usage
    home = usage.node_of[int(state.jobs[row, J_QUEUE])]
    own = usage.tree.own_min_runs.get(home, 0) if usage.tree is not None else 0
    least = max(own, profile.preemption.min_run_s * SECOND if profile.preemption is not None else 0)
    return cycle.now - int(state.jobs[row, J_STARTED]) >= least


def may_start(cycle: CyclePlan, row: int, others: Counter[int] | dict[int, None]) -> bool:
    """Return whether a waiting job may be tried now, and no job is ahead of it in its bucket except `others`."""
    if row not in cycle.state.pending or never_starts(cycle, row):
        return False
    back_off = cycle.pending.requeue.back_off(cycle.state, row)
    if back_off is not None and back_off.until > cycle.now:
        return False
    head = cycle.pending.head_before(row)
    return head is None or head in others


def _places(cycle: CyclePlan, profile: Profile, proposal: PlanProposed) -> dict[int, Allocation] | None:
    """Place each job on the trial, the moving ones first; None if the proposal no longer holds."""
    state, trial = cycle.state, cycle.placer.trial
    named = (*proposal.moves, *proposal.starts)
    rows = [state.rows.get(one.job, -1) for one in named]
    moving, starting = rows[: len(proposal.moves)], dict.fromkeys(rows[len(proposal.moves) :])
    if not rows or len(set(rows)) < len(rows):
        return None
    if not all(may_move(cycle, profile, row) for row in moving):
        return None
    if not all(may_start(cycle, row, starting) for row in starting):
        return None
    mark = trial.checkpoint()
    for row in moving:
        trial.evict(state.running[row])
    found: dict[int, Allocation] = {}
    for row, one in zip(rows, named, strict=True):
        place = _place(cycle, row, one)
        if place is None:
            trial.rollback(mark)
            return None
        found[row] = place
    return found


def _place(cycle: CyclePlan, row: int, one: ProposedPlace) -> Allocation | None:
    """Place the job's pods on the named nodes with the named counts, within its quota; None if that is impossible."""
    state = cycle.state
    nodes = {state.node_index[name]: pods for name, pods in one.pods.items() if name in state.node_index}
    if len(nodes) < len(one.pods):
        return None
    shape, runs = state.shape_of(row), row in state.running
    options = [shape]
    if runs:
        held = set(state.table[state.running[row][:, NODE], POOL].tolist())
        if not set(state.table[list(nodes), POOL].tolist()) <= held:
            return None  # nodes of another GPU model need another quota
    elif cycle.limited:
        if cycle.admission.closed(row) is not None:
            return None
        options = [each for each in cycle.admission.options(row, shape) if cycle.admission.shortage(row, each) is None]
    for option in options:
        with cycle.placer.trial.within(nodes):
            place = cycle.place(row, option)
        if isinstance(place, np.ndarray):
            there = Counter[int]()
            for node, pods in place[:, [NODE, PODS]].tolist():
                there[node] += pods
            if there != nodes:
                return None
            if cycle.limited and not runs:
                cycle.admission.starts(row, place)
            return place
    return None
