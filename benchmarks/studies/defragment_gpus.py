"""What it is worth to move jobs together: `python -m benchmarks.studies.defragment_gpus`.

A week of jobs on 2,048 GPUs under E-Binpack, without `[defragment]` and with it, over seeds. Writes
docs/studies/defragment-gpus.md. With a number of days it prints the page instead.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np

from benchmarks.studies.parts import write_part
from benchmarks.studies.sharing import Estimate, estimate
from kant.metrics.result import RunResult
from kant.model.units import DAY, GPU, HOUR
from kant.scheduler.profile import parse_profile
from kant.sim.run import RunHooks, simulate
from kant.workload.cluster_file import read_cluster
from kant.workload.generate import ROWS, generate
from kant.workload.workload import Workload

NODES, DAYS, WARM = 256, 7.0, 1.0
ROW_NAMES = ("seren", "helios-venus")
LOAD, SERVICES, LARGE = 0.9, 0.2, 64
SEEDS = (1, 2, 3, 4, 5)
CHECKPOINT_S, RESTART_S = 1800, 60
BASE = f"""
[order]
policy = "fifo"

[discipline]
policy = "best-effort"

[placement]
policy = "e-binpack"

[simulation]
checkpoint_s = {CHECKPOINT_S}
resume_cost = [[100000, {RESTART_S}]]
"""
DEFRAGMENT = f"""
[defragment]
restart_s = {RESTART_S}
"""
TIGHT = f"""
[defragment]
restart_s = {RESTART_S}
every_s = 60
moves = 32
horizon_h = 24
floor = 1.0
"""
CASES = {"none": "", "defaults": DEFRAGMENT, "tight": TIGHT, "tight, services stay": TIGHT}
PAGE = Path(__file__).parents[2] / "docs" / "studies" / "defragment-gpus.md"

Outcome = dict[str, float]
Key = tuple[str, str, int]


def workload(row: str, seed: int, days: float, all_move: bool) -> Workload:
    """Jobs after a row, with services beside them, that offer LOAD in the window."""
    name = f"{row}-{NODES}"
    ROWS[name] = replace(ROWS[row], sizes=tuple(size for size in ROWS[row].sizes if size.gpus <= NODES))
    asked = LOAD
    try:
        while True:
            jobs = generate(name, gpus=8 * NODES, load=asked, days=days, services=SERVICES, seed=seed)
            within = np.minimum(jobs.runtime, np.maximum(days * DAY - jobs.submit, 0))
            missing = LOAD - float((jobs.total_gpus * within).sum() / (8 * NODES * days * DAY))
            if missing <= 0:
                break
            asked += max(missing / 2, 0.02)
    finally:
        del ROWS[name]
    return replace(jobs, preemptible=np.ones_like(jobs.preemptible)) if all_move else jobs


def outcome(result: RunResult, days: float, cpu_s: float) -> Outcome:
    """What a run came to after the warm-up."""
    first, last = round(WARM * DAY), round(days * DAY)
    series, jobs = result.series, result.jobs
    spans = np.diff(np.append(series.time, last).clip(first, last))
    gpus = jobs.gpus / GPU
    counted = jobs.submit >= first
    waits = jobs.wait / HOUR

    def mean(chosen: np.ndarray) -> float:
        return float(waits[chosen & counted].mean())

    large = counted & (gpus >= LARGE)
    return {
        "gfr": 100 * float((series.fragmented / series.nodes * spans).sum() / spans.sum()),
        "gar": 100 * float((series.allocated / series.in_service * spans).sum() / spans.sum()),
        "large": mean(gpus >= LARGE),
        "large_p90": float(np.quantile(waits[large], 0.9)),
        "small": mean(gpus < 8) * 60,
        "waited": float((waits * gpus)[counted].sum()),
        "lost": float(result.summary["lost_gpu_s"]) / 3600,
        "jobs": float(len(gpus)),
        "cpu": cpu_s,
    }


def run_one(task: tuple[str, str, int, float]) -> tuple[Key, Outcome]:
    """One run."""
    row, case, seed, days = task
    jobs = workload(row, seed, days, "stay" not in case)
    began, moves = time.process_time(), 0

    def count(line: bytes) -> None:
        nonlocal moves
        moves += line.count(b'"why":"defragment"')

    result = simulate(
        jobs, read_cluster(f"{NODES}x8"), parse_profile(BASE + CASES[case], case), seed=seed,
        until=round(days * DAY), hooks=RunHooks(journal=count),
    )  # fmt: skip
    found = outcome(result, days, time.process_time() - began)
    return (row, case, seed), found | {"moves": moves / days}


def run_all(days: float) -> dict[Key, Outcome]:
    """All runs, one after the other."""
    tasks = [(*key, days) for key in product(ROW_NAMES, CASES, SEEDS)]
    with ProcessPoolExecutor() as pool:
        return dict(pool.map(run_one, tasks))


def of(found: dict[Key, Outcome], row: str, case: str, key: str) -> Estimate:
    """A number of one case, over the seeds."""
    return estimate([found[row, case, seed][key] for seed in SEEDS])


def over(found: dict[Key, Outcome], row: str, case: str, key: str) -> Estimate:
    """The same over that without moves, in pairs of one seed."""
    return estimate([found[row, case, seed][key] / found[row, "none", seed][key] for seed in SEEDS])


def repaid(found: dict[Key, Outcome], row: str, case: str, days: float) -> tuple[Estimate, Estimate]:
    """GPU-hours by which jobs wait less, and by which more GPUs are allocated, for each GPU-hour lost by moves."""
    hours = 8 * NODES * (days - WARM) * 24
    pairs = [(found[row, "none", seed], found[row, case, seed]) for seed in SEEDS]
    waited = [(old["waited"] - new["waited"]) / new["lost"] for old, new in pairs]
    allocated = [(new["gar"] - old["gar"]) / 100 * hours / new["lost"] for old, new in pairs]
    return estimate(waited), estimate(allocated)


def show(found: Estimate, places: int = 2) -> str:
    return f"{found.mean:,.{places}f} ± {found.half:,.{places}f}"


COLUMNS = (
    ("GFR %", "gfr", 2),
    ("GAR %", "gar", 2),
    ("mean wait >=64 GPUs, h", "large", 1),
    ("P90", "large_p90", 1),
    ("mean wait <8 GPUs, min", "small", 1),
    ("moves a day", "moves", 0),
    ("GPU-hours lost", "lost", 0),
    ("CPU-s", "cpu", 0),
)


def about(days: float) -> str:
    return f"""\
{8 * NODES:,} GPUs in {NODES} nodes, {days:g} days, the first not counted. {SERVICES:.0%} of all work is that of
inference services of 1 to 8 GPUs, the rest is drawn from the rows `seren` and `helios-venus`. The load is {LOAD:.0%}:
the GPU time that the jobs would take within the window if each started at once, relative to that of the cluster.
Best-effort FIFO with E-Binpack; only [`[defragment]`](../profiles.md#defragment) differs. A job that moves loses its
work since its last checkpoint, one every {CHECKPOINT_S // 60} minutes, and {RESTART_S} s for the restart. Seeds
{SEEDS[0]} to {SEEDS[-1]}; intervals are 95 % by Student's t, those of ratios over pairs on the same jobs.

*defaults* moves at most 8 jobs each 10 minutes, where idle nodes were wanted and that pays three times over. *tight*
looks each minute and a day ahead, moves at most 32 jobs, and assumes that idle nodes are always wanted. In these two
services may be moved, like deployments; in the last row their base replicas stay where they are. GFR is the part
of the nodes with some but not all of their GPUs allocated, over time.
"""


def page(found: dict[Key, Outcome], days: float) -> Iterator[str]:
    yield "# What it is worth to move jobs together\n"
    yield "Made by `python -m benchmarks.studies.defragment_gpus`.\n"
    yield about(days)
    for row in ROW_NAMES:
        yield f"## After `{row}`\n"
        yield "| profile | " + " | ".join(label for label, _, _ in COLUMNS) + " |"
        yield "|---|" + "---|" * len(COLUMNS)
        for case in CASES:
            yield f"| {case} | " + " | ".join(show(of(found, row, case, key), n) for _, key, n in COLUMNS) + " |"
        yield ""
    yield "## The bars\n"
    yield "GFR below 1 % (Kant, arXiv 2510.01256), shorter waits of large jobs, lost GPU time repaid three times.\n"
    yield f"| {' | '.join(HEADINGS)} |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for row, case in product(ROW_NAMES, list(CASES)[1:]):
        gfr, wait = of(found, row, case, "gfr"), over(found, row, case, "large")
        waited, allocated = repaid(found, row, case, days)
        verdicts = (
            judged(gfr.mean, gfr.mean + gfr.half, 1.0), judged(wait.mean, wait.mean + wait.half, 1.0),
            judged(-waited.mean, -waited.mean + waited.half, -3.0),
        )  # fmt: skip
        yield (
            f"| `{row}` | {case} | {show(gfr)} | {verdicts[0]} | {show(wait)} | {verdicts[1]} "
            f"| {show(waited, 0)} | {verdicts[2]} | {show(allocated, 1)} |"
        )
    yield "\n## Why\n"
    yield WHY


HEADINGS = (
    "workload", "profile", "GFR %", "verdict", f"mean wait of jobs of {LARGE} GPUs and more / without", "verdict",
    "GPU-hours waited less, for each lost", "verdict", "GPU-hours allocated more, for each lost",
)  # fmt: skip


def judged(mean: float, worst: float, bar: float) -> str:
    """Whether something is below a bar."""
    if mean > bar:
        return "missed"
    return "met" if worst <= bar else "met by the mean, not by the whole interval"


WHY = """\
Nodes stay partly used because of jobs of fewer than eight GPUs that outlive their neighbours. Few have to move: a node
that is to be emptied holds one or two, and there are gaps that they fill exactly. A large job waits for many idle nodes
at once, and others wait behind it; so an hour for which a node is idle sooner is counted many times over in the
waits. In the allocation it counts once: the last column says how many more GPU-hours were allocated for each that
was lost, repeated work included. Waits of the few largest jobs differ much between seeds, and so
intervals are wide. Small jobs wait some minutes longer: fewer gaps are left for them, and large jobs take the idle
nodes first.
"""


def main() -> None:
    days = float(sys.argv[1]) if len(sys.argv) > 1 else DAYS
    text = "\n".join(page(run_all(days), days)) + "\n"
    if days != DAYS:
        print(text)
        return
    write_part(PAGE, "defragment_gpus", [text])


if __name__ == "__main__":
    main()
