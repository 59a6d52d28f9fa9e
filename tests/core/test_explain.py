"""Every waiting job has one reason, and asking for it changes nothing."""

from __future__ import annotations

from collections import Counter

import pytest
from tests.core.naive_quota import NaiveQuotas
from tests.core.tenant_runs import USERS, could_start, draw_queues, draw_tenants_jobs, naive_quotas, ways
from tests.profiles import few

from kant.cluster.state import ClusterState
from kant.insight.expected_start import ExpectedStart
from kant.insight.explanation import Explanation, explain, why
from kant.insight.facts import fact_sentence
from kant.insight.suggestions import JobsEnd, suggestion_sentence
from kant.model.decision import Behind, NeverFits, NoFit, OverQuota, Plan, Reason, Reject, Reserved, Start
from kant.model.errors import StateError
from kant.model.event import JobStarted, JobSubmitted, QueuesChanged
from kant.model.job import Demand, Job, PodGroup
from kant.model.tenant import QueueConfig
from kant.scheduler.cycle import Scheduler
from kant.scheduler.profile import builtin_profile
from kant.testing import Harness, make_profile
from kant.testing.drawn import draw_cluster, generator
from kant.workload.cluster_file import read_cluster


def scheduled(profile: str, *gpus: int) -> Scheduler:
    """One node of 8 GPUs, jobs `0`, `1`, … of so many GPUs, and one cycle carried out."""
    chosen = builtin_profile(profile)
    state = ClusterState(read_cluster("1x8"), workloads=chosen.matches)
    scheduler = Scheduler(state, chosen)
    for i, count in enumerate(gpus):
        state.apply(JobSubmitted(0, Job(str(i), 0, (PodGroup(1, Demand(count)),), estimate=1)))
    for decision in scheduler.cycle(0).decisions:
        if isinstance(decision, Start):
            state.apply(JobStarted(0, decision.job, decision.allocation))
    return scheduler


def test_the_head_does_not_fit_and_the_others_stand_behind_it() -> None:
    scheduler = scheduled("fifo", 6, 4, 1, 2)
    assert why(scheduler, "1") == NoFit(group=0, pods=1, fits=0)
    assert why(scheduler, "2") == why(scheduler, "3") == Behind("1")


def test_best_effort_stands_behind_nobody_of_another_shape() -> None:
    scheduler = scheduled("fifo-best-effort", 6, 4, 4, 2)
    assert why(scheduler, "1") == NoFit(group=0, pods=1, fits=0)
    assert why(scheduler, "2") == Behind("1", same=True)
    with pytest.raises(StateError, match="does not wait"):
        why(scheduler, "3")


def test_what_can_never_fit_says_so_before_it_is_rejected() -> None:
    state = ClusterState(read_cluster("1x8"))
    scheduler = Scheduler(state, builtin_profile("kant"))
    state.apply(JobSubmitted(0, Job("wide", 0, (PodGroup(2, Demand(8)),))))
    assert why(scheduler, "wide") == NeverFits(group=0, pods=2, fits=1)
    assert scheduler.cycle(0).decisions == [Reject("wide", NeverFits(group=0, pods=2, fits=1))]


@pytest.mark.parametrize("name", few((), "order", "discipline"))
def test_asking_changes_nothing(name: str) -> None:
    asked, silent = scheduled(name, 6, 4, 1, 2, 8), scheduled(name, 6, 4, 1, 2, 8)
    for row in list(asked.state.pending):
        reason = why(asked, asked.state.ids[row])
        assert reason is None or isinstance(reason, NoFit | Behind)
    asked.state.check()
    for scheduler in (asked, silent):
        scheduler.state.apply(JobSubmitted(5, Job("late", 5, (PodGroup(1, Demand(1)),), estimate=1)))
    why(asked, "late")
    ours, theirs = asked.cycle(5), silent.cycle(5)
    assert str(ours) == str(theirs)


# --- against a checker that knows nothing of the code ------------------------------------------------------------


def is_true(harness: Harness, row: int, reason: Reason | None, naive: NaiveQuotas) -> bool:
    """Whether the naive quotas and the naive count agree that the job waits for this reason."""
    state, job = harness.state, harness.state.live[row]
    quotas_pass = any(naive.fits(job.queue, USERS.index(job.user), amounts) for _, amounts in ways(harness, job, naive))
    fits = could_start(harness, job, state.table, naive)
    match reason:
        case None:
            return fits
        case NoFit(pods=pods, fits=some):
            return quotas_pass and not fits and 0 <= some < pods == job.groups[0].count
        case OverQuota(queue=queue, asked=asked, available=available):
            return not quotas_pass and queue in naive.queues and available < asked and not reason.ever
        case Reserved(job=other, start=start):
            promise = state.reserved[state.rows[other]]
            return fits and other != job.id and promise.start == start
        case Behind(job=other):
            first = state.rows[other]
            ahead = (-state.live[first].priority, first) < (-job.priority, row)
            return first in state.pending and ahead and state.live[first].queue == job.queue
        case _:
            return False


@pytest.mark.long
@pytest.mark.parametrize("discipline", ["strict", "best-effort", "easy", "conservative"])
def test_every_waiting_job_of_a_random_run_has_one_reason_and_it_is_true(discipline: str) -> None:
    met: Counter[str] = Counter()
    for seed in range(["strict", "best-effort", "easy", "conservative"].index(discipline) % 2, 8, 2):
        draw = generator(seed)
        spec = draw_cluster(draw, 4)
        queues = draw_queues(draw, spec)
        harness = Harness(spec, make_profile("fifo", discipline), seed=seed, check=False)
        harness.happen(QueuesChanged(0, QueueConfig(tuple(queues))))

        def look(plan: Plan, harness: Harness = harness, seed: int = seed) -> None:
            state, naive = harness.state, naive_quotas(harness)
            rows = list(state.pending)
            for place, row in enumerate(rows):
                job = state.ids[row]
                reason = why(harness.scheduler, job)
                assert is_true(harness, row, reason, naive), f"seed {seed} at {plan.time}: {job}: {reason}"
                met[type(reason).__name__] += 1
                if place < 2:  # all that is said can be said; it costs more
                    found = explain(harness.scheduler, job)
                    assert found.reason == reason and found.expected == ExpectedStart()
                    assert 1 <= found.in_queue.rank <= found.in_queue.of <= len(rows)
                    assert 1 <= found.among_competitors.rank <= found.among_competitors.of <= len(rows)
                    assert all(fact_sentence(each) for each in found.facts)
                    assert all(suggestion_sentence(each) for each in found.suggestions)
                    naive_ends(harness, job, found)

        harness.after_carrying_out = look
        harness.run(draw_tenants_jobs(draw, queues, 25, gap=60))
    wanted = {"strict": {"Behind"}, "best-effort": set[str](), "easy": {"Reserved"}, "conservative": {"Reserved"}}
    assert {"NoFit", "OverQuota"} | wanted[discipline] <= met.keys(), met


def naive_ends(harness: Harness, job: str, found: Explanation) -> None:
    """Once the jobs have ended that a remedy names, the naive count seats the job; and not if one of them stays."""
    state = harness.state
    for cure in found.suggestions:
        if isinstance(cure, JobsEnd) and not cure.more:
            rows = [state.rows[name] for name in cure.jobs]
            assert seated_without(harness, job, rows), (job, cure)
            assert not any(seated_without(harness, job, [r for r in rows if r != row]) for row in rows), (job, cure)


def seated_without(harness: Harness, job: str, gone: list[int]) -> bool:
    """Whether the job could start on a copy of the cluster on which these running jobs have ended."""
    state = harness.state
    copy = Harness(state.spec, harness.profile, seed=harness.seed, check=False)
    for event in harness.events:
        copy.happen(event)
    copy.finish(*(state.ids[row] for row in gone))
    return could_start(copy, copy.state.live[state.rows[job]], copy.state.table, naive_quotas(copy))
