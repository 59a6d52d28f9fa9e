"""Look-ahead over policies: copies of a simulated run go on under each, and the better one acts for the next hour.

Three kinds: one hour ahead with all that comes; to the end of the week with all that comes; and from what is known at
that hour, with drawn run times and nobody who comes later.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from math import exp, log
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from kant.cluster import columns as c
from kant.cluster.journal import Journal
from kant.model.event import JobSubmitted
from kant.model.units import FOREVER, HOUR, SECOND
from kant.scheduler.cycle import Scheduler
from kant.scheduler.profile import Profile
from kant.sim.ends import NOT_RUNNING, add_end
from kant.sim.jobs import Arrivals, Gangs, typical_pods
from kant.sim.options import read_options
from kant.sim.run import Run, RunHooks
from kant.sim.speed import Steady
from kant.workload.cluster_file import read_cluster
from kant.workload.workload import Workload

DAYS, DRAIN = 7, 24
FLOOR, OTHER = "attained", "predicted"
HORIZONS, DRAWS, MARGIN = (1, 6), 3, 0.01
"""Hours for which the other policy is tried, draws of run times, and the least gain, in parts of the floor's value."""
UNKNOWN = 1 * HOUR, 2.0
"""Median and spread of a run time of which nothing is predicted: microseconds, and the sigma of its logarithm."""
NORMAL = NormalDist()


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

    def as_believed(self, now: int, rng: np.random.Generator) -> World:
        """A copy in which nobody comes, and each live job has a run time drawn from what is predicted of it now."""
        other = self.copy()
        other.coming, other.times = self.coming[: self.taken], self.times[: self.taken]
        other.runtimes = self.runtimes.copy()
        state, speed = other.run.state, other.run.execution.speed
        assert isinstance(speed, Steady)
        for row in state.live:
            began = speed._runs[row].began if row in state.running else now
            ran = int(state.jobs[row, c.J_ATTAINED]) + now - began
            median, high = state.jobs[row, [c.J_P50, c.J_P90]].tolist()
            middle, spread = (median, max(log(max(high, median) / median) / 1.2816, 0.1)) if median > 0 else UNKNOWN
            passed = NORMAL.cdf(log(max(ran, 1) / middle) / spread)  # it is known to run for longer than that
            part = min(max(passed + (1 - passed) * float(rng.random()), 1e-9), 1 - 1e-9)
            total = max(round(exp(log(middle) + spread * NORMAL.inv_cdf(part))), ran + SECOND)
            other.runtimes[row] = total
            speed._left[row] = total - ran + now - began
            if row in state.running:
                run = speed._runs[row]
                speed._runs[row] = run._replace(end=now + total - ran)
                speed.ends[row] = NOT_RUNNING
                speed.reserve(len(speed.ends), 1)
                add_end(speed.heap, speed.ends, row, now + total - ran)
        speed.moved()
        return other

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


def from_now(world: World, now: int) -> bool:
    """Whether the other policy is better by more than the error of the simulations, at each horizon.

    From the present snapshot, with drawn run times, until the queue is empty: what is left over counts.
    """
    gains: list[list[float]] = [[] for _ in HORIZONS]
    values = []
    for draw in range(DRAWS):
        believed = world.as_believed(now, np.random.default_rng((now // HOUR, draw)))
        floor = believed.after(FLOOR, 1, now)
        others = [believed.after(OTHER, HORIZONS[0], now)]
        if not draw and floor.stands_as(others[0]):
            return False
        others += [believed.after(OTHER, hours, now) for hours in HORIZONS[1:]]
        values.append(floor.ended())
        for at, other in enumerate(others):
            gains[at].append(values[-1] - other.ended())
    least = MARGIN * float(np.mean(values))
    return all(np.mean(gain) - 2 * np.std(gain, ddof=1) / DRAWS**0.5 > least for gain in gains)


def ahead(week: Week, profile: Profile, leaves: Callable[[World, int], bool]) -> float:
    """The mean bounded slowdown of a week where `leaves` says at each hour whether the floor is left for it."""
    world = World(week, profile)
    world.turn(FLOOR)
    for hour in range(24 * DAYS + DRAIN):
        now = hour * HOUR
        world.turn(OTHER if world.run.state.pending and leaves(world, now) else FLOOR)
        world.to(now + HOUR - 1)
    return world.mean()
