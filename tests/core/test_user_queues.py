"""Queues whose users share them: each user has a queue of their own, as if somebody had declared it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from msgspec import structs
from tests.core.tenant_runs import draw_queues, draw_tenants_jobs
from tests.examples import examples

from kant.model.decision import Hold, Plan
from kant.model.errors import InputError
from kant.model.event import JobSubmitted, QueuesChanged, QueuesUsed, QueueUse
from kant.model.tenant import Queue, QueueConfig, Quota, validated
from kant.model.units import HOUR, MINUTE, SECOND
from kant.scheduler.profile import builtin_profile
from kant.sim.remaining_work import work_of
from kant.testing import Harness, make_cluster, make_job
from kant.testing.drawn import draw_cluster, generator


def declared(queues: Sequence[Queue], coming: Iterable[JobSubmitted]) -> tuple[list[Queue], list[JobSubmitted]]:
    """The same tenancy, with the queue of each user said in the order of their first jobs, and jobs that name it."""
    shared = {queue.name: queue for queue in queues if queue.user_queues}
    own, jobs = dict[str, Queue](), list[JobSubmitted]()
    for event in sorted(coming, key=lambda event: event.time):
        name = event.job.queue
        if name in shared:
            above, name = shared[name], f"{name}/{event.job.user}"
            own[name] = Queue(name, above.name, 1, False, "open", above.min_run, (), above.fallback, above.node_wait)
        jobs.append(structs.replace(event, job=structs.replace(event.job, queue=name)))
    return [structs.replace(queue, user_queues=False) for queue in queues] + list(own.values()), jobs


@pytest.mark.parametrize("profile", ["teams", "fair-share", "kant"])
@pytest.mark.parametrize("seed", range(examples(4)))
def test_a_user_has_what_a_declared_queue_would_have(profile: str, seed: int) -> None:
    draw = generator(seed)
    spec = draw_cluster(draw, 5)
    queues = draw_queues(draw, spec)
    for place in range(len(queues)):
        queues[place] = structs.replace(queues[place], user_queues=place % 2 == 1)
    coming = draw_tenants_jobs(draw, queues, 40)
    plans = []
    for own, jobs in ((queues, coming), declared(queues, coming)):
        harness = Harness(spec, builtin_profile(profile), seed=seed)
        harness.happen(QueuesChanged(0, QueueConfig(tuple(own), (("A100", 3), ("H800", 2)))))
        harness.run(jobs)
        plans.append(harness.plans)
    assert len(plans[0]) == len(plans[1]) > 20
    for plan, as_declared in zip(*plans, strict=True):
        assert (plan.time, plan.review_at) == (as_declared.time, as_declared.review_at)
        assert done(plan) == done(as_declared)


def done(plan: Plan) -> list[tuple[object, ...]]:
    """What a plan does. Why others wait is said again where queues have changed."""
    return [said(decision) for decision in plan.decisions if not isinstance(decision, Hold)]


def said(decision: object) -> tuple[object, ...]:
    fields = structs.astuple(decision)  # type: ignore[type-var]
    return type(decision), *(each.tolist() if isinstance(each, np.ndarray) else each for each in fields)


def team(**fields: object) -> Queue:
    return Queue("team", quotas=(Quota(nominal=8000),), **fields)  # type: ignore[arg-type]


def test_who_came_second_gets_half_of_the_queue_under_teams() -> None:
    for share, at_once in ((False, 0), (True, 4)):
        harness = Harness(make_cluster(4, 4), builtin_profile("teams"))
        harness.set_queues(team(user_queues=share))
        harness.submit(*(make_job(f"a{i}", queue="team", user="ann", gpus=2, submit=0) for i in range(8)))
        harness.cycle()
        harness.submit(*(make_job(f"b{i}", queue="team", user="bob", gpus=2, submit=HOUR) for i in range(8)))
        for minute in range(30):
            harness.cycle(HOUR + minute * MINUTE)
        running = [job[0] for job in harness.running()]
        assert (running.count("a") * 2, running.count("b") * 2) == (8 - at_once, at_once)


def test_what_is_declared_anew_holds_for_users_too_and_nobody_is_forgotten() -> None:
    harness = Harness(make_cluster(4, 4), builtin_profile("teams"))
    harness.set_queues(team(user_queues=True))
    harness.submit(*(make_job(user, queue="team", user=user, gpus=2, submit=0) for user in ("ann", "bob", "")))
    harness.cycle()
    usage = harness.state.quota_usage

    def stands() -> dict[str, tuple[int, int]]:
        """GPUs that each queue uses, and its guaranteed run."""
        assert usage.tree is not None
        queues = enumerate(usage.tree.queues)
        return {queue.name: (usage.tree.usage(node, 0) // 1000, queue.min_run) for node, queue in queues}

    assert stands() == {"team": (6, 0), "team/ann": (2, 0), "team/bob": (2, 0)}
    assert usage.declared == QueueConfig((team(user_queues=True),))
    before = usage.tree
    harness.submit(make_job("again", queue="team", user="ann", gpus=8, submit=0))
    assert usage.tree is before, "it is made anew for new users alone"
    harness.cancel("again")
    harness.set_queues(team(user_queues=True, min_run=SECOND))
    assert stands() == {"team": (6, SECOND), "team/ann": (2, SECOND), "team/bob": (2, SECOND)}
    harness.set_queues(team(), Queue("team/bob", "team", weight=3))
    assert stands() == {"team": (6, 0), "team/bob": (2, 0), "team/ann": (2, 0)}, "what runs counts where it began"
    harness.submit(make_job("cyd", queue="team", user="cyd", gpus=2, submit=0))
    harness.cycle()
    assert stands() == {"team": (8, 0), "team/bob": (2, 0), "team/ann": (2, 0)}, "they share no more"
    harness.set_queues(Queue("other", quotas=(Quota(nominal=1000),)))
    assert stands() == {"other": (0, 0)}
    harness.set_queues(team())
    assert stands()["team"] == (8, 0)


def test_what_a_user_has_used_before_counts_for_the_queue() -> None:
    harness = Harness(make_cluster(4), builtin_profile("fair-share"))
    harness.set_queues(team(user_queues=True, parent="all"), Queue("other", "all"), Queue("all"))
    harness.happen(QueuesUsed(0, 0, {"team/ann": QueueUse(0, ((1, 10**9),)), "else/ann": QueueUse(0, ((1, 1),))}))
    harness.submit(make_job("a", queue="team", user="bob", gpus=4, submit=0))
    harness.submit(make_job("b", queue="other", user="bob", gpus=4, submit=0))
    harness.cycle()
    assert harness.running() == ["b"]


def test_a_what_if_knows_how_long_a_user_runs_in_a_shared_queue() -> None:
    harness = Harness(make_cluster(4), builtin_profile("kant-turns"))
    harness.set_queues(team(user_queues=True))
    for run in range(20):
        harness.submit(make_job(f"a{run}", queue="team", user="ann", gpus=4, submit=harness.now))
        harness.cycle()
        harness.now += 7 * MINUTE
        harness.finish(f"a{run}")
    later = JobSubmitted(HOUR, make_job("b", queue="team", user="ann", gpus=4, submit=HOUR))
    past: Any = SimpleNamespace(events=(), later=(later,), now=harness.now)
    assert work_of(past, harness.state, True).sources == {"learned": 1}


def test_a_queue_with_the_name_of_a_user_stands_where_users_do() -> None:
    validated(QueueConfig((team(user_queues=True), Queue("team/ann", "team"), Queue("teams/ann"))))
    for parent in ("", "team/bob"):
        queues = team(user_queues=True), Queue("team/bob", "team"), Queue("team/ann", parent)
        with pytest.raises(InputError, match="'team/ann', parent: expected 'team', which reserves such names"):
            validated(QueueConfig(queues))
