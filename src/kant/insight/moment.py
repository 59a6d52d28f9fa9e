"""A moment of a scheduler, frozen: all that a forecast of starts is made of, on its way to where it is made."""

from __future__ import annotations

import pickle
from copy import copy
from dataclasses import dataclass

from kant.cluster.change_log import ChangeLog
from kant.cluster.state import ClusterState
from kant.insight.past_jobs import PastJobs
from kant.scheduler.cycle import Scheduler
from kant.scheduler.profile import Profile


@dataclass(frozen=True, slots=True)
class Moment:
    """The `state` at `now`, as `freeze` writes it, under a profile, and what is known of the past.

    `zero` is that of the clock, microseconds since the Unix epoch; 0: it has no dates.
    """

    state: bytes
    profile: Profile
    seed: int
    now: int
    past: PastJobs
    zero: int = 0

    def thawed(self) -> ClusterState:
        """A state of its own each time."""
        return thaw(self.state)


def freeze(state: ClusterState) -> bytes:
    """The state as it is, without those who follow it. It takes some milliseconds."""
    twin = copy(state)
    twin.followers, twin.job_changes, twin._competing = [], ChangeLog(), None
    twin.jobs = state.jobs[: len(state.ids) + 1]
    return pickle.dumps(twin, pickle.HIGHEST_PROTOCOL)


def thaw(frozen: bytes) -> ClusterState:
    """A state as it was when it was frozen."""
    found = pickle.loads(frozen)
    assert isinstance(found, ClusterState)
    return found


def moment_of(scheduler: Scheduler, past: PastJobs, now: int | None = None, zero: int = 0) -> Moment:
    """The present of a scheduler (by default, and at least, the time of the last event)."""
    state = scheduler.state
    return Moment(freeze(state), scheduler.profile, 0, max(now or 0, state.now), past, zero)
