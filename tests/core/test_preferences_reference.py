"""Pods go where the reference says that they like it best, by what it counts in the whole cluster for each pod.

The reference works with fractions and has no counters; rules of single nodes stand beside the preferences.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.core.reference_worlds import DISCIPLINES, NODE_SETS, Watched
from tests.core.test_rules_reference import CLASSES, TOPOLOGIES, change, draw_cluster, draw_job
from tests.examples import examples

from kant.model.event import JobSubmitted, NodeSetChanged
from kant.model.preference import LikedNodes, LikedPods, LikedSpread, Preferences
from kant.model.units import SECOND
from kant.placement.preference_scores import log_milli
from kant.placement.preference_weights import PreferenceWeights
from kant.queueing.requeue import Requeue
from kant.testing import make_profile
from kant.testing.drawn import generator

SEEDS = st.integers(0, 10**9)


def draw_preferences(draw: np.random.Generator) -> Preferences:
    def some(most: int) -> range:
        return range(int(draw.integers(most + 1)))

    def counted() -> tuple[str, str]:
        return str(draw.choice(CLASSES)), str(draw.choice(TOPOLOGIES))

    pulls = (counted() for _ in some(2))
    return Preferences(
        tuple(LikedNodes(name, int(draw.integers(1, 101))) for name in NODE_SETS if draw.integers(3) == 0),
        tuple(name for name in NODE_SETS if draw.integers(4) == 0),
        tuple(LikedPods(name, int(draw.choice([-100, -1, 1, 50])), topology) for name, topology in pulls),
        tuple(LikedSpread(*counted(), int(draw.integers(1, 4))) for _ in some(2)),
    )


def preferring_run(seed: int) -> Watched:
    """One random world: jobs that like nodes and pods come and go, and what is said of nodes and pods changes."""
    draw = generator(seed)
    placement = str(draw.choice(["first-fit", "best-fit", "worst-fit"]))
    requeue = Requeue(base_s=0, in_place_s=-1, avoid_bad_nodes=False)
    profile = make_profile("fifo", DISCIPLINES["best-effort"], placement, None, requeue)
    weights = PreferenceWeights(*(int(draw.choice([0, 1, 1, 2, 3])) for _ in range(5)))
    spec = draw_cluster(draw)
    harness = Watched(spec, dataclasses.replace(profile, preferences=weights), seed=seed)
    for name in NODE_SETS:
        harness.happen(NodeSetChanged(0, name, tuple(node.name for node in spec.nodes if draw.integers(2))))
    kinds = [
        replace(draw_job(draw, number, 0, 1, wide=False), node_set="", preferences=(draw_preferences(draw),))
        for number in range(int(draw.integers(2, 6)))
    ]
    for number in range(16):
        change(draw, harness, wide=False)
        job = replace(kinds[int(draw.integers(len(kinds)))], id=f"j{number}", submit=harness.now)
        runtime = int(draw.choice([40, 200, 2000])) * SECOND
        harness.run([JobSubmitted(harness.now, job, runtime)], until=harness.now + int(draw.integers(30)) * SECOND)
        harness.state.check()
        if harness.differences:
            break
    return harness


@given(seed=SEEDS)
@settings(max_examples=examples(40), deadline=None)
def test_pods_go_where_the_reference_says_they_like_it_best(seed: int) -> None:
    assert preferring_run(seed).differences == []


@pytest.mark.parametrize("number", [1, 2, 3, 7, 50, 100, 5_000])
def test_the_logarithm_is_right_to_a_thousandth(number: int) -> None:
    assert abs(log_milli(number) - 1000 * math.log(number)) <= 1
