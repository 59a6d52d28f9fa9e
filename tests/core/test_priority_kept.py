"""Priority is kept under the profiles that are shipped: an urgent job starts as if no lower one waited beside it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.core.test_long_lived_scheduler import RIGHTS, among_tenants, compared
from tests.core.test_pending import told, wakes_everything
from tests.examples import examples

from kant.insight.explanation import explain
from kant.model.decision import Grow, Hold, Outranked, Plan, Preempt, Start, sentence
from kant.model.event import JobSubmitted, NodeSetChanged
from kant.model.job import Job
from kant.model.node import ClusterSpec, Node
from kant.model.units import HOUR, SECOND
from kant.queueing.disciplines.backfill import Backfill
from kant.queueing.preemption.policy import Preemption
from kant.scheduler.profile import builtin_profile
from kant.testing import Harness, make_cluster, make_group, make_job, make_profile
from kant.testing.builders import make_queue

KEEPING = ("kant", "kant-stretch", "kant-turns", "backfill")
"""The profiles that keep priority."""

SECONDS = st.integers(1, 400)
SHAPES = st.sampled_from(((1, 1), (1, 2), (1, 4), (2, 2), (2, 4), (3, 4)))  # pods, and GPUs of each


def started(plan: Plan) -> list[str]:
    return [d.job for d in plan.decisions if isinstance(d, Start)]


def preempted(plan: Plan) -> list[str]:
    return [d.job for d in plan.decisions if isinstance(d, Preempt) and not d.moved]


class Run:
    """A run of jobs under a shipped profile: when each started, and who was preempted when."""

    def __init__(self, profile: str, nodes: tuple[int, ...], coming: list[JobSubmitted], cancel: int = -1) -> None:
        """`cancel`: jobs of priority 0 that wait at that time, or come later, leave, µs."""
        self.harness = Harness(make_cluster(*nodes), builtin_profile(profile), check=False)
        self.harness.before_carrying_out = self.look
        self.starts: dict[str, int] = {}
        self.preempted: list[tuple[str, int]] = []
        if cancel < 0:
            self.harness.run(coming)
            return
        low = [event.job.id for event in coming if not event.job.priority]
        self.harness.run([event for event in coming if event.time < cancel], until=cancel - 1)
        self.harness.now = cancel
        self.harness.cancel(*(job for job in self.harness.waiting() if job in low))
        self.harness.run([event for event in coming if event.time >= cancel and event.job.id not in low])

    def look(self, plan: Plan) -> None:
        for job in started(plan):
            self.starts.setdefault(job, plan.time)
        self.preempted += [(job, plan.time) for job in preempted(plan)]


def issued(job: Job, time: int, runtime: int) -> JobSubmitted:
    return JobSubmitted(time, msgspec.structs.replace(job, submit=time), runtime)


@st.composite
def streams(draw: st.DrawFn) -> tuple[list[JobSubmitted], int]:
    """Jobs of priority 0 that come for ten minutes; and when an urgent gang of one or several groups comes."""
    unit = draw(st.sampled_from((SECOND // 10, SECOND, 10 * SECOND)))
    found, now = [], 0
    for i in range(draw(st.integers(2, 14))):
        now += draw(st.sampled_from((0, 0, 1, 20))) * unit
        pods, gpus = draw(SHAPES)
        found.append(issued(make_job(f"low{i}", gpus, pods), now, draw(SECONDS) * unit))
    at = draw(st.integers(1, 60)) * unit + 1
    sizes = draw(st.lists(SHAPES, min_size=1, max_size=2))
    urgent = make_job("urgent", groups=tuple(make_group(gpus, pods) for pods, gpus in sizes), priority=100)
    found.append(issued(urgent, at, draw(SECONDS) * unit))
    return sorted(found, key=lambda event: event.time), at


def twelve(unit: int = SECOND) -> tuple[list[JobSubmitted], int]:
    """Twelve jobs of half the cluster that end one after the other, and an urgent one that needs all of it."""
    low = [issued(make_job(f"low{i}", 4), 0, 5 * unit // 2 + i * unit // 5) for i in range(12)]
    return [*low, issued(make_job("urgent", 4, 2, priority=100), unit, 5 * unit)], unit


@pytest.mark.parametrize("profile", KEEPING)
@given(nodes=st.sampled_from(((4, 4), (4, 4, 4), (8, 4), (2, 4, 4))), stream=streams())
@example(nodes=(4, 4), stream=twelve())
@example(nodes=(4, 4), stream=twelve(100 * SECOND))
@settings(max_examples=examples(40), deadline=None)
def test_an_urgent_job_starts_as_if_nobody_of_lower_priority_waited(
    profile: str, nodes: tuple[int, ...], stream: tuple[list[JobSubmitted], int]
) -> None:
    coming, at = stream
    beside, alone = Run(profile, nodes, coming), Run(profile, nodes, coming, cancel=at)
    if "urgent" in alone.starts:
        assert beside.starts["urgent"] <= alone.starts["urgent"]


@pytest.mark.parametrize("profile", KEEPING)
@given(nodes=st.sampled_from(((4, 4), (4, 4, 4), (8, 4))), stream=streams())
@example(nodes=(4, 4), stream=twelve(100 * SECOND))
@settings(max_examples=examples(20), deadline=None)
def test_nobody_starts_beside_an_urgent_job_to_be_preempted_within_its_hold(
    profile: str, nodes: tuple[int, ...], stream: tuple[list[JobSubmitted], int]
) -> None:
    """While the urgent job holds the others nobody is preempted who has run for less than its minimum."""
    coming, at = stream
    run = Run(profile, nodes, coming)
    for job, time in run.preempted:
        assert time - run.starts[job] >= 300 * SECOND or time >= at + 300 * SECOND


@pytest.mark.parametrize("profile", KEEPING)
def test_of_several_priorities_each_goes_before_all_lower_ones(profile: str) -> None:
    harness = Harness(make_cluster(4, 4), builtin_profile(profile))
    coming = [issued(make_job(f"low{i}", 4), 0, (20 + i) * SECOND) for i in range(6)]
    coming += [issued(make_job(f"p{p}", 4, 2, priority=p), SECOND, 20 * SECOND) for p in (1, 5, 3)]
    starts: list[str] = []
    harness.before_carrying_out = lambda plan: starts.extend(started(plan))
    harness.run(coming)
    assert starts[2:5] == ["p5", "p3", "p1"]


@pytest.mark.parametrize("profile", ["kant", "kant-stretch", "kant-turns"])
@given(began=st.lists(st.integers(0, 200), min_size=2, max_size=2), pods=st.integers(1, 2))
@settings(max_examples=examples(20), deadline=None)
def test_an_urgent_job_takes_a_place_as_soon_as_enough_of_those_that_run_have_had_their_minimum(
    profile: str, began: list[int], pods: int
) -> None:
    """With the shipped `min_run_s`, however many of lower priority wait beside it, and at the time that `why` names."""
    harness = Harness(make_cluster(4, 4), builtin_profile(profile))
    for i, start in enumerate(sorted(began)):
        harness.now = start * SECOND
        harness.submit(make_job(f"runs{i}", 4))
        harness.cycle()
    harness.now = 250 * SECOND
    harness.submit(make_job("urgent", 4, pods, priority=1), *(make_job(f"waits{i}", 4) for i in range(3)))
    harness.cycle()
    due = max((sorted(began)[pods - 1] + 300), 250) * SECOND
    (fact,) = [one for one in explain(harness.scheduler, "urgent", harness.now).facts if hasattr(one, "min_run")]
    assert fact.at == due
    harness.cycle(due - 1)
    assert "urgent" not in harness.running()
    plan = harness.cycle(due)
    assert started(plan) == ["urgent"] and len(preempted(plan)) == pods


def stuck(profile: str, *low: Job) -> Harness:
    """A service that is never preempted holds a GPU; an urgent gang waits for both nodes; then `low` come."""
    harness = Harness(make_cluster(4, 4), builtin_profile(profile))
    harness.submit(make_job("service", 1, preemptible=False))
    harness.cycle(0)
    harness.submit(make_job("huge", 4, 2, priority=100))
    harness.cycle(0)
    harness.submit(*low)
    harness.cycle(0)
    return harness


@pytest.mark.parametrize("profile", KEEPING)
def test_an_urgent_gang_that_cannot_fit_does_not_stop_the_others_for_ever(profile: str) -> None:
    harness = stuck(profile, make_job("low", 2), make_job("fixed", 2, preemptible=False))
    plan = harness.plans[-1]
    assert not started(plan) and plan.review_at == 300 * SECOND
    assert explain(harness.scheduler, "low", 0).reason == Outranked("huge", 300 * SECOND)
    plan = harness.cycle(300 * SECOND)
    assert started(plan) == ["low"] and 0 < plan.review_at <= HOUR
    assert explain(harness.scheduler, "fixed", harness.now).reason == Outranked("huge", HOUR)
    assert started(harness.cycle(HOUR)) == ["fixed"]


@pytest.mark.parametrize("profile", KEEPING)
def test_who_has_passed_an_urgent_job_makes_room_for_it_at_once(profile: str) -> None:
    """Whatever `most` says, and before its minimum run time: the job that passed holds eight times the GPUs."""
    harness = Harness(make_cluster(8), builtin_profile(profile))
    harness.submit(make_job("service", 1, preemptible=False), make_job("fills", 7, preemptible=False))
    harness.cycle(0)
    harness.submit(make_job("urgent", 1, milli=1000, cpu=0, priority=9, groups=(make_group(4, 2),)))
    harness.submit(make_job("low", 7))
    harness.cycle(0)
    harness.finish("fills")
    assert started(harness.cycle(300 * SECOND)) == ["low"]
    harness.finish("service")
    plan = harness.cycle(301 * SECOND)
    assert (preempted(plan), started(plan)) == (["low"], ["urgent"])


@pytest.mark.parametrize("profile", KEEPING)
def test_jobs_pass_on_nodes_that_the_urgent_job_cannot_use(profile: str) -> None:
    nodes = (Node("large", 8), Node("small", 4), Node("other", 8, model="T4"))
    harness = Harness(ClusterSpec("mixed", nodes), builtin_profile(profile))
    harness.submit(make_job("fills", 6, models=("",)))
    harness.cycle(0)
    harness.submit(make_job("urgent", 8, models=("",), priority=1))
    harness.submit(make_job("beside", 2, models=("",)), make_job("elsewhere", 8, models=("T4",)))
    plan = harness.cycle(0)
    assert sorted(started(plan)) == ["beside", "elsewhere"]
    assert harness.nodes_of("beside") == ["small"]
    harness.submit(make_job("waits", 4, models=("",)))
    assert not started(harness.cycle(SECOND))


def test_a_job_is_not_held_for_a_model_whose_last_node_has_left() -> None:
    nodes = Node("old", 4, model="A100"), Node("new", 4, model="H800")
    harness = Harness(ClusterSpec("test", nodes), builtin_profile("kant"))
    harness.submit(make_job("victim", 4, models=("H800",), submit=0))
    harness.cycle(0)
    harness.leave("old")
    harness.now = HOUR
    harness.submit(make_job("urgent", 4, models=("A100",), priority=5, submit=HOUR))
    harness.submit(make_job("next", 4, models=("A100", "H800"), priority=1, submit=HOUR))
    assert preempted(harness.cycle(HOUR)) == ["victim"] and harness.running() == ["next"]


def test_a_job_is_not_passed_for_the_quota_of_its_queue_either() -> None:
    """The queue has half the cluster, so each of the small ones would take what the urgent one waits for."""
    harness = Harness(make_cluster(8, 8), builtin_profile("kant"))
    harness.set_queues(make_queue("all"), make_queue("ours", 8, borrowing=0, parent="all"))
    starts: dict[str, int] = {}
    harness.before_carrying_out = lambda plan: starts.update(dict.fromkeys(started(plan), plan.time))
    low = [issued(make_job(f"low{i}", 4, queue="ours"), 0, (20 + i) * SECOND) for i in range(8)]
    harness.run([*low, issued(make_job("urgent", 8, queue="ours", priority=1), SECOND, SECOND)])
    assert starts["urgent"] == 21 * SECOND
    assert not [job for plan in harness.plans for job in preempted(plan)]


def test_a_queue_within_its_quota_is_not_held_by_one_that_borrows() -> None:
    harness = Harness(make_cluster(8, 4), builtin_profile("kant"))
    harness.set_queues(make_queue("all"), make_queue("ours", 8, parent="all"), make_queue("theirs", 4, parent="all"))
    harness.submit(make_job("runs", 2, queue="ours", preemptible=False))
    harness.cycle(0)
    harness.submit(make_job("borrows", 8, queue="theirs", priority=9), make_job("entitled", 6, queue="ours"))
    assert started(harness.cycle(0)) == ["entitled"]


@pytest.mark.parametrize("profile", KEEPING)
def test_most_protects_nobody_who_has_passed(profile: str) -> None:
    """The gang that passed holds nine GPUs, and the urgent job asks for two."""
    harness = Harness(make_cluster(*[2] * 9), builtin_profile(profile))
    harness.submit(*(make_job(f"fixed{i}", preemptible=False) for i in range(18)))
    harness.cycle(0)
    harness.submit(make_job("urgent", 2, priority=9), make_job("low", 1, 9))
    harness.finish(*{harness.nodes_of(f"fixed{i}")[0]: f"fixed{i}" for i in range(18)}.values())
    assert not started(harness.cycle(0))
    assert started(harness.cycle(300 * SECOND)) == ["low"]
    (last,) = [f"fixed{i}" for i in range(18) if f"fixed{i}" in harness.running()][:1]
    harness.finish(last)
    plan = harness.cycle(301 * SECOND)
    assert (preempted(plan), started(plan)[:1]) == (["low"], ["urgent"])


@pytest.mark.parametrize("profile", KEEPING)
def test_a_gang_does_not_grow_into_what_an_urgent_job_waits_for(profile: str) -> None:
    harness = Harness(make_cluster(4, 4), builtin_profile(profile))
    harness.submit(make_job("fixed", 4, preemptible=False), make_job("gone", 3), make_job("grows", 1, 4, floor=1))
    harness.cycle(0)
    harness.submit(make_job("urgent", 4, 2, priority=1))
    harness.finish("gone")
    for now in (0, 600 * SECOND, HOUR - 1):
        assert not [d for d in harness.cycle(now).decisions if isinstance(d, Grow)]
    assert [d for d in harness.cycle(HOUR).decisions if isinstance(d, Grow)]


def test_a_job_whose_queue_guarantees_it_a_run_does_not_pass_like_one_that_can_be_preempted() -> None:
    harness = Harness(make_cluster(4, 4), builtin_profile("kant"))
    harness.set_queues(make_queue("slow", 8, min_run=600 * SECOND), make_queue("quick", 16))
    harness.submit(make_job("service", 4, queue="quick", preemptible=False))
    harness.cycle(0)
    harness.submit(make_job("huge", 4, 2, queue="quick", priority=1))
    harness.submit(make_job("guaranteed", 4, queue="slow"))
    assert not started(harness.cycle(0)) and not started(harness.cycle(300 * SECOND))
    assert started(harness.cycle(HOUR)) == ["guaranteed"]


@pytest.mark.parametrize("discipline", [Backfill(keeps_priority=False), "best-effort"], ids=str)
def test_where_the_profile_says_so_jobs_pass_as_they_fit(discipline: Any) -> None:
    harness = Harness(make_cluster(4, 4), make_profile(discipline=discipline, preemption=Preemption()))
    harness.submit(make_job("runs", 4))
    harness.cycle(0)
    harness.submit(make_job("urgent", 4, 2, priority=1), make_job("low", 4))
    assert started(harness.cycle(0)) == ["low"]


def test_the_reason_names_the_job_and_the_time() -> None:
    harness = stuck("kant", make_job("low", 2))
    (hold,) = [d for d in harness.plans[-1].decisions if isinstance(d, Hold) and d.job == "low"]
    assert sentence(hold.reason) == (
        "job huge of higher priority waits for the same capacity, and goes first until 0d 00:05:00"
    )
    found = explain(harness.scheduler, "low", 0)
    assert [fact.job for fact in found.facts if fact.__class__.__name__ == "Blocker"] == ["huge"]


LOOSE = {"policy": "backfill", "timeout_s": 3000, "hold_s": 30, "hold_fixed_s": 300}


@pytest.mark.parametrize("rights", RIGHTS)
@given(seed=st.integers(0, 10**6))
@settings(max_examples=examples(4), deadline=None)
def test_with_short_holds_waking_everything_changes_no_plan_and_a_fresh_scheduler_decides_alike(
    rights: str, seed: int
) -> None:
    as_it_is = among_tenants(seed, LOOSE, rights, lambda harness: None)
    woken = among_tenants(seed, LOOSE, rights, wakes_everything)
    assert told(as_it_is) == told(woken)
    assert compared(seed, LOOSE, rights) > 0


def test_a_blocked_job_holds_nobody_for_a_node_that_has_left() -> None:
    """The node that left is the only one that both node sets have."""
    harness = Harness(make_cluster(2, 2, 2), builtin_profile("kant"))
    harness.happen(NodeSetChanged(0, "left", ("n0", "n2")))
    harness.happen(NodeSetChanged(0, "right", ("n1", "n2")))
    harness.leave("n2")
    harness.submit(make_job("fills", 2, node_set="right", preemptible=False), make_job("low", 2, node_set="left"))
    harness.cycle()
    assert harness.running() == ["fills", "low"]
    harness.now = HOUR
    urgent, able = make_job("urgent", 2, priority=2, node_set="right"), make_job("able", 2, priority=1, node_set="left")
    harness.submit(urgent, able)
    harness.cycle()
    assert harness.running() == ["fills", "able"]
