"""What the topology gives gangs of 8 to 2,048 GPUs: `python -m benchmarks.studies.topology [SEEDS]`.

On a regular and on a real, ragged fabric. Writes docs/studies/topology.md and its plot.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.data import DATA
from benchmarks.studies.sharing import STUDENT, Estimate, bars
from kant.model.node import ClusterSpec, Node
from kant.model.units import DAY, HOUR, SECOND
from kant.scheduler.profile import parse_profile
from kant.sim.run import simulate
from kant.workload.cluster_file import read_cluster
from kant.workload.workload import Workload, make_workload

DAYS, LOAD, MEAN_HOURS, SPREAD = 4, 0.9, 3.0, 1.0
SHARES = {1: 3, 2: 3, 4: 4, 8: 10, 16: 10, 32: 10, 64: 10, 128: 10, 256: 10, 512: 10, 1024: 10, 2048: 10}
"""Percent of the GPU time that jobs of so many GPUs ask for."""

FABRICS = ("regular", "lingjun")
CLASSES = ("2-8", "9-64", "65-256", "257-1024", ">1024")
POLICIES = ("consolidated", "e-binpack", "kant")
BLIND = "consolidated"
PROFILE = """
order = {{ policy = "fifo" }}
discipline = {{ policy = "backfill" }}
placement = {{ policy = "{policy}" }}
"""
PAGE = Path(__file__).parents[2] / "docs" / "studies" / "topology.md"

Key = tuple[str, str, int]
Found = dict[str, dict[str, float]]


def fabric(name: str) -> ClusterSpec:
    """1,024 nodes under a regular fabric, or the 847 hosts of the Lingjun file."""
    if name == "lingjun":
        return read_cluster(str(DATA / "lingjun2023_topo.csv.gz"))
    return ClusterSpec(
        "regular",
        tuple(
            Node(f"n{i}", 8, leaf=f"leaf-{i // 16}", spine=f"spine-{i // 256}", superspine=f"superspine-{i // 512}")
            for i in range(1024)
        ),
    )


def workload(gpus: int, seed: int) -> Workload:
    """Jobs at random times, as many of each size as ask for its share of the GPU time; run times are log-normal."""
    rng = np.random.default_rng(seed)
    sizes: list[int] = []
    times: list[float] = []
    for size, share in SHARES.items():
        left = gpus * LOAD * DAYS * 24 * share / sum(SHARES.values())
        while left > 0:
            hours = float(np.clip(rng.lognormal(math.log(MEAN_HOURS) - SPREAD**2 / 2, SPREAD), 0.05, 24))
            if left < size * hours and rng.random() > left / (size * hours):
                break
            left -= size * hours
            sizes.append(size)
            times.append(hours)
    submit = np.sort(rng.uniform(0, DAYS * DAY, len(sizes))).astype(np.int64)
    order = rng.permutation(len(sizes))
    runtime = np.array([max(int(hours * HOUR) // SECOND, 1) * SECOND for hours in times], dtype=np.int64)[order]
    return make_workload("ladder", submit - submit[0], runtime, np.array(sizes, dtype=np.int64)[order])


def run_one(task: Key) -> tuple[Key, Found]:
    """One run, cut at the end of the window: the metric by size class, and what it means for the cluster."""
    name, policy, seed = task
    cluster = fabric(name)
    profile = parse_profile(PROFILE.format(policy=policy), policy)
    result = simulate(workload(cluster.gpus, seed), cluster, profile, seed=seed, until=round(DAYS * DAY))
    summary = result.summary
    found: Found = dict(summary["jtted"]["by_size"])
    found["cluster"] = {
        "sor": 100 * summary["sor"], "gfr": 100 * summary["gfr"]["mean"], "wait": summary["wait_s"]["mean"] / 3600,
        "cpu": summary["cpu_s"],
    }  # fmt: skip
    return task, found


def interval(values: list[float]) -> Estimate:
    sample = np.array([value for value in values if not math.isnan(value)])
    if len(sample) < 3:
        return Estimate(float(sample.mean()) if len(sample) else math.nan, math.nan)
    return Estimate(float(sample.mean()), STUDENT[len(sample) - 1] * float(sample.std(ddof=1)) / math.sqrt(len(sample)))


def shown(found: Estimate, digits: int = 3) -> str:
    if math.isnan(found.mean):
        return "-"
    return f"{found.mean:.{digits}f}" + ("" if math.isnan(found.half) else f" ± {found.half:.{digits}f}")


class Results:
    """What was found, by fabric, policy and seed."""

    def __init__(self, outcomes: dict[Key, Found], seeds: tuple[int, ...]) -> None:
        self.outcomes = outcomes
        self.seeds = seeds

    def values(self, fabric: str, policy: str, part: str, key: str) -> list[float]:
        return [self.outcomes[fabric, policy, seed].get(part, {}).get(key, math.nan) for seed in self.seeds]

    def of(self, *where: str) -> Estimate:
        return interval(self.values(*where))  # type: ignore[arg-type]

    def ratio_of(self, fabric: str, key: str, policy: str, part: str) -> Estimate:
        return self.of(fabric, policy, part, key)

    def over_blind(self, fabric: str, policy: str, part: str) -> Estimate:
        """JTTED - 1, over that of the policy that knows nodes alone, on the same workload."""
        pairs = zip(self.values(fabric, policy, part, "mean"), self.values(fabric, BLIND, part, "mean"), strict=True)
        return interval([(a - 1) / (b - 1) if b > 1 else math.nan for a, b in pairs])


def by_class(policies: tuple[str, ...], cell: Callable[[str, str], Estimate]) -> Iterator[str]:
    """A table with a line for each policy and a column for each size class."""
    yield "| placement | " + " | ".join(CLASSES) + " |"
    yield "|---|" + "---|" * len(CLASSES)
    for policy in policies:
        yield f"| `{policy}` | " + " | ".join(shown(cell(policy, part), 2) for part in CLASSES) + " |"


def page(results: Results) -> Iterator[str]:
    yield "# What the topology gives to gangs\n"
    yield "Made by `python -m benchmarks.studies.topology`.\n"
    yield f"""\
Jobs of 1 to 2,048 GPUs come at random for {DAYS} days and ask for {LOAD:.0%} of the GPU time, a tenth of it by each
size from 8 on. Run times are log-normal with a mean of {MEAN_HOURS:g} hours. Every profile is first come, first served
with Kant's backfill, and no job asks for a level: only the placement differs. The regular fabric has 1,024 nodes of
eight GPUs, 16 to a leaf, 16 leaves to a spine, 2 spines to a superspine; the ragged one is that of the Lingjun file
(847 hosts, leaves of 2 to 8). Runs are cut at the end of the window. Seeds {results.seeds[0]} to {results.seeds[-1]};
intervals are 95 % by Student's t.

`{BLIND}` is E-Binpack that knows nodes and no fabric: gangs on the fewest nodes, the fullest that fit.
[JTTED](../metrics.md) is the expected run time over that at the best place, by the communication model's defaults.
"""
    for name in FABRICS:
        yield f"## The {name} fabric\n"
        yield "| placement | " + " | ".join(f"JTTED {part}" for part in CLASSES) + " | SOR % | GFR % | mean wait, h |"
        yield "|---|" + "---|" * (len(CLASSES) + 3)
        for policy in POLICIES:
            parts = [shown(results.of(name, policy, part, "mean")) for part in CLASSES]
            parts += [shown(results.of(name, policy, "cluster", key), 1) for key in ("sor", "gfr", "wait")]
            yield f"| `{policy}` | " + " | ".join(parts) + " |"
        for title, key in (("Leaf groups", "leaves_ratio"), ("Nodes", "nodes_ratio")):
            yield f"\n{title} used over the fewest possible:\n"
            yield from by_class(POLICIES, partial(results.ratio_of, name, key))
        yield f"\nTime lost to the place (JTTED - 1) over that of `{BLIND}`, on the same workloads:\n"
        others = tuple(policy for policy in POLICIES if policy != BLIND)
        yield from by_class(others, partial(results.over_blind, name))
        yield ""
    yield "![Time lost to the place, jobs of 65 to 256 GPUs](topology.svg)"


def main() -> None:
    seeds = tuple(range(1, 1 + int(sys.argv[1]))) if len(sys.argv) > 1 else (1, 2, 3, 4, 5)
    tasks = [(name, policy, seed) for seed in seeds for name in FABRICS for policy in POLICIES]
    outcomes: dict[Key, Found] = {}
    with ProcessPoolExecutor(2) as pool:
        for key, found in pool.map(run_one, tasks):
            outcomes[key] = found
            print(*key, {part: round(numbers.get("mean", numbers.get("sor", 0)), 3) for part, numbers in found.items()},
                  round(found["cluster"]["cpu"]), flush=True)  # fmt: skip
    results = Results(outcomes, seeds)
    text = "\n".join(page(results)) + "\n"
    if seeds != (1, 2, 3, 4, 5):
        print(text)
        return
    PAGE.write_text(text, encoding="utf-8")
    found = [
        (f"{policy}, {name}", Estimate(100 * (e.mean - 1), 100 * e.half))
        for name in FABRICS for policy in POLICIES for e in [results.of(name, policy, "65-256", "mean")]
    ]  # fmt: skip
    plot = bars("Run time lost to the place, jobs of 65 to 256 GPUs", found, "%")
    PAGE.with_suffix(".svg").write_text(plot, encoding="utf-8")


if __name__ == "__main__":
    main()
