"""Preemptive disciplines: who is stopped, when, and for whom."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.examples import part

from kant.cluster import columns as c
from kant.cluster.snapshot import Snapshot
from kant.model.decision import Demote, NoFit, Plan, Preempt, Start
from kant.model.event import JobProgressed
from kant.model.node import ClusterSpec, Node
from kant.model.status import JobStatus
from kant.model.tenant import Quota
from kant.model.units import DAY, HOUR, MINUTE, SECOND
from kant.placement.placer import Placer
from kant.queueing.preemption.policy import Preemption
from kant.scheduler.registry import policies
from kant.testing import Harness, make_cluster, make_job, make_profile, submitted
from kant.testing.builders import make_queue
from kant.testing.drawn import Mould, draw_arrivals, draw_cluster, generator

ORDERS = [name for name, policy in policies("order").items() if not policy.type.shares]


def stopped(plan: Plan) -> list[str]:
    return [d.job for d in plan.decisions if isinstance(d, Preempt) and not d.moved]


def moved(plan: Plan) -> list[str]:
    return [d.job for d in plan.decisions if isinstance(d, Preempt) and d.moved]


def started(plan: Plan) -> list[str]:
    return [d.job for d in plan.decisions if isinstance(d, Start)]


def harness_with(*gpus: int, order: str = "srtf", placement: str = "best-fit", **fields: int) -> Harness:
    return Harness(make_cluster(*gpus), make_profile(order, {"policy": "preemptive", **fields}, placement))


@pytest.mark.parametrize(
    ("order", "seed"), [(name, seed) for i, name in enumerate(ORDERS) for seed in part(range(4), i)]
)
def test_nobody_is_stopped_unless_someone_before_him_starts_in_the_same_plan(order: str, seed: int) -> None:
    """And whoever starts would not have fitted, had the stopped jobs stayed: each victim set is needed as a whole."""
    draw = generator(seed)
    profile = make_profile(order, {"policy": "preemptive", "min_run_s": 30}, "best-fit")
    harness = Harness(draw_cluster(draw), profile, seed=seed, check=False)
    victims = 0

    def look(plan: Plan) -> None:
        nonlocal victims
        state, gone = harness.state, stopped(plan)
        if not gone:
            return
        victims += len(gone)
        level = {d.job: d.level for d in plan.decisions if isinstance(d, Demote)}
        newcomers = [job for job in started(plan) if state.rows[job] in state.pending]
        assert newcomers, f"{gone} are stopped for nobody"
        rows = [state.rows[job] for job in (*gone, *newcomers)]
        keys = profile.order.keys(state.jobs, np.array(rows, dtype=np.int64), plan.time).tolist()
        rank = [(-int(state.jobs[row, c.J_PRIORITY]), key) for row, key in zip(rows, keys, strict=True)]
        best = min(rank[len(gone) :])
        for job, place in zip(gone, rank, strict=False):
            row = state.rows[job]
            assert best <= place or level, f"{job} is stopped and nobody before it starts"
            assert state.live[row].preemptible, f"{job} may not be stopped"
            assert state.jobs[row, c.J_SINCE] <= plan.time - 30 * SECOND, f"{job} has only just started"
        placer = Placer(Snapshot(state), profile.placement, seed)
        fits = [not isinstance(placer.place(state.shape_of(state.rows[job])), NoFit) for job in newcomers]
        assert not all(fits), f"{newcomers} fit beside {gone}"

    harness.before_carrying_out = look
    harness.run(draw_arrivals(draw, 60, Mould(groups=1), gap=40, estimates="right"))
    harness.state.check()
    assert victims or order == "fifo" or seed != 0


def test_a_victim_that_turns_out_not_to_be_needed_keeps_its_place() -> None:
    """Last in the order first: `long` is tried on the small node, is not enough, and stays; `middle` is stopped."""
    harness = harness_with(1, 4, order="srtf", min_run_s=0)
    harness.submit(make_job("middle", 4, estimate=2 * HOUR), make_job("long", 1, estimate=9 * HOUR))
    harness.cycle(0)
    assert [harness.nodes_of(job) for job in ("middle", "long")] == [["n1"], ["n0"]]
    harness.submit(make_job("short", 4, estimate=MINUTE))
    plan = harness.cycle(MINUTE)
    assert (stopped(plan), moved(plan), started(plan)) == (["middle"], [], ["short"])
    assert harness.running() == ["long", "short"]


def test_a_victim_that_fits_elsewhere_moves_there() -> None:
    harness = harness_with(2, 4, placement="first-fit", min_run_s=0)
    harness.submit(make_job("first", 2, estimate=8 * HOUR), make_job("second", 1, estimate=9 * HOUR))
    harness.cycle(0)
    harness.finish("first")
    harness.submit(make_job("short", 4, estimate=MINUTE))
    plan = harness.cycle(MINUTE)
    assert (stopped(plan), moved(plan), started(plan)) == ([], ["second"], ["short", "second"])
    assert harness.nodes_of("second") == ["n0"]
    assert harness.state.jobs[harness.state.rows["second"], c.J_PREEMPTIONS] == 0


def test_nobody_is_stopped_for_a_job_that_would_not_fit_even_then() -> None:
    harness = harness_with(4, 4, min_run_s=0)
    harness.submit(
        make_job("stays", 4, estimate=HOUR, preemptible=False),
        make_job("long", 4, estimate=9 * HOUR),
    )
    harness.cycle(0)
    harness.submit(make_job("wide", 4, pods=2, estimate=MINUTE))
    plan = harness.cycle(HOUR // 2)
    assert (stopped(plan), moved(plan), started(plan)) == ([], [], [])


def test_a_job_of_higher_priority_goes_first_whatever_the_order_says() -> None:
    harness = harness_with(4, order="srtf", min_run_s=0)
    harness.submit(make_job("short", 4, estimate=HOUR))
    harness.cycle(0)
    harness.submit(make_job("urgent", 4, estimate=DAY, priority=1))
    plan = harness.cycle(MINUTE)
    assert (stopped(plan), started(plan)) == (["short"], ["urgent"])


def test_a_job_that_has_just_started_is_left_alone_and_the_plan_says_when_to_look_again() -> None:
    """`review_at` is the time at which the plan may change although nothing happened: here, 60 s after the start."""
    harness = harness_with(1)
    harness.submit(make_job("long", estimate=DAY))
    harness.cycle(0)
    harness.submit(make_job("short", estimate=SECOND))
    plan = harness.cycle(10 * SECOND)
    assert not started(plan)
    assert plan.review_at == 60 * SECOND
    assert started(harness.cycle(60 * SECOND)) == ["short"]


def test_a_report_of_progress_does_not_make_a_job_one_that_has_just_started() -> None:
    harness = harness_with(1)
    harness.submit(make_job("long", estimate=DAY))
    harness.cycle(0)
    harness.happen(JobProgressed(100 * SECOND, "long", DAY - 100 * SECOND))
    harness.submit(make_job("short", estimate=SECOND))
    assert started(harness.cycle(110 * SECOND)) == ["short"]


def test_pooled_counts_gpus_over_the_whole_pool_and_may_stop_in_vain() -> None:
    """Four small jobs on two nodes of 2: the count makes room for the pair, one GPU on each node, and it waits."""
    harness = Harness(make_cluster(2, 2), make_profile("srtf", "pooled", "worst-fit"))
    harness.submit(*(make_job(f"one{i}", estimate=HOUR + i) for i in range(4)))
    harness.cycle(0)
    assert [harness.nodes_of(f"one{i}") for i in range(4)] == [["n0"], ["n1"], ["n0"], ["n1"]]
    harness.submit(make_job("pair", 2, estimate=MINUTE))
    plan = harness.cycle(SECOND)
    assert (stopped(plan), started(plan)) == (["one2", "one3"], [])
    harness.finish("one1")
    assert started(harness.cycle(2 * SECOND)) == ["pair", "one2"]
    assert harness.nodes_of("pair") == ["n1"]


def test_repack_places_all_anew_and_says_who_moves() -> None:
    """First fit from the empty cluster: the short job goes to n0, and the others move one node on or wait."""
    harness = Harness(make_cluster(2, 2), make_profile("srtf", "repack", "first-fit"))
    harness.submit(make_job("a", 2, estimate=HOUR), make_job("b", 2, estimate=2 * HOUR))
    harness.cycle(0)
    harness.submit(make_job("c", 2, estimate=SECOND))
    plan = harness.cycle(MINUTE)
    assert (stopped(plan), moved(plan), started(plan)) == (["b"], ["a"], ["c", "a"])
    assert [harness.nodes_of(job) for job in ("c", "a")] == [["n0"], ["n1"]]


def test_repack_that_keeps_moves_nobody_whose_place_nobody_before_him_took() -> None:
    keep = {"policy": "repack", "keep": True}
    harness = Harness(make_cluster(2, 2), make_profile("srtf", keep, "first-fit"))
    harness.submit(make_job("a", 2, estimate=HOUR), make_job("b", 1, estimate=2 * HOUR))
    harness.cycle(0)
    harness.finish("a")
    harness.submit(make_job("c", 2, estimate=3 * HOUR))
    plan = harness.cycle(MINUTE)
    assert (stopped(plan), moved(plan), started(plan)) == ([], [], ["c"])
    harness.submit(make_job("d", 1, estimate=SECOND))
    plan = harness.cycle(2 * MINUTE)
    assert (stopped(plan), moved(plan), started(plan)) == (["c"], [], ["d"])
    assert [harness.nodes_of(job) for job in ("b", "d")] == [["n1"], ["n0"]]


@pytest.mark.parametrize("discipline", ["best-effort", "easy", "conservative"])
def test_a_job_that_the_order_tries_later_evicts_one_of_lower_priority_right_after_the_plan(discipline: str) -> None:
    """Its queue has used more, so the other queue goes first. Nothing else happens then."""
    rights = Preemption(min_run_s=0, reclaim="off")
    harness = Harness(make_cluster(2), make_profile("fair-share", discipline, preemption=rights))
    harness.submit(make_job("before", 2, queue="b", estimate=HOUR))
    harness.cycle(0)
    harness.now = HOUR
    harness.finish("before")
    harness.submit(make_job("low", 2, queue="a", priority=-1, estimate=HOUR))
    harness.submit(make_job("high", 2, queue="b", estimate=HOUR))
    harness.run([submitted(make_job("comes", 9, queue="a"), at=HOUR)], until=HOUR + SECOND)
    assert harness.running() == ["high"]


@pytest.mark.parametrize("later", [10, -1], ids=["both run less than their minimum", "one is of higher priority"])
@pytest.mark.parametrize("models", [("A100", "H800"), ("H800", "A100")], ids=" ".join)
def test_a_job_of_two_models_is_tried_again_when_it_may_preempt_on_the_first_of_them(
    models: tuple[str, str], later: int
) -> None:
    """A job on each model keeps it from starting. The one on the A100 has started first."""
    nodes = (Node("n0", 1, "A100"), Node("n1", 1, "H800"))
    rights = Preemption(min_run_s=60)
    harness = Harness(ClusterSpec("test", nodes), make_profile("fifo", "best-effort", preemption=rights))
    quotas = tuple(Quota(model=model, nominal=1000) for model in models)
    harness.set_queues(*[make_queue(name, quotas=quotas) for name in ("a", "b")])
    harness.submit(make_job("first", queue="a", models=("A100",)))
    harness.cycle()
    harness.now = 10 * SECOND
    harness.submit(make_job("second", queue="b", models=("H800",), priority=5 if later < 0 else 0))
    harness.cycle()
    harness.submit(make_job("waits", queue="a", models=models, priority=1))
    assert harness.cycle().review_at == 60 * SECOND
    harness.cycle(60 * SECOND)
    assert sorted(harness.running()) == ["second", "waits"]


@pytest.mark.parametrize(
    ("order", "discipline"), [("fifo", "best-effort"), ("srtf", {"policy": "preemptive", "min_run_s": 0})]
)
def test_a_job_that_is_evicted_and_may_never_start_again_is_rejected_right_after(order: str, discipline: Any) -> None:
    """It has more than its queue is now allowed; while it runs nobody minds."""
    rights = Preemption(min_run_s=60) if order == "fifo" else None
    harness = Harness(make_cluster(4), make_profile(order, discipline, preemption=rights))
    harness.set_queues(make_queue("small", 4), make_queue("large", 4))
    harness.submit(make_job("was", 4, queue="small", estimate=1000 * SECOND))
    harness.cycle()
    harness.now = 100 * SECOND
    harness.set_queues(make_queue("small", 2, borrowing=0), make_queue("large", 4))
    harness.submit(make_job("comes", 4, queue="large", priority=int(order == "fifo"), estimate=10 * SECOND))
    plan = harness.cycle(100 * SECOND)
    assert harness.running() == ["comes"] and plan.review_at == 100 * SECOND + 1
    harness.cycle(100 * SECOND + 1)
    assert harness.status("was") == JobStatus.REJECTED
