"""The communication model: collectives by hand, order among placements, and spans against a plain count."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kant.cluster.columns import Table
from kant.cluster.state import ClusterState
from kant.model.fabric import Fabric, Link
from kant.model.node import ClusterSpec, Node
from kant.placement.cost.communication import (
    FULL,
    Communication,
    Spans,
    default_model,
    dense,
    slowdown,
    step_seconds,
)
from kant.placement.cost.slowdown import SPANS_WIDTH, Slowdowns
from kant.sim.run import RunHooks, simulate
from kant.testing import make_group, make_job, make_jobs, make_profile
from kant.testing.drawn import generator
from kant.testing.strategies import workloads
from kant.workload.workload import Workload

US = 1e-6
PLAIN = Fabric()
NODE, NET = 450e9, 50e9


def even(gpus: int, nodes: int, leaves: int = 1, spines: int = 1, superspines: int = 1, hbds: int = 0) -> Spans:
    """Evenly over so many domains of each level; every node is an HBD of its own unless `hbds` says how many."""
    most = tuple(gpus // domains for domains in (nodes, hbds or nodes, leaves, spines, superspines))
    return Spans(gpus, nodes, hbds or nodes, most)  # type: ignore[arg-type]


# --- by hand ---------------------------------------------------------------------------------------------------------
RING = Communication(compute=1.0, data_bytes=9e9)


@pytest.mark.parametrize(
    ("spans", "bandwidth", "steps"),
    [
        (even(8, 1), NODE, 14 * 3.4),  # 2 (p-1) steps of NVLink
        (even(8, 8), NET, 14 * 9.6),  # each step over the network, one port
        (even(8, 2), 4 * NET, 12 * 3.4 + 2 * 9.6),  # four ports in each node
        (even(16, 2), 8 * NET, 28 * 3.4 + 2 * 9.6),
        (even(8, 8, leaves=2), NET / 1.5, 14 * 10.6),  # half has to leave, at half the speed
        (even(8, 8, leaves=4), NET / 1.75, 14 * 10.6),
        (even(8, 8, leaves=2, spines=2), NET / 4, 14 * 11.6),  # half has to leave, at a seventh
        (even(8, 8, 2, 2, 2), NET / 8, 14 * 12.6),
        (even(16, 4, hbds=1), NODE, 30 * 3.4),  # an HBD is NVLink throughout, but no faster than inside its nodes
        (even(16, 4, hbds=2), 8 * NET, 28 * 3.4 + 2 * 9.6),  # eight ports in each HBD
        (even(16, 16, hbds=4, leaves=2), 4 * NET / 1.5, 24 * 3.4 + 6 * 10.6),
    ],
)
def test_a_ring_costs_its_steps_and_its_bytes(spans: Spans, bandwidth: float, steps: float) -> None:
    p = spans.gpus
    expected = 1.0 + 2 * (p - 1) / p * 9e9 / bandwidth + steps * US
    assert step_seconds(RING, PLAIN, spans) == pytest.approx(expected, rel=1e-12)


def test_what_is_hidden_costs_nothing_and_one_gpu_sends_nothing() -> None:
    half = Communication(compute=1.0, data_bytes=9e9, hidden=0.5)
    ring = step_seconds(RING, PLAIN, even(8, 8)) - 1
    assert step_seconds(half, PLAIN, even(8, 8)) == pytest.approx(1 + ring / 2, rel=1e-12)
    assert step_seconds(RING, PLAIN, even(1, 1)) == 1.0


def test_a_layer_stays_in_a_node_if_it_can() -> None:
    """Two all-reduces over eight GPUs: NVLink alone, or four ports of each of two nodes."""
    model = Communication(compute=1.0, tensor=8, tensor_bytes=8e9, tensor_calls=2)
    inside = 1 + 2 * 7 / 8 * 8e9 / NODE + 2 * 14 * 3.4 * US
    assert step_seconds(model, PLAIN, even(16, 2)) == pytest.approx(inside, rel=1e-12)
    assert step_seconds(model, PLAIN, even(16, 2, 2, 2)) == pytest.approx(inside, rel=1e-12)
    split = 1 + 2 * 7 / 8 * 8e9 / (4 * NET) + 2 * (12 * 3.4 + 2 * 9.6) * US
    assert step_seconds(model, PLAIN, even(16, 4, 2)) == pytest.approx(split, rel=1e-12)


def test_stages_pass_on_over_the_widest_level_and_experts_send_to_all() -> None:
    stages = Communication(compute=1.0, pipeline=4, pipeline_bytes=2e9, pipeline_calls=3)
    assert step_seconds(stages, PLAIN, even(4, 1)) == pytest.approx(1 + 2e9 / NODE + 3 * 3.4 * US, rel=1e-12)
    assert step_seconds(stages, PLAIN, even(4, 4)) == pytest.approx(1 + 2e9 / NET + 3 * 9.6 * US, rel=1e-12)
    experts = Communication(compute=1.0, expert=4, expert_bytes=8e9, expert_calls=2)
    apart = 1 + 8e9 * (1 / 4 / NODE + 2 / 4 / NET) + 2 * 9.6 * US
    assert step_seconds(experts, PLAIN, even(4, 2)) == pytest.approx(apart, rel=1e-12)
    assert step_seconds(experts, PLAIN, even(16, 4, 2)) == pytest.approx(1 + 8e9 * 3 / 4 / NODE + 6.8 * US, rel=1e-12)


def test_a_dense_model_by_hand() -> None:
    """8 billion parameters: 6 x 8e9 x 16,384 operations at 4e14 a second, and 16 GB of gradients."""
    small = default_model(8)
    assert (small.compute, small.data_bytes, small.tensor, small.pipeline) == (1.96608, 16e9, 1, 1)
    assert small == default_model(64) and default_model(65).tensor == 8 and default_model(1025).pipeline == 16
    large = dense(405e9, 126, 16_384, 1024, tensor=8, pipeline=16)
    assert large == default_model(16_384)
    assert large.tensor_bytes == 4 * 2 * 126 / 16 * 1024 * 128 * 16_384  # all-reduces x bytes x layers x tokens x width
    assert large.compute == pytest.approx(6.22, abs=0.01)


def test_what_the_defaults_say() -> None:
    """The figures of docs/metrics.md."""
    eight = [slowdown(default_model(8), PLAIN, spans, even(8, 1)) for spans in (even(8, 2), even(8, 8), even(8, 8, 2))]
    assert eight == [1019, 1125, 1195]
    assert slowdown(default_model(64), PLAIN, even(64, 8, 2), even(64, 8)) == 1010
    assert slowdown(default_model(256), PLAIN, even(256, 32, 4), even(256, 32)) == 1013
    assert slowdown(default_model(256), PLAIN, even(256, 64), even(256, 32)) == 1166


# --- order -----------------------------------------------------------------------------------------------------------
def amounts(most: float) -> st.SearchStrategy[float]:
    return st.floats(0, most, allow_nan=False, allow_subnormal=False)


def models() -> st.SearchStrategy[Communication]:
    return st.builds(
        Communication,
        compute=st.floats(0.01, 10),
        data_bytes=amounts(1e11),
        hidden=st.floats(0, 1),
        tensor=st.sampled_from((1, 2, 4, 8, 16)),
        tensor_bytes=amounts(1e11),
        tensor_calls=st.integers(0, 1000),
        pipeline=st.sampled_from((1, 2, 4, 16)),
        pipeline_bytes=amounts(1e10),
        pipeline_calls=st.integers(0, 100),
        expert=st.sampled_from((1, 8, 64)),
        expert_bytes=amounts(1e10),
        expert_calls=st.integers(0, 100),
    )


def fabrics() -> st.SearchStrategy[Fabric]:
    """Any, also where a wider level is the faster."""
    link = st.builds(Link, st.floats(1, 1000), st.floats(0, 50), st.floats(1, 20))
    return st.builds(Fabric, link, link, link, link, link, link)


@st.composite
def better_and_worse(draw: st.DrawFn) -> tuple[Spans, Spans]:
    """Two placements of one gang: the second on as many nodes or more, and at each level as scattered or more."""
    gpus = draw(st.sampled_from((2, 3, 8, 12, 16, 64, 100)))
    few = draw(st.integers(1, gpus))
    many = draw(st.integers(few, gpus))
    hbds = draw(st.integers(1, few))
    wide, narrow = (sorted(draw(st.lists(st.integers(1, gpus), min_size=5, max_size=5))) for _ in range(2))
    good = tuple(max(pair) for pair in zip(wide, narrow, strict=True))
    bad = tuple(min(pair) for pair in zip(wide, narrow, strict=True))
    return Spans(gpus, few, hbds, good), Spans(gpus, many, draw(st.integers(hbds, many)), bad)  # type: ignore[arg-type]


@given(models(), fabrics(), better_and_worse())
def test_a_placement_that_spans_more_is_never_faster(
    model: Communication, fabric: Fabric, pair: tuple[Spans, Spans]
) -> None:
    good, bad = pair
    assert step_seconds(model, fabric, bad) >= step_seconds(model, fabric, good) * (1 - 1e-12)
    assert slowdown(model, fabric, bad, good) >= FULL


@given(models(), fabrics(), better_and_worse())
def test_at_the_best_placement_nothing_is_lost(model: Communication, fabric: Fabric, pair: tuple[Spans, Spans]) -> None:
    assert slowdown(model, fabric, pair[0], pair[0]) == FULL
    assert slowdown(model, fabric, pair[0], pair[1]) == FULL  # better than what was taken for the best


# --- spans -----------------------------------------------------------------------------------------------------------
def fabric_of(order: list[int], names: str = "{}") -> ClusterSpec:
    """Sixteen nodes of 4 GPUs, two to a leaf, two leaves to a spine, two spines to a superspine, in some order.

    The nodes of every second leaf are one HBD.
    """
    return ClusterSpec(
        "fabric",
        tuple(
            Node(
                names.format(f"n{i}"), 4, leaf=names.format(i // 2), spine=names.format(i // 4),
                superspine=names.format(i // 8), hbd="rack" if i % 4 >= 2 else "",
            )
            for i in order
        ),
    )  # fmt: skip


def spans_of(state: ClusterState, pieces: list[tuple[int, int, int]]) -> Table:
    """Of a gang with pieces (node, pods, tag)."""
    rows = np.array([(node, pods, 0, 0, 0, 0, tag) for node, pods, tag in pieces], dtype=np.int64)
    return Slowdowns(state).spans(rows)


def hbd_of(node: int) -> int:
    """The first node of the HBD of a node in `fabric_of`."""
    return node - node % 2 if node % 4 >= 2 else node


PIECES = st.lists(st.tuples(st.integers(0, 15), st.integers(1, 3), st.integers(-1, 4)), min_size=1, max_size=8)


@given(PIECES)
def test_spans_are_a_plain_count(pieces: list[tuple[int, int, int]]) -> None:
    found = spans_of(ClusterState(fabric_of(list(range(16)))), pieces).tolist()
    largest = []
    for domain_of in (lambda i: i, hbd_of, lambda i: i // 2, lambda i: i // 4, lambda i: i // 8):
        held: Counter[int] = Counter()
        for node, pods, tag in pieces:
            held[domain_of(node)] += pods * max(tag, 1) if tag >= 0 else 0
        largest.append(max(held.values()))
    working = {node for node, _, tag in pieces if tag >= 0}
    hbds = {hbd_of(node) for node in working}
    nodes, leaves = {node for node, _, _ in pieces}, {node // 2 for node, _, _ in pieces}
    gpus = sum(pods * max(tag, 1) for _, pods, tag in pieces if tag >= 0)
    assert found == [len(nodes), len(leaves), gpus, len(working), len(hbds), *largest]


@given(PIECES, st.permutations(range(16)))
def test_neither_names_nor_the_order_of_nodes_matter(pieces: list[tuple[int, int, int]], order: list[int]) -> None:
    state, other = ClusterState(fabric_of(list(range(16)))), ClusterState(fabric_of(order, "x-{}"))
    moved = [(order.index(node), pods, tag) for node, pods, tag in pieces]
    here, there = spans_of(state, pieces), spans_of(other, moved)
    assert here.tolist() == there.tolist()
    job = make_job("j", groups=[make_group(2, 5), make_group(1, 3)])
    shape, again = state.shapes.of(job).index, other.shapes.of(job).index
    assert Slowdowns(state).best(shape).tolist() == Slowdowns(other).best(again).tolist()


def test_the_best_that_a_gang_could_have() -> None:
    state = ClusterState(fabric_of(list(range(16))))
    model = Slowdowns(state)

    def best(**fields: Any) -> list[int]:
        return model.best(state.shapes.of(make_job("j", **fields)).index).tolist()  # type: ignore[no-any-return]

    assert best(gpus=4, pods=2) == [2, 1, 8, 2, 1, 4, 8, 8, 8, 8]
    assert best(gpus=4, pods=3) == [3, 2, 12, 3, 2, 4, 8, 8, 12, 12]
    assert best(gpus=1, pods=6) == [2, 1, 6, 2, 1, 4, 6, 6, 6, 6]
    assert best(gpus=3, pods=2) == [2, 1, 6, 2, 1, 3, 6, 6, 6, 6]
    assert best(groups=[make_group(2, 1), make_group(2, 1)])[2:] == [4, 1, 1, 4, 4, 4, 4, 4]
    assert best(gpus=1, pods=12, milli=250) == [1, 1, 12, 1, 1, 12, 12, 12, 12, 12]
    assert best(gpus=0, pods=2, cpu=100) == [1, 1, 0, 0, 0, 0, 0, 0, 0, 0]
    assert best(gpus=4, pods=99) == [0] * SPANS_WIDTH


@given(workloads(most_gpus=24), st.sampled_from(("best-fit", "worst-fit", "consolidated", "random")), st.booleans())
def test_no_placement_is_better_than_the_best(workload: Workload, placement: str, by_gpu: bool) -> None:
    spec = fabric_of(generator(len(workload)).permutation(16).tolist())
    profile = make_profile(placement=placement, shape="gpu" if by_gpu else "node")
    result = simulate(workload, spec, profile, hooks=RunHooks(keep_intervals=True))
    state = ClusterState(spec)
    for row in np.unique(result.intervals[:, 0]).tolist():
        pieces = result.intervals[result.intervals[:, 0] == row]
        gang = [(int(node), 1, int(mask).bit_count()) for node, mask in pieces[:, 1:3]]
        own, gpus = spans_of(state, gang), int(result.jobs.gpus[row]) // 1000
        whole, rest = divmod(gpus, 4)
        groups = [make_group(4, whole)] * (whole > 0) + [make_group(rest, 1)] * (rest > 0)
        job = make_job("j", groups=[make_group(1, gpus)] if by_gpu else groups)
        best = Slowdowns(state).best(state.shapes.of(job).index)
        assert own[2] == best[2] and (own[[0, 1, 3, 4]] >= best[[0, 1, 3, 4]]).all() and (own[5:] <= best[5:]).all()


def test_a_run_says_of_each_job_the_fewest_nodes_and_leaves_that_it_could_have() -> None:
    cluster = ClusterSpec("three", tuple(Node(f"n{i}", 8, leaf=f"leaf{i // 2}") for i in range(6)))
    jobs = make_jobs(submit=[0, 0, 1, 2], runtime=[9, 9, 9, 9], gpus=[4, 8, 8, 8], pods=[1, 2, 1, 3])
    fewest = simulate(jobs, cluster, make_profile(placement="worst-fit")).jobs.fewest
    assert fewest is not None and fewest.tolist() == [[1, 1], [2, 1], [1, 1], [3, 2]]
