"""One cycle: snapshot in, plan out. Nothing here asks the clock, and nothing changes but the plan."""

from __future__ import annotations

from kant.cluster.snapshot import Snapshot
from kant.cluster.state import ClusterState
from kant.model.decision import Plan
from kant.placement.placer import Placer
from kant.queueing.turn import Turn
from kant.queueing.waiting import Waiting
from kant.scheduler.profile import Profile


class Scheduler:
    """A profile at work on one state.

    Between cycles it keeps the snapshot, the sorted queue and the placement indexes, and brings them up to date
    from what changed. They hold nothing of their own: a new Scheduler on the same state decides the same.
    """

    def __init__(self, state: ClusterState, profile: Profile, seed: int = 0) -> None:
        self.state = state
        self.profile = profile
        self.snapshot = Snapshot(state)
        self.waiting = Waiting(state, profile.order, profile.discipline.lane if profile.discipline.lanes else None)
        self.placer = Placer(self.snapshot, profile.placement, seed)

    def cycle(self, now: int) -> Plan:
        """What to do at `now`, given everything that has been applied to the state."""
        self.catch_up(now)
        plan = run_cycle(self.snapshot, self.profile, self.waiting, self.placer)
        self.snapshot.previous = now
        return plan

    def catch_up(self, now: int) -> None:
        """Bring the snapshot and the queue up to date with the state."""
        self.snapshot.refresh(now)
        self.waiting.refresh()
        self.placer.trial.begin()


def run_cycle(snapshot: Snapshot, profile: Profile, waiting: Waiting, placer: Placer) -> Plan:
    """Order, place, make room or hold: the decisions of one instant, in the order in which to carry them out."""
    turn = Turn(snapshot, profile.order, waiting, placer)

    # 1. What can never fit goes back to its owner at once, and blocks nobody.
    for row in waiting.arrived:
        never = placer.never_fits(snapshot.state.shape_of(row))
        if never is not None:
            turn.reject(row, never)
            waiting.leave(row)
    waiting.arrived.clear()

    # 2. The discipline takes the others in the profile's order. For each it asks the placer for the whole gang at
    #    once, and decides what a gang that does not fit means: hold it, pass it, or make room.
    profile.discipline.run(turn)
    return turn.plan
