"""What `why` names under "starts now if", done to the state: the job starts in the very next cycle."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import pytest
from msgspec.structs import replace

from kant.cluster.state import ClusterState
from kant.insight.diagnosis import Diagnosis
from kant.insight.moment import freeze, thaw
from kant.insight.more_nodes import MoreNodes, more_nodes, more_nodes_remedy
from kant.insight.starts_now import NoChange, Raise, StartsNow, Stopped, change_sentence, starts_now
from kant.model.decision import Start
from kant.model.event import JobCancelled, JobStarted, JobSubmitted, NodeChanged, QueuesChanged
from kant.model.growth import with_more
from kant.model.placement import Allocation
from kant.model.status import NodeStatus
from kant.model.tenant import Quota
from kant.model.units import GPU, HOUR, SECOND
from kant.scheduler.cycle import Scheduler
from kant.scheduler.profile import builtin_profile
from kant.testing import Harness, make_cluster, make_job, make_profile
from kant.testing.builders import make_queue
from kant.testing.drawn import generator


def raise_quota(state: ClusterState, now: int, one: Raise) -> None:
    """As an operator would: the number that is named, in the queue that is named."""
    config = state.quota_usage.queue_config
    queues = []
    for queue in config.queues:
        quotas = {(quota.model, quota.resource): quota for quota in queue.quotas}
        if queue.name == one.queue:
            old = quotas.get((one.model, one.resource), Quota(one.resource, one.model))  # type: ignore[arg-type]
            more = (
                {"user_limit": old.user_limit + one.more}
                if one.limit == "user"
                else {"nominal": old.nominal + one.more}
            )
            quotas[one.model, one.resource] = replace(old, **more)
        queues.append(replace(queue, quotas=tuple(quotas.values())))
    state.apply(QueuesChanged(now, replace(config, queues=tuple(queues))))


def started(state: ClusterState, harness: Harness) -> dict[str, Allocation]:
    plan = Scheduler(state, harness.profile, 0).cycle(harness.now)
    return {one.job: one.allocation for one in plan.decisions if isinstance(one, Start)}


@dataclass
class Applied:
    """A copy of a state in which a job is the only one that waits, and a change has been made."""

    harness: Harness
    job: str
    change: StartsNow
    state: ClusterState = field(init=False)

    def __post_init__(self) -> None:
        now, self.state = self.harness.now, thaw(freeze(self.harness.state))
        for row in [row for row in self.state.pending if self.state.ids[row] not in (self.job, self.change.yields)]:
            if not self.change.yields:  # else what others are promised is what the change is about
                self.state.apply(JobCancelled(now, self.state.ids[row]))
        self.jobs = {one.job: self.state.live[self.state.rows[one.job]] for one in self.change.stopped}
        for name in (*self.jobs, *([self.change.yields] if self.change.yields else [])):
            self.state.apply(JobCancelled(now, name))
        for one in self.change.quotas:
            raise_quota(self.state, now, one)
        for node in self.change.nodes:
            self.state.apply(NodeChanged(now, node, NodeStatus.IN_SERVICE))

    def starts(self) -> bool:
        """Whether the job starts in the next cycle; then it runs."""
        found = started(self.state, self.harness).get(self.job)
        if found is not None:
            self.state.apply(JobStarted(self.harness.now, self.job, found))
        return found is not None

    def goes_on(self, name: str) -> bool:
        """Whether a job that was stopped for it starts in a cycle after that."""
        again = replace(self.jobs[name], id=f"{name} again", base_job="")
        self.state.apply(JobSubmitted(self.harness.now, again))
        found = started(self.state, self.harness).get(again.id)
        if found is not None:
            self.state.apply(JobStarted(self.harness.now, again.id, found))
        return found is not None


def drawn(seed: int, profile: str) -> Harness:
    """A cluster full of jobs of queues with quotas, lending and limits of users, and a node out of service."""
    draw = generator(seed)
    harness = Harness(make_cluster(4, 4, 8), builtin_profile(profile), seed=seed)
    org = make_queue("org", 0)
    harness.set_queues(
        org,
        *(make_queue(name, int(draw.integers(3, 9)), parent="org" if draw.integers(2) else "") for name in "abc"),
    )
    for i in range(12):
        harness.now += int(draw.integers(1, 3000)) * SECOND
        gpus, pods = int(draw.integers(1, 5)), int(draw.integers(1, 3))
        queue, may = "abc"[int(draw.integers(3))], bool(draw.integers(4))
        harness.submit(make_job(f"j{i}", gpus, pods, queue=queue, preemptible=may))
        harness.cycle()
        if i == 8 and seed % 3 == 0:
            harness.cordon(harness.state.spec.nodes[0].name)
    return harness


@pytest.mark.long
@pytest.mark.parametrize("profile", ["fifo-best-effort", "kant", "easy"])
def test_what_is_named_starts_the_job_in_the_next_cycle_and_who_moves_goes_on(profile: str) -> None:
    tried: Counter[str] = Counter()
    for seed in range(14):
        harness = drawn(seed, profile)
        for job in harness.waiting():
            diagnosis = Diagnosis(harness.scheduler, harness.now)
            found = starts_now(diagnosis, diagnosis.row(job))
            for change in () if isinstance(found, NoChange) else found:
                applied = Applied(harness, job, change)
                assert applied.starts(), (seed, job, change_sentence(change))
                for one in sorted(change.stopped, key=lambda one: not one.moves):
                    if one.moves:
                        assert applied.goes_on(one.job), (seed, job, change_sentence(change))
                tried["quotas"] += bool(change.quotas)
                tried["stops"] += any(not one.moves for one in change.stopped)
                tried["moves"] += any(one.moves for one in change.stopped)
                tried["nodes"] += bool(change.nodes)
                tried["yields"] += bool(change.yields)
    assert tried["quotas"] and tried["stops"], tried


def test_a_job_whose_quota_is_taken_stops_though_it_would_have_a_place() -> None:
    harness = Harness(make_cluster(8, 8), make_profile("fifo", "best-effort"))
    harness.set_queues(make_queue("a", 8))
    harness.submit(make_job("left", 8, queue="a"))
    harness.cycle(0)
    harness.submit(make_job("late", 8, queue="a"))
    harness.cycle(HOUR)
    diagnosis = Diagnosis(harness.scheduler, harness.now)
    found = starts_now(diagnosis, diagnosis.row("late"))
    assert not isinstance(found, NoChange)
    assert [change_sentence(change) for change in found] == [
        "the quota of queue a is raised by 8 GPUs",
        "job left stops: 8 GPU-hours lost (proven the cheapest)",
    ]
    assert found[1].stopped == (Stopped("left", "a", 8 * 3600 * GPU, moves=False),)
    assert Applied(harness, "late", found[1]).starts()


def test_a_reservation_is_named_only_where_the_job_starts_without_it() -> None:
    harness = Harness(make_cluster(8, 8), builtin_profile("easy"))
    harness.submit(make_job("runs", 8, estimate=2 * HOUR), make_job("beside", 4, estimate=HOUR))
    harness.cycle(0)
    harness.submit(make_job("head", 8, estimate=HOUR), make_job("long", 4, estimate=9 * HOUR))
    harness.cycle(SECOND)
    harness.submit(make_job("wide", 5, estimate=9 * HOUR))
    diagnosis = Diagnosis(harness.scheduler, harness.now)
    (change,) = starts_now(diagnosis, diagnosis.row("long"))  # type: ignore[misc]
    assert change == StartsNow(yields="head")
    assert Applied(harness, "long", change).starts()
    others = starts_now(diagnosis, diagnosis.row("wide"))
    assert isinstance(others, NoChange) or not any(one.yields for one in others)


def test_more_nodes_name_the_quota_that_is_lacking_besides_and_nothing_where_the_queue_is_closed() -> None:
    harness = Harness(make_cluster(8), make_profile("fifo", "best-effort"))
    harness.set_queues(make_queue("a", 12), make_queue("shut", 8, state="hold"))
    harness.submit(make_job("runs", 8, queue="a", preemptible=False))
    harness.cycle(0)
    harness.submit(make_job("late", 8, queue="a"), make_job("held", 8, queue="shut"))
    harness.cycle(HOUR)

    def found(job: str) -> tuple[MoreNodes, ...]:
        diagnosis = Diagnosis(harness.scheduler, harness.now)
        return more_nodes(diagnosis, diagnosis.row(job))

    (one,) = found("late")
    assert more_nodes_remedy(one) == (
        f"1 more node like {one.like} (8 GPUs) comes and the quota of queue a is raised by 4 GPUs"
    )
    assert found("held") == ()
    state = harness.profile.new_state(with_more(harness.state.spec, harness.state.spec.nodes[0], one.count))
    state.apply(QueuesChanged(0, harness.state.quota_usage.queue_config))
    for job in ("runs", "late"):
        state.apply(JobSubmitted(harness.now, replace(harness.state.live[harness.state.rows[job]], submit=harness.now)))
        if job == "runs":
            state.apply(JobStarted(harness.now, job, harness.state.running[harness.state.rows[job]]))
    assert not started(state, harness)
    for each in one.quotas:
        raise_quota(state, harness.now, each)
    assert "late" in started(state, harness)
