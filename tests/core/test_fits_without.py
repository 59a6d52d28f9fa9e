"""Whether a gang fits once others have left: a count says what placing it says."""

from __future__ import annotations

from itertools import combinations

import numpy as np
from hypothesis import assume, given
from hypothesis import strategies as st
from tests.core.test_apart import start

from kant.cluster.snapshot import Snapshot
from kant.cluster.state import ClusterState
from kant.model.job import Demand, PodGroup
from kant.model.node import ClusterSpec, Node
from kant.model.placement import NODE
from kant.placement.placer import Placer
from kant.testing import make_job, make_named_policy
from kant.testing.strategies import clusters, demands, groups

holding = st.lists(groups(2) | demands(shares_of_several=True).map(lambda one: (PodGroup(1, one),)), max_size=10)


@given(clusters(), holding, demands(), st.integers(1, 12), st.sampled_from(("", "leaf")), st.data())
def test_the_count_says_what_placing_it_says(
    spec: ClusterSpec, running: list[tuple[PodGroup, ...]], demand: Demand, pods: int, within: str, data: st.DataObject
) -> None:
    state = ClusterState(spec)
    for number, own in enumerate(running):
        job = make_job(f"r{number}", groups=own)
        if Placer(Snapshot(state), make_named_policy("placement", "best-fit"), 0).missing(state.shapes.of(job)) == 0:
            start(state, job)
    shape = state.shapes.of(
        make_job("j", groups=(PodGroup(pods, demand),), within=within, within_required=bool(within))
    )
    placer, gone = Placer(Snapshot(state), make_named_policy("placement", "kant"), 0), []
    for row in sorted(state.running):
        gone += [row] if data.draw(st.booleans()) else []
    said = placer.fits_without(shape, np.array(gone, dtype=np.int64))
    assume(said is not None)
    for row in gone:
        placer.trial.evict(state.running[row])
    assert said == (placer.missing(shape) == 0)


def test_a_gang_that_needs_one_leaf_takes_no_places_of_two() -> None:
    state = ClusterState(ClusterSpec("two", tuple(Node(f"n{i}", 8, leaf=f"l{i}", spine="s") for i in range(2))))
    for name in "abcd":
        start(state, make_job(name, 4))
    shape = state.shapes.of(make_job("j", 4, 2, within="leaf", within_required=True))
    placer = Placer(Snapshot(state), make_named_policy("placement", "kant"), 0)
    nodes = {row: held[0, NODE] for row, held in state.running.items()}
    for some in combinations(state.running, 2):
        assert placer.fits_without(shape, np.array(some)) == (nodes[some[0]] == nodes[some[1]])
