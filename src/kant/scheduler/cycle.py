"""One cycle: snapshot in, plan out. Nothing here asks the clock, and nothing changes but the plan."""

from __future__ import annotations

from kant.cluster.snapshot import Snapshot
from kant.cluster.state import ClusterState
from kant.model.decision import Plan
from kant.model.errors import StateError
from kant.placement.placer import Placer
from kant.queueing.cycle_plan import CyclePlan
from kant.queueing.forecast import Forecast
from kant.queueing.growth import Growth
from kant.queueing.limits import Limits
from kant.queueing.node_replacement import replace_lost_nodes
from kant.queueing.rejection import reject_impossible
from kant.scheduler.parts import acting, is_idle, look, pending_queue
from kant.scheduler.profile import Profile


class Scheduler:
    """A profile at work on one state.

    Between cycles it keeps the snapshot, the sorted queue and the placement indexes, and brings them up to date
    from what changed. They hold nothing of their own: a new Scheduler on the same state decides the same.
    """

    def __init__(self, state: ClusterState, profile: Profile, seed: int = 0) -> None:
        if state.shapes.workloads != profile.matches:
            raise StateError("the state was not made to tell the profile's workloads apart (`workloads`)")
        self.state = state
        self.given = profile
        self.seed = seed
        self._may_be_idle = not profile.looks_at_running
        self._begin_anew()

    def _begin_anew(self) -> None:
        """Keep everything by the rows of nodes as they lie now, and for the policy that acts now."""
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
        ahead = profile.discipline.forecasts
        self.forecast = Forecast(state, self.placer.calendar, profile.estimates) if ahead else None
        self.seen = -1  # up to where the log of job changes has been read

    def cycle(self, now: int) -> Plan:
        """What to do at `now`, given everything that has been applied to the state."""
        if self._may_be_idle and not self.state.pending and is_idle(self.state):
            return Plan(now, [])
        cycle = self.begin(now)
        run_cycle(cycle, self.profile, self.limits, self.growth)
        self.snapshot.previous = now
        if self.given.router is not None:
            look(cycle, self.given.router)
        return cycle.plan

    def begin(self, now: int) -> CyclePlan:
        """An empty plan at `now`, before a snapshot and a queue that are up to date."""
        state, log = self.state, self.state.job_changes
        if state.layout != self._layout or state.routed is not self._routed:
            self._begin_anew()
        self.seen, moved = log.end, log.since(self.seen) if self.seen >= 0 else None  # None: nobody knows
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
    """Stop, order, admit, place, make room or hold: the decisions of one instant, in the order to carry them out."""
    state, pending = cycle.state, cycle.pending

    # 1. What may not run on stops: jobs at their limit, in stopped queues, replicas that have lost their base job.
    if limits.ends or cycle.limited or state.health.drains:
        limits.stop(cycle)

    # 2. What can never start goes back to its owner at once, and blocks nobody.
    if pending.arrived:
        reject_impossible(cycle)

    # 3. Gangs that have just lost a node get another in its place, before anybody may take the rest of what they held.
    if cycle.drained or state.health.broken:
        replace_lost_nodes(cycle, profile.discipline.quotas)

    # 4. The discipline takes the others in the profile's order. For each it asks for a place: within the quota, for
    #    the whole gang at once, with room made for it if the profile's preemption can. It decides what it means that
    #    there is none: hold the job, pass it, or reserve a place in time.
    if state.pending or not profile.discipline.buckets:
        profile.discipline.run(cycle)

    # 5. Victims that fit elsewhere move.
    if cycle.victims and (profile.preemption is None or profile.preemption.move_victims):
        cycle.relocate_victims()

    # 6. What no waiting job can use goes to elastic gangs, up to their ceilings.
    if state.elastic:
        growth.run(cycle)
    if pending.back_offs.ends or pending.released:
        cycle.look_again()
