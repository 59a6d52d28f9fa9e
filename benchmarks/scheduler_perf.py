"""Kubernetes' own workloads for schedulers (scheduler_perf), for Kant and for kube-scheduler side by side.

`python -m benchmarks.scheduler_perf [--workload NAME …] [--topic NAME] [--rivals NAME,…] [--short] [--waiting]
[--repeats N] [--list]`; `python -m benchmarks scheduler_perf` holds those of RANGED against benchmarks/ranges.toml.
NAME is a test case, for which its first workload without labels is taken ("good for local usage"), or CASE/WORKLOAD.

Every run has a control plane of its own, and rivals take turns. With --waiting the scheduler stands still while the
pods that are measured are created: as fast as it can, and not as fast as they come.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from tests.kube.binaries import NoBinariesError

from benchmarks.kubernetes_rig import Plane
from benchmarks.kubernetes_rivals import SCHEDULER, Rival, kant
from benchmarks.measure import Figure
from benchmarks.scheduler_perf_files import TOPICS, Workload, scaled, workloads
from benchmarks.scheduler_perf_run import Measured, RefusedError, run

LONG = ("--lease-duration", "600", "--renew-deadline", "500")
"""A Lease that outlives the time for which a scheduler stands still."""
PREEMPTING = """name = "preempting"
[order]
policy = "fifo"
[discipline]
policy = "backfill"
[placement]
policy = "kant"
[preemption]
priority = true
min_run_s = 0
"""


def start_kant(plane: Plane) -> None:
    """With the shipped profile."""
    kant(plane, *LONG)


def start_preempting(plane: Plane) -> None:
    """With a profile that preempts at once, as kube-scheduler does; with the shipped one a job runs 5 minutes first."""
    profile = plane.folder / "preempting.toml"
    profile.write_text(PREEMPTING, encoding="utf-8")
    kant(plane, *LONG, profile=str(profile))


KANT = Rival("kant", "kant", start_kant)
RIVALS = (SCHEDULER, KANT)
PODS = ("createPods", "createPodSets")
"""Ops of workloads that have pods; one has none, and measures how fast a scheduler reads devices."""
SMALLER: dict[str, tuple[str, dict[str, int]]] = {
    "PreemptionBasic": ("100Nodes", {"initNodes": 100, "initPods": 400, "measurePods": 100}),
    "PreemptionPVs": ("100Nodes", {"initNodes": 100, "initPods": 400, "measurePods": 100}),
    "SchedulingDaemonset": ("500Nodes", {"initNodes": 500, "measurePods": 1000}),
    "SchedulingWhileGated": ("1Node_500GatedPods", {"gatedPods": 500, "deletingPods": 1000, "measurePods": 1000}),
    "ExtendedResource_25Classes": ("500pods_50nodes", {"nodesWithDRA": 50, "initPods": 250, "measurePods": 250}),
    "SchedulingGatedPodsWithPodAffinityImpactForThroughput": (
        "1Node_500GatedPods",
        {"gatedPods": 500, "measurePods": 1000},
    ),
}
"""Test cases whose files have nothing of a size for one machine, with parameters of our own."""
RANGED = (
    "SchedulingBasic",
    "SchedulingDaemonset",
    "SchedulingWhileGated",
    "PreemptionAsync",
    "SchedulingNodeAffinity",
    "TopologySpreading",
    "SchedulingWithNodeInclusionPolicy",
    "SchedulingCSIPVs",
    "SchedulingWithResourceClaimTemplate/2000pods_100nodes",
    "SchedulingWithResourceClaim/2000pods_100nodes",
)


def chosen(found: list[Workload], short: bool = False) -> list[Workload]:
    """One workload of each test case: of a size for one machine, or with `short` the smallest."""
    made = []
    for case in dict.fromkeys(each.case for each in found):
        of_case = [each for each in found if each.case == case]
        local = next((each for each in of_case if not each.labels), None)
        brief = next((each for each in of_case if "short" in each.labels and "performance" in each.labels), None)
        small = next((each for each in of_case if "short" in each.labels), of_case[0])
        if short:
            made.append(small)
        elif case in SMALLER:
            name, params = SMALLER[case]
            made.append(replace(scaled(small, name, **params), gates={}))
        else:
            made.append(local or brief or small)
    return made


def pick(names: Sequence[str], short: bool = False, topics: tuple[str, ...] = TOPICS) -> list[Workload]:
    """Those named; all test cases where none is. Exits with a sentence for a name that is not there."""
    found = [each for each in workloads(topics) if any(op["opcode"] in PODS for op in each.ops)]
    default = chosen(found, short)
    made = []
    for name in names:
        exact = [each for each in (*default, *found) if name in (each.title, each.case)]
        if not exact:
            sys.exit(f"benchmarks: expected a workload that --list prints, got {name}")
        made.append(exact[0])
    return made if names else default


@dataclass
class Row:
    """A workload, the best run of each rival, and what a rival that did not bind everything said."""

    workload: Workload
    best: dict[str, Measured] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)

    @property
    def ratio(self) -> float | None:
        """Kant's pods a second to those of kube-scheduler."""
        both = [self.best.get(rival.name) for rival in (KANT, SCHEDULER)]
        return both[0].rate / both[1].rate if both[0] is not None and both[1] is not None else None

    def _costs(self, rival: Rival) -> str:
        one = self.best.get(rival.name)
        if one is None:
            return "-"
        return f"{one.cpu_ms(rival.name):.2f} / {one.cpu_ms('kube-apiserver'):.1f} / {one.cpu_ms('etcd'):.1f}"

    def line(self) -> str:
        """As a row of a table in Markdown."""
        rates = (f"{self.best[each.name].rate:,.0f}" if each.name in self.best else "-" for each in (KANT, SCHEDULER))
        costs = (self._costs(each) for each in (KANT, SCHEDULER))
        ratio = "" if self.ratio is None else f"{self.ratio:.1f}"
        busy = ", ".join(f"{one.others:.0%}" for one in self.best.values())
        told = "; ".join(f"{name}: {why}" for name, why in self.refused.items())
        cells = (self.workload.title, *rates, ratio, *costs, busy, told)
        return f"| {' | '.join(cells)} |"


HEAD = (
    "| workload | Kant pods/s | kube-scheduler pods/s | ratio | Kant CPU-ms a pod: own / API server / etcd "
    "| the same of kube-scheduler | used by others | refused |"
)


def rows(
    names: Sequence[str], *, short: bool = False, waiting: bool = False, repeats: int = 1,
    topics: tuple[str, ...] = TOPICS, rivals: Sequence[Rival] = RIVALS,
) -> Iterator[Row]:  # fmt: skip
    """Each workload, by each rival in turns."""
    for workload in pick(names, short, topics):
        row = Row(workload)
        for _ in range(repeats):
            for rival in rivals:
                own = (
                    replace(rival, start=start_preempting) if rival is KANT and "Preemption" in workload.case else rival
                )
                try:
                    found = run(workload, own, waiting=waiting)
                except RefusedError as refused:
                    row.refused[rival.name] = str(refused)
                    continue
                row.best[rival.name] = max(row.best.get(rival.name, found), found, key=lambda each: each.rate)
        yield row


def measure() -> Iterator[Figure]:
    """Pods a second of each workload that has a range, from a backlog, and Kant's ratio to kube-scheduler."""
    for row in rows(RANGED, waiting=True, repeats=2):
        for rival in RIVALS:
            if rival.name in row.best:
                one, ratio = row.best[rival.name], row.ratio if rival is KANT else None
                name = f"perf-{row.workload.case}-{rival.name}"
                yield Figure(name, one.rate, "pods/s", ratio, SCHEDULER.name, notes(row.workload, rival, one))


def notes(workload: Workload, rival: Rival, one: Measured) -> str:
    return (
        f"{workload.name}: {one.pods} pods, created in {one.created:.1f} s; CPU-ms a pod: own "
        f"{one.cpu_ms(rival.name):.2f}, API server {one.cpu_ms('kube-apiserver'):.2f}, etcd {one.cpu_ms('etcd'):.2f}; "
        f"others used {one.others:.0%} of the machine"
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scheduler_perf")
    parser.add_argument(
        "--workload", action="append", default=[], help="a test case, or CASE/WORKLOAD; may be repeated"
    )
    parser.add_argument("--topic", action="append", default=[], choices=TOPICS)
    parser.add_argument("--rivals", default="", help=f"some of {','.join(each.name for each in RIVALS)}")
    parser.add_argument("--short", action="store_true", help="the smallest workload of each: does it run at all")
    parser.add_argument("--waiting", action="store_true", help="the pods are all there before the scheduler goes on")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--list", action="store_true", help="print the workloads and end")
    asked = parser.parse_args()
    topics = tuple(asked.topic) or TOPICS
    names = [name for name in asked.rivals.split(",") if name] or [each.name for each in RIVALS]
    rivals = [each for each in RIVALS if each.name in names]
    if unknown := [name for name in names if name not in {each.name for each in RIVALS}]:
        parser.error(f"expected rivals among {', '.join(each.name for each in RIVALS)}, got {unknown[0]}")
    try:
        if asked.list:
            for each in workloads(topics):
                print(f"{each.topic}: {each.title} {' '.join(sorted(each.labels))}".rstrip())
            return 0
        print(HEAD, "|---" * HEAD.count(" | ") + "|---|", sep="\n", flush=True)
        found = rows(
            asked.workload, short=asked.short, waiting=asked.waiting, repeats=asked.repeats, topics=topics,
            rivals=rivals,
        )  # fmt: skip
        for row in found:
            print(row.line(), flush=True)
        return 0
    except NoBinariesError as missing:
        sys.exit(f"benchmarks: {missing}")


if __name__ == "__main__":
    sys.exit(main())
