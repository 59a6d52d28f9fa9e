"""What preferences cost the packing: services that would rather not have two replicas on a node, beside other jobs.

The same stream of jobs runs under `kant` as it is, and with its `[preferences]` at 0. It is a program of its own, which
shows for both how many nodes a service of six replicas stands on, and GFR over time: with all jobs, and with the others
alone, as if the GPUs of services were free.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from kant.cluster.columns import FREE, GPUS
from kant.model.event import JobSubmitted
from kant.model.job import Demand, Job, PodGroup
from kant.model.placement import MASK, NODE
from kant.model.preference import LikedPods, Preferences
from kant.model.rules import PodRules
from kant.model.units import SECOND
from kant.placement.preference_scores import PreferenceWeights
from kant.scheduler.profile import builtin_profile
from kant.testing import Harness, make_cluster

NODES, REPLICAS, HOUR = 64, 6, 3600 * SECOND
NOTHING = PreferenceWeights(policy=1, node_affinity=0, taints=0, pod_affinity=0, spread=0)


class Outcome(NamedTuple):
    """Means over time, in percent of all nodes; `spread` is nodes for a service of six replicas."""

    gfr: float
    gfr_of_others: float
    allocated: float
    spread: float


def stream(jobs: int, gap: int, seed: int = 0) -> list[JobSubmitted]:
    """Single pods and gangs; each 30th job is a service of six pods with a GPU each, as a Deployment has them."""
    draw, now, coming = np.random.default_rng(seed), 0, list[JobSubmitted]()
    for number in range(jobs):
        now += int(draw.exponential(gap)) * SECOND
        run = (int(draw.exponential(6 * 3600)) + 600) * SECOND
        if number % 30 == 0:
            app = f"app{number}"
            likes = (Preferences(pods=(LikedPods(app, -100),)),)
            one = Job("", now, (PodGroup(1, Demand(1)),), rules=(PodRules((app,)),), preferences=likes)
            pods = (replace(one, id=f"{app}-{i}") for i in range(REPLICAS))
            coming += [JobSubmitted(now, pod, run) for pod in pods]
        else:
            count, gpus = (
                (int(draw.choice([2, 4])), 8) if draw.integers(10) == 0 else (1, int(draw.choice([1, 2, 4, 8])))
            )
            coming.append(JobSubmitted(now, Job(f"j{number}", now, (PodGroup(count, Demand(gpus)),)), run))
    return coming


def outcome(coming: list[JobSubmitted], heeded: bool) -> Outcome:
    """One run."""
    profile = builtin_profile("kant")
    if not heeded:
        profile = dataclasses.replace(profile, preferences=NOTHING)
    harness = Harness(make_cluster(*[8] * NODES), profile, check=False)
    times, seen = 0, np.zeros(3)
    spread: list[int] = []
    for at in range(0, coming[-1].time, HOUR // 4):
        harness.run([event for event in coming if at <= event.time < at + HOUR // 4], until=at + HOUR // 4)
        state = harness.state
        names = {row: job.id for row, job in state.live.items()}
        homes: dict[str, list[int]] = {}
        others = np.zeros(NODES, dtype=np.int64)
        for row, held in state.running.items():
            if names[row].startswith("app"):
                homes.setdefault(names[row].split("-")[0], []).append(int(held[0, NODE]))
            else:
                np.add.at(others, held[:, NODE], [mask.bit_count() for mask in held[:, MASK].tolist()])
        spread += [len({*nodes}) for nodes in homes.values() if len(nodes) == REPLICAS]
        free, whole = state.table[:, FREE], state.table[:, GPUS] * 1000
        broken, of_others = (free > 0) & (free < whole), (others > 0) & (others < 8)
        seen += broken.sum() / NODES, of_others.sum() / NODES, 1 - free.sum() / whole.sum()
        times += 1
    gfr, others, allocated = (100 * seen / times).tolist()
    return Outcome(gfr, others, allocated, float(np.mean(spread)))


def main() -> None:
    for gap in (150, 250, 330):
        coming = stream(1500, gap)
        for name, heeded in (("kant", True), ("kant without preferences", False)):
            found = outcome(coming, heeded)
            print(
                f"a job each {gap} s, {name}: {found.spread:.2f} nodes a service, GFR {found.gfr:.2f} %, "
                f"of others {found.gfr_of_others:.2f} %, {found.allocated:.1f} % allocated"
            )


if __name__ == "__main__":
    main()
