"""Fairness and an early end at once: Shockwave's plan of rounds beside its rivals, on its own trace and on drawn ones.

`python -m benchmarks.studies.shockwave [SEEDS]`, with the extra `optimize`, writes docs/studies/fairness.md.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from benchmarks.data import DATA
from benchmarks.studies.parts import write_part
from kant.model.adaptive import AdaptiveJob
from kant.model.units import SECOND
from kant.optimize.share.outcome import SharingOutcome
from kant.optimize.share.policies import POLICIES
from kant.optimize.share.policy import Chooser, RoundPolicy
from kant.optimize.share.rounds import simulate
from kant.optimize.share.training import TrainingProgress
from kant.scheduler.profile import builtin_profile
from kant.sim.run import simulate as run_profile
from kant.workload.cluster_file import read_cluster
from kant.workload.read import read_workload
from kant.workload.shockwave import read_adaptive
from kant.workload.shockwave_draw import draw

PAGE = Path(__file__).parents[2] / "docs" / "studies" / "fairness.md"
SEEDS = 5
CORE = ("shockwave", "fifo", "srtf", "tiresias", "kant", "fair-share")
SIZES = ((32, 120, 40.0), (64, 220, 25.0), (128, 460, 10.0), (256, 900, 5.0))
"""GPUs, jobs, and seconds between two of them: the sizes of the published traces."""
PUBLISHED = {
    "shockwave": (24_197, 9_958, 1.78, 5.0),
    "min-total-duration": (24_205, 19_807, 7.74, 74.2),
    "themis": (31_929, 11_302, 3.44, 22.5),
    "max-min": (33_208, 11_274, 2.95, 25.0),
    "allox": (32_489, 9_926, 4.96, 27.5),
    "mst": (31_909, 9_655, 4.98, 25.0),
    "gandiva-fair": (32_367, 12_574, 1.85, 51.7),
}
"""Makespan (s), mean completion (s), worst fairness and unfair share (%) of the authors' results in simulation."""
STUDENT = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365, 9: 2.306, 10: 2.262}
"""Quantiles of Student's distribution for intervals of 95 %, by the number of seeds."""

Figures = tuple[float, float, float, float]


class Timed:
    """A policy whose slowest decision is remembered."""

    def __init__(self, policy: RoundPolicy) -> None:
        self.policy, self.source, self.tags = policy, policy.source, policy.tags
        self.slowest = 0.0

    def begin(self, gpus: int, round_s: float) -> Chooser:
        chooser = self.policy.begin(gpus, round_s)
        choose = chooser.choose

        def timed(jobs: Sequence[TrainingProgress], now: float, changed: bool) -> list[TrainingProgress]:
            begun = time.process_time()
            chosen = choose(jobs, now, changed)
            self.slowest = max(self.slowest, time.process_time() - begun)
            return chosen

        chooser.choose = timed  # type: ignore[method-assign]
        return chooser


def run(jobs: list[AdaptiveJob], gpus: int, policy: str) -> tuple[Figures, float]:
    """What a run comes to, and the CPU seconds of its slowest decision."""
    timed = Timed(POLICIES[policy])
    found = simulate(jobs, gpus, timed)
    return figures(found), timed.slowest


def figures(found: SharingOutcome) -> Figures:
    return found.makespan_s, found.jct_s, found.ftf.worst, 100 * found.ftf.unfair_share


def interval(values: list[float], digits: int) -> str:
    """The mean, and what its interval of 95 % reaches to either side."""
    mean = f"{np.mean(values):,.{digits}f}"
    if len(values) not in STUDENT:
        return mean
    half = STUDENT[len(values)] * float(np.std(values, ddof=1)) / math.sqrt(len(values))
    return f"{mean} ± {half:,.{digits}f}"


def page(seeds: int) -> Iterator[str]:
    yield "# Fairness and an early end at once\n"
    made = f"`OPENBLAS_NUM_THREADS=1 python -m benchmarks.studies.shockwave {seeds}`"
    yield f"Made by {made}, with OR-Tools (the extra `optimize`).\n"
    yield """\
Training jobs whose batch size changes run in rounds of 120 s ([kant share](../solvers.md#share-in-rounds)). Makespan
and mean completion are in seconds. FTF is finish-time fairness: how many times longer a job took than with an equal
share of the cluster of its own; above 1.05 counts as unfair. `shockwave-greedy` plans without a solver. Every policy
has one setting for all traces. CPU s is that of the slowest decision about a round.

## The published trace

120 jobs on 32 GPUs. Left the results that the authors published (NSDI 2023, their simulator), right those of this run.

| policy | makespan | completion | worst | unfair | makespan here | completion here | worst here | unfair here | CPU s |
|---|---|---|---|---|---|---|---|---|---|"""
    jobs = read_adaptive(DATA / "shockwave_120.csv.gz")
    for name in POLICIES:
        (makespan, jct, worst, unfair), slowest = run(jobs, 32, name)
        theirs = PUBLISHED.get(name)
        said = f"{theirs[0]:,} | {theirs[1]:,} | {theirs[2]} | {theirs[3]} %" if theirs else "| | |"
        yield f"| `{name}` | {said} | {makespan:,.0f} | {jct:,.0f} | {worst:.2f} | {unfair:.1f} % | {slowest:.2f} |"
        print(name, file=sys.stderr, flush=True)
    yield f"""
## Drawn traces

`kant share generate` with seeds 0 to {seeds - 1}: models, batch sizes, run times and rates of arrival as in the
published traces of these sizes. Means over the seeds with intervals of 95 %; the worst FTF is that of the worst job,
and *worst of all* that of all seeds.
"""
    for gpus, count, apart in SIZES:
        yield f"### {gpus} GPUs, {count} jobs\n"
        yield "| policy | makespan | completion | worst FTF | worst of all | unfair % | CPU s |"
        yield "|---|---|---|---|---|---|---|"
        drawn = [draw(count, apart, seed) for seed in range(seeds)]
        for name in POLICIES:
            found, cpu = zip(*(run(each, gpus, name) for each in drawn), strict=True)
            makespan, jct, worst, unfair = (list(column) for column in zip(*found, strict=True))
            cells = [interval(makespan, 0), interval(jct, 0), interval(worst, 2), f"{max(worst):.2f}"]
            cells.append(interval(unfair, 1))
            yield f"| `{name}` | {' | '.join(cells)} | {max(cpu):.2f} |"
            print(gpus, name, cells, f"{max(cpu):.2f}", file=sys.stderr, flush=True)
        yield ""


def core() -> Iterator[str]:
    yield """\
## In the core

The published trace on four nodes of eight GPUs by `kant simulate`: profiles of the core, where the discipline
`shockwave` plans without a solver. Jobs take the run time of their profile and do not change their batch size, all
profiles know it, and each preemption under `shockwave` costs 20 s.

| profile | makespan | completion | worst FTF | mean FTF | unfair |
|---|---|---|---|---|---|"""
    jobs = read_workload(DATA / "shockwave_120.csv.gz")
    for name in CORE:
        found = run_profile(jobs, read_cluster("4x8"), builtin_profile(name))
        took = found.jobs.end - found.jobs.submit
        ratios = took / (jobs.runtime * (len(jobs) / 32))
        cells = f"{found.summary['makespan_s']:,.0f} | {took.mean() / SECOND:,.0f} | {ratios.max():.2f}"
        yield f"| `{name}` | {cells} | {ratios.mean():.2f} | {100 * (ratios > 1.05).mean():.1f} % |"


def main() -> None:
    seeds = int(sys.argv[1]) if len(sys.argv) > 1 else SEEDS
    write_part(PAGE, "shockwave", [*page(seeds), *core()])
    print(PAGE.read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
