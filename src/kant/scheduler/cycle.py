"""One cycle: snapshot in, plan out. Nothing here asks the clock, and nothing changes but the plan."""

from __future__ import annotations

from kant.cluster.columns import J_FAILURES
from kant.cluster.snapshot import Snapshot
from kant.cluster.state import ClusterState
from kant.model.decision import Plan, Reason
from kant.model.errors import Violation
from kant.placement.placer import Placer
from kant.queueing.forecast import Forecast
from kant.queueing.growth import Growth
from kant.queueing.limits import Limits
from kant.queueing.repair import repair
from kant.queueing.requeue import retries_used
from kant.queueing.turn import Turn
from kant.queueing.waiting import Waiting
from kant.scheduler.profile import Profile, draws


class Scheduler:
    """A profile at work on one state.

    Between cycles it keeps the snapshot, the sorted queue and the placement indexes, and brings them up to date
    from what changed. They hold nothing of their own: a new Scheduler on the same state decides the same.
    """

    def __init__(self, state: ClusterState, profile: Profile, seed: int = 0) -> None:
        self.state = state
        self.profile = profile
        self.snapshot = Snapshot(state)
        lane = profile.discipline.lane if profile.discipline.lanes else None
        preempts = profile.preemption is not None
        self.waiting = Waiting(state, profile.order, profile.requeue, lane, preempts, draws(profile.placement))
        self.limits = Limits(state)
        if state.shapes.workloads != profile.matches:
            raise Violation("the state was not made to tell the profile's workloads apart (`workloads`)")
        self.growth = Growth(state, profile.elastic)
        self.placer = Placer(self.snapshot, profile.placement, seed, profile.placements)
        ahead = profile.discipline.forecasts
        self.forecast = Forecast(state, self.placer.timeline, profile.estimates) if ahead else None

    def cycle(self, now: int) -> Plan:
        """What to do at `now`, given everything that has been applied to the state."""
        self.catch_up(now)
        turn = Turn(
            self.snapshot, self.profile.order, self.waiting, self.placer, self.profile.preemption, self.forecast
        )
        run_cycle(turn, self.profile, self.limits, self.growth)
        self.snapshot.previous = now
        return turn.plan

    def catch_up(self, now: int) -> None:
        """Bring the snapshot and the queue up to date with the state."""
        self.snapshot.refresh(now)
        self.waiting.refresh(now)
        self.limits.refresh()
        if self.forecast is not None:
            self.forecast.refresh(now)
        self.placer.trial.begin()


def run_cycle(turn: Turn, profile: Profile, limits: Limits, growth: Growth) -> None:
    """Stop, order, admit, place, make room or hold: the decisions of one instant, in the order to carry them out."""
    waiting = turn.waiting

    # 1. What may not run on stops: jobs at their limit, in stopped queues, bursts that have lost their core.
    limits.stop(turn)

    # 2. What can never start goes back to its owner at once, and blocks nobody.
    for row in waiting.arrived:
        never = never_starts(turn, row)
        if never is not None:
            turn.reject(row, never)
            waiting.leave(row)
    waiting.arrived.clear()

    # 3. Gangs that have just lost a node get another in its place, before anybody may take the rest of what they held.
    repair(turn, profile.discipline.quotas)

    # 4. The discipline takes the others in the profile's order. For each it asks for a seat: within the quota, for
    #    the whole gang at once, with room made for it if the profile's preemption can. It decides what it means that
    #    there is none: hold the job, pass it, or promise it a place in time.
    profile.discipline.run(turn)

    # 5. Whoever had to make room and fits elsewhere moves.
    turn.resettle()

    # 6. What nobody who waits can use goes to elastic gangs, up to their ceilings.
    growth.run(turn)
    turn.review(waiting.next_ready())


def never_starts(turn: Turn, row: int) -> Reason | None:
    """Why a job can never start here; None where it could."""
    state, first = turn.state, None
    failures = int(state.jobs[row, J_FAILURES])
    used = retries_used(state, row, failures) if failures else None
    unwanted = used or turn.admission.unwanted(row)
    if unwanted is not None:
        return unwanted
    for option in turn.admission.options(row, state.shape_of(row)):
        never = turn.admission.never(row, option) or turn.placer.never_fits(option)
        if never is None:
            return None
        first = first or never
    return first
