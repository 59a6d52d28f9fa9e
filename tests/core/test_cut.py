"""A job of which only the total of GPUs is known is cut into pods by the nodes that it may use."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples

from kant.local.submission import groups_of
from kant.model.cut import blocks_for, pods_of
from kant.model.job import PodGroup
from kant.model.node import ClusterSpec, Node
from kant.model.submission import Submission
from kant.model.units import SECOND
from kant.sim.jobs import Gangs
from kant.sim.run import simulate
from kant.testing import make_profile
from kant.workload.workload import make_workload

SIZES = st.lists(st.integers(1, 6), min_size=1, max_size=5)


def fits(pods: list[int], blocks: list[int]) -> bool:
    """Whether the pods find room in empty blocks, by trying every way."""
    if not pods:
        return True
    largest, *rest = pods
    for i, block in enumerate(blocks):
        if block not in blocks[:i] and block >= largest:
            left = [*blocks[:i], block - largest, *blocks[i + 1 :]]
            if fits(rest, left):
                return True
    return False


@given(total=st.integers(1, 14), sizes=SIZES)
@settings(max_examples=examples(200), deadline=None)
def test_a_total_is_cut_so_that_it_fits_wherever_a_block_size_lets_it(total: int, sizes: list[int]) -> None:
    """Against every size and every way to place the pods; the largest size that fits is taken."""
    parts = pods_of(total, Counter(sizes))
    assert sum(count * gpus for count, gpus in parts) == total
    cuts = {width: [width] * (total // width) + [total % width] * (total % width > 0) for width in sizes}
    possible = [width for width in sorted(set(sizes), reverse=True) if fits(cuts[width], sizes)]
    width = possible[0] if possible else max(sizes)
    assert [gpus for count, gpus in parts for _ in range(count)] == cuts[width]


KINDS = [
    Node("h", 8, "H100"),
    Node("q", 6, "A100", queues=("own",)),
    Node("m", 7, "A100", mig="a100-40gb"),
    Node("c", 0),
    Node("small", 5, "A100", cpu=1000, memory=10),
    *(Node(f"a{i}", 4, "A100", cpu=8000, memory=1000, nvlink=2) for i in range(3)),
]
CLUSTER = ClusterSpec("mixed", tuple(KINDS))


def shapes(groups: tuple[PodGroup, ...]) -> list[tuple[int, int]]:
    return [(group.count, group.demand.gpus) for group in groups]


@pytest.mark.parametrize(
    ("models", "queue", "cpu", "memory", "island", "expected"),
    [
        ((), "", 0, 0, 0, [(1, 6)]),
        (("H100",), "", 0, 0, 0, [(1, 6)]),
        (("A100",), "", 0, 0, 0, [(1, 5), (1, 1)]),
        (("A100",), "", 2000, 0, 0, [(1, 4), (1, 2)]),
        (("A100",), "", 0, 20, 0, [(1, 4), (1, 2)]),
        (("A100",), "own", 0, 0, 0, [(1, 6)]),
        (("A100",), "", 2000, 0, 1, [(3, 2)]),
        (("L40",), "", 0, 0, 0, [(1, 6)]),
    ],
)
def test_only_nodes_that_the_job_may_use_count(
    models: tuple[str, ...], queue: str, cpu: int, memory: int, island: int, expected: list[tuple[int, int]]
) -> None:
    """Not those of other GPU models, of other queues, in MIG mode, without GPUs, or with too little CPU or memory."""
    gangs = Gangs(CLUSTER, False)
    assert shapes(gangs.of(0, 6, 1000, cpu, memory, island, "", models, queue=queue)) == expected
    if not models and not island:
        wish = Submission(command=("x",), workdir="/", gpus=6, queue=queue, cpus=cpu / 1000, memory_mib=memory)
        assert shapes(groups_of(wish, CLUSTER.nodes)) == expected


def test_a_large_node_of_another_model_makes_no_job_impossible() -> None:
    """A job of 6 A100s runs on nodes of 4 beside a node of 8 H100s, whatever the queue says."""
    nodes = (Node("h", 8, "H100"), *(Node(f"a{i}", 4, "A100") for i in range(2)))
    for queues in [("default",), ("q",)]:
        jobs = make_workload(
            "one", np.zeros(1, dtype=np.int64), np.full(1, SECOND), np.full(1, 6),
            models=np.ones(1, dtype=np.int64), model_sets=((), ("A100",)), queues=queues,
        )  # fmt: skip
        run = simulate(jobs, ClusterSpec("c", nodes), make_profile())
        assert (run.summary["completed"], run.summary["rejected"]) == (1, 0)


@pytest.mark.parametrize("large", [Node("x", 8, queues=("other",)), Node("x", 8, mig="a100-40gb"), Node("x", 8)])
def test_a_submitted_total_is_cut_by_the_nodes_of_its_queue(large: Node) -> None:
    """Of a node for all queues a total of 12 takes the whole; one node of 8 and two of 4 hold 8 and 4."""
    nodes = (large, Node("a", 4), Node("b", 4), Node("c", 4))
    found = [
        shapes(groups_of(Submission(command=("x",), workdir="/", gpus=gpus, queue="mine"), nodes)) for gpus in (12, 20)
    ]
    assert found == [[(3, 4)] if large.queues or large.mig else [(1, 8), (1, 4)], [(5, 4)]]


def test_islands_are_counted_as_blocks_of_their_own() -> None:
    assert blocks_for(CLUSTER.nodes, ("A100",), island=True) == {5: 1, 2: 6}
    assert blocks_for(CLUSTER.nodes, queue="own") == {8: 1, 6: 1, 5: 1, 4: 3}
