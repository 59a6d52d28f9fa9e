"""Clusters and jobs drawn from a seed, for checks that must run without Hypothesis."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from msgspec.structs import replace

from kant.model.event import JobSubmitted
from kant.model.job import LEVELS, Demand, Job, PodGroup
from kant.model.mig import GEOMETRIES
from kant.model.node import ClusterSpec, Node
from kant.model.units import FOREVER, SECOND

MODELS = ("A100", "H800", "L40")
QUEUES = ("batch", "research", "online")
MIGS = ("a100-40gb", "h100-80gb", "a30-24gb")


@dataclass(frozen=True, slots=True)
class Mould:
    """What may occur in drawn jobs: shares of a GPU, gangs of several groups, shares of several devices, and fabric
    levels: for the whole gang, for segments, and to keep pods apart or near.

    `islands`: pods whose GPUs must lie in one NVLink island. `slices`: jobs that request MIG instances.
    """

    shares: bool = True
    groups: int = 3
    shares_of_several: bool = False
    levels: bool = False
    islands: bool = False
    slices: bool = False


def generator(seed: int) -> np.random.Generator:
    """A random generator with this seed."""
    return np.random.Generator(np.random.PCG64(seed))


def draw_cluster(draw: np.random.Generator, largest: int = 10, blocks: bool = False) -> ClusterSpec:
    """Nodes of several sizes and models, with and without limits and dedicated queues; some have no GPUs.

    With `blocks` their GPUs are in NVLink islands, NUMA nodes and under PCIe switches, and some nodes are in MIG mode.
    """
    models = MODELS[: int(draw.integers(1, 4))]
    limited, dedicated = bool(draw.integers(2)), bool(draw.integers(2))
    joined = 2 if dedicated else 0  # nodes of each leaf that are one HBD
    nodes = []
    for i in range(int(draw.integers(1, largest + 1))):
        gpus = int(draw.choice([0, 1, 2, 4, 8, 8, 8]))
        queues = (str(draw.choice(QUEUES)),) if dedicated and draw.integers(4) == 0 else ()
        nodes.append(
            Node(
                f"n{i}",
                gpus,
                str(draw.choice(models)) if gpus else "",
                cpu=int(draw.integers(1, 65)) * 1000 if limited else FOREVER,
                memory=int(draw.integers(1, 257)) * 256 if limited else FOREVER,
                queues=queues,
                leaf=f"leaf{i // 3}",
                spine=f"spine{i // 6}",
                hbd="pair" if i % 3 < joined else "",
            )
        )
    return ClusterSpec("drawn", tuple(draw_blocks(draw, node) for node in nodes) if blocks else tuple(nodes))


def draw_blocks(draw: np.random.Generator, node: Node) -> Node:
    """Return the node with NVLink islands, NUMA nodes and PCIe switches of random sizes, perhaps in MIG mode."""
    sizes = [size for size in (1, 2, 4, 8) if size <= node.gpus]
    nvlink, numa, nic = (int(draw.choice([0, *sizes])) for _ in range(3))
    mig = str(draw.choice(MIGS)) if node.gpus and draw.integers(4) == 0 else ""
    return replace(node, nvlink=nvlink, numa=numa, nic=nic, mig=mig)


def draw_slices(draw: np.random.Generator, mig: str) -> Demand:
    """A MIG instance of some profile of a geometry."""
    geometry = GEOMETRIES[mig]
    profile = geometry.profiles[int(draw.integers(len(geometry.profiles)))]
    return Demand(1, profile.size * geometry.milli, cpu=int(draw.choice([0, 0, 500])), mig=profile.name)


def draw_demand(draw: np.random.Generator, mould: Mould) -> Demand:
    """A demand for whole GPUs, a share of GPUs, or none."""
    cpu, memory = int(draw.choice([0, 0, 500, 4000])), int(draw.choice([0, 0, 256, 4096]))
    kind = int(draw.integers(8))
    if kind == 0:
        return Demand(0, 1000, max(cpu, 250), memory)
    if kind <= 3 and mould.shares:
        devices = int(draw.integers(2, 4)) if mould.shares_of_several and draw.integers(2) else 1
        share = int(draw.choice([50, 200, 333, 500, 700, 999]))
        return Demand(devices, share, cpu, memory, bool(mould.islands and draw.integers(2)))
    gpus = int(draw.choice([1, 1, 2, 3, 4, 8]))
    return Demand(gpus, 1000, cpu, memory, bool(mould.islands and draw.integers(3) == 0))


def draw_job(draw: np.random.Generator, name: str, mould: Mould | None = None, submit: int = 0) -> Job:
    """A job of one or more groups, in any queue, with or without models, priority and estimate."""
    mould = mould or Mould()
    count = int(draw.integers(1, mould.groups + 1)) if draw.integers(3) == 0 else 1
    groups = tuple(PodGroup(int(draw.choice([1, 1, 1, 2, 3, 6])), draw_demand(draw, mould)) for _ in range(count))
    if mould.slices and draw.integers(3) == 0:
        mig = str(draw.choice(MIGS))
        groups = tuple(PodGroup(group.count, draw_slices(draw, mig)) for group in groups)
    models = tuple(str(m) for m in draw.permutation(MODELS)[: int(draw.integers(1, 3))])
    levelled = mould.levels and draw.integers(3) == 0
    affinity: dict[str, Any] = {}
    if mould.levels and draw.integers(4) == 0:
        affinity = {"affinity_group": str(draw.choice(["", "a", "b"])), "apart_required": bool(draw.integers(2))}
        affinity["apart"] = str(draw.choice(["", *LEVELS]))
        affinity["near"] = str(draw.choice(["", *LEVELS])) if affinity["affinity_group"] else ""
    elif mould.levels and draw.integers(3) == 0:
        groups = tuple(_cut(draw, group) for group in groups)
    return Job(
        name,
        submit,
        groups,
        queue=str(draw.choice(QUEUES)),
        priority=int(draw.choice([0, 0, 0, 1, -1])),
        models=models if draw.integers(4) == 0 else (),
        estimate=int(draw.integers(1, 5000)) * SECOND if draw.integers(4) else -1,
        preemptible=bool(draw.integers(5)),
        within=LEVELS[int(draw.integers(len(LEVELS)))] if levelled else "",
        within_required=bool(levelled and draw.integers(2)),
        **affinity,
    )


def _cut(draw: np.random.Generator, group: PodGroup) -> PodGroup:
    """The group in segments, as a child gang, or unchanged."""
    level, segment = LEVELS[int(draw.integers(len(LEVELS)))], int(draw.integers(4))
    return PodGroup(group.count, group.demand, level, segment) if draw.integers(3) else group


def draw_arrivals(
    draw: np.random.Generator, jobs: int, mould: Mould | None = None, gap: int = 300, estimates: str = "any"
) -> list[JobSubmitted]:
    """`jobs` submissions, `gap` seconds apart on average, except for some at the same instant.

    `estimates` is what policies know: `any` (a mixture), `right` (the truth) or `none`.
    """
    coming, now = [], 0
    for i in range(jobs):
        now += int(draw.exponential(gap)) * SECOND * int(draw.integers(3) > 0)
        runtime = int(draw.lognormal(6, 1.2)) * SECOND + 1
        job = draw_job(draw, f"j{i}", mould, now)
        if estimates != "any":
            fields = {name: getattr(job, name) for name in job.__struct_fields__}
            job = Job(**{**fields, "estimate": runtime if estimates == "right" else -1})
        coming.append(JobSubmitted(now, job, runtime))
    return coming
