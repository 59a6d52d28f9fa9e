"""Which policy acts now? `python -m benchmarks.studies.router [--trace FILE]`: about half an hour of one core.

Fixed policies, the router of `kant-weather`, and the better of its two policies by look-ahead at every hour: on weeks
drawn after published clusters and, where a FILE is given, on those of a real trace (columns submit_s, duration_s, gpus
and vc, each virtual cluster by itself). Writes docs/studies/router.md.
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from kant.cluster import columns as c
from kant.cluster.journal import Journal
from kant.metrics.paired import mean_interval
from kant.model.event import JobSubmitted
from kant.model.units import FOREVER, HOUR, SECOND
from kant.scheduler.cycle import Scheduler
from kant.scheduler.profile import Profile, builtin_texts, parse_profile
from kant.sim.jobs import Arrivals, Gangs, typical_pods
from kant.sim.options import read_options
from kant.sim.run import Run, RunHooks
from kant.workload.cluster_file import read_cluster
from kant.workload.generate import generate
from kant.workload.read import read_workload
from kant.workload.workload import Workload

PAGE = Path(__file__).parents[2] / "docs" / "studies" / "router.md"
SIMULATION = """
[simulation]
estimates = "none"
checkpoint_s = 3600
resume_cost = [[1, 7], [8, 30], [1000000, 60]]
"""
DAYS, DRAIN, WEEK_S = 7, 24, 604_800
FLOOR, OTHER = "attained", "predicted"
BACKFILL = 'policy = "backfill"\ntimeout_s = 0'
FIXED = {
    FLOOR: ('policy = "stretch"\nprobability = 0', BACKFILL),
    OTHER: ('policy = "stretch"', BACKFILL),
    "attained, 100": ('policy = "stretch"\nprobability = 0\nfactor = 100', BACKFILL),
    "after a minute": ('policy = "stretch"', BACKFILL.replace("0", "60")),
    "after ten": ('policy = "stretch"', BACKFILL.replace("0", "600")),
    "las": ('policy = "las"', 'policy = "preemptive"'),
}
"""Order and discipline of each policy that does not change."""


@dataclasses.dataclass(frozen=True)
class Week:
    """Jobs of a week, and the cluster on which they run."""

    name: str
    jobs: Workload
    cluster: str


def drawn(weeks: Sequence[tuple[str, float, int]]) -> Iterator[Week]:
    """Weeks of the generator: a row of it, the load, and the seed."""
    for row, load, seed in weeks:
        yield Week(f"{row}, load {load}", generate(row, gpus=128, load=load, days=DAYS, seed=seed), "16x8")


def real(path: Path, most: int) -> Iterator[tuple[int, Week]]:
    """The weeks of each virtual cluster of a trace, with their numbers: those that fill most of a cluster made for
    them, with 60 to `most` jobs."""
    rows = pl.read_csv(path, schema_overrides={"vc": pl.Utf8}).with_columns(week=pl.col("submit_s") // WEEK_S)
    for (vc, week), own in rows.sort("vc", "week", "submit_s").group_by("vc", "week", maintain_order=True):
        load = float((own["duration_s"] * own["gpus"]).sum()) / WEEK_S
        nodes = max(round(load / 8 / 0.95), -(-int(own["gpus"].max()) // 8))  # type: ignore[arg-type]
        if 60 <= own.height <= most and load > 0.6 * 8 * nodes:
            with tempfile.NamedTemporaryFile(suffix=".csv") as file:
                own.with_row_index("id").select(
                    "id", pl.col("submit_s") - week * WEEK_S, "gpus", runtime_s=pl.col("duration_s").clip(1)
                ).write_csv(file.name)
                yield int(week), Week(f"{vc}, week {week}", read_workload(Path(file.name)), f"{nodes}x8")


TAUGHT = (
    ("helios-venus", 0.9, 101), ("helios-venus", 1.0, 102), ("helios-venus", 1.2, 103), ("philly", 0.9, 101),
)  # fmt: skip
HELD_OUT = (
    ("helios-venus", 1.0, 201), ("helios-venus", 1.2, 202), ("helios-venus", 0.9, 204),
)  # fmt: skip
LAST_TAUGHT, MOST_JOBS = 7, 450
"""Weeks of a trace up to this number are taught; those with more jobs are left out."""


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
        runtime = np.array([event.runtime for event in self.coming[: len(jobs)]])
        found: NDArray[np.float64] = np.maximum(1.0, (ends - jobs[:, c.J_SUBMIT]) / np.maximum(runtime, 10 * SECOND))
        return found

    def mean(self) -> float:
        """Run it to its end; the mean of all jobs."""
        self.to(FOREVER - 1)
        return float(self.slowdowns(self.run.last).mean())


def looked_ahead(week: Week, profile: Profile) -> float:
    """The mean bounded slowdown where each hour has the policy that does best in it, by a run of each from a copy."""
    world = World(week, profile)
    world.turn(FLOOR)
    for hour in range(24 * DAYS + DRAIN):
        end, ends = (hour + 1) * HOUR - 1, {}
        if world.run.state.pending:
            for policy in (FLOOR, OTHER):
                future = world.copy()
                future.turn(policy)
                future.to(end)
                ends[policy] = float(future.slowdowns(end).sum())
            world.turn(OTHER if ends[OTHER] < ends[FLOOR] else FLOOR)
        else:
            world.turn(FLOOR)
        world.to(end)
    return world.mean()


def fixed(policy: str) -> Profile:
    """A profile with one policy, in a world in which preemption costs."""
    order, discipline = FIXED[policy]
    rest = builtin_texts()["kant-weather"].partition("[placement]")[2].partition("[router]")[0]
    text = f'name = "{policy}"\nabout = ""\n[order]\n{order}\n[discipline]\n{discipline}\n[placement]{rest}'
    if "las" in policy:  # its discipline preempts by itself
        text = text.replace('[preemption]\nreclaim = "nominal"', "")
    return parse_profile(text + SIMULATION, policy)


def routed() -> Profile:
    """`kant-weather`."""
    return parse_profile(builtin_texts()["kant-weather"] + SIMULATION, "kant-weather")


def measure(trace: Path | None) -> str:
    """The page."""
    found = list(real(trace, MOST_JOBS)) if trace is not None else []
    taught = [*drawn(TAUGHT), *(week for number, week in found if number <= LAST_TAUGHT)]
    held = [*drawn(HELD_OUT), *(week for number, week in found if number > LAST_TAUGHT)]
    before = [[World(week, fixed(policy)).mean() for policy in FIXED] for week in taught]
    after = []
    for week in held:
        figures = [World(week, fixed(policy)).mean() for policy in FIXED]
        after.append([*figures, looked_ahead(week, routed()), World(week, routed()).mean()])
        print(week.name, np.round(after[-1], 3), flush=True)
    return page([week.name for week in held], np.array(before), np.array(after))


def page(names: list[str], taught: NDArray[np.float64], held: NDArray[np.float64]) -> str:
    head = (*FIXED, "hourly look-ahead", "router")
    means = taught.mean(axis=0)
    best = int(means.argmin())
    lines = [HEAD.format(taught=len(taught)), "", f"| held-out week | {' | '.join(head)} |"]
    lines += ["|---" * (len(head) + 1) + "|"]
    for name, figures in zip([*names, "mean"], [*held, held.mean(axis=0)], strict=True):
        lines.append(f"| {name} | " + " | ".join(f"{each:.3f}" for each in figures) + " |")
    lines += ["| mean of the weeks before | " + " | ".join(f"{each:.3f}" for each in means) + " | | |", ""]
    floor, hourly, own = held[:, best], held[:, -2], held[:, -1]
    part, worst = (floor - own).sum() / (floor - hourly).sum(), 100 * (own / floor - 1).max()
    lines += [f"The best fixed policy on the weeks before is `{list(FIXED)[best]}`. Beside it hourly look-ahead is"]
    lines += [f"{_apart(hourly - floor)} and the router {_apart(own - floor)} on the held-out weeks."]
    lines += [f"So {part:.0%} of the gap is closed; the worst week is {worst:+.1f} % beside that policy.", ""]
    return "\n".join([*lines, END])


def _apart(differences: NDArray[np.float64]) -> str:
    found = mean_interval(differences.tolist())
    return f"{found.mean:+.3f} ± {found.half:.3f}"


HEAD = """# Which policy acts now

Made by `python -m benchmarks.studies.router --trace philly_jobs.csv`, a table of the jobs of the Philly trace
(msr-fiddle/philly-traces, CC-BY-4.0) with the columns submit_s, duration_s, gpus and vc. Without it the page has the
drawn weeks alone.

Mean bounded slowdown: from submission to end over run time, of at least ten seconds; what is done again after a stop
counts. Drawn weeks are after published clusters, on 16 nodes of 8 GPUs. Real weeks are those of one virtual cluster
each, on as many nodes as it fills. Nobody knows run times, but learns them within the week; jobs save their work every
hour, and to stop one costs what was measured for Helios (7 to 60 s).

Fixed policies are `stretch` by how long jobs have run (*attained*) or by learned run times (*predicted*), with a factor
of 10 or 100 and no patience; *after a minute* and *after ten* are *predicted* where a late job waits so long before it
takes its place back; *las* is least attained service, preemptive. *Router* is
[`kant-weather`](../profiles.md#router): *predicted* while learned run times hold, else *attained*. *Hourly look-ahead*
runs both for the next hour from a copy of the run, at each hour, and lets the better one act, as the demonstrations do
from which the scheduler of SEIHAI (arXiv 2111.08857) learns. The policies and the bounds of the rule were chosen on
{taught} other weeks, the real ones of them before all that are held out."""
END = """## What this says

- *The floor is what counts.* `attained` has the lowest mean before and after, and no catastrophe: a job of a second
  that was predicted to run for hours waits a day under *predicted*, and gangs starve small jobs under *las*. Ten
  minutes of patience, which the profile had before, cost half as much again.
- *On real weeks there is hardly a gap to close.* Where a policy is right, it is right for days: the better one of the
  next hour is mostly the floor, and the gains of the others come later than an hour looks.
- *The router does not close 40 % of the gap, and is not within 2 % in every week.* Whether predictions have held
  lately keeps it from the catastrophes of *predicted*, and in some weeks of many jobs it follows that policy where it
  is better. But what look-ahead knows is who comes next, which no feature of the past says, and each switch in the
  middle of a week reorders all that wait. Before, with two policies that were far apart, it was no better: a box of
  two features, fitted by regret to 405 hours of look-ahead, was worse than its floor by a tenth in its worst week.
- *Pin it* where predictions are known to be good or bad: `kant profiles pin FILE predicted`, or `attained`.

SEIHAI's own figures are of a game and do not compare. Weeks differ by more than policies do, so each is shown.
"""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--trace", type=Path)
    parser.add_argument("--out", type=Path, default=PAGE)
    asked = parser.parse_args()
    asked.out.write_text(measure(asked.trace))


if __name__ == "__main__":
    main()
