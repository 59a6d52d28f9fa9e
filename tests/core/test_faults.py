"""Nodes that fall ill: their states, lost GPUs, gangs that keep what is left of their place, and bad nodes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.examples import examples

from kant.cluster.columns import FREE, GPUS, IDLE, LEAF, NO_DEMANDS, P_CAPACITY, P_FRAGMENTED, P_NODES, STATUS
from kant.cluster.snapshot import all_free, move
from kant.model.decision import Plan, Preempt, Start
from kant.model.event import NodeChanged
from kant.model.node import ClusterSpec, Node
from kant.model.placement import CPU, MASK, NODE, PODS
from kant.model.status import JobStatus, NodeStatus
from kant.model.units import FOREVER, SECOND
from kant.queueing.preemption.policy import Preemption
from kant.queueing.requeue import Requeue
from kant.testing import Harness, make_cluster, make_group, make_job, make_profile
from kant.testing.drawn import draw_cluster, generator


def in_service(harness: Harness) -> tuple[int, int, int]:
    """Nodes, GPUs and fragmented nodes that count."""
    pools = harness.state.pools.sum(axis=0)
    return int(pools[P_NODES]), int(pools[P_CAPACITY]) // 1000, int(pools[P_FRAGMENTED])


def kept(plan: Plan) -> dict[str, int]:
    return {d.job: d.kept for d in plan.decisions if isinstance(d, Start)}


def leaves(*sizes: int, gpus: int = 8) -> ClusterSpec:
    """Leaves of so many nodes, all under one spine."""
    names = [f"leaf{leaf}" for leaf, size in enumerate(sizes) for _ in range(size)]
    return ClusterSpec("leaves", tuple(Node(f"n{i}", gpus, leaf=leaf) for i, leaf in enumerate(names)))


# --- states and lost GPUs ---------------------------------------------------------------------------------------


def test_a_draining_node_counts_until_its_last_gpu_is_free_and_takes_nothing_new() -> None:
    harness = Harness(make_cluster(2, 2), make_profile(placement="first-fit"))
    harness.submit(make_job("old"))
    harness.cycle()
    harness.drain("n0")
    harness.submit(make_job("new", 2), make_job("next"))
    harness.cycle()
    assert (harness.nodes_of("new"), harness.waiting(), in_service(harness)) == (["n1"], ["next"], (2, 4, 1))
    harness.finish("old")
    harness.cycle()
    assert (harness.waiting(), in_service(harness)) == (["next"], (1, 2, 0)), "drained, so it has left"
    harness.bring_back("n0")
    harness.cycle()
    assert (harness.nodes_of("next"), in_service(harness)) == (["n0"], (2, 4, 1))


def test_what_runs_when_a_drain_ends_moves_or_waits() -> None:
    harness = Harness(make_cluster(2, 1), make_profile(placement="first-fit"))
    harness.submit(make_job("moves", preemptible=False), make_job("waits"))
    assert harness.cycle().review_at == -1
    assert harness.nodes_of("moves") == harness.nodes_of("waits") == ["n0"]
    harness.drain("n0", 100 * SECOND)
    assert harness.cycle(99 * SECOND).review_at == 100 * SECOND
    plan = harness.cycle(100 * SECOND)
    stops = [(d.job, d.moved, d.why) for d in plan.decisions if isinstance(d, Preempt)]
    assert stops == [("moves", True, "drain"), ("waits", False, "drain")]
    assert (harness.nodes_of("moves"), harness.waiting(), in_service(harness)) == (["n1"], ["waits"], (1, 1, 0))
    assert harness.cycle().decisions[:1] and not harness.cycle().decisions


def test_lost_gpus_are_not_there_and_come_back() -> None:
    harness = Harness(make_cluster(4, 4), make_profile(placement="first-fit"))
    harness.submit(make_job("a", 2))
    harness.cycle()
    harness.lose("n0", 1, 3)
    assert (harness.waiting(), in_service(harness)) == (["a"], (2, 6, 0)), "it held GPU 1"
    assert harness.state.table[0, [GPUS, IDLE, FREE]].tolist() == [2, 2, 2000]
    harness.submit(make_job("whole", 4, pods=2))
    harness.cycle()
    assert harness.status("whole") is JobStatus.PENDING, "it does not fit now, but the cluster is meant to hold it"
    assert harness.state.running[0][:, [NODE, MASK]].tolist() == [[1, 3]], "GPUs 0 and 2 of n0 would do, but n0 is bad"
    harness.finish("a")
    harness.lose("n0")
    harness.cycle()
    assert (harness.running(), in_service(harness)) == (["whole"], (2, 8, 0))


def test_a_node_that_has_lost_all_its_gpus_is_none() -> None:
    harness = Harness(make_cluster(2, 2))
    harness.lose("n0", 0, 1)
    assert in_service(harness) == (1, 2, 0)
    harness.submit(make_job("a", 2), make_job("cpu", 0))
    harness.cycle()
    assert harness.waiting() == []


def test_room_is_made_on_a_node_whose_first_gpu_is_lost() -> None:
    """The victim search counts the devices that are there, not the first so many."""
    harness = Harness(make_cluster(4), make_profile(preemption=Preemption(min_run_s=0)))
    harness.lose("n0", 0)
    harness.submit(*(make_job(f"low{i}") for i in range(3)))
    harness.cycle()
    assert len(harness.running()) == 3
    harness.submit(make_job("high", 2, priority=1))
    harness.cycle()
    assert harness.nodes_of("high") == ["n0"] and len(harness.waiting()) == 2


@pytest.mark.parametrize("discipline", ["easy", "conservative"])
def test_nobody_is_promised_a_lost_gpu(discipline: str) -> None:
    harness = Harness(make_cluster(2, 2), make_profile("fifo", discipline))
    harness.submit(*(make_job(f"r{i}", 2, estimate=(10 + i) * SECOND) for i in range(2)), runtime=FOREVER)
    harness.cycle()
    harness.submit(make_job("w", 2, estimate=SECOND))
    harness.cycle()
    (promise,) = harness.state.reserved.values()
    assert (promise.start, promise.allocation[0, NODE]) == (10 * SECOND, 0)
    harness.now = 5 * SECOND
    harness.evict("r0")
    harness.lose("n0", 1)
    harness.cycle()
    promises = [promise.allocation.tolist() for promise in harness.state.reserved.values()]
    assert promises and all(piece[NODE] == 1 for allocation in promises for piece in allocation)
    harness.lose("n0")
    harness.cycle()
    assert "w" in harness.running() or "r0" in harness.running()


# --- a gang keeps what is left of its place ---------------------------------------------------------------------


def test_a_failed_node_is_replaced_in_its_leaf_and_the_rest_stays() -> None:
    harness = Harness(leaves(4, 4), make_profile(placement="e-binpack"))
    harness.submit(make_job("gang", 8, pods=3))
    harness.cycle()
    before = harness.nodes_of("gang")
    harness.submit(*(make_job(f"first{i}", 8, pods=3, priority=9) for i in range(2)))
    harness.cycle()
    assert harness.waiting() == ["first1"], "it is before all others, and would take what is left of the gang"
    harness.fail(before[1])
    plan = harness.cycle()
    after = harness.nodes_of("gang")
    assert kept(plan) == {"gang": 2}
    assert [a == b for a, b in zip(before, after, strict=True)] == [True, False, True], "ranks stay"
    assert {harness.state.spec.nodes[harness.state.node_index[node]].leaf for node in after} == {"leaf0"}
    assert harness.waiting() == ["first1"]


@pytest.mark.parametrize(("required", "goes"), [(False, True), (True, False)])
def test_a_required_level_is_kept_or_the_gang_waits_whole(required: bool, goes: bool) -> None:
    harness = Harness(leaves(3, 1), make_profile(placement="e-binpack"))
    harness.submit(make_job("gang", 8, pods=3, within="leaf", within_required=required))
    harness.cycle()
    harness.fail("n1")
    plan = harness.cycle()
    assert kept(plan) == ({"gang": 2} if goes else {})
    assert harness.nodes_of("gang") == ["n0", "n3", "n2"] if goes else harness.waiting() == ["gang"]


def test_a_gang_that_finds_no_other_node_waits_whole_and_others_may_start() -> None:
    harness = Harness(leaves(2))
    harness.submit(make_job("gang", 8, pods=2), make_job("small", 8))
    harness.cycle()
    harness.fail("n0")
    assert kept(harness.cycle()) == {"small": 0} and harness.waiting() == ["gang"]


def test_two_nodes_that_fail_at_once_are_both_replaced() -> None:
    """Kueue #14244: the second failed node evicted a gang of 500. Here they fail one after the other, too."""
    harness = Harness(leaves(*[4] * 4), make_profile(placement="e-binpack"))
    harness.submit(make_job("gang", 8, pods=10))
    harness.cycle()
    gone = set(harness.nodes_of("gang")[2:4])
    harness.fail(sorted(gone)[0])
    harness.happen(NodeChanged(0, sorted(gone)[1], NodeStatus.FAILED))
    assert kept(harness.cycle()) == {"gang": 8} and not gone & set(harness.nodes_of("gang"))
    harness.fail(harness.nodes_of("gang")[0])
    assert kept(harness.cycle()) == {"gang": 9}


def test_a_lost_gpu_costs_the_gang_one_pod() -> None:
    harness = Harness(leaves(2), make_profile(placement="first-fit"))
    harness.submit(make_job("gang", 1, pods=10))
    harness.cycle()
    assert harness.state.running[0][:, [NODE, PODS]].tolist() == [[0, 8], [1, 2]]
    harness.lose("n0", 3)
    assert kept(harness.cycle()) == {"gang": 9}
    assert sorted(harness.state.running[0][:, [NODE, PODS, MASK]].tolist()) == [[0, 7, 247], [1, 1, 4], [1, 2, 3]]


def test_the_claim_ends_with_its_time_and_can_be_turned_off() -> None:
    for window, later, claims in ((60, 60, True), (60, 61, False), (0, 0, True), (0, 1, False), (-1, 0, False)):
        harness = Harness(leaves(3), make_profile(requeue=Requeue(in_place_s=window)))
        harness.submit(make_job("gang", 8, pods=2))
        harness.cycle()
        harness.fail("n0")
        harness.submit(make_job("high", 8, pods=2, priority=1))
        harness.cycle(later * SECOND)
        assert harness.running() == (["gang"] if claims else ["high"]), (window, later)


def test_groups_that_differ_in_cpu_alone_are_told_apart_when_a_node_is_lost() -> None:
    """Their pods never share a piece, so it is known which of them the node took with it."""
    harness = Harness(make_cluster(2, 2, 2, cpu=9000), make_profile(placement="first-fit"))
    harness.submit(make_job("gang", groups=(make_group(1, 3, cpu=1000), make_group(1, 1, cpu=2000))))
    harness.cycle()
    assert harness.state.running[0][:, PODS].tolist() == [2, 1, 1]
    harness.fail("n0")
    assert kept(harness.cycle()) == {"gang": 2}
    assert sorted(harness.state.running[0][:, CPU].tolist()) == [1000, 2000, 2000]


def test_a_gang_on_a_node_that_must_be_empty_moves_only_what_is_there() -> None:
    harness = Harness(leaves(4))
    harness.submit(make_job("gang", 8, pods=3))
    harness.cycle()
    gone = harness.nodes_of("gang")[0]
    harness.drain(gone, 0)
    plan = harness.cycle()
    assert kept(plan) == {"gang": 2} and gone not in harness.nodes_of("gang")
    assert [d.moved for d in plan.decisions if isinstance(d, Preempt)] == [True]


@settings(max_examples=examples(12), deadline=None)
@given(seed=st.integers(0, 1 << 30), discipline=st.sampled_from(["best-effort", "strict", "backfill", "conservative"]),
       placement=st.sampled_from(["best-fit", "e-binpack", "consolidated"]))  # fmt: skip
@example(seed=413001, discipline="conservative", placement="best-fit")  # promises overlap on what a node has left
def test_replaced_gangs_keep_all_that_is_healthy_and_their_level(seed: int, discipline: str, placement: str) -> None:
    draw = generator(seed)
    spec = draw_cluster(draw, 6)
    harness = Harness(spec, make_profile("fifo", discipline, placement), seed=seed)
    harness.before_carrying_out = lambda plan: check_replacements(harness, plan)
    for i in range(40):
        level = str(draw.choice(["", "leaf", "spine"]))
        fields: Any = {"within": level, "within_required": bool(level) and bool(draw.integers(2))}
        gpus, pods = int(draw.choice([1, 1, 2, 4])), int(draw.integers(2, 7))
        harness.submit(make_job(f"j{i}", gpus, pods, estimate=SECOND, **fields))
        harness.cycle()
        name, well = spec.nodes[int(draw.integers(len(spec.nodes)))].name, int(draw.integers(4))
        if well == 0:
            harness.fail(name)
        elif well == 1:
            harness.lose(name, *(d for d in range(spec.nodes[harness.state.node_index[name]].gpus) if draw.integers(2)))
        elif well == 2:
            harness.lose(name)
            harness.bring_back(name)
        harness.cycle(harness.now + int(draw.integers(2)) * SECOND)
        if harness.running() and draw.integers(3) == 0:
            harness.finish(harness.running()[0])


def check_replacements(harness: Harness, plan: Plan) -> None:
    """Promises may take what a gang has held; else it keeps all that is free when its turn comes."""
    state, table, log = harness.state, harness.state.table.copy(), harness.state.log.copy()
    for start in [d for d in plan.decisions if isinstance(d, Start)]:
        row, now = state.rows[start.job], start.allocation
        shape = state.shape_of(row)
        if start.kept:
            held = state.health.broken[row]
            well = held[table[held[:, NODE], STATUS] == NodeStatus.IN_SERVICE].tolist()
            whole = [piece for piece in well if all_free(table, np.array([piece]), NO_DEMANDS)]
            assert state.reserved or all(piece in now.tolist() for piece in whole), "what is healthy stays"
            assert state.reserved or sum(piece[PODS] for piece in whole) <= start.kept <= shape.pods
            assert not shape.required or len(np.unique(table[now[:, NODE], LEAF + shape.level - 1])) == 1
        move(table, log, now, NO_DEMANDS, True)


# --- bad nodes --------------------------------------------------------------------------------------------------


def test_a_job_stays_away_from_nodes_on_which_it_failed_while_others_suffice() -> None:
    """Kueue #15369: the same bad node was tried for ever."""
    harness = Harness(make_cluster(2, 2), make_profile(placement="first-fit"))
    harness.submit(make_job("j", retries=9))
    harness.cycle()
    harness.fail_job("j", node="n0")
    harness.cycle()
    assert harness.nodes_of("j") == ["n1"]
    harness.fail_job("j", node="n1")
    harness.submit(make_job("other"))
    harness.cycle()
    assert harness.running() == ["j", "other"] and harness.nodes_of("j") == ["n0"], "all are bad: any will do"
    assert harness.state.health.bad == {0: (0, 1)}
    harness.finish("j")
    assert harness.state.health.bad == {}


def test_a_job_remembers_its_last_eight_bad_nodes() -> None:
    harness = Harness(make_cluster(*[1] * 10), make_profile(placement="first-fit"))
    harness.submit(make_job("j", retries=99))
    for _ in range(10):
        harness.cycle()
        harness.fail_job("j", node=harness.nodes_of("j")[0])
    assert harness.state.health.bad == {0: (2, 3, 4, 5, 6, 7, 8, 0)}, "node 0 was the only one it had forgotten"


def test_bad_nodes_can_be_forgotten_by_the_profile() -> None:
    harness = Harness(make_cluster(1, 1), make_profile(placement="first-fit", requeue=Requeue(avoid_bad_nodes=False)))
    harness.submit(make_job("j", retries=9))
    harness.cycle()
    harness.fail_job("j", node="n0")
    harness.cycle()
    assert harness.nodes_of("j") == ["n0"]


def test_bad_nodes_of_one_job_are_good_for_others_of_its_shape() -> None:
    harness = Harness(make_cluster(1, 1), make_profile(placement="first-fit"))
    harness.submit(make_job("j", retries=9))
    harness.cycle()
    harness.fail_job("j", node="n0")
    harness.submit(make_job("twin"))
    harness.cycle()
    assert (harness.nodes_of("j"), harness.nodes_of("twin")) == (["n1"], ["n0"])
