"""Backfilling: promises are kept, on real devices, and nobody who starts later puts them off."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kant.cluster import columns as c
from kant.model.decision import Hold, Plan, Preempt, Release, Reserve, Reserved, Start
from kant.model.event import JobReleased, JobSubmitted
from kant.model.job import Demand, Job, PodGroup
from kant.model.node import ClusterSpec
from kant.model.units import FOREVER, HOUR, MINUTE, SECOND
from kant.queueing.discipline import Discipline
from kant.queueing.disciplines.backfill import Backfill
from kant.queueing.disciplines.conservative import Conservative
from kant.queueing.disciplines.easy import Easy
from kant.queueing.orders.sjf import Sjf
from kant.queueing.preemption.policy import Preemption
from kant.scheduler.cycle import Scheduler
from kant.testing import Harness, make_cluster, make_job, make_profile
from kant.testing.builders import make_queue
from kant.testing.naive import pods_that_fit_anywhere
from kant.testing.strategies import clusters


@st.composite
def streams(draw: st.DrawFn, exact: bool = True) -> list[JobSubmitted]:
    """Up to 16 gangs of one group that arrive within an hour or so, with exact estimates or wrong ones."""
    found, now = [], 0
    for i in range(draw(st.integers(2, 16))):
        now += draw(st.integers(0, 8)) * MINUTE
        pods, gpus = draw(st.sampled_from(((1, 1), (1, 2), (1, 4), (1, 8), (2, 4), (2, 8), (3, 1), (4, 8))))
        runtime = draw(st.integers(1, 90)) * MINUTE
        estimate = runtime if exact else draw(st.sampled_from((runtime // 3, runtime, 3 * runtime, -1)))
        job = Job(f"j{i}", now, (PodGroup(pods, Demand(gpus)),), estimate=estimate)
        found.append(JobSubmitted(now, job, runtime))
    return found


class Promises:
    """What was promised to whom, in order of time, as the plans said it."""

    def __init__(self, harness: Harness) -> None:
        self.harness = harness
        self.made: dict[str, list[Reserve]] = {}
        harness.before_carrying_out = self.look

    def look(self, plan: Plan) -> None:
        for decision in plan.decisions:
            if isinstance(decision, Reserve):
                assert decision.start >= plan.time
                self.made.setdefault(decision.job, []).append(decision)


STICKY = (Easy(sticky=True), Easy(heads=3, sticky=True), Easy(sticky=True, backfill_order=Sjf()), Conservative())


@given(
    spec=clusters(),
    coming=streams(),
    chosen=st.one_of(
        st.tuples(st.just("fifo"), st.sampled_from((Easy(), Easy(backfill_order=Sjf()), *STICKY))),
        st.tuples(st.just("sjf"), st.sampled_from(STICKY)),
    ),
)
def test_no_job_starts_later_than_it_was_ever_promised(
    spec: ClusterSpec, coming: list[JobSubmitted], chosen: tuple[str, Any]
) -> None:
    """Sticky promises stay whatever the order says; that of a single head does where nobody comes before it.

    Several heads that are not sticky are promised anew in every cycle: where the first starts elsewhere than it was
    promised, a later one may have to wait longer.
    """
    harness = Harness(spec, make_profile(*chosen))
    promises = Promises(harness)
    harness.run(coming)
    starts = harness.first_starts()
    for job, made in promises.made.items():
        times = [promise.start for promise in made]
        assert times == sorted(times, reverse=True), f"{job} was put off: {times}"
        assert 0 <= starts[job] <= times[-1]
    assert not harness.state.live


@given(spec=clusters(), coming=streams(), heads=st.integers(1, 3))
def test_only_a_job_before_it_in_the_order_puts_a_promise_off(
    spec: ClusterSpec, coming: list[JobSubmitted], heads: int
) -> None:
    """Under an order in which jobs come before those who wait, the order decides in every cycle."""
    harness = Harness(spec, make_profile("sjf", Easy(heads=heads)))
    promised: dict[str, tuple[int, int]] = {}  # start, and how many jobs had come when it was promised

    def look(plan: Plan) -> None:
        jobs, rows = harness.state.jobs, harness.state.rows
        for decision in plan.decisions:
            if isinstance(decision, (Reserve, Release)) and decision.job in promised:
                start, known = promised.pop(decision.job)
                if isinstance(decision, Release) or decision.start > start:
                    own = jobs[rows[decision.job], c.J_ESTIMATE]
                    assert (jobs[known : len(rows), c.J_ESTIMATE] < own).any(), f"{decision.job} gave way to nobody"
            if isinstance(decision, Reserve):
                promised[decision.job] = decision.start, len(rows)
            if isinstance(decision, Start) and decision.job in promised:
                assert plan.time <= promised[decision.job][0]

    harness.before_carrying_out = look
    harness.run(coming)


@pytest.mark.parametrize("sticky", [False, True])
def test_a_job_that_comes_before_the_head_takes_over_unless_promises_stay(sticky: bool) -> None:
    harness = Harness(make_cluster(8), make_profile("sjf", Easy(sticky=sticky)))
    harness.submit(make_job("runs", 8, estimate=HOUR))
    harness.cycle(0)
    harness.submit(make_job("head", 8, estimate=3 * HOUR))
    harness.cycle(0)
    harness.submit(make_job("short", 8, estimate=HOUR))
    fresh = Scheduler(harness.state, harness.profile, harness.seed).cycle(0)
    harness.cycle(0)
    assert [harness.state.ids[row] for row in harness.state.reserved] == ["head" if sticky else "short"]
    told = [(type(d), d.job) for d in fresh.decisions if isinstance(d, (Reserve, Release))]
    assert told == ([] if sticky else [(Reserve, "short"), (Release, "head")])


@pytest.mark.parametrize(("moves", "starts"), [(256, ["long"]), (1, ["long"]), (0, [])])
def test_a_promise_takes_other_devices_at_the_same_start_so_that_a_job_may_start(moves: int, starts: list[str]) -> None:
    """The head needs two of three nodes that come free in an hour. The first of its two comes free before."""
    harness = Harness(make_cluster(1, 1, 1), make_profile("fifo", Easy(moves=moves)))
    harness.submit(*(make_job(name, estimate=HOUR) for name in "abc"))
    harness.cycle(0)
    harness.submit(make_job("head", pods=2, estimate=HOUR))
    harness.cycle(0)
    head = harness.state.rows["head"]
    before = harness.state.reserved[head]
    harness.now = MINUTE
    harness.finish(harness.running()[int(before.allocation[0, 0])])
    harness.submit(make_job("long", estimate=5 * HOUR))
    plan = harness.cycle(MINUTE)
    assert started(plan) == starts
    after = harness.state.reserved[head]
    assert before.start == after.start == HOUR
    moved = [d.job for d in plan.decisions if isinstance(d, Reserve)]
    assert moved == (["head"] if starts else [])


@example(
    spec=make_cluster(8),
    coming=[JobSubmitted(0, make_job(name, 8, estimate=HOUR), HOUR) for name in ("first", "second", "third")],
    policy=Easy(),
)
@given(
    spec=clusters(), coming=streams(exact=False), policy=st.sampled_from((Easy(), Easy(heads=3), Conservative(depth=2)))
)
def test_a_cycle_is_asked_for_when_the_next_promise_falls_due(
    spec: ClusterSpec, coming: list[JobSubmitted], policy: Any
) -> None:
    harness = Harness(spec, make_profile("fifo", policy))

    def look(plan: Plan) -> None:
        later = [promise.start for promise in harness.state.reserved.values() if promise.start > plan.time]
        assert not later or plan.time < plan.review_at <= min(later)

    harness.after_carrying_out = look
    harness.run(coming)


@given(spec=clusters(), coming=streams())
def test_conservative_promises_everyone_who_waits(spec: ClusterSpec, coming: list[JobSubmitted]) -> None:
    harness = Harness(spec, make_profile("fifo", Conservative()))
    harness.after_carrying_out = lambda plan: _all_promised(harness)
    harness.run(coming)


def _all_promised(harness: Harness) -> None:
    assert harness.state.reserved.keys() == harness.state.pending.keys()


@given(
    spec=clusters(),
    coming=streams(exact=False),
    policy=st.sampled_from((Backfill(timeout_s=600), Easy(timeout_s=600), Conservative(timeout_s=600))),
)
def test_wrong_estimates_do_no_harm_but_to_the_promises(
    spec: ClusterSpec, coming: list[JobSubmitted], policy: Any
) -> None:
    """Every invariant is checked after every event by the harness; nobody is lost, and everybody gets a turn."""
    harness = Harness(spec, make_profile("fifo", policy))
    harness.run(coming)
    assert not harness.state.live


@given(spec=clusters(), coming=streams())
def test_easy_delays_no_head(spec: ClusterSpec, coming: list[JobSubmitted]) -> None:
    """The oracle: were nobody else to start once a job is the head, it would start when enough of those that run then
    have ended. Under EASY it starts no later."""
    harness = Harness(spec, make_profile("fifo", Easy()))
    bound: dict[str, int] = {}

    def look(plan: Plan) -> None:
        if harness.state.pending:
            head = harness.state.ids[min(harness.state.pending)]
            bound.setdefault(head, _undisturbed_start(harness, head))

    harness.after_carrying_out = look
    harness.run(coming)
    starts = harness.first_starts()
    for job, latest in bound.items():
        assert starts[job] <= latest, f"{job} starts at {starts[job]}, alone it would at {latest}"


def _undisturbed_start(harness: Harness, head: str) -> int:
    """When `head` would start if nobody else did, by giving back what runs, end after end."""
    state = harness.state
    row = state.rows[head]
    job = state.live[row]
    left = {other: int(state.jobs[other, c.J_SINCE] + state.jobs[other, c.J_REMAINING]) for other in state.running}
    table = state.table.copy()
    for other in sorted(left, key=lambda other: left[other]):
        for node, _, mask, milli, cpu, memory, *_ in state.running[other].tolist():
            for device in range(mask.bit_length()):
                table[node, c.DEVICES + device] += milli * (mask >> device & 1)
            table[node, c.CPU_FREE] += cpu
            table[node, c.MEMORY_FREE] += memory
        if pods_that_fit_anywhere(state.spec, table, job, job.groups[0].demand) >= job.groups[0].count:
            return left[other]
    return FOREVER


def _plans(spec: ClusterSpec, coming: list[JobSubmitted], policy: Any) -> list[Plan]:
    harness = Harness(spec, make_profile("fifo", policy))
    plans: list[Plan] = []
    harness.before_carrying_out = plans.append
    harness.run(coming)
    return plans


@given(spec=clusters(), coming=streams(exact=False), policy=st.sampled_from((Easy(heads=3), Conservative())))
def test_reconsidered_promises_are_those_that_a_full_search_would_give(
    spec: ClusterSpec, coming: list[JobSubmitted], policy: Any
) -> None:
    """The oracle lifts every promise from the timeline, searches without a limit and puts it back."""
    quick = _plans(spec, coming, policy)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("kant.queueing.reservation_backfill.ReservationBackfill._reconsider", lambda _, rows, at: at)
        full = _plans(spec, coming, policy)
    assert str(quick) == str(full)


# --- examples ---------------------------------------------------------------------------------------------------


def started(plan: Plan) -> list[str]:
    return [decision.job for decision in plan.decisions if isinstance(decision, Start)]


@pytest.mark.parametrize("policy", [Easy(), Conservative()])
def test_a_short_job_passes_the_head_and_a_long_one_does_not(policy: Any) -> None:
    harness = Harness(make_cluster(8, 8), make_profile("fifo", policy))
    harness.submit(make_job("runs", 8, estimate=HOUR), runtime=HOUR)
    harness.cycle(0)
    harness.submit(
        make_job("head", 8, pods=2, estimate=HOUR),
        make_job("long", 8, estimate=2 * HOUR),
        make_job("short", 8, estimate=HOUR),
    )
    plan = harness.cycle(0)
    assert started(plan) == ["short"]
    head = next(d for d in plan.decisions if isinstance(d, Reserve))
    assert (head.job, head.start) == ("head", HOUR)
    held = {d.job: d.reason for d in plan.decisions if isinstance(d, Hold)}
    assert held["long"] == Reserved("head", HOUR)


@pytest.mark.parametrize("policy", [Easy(), Conservative()])
def test_a_promise_of_part_of_a_node_leaves_the_rest_to_others(policy: Any) -> None:
    """Slurm's backfill reserves whole nodes; here the other half of the node takes a job that runs for long."""
    harness = Harness(make_cluster(8), make_profile("fifo", policy))
    harness.submit(make_job("runs", 6, estimate=HOUR), runtime=HOUR)
    harness.cycle(0)
    harness.submit(make_job("head", 4, estimate=HOUR), make_job("beside", 2, estimate=100 * HOUR))
    assert started(harness.cycle(0)) == ["beside"]


def test_a_wide_job_starves_under_best_effort_and_not_under_easy() -> None:
    def wait_of_the_wide_job(policy: Any) -> int:
        harness = Harness(make_cluster(8, 8), make_profile("fifo", policy))
        coming = [JobSubmitted(0, make_job("wide", 8, pods=2, estimate=HOUR, submit=0), HOUR)]
        for i in range(60):
            at = i * 20 * MINUTE
            coming.append(JobSubmitted(at, make_job(f"n{i}", 8, estimate=50 * MINUTE, submit=at), 50 * MINUTE))
        first = JobSubmitted(0, make_job("first", 8, estimate=HOUR, submit=0), HOUR)
        harness.run([first, *coming])
        return harness.first_starts()["wide"]

    assert wait_of_the_wide_job(Easy()) == HOUR
    assert wait_of_the_wide_job("best-effort") > 10 * HOUR


def test_a_job_that_ends_early_brings_promises_forward() -> None:
    harness = Harness(make_cluster(8, 8), make_profile("fifo", Conservative()))
    harness.submit(make_job("a", 8, estimate=10 * HOUR), make_job("b", 8, estimate=2 * HOUR), runtime=FOREVER)
    harness.cycle(0)
    harness.submit(make_job("wide", 8, pods=2, estimate=HOUR), make_job("after", 8, estimate=10 * HOUR))
    harness.cycle(0)
    row = harness.state.rows
    assert harness.state.reserved[row["wide"]].start == 10 * HOUR
    assert harness.state.reserved[row["after"]].start == 11 * HOUR
    harness.now = HOUR
    harness.finish("a")
    plan = harness.cycle(HOUR)
    promised = {d.job: d.start for d in plan.decisions if isinstance(d, Reserve)}
    assert promised["wide"] == 2 * HOUR
    assert promised["after"] == 3 * HOUR
    assert not started(plan)


def test_an_early_end_moves_only_the_promises_that_can_use_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forty jobs wait for whole nodes, and one that is small and short. What a small job leaves is of use to that one
    alone: nobody else's commitment is touched, and the searches look at a node less than once for two promises."""
    harness = Harness(make_cluster(*[8] * 8), make_profile("fifo", Conservative()))
    harness.submit(make_job("small", 1, estimate=10 * HOUR), make_job("beside", 7, estimate=20 * HOUR), runtime=FOREVER)
    harness.submit(*(make_job(f"r{i}", 8, estimate=(10 + i) * HOUR) for i in range(7)), runtime=FOREVER)
    harness.cycle(0)
    harness.submit(*(make_job(f"w{i}", 8, pods=1 + i % 3, estimate=(1 + i % 5) * HOUR) for i in range(40)))
    harness.submit(make_job("short", 1, estimate=5 * HOUR))
    harness.cycle(0)
    harness.now = HOUR
    harness.finish("small")
    calendar, moved = harness.scheduler.placer.calendar, []
    for name in ("add", "remove"):
        real = getattr(calendar, name)
        monkeypatch.setattr(calendar, name, lambda key, *rest, real=real: (moved.append(key), real(key, *rest)))
    row, before = dict(harness.state.rows), calendar.looks
    plan = harness.cycle(HOUR)
    assert started(plan) == ["short"]
    assert not [d for d in plan.decisions if isinstance(d, Reserve)]
    assert set(moved) == {row["small"], row["short"]}
    assert calendar.looks - before <= len(harness.state.reserved) // 2 == 20


def test_a_promise_on_a_failed_node_is_given_anew_or_taken_back() -> None:
    harness = Harness(make_cluster(8, 8), make_profile("fifo", Conservative()))
    harness.submit(make_job("a", 8, estimate=HOUR), make_job("b", 8, estimate=2 * HOUR))
    harness.cycle(0)
    harness.submit(make_job("next", 8, estimate=HOUR))
    harness.cycle(0)
    promise = harness.state.reserved[harness.state.rows["next"]]
    assert promise.start == HOUR
    harness.fail(f"n{int(promise.allocation[0, 0])}")
    harness.cycle(0)
    rows = harness.state.rows  # job a has lost its node, and is before the other in the queue
    assert harness.state.reserved[rows["a"]].start == 2 * HOUR
    assert harness.state.reserved[rows["next"]].start == 3 * HOUR
    harness.fail(next(name for name in ("n0", "n1") if harness.state.table[harness.state.node_index[name], 0] == 0))
    plan = harness.cycle(0)
    assert sorted(d.job for d in plan.decisions if isinstance(d, Release)) == ["a", "next"]


def test_a_job_that_outlives_its_estimate_puts_the_promise_off() -> None:
    harness = Harness(make_cluster(8), make_profile("fifo", Easy()))
    harness.submit(make_job("late", 8, estimate=HOUR))
    harness.cycle(0)
    harness.submit(make_job("head", 8, estimate=HOUR))
    harness.cycle(0)
    head = harness.state.rows["head"]
    assert harness.state.reserved[head].start == HOUR
    harness.submit(make_job("other", 8, estimate=HOUR))
    harness.cycle(HOUR + MINUTE)
    assert harness.state.reserved[head].start == 2 * HOUR


@pytest.mark.parametrize(
    ("sticky", "late", "starts"), [(True, 0, "BC"), (True, 1, "BD"), (False, 0, "BC"), (False, 1, "BC")]
)
def test_a_promise_that_holds_stays_before_one_that_a_late_end_has_broken(sticky: bool, late: int, starts: str) -> None:
    """Job A ends a microsecond after its estimate, as on a live cluster: C loses its place, and D does not."""
    harness = Harness(make_cluster(3), make_profile("fifo", Conservative(sticky=sticky)))
    jobs = [make_job("A", 3, estimate=1), make_job("B", 1, estimate=3), make_job("C", 2, estimate=2)]
    harness.submit(*jobs, make_job("D", 1, estimate=2))
    harness.cycle(0)
    if late:
        harness.cycle(1)
    harness.now = 1 + late
    harness.finish("A")
    plan = harness.cycle()
    assert "".join(d.job for d in plan.decisions if isinstance(d, Start)) == starts


@pytest.mark.parametrize("policy", [Backfill(timeout_s=3600), Easy(), Conservative()])
def test_without_estimates_the_head_stops_who_overtook_it(policy: Any) -> None:
    harness = Harness(make_cluster(8, 8), make_profile("fifo", policy))
    harness.submit(make_job("runs", 8))
    harness.cycle(0)
    harness.submit(make_job("head", 8, pods=2), make_job("passes", 8))
    plan = harness.cycle(SECOND)
    assert started(plan) == ["passes"]
    assert plan.review_at == HOUR
    harness.now = HOUR // 2
    harness.finish("runs")
    assert started(harness.cycle(HOUR // 2)) == []
    plan = harness.cycle(HOUR)
    assert [d for d in plan.decisions if isinstance(d, Preempt)] == [Preempt("passes", by="head", why="backfill")]
    assert started(plan) == ["head"]


def test_the_head_never_stops_who_was_there_before_it() -> None:
    harness = Harness(make_cluster(8, 8), make_profile("fifo", Backfill(timeout_s=60)))
    harness.submit(make_job("runs", 8))
    harness.cycle(0)
    harness.submit(make_job("head", 8, pods=2), make_job("passes", 8))
    harness.cycle(SECOND)
    for hours in (1, 10, 100):
        assert not [d for d in harness.cycle(hours * HOUR).decisions if isinstance(d, Preempt)]


def test_a_job_of_higher_priority_goes_before_promises_of_lower_priority() -> None:
    harness = Harness(make_cluster(8), make_profile("fifo", Conservative()))
    harness.submit(make_job("runs", 8, estimate=HOUR))
    harness.cycle(0)
    harness.submit(make_job("low", 8, estimate=HOUR))
    harness.cycle(0)
    harness.submit(make_job("high", 8, estimate=HOUR, priority=5))
    harness.cycle(0)
    rows = harness.state.rows
    assert harness.state.reserved[rows["high"]].start == HOUR
    assert harness.state.reserved[rows["low"]].start == 2 * HOUR


def test_the_promise_of_easy_goes_to_a_new_head_of_higher_priority() -> None:
    """Though the one promise that there may be is held; a scheduler that has just begun does the same."""
    harness = Harness(make_cluster(8), make_profile("fifo", Easy()))
    harness.submit(make_job("runs", 8, estimate=HOUR))
    harness.cycle(0)
    harness.submit(make_job("head", 8, estimate=HOUR))
    harness.cycle(0)
    harness.submit(make_job("urgent", 8, estimate=HOUR, priority=1))
    fresh = Scheduler(harness.state, harness.profile, harness.seed).cycle(0)
    plan = harness.cycle(0)
    assert [d.job for d in plan.decisions if isinstance(d, Reserve)] == ["urgent"]
    assert [d.job for d in plan.decisions if isinstance(d, Release)] == ["head"]
    assert [d.job for d in fresh.decisions if isinstance(d, (Reserve, Release))] == ["urgent", "head"]


def test_two_promises_of_now_do_not_take_each_others_place() -> None:
    """Best fit would put `small` where `large` is promised the only node that is large enough for it."""
    harness = Harness(make_cluster(4, 8), make_profile("fifo", Conservative()))
    harness.submit(*(make_job(f"r{i}", 4, estimate=HOUR) for i in range(3)))
    harness.cycle(0)
    harness.submit(make_job("small", 4, estimate=HOUR), make_job("large", 8, estimate=HOUR))
    harness.cycle(0)
    starts = {harness.state.ids[row]: promise.start for row, promise in harness.state.reserved.items()}
    harness.now = HOUR
    harness.finish("r0", "r1", "r2")
    assert set(started(harness.cycle(HOUR))) == {job for job, start in starts.items() if start == HOUR}


@pytest.mark.parametrize("discipline", ["easy", "conservative"])
def test_a_scheduler_that_only_follows_forgets_a_reservation_that_was_withdrawn(discipline: str) -> None:
    """As one that answers about a journal: another one has decided."""
    harness = Harness(make_cluster(8), make_profile("fifo", discipline))
    harness.submit(make_job("runs", 8, estimate=100 * SECOND))
    harness.cycle(0)
    harness.submit(make_job("waits", 8, estimate=100 * SECOND))
    harness.cycle()
    follower, row = Scheduler(harness.state, harness.profile), harness.state.rows["waits"]
    follower.begin(harness.now)
    assert follower.forecast is not None and row in follower.forecast.calendar
    harness.happen(JobReleased(harness.now, "waits"))
    follower.begin(harness.now)
    assert row not in follower.forecast.calendar


@pytest.mark.parametrize("policy", [Easy(timeout_s=300), Conservative(timeout_s=300)])
def test_a_late_head_without_reservation_preempts_what_starts_before_it_in_the_same_plan(policy: Discipline) -> None:
    """No job's end is known, and the order of shares serves a later job of another queue first."""
    harness = Harness(make_cluster(2), make_profile("fair-share", policy))
    harness.set_queues(make_queue("a"), make_queue("b"))
    harness.submit(make_job("runs", 2, queue="a"))
    harness.cycle()
    harness.submit(make_job("late", 2, queue="a"), make_job("later", 1, queue="b"))
    harness.now = 400 * SECOND
    harness.finish("runs")
    plan = harness.cycle()
    assert harness.running() == ["later"] and plan.review_at == harness.now + 1
    harness.cycle(plan.review_at)
    assert harness.running() == ["late"]


def test_the_head_of_another_queue_is_served_where_the_first_may_not_stop_enough() -> None:
    """The first head would borrow, so it may not stop the job of the other queue that passed both heads."""
    harness = Harness(
        make_cluster(8),
        make_profile(discipline=Backfill(timeout_s=10, small_timeout_s=10), preemption=Preemption(min_run_s=0)),
    )
    harness.set_queues(make_queue("all"), make_queue("a", 4, parent="all"), make_queue("b", 8, parent="all"))
    jobs = (
        ("runs", "a", 4, 0, 500), ("first", "b", 1, 0, 3), ("second", "b", 3, 0, 5), ("borrows", "a", 4, 1, 50),
        ("entitled", "b", 4, 1, 50), ("passes", "b", 1, 2, 500),
    )  # fmt: skip
    started = dict[str, int]()

    def look(plan: Plan) -> None:
        started.update({one.job: plan.time // SECOND for one in plan.decisions if isinstance(one, Start)})

    harness.before_carrying_out = look
    harness.run(
        [
            JobSubmitted(at * SECOND, make_job(name, gpus=gpus, queue=queue, submit=at * SECOND), runtime * SECOND)
            for name, queue, gpus, at, runtime in jobs
        ],
        until=30 * SECOND,
    )
    assert started == {"runs": 0, "first": 0, "second": 0, "passes": 3, "entitled": 11}
