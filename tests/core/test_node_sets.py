"""A job that names a node set runs on nodes of that set alone, as they are at that moment."""

from __future__ import annotations

from contextlib import suppress
from itertools import permutations, product
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.examples import examples

from kant.cluster.node_sets import NodeSets
from kant.cluster.snapshot import Snapshot
from kant.cluster.state import ClusterState
from kant.model.decision import NeverFits, Reject, Start
from kant.model.errors import StateError
from kant.model.event import Event, NodeDescribed, NodeSetChanged, NodesJoined, NodesLeft
from kant.model.job import Role
from kant.model.node import ClusterSpec, Node
from kant.model.placement import GROUP, NODE
from kant.model.tenant import Queue, Quota
from kant.model.units import HOUR
from kant.placement.placer import Placer
from kant.scheduler.profile import builtin_profile
from kant.testing import Harness, make_cluster, make_group, make_job, make_named_policy

PROFILES = ("kant", "fifo", "easy", "conservative")


def with_sets(profile: str, *jobs: tuple[str, int], **sets: tuple[str, ...]) -> Harness:
    """Forty nodes of two GPUs, the sets, and jobs of one pod: by name the set and how many GPUs it asks for."""
    harness = Harness(make_cluster(*[2] * 40), builtin_profile(profile))
    for name, nodes in sets.items():
        harness.happen(NodeSetChanged(0, name, nodes))
    for number, (name, gpus) in enumerate(jobs):
        harness.submit(make_job(f"j{number}", gpus, node_set=name))
    harness.cycle()
    return harness


def nodes_of(harness: Harness, job: str) -> set[str]:
    state = harness.state
    held = state.running.get(state.rows[job])
    return set() if held is None else {state.spec.nodes[node].name for node in held[:, NODE].tolist()}


@pytest.mark.parametrize("profile", PROFILES)
def test_a_job_runs_on_nodes_of_its_set_though_others_are_free(profile: str) -> None:
    harness = with_sets(profile, ("far", 2), ("far", 2), ("far", 1), far=("n3", "n37"))
    assert nodes_of(harness, "j0") | nodes_of(harness, "j1") == {"n3", "n37"}
    assert not nodes_of(harness, "j2")


@pytest.mark.parametrize("profile", PROFILES)
def test_a_node_that_enters_a_set_is_offered_at_once(profile: str) -> None:
    harness = with_sets(profile, ("far", 2), ("far", 2), far=("n3",))
    assert not nodes_of(harness, "j1")
    harness.happen(NodeSetChanged(harness.now, "far", ("n33",)))
    harness.cycle()
    assert nodes_of(harness, "j1") == {"n33"}


def test_what_runs_counts_for_the_model_of_its_node_though_its_set_has_another_by_now() -> None:
    harness = Harness(ClusterSpec("c", (Node("a", 2, "A100"), Node("h", 2, "H800"))), builtin_profile("kant"))
    harness.set_queues(Queue("q", quotas=tuple(Quota("gpu", model, 2000) for model in ("A100", "H800"))))
    harness.happen(NodeSetChanged(0, "far", ("h",)))
    harness.submit(make_job("j0", 2, queue="q", node_set="far"))
    harness.cycle()
    harness.happen(NodeSetChanged(harness.now, "far", ("a",), ("h",)))
    harness.submit(make_job("j1", 2, queue="q", node_set="far"))
    harness.cycle()
    assert (nodes_of(harness, "j0"), nodes_of(harness, "j1")) == ({"h"}, {"a"}), "nobody else has a quota of A100"


def test_what_runs_on_a_node_that_leaves_a_set_runs_on() -> None:
    harness = with_sets("kant", ("far", 2), far=("n3",))
    harness.happen(NodeSetChanged(harness.now, "far", (), ("n3",)))
    harness.submit(make_job("later", 2, node_set="far"))
    plan = harness.cycle()
    assert nodes_of(harness, "j0") == {"n3"}
    assert not any(isinstance(one, Start) for one in plan.decisions)


def test_groups_of_a_gang_have_node_sets_of_their_own() -> None:
    harness = with_sets("kant", left=("n1",), right=("n39",))
    harness.submit(
        make_job(
            "gang",
            groups=(make_group(1), make_group(2)),
            roles=(Role(node_set="left"), Role(node_set="right")),
        )
    )
    harness.cycle()
    assert nodes_of(harness, "gang") == {"n1", "n39"}


def test_groups_that_ask_for_the_same_amounts_keep_to_their_own_node_sets() -> None:
    harness = with_sets("kant", left=("n1", "n2"), right=("n39",))
    groups, roles = (make_group(2), make_group(2, 2)), (Role(node_set="right"), Role(node_set="left"))
    harness.submit(make_job("gang", groups=groups, roles=roles))
    harness.cycle()
    held = harness.state.running[harness.state.rows["gang"]]
    assert sorted(held[:, [GROUP, NODE]].tolist()) == [[0, 39], [1, 1], [1, 2]]


def test_jobs_of_equal_sets_share_a_shape_and_others_do_not() -> None:
    state = with_sets("kant", far=("n1",), near=("n1",)).state
    shapes = [state.shapes.of(make_job("j", 2, node_set=name)).index for name in ("far", "far", "near", "")]
    assert shapes[0] == shapes[1]
    assert len(set(shapes)) == 3


@settings(max_examples=examples(60))
@given(st.lists(st.tuples(st.lists(st.integers(0, 69)), st.booleans()), max_size=6))
def test_a_set_has_the_nodes_that_came_and_did_not_go_and_says_which_did(
    changes: list[tuple[list[int], bool]],
) -> None:
    sets, there = NodeSets([node % 3 for node in range(70)]), set[int]()
    for nodes, inside in changes:
        changed = [node for node in dict.fromkeys(nodes) if (node in there) != inside]
        there = there | set(nodes) if inside else there - set(nodes)
        assert sets.change("far", nodes, inside) == changed and sets.nodes("far") == sorted(there)
        assert sets.pools("far") == sum(1 << pool for pool in {node % 3 for node in there})
        sets.check()


def test_an_empty_set_admits_nobody_until_it_has_a_node() -> None:
    harness = with_sets("kant", ("far", 1))
    rejected = harness.plans[-1].decisions[0]
    assert isinstance(rejected, Reject) and isinstance(rejected.reason, NeverFits)
    harness.happen(NodeSetChanged(harness.now, "far", ("n2",)))
    harness.submit(make_job("later", 1, node_set="far"))
    harness.cycle()
    assert nodes_of(harness, "later") == {"n2"}


@settings(max_examples=examples(120))
@given(
    st.lists(st.tuples(st.integers(1, 2), st.sampled_from("ab"), st.booleans()), min_size=1, max_size=3),
    st.lists(st.integers(0, 7), max_size=4, unique=True),
)
def test_a_gang_in_one_leaf_starts_exactly_if_some_leaf_has_room_in_the_sets_of_its_groups(
    groups: list[tuple[int, str, bool]], taken: list[int]
) -> None:
    """Two leaves of four nodes with two GPUs, sets that share nodes, against all ways to give each pod a whole node."""
    sets = {"a": ("n0", "n1", "n4"), "b": ("n1", "n2", "n5", "n6", "n7")}
    harness = Harness(make_cluster(*[2] * 8), builtin_profile("kant"))
    for name, nodes in [*sets.items(), *((f"only{node}", (f"n{node}",)) for node in taken)]:
        harness.happen(NodeSetChanged(0, name, nodes))
    harness.submit(*(make_job(f"taken{node}", 2, node_set=f"only{node}") for node in taken))
    harness.cycle()
    names = [name if named else "" for _, name, named in groups]
    job = make_job("gang", groups=[make_group(2, pods) for pods, *_ in groups], within="leaf", within_required=True)
    harness.submit(replace(job, roles=tuple(Role(node_set=name) for name in names)))
    harness.cycle()
    pods = [name for name, (count, *_) in zip(names, groups, strict=True) for _ in range(count)]
    leaves = [[node for node in range(first, first + 4) if node not in taken] for first in (0, 4)]
    fits = any(
        all(not name or f"n{node}" in sets[name] for name, node in zip(pods, chosen, strict=True))
        for leaf in leaves
        for chosen in permutations(leaf, len(pods))
    )
    got = nodes_of(harness, "gang")
    assert bool(got) == fits
    assert not got or len({int(node[1:]) // 4 for node in got}) == 1


NAMES = st.sampled_from([f"n{i}" for i in range(4)])
CHANGE = (
    st.builds(lambda name: NodeSetChanged(0, "s", (name,)), NAMES)
    | st.builds(lambda name: NodeSetChanged(0, "s", (), (name,)), NAMES)
    | st.builds(
        lambda name, gpus, leaf: NodeDescribed(0, Node(name, gpus, leaf=leaf)),
        NAMES, st.sampled_from((2, 4, 8)), st.sampled_from(("a", "b")),
    )
    | st.builds(lambda name: NodesLeft(0, (name,)), NAMES)
    | st.builds(lambda name: NodesJoined(0, (Node(name, 8, leaf="a"),)), NAMES)
)  # fmt: skip


@given(st.lists(CHANGE, max_size=5))
@settings(max_examples=examples(15), deadline=None)
def test_whether_a_job_could_ever_start_is_what_a_new_scheduler_says(changes: list[Event]) -> None:
    state = ClusterState(ClusterSpec("c", tuple(Node(f"n{i}", 8, leaf="a") for i in range(4))))
    state.apply(NodeSetChanged(0, "s", ("n0", "n1")))
    jobs = [
        make_job("j", gpus, pods, within=within, within_required=bool(within), node_set=node_set)
        for pods, gpus, (within, node_set) in product((1, 2), (3, 5), (("", "s"), ("leaf", "")))
    ]
    placer = Placer(Snapshot(state), make_named_policy("placement", "kant"), 0)
    shapes = [state.shapes.of(job) for job in jobs]
    for change in changes:
        for shape in shapes:
            placer.never_fits(shape)
        with suppress(StateError):
            state.apply(change)
        placer.snapshot.refresh(0)
    kept = [placer.never_fits(shape) for shape in shapes]
    anew = Placer(Snapshot(state), make_named_policy("placement", "kant"), 0)
    assert kept == [anew.never_fits(shape) for shape in shapes]


def test_a_change_elsewhere_searches_the_empty_cluster_for_no_job_that_has_a_place_there() -> None:
    state = ClusterState(make_cluster(*[8] * 4))
    state.apply(NodeSetChanged(0, "s", ("n0",)))
    placer = Placer(Snapshot(state), make_named_policy("placement", "kant"), 0)
    shape = state.shapes.of(make_job("j", 4, node_set="s"))
    assert placer.never_fits(shape) is None
    assert placer._empty is not None
    with patch.object(placer._empty, "place", side_effect=AssertionError("searched")):
        state.apply(NodeSetChanged(0, "s", ("n2",)))
        state.apply(NodesLeft(0, ("n3",)))
        assert placer.never_fits(shape) is None
    state.apply(NodeSetChanged(0, "s", (), ("n0", "n2")))
    assert placer.never_fits(shape) is not None


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("fields", [{"milli": 500}, {"gpus": 0, "cpu": 3000}])
def test_a_share_and_a_job_without_gpus_start_on_the_node_of_their_set(profile: str, fields: dict[str, int]) -> None:
    harness = Harness(make_cluster(2, 2, 2, 2, cpu=8000), builtin_profile(profile))
    harness.happen(NodeSetChanged(0, "far", ("n3",)))
    harness.submit(*[make_job(f"j{at}", node_set="far", estimate=HOUR, **fields) for at in range(5)])
    harness.cycle()
    room = 4 if "milli" in fields else 2
    assert [nodes_of(harness, f"j{at}") for at in range(5)] == [{"n3"}] * room + [set()] * (5 - room)


@pytest.mark.parametrize("quota", [False, True])
def test_a_job_makes_way_where_it_runs_though_its_set_has_lost_the_node(quota: bool) -> None:
    """The other job needs the node, or only the quota: it fits on another node."""
    harness = Harness(make_cluster(1, 1), builtin_profile("kant"))
    if quota:
        harness.set_queues(Queue("q", quotas=(Quota(nominal=1000, borrowing_limit=0),)))
    harness.happen(NodeSetChanged(0, "s", ("n0",)))
    harness.submit(make_job("runs", queue="q", node_set="s"))
    harness.cycle()
    harness.happen(NodeSetChanged(0, "s", (), ("n0",)))
    harness.happen(NodeSetChanged(0, "t", ("n1" if quota else "n0",)))
    harness.submit(make_job("urgent", queue="q", priority=1, node_set="t"))
    harness.cycle(HOUR)
    assert harness.running() == ["urgent"]
