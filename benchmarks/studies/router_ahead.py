"""Look-ahead over policies: copies of a simulated run go on under each, and the better one acts for the next hour.

Two kinds, both with all that comes: one hour ahead, and to the end of the week.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kant.cluster import columns as c
from kant.cluster.journal import Journal
from kant.model.event import JobSubmitted
from kant.model.units import FOREVER, HOUR, SECOND
from kant.scheduler.cycle import Scheduler
from kant.scheduler.profile import Profile
from kant.sim.jobs import Arrivals, Gangs, typical_pods
from kant.sim.options import read_options
from kant.sim.run import Run, RunHooks
from kant.workload.cluster_file import read_cluster
from kant.workload.workload import Workload

DAYS, DRAIN = 7, 24
FLOOR, OTHER = "attained", "predicted"


@dataclass(frozen=True)
class Week:
    """Jobs of a week, and the cluster on which they run."""

    name: str
    jobs: Workload
    cluster: str


class World:
    """A week in which a run stands at an hour. The submissions come to it as it advances."""

    def __init__(self, week: Week, profile: Profile) -> None:
        self.jobs = week.jobs
        options, cluster = read_options(profile.simulation, profile.name), read_cluster(week.cluster)
        gangs = Gangs(cluster, options.shape == "gpu")
        self.run = Run(self.jobs.name, cluster, profile, options, 0, FOREVER, RunHooks())
        pods = typical_pods(self.jobs, gangs, options.typical_share, self.run.state.shapes.pools_admitting)
        self.run.typical(pods)
        self.coming: list[JobSubmitted] = list(Arrivals(self.jobs, gangs, options, 0))
        self.times = np.array([event.time for event in self.coming])
        self.runtimes = np.array([event.runtime for event in self.coming])
        self.taken = 0

    def to(self, time: int) -> None:
        """Advance to a time."""
        until = int(np.searchsorted(self.times, time, "right"))
        self.run.advance(time, self.coming[self.taken : until])
        self.taken = until

    def turn(self, policy: str) -> None:
        """Let a policy act from now on, whatever the rules of the router say."""
        run, chosen = self.run, self.run.profile.routes[policy]
        if run.scheduler.given is not chosen:
            run.scheduler, run.wake = Scheduler(run.state, chosen, run.seed), run.state.now

    def copy(self) -> World:
        """Another run that stands where this one does. Its journal is nowhere."""
        run, other = self.run, copy.copy(self)
        memo = {id(run.journal): Journal(None), id(run.scheduler): None}
        other.run = copy.deepcopy(run, memo)
        other.run.scheduler = Scheduler(other.run.state, run.scheduler.given, run.seed)
        return other

    def slowdowns(self, now: int) -> NDArray[np.float64]:
        """The bounded slowdown of each job so far: from its submission on, beside its run time of at least ten seconds.

        What is done again after a stop counts."""
        jobs = self.run.state.jobs[: len(self.run.state.ids)]
        ends = np.where(jobs[:, c.J_END] >= 0, jobs[:, c.J_END], now)
        runtime = self.runtimes[: len(jobs)]
        found: NDArray[np.float64] = np.maximum(1.0, (ends - jobs[:, c.J_SUBMIT]) / np.maximum(runtime, 10 * SECOND))
        return found

    def mean(self) -> float:
        """Run it to its end; the mean of all jobs."""
        self.to(FOREVER - 1)
        return float(self.slowdowns(self.run.last).mean())

    def after(self, policy: str, hours: int, now: int) -> World:
        """A copy in which a policy acts for some hours, and the floor from then on; it stands after these hours."""
        future = self.copy()
        future.turn(policy)
        future.to(now + hours * HOUR - 1)
        return future

    def ended(self) -> float:
        """The sum of bounded slowdowns once all its jobs have ended, with the floor from now on."""
        self.turn(FLOOR)
        self.to(FOREVER - 1)
        return float(self.slowdowns(self.run.last).sum())

    def stands_as(self, other: World) -> bool:
        """Whether the same jobs wait and run in the same places as in another copy."""
        a, b = self.run.state, other.run.state
        return a.pending.keys() == b.pending.keys() and np.array_equal(
            a.jobs[: len(a.ids), [c.J_END, c.J_STARTED]], b.jobs[: len(b.ids), [c.J_END, c.J_STARTED]]
        )


def one_hour(world: World, now: int) -> bool:
    """Whether the other policy has the lower sum of slowdowns after an hour, with all that comes."""
    floor, other = (world.after(policy, 1, now) for policy in (FLOOR, OTHER))
    end = now + HOUR - 1
    return float(other.slowdowns(end).sum()) < float(floor.slowdowns(end).sum())


def to_the_end(world: World, now: int) -> bool:
    """Whether an hour of the other policy and the floor from then on are better at the end of the week than the floor.

    All that comes is known. So each choice lowers the value of the week or leaves it: no week is worse than the floor.
    """
    floor, other = (world.after(policy, 1, now) for policy in (FLOOR, OTHER))
    return not floor.stands_as(other) and other.ended() < floor.ended()


def ahead(week: Week, profile: Profile, leaves: Callable[[World, int], bool]) -> float:
    """The mean bounded slowdown of a week where `leaves` says at each hour whether the floor is left for it."""
    world = World(week, profile)
    world.run.rounds = None  # the product's own look-ahead
    world.turn(FLOOR)
    for hour in range(24 * DAYS + DRAIN):
        now = hour * HOUR
        world.turn(OTHER if world.run.state.pending and leaves(world, now) else FLOOR)
        world.to(now + HOUR - 1)
    return world.mean()
