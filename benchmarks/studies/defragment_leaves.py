"""Whether it pays to empty leaves, too: `python -m benchmarks.studies.defragment_leaves`.

Writes docs/studies/defragment-gpus.md. About five minutes of one core. The weeks are those of
benchmarks/studies/defragment_gpus.py, but gangs of up to a leaf require one.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.studies.defragment_gain import SETTINGS, repaid
from benchmarks.studies.defragment_gpus import BASE, DAYS, LOAD, NODES, WARM, Outcome, outcome, workload
from benchmarks.studies.parts import write_part
from benchmarks.studies.sharing import estimate, ratio
from kant.model.job import LEVELS
from kant.model.units import DAY, GPU, HOUR
from kant.scheduler.profile import parse_profile
from kant.sim.run import RunHooks, simulate
from kant.workload.cluster_file import regular_cluster
from kant.workload.cluster_toml import FabricShape
from kant.workload.workload import Workload

PAGE = Path(__file__).parents[2] / "docs" / "studies" / "defragment-gpus.md"
LEAF, SEEDS = 8, (6, 7, 8)
"""Nodes of a leaf."""

CASES = {"none": "", "nodes": SETTINGS + "leaves = false\n", "nodes and leaves": SETTINGS}
ROW_NAMES = ("seren", "helios-venus")


def in_one_leaf(jobs: Workload) -> Workload:
    """The jobs, of which gangs of up to a leaf require one."""
    inside = (jobs.total_gpus > 8) & (jobs.total_gpus <= 8 * LEAF)
    level = np.where(inside, 1 + LEVELS.index("leaf"), 0)
    return replace(jobs, within=level, within_required=inside.astype(np.int64))


def run_one(row: str, case: str, seed: int) -> Outcome:
    """One run."""
    jobs = in_one_leaf(workload(row, seed, DAYS, all_move=True))
    cluster = regular_cluster(NODES, 8, FabricShape(nodes_per_leaf=LEAF, leaves_per_spine=8))
    began, moves = time.process_time(), 0

    def count(line: bytes) -> None:
        nonlocal moves
        moves += line.count(b'"why":"defragment"')

    profile, until = parse_profile(BASE + CASES[case], case), round(DAYS * DAY)
    result = simulate(jobs, cluster, profile, seed=seed, until=until, hooks=RunHooks(journal=count))
    found = outcome(result, DAYS, time.process_time() - began)
    gpus, counted = result.jobs.gpus / GPU, result.jobs.submit >= WARM * DAY
    waits = result.jobs.wait / HOUR
    found["leaf"] = float(waits[counted & (gpus > 4 * LEAF) & (gpus <= 8 * LEAF)].mean())
    found["gang"] = float(waits[counted & (gpus > 8) & (gpus <= 8 * LEAF)].mean())
    print(row, case, seed, {key: round(value, 2) for key, value in found.items()}, f"{moves:,} moves", flush=True)
    return found | {"moves": moves / DAYS}


def main() -> None:
    found = {(row, case): [run_one(row, case, seed) for seed in SEEDS] for row in ROW_NAMES for case in CASES}
    write_part(PAGE, "defragment_leaves", page(found))


COLUMNS = (
    ("GFR %", "gfr"), ("GAR %", "gar"), ("moves a day", "moves"), ("GPU-hours lost", "lost"),
    (f"mean wait {4 * LEAF + 1} to {8 * LEAF} GPUs, h", "leaf"), (f"9 to {8 * LEAF}", "gang"),
    ("64 and more", "large"), ("below 8, min", "small"), ("CPU-s", "cpu"),
)  # fmt: skip


def page(found: dict[tuple[str, str], list[Outcome]]) -> Iterator[str]:
    yield "# Whether it pays to empty leaves, too\n"
    yield "Made by `python -m benchmarks.studies.defragment_leaves`.\n"
    yield (
        f"The weeks of [moves that tidy and pay](#moves-that-tidy-and-pay) with its settings: {8 * NODES:,} GPUs at a "
        f"load of {LOAD:.0%}, seeds {', '.join(map(str, SEEDS))}. Here a leaf has {LEAF} nodes, and gangs of 9 to "
        f"{8 * LEAF} GPUs require one leaf. *Nodes and leaves*: jobs also move to idle nodes of other leaves, as "
        "often as a gang waits for more idle nodes than any leaf has. Intervals are 95 % by Student's t.\n"
    )
    for row in ROW_NAMES:
        yield f"## After `{row}`\n"
        yield "| moves | " + " | ".join(label for label, _ in COLUMNS) + " |"
        yield "|---|" + "---|" * len(COLUMNS)
        for case in CASES:
            cells = [ratio(estimate([one[key] for one in found[row, case]])) for _, key in COLUMNS]
            yield f"| {case} | " + " | ".join(cells) + " |"
        yield ""
        waits = f"mean wait of {4 * LEAF + 1} to {8 * LEAF} GPUs / without | of 64 and more"
        yield f"| moves | GPU-hours allocated more, for each lost | {waits} |\n|---|---|---|---|"
        for case in list(CASES)[1:]:
            pairs = list(zip(found[row, "none"], found[row, case], strict=True))
            numbers = [repaid(*pair) for pair in pairs]
            ratios = [[after[key] / before[key] for before, after in pairs] for key in ("leaf", "large")]
            yield f"| {case} | " + " | ".join(ratio(estimate(one)) for one in (numbers, *ratios)) + " |"
        yield ""
    yield WHY


WHY = """\
## Why

Emptying only nodes does nothing for gangs that require one leaf: nodes become idle wherever that is cheapest, spread
over all leaves. Once leaves are emptied, too, these gangs wait about half as long. Larger ones also wait less, because
fewer gangs are before them. 22 % and 13 % more GPU time is lost, and more is allocated for each hour that is lost.
Fewer than 1 % of the nodes are partly used either way. Few gangs make the means, so intervals are wide; after
`helios-venus` the waits for a leaf are shorter by the whole interval. So `leaves` is on by default; where no gang
requires a leaf it moves no job. Looking at leaves, too, costs about twice the CPU time of nodes alone, or more.
"""

if __name__ == "__main__":
    main()
