"""A moment of a scheduler, frozen: all input of a start forecast, to be sent to the process that computes it."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from itertools import accumulate

import msgspec
import numpy as np

from kant.cluster.change_log import ChangeLog
from kant.cluster.state import ClusterState
from kant.insight.past_jobs import PastJobs
from kant.model.event import JobSubmitted
from kant.model.job import Job
from kant.model.placement import WIDTH
from kant.scheduler.cycle import Scheduler
from kant.scheduler.profile import Profile

NOTHING = np.zeros((0, WIDTH), dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Moment:
    """The `state` at `now`, as written by `freeze`, with the profile and the known past.

    `zero` is the clock's zero, microseconds since the Unix epoch; 0: it has no dates. `trial` is a job that has not
    been submitted: the forecast is about it alone, as if it arrived now.
    """

    state: bytes
    profile: Profile
    seed: int
    now: int
    past: PastJobs
    zero: int = 0
    trial: Job | None = None

    def thawed(self) -> ClusterState:
        """Return a separate state each time, with the trial job in the queue."""
        state = thaw(self.state)
        if self.trial is not None:
            state.apply(JobSubmitted(self.now, self.trial))
        return state


def freeze(state: ClusterState) -> bytes:
    """Serialise the state, without its followers. Takes some milliseconds."""
    own = vars(state)
    kept, held, jobs = dict(own), state.running, state.jobs[: len(state.ids) + 1]
    running = list(held), list(map(len, held.values())), np.concatenate([NOTHING, *held.values()])
    live = list(state.live), msgspec.msgpack.encode(list(state.live.values()))
    try:  # in place, since other parts refer to the state; ten thousand of each would take pickle a third of a second
        own.update(
            running={}, live={}, followers=[], job_changes=ChangeLog(), _competing=None, jobs=jobs, pieces=NOTHING
        )
        return pickle.dumps((state, running, live), pickle.HIGHEST_PROTOCOL)
    finally:
        own.update(kept)


def thaw(frozen: bytes) -> ClusterState:
    """Restore a frozen state."""
    found, (rows, lengths, pieces), (live, jobs) = pickle.loads(frozen)
    assert isinstance(found, ClusterState)
    ends = accumulate(lengths)
    found.running = {row: pieces[end - own : end] for row, own, end in zip(rows, lengths, ends, strict=True)}
    found.lay_out_pieces(0)
    found.live = dict(zip(live, msgspec.msgpack.decode(jobs, type=list[Job]), strict=True))
    return found


def moment_of(
    scheduler: Scheduler, past: PastJobs, now: int | None = None, zero: int = 0, trial: Job | None = None
) -> Moment:
    """Return the present moment of a scheduler (by default, and at least, the time of the last event)."""
    state = scheduler.state
    return Moment(freeze(state), scheduler.given, 0, max(now or 0, state.now), past, zero, trial)
