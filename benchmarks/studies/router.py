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
from kant.model.event import JobSubmitted
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
FLOOR, OTHER = "patient", "rotate"
Week = tuple[str, float, int]
"""A row of the generator, the load, and the seed."""
TAUGHT: tuple[Week, ...] = (
    ("helios-venus", 0.9, 11), ("philly", 0.9, 11), ("helios-venus", 1.2, 12), ("helios-uranus", 1.0, 13),
)  # fmt: skip
ALSO_TAUGHT: tuple[Week, ...] = (("philly", 1.1, 14), ("helios-venus", 1.0, 15))
"""Weeks in which bounds are tried, and nobody looks ahead."""
HELD_OUT: tuple[Week, ...] = (
    ("helios-venus", 1.0, 21), ("helios-venus", 1.3, 22), ("helios-uranus", 1.0, 24), ("philly", 1.0, 23),
    ("philly", 0.9, 31), ("helios-venus", 1.1, 32), ("helios-uranus", 1.2, 34), ("helios-saturn", 0.9, 33),
    ("helios-venus", 1.0, 42), ("helios-uranus", 1.1, 44), ("helios-venus", 1.2, 45), ("philly", 0.9, 41),
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
    world.turn(FLOOR)
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


def fitted(weeks: Sequence[Sequence[Look]]) -> Rule | None:
    """The box of two features in which leaving the floor has gained most, and has lost in none of the weeks.

    The gains of all hours inside it are added, so a rare disaster outweighs many small gains. None: no box gains."""
    best, found = 0.0, None
    for names in itertools.combinations(FEATURES, 2):
        every = [np.array([[one[name] for one, _ in seen] for name in names]) for seen in weeks]
        gains = [np.array([-cost for _, cost in seen]) for seen in weeks]
        cuts = [np.unique(np.quantile(np.concatenate([own[at] for own in every]), STEPS).astype(int)) for at in (0, 1)]
        boxes = [list(itertools.combinations_with_replacement(cut.tolist(), 2)) for cut in cuts]
        by_week = []
        for own, gain in zip(every, gains, strict=True):
            inside = [np.array([(own[at] >= a) & (own[at] <= b) for a, b in boxes[at]]).astype(float) for at in (0, 1)]
            by_week.append((inside[0] * gain) @ inside[1].T)
        total = np.where(np.min(by_week, axis=0) >= 0, np.sum(by_week, axis=0), 0.0)
        at = np.unravel_index(int(total.argmax()), total.shape)
        if total[at] > best:
            best = float(total[at])
            found = dict(zip(names, (boxes[0][at[0]], boxes[1][at[1]]), strict=True))
    return None if found is None else Rule(OTHER, SAYS, found)


def tried(weeks: Sequence[Week]) -> Rule:
    """Where no large gang runs: the bound on those that wait with which whole weeks go best, and none 2 % worse."""
    fixed = np.array([World(week, profile_of(pin=FLOOR)).mean() for week in weeks])
    best, found = np.inf, None
    for largest in (3, 6, 12):
        rule = Rule(OTHER, SAYS, {"largest": (0, largest), "large_running": (0, 0)})
        means = np.array([World(week, profile_of((rule,))).mean() for week in weeks])
        if (means <= 1.02 * fixed).all() and means.sum() < best:
            best, found = float(means.sum()), rule
    assert found is not None, "no bounds keep all weeks"
    return found


STEPS = np.linspace(0, 1, 9)
SAYS = "only small jobs wait"


def profile_of(rules: tuple[Rule, ...] = (), pin: str = "") -> Profile:
    """`kant-weather`, with other rules where they are given, in a world in which preemption costs."""
    profile = parse_profile(builtin_texts()["kant-weather"] + SIMULATION, "kant-weather")
    assert profile.router is not None
    return dataclasses.replace(profile, router=replace(profile.router, rules=rules or profile.router.rules, pin=pin))


def say(*words: object) -> None:
    print(*words, flush=True)


def measure(look: int) -> str:
    """The page."""
    plain, seen, rows = profile_of(), list[list[Look]](), list[list[float]]()
    for week in TAUGHT:
        seen.append(looked_ahead(week, plain, look)[1])
    rules = (fitted(seen), tried((*TAUGHT, *ALSO_TAUGHT)))
    for week in HELD_OUT:
        figures = [World(week, profile_of(pin=policy)).mean() for policy in (FLOOR, OTHER)]
        figures += [looked_ahead(week, plain, 0)[0]]
        figures += [World(week, profile_of((rule,) if rule is not None else ())).mean() for rule in rules]
        rows.append([*figures, World(week, at_once()).mean()])
        print(week, rules, rows[-1], flush=True)
    return page(look, rules, sum(map(len, seen)), rows)


def at_once() -> Profile:
    """The floor without patience: the strongest simple baseline."""
    profile = profile_of(pin=FLOOR)
    text = profile.text.replace("timeout_s = 600", "timeout_s = 0").replace("[router]", f'[router]\npin = "{FLOOR}"')
    return parse_profile(text, "without patience")


def page(look: int, rules: Sequence[Rule | None], looks: int, rows: list[list[float]]) -> str:
    head = ("held-out week", FLOOR, OTHER, "hourly look-ahead", "fitted", "tried", f"{FLOOR}, at once")
    table = np.array(rows)
    lines = [HEAD.format(look=look, looks=looks), "", f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for (row, load, _), figures in zip(HELD_OUT, rows, strict=True):
        lines.append(f"| {row}, load {load} | " + " | ".join(f"{each:.3f}" for each in figures) + " |")
    lines += ["| mean | " + " | ".join(f"{each:.3f}" for each in table.mean(axis=0)) + " |", ""]
    for name, rule, at in (("Fitted", rules[0], 3), ("Tried", rules[1], 4)):
        closed = [_closed(table[part], at) for part in (slice(None), slice(SEEN), slice(SEEN, None))]
        worst = 100 * (table[:, at] / table[:, 0] - 1).max()
        where = "no box gains" if rule is None else f"`{rule.where}`"
        lines += [
            f"*{name}*: {where}. It closes {closed[0]:.0f} % of the gap between `{FLOOR}`, the best fixed policy, and"
        ]
        lines += [f"hourly look-ahead ({closed[1]:.0f} % in the first {SEEN} weeks, {closed[2]:.0f} % in the last"]
        lines += [f"{len(rows) - SEEN}); its worst week is {worst:+.1f} % beside that policy.", ""]
    return "\n".join([*lines, END])


SEEN = 8
"""Held-out weeks that had been looked at before the rule of `tried` got its form."""


def _closed(table: NDArray[np.float64], at: int) -> float:
    """The percentage of the gap between the floor and hourly look-ahead that a column closes."""
    floor, hourly, own = (float(table[:, column].sum()) for column in (0, 2, at))
    return 100 * (floor - own) / (floor - hourly)


HEAD = """# Which policy acts now

Made by `python -m benchmarks.studies.router`.

Mean bounded slowdown (wait and run time over run time, at least ten seconds) of weeks drawn after published
clusters, on 16 nodes of 8 GPUs. Nobody knows run times; jobs save their work every hour, and to stop one costs
what was measured for Helios (7 to 60 s). The profile is [`kant-weather`](../profiles.md#router): its floor
`patient` has short work first and takes places back after ten minutes; `rotate` is least attained service,
preemptive.

*Hourly look-ahead* runs both policies for the next hour from a copy of the run, at each hour, and lets the better
one act: these are the demonstrations, from which the scheduler of SEIHAI (arXiv 2111.08857) would learn. *Fitted*
is the box of two features that gained most in {looks} demonstrations of other weeks, in which the floor ran {look}
hours after the hour in question. *Tried* are the bounds on waiting and running gangs under which whole weeks of
those went best, and none over 2 % worse: they are what is shipped."""
END = """## What this says

- *Safe, and far from the oracle.* Under the bounds that are shipped no held-out week is more than a fraction of a
  percent worse than under the best fixed policy: the floor and the quick way back do that. But 40 % of the gap
  were wanted, and not even a tenth is closed. The first eight weeks had been looked at when the rule got its form
  (that no large gang runs), the last four had not, and there it gains nothing: large gangs run all the time.
- Rules fitted to demonstrations gain more on average, and lose more than a tenth in the worst week. An hour of
  look-ahead says what one hour of a policy is worth, and the router stays with it for as long as its rule holds.
  And what look-ahead knows is who comes in that hour, which no feature of the present state says.
- *The strongest simple baseline needs no router.* `patient, at once` is the floor with `timeout_s = 0`: a late
  head takes its place back from whatever has outrun it as soon as it waits. It is better than every router here,
  and on average than look-ahead among the two. Whoever may stop jobs at once should do that; the router is for
  those whose jobs are promised ten minutes.
- Best fixed policy means the best over all weeks. In a week of small jobs `rotate` is better still, and nobody
  knows such a week beforehand.

SEIHAI's own figures are of a game and do not compare. One seed a week; weeks differ by more than policies do, so
each is shown.
"""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--look", type=int, default=6)
    parser.add_argument("--out", type=Path, default=PAGE)
    asked = parser.parse_args()
    asked.out.write_text(measure(asked.look))


if __name__ == "__main__":
    main()
