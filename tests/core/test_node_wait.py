"""A queue that waits for an autoscaler's node stops nobody before, and whoever lacks a quota does not wait for one.

That every plan keeps the rule is `test_reference.py`: its worlds have such queues.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from kant.insight.explanation import explain
from kant.insight.facts import AwaitsNode, ProtectedVictims, fact_sentence
from kant.insight.moment import moment_of
from kant.insight.past_jobs import PastJobs
from kant.model.event import JobAwaitsNode
from kant.model.node import ClusterSpec, Node
from kant.model.tenant import Quota
from kant.model.units import HOUR, MINUTE, SECOND, clock
from kant.queueing.disciplines.backfill import Backfill
from kant.queueing.preemption.policy import Preemption
from kant.scheduler.node_preemption import preempt_by_node
from kant.sim.forecast_starts import forecast_starts
from kant.testing import Harness, make_cluster, make_job, make_profile
from kant.testing.builders import make_queue

CAME = 10 * SECOND


def full(wait_s: int, min_run_s: int = 0) -> Harness:
    """A node that a job of low priority fills, and since CAME one of high priority whose queue waits for a node."""
    harness = Harness(make_cluster(8), make_profile(preemption=Preemption(min_run_s=min_run_s)))
    harness.set_queues(make_queue("ours", 64, node_wait=wait_s * SECOND))
    harness.submit(make_job("low", 8, queue="ours"))
    harness.cycle(0)
    harness.now = CAME
    harness.submit(make_job("high", 8, queue="ours", priority=1))
    harness.cycle(CAME)
    return harness


def facts(harness: Harness, job: str) -> list[AwaitsNode | ProtectedVictims]:
    found = explain(harness.scheduler, job, harness.now)
    return [one for one in found.facts if isinstance(one, AwaitsNode | ProtectedVictims)]


@given(wait=st.integers(0, 900), min_run=st.integers(0, 900), joins=st.integers(1, 1000))
def test_the_node_comes_in_time_or_the_job_stops_others_once_it_has_waited(wait: int, min_run: int, joins: int) -> None:
    harness = full(wait, min_run)
    due = max(CAME + wait * SECOND, min_run * SECOND)
    if due > CAME:
        starts = forecast_starts(moment_of(harness.scheduler, PastJobs(), harness.now)).jobs["high"].start
        assert starts.p50 == starts.p90 == due
    if CAME + joins * SECOND < due:
        harness.now = CAME + joins * SECOND
        harness.join(Node("more", 8))
        harness.cycle(harness.now)
        assert sorted(harness.running()) == ["high", "low"]
        return
    if due > CAME:
        while (at := harness.plans[-1].review_at) < due:
            assert at > CAME and harness.running() == ["low"]
            harness.cycle(at)
        assert at == due
        harness.cycle(due - 1)
        assert harness.running() == ["low"]
        harness.cycle(due)
    assert harness.running() == ["high"]


def test_it_says_until_when_it_waits_and_what_keeps_it_then() -> None:
    harness = full(300, 100)
    (fact,) = facts(harness, "high")
    assert fact == AwaitsNode("ours", 5 * MINUTE, CAME + 5 * MINUTE)
    assert fact_sentence(fact) == (
        f"it waits for a node until {clock(fact.at)}, and preempts no job before that: 5m in queue ours (node_wait)"
    )
    assert [type(one) for one in facts(full(300, 600), "high")] == [AwaitsNode, ProtectedVictims]
    harness.cycle(CAME + 5 * MINUTE - 1)
    assert facts(harness, "high")


@given(own=st.integers(0, 900), wait=st.integers(0, 900), limited=st.booleans())
def test_a_job_waits_as_long_as_it_asks_or_longer_if_its_queue_says(own: int, wait: int, limited: bool) -> None:
    harness = Harness(make_cluster(8), make_profile(preemption=Preemption(min_run_s=0)))
    if limited:
        harness.set_queues(make_queue("ours", 64, node_wait=wait * SECOND))
    harness.submit(make_job("low", 8, queue="ours"))
    harness.cycle(0)
    harness.submit(make_job("high", 8, queue="ours", priority=1, node_wait=own * SECOND))
    longest = max(own, wait if limited else 0)
    harness.cycle(0)
    assert harness.running() == ["low" if longest else "high"]
    if longest:
        (fact,) = facts(harness, "high")
        assert fact == AwaitsNode("ours" if longest > own else "", longest * SECOND, longest * SECOND)
        assert ("as the job requests" in fact_sentence(fact)) == (longest == own)
        assert harness.plans[-1].review_at == longest * SECOND
        harness.cycle(longest * SECOND)
        assert harness.running() == ["high"]


def test_where_no_autoscaler_adds_a_node_it_stops_others_at_once_until_it_comes_to_wait_anew() -> None:
    harness = full(300)
    harness.happen(JobAwaitsNode(harness.now, "high"))
    assert not facts(harness, "high")
    harness.happen(JobAwaitsNode(harness.now, "high", True))
    harness.cycle(CAME)
    assert harness.running() == ["low"]
    harness.happen(JobAwaitsNode(harness.now, "high"))
    harness.cycle(CAME)
    assert harness.running() == ["high"] and not harness.state.without_node
    harness.happen(JobAwaitsNode(harness.now, "low"))
    harness.cancel("low")
    assert not harness.state.without_node


def test_who_lacks_a_quota_that_others_borrow_takes_it_back_at_once() -> None:
    """A further node would be of no use to it."""
    harness = Harness(make_cluster(8, 8), make_profile(preemption=Preemption(min_run_s=0)))
    harness.set_queues(
        make_queue("all"), make_queue("ours", 8, parent="all", node_wait=MINUTE), make_queue("theirs", 0, parent="all")
    )
    harness.submit(make_job("borrows", 8, queue="theirs"))
    harness.cycle(0)
    harness.submit(make_job("owns", 8, queue="ours"))
    harness.cycle(SECOND)
    assert harness.running() == ["owns"]


def test_nobody_is_stopped_for_what_the_core_does_not_count_either() -> None:
    harness = full(300)
    row = harness.state.rows["high"]

    def plan(now: int) -> object:
        return preempt_by_node(harness.scheduler, now, row, lambda node: ["low"], lambda node, gone: bool(gone))

    assert plan(CAME + 5 * MINUTE - 1) is None
    assert plan(CAME + 5 * MINUTE) is not None


def test_of_several_gpu_models_only_those_wait_that_lack_nothing_but_nodes() -> None:
    spec = ClusterSpec("c", (Node("a", 8, "A"), Node("b", 8, "B")))
    harness = Harness(spec, make_profile(preemption=Preemption(min_run_s=0)))
    quotas = (Quota(model="A"), Quota(model="B", nominal=16_000))
    harness.set_queues(make_queue("ours", quotas=quotas, node_wait=MINUTE))
    harness.submit(make_job("low", 8, queue="ours", models=("B",)))
    harness.cycle(0)
    harness.submit(make_job("high", 8, queue="ours", models=("A", "B"), priority=1))
    harness.cycle(SECOND)
    assert harness.running() == ["low"]
    harness.cycle(MINUTE)
    assert harness.running() == ["high"]


def test_a_late_head_of_backfill_waits_too_and_asks_for_a_cycle_when_it_has() -> None:
    discipline = {"policy": "backfill", "timeout_s": 20, "small_timeout_s": 20}
    harness = Harness(make_cluster(8, 8), make_profile(discipline=discipline))
    harness.set_queues(make_queue("ours", 64, node_wait=2 * MINUTE))
    harness.submit(make_job("first", 8, queue="ours", preemptible=False))
    harness.cycle(0)
    harness.submit(make_job("head", 8, 2, queue="ours"), make_job("passes", 8, queue="ours"))
    harness.cycle(0)
    harness.finish("first")
    harness.cycle(MINUTE)
    assert harness.running() == ["passes"] and harness.plans[-1].review_at == 2 * MINUTE
    harness.cycle(2 * MINUTE)
    assert harness.running() == ["head"]


def test_a_head_that_waits_for_a_node_lets_the_next_one_preempt_who_passed_it() -> None:
    harness = Harness(make_cluster(8), make_profile("fifo", Backfill(timeout_s=60)))
    harness.submit(make_job("old", 2), make_job("one", 3), make_job("two", 3))
    harness.cycle(0)
    harness.submit(structs.replace(make_job("first", 8), node_wait=HOUR), make_job("second", 6))
    harness.finish("one")
    harness.cycle(SECOND)
    harness.submit(make_job("passes", 3))
    harness.cycle(2 * SECOND)
    harness.finish("two")
    assert sorted(harness.running()) == ["old", "passes"]
    harness.cycle(MINUTE + SECOND)
    assert sorted(harness.running()) == ["old", "second"]
