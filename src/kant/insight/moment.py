"""A moment of a scheduler, frozen: all that a forecast of starts is made of, on its way to where it is made."""

from __future__ import annotations

import pickle
from copy import copy
from dataclasses import dataclass
from itertools import accumulate

import msgspec
import numpy as np

from kant.cluster.change_log import ChangeLog
from kant.cluster.state import ClusterState
from kant.insight.past_jobs import PastJobs
from kant.model.job import Job
from kant.model.placement import WIDTH
from kant.scheduler.cycle import Scheduler
from kant.scheduler.profile import Profile

NOTHING = np.zeros((0, WIDTH), dtype=np.int64)


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
    twin.jobs, twin.pieces = state.jobs[: len(state.ids) + 1], NOTHING
    held, twin.running, twin.live = state.running, {}, {}  # ten thousand of each would take pickle a third of a second
    running = list(held), list(map(len, held.values())), np.concatenate([NOTHING, *held.values()])
    live = list(state.live), msgspec.msgpack.encode(list(state.live.values()))
    return pickle.dumps((twin, running, live), pickle.HIGHEST_PROTOCOL)


def thaw(frozen: bytes) -> ClusterState:
    """A state as it was when it was frozen."""
    found, (rows, lengths, pieces), (live, jobs) = pickle.loads(frozen)
    assert isinstance(found, ClusterState)
    ends = accumulate(lengths)
    found.running = {row: pieces[end - own : end] for row, own, end in zip(rows, lengths, ends, strict=True)}
    found.lay_out_pieces(0)
    found.live = dict(zip(live, msgspec.msgpack.decode(jobs, type=list[Job]), strict=True))
    return found


def moment_of(scheduler: Scheduler, past: PastJobs, now: int | None = None, zero: int = 0) -> Moment:
    """The present of a scheduler (by default, and at least, the time of the last event)."""
    state = scheduler.state
    return Moment(freeze(state), scheduler.profile, 0, max(now or 0, state.now), past, zero)
