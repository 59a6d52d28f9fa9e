"""What preferences cost the packing: services that would rather not have two replicas on a node, beside other jobs.

Each stream of jobs runs under `kant` with the weights of `[preferences]` and with these at 0. GFR is the share of nodes
that are partly free. Of the others it is the share of nodes with free GPUs on which other jobs run: a node that a
service and others fill together is not broken, one that a service has alone is broken by the service.

`python -m benchmarks preferences` holds the loss of the default profile against its range; as a program of its own it
prints what each weight of `pod_affinity` grants and costs, in three minutes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from benchmarks.measure import Figure
from kant.cluster.columns import FREE, GPUS
from kant.model.event import JobSubmitted
from kant.model.job import Demand, Job, PodGroup
from kant.model.placement import NODE, PODS
from kant.model.preference import LikedPods, Preferences
from kant.model.rules import PodRules
from kant.model.units import SECOND
from kant.placement.preference_weights import PreferenceWeights
from kant.scheduler.profile import builtin_profile
from kant.testing import Harness, make_cluster

NODES, REPLICAS, HOUR = 64, 6, 3600 * SECOND
LOADS = {"full": 150, "busy": 250, "calm": 330}
"""Mean seconds from job to job."""


class Outcome(NamedTuple):
    """Means over time, in percent of all nodes; `spread` is nodes for a service of six replicas."""

    gfr: float
    gfr_of_others: float
    allocated: float
    spread: float


def stream(jobs: int, gap: int, seed: int, together: bool) -> list[JobSubmitted]:
    """Single pods and gangs; each 30th job is a service of six pods with a GPU each.

    They are six jobs, as a Deployment has them, or a gang (`together`).
    """
    draw, now, coming = np.random.default_rng(seed), 0, list[JobSubmitted]()
    for number in range(jobs):
        now += int(draw.exponential(gap)) * SECOND
        run = (int(draw.exponential(6 * 3600)) + 600) * SECOND
        if number % 30 == 0:
            app = f"app{number}"
            likes = (Preferences(pods=(LikedPods(app, -100),)),)
            one = Job("", now, (PodGroup(1, Demand(1)),), rules=(PodRules((app,)),), preferences=likes)
            apart = [replace(one, id=f"{app}-{i}") for i in range(REPLICAS)]
            gang = [replace(one, id=app, groups=(PodGroup(REPLICAS, Demand(1)),))]
            coming += [JobSubmitted(now, job, run) for job in (gang if together else apart)]
        else:
            count, gpus = (
                (int(draw.choice([2, 4])), 8) if draw.integers(10) == 0 else (1, int(draw.choice([1, 2, 4, 8])))
            )
            coming.append(JobSubmitted(now, Job(f"j{number}", now, (PodGroup(count, Demand(gpus)),)), run))
    return coming


def weighing(pod_affinity: int, policy: int = 1) -> PreferenceWeights:
    """Weights that heed nothing but which pods are near."""
    return PreferenceWeights(policy=policy, node_affinity=0, taints=0, pod_affinity=pod_affinity, spread=0)


def outcome(coming: list[JobSubmitted], weights: PreferenceWeights) -> Outcome:
    """One run."""
    profile = dataclasses.replace(builtin_profile("kant"), preferences=weights)
    harness = Harness(make_cluster(*[8] * NODES), profile, check=False)
    times, seen = 0, np.zeros(3)
    spread: list[int] = []
    for at in range(0, coming[-1].time, HOUR // 4):
        harness.run([event for event in coming if at <= event.time < at + HOUR // 4], until=at + HOUR // 4)
        state = harness.state
        names = {row: job.id for row, job in state.live.items()}
        homes: dict[str, list[int]] = {}
        of_others = np.zeros(NODES, dtype=bool)
        for row, held in state.running.items():
            if names[row].startswith("app"):
                nodes = np.repeat(held[:, NODE], held[:, PODS]).tolist()
                homes.setdefault(names[row].split("-")[0], []).extend(nodes)
            else:
                of_others[held[:, NODE]] = True
        spread += [len({*nodes}) for nodes in homes.values() if len(nodes) == REPLICAS]
        free, whole = state.table[:, FREE], state.table[:, GPUS] * 1000
        broken = (free > 0) & (free < whole)
        seen += broken.mean(), (of_others & (free > 0)).mean(), 1 - free.sum() / whole.sum()
        times += 1
    gfr, others, allocated = (100 * seen / times).tolist()
    return Outcome(gfr, others, allocated, float(np.mean(spread)))


def outcomes(
    gap: int, seeds: int, weights: list[PreferenceWeights], together: bool = False
) -> Iterator[tuple[Outcome, Outcome, Outcome]]:
    """For each of the weights the means over all seeds, what they are more than without, and the errors of that."""
    streams = [stream(1500, gap, seed, together) for seed in range(seeds)]
    without = np.array([outcome(coming, weighing(0)) for coming in streams])
    for each in weights:
        found = np.array([outcome(coming, each) for coming in streams])
        more = found - without
        errors = more.std(axis=0, ddof=1) / seeds**0.5
        yield Outcome(*found.mean(axis=0)), Outcome(*more.mean(axis=0)), Outcome(*errors)


def measure() -> Iterator[Figure]:
    for name, gap in LOADS.items():
        for together in (False, True):
            ((found, more, error),) = outcomes(gap, 4, [PreferenceWeights()], together)
            yield Figure(
                f"preferences-{name}{'-gang' * together}", more.gfr_of_others, f"points (+-{error.gfr_of_others:.2f})",
                found.spread / (found.spread - more.spread), "the nodes a service without them",
                f"nodes that replicas must open; of all {more.gfr:.2f} points",
            )  # fmt: skip


def main() -> None:
    curve = [weighing(1, 10), weighing(1, 5), weighing(1, 2), weighing(1), weighing(2), weighing(20)]
    for name, gap in LOADS.items():
        for weights, (found, more, error) in zip(curve, outcomes(gap, 8, curve), strict=True):
            print(
                f"{name}, {found.allocated:.1f} % allocated, policy {weights.policy}, pod_affinity "
                f"{weights.pod_affinity}: {found.spread:.2f} nodes a service ({more.spread:+.2f}), GFR {found.gfr:.2f} "
                f"% ({more.gfr:+.2f}), of others {found.gfr_of_others:.2f} % ({more.gfr_of_others:+.2f} "
                f"+-{error.gfr_of_others:.2f})",
                flush=True,
            )


if __name__ == "__main__":
    main()
