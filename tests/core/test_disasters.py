"""Disasters of other schedulers that a whole cycle must not repeat. Those of the victim search are in test_victims."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from tests.core.tenant_runs import draw_queues, draw_tenants_jobs
from tests.examples import examples

from kant.model.decision import Plan, Preempt, Start
from kant.model.event import QueuesChanged
from kant.model.status import JobStatus
from kant.model.tenant import QueueConfig
from kant.model.units import HOUR, MINUTE, SECOND
from kant.queueing.preemption import policy
from kant.queueing.preemption.policy import Preemption
from kant.testing import Harness, at_random, make_cluster, make_job, make_profile, submitted
from kant.testing.builders import make_queue
from kant.testing.drawn import draw_cluster, generator

SEEDS = range(examples(48))
AT_ONCE = Preemption(min_run_s=0)
TWO = (make_queue("all", 0), make_queue("a", 4, parent="all"), make_queue("b", 4, parent="all"))


def harness_of(*gpus: int, rights: Preemption | None = AT_ONCE, discipline: Any = "best-effort", **fit: Any) -> Harness:
    return Harness(make_cluster(*gpus), make_profile("fifo", discipline, preemption=rights, **fit))


def stopped(plan: Plan) -> list[str]:
    return [d.job for d in plan.decisions if isinstance(d, Preempt) and not d.moved]


def started(plan: Plan) -> list[str]:
    return [d.job for d in plan.decisions if isinstance(d, Start)]


@pytest.mark.parametrize(("most", "goes"), [(4.0, False), (8.0, True)])
def test_376_gpus_are_not_stopped_for_48(most: float, goes: bool) -> None:
    """KAI-Scheduler PR #1565: what stops may be `most` times what the newcomer gains. Here it would be 7.8 times."""
    harness = harness_of(*[8] * 47, rights=Preemption(min_run_s=0, most=most))
    harness.submit(make_job("wide", 8, pods=47))
    harness.cycle()
    harness.submit(make_job("new", 8, pods=6, priority=1))
    plan = harness.cycle()
    assert (stopped(plan), started(plan)) == ((["wide"], ["new"]) if goes else ([], []))


def test_one_victim_where_one_suffices() -> None:
    """Volcano #5984: ten were stopped where one would have done."""
    harness = harness_of(10)
    harness.submit(*(make_job(f"j{i}") for i in range(10)))
    harness.cycle()
    harness.submit(make_job("new", priority=1))
    assert len(stopped(harness.cycle())) == 1


def test_nobody_stops_for_a_gang_that_still_cannot_run() -> None:
    """Volcano #4926: the GPUs would be enough in sum, but one of the pods finds no node."""
    harness = harness_of(4, 4, 4)
    harness.submit(*(make_job(f"fixed{i}", 3, preemptible=False) for i in range(2)), make_job("loose", 4))
    harness.cycle()
    harness.submit(make_job("new", 2, pods=3, priority=1))
    plan = harness.cycle()
    assert (stopped(plan), started(plan)) == ([], [])
    harness.finish("fixed0")
    plan = harness.cycle()
    assert (stopped(plan), started(plan)) == (["loose"], ["new"])


@pytest.mark.long
def test_in_a_busy_cluster_nobody_is_stopped_over_and_over() -> None:
    """Kueue #13662 and #6861: workloads were preempted a hundred times, in rounds.

    Jobs come and end. Each is stopped a few times at most; how often is measured, and far below what a loop makes.
    """
    for seed in SEEDS:
        draw = generator(seed)
        spec = draw_cluster(draw, 4)
        queues = draw_queues(draw, spec)
        rights = Preemption(min_run_s=0, reclaim="fair-share" if seed % 2 else "nominal")
        discipline = {"policy": "backfill", "timeout_s": 60} if seed % 3 else "best-effort"
        harness = Harness(spec, make_profile("fifo", discipline, preemption=rights), check=False)
        harness.happen(QueuesChanged(0, QueueConfig(tuple(queues))))
        coming = draw_tenants_jobs(draw, queues, 60, gap=60)
        harness.run(coming)
        times = Counter(job for plan in harness.plans for job in stopped(plan))
        assert max(times.values(), default=0) <= 20, f"seed {seed}: {times.most_common(3)}"
        assert times.total() <= 2 * len(coming)


def test_two_gangs_that_each_want_the_whole_cluster_never_hold_half_each() -> None:
    """Volcano #3373, with a driver that refuses at random."""
    for seed in SEEDS:
        harness = Harness(make_cluster(8, 8), make_profile(), refuse=at_random(0.5, seed))
        harness.run(submitted(make_job(name, 8, pods=2), 10 * MINUTE) for name in ("one", "two"))
        assert all(harness.status(job) is JobStatus.FINISHED for job in ("one", "two"))
        assert abs(harness.first_starts()["one"] - harness.first_starts()["two"]) >= 10 * MINUTE - SECOND


@pytest.mark.parametrize("rights", [None, AT_ONCE])
def test_the_job_at_place_thousand_that_may_start_is_reached_in_one_cycle(rights: Preemption | None) -> None:
    """Kueue #9715."""
    harness = harness_of(8, rights=rights)
    harness.check = False
    own = {"borrowing": 0}
    harness.set_queues(make_queue("all", 0), *(make_queue(name, 4, parent="all", **own) for name in ("a", "b")))
    harness.submit(make_job("fills", 4, queue="a", priority=2))
    harness.cycle()
    harness.submit(*(make_job(f"w{i}", 1 + i % 4, queue="a", priority=1) for i in range(1000)))
    harness.submit(make_job("last", 4, queue="b"))
    assert started(harness.cycle()) == ["last"]


def test_a_job_that_its_quota_admits_and_that_does_not_fit_blocks_nobody() -> None:
    """Kueue #5243: admitted by the quota, but the GPUs that are free lie apart."""
    harness = harness_of(4, 4, rights=None)
    harness.set_queues(*TWO)
    harness.submit(*(make_job(f"one{i}", 3, queue="a" if i else "b", preemptible=False) for i in range(2)))
    harness.cycle()
    harness.submit(make_job("pair", 2, queue="b"), make_job("small", 1, queue="b"))
    harness.cycle()
    assert "small" in harness.running() and harness.waiting() == ["pair"]


def test_a_borrower_is_stopped_only_if_the_lender_then_fits() -> None:
    """Kueue #5243 with reclaim: what the borrower holds would satisfy the quota, but lies on the wrong nodes."""
    harness = harness_of(4, 2, 2)
    harness.set_queues(*TWO)
    harness.submit(make_job("own", 4, queue="a", preemptible=False))
    harness.submit(*(make_job(f"lent{i}", 2, queue="a") for i in range(2)))
    harness.cycle()
    assert len(harness.running()) == 3
    harness.submit(make_job("whole", 4, queue="b"))
    assert stopped(harness.cycle()) == []
    harness.submit(make_job("parts", 2, pods=2, queue="b"))
    plan = harness.cycle()
    assert (sorted(stopped(plan)), started(plan)) == (["lent0", "lent1"], ["parts"])


def test_whoever_has_just_started_is_left_alone_and_looked_at_again_when_of_age() -> None:
    """The run time that a profile or a queue guarantees; also against a head that it overtook."""
    harness = harness_of(4, rights=Preemption(min_run_s=100))
    slow = make_queue("slow", 0, parent="all", min_run=300 * SECOND)
    harness.set_queues(make_queue("all", 4), slow, make_queue("quick", 0, parent="all"))
    harness.submit(make_job("s", 2, queue="slow"), make_job("q", 2, queue="quick"))
    harness.cycle(0)
    harness.submit(*(make_job(f"new{i}", 2, queue="quick", priority=1) for i in range(2)))
    plan = harness.cycle(99 * SECOND)
    assert (stopped(plan), plan.review_at) == ([], 100 * SECOND)
    plan = harness.cycle(100 * SECOND)
    assert (stopped(plan), plan.review_at) == (["q"], 100 * SECOND + 1), "for the room that may be left over"
    assert harness.cycle(100 * SECOND + 1).review_at == 300 * SECOND
    assert stopped(harness.cycle(300 * SECOND)) == ["s"]


def test_an_overtaker_has_its_guaranteed_run_too() -> None:
    harness = harness_of(2, 2, rights=None, discipline={"policy": "backfill", "timeout_s": 60})
    harness.set_queues(make_queue("slow", 8, min_run=HOUR))
    harness.submit(make_job("first", 2, queue="slow"))
    harness.cycle(0)
    harness.submit(make_job("head", 2, pods=2, queue="slow"), make_job("passes", 2, queue="slow"))
    harness.cycle(0)
    harness.finish("first")
    plan = harness.cycle(60 * SECOND)
    assert (stopped(plan), plan.review_at) == ([], HOUR)
    assert stopped(harness.cycle(HOUR)) == ["passes"]


def test_a_burst_goes_before_a_core_and_a_core_takes_its_bursts_with_it() -> None:
    harness = harness_of(2, 2)
    harness.submit(make_job("core", 2), make_job("burst", 2, base_job="core"))
    harness.cycle()
    harness.submit(make_job("new", 2, priority=1))
    assert stopped(harness.cycle()) == ["burst"]
    harness.submit(make_job("newer", 2, priority=1))
    assert stopped(harness.cycle()) == ["core"]
    assert sorted(harness.running()) == ["new", "newer"]


def test_a_gang_stops_whole_and_what_may_not_be_stopped_runs_on() -> None:
    """One pod would have been enough, but a gang that has lost a pod only burns GPUs."""
    harness = harness_of(2, 2)
    harness.submit(make_job("fixed", 1, preemptible=False), make_job("gang", 1, pods=3))
    harness.cycle()
    harness.submit(make_job("new", 1, priority=1))
    plan = harness.cycle()
    assert (stopped(plan), started(plan)) == (["gang"], ["new"])
    assert harness.running() == ["fixed", "new"]
    harness.submit(make_job("wants all", 2, pods=2, priority=9))
    assert stopped(harness.cycle()) == []


def test_a_victim_that_fits_elsewhere_moves_and_does_not_wait() -> None:
    """Its quota must let it in again, too."""
    harness = harness_of(2, 4, placement="first-fit")
    harness.submit(make_job("gone", 2), make_job("victim", 2), make_job("stays", 2, preemptible=False))
    harness.cycle()
    harness.finish("gone", "stays")
    harness.submit(make_job("new", 4, priority=1))
    plan = harness.cycle()
    assert [(d.job, d.moved) for d in plan.decisions if isinstance(d, Preempt)] == [("victim", True)]
    assert started(plan) == ["new", "victim"]
    assert (harness.nodes_of("victim"), harness.waiting()) == (["n0"], [])


def counted(monkeypatch: pytest.MonkeyPatch, *names: str) -> Counter[str]:
    """How often these of `queueing/preemption/policy.py` are called from now on."""
    calls: Counter[str] = Counter()

    def wrap(name: str) -> Any:
        own = getattr(policy, name)

        def call(*args: Any, **fields: Any) -> Any:
            calls[name] += 1
            return own(*args, **fields)

        return call

    for name in names:
        monkeypatch.setattr(policy, name, wrap(name))
    return calls


@pytest.mark.parametrize("what", ["nobody lower", "nobody borrows", "all borrow"])
def test_where_nobody_can_be_stopped_no_running_job_is_looked_at(monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    """A hundred heads that wait: counts by priority and by queue say that nobody is a candidate."""
    harness = harness_of(*[8] * 250)
    harness.check = False
    part = 0 if what == "all borrow" else 200
    harness.set_queues(
        make_queue("all", 2000 - 10 * part), *(make_queue(f"q{i}", part, parent="all") for i in range(10))
    )
    harness.submit(*(make_job(f"r{i}", queue=f"q{i % 10}", priority=int(what == "nobody lower")) for i in range(2000)))
    harness.cycle()
    assert len(harness.running()) == 2000
    harness.submit(*(make_job(f"h{i}", 1 + i // 10, queue=f"q{i % 10}") for i in range(100)))
    calls = counted(monkeypatch, "Entitlements", "PreemptionRules", "candidates_of", "choose_shrinking_first")
    assert not stopped(harness.cycle())
    assert not calls
