"""`kant plan calendar` of a journal: what is booked, and which bookings hold the same GPUs."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from benchmarks.studies.judges import calendar_faults as faults
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.cli.command import kant
from tests.examples import examples

from kant.cluster.state import ClusterState
from kant.model.event import DevicesChanged, JobStarted, JobSubmitted, NodeChanged
from kant.model.node import ClusterSpec, Node
from kant.model.status import NodeStatus
from kant.model.units import FOREVER, HOUR
from kant.optimize.calendar.booked import HeldGpus, booked_in, collisions
from kant.optimize.calendar.booking import LineBooking
from kant.scheduler.profile import builtin_profile
from kant.sim.run import RunHooks, simulate
from kant.testing import make_job, make_jobs

NODES, GPUS = 3, 4


@st.composite
def booked(draw: st.DrawFn) -> list[HeldGpus]:
    found = []
    for number in range(draw(st.integers(0, 6))):
        start = draw(st.integers(0, 8))
        held = draw(st.dictionaries(st.integers(0, NODES - 1), st.integers(1, (1 << GPUS) - 1), min_size=1))
        kind = draw(st.sampled_from(("running", "reserved")))
        end = start + draw(st.integers(1, 5))
        found.append(HeldGpus(str(number), kind, start, end, tuple(sorted(held.items()))))  # type: ignore[arg-type]
    return found


def runs(mask: int) -> list[tuple[int, int]]:
    """(first, count) of the bits that stand side by side."""
    found, first = [], -1
    for bit in range(GPUS + 1):
        if mask >> bit & 1 and first < 0:
            first = bit
        elif not mask >> bit & 1 and first >= 0:
            found.append((first, bit - first))
            first = -1
    return found


@given(booked())
@settings(max_examples=examples(80), deadline=None)
def test_collisions_are_those_of_all_gpus_at_all_times(bookings: list[HeldGpus]) -> None:
    meet = set()
    for now in range(14):
        for node in range(NODES):
            for gpu in range(GPUS):
                there = [
                    i for i, each in enumerate(bookings)
                    if each.start <= now < each.end and dict(each.held).get(node, 0) >> gpu & 1
                ]  # fmt: skip
                meet |= {(a, b) for a in there for b in there if a < b}
    found = collisions(bookings)
    assert {(each.first, each.second) for each in found} == meet
    for each in found:
        one, two = (bookings[i] for i in (each.first, each.second))
        assert each.since == max(one.start, two.start)
        assert each.gpus == dict(one.held)[each.node] & dict(two.held)[each.node] != 0


@given(booked())
@settings(max_examples=examples(60), deadline=None)
def test_no_collision_means_a_calendar_that_holds(bookings: list[HeldGpus]) -> None:
    """The same on one line of all GPUs, by the check of calendars."""
    lines = [
        LineBooking(f"{each.id} {node} {first}", each.start, each.end, count, offset=node * GPUS + first)
        for each in bookings
        for node, mask in each.held
        for first, count in runs(mask)
    ]
    offsets = [line.offset or 0 for line in lines]
    assert bool(collisions(bookings)) == bool(faults(lines, offsets, NODES * GPUS))


def test_nodes_out_of_service_are_booked_too() -> None:
    state = ClusterState(ClusterSpec("four", tuple(Node(f"n{i}", 4) for i in range(4))))
    state.apply(JobSubmitted(0, make_job("j", 4)))
    state.apply(JobStarted(0, "j", np.array([[0, 1, 15, 1000, 0, 0, 4]])))
    state.apply(NodeChanged(1, "n0", NodeStatus.DRAINING, 5 * HOUR))
    state.apply(NodeChanged(1, "n1", NodeStatus.FAILED))
    state.apply(NodeChanged(1, "n2", NodeStatus.CORDONED))
    state.apply(DevicesChanged(1, "n3", 0b0110))
    bookings, shared = booked_in(state, 1, lambda row: 6 * HOUR)
    assert shared == []
    assert [(each.id, each.kind, each.start, each.end, each.held, each.soft) for each in bookings] == [
        ("j", "running", 1, 6 * HOUR, ((0, 15),), False),
        ("n1", "maintenance", 1, FOREVER, ((1, 15),), False),
        ("n2", "maintenance", 1, FOREVER, ((2, 15),), True),
        ("n3", "maintenance", 1, FOREVER, ((3, 0b0110),), False),
        ("n0", "maintenance", 5 * HOUR, FOREVER, ((0, 15),), False),
    ]
    (late,) = collisions(bookings)
    assert (late.first, late.second, late.since) == (0, 4, 5 * HOUR)  # it does not end before the drain does


def test_jobs_that_share_gpus_are_left_out() -> None:
    state = ClusterState(ClusterSpec("one", (Node("n0", 4),)))
    state.apply(JobSubmitted(0, make_job("j", 1, milli=500)))
    state.apply(JobStarted(0, "j", np.array([[0, 1, 1, 500, 0, 0, 0]])))
    assert booked_in(state, 0, lambda row: HOUR) == ([], ["j"])


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    """Two nodes: a job of one runs for an hour, a job of both is promised them then."""
    path = tmp_path / "journal.jsonl"
    jobs = make_jobs(submit=[0, 60], runtime=[3600, 3600], gpus=[8, 16])
    nodes = tuple(Node(f"n{i}", 8) for i in range(2))
    with path.open("wb") as file:
        simulate(jobs, ClusterSpec("two", nodes), builtin_profile("easy"), hooks=RunHooks(journal=file.write))
    return path


def test_what_a_journal_has_booked_fits(journal: Path) -> None:
    said = kant("plan", "calendar", journal, "--at", "2m", "--json")
    assert said.code == 0
    found = said.json()
    assert [(each["kind"], each["start"], each["end"], each["gpus"]) for each in found["bookings"]] == [
        ("running", 120, 3600, 8),
        ("reserved", 3600, 7200, 16),
    ]
    assert "No two of these hold the same GPUs." in kant("plan", "calendar", journal, "--at", "2m").out


def test_a_promise_that_cannot_be_kept_is_told(journal: Path) -> None:
    lines = []
    for line in journal.read_text().splitlines():
        event = json.loads(line)
        if event.get("event") == "reserved":
            event["start"] -= 60_000_000
        lines.append(json.dumps(event, separators=(",", ":")))
    journal.write_text("\n".join(lines) + "\n")
    said = kant("plan", "calendar", journal, "--at", "2m")
    assert said.code == 1
    assert "both hold 8 GPUs of n0 from 0d 00:59:00 on" in said.out
    (found,) = kant("plan", "calendar", journal, "--at", "2m", "--json").json()["collide"]
    assert (found["node"], found["gpus"], found["since"]) == ("n0", 255, 3540)


def test_options_of_the_other_kind_of_file_are_refused(journal: Path, tmp_path: Path) -> None:
    week = tmp_path / "week.csv"
    week.write_text("id,start,end,gpus\na,0h,1h,8\n")
    assert "--at: expected a journal.jsonl" in kant("plan", "calendar", week, "--at", "1h").refusal()
    assert "--capacity and --slice" in kant("plan", "calendar", journal, "--capacity", "8").refusal()
