"""More nodes: so many as are named start the job, one fewer does not, and no kind that helps is left out."""

from __future__ import annotations

import pytest
from tests.examples import examples

from kant.insight.diagnosis import Diagnosis
from kant.insight.explanation import explain
from kant.insight.more_nodes import MoreNodes, more_nodes, more_nodes_sentence
from kant.live.explained import as_json
from kant.model.event import JobStarted, JobSubmitted, NodeChanged
from kant.model.growth import with_more
from kant.model.node import ClusterSpec, Node
from kant.model.status import NodeStatus
from kant.model.units import SECOND
from kant.scheduler.cycle import Scheduler
from kant.testing import Harness, make_job, make_profile
from kant.testing.drawn import generator


def found(harness: Harness, job: str) -> tuple[MoreNodes, ...]:
    diagnosis = Diagnosis(harness.scheduler, harness.now)
    return more_nodes(diagnosis, diagnosis.row(job))


def starts_with(harness: Harness, job: str, like: str, more: int) -> bool:
    """Whether the scheduler itself starts it first on the larger cluster, every running job in its place there."""
    state = harness.state
    node = next(one for one in state.spec.nodes if one.name == like)
    larger = harness.profile.new_state(with_more(state.spec, node, more))
    for row, allocation in state.running.items():
        larger.apply(JobSubmitted(harness.now, state.live[row]))
        larger.apply(JobStarted(harness.now, state.ids[row], allocation))
    for index, status in enumerate(state.table[:, 0].tolist()):
        if status != NodeStatus.IN_SERVICE:
            larger.apply(NodeChanged(harness.now, state.spec.nodes[index].name, status))
    larger.apply(JobSubmitted(harness.now, state.live[state.rows[job]]))
    plan = Scheduler(larger, harness.profile).cycle(harness.now)
    return job in [getattr(one, "job", "") for one in plan.decisions if type(one).__name__ == "Start"]


@pytest.mark.parametrize("seed", range(examples(40)))
def test_so_many_suffice_and_one_fewer_does_not(seed: int) -> None:
    draw = generator(seed)
    nodes = tuple(
        Node(f"n{i}", gpus, model=model, leaf=f"leaf{i // 2}")
        for i, (gpus, model) in enumerate([(4, "A"), (4, "A"), (8, "A"), (8, "B"), (8, "B")])
    )
    harness = Harness(ClusterSpec("mixed", nodes), make_profile("fifo", "best-effort"), seed=seed)
    for i in range(16):
        gpus, pods = int(draw.integers(1, 9)), int(draw.integers(1, 5))
        models = [(), ("A",), ("B",)][int(draw.integers(3))]
        level = {"within": "leaf", "within_required": True} if draw.integers(3) == 0 and pods > 1 else {}
        harness.submit(make_job(f"j{i}", gpus, pods, models=models, **level))
        harness.cycle()
        harness.now += SECOND
    if seed % 2:
        harness.change_node("n3", NodeStatus.CORDONED) if hasattr(harness, "change_node") else None
    named = 0
    for job in harness.waiting():
        answers = {one.like: one for one in found(harness, job)}
        for like in ("n0", "n2", "n3"):
            needed = next((n for n in range(1, 6) if starts_with(harness, job, like, n)), None)
            assert (answers[like].count if like in answers else None) == needed, (job, like)
            named += needed is not None
    assert named


def test_what_is_said_of_them() -> None:
    cluster = ClusterSpec("c", (Node("n0", 8, model="H100"), Node("n1", 8, model="H100")))
    harness = Harness(cluster, make_profile("fifo", "best-effort"))
    harness.submit(make_job("first", 8))
    harness.cycle(0)
    harness.submit(make_job("large", 8, 5))
    (one,) = found(harness, "large")
    assert one == MoreNodes(4, "n0", 8, "H100")
    assert more_nodes_sentence(one) == "4 more nodes like n0 (8 H100)"
    answer = as_json(explain(harness.scheduler, "large", harness.now))["more_nodes"]
    told = {"sentence": more_nodes_sentence(one), "remedy": "4 more nodes like n0 (8 H100) come", "quotas": ()}
    assert answer == [{"count": 4, "like": "n0", "gpus": 8, "model": "H100", **told}]
    harness.submit(make_job("small", 8))
    assert found(harness, "small") == (), "it has a place: it waits for its turn alone"
    before = harness.state.now
    assert harness.state.now == before and harness.waiting()
    harness.state.check()
