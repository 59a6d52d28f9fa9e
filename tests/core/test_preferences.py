"""What pods prefer decides beside the policy, counts for nothing where the profile says so, and is explained."""

from __future__ import annotations

import dataclasses
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.examples import examples

from kant.insight.start_explanation import explain_start
from kant.model.errors import StateError
from kant.model.event import NodeSetChanged
from kant.model.job import Job
from kant.model.placement import NODE
from kant.model.preference import LikedNodes, LikedPods, LikedSpread, Preferences
from kant.model.rules import PodRules
from kant.placement.preference_weights import PreferenceWeights
from kant.scheduler.cycle import Scheduler
from kant.scheduler.profile import Profile, builtin_profile
from kant.testing import Harness, make_cluster, make_job

APART = Preferences(pods=(LikedPods("web", -100),))


def harness_of(profile: Profile | str = "kant", *gpus: int) -> Harness:
    chosen = builtin_profile(profile) if isinstance(profile, str) else profile
    return Harness(make_cluster(*(gpus or (8,) * 8)), chosen)


def web(name: str, pods: int = 1, likes: Preferences = APART) -> Job:
    return replace(make_job(name, 1, pods=pods), rules=(PodRules(("web",)),), preferences=(likes,))


def homes(harness: Harness) -> list[int]:
    return [int(node) for held in harness.state.running.values() for node in held[:, NODE]]


@pytest.mark.parametrize("profile", ["kant", "teams", "best-fit", "e-binpack", "random", "spread", "easy"])
@pytest.mark.parametrize("together", [True, False], ids=["a gang", "six jobs"])
def test_six_replicas_that_would_rather_not_meet_stand_on_six_nodes(profile: str, together: bool) -> None:
    harness = harness_of(profile)
    for job in [web("gang", 6)] if together else [web(f"w{i}") for i in range(6)]:
        harness.submit(job)
    harness.cycle(0)
    assert len({*homes(harness)}) == len(homes(harness)) == 6


@given(
    taken=st.lists(st.integers(0, 4), min_size=2, max_size=8).filter(lambda taken: min(taken) < 4),
    profile=st.sampled_from(["kant", "teams", "best-fit", "e-binpack"]),
    together=st.booleans(),
    draw=st.data(),
)
@settings(max_examples=examples(30), deadline=None)
def test_replicas_that_need_not_meet_open_as_few_nodes_as_any_placement_that_parts_them(
    taken: list[int], profile: str, together: bool, draw: st.DataObject
) -> None:
    """All sets of nodes with room are tried: a node is opened where all of it was free."""
    harness = harness_of(profile, *[4] * len(taken))
    for node, gpus in enumerate(taken):
        harness.happen(NodeSetChanged(0, f"only{node}", (f"n{node}",)))
        if gpus:
            harness.submit(replace(make_job(f"there{node}", gpus), node_set=f"only{node}"))
    harness.cycle(0)
    there = len(homes(harness))
    room = [node for node, gpus in enumerate(taken) if gpus < 4]
    pods = draw.draw(st.integers(1, len(room)))
    for job in [web("gang", pods)] if together else [web(f"w{i}") for i in range(pods)]:
        harness.submit(job)
    harness.cycle(0)
    found = homes(harness)[there:]
    fewest = min(sum(taken[node] == 0 for node in nodes) for nodes in combinations(room, pods))
    assert len({*found}) == len(found) == pods
    assert sum(taken[node] == 0 for node in found) == fewest


@pytest.mark.parametrize("profile", ["kant", "teams", "e-binpack"])
def test_a_gang_fills_one_of_the_nodes_that_it_likes(profile: str) -> None:
    harness = harness_of(profile)
    harness.happen(NodeSetChanged(0, "liked", ("n3", "n5", "n6")))
    harness.submit(replace(make_job("g", 2, pods=4), preferences=(Preferences(nodes=(LikedNodes("liked", 7),)),)))
    harness.cycle(0)
    assert {*homes(harness)} == {3}


def test_a_profile_with_weights_of_0_packs_as_if_nothing_were_preferred() -> None:
    weights = PreferenceWeights(node_affinity=0, taints=0, pod_affinity=0, spread=0)
    harness = harness_of(dataclasses.replace(builtin_profile("kant"), preferences=weights))
    for i in range(6):
        harness.submit(web(f"w{i}"))
    harness.cycle(0)
    assert {*homes(harness)} == {0}


def test_a_gang_that_fits_only_against_what_a_group_likes_fits() -> None:
    """The small pod likes the only node that has room for the large one, and gives it up."""
    harness = harness_of("best-fit", 1, 4)
    harness.happen(NodeSetChanged(0, "liked", ("n1",)))
    small, large = make_job("s", 1), make_job("l", 4)
    gang = replace(small, id="g", groups=(*small.groups, *large.groups))
    likes = Preferences(nodes=(LikedNodes("liked", 1),))
    harness.submit(replace(gang, preferences=(likes, likes)))
    harness.cycle(0)
    assert harness.running() == ["g"] and sorted(homes(harness)) == [0, 1]


def test_pods_that_would_lie_evenly_fill_the_emptier_domain_first() -> None:
    harness = harness_of("best-fit")
    harness.submit(web("all", 8, Preferences(spread=(LikedSpread("web"),))))
    harness.cycle(0)
    assert sorted(homes(harness)) == [*range(8)]


def test_the_explanation_says_what_a_pod_likes_of_its_node() -> None:
    harness = harness_of("best-fit", 4, 4)
    harness.happen(NodeSetChanged(0, "liked", ("n1",)))
    harness.submit(replace(make_job("j", 1), preferences=(Preferences(nodes=(LikedNodes("liked", 7),)),)))
    harness.submit(make_job("next", 1))
    scheduler = Scheduler(harness.state, harness.profile)
    place = scheduler.cycle(0).decisions[0].allocation  # type: ignore[union-attr]
    said = explain_start(Scheduler(harness.state, harness.profile), "j", 0, place)
    assert said.agrees and said.account is not None and said.account.nodes is not None
    assert said.account.nodes.because == "n1 scores higher than n0: preferred nodes 100 against 0"
    assert said.account.nodes.ranked[0].score == 2 * 100 + 3 * 100 + 2 * 100  # of taints and spread: nothing to choose


@pytest.mark.parametrize(
    "wrong",
    [
        (Preferences(nodes=(LikedNodes("", 1),)),),
        (Preferences(nodes=(LikedNodes("s", 0),)),),
        (Preferences(pods=(LikedPods("c", 1 << 40),)),),
        (Preferences(), Preferences()),
    ],
)
def test_preferences_that_make_no_sense_are_refused(wrong: tuple[Preferences, ...]) -> None:
    with pytest.raises(StateError, match=r"job 'j' (prefers|has 2 preferences)"):
        harness_of().submit(replace(make_job("j", 1), preferences=wrong))
