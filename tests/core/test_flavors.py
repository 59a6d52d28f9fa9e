"""A job that names flavors runs on nodes of these and on no others."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples

from kant.cluster.columns import POOL
from kant.cluster.state import ClusterState
from kant.model.decision import Start
from kant.model.job import Job
from kant.model.node import ClusterSpec, Node
from kant.testing import Harness, make_job, make_profile
from kant.testing.naive import admits
from kant.testing.strategies import clusters, jobs

SPEC = ClusterSpec("test", (Node("a", 8, flavor="spot"), Node("b", 8), Node("c", 8, flavor="on demand")))


@given(clusters(), jobs("j"))
@settings(max_examples=examples(50))
def test_the_pools_of_a_job_are_those_whose_nodes_admit_it(spec: ClusterSpec, job: Job) -> None:
    state = ClusterState(spec)
    shape = state.shapes.of(job)
    for index, node in enumerate(spec.nodes):
        assert bool(shape.pool_bits >> int(state.table[index, POOL]) & 1) == admits(node, job)


@given(st.lists(st.sampled_from(((), ("spot",), ("",), ("spot", "on demand"), ("nowhere",))), min_size=1, max_size=6))
@settings(max_examples=examples(20))
def test_jobs_start_on_nodes_of_their_flavors_alone(asked: list[tuple[str, ...]]) -> None:
    harness = Harness(SPEC, make_profile())
    for number, flavors in enumerate(asked):
        harness.submit(make_job(f"j{number}", gpus=8, flavors=flavors))
    plan = harness.cycle()
    for decision in plan.decisions:
        if isinstance(decision, Start):
            flavors = asked[int(decision.job[1:])]
            assert not flavors or {SPEC.nodes[row[0]].flavor for row in decision.allocation} <= set(flavors)
    started = {decision.job for decision in plan.decisions if isinstance(decision, Start)}
    assert all(f"j{number}" not in started for number, flavors in enumerate(asked) if flavors == ("nowhere",))
    first = asked.index(("spot",)) if ("spot",) in asked else -1
    if first >= 0 and all(flavors == ("",) for flavors in asked[:first]):
        assert f"j{first}" in started


def test_a_pool_is_named_with_its_flavor() -> None:
    state = ClusterState(SPEC)
    assert [state.shapes.pool_name(pool) for pool in range(3)] == ["gpu", "gpu of on demand", "gpu of spot"]
