"""Which policy acts now? `python -m benchmarks.studies.router [--look HOURS]`: about a quarter of an hour.

Demonstrations are had by look-ahead: at every hour of a simulated week each policy of `kant-weather` runs the next hour
from a copy of the run, and the floor some hours more. A list of rules is fitted to them; held-out weeks are then run
under the router. Writes docs/studies/router.md.
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
import itertools
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from kant.cluster import columns as c
from kant.cluster.journal import Journal
from kant.model.event import JobSubmitted, PolicyRouted
from kant.model.status import JobStatus
from kant.model.units import FOREVER, HOUR, SECOND
from kant.queueing.router import FEATURES, Rule, features
from kant.scheduler.cycle import Scheduler
from kant.scheduler.profile import Profile, builtin_texts, parse_profile
from kant.sim.jobs import Arrivals, Gangs, typical_pods
from kant.sim.options import read_options
from kant.sim.run import Run, RunHooks
from kant.workload.cluster_file import read_cluster
from kant.workload.generate import generate
from kant.workload.workload import Workload

PAGE = Path(__file__).parents[2] / "docs" / "studies" / "router.md"
SIMULATION = """
[simulation]
estimates = "none"
checkpoint_s = 3600
resume_cost = [[1, 7], [8, 30], [1000000, 60]]
"""
CLUSTER, GPUS, DAYS, DRAIN = "16x8", 128, 7, 24
FLOOR, OTHER = "seat", "rotate"
Week = tuple[str, float, int]
"""A row of the generator, the load, and the seed."""
TAUGHT: tuple[Week, ...] = (("helios-venus", 0.9, 11), ("helios-venus", 1.2, 12), ("helios-uranus", 1.0, 13))
HELD_OUT: tuple[Week, ...] = (
    ("helios-venus", 1.0, 21), ("helios-venus", 1.3, 22), ("helios-uranus", 1.0, 24), ("philly", 1.0, 23),
)  # fmt: skip
Look = tuple[dict[str, int], float]
"""What the state was like, and by how much bounded slowdown was higher where `OTHER` acted for the next hour."""


class World:
    """A week in which a run stands at an hour. The submissions come to it as it advances."""

    def __init__(self, week: Week, profile: Profile) -> None:
        row, load, seed = week
        self.jobs: Workload = generate(row, gpus=GPUS, load=load, days=DAYS, seed=seed)
        options, cluster = read_options(profile.simulation, profile.name), read_cluster(CLUSTER)
        gangs = Gangs(cluster, options.shape == "gpu")
        self.run = Run(self.jobs.name, cluster, profile, options, 0, FOREVER, RunHooks())
        pods = typical_pods(self.jobs, gangs, options.typical_share, self.run.state.shapes.pools_admitting)
        self.run.typical(pods)
        self.coming: list[JobSubmitted] = list(Arrivals(self.jobs, gangs, options, 0))
        self.times = np.array([event.time for event in self.coming])
        self.taken = 0

    def to(self, time: int) -> None:
        """Advance to a time."""
        until = int(np.searchsorted(self.times, time, "right"))
        self.run.advance(time, self.coming[self.taken : until])
        self.taken = until

    def turn(self, policy: str) -> None:
        """Let a policy act from now on."""
        state = self.run.state
        if self.run.scheduler.given.routes[policy] is not self.run.scheduler.profile:
            state.apply(PolicyRouted(state.now, policy, "by look-ahead"))
            self.run.wake = state.now

    def copy(self) -> World:
        """Another run that stands where this one does. Its journal is nowhere."""
        run, other = self.run, copy.copy(self)
        memo = {id(run.journal): Journal(None), id(run.scheduler): None}
        other.run = copy.deepcopy(run, memo)
        other.run.scheduler = Scheduler(other.run.state, run.profile, run.seed)
        return other

    def slowdowns(self, now: int) -> NDArray[np.float64]:
        """The bounded slowdown of each job so far: with what it has waited, and its run time, at least ten seconds."""
        state = self.run.state
        jobs = state.jobs[: len(state.ids)]
        waited = jobs[:, c.J_WAITED] + np.where(jobs[:, c.J_STATUS] == JobStatus.PENDING, now - jobs[:, c.J_SINCE], 0)
        runtime = np.array([event.runtime for event in self.coming[: len(jobs)]])
        found: NDArray[np.float64] = np.maximum(1.0, (waited + runtime) / np.maximum(runtime, 10 * SECOND))
        return found

    def mean(self) -> float:
        """Run it to its end; the mean of all jobs."""
        self.to(FOREVER - 1)
        return float(self.slowdowns(self.run.last).mean())


def looked_ahead(week: Week, profile: Profile, look: int) -> tuple[float, list[Look]]:
    """The mean bounded slowdown where each hour has the policy that look-ahead finds best; and what was seen.

    A policy runs the next hour, and the floor `look` hours after it."""
    world, seen = World(week, profile), list[Look]()
    for hour in range(24 * DAYS + DRAIN):
        now, ends = hour * HOUR, {}
        state = world.run.state
        if state.pending:
            before = features(state, now)
            for policy in (FLOOR, OTHER):
                future = world.copy()
                future.turn(policy)
                future.to(now + HOUR - 1)
                future.turn(FLOOR)
                future.to(now + (1 + look) * HOUR - 1)
                ends[policy] = float(future.slowdowns(now + (1 + look) * HOUR - 1).sum())
            seen.append((before, ends[OTHER] - ends[FLOOR]))
            world.turn(OTHER if ends[OTHER] < ends[FLOOR] else FLOOR)
        else:
            world.turn(FLOOR)
        world.to(now + HOUR - 1)
    return world.mean(), seen


def fitted(seen: Sequence[Look]) -> Rule | None:
    """The box of two features in which leaving the floor has gained most; None where no box gains.

    What counts is the gain of all hours inside it, so a rare disaster outweighs many small gains."""
    gain = np.array([-cost for _, cost in seen])
    best, found = 0.0, None
    for names in itertools.combinations(FEATURES, 2):
        columns = [np.array([one[name] for one, _ in seen]) for name in names]
        cuts = [np.unique(np.quantile(column, np.linspace(0, 1, 9)).astype(int)) for column in columns]
        boxes = [[(int(a), int(b)) for a, b in itertools.combinations_with_replacement(cut, 2)] for cut in cuts]
        inside = [
            np.array([(column >= a) & (column <= b) for a, b in box])
            for column, box in zip(columns, boxes, strict=True)
        ]
        total = (inside[0] * gain) @ inside[1].T.astype(float)
        at = np.unravel_index(int(total.argmax()), total.shape)
        if total[at] > best:
            best = float(total[at])
            found = dict(zip(names, (boxes[0][at[0]], boxes[1][at[1]]), strict=True))
    return None if found is None else Rule(OTHER, "only small jobs wait", found)


def profile_of(rules: tuple[Rule, ...] = (), pin: str = "") -> Profile:
    """`kant-weather`, with other rules where they are given, in a world in which preemption costs."""
    profile = parse_profile(builtin_texts()["kant-weather"] + SIMULATION, "kant-weather")
    assert profile.router is not None
    return dataclasses.replace(profile, router=replace(profile.router, rules=rules or profile.router.rules, pin=pin))


def say(*words: object) -> None:
    print(*words, flush=True)


def measure(look: int) -> str:
    """The page."""
    plain, seen, rows = profile_of(), list[Look](), list[str]()
    for week in TAUGHT:
        mean, own = looked_ahead(week, plain, look)
        seen += own
        say(week, "look-ahead", mean, len(own))
    rule = fitted(seen)
    say(rule)
    closed = []
    for week in (*TAUGHT, *HELD_OUT):
        fixed = {policy: World(week, profile_of(pin=policy)).mean() for policy in (FLOOR, OTHER)}
        routed = World(week, profile_of((rule,) if rule is not None else ())).mean()
        shipped = World(week, plain).mean()
        ahead, one = (looked_ahead(week, plain, hours)[0] for hours in (look, 0))
        figures = (*fixed.values(), one, ahead, routed, shipped)
        kind = "taught" if week in TAUGHT else "held out"
        if week in HELD_OUT:
            closed.append((min(fixed.values()), ahead, routed))
        rows.append(f"| {week[0]}, load {week[1]} | {kind} | " + " | ".join(f"{each:.3f}" for each in figures) + " |")
        say(rows[-1])
    return page(look, rule, len(seen), rows, closed)


def page(look: int, rule: Rule | None, looks: int, rows: list[str], closed: list[tuple[float, float, float]]) -> str:
    head = ("week", "", FLOOR, OTHER, "hourly look-ahead", f"look-ahead of {1 + look} hours", "router", "as shipped")
    return "\n".join([HEAD.format(look=look), "", f"| {' | '.join(head)} |", "|---" * len(head) + "|", *rows, ""])


HEAD = """# Which policy acts now"""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--look", type=int, default=6)
    parser.add_argument("--out", type=Path, default=PAGE)
    asked = parser.parse_args()
    asked.out.write_text(measure(asked.look))


if __name__ == "__main__":
    main()
