"""Gangs that were found bound in part: they are made whole on what they hold, or nothing is decided about them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kant.model.decision import Start
from kant.model.errors import StateError
from kant.model.event import JobFound, JobRefused, JobStarted
from kant.model.job import Demand, Job, PodGroup
from kant.model.node import ClusterSpec, Node
from kant.model.placement import MASK, NODE, PODS
from kant.model.units import SECOND
from kant.scheduler.partial_gangs import complete_partial_gangs
from kant.scheduler.profile import builtin_profile
from kant.testing import Harness


def cluster(nodes: int, per_leaf: int = 4) -> ClusterSpec:
    return ClusterSpec("test", tuple(Node(f"n{i}", 8, leaf=f"leaf-{i // per_leaf}") for i in range(nodes)))


def piece(node: int, device: int, gpus: int) -> list[int]:
    return [node, 1, ((1 << gpus) - 1) << device, 1000, 0, 0, gpus, 0, 0]


@given(
    nodes=st.integers(2, 12),
    pods=st.integers(2, 12),
    gpus=st.sampled_from([1, 2, 4, 8]),
    bound=st.lists(st.tuples(st.integers(0, 11), st.integers(0, 7)), min_size=1, max_size=11, unique=True),
    taken=st.integers(0, 30),
    required=st.booleans(),
)
def test_what_is_found_stays_and_the_rest_comes(
    nodes: int, pods: int, gpus: int, bound: list[tuple[int, int]], taken: int, required: bool
) -> None:
    places = [(node % nodes, slot) for node, slot in bound if slot < 8 // gpus]
    held = np.array([piece(node, slot * gpus, gpus) for node, slot in dict.fromkeys(places)][: pods - 1], np.int64)
    if not len(held):
        return
    harness = Harness(cluster(nodes))
    gang = Job("gang", 0, (PodGroup(pods, Demand(gpus)),), within="leaf" if required else "", within_required=required)
    held_bits: dict[int, int] = {}
    for row in held.tolist():
        held_bits[row[NODE]] = held_bits.get(row[NODE], 0) | row[MASK]
    others = 0
    for node in range(nodes):  # others hold some of what the gang does not
        for device in range(8):
            if others < taken and not (held_bits.get(node, 0) >> device) & 1:
                harness.submit(Job(f"other-{others}", 0, (PodGroup(1, Demand(1)),)))
                harness.happen(JobStarted(harness.now, f"other-{others}", np.array([piece(node, device, 1)], np.int64)))
                others += 1
    harness.submit(gang, Job("rival", 0, (PodGroup(1, Demand(1)),)))
    harness.happen(JobFound(harness.now, "gang", held))
    plan = complete_partial_gangs(harness.scheduler, harness.now)
    assert plan.mending
    starts = [decision for decision in plan.decisions if isinstance(decision, Start)]
    assert len(starts) == len(plan.decisions) <= 1
    if not starts:
        return
    start = starts[0]
    assert (start.job, start.kept) == ("gang", len(held))
    assert int(start.allocation[:, PODS].sum()) == pods
    assert {tuple(row) for row in held.tolist()} <= {tuple(row) for row in start.allocation.tolist()}
    if required:
        assert len({node // 4 for node in start.allocation[:, NODE].tolist()}) == 1
    harness.happen(JobStarted(harness.now, "gang", start.allocation))


def test_it_starts_wherever_there_is_room_for_what_is_missing() -> None:
    harness = Harness(cluster(2))
    harness.submit(Job("gang", 0, (PodGroup(4, Demand(4)),)))
    harness.happen(JobFound(0, "gang", np.array([piece(1, 0, 4)], np.int64)))
    (start,) = complete_partial_gangs(harness.scheduler, 0).decisions
    assert isinstance(start, Start) and start.kept == 1 and int(start.allocation[:, PODS].sum()) == 4


@pytest.mark.parametrize("first", ["whole", "stuck"])
def test_what_one_gang_holds_no_other_gets_be_it_made_whole_or_not(first: str) -> None:
    """The stuck one needs more than there is; its piece on n1 is free on paper and all that whole could still have."""
    harness = Harness(cluster(2))
    gangs = [Job("whole", 0, (PodGroup(3, Demand(4)),)), Job("stuck", 0, (PodGroup(5, Demand(4)),))]
    held = {"whole": [piece(0, 0, 4)], "stuck": [piece(0, 4, 4), piece(1, 0, 4)]}
    harness.submit(*gangs)
    for job in (first, *(one for one in held if one != first)):
        harness.happen(JobFound(0, job, np.array(held[job], np.int64)))
    assert complete_partial_gangs(harness.scheduler, 0).decisions == []


def test_a_start_that_was_refused_without_blame_is_tried_again_at_once() -> None:
    for blameless in (False, True):
        harness = Harness(cluster(1), builtin_profile("kant"))  # backs off for 10 s
        harness.submit(Job("one", 0, (PodGroup(1, Demand(4)),)))
        harness.cycle(0)
        harness.happen(JobRefused(0, "one", "its node has lost what it was placed for", blameless))
        harness.cycle(SECOND)
        assert harness.running() == (["one"] if blameless else [])


def test_more_than_it_asks_for_is_not_its_own() -> None:
    harness = Harness(cluster(2))
    harness.submit(Job("gang", 0, (PodGroup(1, Demand(4)),)))
    harness.happen(JobFound(0, "gang", np.array([piece(0, 0, 4), piece(1, 0, 4)], np.int64)))
    assert complete_partial_gangs(harness.scheduler, 0).decisions == []


def test_only_a_waiting_job_is_found_on_nodes_that_are_there() -> None:
    harness = Harness(cluster(2))
    with pytest.raises(StateError, match="'gang' does not exist"):
        harness.happen(JobFound(0, "gang", np.array([piece(0, 0, 4)], np.int64)))
    harness.submit(Job("gang", 0, (PodGroup(2, Demand(4)),)))
    with pytest.raises(StateError, match="nodes that do not exist"):
        harness.happen(JobFound(0, "gang", np.array([piece(2, 0, 4)], np.int64)))
    harness.cycle()
    with pytest.raises(StateError, match="while it was not waiting"):
        harness.happen(JobFound(0, "gang", np.array([piece(0, 0, 4)], np.int64)))


def test_what_is_bound_on_a_node_that_takes_nothing_new_stays_there() -> None:
    harness = Harness(cluster(3))
    harness.cordon("n1")
    harness.submit(Job("gang", 0, (PodGroup(4, Demand(4)),)))
    harness.happen(JobFound(0, "gang", np.array([piece(1, 0, 4)], np.int64)))
    (start,) = complete_partial_gangs(harness.scheduler, 0).decisions
    assert isinstance(start, Start) and start.kept == 1
    assert start.allocation[:, NODE].tolist().count(1) == 1
    harness.happen(JobStarted(0, "gang", start.allocation))
