"""Segments and child gangs: each lies in one domain, they are placed exactly if they can be, and ranks follow."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.test_domains import POLICIES, filled, nodes_of, place, taken_nodes, topology
from tests.examples import examples

from kant.cluster.snapshot import Snapshot
from kant.cluster.state import ClusterState
from kant.model.decision import NeverFits, NoFit, sentence
from kant.model.errors import StateError
from kant.model.job import LEVELS, PodGroup
from kant.model.placement import NODE, PODS, Allocation
from kant.model.units import SECOND
from kant.placement.placer import Placer
from kant.placement.topology.index import COLUMNS
from kant.queueing.preemption.policy import Preemption
from kant.sim.run import RunHooks, simulate
from kant.testing import make_group, make_job, make_jobs, make_named_policy, make_profile, submitted
from kant.testing.naive import domains_of, pods_that_fit_in_segments, wrong_with
from kant.testing.strategies import cut_groups


def cut(group: PodGroup, within: Any, segment: int = 0) -> PodGroup:
    return msgspec.structs.replace(group, within=within, segment=segment)


def crossings(state: ClusterState, allocation: Allocation) -> list[tuple[int, int]]:
    """At each level: how many neighbours in rank lie in different domains, and how few could."""
    nodes = np.repeat(allocation[:, NODE], allocation[:, PODS])
    found = []
    for column in (None, *COLUMNS):
        domains = nodes if column is None else state.table[nodes, column]
        found.append((int((np.diff(domains) != 0).sum()), len(set(domains.tolist())) - 1))
    return found


@given(filled(), cut_groups(), st.sampled_from(("", *LEVELS)), st.booleans(), st.sampled_from(POLICIES))
def test_a_gang_in_segments_is_placed_exactly_if_it_can_be_and_in_rank_order(
    state: ClusterState, group: PodGroup, level: Any, required: bool, policy: str
) -> None:
    job = make_job("j", groups=(group,), within=level, within_required=required)
    places = domains_of(state.spec, level) if level and required else [list(range(len(state.spec.nodes)))]
    fits = max(pods_that_fit_in_segments(state.spec, state.table, job, group, place) for place in places)
    result = place(state, job, policy)
    if isinstance(result, NoFit):
        assert fits < group.count and (result.pods, result.fits) == (group.count, fits)
        return
    assert fits == group.count
    assert not wrong_with(state.spec, state.table, job, result)
    shape = state.shapes.of(job)
    if shape.cuts or shape.level >= 0:  # it went by the domains
        assert all(crossed == least for crossed, least in crossings(state, result))


@st.composite
def nested_groups(draw: st.DrawFn) -> PodGroup:
    """Up to twelve pods in segments of two or three levels, each of which the one inside it divides."""
    levels = sorted(draw(st.lists(st.sampled_from(LEVELS), min_size=2, max_size=3, unique=True)), key=LEVELS.index)
    sizes = [draw(st.integers(1, 2))]
    for _ in levels:
        sizes.append(sizes[-1] * draw(st.integers(1, 3)))
    *inner, (within, segment) = zip(levels, sizes[:-1], strict=True)
    demand = draw(cut_groups()).demand
    return PodGroup(min(sizes[-1], 12 // segment * segment or segment), demand, within, segment, 0, tuple(inner[::-1]))


@settings(max_examples=examples(60), deadline=None)
@given(filled(), nested_groups(), st.sampled_from(("", *LEVELS)), st.booleans(), st.sampled_from(POLICIES))
def test_segments_in_segments_are_placed_exactly_if_they_can_be(
    state: ClusterState, group: PodGroup, level: Any, required: bool, policy: str
) -> None:
    job = make_job("j", groups=(group,), within=level, within_required=required)
    places = domains_of(state.spec, level) if level and required else [list(range(len(state.spec.nodes)))]
    fits = max(pods_that_fit_in_segments(state.spec, state.table, job, group, place) for place in places)
    result = place(state, job, policy)
    if isinstance(result, NoFit):
        assert fits < group.count and result.pods == group.count > result.fits >= fits
        nested = state.shapes.of(job).cuts and len(state.shapes.of(job).cuts[0]) > 1
        assert result.fits == fits or not nested or (level and required), "it counts whole segments"
        return
    assert fits == group.count
    assert not wrong_with(state.spec, state.table, job, result)
    if state.shapes.of(job).cuts:
        assert all(crossed == least for crossed, least in crossings(state, result))


def test_blocks_of_eight_in_racks_of_four() -> None:
    """Two spines of three leaves with 4, 3 and 5, and with 4, 4 and 4 nodes: each holds one segment in whole leaves."""
    state = ClusterState(topology(4, 3, 5, 4, 4, 4, spine=3))
    block = msgspec.structs.replace(cut(make_group(8, 16), "spine", 8), inner=(("leaf", 4), ("node", 1)))
    found = nodes_of(place(state, make_job("j", groups=(block,))))
    assert len(found) == 16 and not {4, 5, 6} & set(found), "the leaf of three nodes is of no use"
    taken_nodes(state, 0)
    verdict = place(state, make_job("j", groups=(block,)))
    assert verdict == NoFit(0, 16, 8, "", 8, "spine", inner=(("leaf", 4),))
    assert sentence(verdict) == (
        "not enough free capacity: 8 of 16 pods fit now, in segments of 8 that each lie in one spine, "
        "in segments of 4 that each lie in one leaf"
    )
    once = make_job("j", groups=(msgspec.structs.replace(block, inner=()),))
    assert len(nodes_of(place(state, once))) == 16, "cut once it fits: eleven nodes are free in the first spine"


def test_a_spine_with_room_enough_but_not_in_pairs_does_not_hold_a_segment_of_pairs() -> None:
    """Nine nodes in three leaves of three hold three pairs; the fourth is in the other spine of the superspine."""
    state = ClusterState(topology(3, 3, 3, 2, spine=3))
    pairs = msgspec.structs.replace(cut(make_group(8, 8), "superspine", 8), inner=(("leaf", 2),))
    for within in ("", "superspine"):
        found = nodes_of(place(state, make_job("j", groups=(pairs,), within=within, within_required=bool(within))))
        assert [sum(node in found for node in leaf) for leaf in domains_of(state.spec, "leaf")] == [2, 2, 2, 2]
    verdict = place(state, make_job("j", groups=(pairs,), within="spine", within_required=True))
    assert verdict == NoFit(0, 8, 6, "spine", 2, "leaf")
    fours = msgspec.structs.replace(cut(make_group(8, 8), "spine", 4), inner=(("leaf", 2),))
    wide = ClusterState(topology(2, 2, 2, 4, spine=3))
    found = nodes_of(place(wide, make_job("j", groups=(fours,))))
    assert [sum(node in found for node in spine) for spine in domains_of(wide.spec, "spine")] == [4, 4]


def test_segments_that_cannot_lie_in_each_other_are_refused() -> None:
    state = ClusterState(topology(2))
    for within, segment, inner, words in (
        ("spine", 8, (("leaf", 3),), "each in one leaf; expected a level inside spine and a length that divides 8"),
        ("leaf", 8, (("spine", 4),), "expected a level inside leaf and a length that divides 8"),
        ("leaf", 8, (("leaf", 4),), "expected a level inside leaf"),
        ("spine", 6, (("leaf", 3),), "segments of 6 pods, each in one spine; expected a length that divides 16"),
        ("spine", 8, (("leaf", 0),), "segments of 0 pods"),
        ("spine", 8, (("rack", 4),), "the level 'rack'; expected one of node"),
        ("", 0, (("leaf", 4),), "has only inner segments"),
    ):
        group = PodGroup(16, make_group().demand, within, segment, 0, inner)  # type: ignore[arg-type]
        with pytest.raises(StateError, match=words):
            state.apply(submitted(make_job("j", groups=(group,)), at=0))


@given(filled(), st.lists(cut_groups(5), min_size=2, max_size=3), st.sampled_from(("", "leaf", "spine")), st.booleans())
def test_each_child_of_a_gang_is_in_one_domain_or_one_is_told_the_truth(
    state: ClusterState, gang: list[PodGroup], level: Any, required: bool
) -> None:
    job = make_job("j", groups=gang, within=level, within_required=required)
    result = place(state, job)
    if isinstance(result, NoFit):
        assert 0 <= result.fits < result.pods == gang[result.group].count
    else:
        assert not wrong_with(state.spec, state.table, job, result)


@settings(max_examples=examples(20))
@given(filled(), cut_groups(), st.data())
def test_the_order_of_nodes_is_no_more_than_a_tie(state: ClusterState, group: PodGroup, data: st.DataObject) -> None:
    job = make_job("j", groups=(group,))
    order = data.draw(st.permutations(range(len(state.spec.nodes))))
    other = ClusterState(msgspec.structs.replace(state.spec, nodes=tuple(state.spec.nodes[i] for i in order)))
    columns = [column for column in range(state.table.shape[1]) if column not in COLUMNS]
    other.table[:, columns] = state.table[order][:, columns]
    one, two = place(state, job), place(other, job)
    assert isinstance(one, NoFit) == isinstance(two, NoFit)
    assert not isinstance(one, NoFit) or one == two


def test_segments_fill_the_ragged_leaves_of_a_real_fabric() -> None:
    """Leaves of 8, 7 and 6 nodes, as the Lingjun topology has them, in segments of 3 nodes."""
    state = ClusterState(topology(8, 7, 6, spine=3))

    def used(pods: int, **fields: Any) -> list[int]:
        found = nodes_of(place(state, make_job("j", groups=(cut(make_group(8, pods), "leaf", 3),), **fields)))
        return [sum(node in found for node in domain) for domain in domains_of(state.spec, "leaf")]

    assert used(6) == [0, 0, 6], "the leaf that two segments fill exactly"
    assert used(9) == [0, 3, 6], "then as little as can be is left beside the third"
    assert used(12) == [0, 6, 6]
    assert used(18) == [6, 6, 6]
    assert used(20) == [8, 6, 6], "the last, shorter one takes what is over"
    too_large = place(state, make_job("j", groups=(cut(make_group(8, 21), "leaf", 3),)))
    assert too_large == NoFit(0, 21, 18, "", 3, "leaf")
    assert sentence(too_large) == (
        "not enough free capacity: 18 of 21 pods fit now, in segments of 3 that each lie in one leaf"
    )
    never = Placer(Snapshot(state), make_named_policy("placement", "best-fit"), 0).never_fits(
        state.shapes.of(make_job("j", groups=(cut(make_group(8, 9), "leaf", 3),), within="leaf", within_required=True))
    )
    assert never == NeverFits(0, 9, 8, "leaf")


def test_segments_stay_in_one_spine_where_that_is_required() -> None:
    """Two spines of leaves with 4 and 3 nodes; one leaf of each is half taken."""
    state = ClusterState(topology(4, 3, 4, 3))
    taken_nodes(state, 0, 1)
    gang = (cut(make_group(8, 6), "leaf", 2),)
    far = make_job("j", groups=gang, within="spine", within_required=True)
    assert set(nodes_of(place(state, far))) == {7, 8, 9, 10, 11, 12}, "the other spine has one segment in each leaf"
    taken_nodes(state, 7)
    verdict = place(state, far)
    assert verdict == NoFit(0, 6, 4, "spine", 2, "leaf")
    assert sentence(verdict) == (
        "fits in no spine: the best one has room for 4 of 6 pods, in segments of 2 that each lie in one leaf"
    )
    assert len(nodes_of(place(state, msgspec.structs.replace(far, within_required=False)))) == 6


def test_prefill_and_decode_each_in_a_leaf_and_both_in_a_spine() -> None:
    state = ClusterState(topology(4, 3, 4, 4))
    prefill, decode = cut(make_group(8, 4), "leaf"), cut(make_group(8, 3), "leaf")
    job = make_job("j", groups=(decode, prefill), within="spine", within_required=True)
    result = place(state, job)
    assert not isinstance(result, NoFit)
    assert [set(result[:3, NODE].tolist()), set(result[3:, NODE].tolist())] == [{4, 5, 6}, {0, 1, 2, 3}]
    taken_nodes(state, 4)
    assert set(nodes_of(place(state, job))) < set(range(7, 15)), "decode has no leaf beside prefill any more"
    taken_nodes(state, 7, 8, 11)
    verdict = place(state, job)
    assert verdict == NoFit(0, 3, 2, "leaf"), "beside prefill in the first spine"
    assert sentence(verdict) == "fits in no leaf: the best one has room for 2 of 3 pods"


def test_pods_of_equal_groups_on_one_node_are_not_mixed_up() -> None:
    """Both groups have pods of one GPU; the second is placed first, for it alone needs a whole node."""
    state = ClusterState(topology(2, gpus=4))
    job = make_job("j", groups=(make_group(1, 3), cut(make_group(1, 4), "node")))
    result = place(state, job, "worst-fit")
    assert not isinstance(result, NoFit)
    assert not wrong_with(state.spec, state.table, job, result)


def test_what_cannot_be_cut_is_refused_and_what_need_not_be_is_not_cut() -> None:
    state = ClusterState(topology(2))
    for group in (PodGroup(4, make_group().demand, "", 2), PodGroup(4, make_group().demand, "row", 2)):  # type: ignore[arg-type]
        with pytest.raises(StateError, match="expected one of node, hbd, leaf, spine, superspine for its segments"):
            state.apply(submitted(make_job("j", groups=(group,)), at=0))
    for group in (PodGroup(4, make_group().demand, "leaf", 1), PodGroup(1, make_group().demand, "leaf")):
        assert state.shapes.of(make_job("j", groups=(group,))).cuts == ()


@pytest.mark.parametrize("discipline", ["strict", "best-effort", "backfill", "easy", "conservative", "preemptive"])
@pytest.mark.parametrize("placement", ["worst-fit", "e-binpack"])
def test_a_job_in_segments_waits_for_the_topology_and_then_gets_it(discipline: str, placement: str) -> None:
    """Two leaves of three nodes, two of each taken for 100 s: two are free, but not on one leaf."""
    jobs = make_jobs(
        submit=[0, 0, 10, 20],
        runtime=[100, 100, 50, 50],
        gpus=[8, 8, 8, 8],
        pods=[2, 2, 2, 6],
        within=[3, 3, 0, 0],
        within_required=[1, 1, 0, 0],
        segment=[0, 0, 2, 3],
        segment_within=[0, 0, 3, 3],
    )
    run = simulate(jobs, topology(3, 3), make_profile("fifo", discipline, placement), hooks=RunHooks(ledger=True))
    assert run.summary["completed"] == 4
    assert (run.jobs.wait // SECOND).tolist() == [0, 0, 90, 130]
    assert run.wait_by_cause is not None
    assert int(run.wait_by_cause["topology"][2]) == 90 * SECOND


@pytest.mark.parametrize("discipline", ["easy", "conservative"])
def test_a_job_in_segments_that_is_overtaken_for_too_long_has_its_way(discipline: str) -> None:
    """Nodes come free one at a time, and there is always somebody behind who takes one."""
    jobs = make_jobs(
        submit=[0, 0, 0, 0, 1] + [2] * 40,
        runtime=[30, 60, 90, 120, 50] + [100] * 40,
        gpus=[8] * 45,
        pods=[1] * 4 + [2] + [1] * 40,
        segment=[0] * 4 + [2] + [0] * 40,
        segment_within=[0] * 4 + [3] + [0] * 40,
    )
    profile = make_profile("fifo", {"policy": discipline, "timeout_s": 300}, "first-fit")
    run = simulate(jobs, topology(2, 2), profile)
    assert run.jobs.wait[4] == 300 * SECOND
    assert run.summary["completed"] == 45


def test_who_is_stopped_for_segments_makes_room_for_whole_ones() -> None:
    """Three leaves of two nodes, each node held by a job; the newcomer needs two leaves."""
    jobs = make_jobs(
        submit=[0, 10, 20, 30, 40, 50, 60],
        runtime=[1000] * 7,
        gpus=[8] * 7,
        pods=[1] * 6 + [4],
        priority=[0] * 6 + [1],
        segment=[0] * 6 + [2],
        segment_within=[0] * 6 + [3],
    )
    profile = make_profile("fifo", "best-effort", "first-fit", preemption=Preemption(min_run_s=0))
    run = simulate(jobs, topology(2, 2, 2), profile)
    assert run.jobs.wait[6] == 0
    assert np.flatnonzero(run.jobs.preemptions[:6]).tolist() == [2, 3, 4, 5]
