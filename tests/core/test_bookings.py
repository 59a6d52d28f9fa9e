"""Reservations that people have booked: nobody else is there when they begin, and who names one runs inside it."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.core.test_state_machine import said
from tests.examples import examples

from kant.cluster.booking_events import overlap
from kant.cluster.columns import J_PREEMPTIBLE, J_STARTED
from kant.cluster.state import ClusterState
from kant.model.decision import Booked, Hold, NoReservation, Preempt, Reject, Start
from kant.model.errors import StateError
from kant.model.event import BookingEnded, GpusBooked, NodeSetChanged
from kant.model.job import Job
from kant.model.node import ClusterSpec, Node
from kant.model.placement import MASK, NODE, Allocation, Booking
from kant.model.status import JobStatus
from kant.model.units import FOREVER, GPU, HOUR, SECOND
from kant.placement.placer import Placer
from kant.queueing.growth import Elastic
from kant.queueing.preemption.policy import Preemption
from kant.scheduler.cycle import Scheduler
from kant.scheduler.profile import builtin_profile
from kant.testing import Harness, make_cluster, make_job, make_profile

DISCIPLINES = ("strict", "best-effort", "backfill", "easy", "conservative", "preemptive")


def place(*held: tuple[int, int]) -> Allocation:
    """Whole GPUs by node, as bits."""
    rows = [[node, 1, bits, GPU, 0, 0, bits.bit_count()] for node, bits in held]
    return np.array(rows, dtype=np.int64)


def book(harness: Harness, name: str, start: int, end: int, *held: tuple[int, int]) -> None:
    harness.happen(GpusBooked(harness.now, name, start, end, place(*held)))


def inside(name: str, reservation: str, gpus: int = 1, **more: Any) -> Job:
    job = make_job(name, gpus, **more)
    fields = {each: getattr(job, each) for each in job.__struct_fields__}
    return Job(**{**fields, "reservation": reservation})


def profile(discipline: str, preempts: bool) -> Any:
    return make_profile("fifo", discipline, preemption=Preemption(min_run_s=0) if preempts else None)


# --- examples -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("discipline", DISCIPLINES)
def test_a_job_starts_beside_a_booking_only_if_it_reaches_its_limit_before(discipline: str) -> None:
    harness = Harness(make_cluster(2), profile(discipline, False))
    book(harness, "r", HOUR, 2 * HOUR, (0, 0b11))
    harness.submit(make_job("long", limit=2 * HOUR, estimate=2 * HOUR))
    harness.cycle()
    assert harness.running() == []
    harness.cancel("long")
    harness.submit(make_job("short", limit=HOUR, estimate=HOUR))
    harness.cycle()
    assert harness.running() == ["short"]


@pytest.mark.parametrize("discipline", ("best-effort", "easy", "conservative"))
def test_a_shorter_job_of_the_same_request_passes_the_one_that_a_booking_keeps(discipline: str) -> None:
    harness = Harness(make_cluster(2), profile(discipline, False))
    book(harness, "r", HOUR, 2 * HOUR, (0, 0b11))
    harness.submit(make_job("long", limit=2 * HOUR, estimate=2 * HOUR), make_job("short", limit=HOUR, estimate=HOUR))
    plan = harness.cycle()
    assert harness.running() == ["short"]
    if discipline == "best-effort":
        assert [each.reason for each in plan.decisions if isinstance(each, Hold)] == [Booked("r", HOUR)]


@pytest.mark.parametrize("discipline", DISCIPLINES)
def test_a_job_that_names_a_reservation_runs_inside_it_and_while_it_lasts(discipline: str) -> None:
    harness = Harness(make_cluster(2, 2), profile(discipline, False))
    book(harness, "r", HOUR, 2 * HOUR, (1, 0b10))
    harness.submit(inside("own", "r"))
    harness.cycle()
    assert harness.running() == []
    plan = harness.cycle(HOUR)
    assert harness.running() == ["own"] and plan.review_at == 2 * HOUR
    held = harness.state.running[harness.state.rows["own"]]
    assert held[:, [NODE, MASK]].tolist() == [[1, 0b10]]
    harness.cycle(2 * HOUR)
    harness.cycle(2 * HOUR + 1)
    assert harness.running() == [] and harness.status("own") == JobStatus.REJECTED


@pytest.mark.parametrize("discipline", ("best-effort", "backfill"))
def test_a_preemptible_job_runs_there_until_the_reservation_begins_and_then_moves(discipline: str) -> None:
    harness = Harness(make_cluster(2, 2), profile(discipline, True))
    book(harness, "r", HOUR, 2 * HOUR, (0, 0b11))
    harness.submit(make_job("other", 2, limit=SECOND), make_job("guest", 2))
    harness.cycle()
    assert sorted(harness.running()) == ["guest", "other"]
    where = harness.nodes_of("guest")
    harness.cycle(SECOND)
    plan = harness.cycle(HOUR)
    assert harness.nodes_of("guest") == ["n1"]
    if where == ["n0"]:
        assert [(each.job, each.why, each.moved) for each in plan.decisions if isinstance(each, Preempt)] == [
            ("guest", "reservation", True)
        ]


def test_a_job_that_is_not_preemptible_does_not_start_where_it_would_be_in_the_way() -> None:
    harness = Harness(make_cluster(2), profile("best-effort", True))
    book(harness, "r", HOUR, 2 * HOUR, (0, 0b11))
    harness.submit(make_job("firm", preemptible=False))
    harness.cycle()
    assert harness.running() == []
    harness.cycle(2 * HOUR)
    assert harness.running() == ["firm"]


def test_nobody_is_evicted_from_a_reservation_for_a_job_outside_it() -> None:
    harness = Harness(make_cluster(2), profile("best-effort", True))
    book(harness, "r", 0, HOUR, (0, 0b11))
    harness.submit(inside("own", "r", 2))
    harness.cycle()
    harness.submit(make_job("urgent", priority=9))
    harness.cycle(SECOND)
    assert harness.running() == ["own"]
    harness.submit(inside("better", "r", priority=9))
    harness.cycle(2 * SECOND)
    assert harness.running() == ["better"]


@pytest.mark.parametrize("discipline", DISCIPLINES)
def test_nobody_is_evicted_outside_a_reservation_for_a_job_without_gpus_inside_it(discipline: str) -> None:
    harness = Harness(make_cluster(2, 2, cpu=4000), profile(discipline, True))
    book(harness, "r", 0, HOUR, (0, 0b11))
    harness.submit(inside("first", "r", 0, cpu=2000, preemptible=False), make_job("low", 0, cpu=4000))
    harness.cycle()
    harness.submit(inside("own", "r", 0, cpu=3000, priority=9, estimate=SECOND))
    harness.cycle(100 * SECOND)
    assert harness.running() == ["first", "low"]


def test_a_job_whose_reservation_is_not_there_goes_back_to_its_owner() -> None:
    harness = Harness(make_cluster(2))
    harness.submit(inside("lost", "nowhere"))
    plan = harness.cycle()
    assert plan.decisions == [Reject("lost", NoReservation("nowhere"))]
    book(harness, "r", HOUR, 2 * HOUR, (0, 1))
    harness.submit(inside("own", "r"))
    harness.cycle()
    harness.happen(BookingEnded(harness.now, "r"))
    assert harness.cycle().decisions == [Reject("own", NoReservation("r"))]


def test_cancelling_a_reservation_wakes_whom_it_kept() -> None:
    harness = Harness(make_cluster(2))
    book(harness, "r", HOUR, 2 * HOUR, (0, 0b11))
    harness.submit(make_job("a"))
    harness.cycle()
    assert harness.running() == []
    harness.happen(BookingEnded(harness.now, "r"))
    harness.cycle()
    assert harness.running() == ["a"]


@pytest.mark.parametrize("discipline", ("best-effort", "backfill", "easy"))
def test_an_elastic_gang_grows_onto_gpus_whose_reservation_is_over(discipline: str) -> None:
    harness = Harness(make_cluster(2), make_profile("fifo", discipline, elastic=Elastic(grow_s=0)))
    book(harness, "r", 0, HOUR, (0, 0b01))
    harness.submit(make_job("gang", pods=2, floor=1, estimate=9 * HOUR))
    harness.cycle()
    harness.cycle(SECOND)
    assert harness.state.running[0][:, MASK].tolist() == [0b10]
    harness.cycle(HOUR)
    assert harness.state.running[0][:, MASK].sum() == 0b11


@pytest.mark.parametrize("discipline", ("best-effort", "backfill", "easy", "conservative"))
def test_booked_gpus_take_their_part_of_the_cores_along(discipline: str) -> None:
    harness = Harness(make_cluster(2, cpu=10_000), profile(discipline, False))
    book(harness, "r", 0, HOUR, (0, 0b01))
    harness.submit(make_job("wide", 0, cpu=6000, preemptible=False))
    harness.submit(make_job("fits", 0, cpu=5000), make_job("share", milli=500))
    harness.cycle()
    assert sorted(harness.running()) == ["fits", "share"]
    harness.submit(inside("own", "r", cpu=5000))
    harness.cycle()
    assert "own" in harness.running()


@pytest.mark.parametrize("begins", [0, HOUR])
@pytest.mark.parametrize("preempts", [False, True])
@pytest.mark.parametrize("discipline", DISCIPLINES)
@pytest.mark.parametrize(("cpu", "memory"), [(FOREVER, FOREVER), (8000, FOREVER), (FOREVER, 8000)])
def test_a_job_without_gpus_waits_for_no_booking_that_takes_nothing_of_what_it_asks_for(
    cpu: int, memory: int, discipline: str, preempts: bool, begins: int
) -> None:
    """All GPUs are booked. A node whose CPU or memory is not limited has enough of it for everybody."""
    harness = Harness(make_cluster(2, 1, cpu=cpu, memory=memory), profile(discipline, preempts))
    book(harness, "r", begins, 2 * HOUR, (0, 0b11), (1, 0b1))
    asks = {"cpu": 6000 * (cpu == FOREVER), "memory": 6000 * (memory == FOREVER)}
    harness.submit(make_job("cores", 0, preemptible=False, estimate=3 * HOUR, **asks))
    harness.submit(make_job("gpu", 1, preemptible=False, limit=3 * HOUR, estimate=3 * HOUR))
    harness.cycle()
    assert harness.running() == ["cores"]


def test_a_share_of_a_gpu_that_is_booked_later_is_left_alone_too() -> None:
    harness = Harness(make_cluster(1), profile("best-effort", False))
    harness.submit(make_job("short", milli=300, limit=HOUR))
    harness.cycle()
    book(harness, "r", HOUR, 2 * HOUR, (0, 0b1))
    harness.submit(make_job("long", milli=300), make_job("brief", milli=700, limit=HOUR))
    harness.cycle()
    assert harness.running() == ["short", "brief"]


def test_a_job_in_a_reservation_leaves_nodes_in_mig_mode_alone() -> None:
    spec = make_cluster(2, 2)
    nodes = (spec.nodes[0], Node("m", 2, "A100-40GB", mig="a100-40gb"))
    harness = Harness(ClusterSpec("test", nodes), profile("best-effort", False))
    book(harness, "r", 0, HOUR, (0, 0b10))
    harness.submit(inside("own", "r"), make_job("other"))
    harness.cycle()
    places = {
        job: harness.state.running[harness.state.rows[job]][:, [NODE, MASK]].tolist() for job in harness.running()
    }
    assert places == {"own": [[0, 0b10]], "other": [[0, 0b01]]}


def test_what_contradicts_a_booking_is_refused_by_the_state() -> None:
    harness = Harness(make_cluster(2))
    book(harness, "r", HOUR, 2 * HOUR, (0, 0b11))
    for name, start, end, held in (
        ("s", 0, HOUR + 1, (0, 1)), ("s", HOUR, HOUR, (0, 1)), ("s", 0, 1, (1, 1)), ("s", 0, 1, (0, 0b100)),
        ("", 0, 1, (0, 1)),
    ):  # fmt: skip
        with pytest.raises(StateError):
            book(harness, name, start, end, held)
    book(harness, "r", 2 * HOUR, 3 * HOUR, (0, 0b1))  # it moves
    book(harness, "s", HOUR, 2 * HOUR, (0, 0b11))
    with pytest.raises(StateError, match="reservation 't' does not exist"):
        harness.happen(BookingEnded(0, "t"))
    harness.now = HOUR
    with pytest.raises(StateError, match="has begun"):
        book(harness, "s", 5 * HOUR, 6 * HOUR, (0, 1))


def preempting(name: str) -> Any:
    """A shipped profile that may evict jobs: then preemptible ones may run where others have booked for later."""
    return replace(builtin_profile(name), preemption=Preemption(min_run_s=0))


PREEMPTING = ("kant", "e-binpack", "fifo", "fifo-best-effort", "easy", "conservative", "first-fit", "best-fit", "fgd")


@pytest.mark.parametrize("name", PREEMPTING)
@given(
    nodes=st.lists(st.sampled_from((2, 2, 4)), min_size=1, max_size=6),
    held=st.lists(st.integers(0, 3), min_size=6, max_size=6),
    gpus=st.integers(1, 4),
    hours=st.integers(1, 4),
)
@settings(max_examples=examples(15), deadline=None)
def test_of_equal_nodes_a_job_takes_one_that_is_not_booked_while_it_runs(
    name: str, nodes: list[int], held: list[int], gpus: int, hours: int
) -> None:
    """Nodes of one leaf. Where the chosen one is booked within the run, no idle one of its size is not."""
    harness = Harness(make_cluster(*nodes, leaf=6), preempting(name))
    for node, bits in enumerate(held[: len(nodes)]):
        if bits:
            book(harness, f"r{node}", 2 * HOUR, 3 * HOUR, (node, bits))
    harness.submit(make_job("j", gpus, estimate=hours * HOUR))
    harness.cycle()
    if harness.running() != ["j"]:
        return
    ((chosen, mask),) = harness.state.running[0][:, [NODE, MASK]].tolist()
    if hours <= 2 or not mask & held[chosen]:
        return
    free = [size - bits.bit_count() for size, bits in zip(nodes, held, strict=False)]
    assert not any(free[node] >= gpus for node in range(len(nodes)) if nodes[node] == nodes[chosen] and not held[node])
    assert free[chosen] < gpus, "other devices of the node are clear"


@pytest.mark.parametrize("name", PREEMPTING)
@given(st.lists(st.sampled_from((2, 2, 4)), min_size=1, max_size=6), st.integers(1, 4), st.integers(1, 3))
@settings(max_examples=examples(10), deadline=None)
def test_a_booking_that_begins_after_the_run_decides_nothing(name: str, nodes: list[int], gpus: int, pods: int) -> None:
    places = []
    for booked in (False, True):
        harness = Harness(make_cluster(*nodes, leaf=6), preempting(name))
        for node, size in enumerate(nodes[:-1] if booked else ()):
            book(harness, f"r{node}", 2 * HOUR, 3 * HOUR, (node, (1 << size) - 1))
        harness.submit(make_job("j", gpus, pods, estimate=2 * HOUR))
        harness.cycle()
        places.append([held.tolist() for held in harness.state.running.values()])
    assert places[0] == places[1]


def test_a_gang_and_a_share_move_to_equal_places_that_are_clear() -> None:
    """Three nodes of four, the first two booked soon: a gang of four pods of two takes the third and one of them."""
    harness = Harness(make_cluster(4, 4, 4), preempting("first-fit"))
    book(harness, "r", HOUR, 2 * HOUR, (0, 0b1111), (1, 0b0011))
    harness.submit(make_job("gang", 2, pods=2, estimate=2 * HOUR))
    harness.cycle()
    assert harness.nodes_of("gang") == ["n2"]
    harness.submit(make_job("share", milli=500, estimate=2 * HOUR), make_job("brief", 1, estimate=HOUR))
    harness.cycle()
    assert harness.nodes_of("brief") == ["n0"]
    ((node, mask),) = harness.state.running[harness.state.rows["share"]][:, [NODE, MASK]].tolist()
    assert node == 1 and mask & 0b0011 == 0


def test_without_bookings_nobody_asks_for_clear_places(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Placer, "clear_of_bookings", None)
    harness = Harness(make_cluster(4, 4), preempting("kant"))
    harness.submit(make_job("j", 2, estimate=HOUR))
    harness.cycle()
    assert harness.running() == ["j"]


# --- properties ---------------------------------------------------------------------------------------------------

NODES = (3, 2, 2)
STEPS = st.lists(
    st.tuples(
        st.sampled_from(("submit", "submit", "inside", "book", "time", "time", "finish", "unbook", "evict")),
        st.integers(0, 999),
    ),
    min_size=4, max_size=24,
)  # fmt: skip


@given(STEPS, st.sampled_from(DISCIPLINES), st.booleans())
@example([("submit", 0), ("book", 414), ("submit", 269), ("time", 0)], "backfill", False)  # of several priorities
@settings(max_examples=examples(120), deadline=None)
def test_a_booked_window_is_free_when_it_begins_and_nobody_else_is_in_it(
    script: list[tuple[str, int]], discipline: str, preempts: bool
) -> None:
    harness = Harness(make_cluster(*NODES), profile(discipline, preempts))
    for what, pick in script:
        step(harness, what, pick)
        waits = 0
        while waits < 3:  # the driver comes again at once where it is asked to
            plan = harness.cycle()
            holds(harness)
            for each in plan.decisions:
                if isinstance(each, Preempt) and each.why == "reservation":
                    assert preempts and harness.state.jobs[harness.state.rows[each.job], J_PREEMPTIBLE]
            if not 0 <= plan.review_at <= harness.now + 1:
                break
            harness.now, waits = plan.review_at, waits + 1
        decides_alike(harness)
    again = ClusterState(harness.state.spec)
    for event in harness.events:
        again.apply(event)
    assert again.bookings == harness.state.bookings or all(
        same(again.bookings[name], own) for name, own in harness.state.bookings.items()
    )
    assert np.array_equal(again.table, harness.state.table)


def step(harness: Harness, what: str, pick: int) -> None:
    state, running = harness.state, harness.running()
    named = f"j{len(state.ids)}"
    gpus, limit = 1 + pick % 3, (-1, 2, 5)[pick // 3 % 3]
    more = {"limit": limit * SECOND if limit > 0 else -1, "estimate": SECOND if pick % 2 else -1}
    match what:
        case "submit":
            part = {"gpus": 1, "milli": 400} if pick % 5 == 0 else {"gpus": gpus}
            harness.submit(make_job(named, preemptible=bool(pick & 8), priority=pick // 100, **part, **more))
        case "inside" if state.bookings:
            harness.submit(inside(named, sorted(state.bookings)[pick % len(state.bookings)], gpus, **more))
        case "book":
            node = pick % len(NODES)
            start, held = harness.now + pick % 7 * SECOND, (node, 1 + pick // 7 % ((1 << NODES[node]) - 1))
            new = Booking(start, start + (1 + pick % 5) * SECOND, place(held))
            stays = [
                Booking(harness.now, ends(state, row), held)
                for row, held in state.running.items()
                if stands(harness, row)
            ]
            booked = [own for own in state.bookings.values() if own.end > harness.now]
            if not any(overlap(new, other) for other in (*booked, *stays)):
                name = f"r{pick}-{len(harness.events)}"
                harness.happen(GpusBooked(harness.now, name, new.start, new.end, new.allocation))
        case "time":
            harness.now += (1 + pick % 3) * SECOND
        case "finish" | "evict" if running:
            getattr(harness, what)(running[pick % len(running)])
        case "unbook" if state.bookings:
            harness.happen(BookingEnded(harness.now, sorted(state.bookings)[pick % len(state.bookings)]))


def ends(state: ClusterState, row: int) -> int:
    job = state.live[row]
    return int(state.jobs[row, J_STARTED]) + job.limit if job.limit >= 0 else 1 << 61


def stands(harness: Harness, row: int) -> bool:
    """Whether a running job may not be told to make way."""
    return harness.profile.preemption is None or not harness.state.live[row].preemptible


def holds(harness: Harness) -> None:
    """Checked on its own: who runs is where it may be, now and until its limit."""
    state, now = harness.state, harness.now
    booked = {name: own for name, own in state.bookings.items() if own.end > now}
    assert not any(overlap(one, two) for one, two in combinations(booked.values(), 2))
    for row, held in state.running.items():
        job = state.live[row]
        own = booked.get(job.reservation)
        mine = Booking(now, now + 1, held)
        if job.reservation:
            assert own is not None and own.start <= now
            assert all(not bits & ~own.devices().get(node, 0) for node, bits in held[:, [NODE, MASK]].tolist())
        for name, other in booked.items():
            if name != job.reservation and other.start <= now:
                assert not overlap(mine, other), "somebody else is inside"


def decides_alike(harness: Harness) -> None:
    """A new scheduler on the same state starts and stops nobody either, who has just been looked at."""
    plan = Scheduler(harness.state, harness.profile).cycle(harness.now)
    kinds = {type(each) for each in plan.decisions}
    assert Start not in kinds and Preempt not in kinds


def same(one: Booking, two: Booking) -> bool:
    return (one.start, one.end) == (two.start, two.end) and np.array_equal(one.allocation, two.allocation)


def test_a_new_scheduler_keeps_the_same_reservations_after_a_job_has_started_inside_a_booking() -> None:
    """That job takes CPU which was reserved for another one: only its GPUs are booked."""
    harness = Harness(make_cluster(2, cpu=10_000), profile("conservative", False))
    book(harness, "r", 100 * SECOND, 200 * SECOND, (0, 0b01))
    harness.submit(make_job("runs", estimate=150 * SECOND, limit=150 * SECOND, preemptible=False))
    harness.submit(make_job("next", cpu=4000, estimate=HOUR, preemptible=False))
    harness.submit(inside("own", "r", cpu=8000, estimate=HOUR))
    harness.cycle()
    harness.cycle(100 * SECOND)
    assert sorted(harness.running()) == ["own", "runs"]
    fresh = Scheduler(harness.state, harness.profile).cycle(harness.now + 1)
    assert said(harness.cycle(harness.now + 1)) == said(fresh)


def test_a_start_on_booked_gpus_leaves_the_cores_beside_them_to_others_at_once() -> None:
    """While the booked GPU is free, half of the cores are closed with it. The job that takes it uses none of them."""
    harness = Harness(make_cluster(2, cpu=10_000), profile("best-effort", False))
    book(harness, "r", HOUR, 3 * HOUR, (0, 0b01))
    harness.submit(make_job("cores", 0, cpu=6000, preemptible=False), inside("own", "r"))
    harness.cycle()
    assert harness.running() == []
    assert harness.cycle(HOUR).review_at == HOUR + 1
    harness.cycle(HOUR + 1)
    assert sorted(harness.running()) == ["cores", "own"]


def test_a_node_that_has_lost_gpus_stays_closed_to_jobs_of_a_reservation_elsewhere() -> None:
    harness = Harness(make_cluster(1, 4, cpu=10_000), profile("best-effort", False))
    harness.happen(NodeSetChanged(0, "first", ("n0",)))
    harness.submit(make_job("taken", 0, cpu=8000, node_set="first"))
    harness.cycle()
    book(harness, "r", 0, HOUR, (0, 0b1))
    harness.lose("n1", 1, 2)
    harness.submit(inside("own", "r", 0, cpu=4000))
    harness.cycle()
    assert harness.running() == ["taken"]
