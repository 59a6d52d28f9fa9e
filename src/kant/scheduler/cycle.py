"""One cycle: from a snapshot of the state to a plan. It does not read the clock, and changes only the plan."""

from __future__ import annotations

from kant.cluster.snapshot import Snapshot
from kant.cluster.state import ClusterState
from kant.model.decision import Plan
from kant.model.errors import StateError
from kant.placement.placer import Placer
from kant.queueing.cycle_plan import CyclePlan
from kant.queueing.growth import Growth
from kant.queueing.limits import Limits
from kant.queueing.node_replacement import replace_lost_nodes
from kant.queueing.rejection import reject_impossible
from kant.scheduler.parts import acting, forecast, is_idle, look, pending_queue
from kant.scheduler.profile import Profile


class Scheduler:
    """Runs the cycles of a profile on one state.

    Between cycles it keeps the snapshot, the sorted queue and the placement indexes, and updates them from what
    changed. All of it is only cached: a new Scheduler on the same state makes the same decisions.
    """

    def __init__(self, state: ClusterState, profile: Profile, seed: int = 0) -> None:
        if state.shapes.workloads != profile.matches:
            raise StateError("the state was not created to distinguish the profile's workloads (`workloads`)")
        self.state = state
        self.given = profile
        self.seed = seed
        self._may_be_idle = not profile.looks_at_running
        self._begin_anew()

    def _begin_anew(self) -> None:
        """Rebuild everything for the present layout of node rows, and for the policy that acts now."""
        state, profile, seed = self.state, acting(self.given, self.state), self.seed
        self.profile, self._evictors = profile, profile.evictors
        self._layout, self._routed = state.layout, state.routed
        self.snapshot = Snapshot(state)
        self.placer = Placer(
            self.snapshot, profile.placement, seed, profile.placements, preferences=profile.preferences
        )
        self.pending = pending_queue(state, profile, self.placer)
        self.limits = Limits(state)
        self.growth = Growth(state, profile.elastic)
        self.forecast = forecast(state, profile, self.placer)
        self.seen = -1  # how far the log of job changes has been read

    def cycle(self, now: int) -> Plan:
        """Return the plan at `now`, given everything that has been applied to the state."""
        if self._may_be_idle and not self.state.pending and is_idle(self.state):
            return Plan(now, [])
        cycle = self.begin(now)
        run_cycle(cycle, self.profile, self.limits, self.growth)
        self.snapshot.previous = now
        if self.given.router is not None:
            look(cycle, self.given.router)
        return cycle.plan

    def begin(self, now: int) -> CyclePlan:
        """Return an empty plan at `now`, with the snapshot and the queue up to date."""
        state, log = self.state, self.state.job_changes
        if state.layout != self._layout or state.routed is not self._routed:
            self._begin_anew()
        self.seen, moved = log.end, log.since(self.seen) if self.seen >= 0 else None  # None: rows unknown
        self.snapshot.refresh(now)
        self.pending.refresh(now, moved)
        if state.limits_runs:
            self.limits.follow(moved)
        if self.forecast is not None:
            self.forecast.refresh(now, moved)
        self.placer.trial.begin()
        by = self._evictors[self.pending.mixed]
        return CyclePlan(self.snapshot, self.profile.order, self.pending, self.placer, by, self.forecast)


def run_cycle(cycle: CyclePlan, profile: Profile, limits: Limits, growth: Growth) -> None:
    """Stop, order, admit, place, preempt or hold: make the decisions of one instant, in the order of execution."""
    state, pending = cycle.state, cycle.pending

    # 1. Stop what may not run on: jobs at their limit, jobs in stopped queues, replicas that have lost their base job.
    if limits.ends or cycle.limited or state.health.drains:
        limits.stop(cycle)

    # 2. Reject at once the jobs that can never start, so that they block no other.
    if pending.arrived:
        reject_impossible(cycle)

    # 3. Gangs that have just lost a node get a new node before any other job may take their remaining devices.
    if cycle.drained or state.health.broken:
        replace_lost_nodes(cycle, profile.discipline.quotas)

    # 4. The discipline tries the other jobs in the profile's order. Each needs devices for its whole gang within its
    #    quota, which preemption may free. Else it holds the job, lets others pass it, or reserves devices for later.
    if state.pending or not profile.discipline.buckets:
        profile.discipline.run(cycle)
        if cycle.plan.decisions:
            cycle.await_changes()

    # 5. Move victims that fit elsewhere.
    if cycle.victims and (profile.preemption is None or profile.preemption.move_victims):
        cycle.relocate_victims()

    # 6. Give the capacity that no waiting job can use to elastic gangs, up to their ceilings.
    if state.elastic:
        growth.run(cycle)
    if pending.back_offs.ends or pending.released or state.quota_usage.budgets is not None:
        cycle.look_again()
