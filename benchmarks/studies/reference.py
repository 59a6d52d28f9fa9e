"""The three published experiments, ours beside the published numbers: `python -m benchmarks.studies.reference`.

Writes docs/reference.md. Takes about ten minutes of one core; `--quick` runs two seeds of the packing instead of ten.
"""

from __future__ import annotations

import csv
import gzip
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks.data import DATA, PHILLY_NODES
from kant.model.units import DAY
from kant.scheduler.profile import builtin_profile
from kant.sim.run import simulate
from kant.workload.cluster_file import read_cluster
from kant.workload.read import read_workload

PAGE = Path(__file__).parents[2] / "docs" / "reference.md"

# Average JCT, makespan and P99 JCT in seconds of the Muri artifact, SIGCOMM 2022 (SRTF, SRSF, Tiresias-L).
MURI = {
    ("trace1", "srtf"): (1370603.197651, 26045465.532945, 16647148.090740),
    ("trace1", "srsf"): (980140.569929, 26065759.044845, 15529913.227905),
    ("trace1", "tiresias"): (3330371.306772, 23556410.217355, 14739851.505200),
    ("trace3", "srtf"): (193081.796024, 8174135.280030, 4538890.607380),
    ("trace3", "srsf"): (185021.880164, 8174135.280030, 4189699.176840),
    ("trace3", "tiresias"): (347213.248119, 8174226.280030, 4983397.254010),
}

# Sums of queueing seconds of HeliosArtifact's simulator on Philly, per virtual cluster.
HELIOS = {
    "fifo": {
        "0e4a51": 29392772, "103959": 114418809, "6214e9": 16661562, "6c71a0": 13500622, "7f04ca": 13665921,
        "b436b2": 2406753, "e13805": 995, "ed69ec": 1833545, "ee9e8c": 3652396,
    },
    "sjf": {
        "0e4a51": 19510506, "103959": 19684268, "6214e9": 13982285, "6c71a0": 9683373, "7f04ca": 5357410,
        "b436b2": 2078924, "e13805": 995, "ed69ec": 1793796, "ee9e8c": 1709109,
    },
    "srtf": {
        "0e4a51": 11183933, "103959": 12192511, "6214e9": 12154026, "6c71a0": 4733300, "7f04ca": 2298123,
        "b436b2": 1789822, "e13805": 731, "ed69ec": 1605845, "ee9e8c": 1002176,
    },
}  # fmt: skip

PUBLISHED_POLICY = {
    "random": "01-Random", "dotprod": "02-DotProd", "gpu-clustering": "03-GpuClustering",
    "gpu-packing": "04-GpuPacking", "best-fit": "05-BestFit", "fgd": "06-FGD",
}  # fmt: skip
PACKING_WORKLOADS = ("default", "cpu050", "gpushare40", "multigpu20")


def muri() -> Iterator[str]:
    yield "## Muri and Tiresias on 64 GPUs\n"
    yield "Average JCT, makespan and P99 JCT in seconds; the last column is the largest difference.\n"
    yield "| trace | profile | average JCT | makespan | P99 JCT | published average JCT | largest difference |"
    yield "|---|---|---|---|---|---|---|"
    for (trace, policy), published in MURI.items():
        workload = read_workload(DATA / "muri_traces_1_3.csv.gz", format="muri", slice=trace)
        summary = simulate(workload, read_cluster("8x8"), builtin_profile(f"muri-{policy}")).summary
        ours = (summary["jct_s"]["mean"], summary["makespan_s"], summary["jct_s"]["p99"])
        worst = max(abs(a - b) for a, b in zip(ours, published, strict=True))
        yield (
            f"| {trace} | `muri-{policy}` | {ours[0]:.6f} | {ours[1]:.6f} | {ours[2]:.6f} | {published[0]:.6f} "
            f"| {worst:.1e} s |"
        )


def helios() -> Iterator[str]:
    yield "\n## Helios' simulator on Philly, by virtual cluster\n"
    yield "Sum of queueing seconds, ours (published in brackets where it differs), and makespan in seconds.\n"
    yield "| virtual cluster | nodes | jobs | FIFO | SJF | SRTF | SRTF preemptions | SRTF makespan |"
    yield "|---|---|---|---|---|---|---|---|"
    for name in HELIOS["fifo"]:
        cluster = read_cluster(f"{PHILLY_NODES[name]}x8")
        window = (27 * DAY, 88 * DAY)
        workload = read_workload(DATA / "philly_jobs.csv.gz", format="philly", slice=name, window=window)
        cells = []
        for policy in ("fifo", "sjf", "srtf"):
            summary = simulate(workload, cluster, builtin_profile(f"helios-{policy}")).summary
            waited, published = summary["wait_s"]["sum"], HELIOS[policy][name]
            cells.append(f"{waited:.0f}" + ("" if waited == published else f" ({published})"))
        cells += [str(summary["preemptions"]), f"{summary['makespan_s']:.0f}"]
        yield f"| {name} | {PHILLY_NODES[name]} | {summary['jobs'] - summary['rejected']} | {' | '.join(cells)} |"


def packing(seeds: int) -> Iterator[str]:
    yield "\n## FGD's static packing of the openb pods\n"
    yield (
        f"Mean of seeds 42 to {41 + seeds} on 1,213 nodes with 6,212 GPUs: allocated and fragmented share of all GPU "
        "capacity (%) when so much demand has arrived; ours / published.\n"
    )
    columns = "alloc @ 90 | alloc @ 100 | alloc @ 130 | frag @ 60 | frag @ 100"
    yield f"| workload | profile | {columns} | largest difference |"
    yield "|---|---|---|---|---|---|---|---|"
    published = published_packing()
    cluster = read_cluster(str(DATA / "openb_nodes.csv.gz"))
    for name in PACKING_WORKLOADS:
        workload = read_workload(DATA / "openb_pods.csv.gz", format="openb", slice=name)
        for policy in PUBLISHED_POLICY:
            profile = builtin_profile(f"openb-{policy}")
            runs = [simulate(workload, cluster, profile, seed=42 + i).summary for i in range(seeds)]
            cells, worst = [], 0.0
            for metric, key in (("allo", "allocated_pct"), ("frag", "frag_pct")):
                for percent in (40, 60, 80, 90, 100, 130):
                    ours = float(np.mean([run[key][str(percent)] for run in runs]))
                    theirs = published[metric, name, policy, percent]
                    worst = max(worst, abs(ours - theirs))
                    if percent in ((90, 100, 130) if metric == "allo" else (60, 100)):
                        cells.append(f"{ours:.2f} / {theirs:.2f}")
            yield f"| {name} | `openb-{policy}` | {' | '.join(cells)} | {worst:.2f} points |"


def published_packing() -> dict[tuple[str, str, str, int], float]:
    """Published means by metric, workload, policy and arrived percent."""
    policy_of = {label: policy for policy, label in PUBLISHED_POLICY.items()}
    result = {}
    with gzip.open(DATA / "fgd_expected_results.csv.gz", "rt", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            workload = row["workload"].removeprefix("openb_pod_list_")
            if row["sc_policy"] in policy_of:
                for percent in (40, 60, 80, 90, 100, 130):
                    key = (row["metric"], workload, policy_of[row["sc_policy"]], percent)
                    result[key] = float(row[str(percent)])
    return result


def main() -> None:
    seeds = 2 if "--quick" in sys.argv else 10
    lines = [
        "# Three published experiments, reproduced\n",
        "Made by `python -m benchmarks.studies.reference`. The rules of each experiment are options of its profile "
        "(`kant profiles show NAME`); the core is the one that runs everything else.\n",
    ]
    for part in (muri(), helios(), packing(seeds)):
        for line in part:
            print(line, flush=True)
            lines.append(line)
    PAGE.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
