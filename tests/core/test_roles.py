"""Gangs of unlike pods: each group runs on the nodes that its role accepts, and all of them start at once."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples

from kant.cluster.state import ClusterState
from kant.model.decision import NoFit, Start
from kant.model.errors import StateError
from kant.model.job import Demand, Job, PodGroup, Role
from kant.model.node import ClusterSpec, Node
from kant.model.placement import NODE
from kant.model.tenant import Quota
from kant.model.units import GPU
from kant.queueing.preemption.policy import Preemption
from kant.testing import Harness, make_group, make_job, make_profile
from kant.testing.builders import make_queue

CPU, SPOT = Role(flavors=("cpu",)), Role(flavors=("spot",))
POLICIES = ("best-fit", "kant", "e-spread", "random")


def spec(cpu: int, spot: int, others: int = 0) -> ClusterSpec:
    """So many CPU nodes, nodes with eight spot GPUs, and others with eight."""
    return ClusterSpec(
        "unlike",
        (
            *(Node(f"c{i}", 0, cpu=8_000, memory=64_000, flavor="cpu") for i in range(cpu)),
            *(Node(f"s{i}", 8, cpu=64_000, memory=64_000, flavor="spot") for i in range(spot)),
            *(Node(f"o{i}", 8, cpu=64_000, memory=64_000) for i in range(others)),
        ),
    )


def ray(name: str, workers: int, head_cpu: int = 4_000) -> Job:
    """A head that wants CPU alone, and workers of four GPUs."""
    groups = (make_group(0, cpu=head_cpu), make_group(4, workers))
    return make_job(name, groups=groups, roles=(CPU, SPOT))


@given(
    st.integers(1, 3), st.integers(1, 3), st.lists(st.integers(1, 4), min_size=1, max_size=6), st.sampled_from(POLICIES)
)
@settings(max_examples=examples(40))
def test_each_group_runs_where_its_role_says_or_nobody_starts(
    cpu: int, spot: int, sizes: list[int], policy: str
) -> None:
    cluster = spec(cpu, spot, others=2)
    harness = Harness(cluster, make_profile("fifo", "best-effort", policy))
    for number, workers in enumerate(sizes):
        harness.submit(ray(f"j{number}", workers))
    heads, places = 2 * cpu, 2 * spot
    for decision in harness.cycle().decisions:
        if isinstance(decision, Start):
            flavors = {(piece[0], cluster.nodes[piece[NODE]].flavor) for piece in decision.allocation.tolist()}
            assert {flavor for _, flavor in flavors} == {"cpu", "spot"}
    for number, workers in enumerate(sizes):
        fits = heads >= 1 and places >= workers
        assert (f"j{number}" in harness.running()) == fits
        heads, places = (heads - 1, places - workers) if fits else (heads, places)


def test_the_groups_of_a_gang_start_together_or_not_at_all() -> None:
    harness = Harness(spec(cpu=1, spot=1), make_profile())
    harness.submit(make_job("head", groups=(make_group(0, cpu=6_000),), flavors=("cpu",)))
    harness.submit(ray("gang", 2))
    plan = harness.cycle()
    assert harness.running() == ["head"], "no CPU node has four cores left"
    held = next(decision for decision in plan.decisions if not isinstance(decision, Start))
    assert isinstance(held.reason, NoFit) and (held.reason.group, held.reason.fits) == (0, 0)
    harness.finish("head")
    harness.cycle()
    assert harness.running() == ["gang"]


def test_a_gang_evicts_for_one_of_its_roles() -> None:
    """Whoever stands in the way of the workers stops, not who holds the nodes of nobody."""
    harness = Harness(spec(cpu=1, spot=1, others=1), make_profile(preemption=Preemption(min_run_s=0)))
    harness.submit(make_job("in the way", 8, priority=-1, flavors=("spot",)))
    harness.submit(make_job("elsewhere", 8, priority=-1, flavors=("",)))
    harness.cycle()
    harness.submit(ray("gang", 2))
    harness.cycle()
    harness.cycle()
    assert sorted(harness.running()) == ["elsewhere", "gang"]


def test_a_quota_of_one_model_does_not_shut_out_the_nodes_without_gpus() -> None:
    nodes = (Node("cpu", 0, cpu=8_000, flavor="cpu"), Node("a", 8, "A100", cpu=8_000), Node("h", 8, "H800", cpu=8_000))
    harness = Harness(ClusterSpec("models", nodes), make_profile())
    harness.set_queues(make_queue("default", quotas=(Quota("gpu", "H800", 8 * GPU),)))
    groups = (make_group(0, cpu=1_000), make_group(8, 1))
    harness.submit(make_job("gang", groups=groups, roles=(CPU, Role(models=("H800", "A100"))), queue="default"))
    harness.submit(make_job("second", groups=groups, roles=(CPU, Role(models=("H800",))), queue="default"))
    harness.cycle()
    assert (harness.running(), sorted(harness.nodes_of("gang"))) == (["gang"], ["cpu", "h"])
    harness.finish("gang")
    harness.cycle()
    assert harness.running() == ["second"]


@pytest.mark.parametrize(("quota", "runs"), [(499, []), (500, ["gang"])])
def test_parts_that_nodes_have_cut_count_for_what_they_are_worth(quota: int, runs: list[str]) -> None:
    """The head lies in one piece with a worker, on nodes of two models."""
    nodes = (Node("a", 0, "A100", cpu=5_000, flavor="mig"), Node("h", 0, "H800", cpu=4_000, flavor="mig"))
    harness = Harness(ClusterSpec("models", nodes), make_profile())
    harness.set_queues(make_queue("default", quotas=(Quota("gpu", "", quota),)))
    groups = (PodGroup(1, Demand(0, GPU, 1_000)), PodGroup(2, Demand(0, 250, 4_000, mig="parts")))
    harness.submit(make_job("gang", groups=groups, queue="default"))
    harness.cycle()
    assert harness.running() == runs
    assert harness.state.quota_usage.held[0][0] == (500 if runs else 0)


def test_a_lender_takes_back_the_quota_that_is_used_for_parts() -> None:
    harness = Harness(spec(1, 0), make_profile(preemption=Preemption(min_run_s=0)))
    harness.set_queues(*(make_queue(name, 1, parent="all") for name in ("a", "b")), make_queue("all", 0))
    parts = (PodGroup(1, Demand(0, 1000, 1_000, mig="parts")),)
    for name, queue in (("own", "a"), ("borrows", "a"), ("lender", "b")):
        harness.submit(make_job(name, groups=parts, queue=queue))
        harness.cycle()
    harness.cycle()
    assert sorted(harness.running()) == ["lender", "own"]


def test_the_role_of_a_lost_pod_is_kept() -> None:
    """One worker's node breaks: its pods move to a node of the same role, and the head stays."""
    harness = Harness(spec(cpu=2, spot=3, others=1), make_profile())
    harness.submit(ray("gang", 4))
    harness.cycle()
    (before,) = harness.state.running.values()
    lost = max(before[:, NODE].tolist())
    harness.fail(harness.state.spec.nodes[lost].name)
    harness.cycle()
    (after,) = harness.state.running.values()
    assert lost not in after[:, NODE] and before[0, NODE] in after[:, NODE]
    assert {harness.state.spec.nodes[node].flavor for node in after[:, NODE].tolist()} == {"cpu", "spot"}


def test_a_job_without_roles_is_written_as_before() -> None:
    assert b"roles" not in msgspec.json.encode(make_job("plain", 8))
    gang = ray("gang", 2)
    assert msgspec.json.decode(msgspec.json.encode(gang), type=Job) == gang


def test_roles_of_other_groups_than_there_are_are_refused() -> None:
    with pytest.raises(StateError, match="has 2 roles for 1 groups; expected one for each"):
        ClusterState(spec(1, 1)).shapes.of(make_job("j", groups=(make_group(1),), roles=(CPU, SPOT)))
