"""Random runs of random tenants: no quota is passed, none lies idle, and nobody is lost."""

from __future__ import annotations

from typing import Any

import pytest
from tests.core.tenant_runs import check_quotas, could_start, draw_queues, draw_tenants_jobs, naive_quotas
from tests.examples import examples, part

from kant.insight.explanation import why
from kant.model.decision import OverQuota, Plan, Preempt, Reject
from kant.model.event import QueuesChanged
from kant.model.node import ClusterSpec, Node
from kant.model.status import JobStatus
from kant.model.tenant import Queue, QueueConfig, Quota, starts
from kant.model.units import GPU
from kant.queueing.preemption.policy import Preemption
from kant.testing import Harness, at_random, make_cluster, make_job, make_profile
from kant.testing.builders import make_queue
from kant.testing.drawn import draw_cluster, generator
from kant.testing.harness import never

BACKFILL = {"policy": "backfill", "timeout_s": 600}
RIGHTS = {
    "none": None,
    "nominal": Preemption(min_run_s=60),
    "fair-share": Preemption(min_run_s=60, reclaim="fair-share"),
}
DONE = (JobStatus.FINISHED, JobStatus.REJECTED)


@pytest.mark.parametrize("rights", RIGHTS)
@pytest.mark.parametrize("discipline", ["strict", "best-effort", BACKFILL], ids=str)
@pytest.mark.parametrize("refuses", [False, True])
def test_no_start_passes_a_quota_and_every_job_leaves(discipline: Any, rights: str, refuses: bool) -> None:
    seeds = part(range(6), list(RIGHTS).index(rights) + refuses)
    assert sum(starts_in_a_run(seed, discipline, rights, refuses) for seed in seeds) > 10 * len(seeds)


def starts_in_a_run(seed: int, discipline: Any, rights: str, refuses: bool) -> int:
    draw = generator(seed)
    spec = draw_cluster(draw, 5)
    queues = draw_queues(draw, spec)
    order = str(draw.choice(["fifo", "aged", "drf", "fair-share"]))
    refuse = at_random(0.2, seed) if refuses else never
    harness = Harness(spec, make_profile(order, discipline, "best-fit", RIGHTS[rights]), seed=seed, refuse=refuse)
    harness.happen(QueuesChanged(0, QueueConfig(tuple(queues), (("A100", 3), ("H800", 2)) if seed % 2 else ())))
    started: list[int] = []
    harness.before_carrying_out = lambda plan: started.append(check_quotas(harness, plan))
    harness.run(draw_tenants_jobs(draw, queues, 30, parts=seed % 3 == 0))
    stuck = [job for job in harness.state.rows if harness.status(job) not in DONE]
    assert not stuck, f"seed {seed}: {[(job, why(harness.scheduler, job)) for job in stuck]}"
    return sum(started)


@pytest.mark.parametrize("order", ["fifo", "drf", "fair-share"])
@pytest.mark.parametrize("rights", ["none", "nominal"])
def test_no_quota_lies_idle_while_a_job_waits_that_it_admits_and_that_fits(order: str, rights: str) -> None:
    """After a cycle in which nobody was stopped; whoever is stopped may leave more room than the newcomer needs."""
    seeds = range(1000, 1000 + examples(24))
    assert sum(waits_in_a_run(seed, order, rights) for seed in seeds) > 10 * len(seeds)


def waits_in_a_run(seed: int, order: str, rights: str) -> int:
    draw = generator(seed)
    spec = draw_cluster(draw, 5)
    queues = draw_queues(draw, spec)
    harness = Harness(spec, make_profile(order, "best-effort", "best-fit", RIGHTS[rights]), seed=seed)
    harness.happen(QueuesChanged(0, QueueConfig(tuple(queues))))
    waited: list[str] = []

    def look(plan: Plan) -> None:
        if any(isinstance(decision, Preempt) for decision in plan.decisions):
            return
        naive, state = naive_quotas(harness), harness.state
        for row in state.pending:
            job = state.live[row]
            waited.append(job.id)
            assert not could_start(harness, job, state.table, naive), f"seed {seed}: {job.id} could start"
            assert why(harness.scheduler, job.id) is not None

    harness.after_carrying_out = look
    harness.run(draw_tenants_jobs(draw, queues, 30, gap=60, parts=seed % 3 == 0))
    return len(waited)


def two(nominal: float = 4, **fields: Any) -> tuple[Queue, ...]:
    """Two queues that share 8 GPUs."""
    return make_queue("all", 0), *(make_queue(name, nominal, parent="all", **fields) for name in ("a", "b"))


def harness_with(*queues: Queue, gpus: int = 8, discipline: Any = "best-effort", **fields: Any) -> Harness:
    harness = Harness(make_cluster(gpus), make_profile("fifo", discipline, **fields))
    harness.set_queues(*queues)
    return harness


def test_a_shape_that_one_queue_may_not_start_another_queue_may() -> None:
    """The verdict of a quota is one queue's, though the jobs ask for the very same."""
    harness = harness_with(*two(borrowing=0))
    harness.submit(*(make_job(f"a{i}", 3, queue="a") for i in range(2)), make_job("b0", 3, queue="b"))
    harness.cycle()
    assert harness.running() == ["a0", "b0"]
    assert isinstance(why(harness.scheduler, "a1"), OverQuota)


def test_what_holds_for_one_user_does_not_hold_for_another() -> None:
    harness = harness_with(*two(user=1))
    harness.submit(*(make_job(f"j{i}", queue="a", user=user) for i, user in enumerate(("ann", "ann", "bob"))))
    harness.cycle()
    assert harness.running() == ["j0", "j2"]
    harness.set_queues(*two())
    harness.cycle()
    assert harness.running() == ["j0", "j2", "j1"]
    harness.set_queues(*two(user=1))
    harness.submit(*(make_job(f"k{i}", queue="a", user=user) for i, user in enumerate(("ann", "cyd"))))
    harness.cycle()
    assert harness.running() == ["j0", "j2", "j1", "k1"]


@pytest.mark.parametrize("state", ["hold", "stop", "drain"])
def test_a_queue_holds_stops_and_drains_with_all_below_it(state: Any) -> None:
    harness = harness_with(*two())
    harness.submit(make_job("runs", queue="a"), make_job("beside", queue="b"))
    harness.cycle()
    harness.submit(make_job("waits", queue="a"))
    below = (make_queue("a", 4, parent="all", state=state), make_queue("b", 4, parent="all"))
    harness.set_queues(make_queue("all", 0), *below)
    harness.submit(make_job("comes", queue="a"))
    plan = harness.cycle()
    stopped = [(d.job, d.why) for d in plan.decisions if isinstance(d, Preempt)]
    rejected = [d.job for d in plan.decisions if isinstance(d, Reject)]
    running = {"hold": ["runs", "beside"], "stop": ["beside"], "drain": ["runs", "beside", "waits"]}[state]
    assert sorted(harness.running()) == sorted(running)
    assert stopped == ([("runs", "queue")] if state == "stop" else [])
    assert rejected == (["comes"] if state == "drain" else [])
    harness.set_queues(*two())
    harness.cycle()
    assert not harness.waiting()


def test_a_queue_that_the_tree_does_not_know_starts_nothing() -> None:
    harness = harness_with(*two())
    harness.submit(make_job("x", queue="nobody"))
    harness.cycle()
    reason = why(harness.scheduler, "x")
    assert harness.waiting() == ["x"] and reason is not None and (reason.queue, reason.state) == ("nobody", "unknown")
    harness.set_queues(*two(), make_queue("nobody", 1))
    harness.cycle()
    assert harness.running() == ["x"]


@pytest.mark.parametrize(("fallback", "first"), [("listed", "n1"), ("cheapest", "n0")])
def test_models_are_tried_as_listed_or_by_price(fallback: Any, first: str) -> None:
    spec = ClusterSpec("two", (Node("n0", 4, "A100"), Node("n1", 4, "H800")))
    harness = Harness(spec, make_profile())
    quotas = (Quota(model="A100", nominal=2 * GPU), Quota(model="H800", nominal=2 * GPU))
    harness.set_queues(Queue("a", quotas=quotas, fallback=fallback), prices={"A100": 1, "H800": 2})
    harness.submit(*(make_job(f"j{i}", 2, queue="a", models=("H800", "A100")) for i in range(3)))
    harness.cycle()
    assert harness.nodes_of("j0") == [first]
    assert {*harness.nodes_of("j0"), *harness.nodes_of("j1")} == {"n0", "n1"}
    assert harness.waiting() == ["j2"]


def test_a_quota_lowered_below_what_is_used_stops_nobody_and_lets_nobody_in() -> None:
    harness = harness_with(*two(borrowing=0), preemption=Preemption(min_run_s=0))
    harness.submit(*(make_job(f"a{i}", queue="a") for i in range(5)))
    harness.cycle()
    assert len(harness.running()) == 4
    harness.set_queues(*two(1, borrowing=0))
    harness.cycle()
    assert len(harness.running()) == 4
    for i in range(3):
        harness.finish(f"a{i}")
        harness.cycle()
    assert harness.running() == ["a3"]
    harness.finish("a3")
    harness.cycle()
    assert harness.running() == ["a4"]


def test_states_on_the_path_add_up() -> None:
    assert starts(("open", "drain")) and not starts(("open", "hold"))
