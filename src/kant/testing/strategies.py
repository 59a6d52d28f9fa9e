"""Hypothesis strategies: clusters, jobs, workloads and scripts of events.

The only module of Kant that needs Hypothesis, which is not installed with it. Strategies are created once and cached,
because Hypothesis takes longer to create them than to draw from them.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from hypothesis import strategies as st
from msgspec.structs import replace

from kant.model.job import LEVELS, Demand, Job, PodGroup, Role
from kant.model.node import ClusterSpec, Node
from kant.model.units import FOREVER, GPU, SECOND
from kant.testing.drawn import MIGS, MODELS, QUEUES, draw_slices, generator
from kant.workload.workload import Workload, make_workload

FLAVORS = ("on demand", "spot")
SHARES = (50, 200, 333, 500, 700, 999)


def nodes(name: str = "n0") -> st.SearchStrategy[Node]:
    """One node: up to eight GPUs of some model, with or without limits, dedicated to a queue or to none.

    Some have a flavor. Its GPUs may be in NVLink islands, NUMA nodes and under PCIe switches.
    """
    return _nodes().map(lambda node: replace(node, name=name))


@cache
def _nodes() -> st.SearchStrategy[Node]:
    blocks = st.sampled_from((0, 0, 1, 2, 4))
    plain = st.builds(
        Node,
        name=st.just(""),
        gpus=st.sampled_from((8, 4, 2, 1, 0)),
        model=st.sampled_from(MODELS),
        cpu=st.sampled_from((FOREVER, 8_000, 2_000)),
        memory=st.sampled_from((FOREVER, 8_192, 1_024)),
        queues=st.sampled_from(((), (), (), (QUEUES[0],), QUEUES[1:])),
        leaf=st.sampled_from(("", "leaf0", "leaf1")),
        hbd=st.sampled_from(("", "", "hbd0")),
        flavor=st.sampled_from(("", "", FLAVORS[0], FLAVORS[1])),
    )
    return st.builds(_in_blocks, plain, blocks, blocks, blocks, st.sampled_from(("", "", "", *MIGS)))


def _in_blocks(node: Node, nvlink: int, numa: int, nic: int, mig: str) -> Node:
    nvlink, numa, nic = (size if size <= node.gpus else 0 for size in (nvlink, numa, nic))
    return replace(node, nvlink=nvlink, numa=numa, nic=nic, mig=mig if node.gpus else "")


@st.composite
def clusters(draw: st.DrawFn, most: int = 6) -> ClusterSpec:
    """One to `most` nodes."""
    count = draw(st.integers(1, most))
    return ClusterSpec("drawn", tuple(draw(nodes(f"n{i}")) for i in range(count)))


@cache
def demands(shares_of_several: bool = False) -> st.SearchStrategy[Demand]:
    """The request of one pod: whole GPUs, a share of one (or of several), or none."""
    cpu, memory = st.sampled_from((0, 0, 500, 2_000)), st.sampled_from((0, 0, 256, 1_024))
    several = st.integers(1, 3) if shares_of_several else st.just(1)
    island = st.sampled_from((False, False, True))
    return st.one_of(
        st.builds(Demand, st.sampled_from((1, 2, 3, 4, 8)), st.just(GPU), cpu, memory, island),
        st.builds(Demand, several, st.sampled_from(SHARES), cpu, memory, island),
        st.builds(Demand, gpus=st.just(0), milli=st.just(GPU), cpu=st.sampled_from((250, 4_000)), memory=memory),
    )


@cache
def slices() -> st.SearchStrategy[Demand]:
    """A MIG instance of some profile."""
    return st.builds(lambda seed, mig: draw_slices(generator(seed), mig), st.integers(0, 1000), st.sampled_from(MIGS))


@cache
def groups(most: int = 3) -> st.SearchStrategy[tuple[PodGroup, ...]]:
    """A gang: up to `most` groups of up to five pods; occasionally all of them request MIG instances."""
    kinds = (demands(), demands(), demands(), slices())
    gangs = [st.lists(st.builds(PodGroup, st.integers(1, 5), kind), min_size=1, max_size=most) for kind in kinds]
    return st.one_of(*gangs).map(tuple)


@cache
def gangs(most: int = 3) -> st.SearchStrategy[tuple[PodGroup, ...]]:
    """A gang as from `groups`, but sometimes its groups are segmented."""
    cut = st.lists(cut_groups(5), min_size=1, max_size=most).map(tuple)
    return st.one_of(groups(most), groups(most), cut)


@cache
def cut_groups(most: int = 12) -> st.SearchStrategy[PodGroup]:
    """A group of up to `most` pods that is cut into segments of some level, or is a child gang."""
    return st.builds(PodGroup, st.integers(1, most), demands(), st.sampled_from(LEVELS), st.integers(0, 4))


def jobs(name: str, submit: int = 0, most_groups: int = 3) -> st.SearchStrategy[Job]:
    """A job with any queue, priority, GPU models and estimate; some have anti-affinity, affinity or roles."""
    return _jobs(most_groups).map(lambda job: replace(job, id=name, submit=submit))


@cache
def _jobs(most_groups: int) -> st.SearchStrategy[Job]:
    alike = st.one_of(_alone(gangs(most_groups)), _companions(_alone(groups(most_groups))))
    return st.builds(_unlike, alike, st.lists(_roles(), min_size=most_groups, max_size=most_groups)) | alike


def _roles() -> st.SearchStrategy[Role]:
    models, flavors = st.sampled_from(((), MODELS[:1], MODELS[1:])), st.sampled_from(((), ("",), FLAVORS[:1], FLAVORS))
    return st.builds(Role, models, flavors)


def _unlike(job: Job, roles: list[Role]) -> Job:
    """`job` with these roles, if it has several groups."""
    return replace(job, roles=tuple(roles[: len(job.groups)])) if len(job.groups) > 1 else job


@st.composite
def _companions(draw: st.DrawFn, own: st.SearchStrategy[Job]) -> Job:
    group = draw(st.sampled_from(("", "a", "b")))
    apart, near = draw(st.sampled_from(("", *LEVELS))), draw(st.sampled_from(("", *LEVELS)))
    required = draw(st.booleans())
    return replace(draw(own), affinity_group=group, apart=apart, apart_required=required, near=near if group else "")


def _alone(groups: st.SearchStrategy[tuple[PodGroup, ...]]) -> st.SearchStrategy[Job]:
    return st.builds(
        Job,
        id=st.just(""),
        submit=st.just(0),
        groups=groups,
        queue=st.sampled_from(QUEUES),
        priority=st.sampled_from((0, 0, 1, -1)),
        models=st.sampled_from(((), (), MODELS[:1], MODELS[1:])),
        estimate=st.sampled_from((-1, SECOND, 60 * SECOND, 5_000 * SECOND)),
        preemptible=st.sampled_from((True, True, False)),
        preempts=st.sampled_from((True, True, False)),
        node_wait=st.sampled_from((0, 0, 0, 90 * SECOND)),
        within=st.sampled_from(("", "", *LEVELS)),
        within_required=st.booleans(),
        flavors=st.sampled_from(((), (), (), FLAVORS[:1], ("", FLAVORS[1]))),
    )


@st.composite
def workloads(draw: st.DrawFn, most: int = 25, most_gpus: int = 10) -> Workload:
    """Jobs with a total of GPUs each, shaped by the simulator; several may arrive at the same instant."""
    count = draw(st.integers(1, most))

    def column(values: st.SearchStrategy[int]) -> Any:
        return np.array(draw(st.lists(values, min_size=count, max_size=count)), dtype=np.int64)

    submit = np.cumsum(column(st.sampled_from((0, 1, 5, 40)))) * SECOND
    return make_workload(
        "drawn",
        submit - submit[0],
        column(st.integers(1, 200)) * SECOND,
        column(st.integers(1, most_gpus)),
        priority=column(st.sampled_from((0, 0, 0, 2))),
        queue=column(st.integers(0, len(QUEUES) - 1)),
        queues=QUEUES,
    )


Step = tuple[str, int]
"""An event (a method of `Harness`, or `time`), and the index of its target (modulo the number of targets)."""


def scripts(most: int = 40) -> st.SearchStrategy[list[Step]]:
    """Scripts of events: submissions, passing time, ends, evictions, cancellations, node failures."""
    what = st.sampled_from(
        ("submit", "submit", "submit", "time", "finish", "evict", "cancel", "fail", "cordon", "bring_back")
    )
    return st.lists(st.tuples(what, st.integers(0, 1000)), max_size=most)
