"""The timeline against brute force: starts are the earliest, promises hold, and nothing is blocked in vain."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples

from kant.cluster import columns as c
from kant.cluster.columns import Table
from kant.cluster.shapes import Shape
from kant.cluster.snapshot import Snapshot
from kant.cluster.state import ClusterState
from kant.model.decision import NoFit
from kant.model.errors import StateError
from kant.model.job import LEVELS, Job, PodGroup
from kant.model.mig import GEOMETRIES
from kant.model.node import ClusterSpec
from kant.model.placement import (
    CPU,
    MASK,
    MEMORY,
    MILLI,
    NODE,
    PODS,
    TAG,
    WIDTH,
    Allocation,
    slices_of_tag,
)  # fmt: skip
from kant.model.units import FOREVER
from kant.placement.calendar.calendar import Calendar
from kant.placement.placer import Placer
from kant.placement.policies.best_fit import BestFit
from kant.testing import make_cluster, make_group, make_job
from kant.testing.naive import admits, domains_of, free_devices, pods_that_fit, wrong_with
from kant.testing.strategies import clusters, demands, groups, slices

ROOT = Path(__file__).parents[2]
DURATIONS = (1, 2, 3, 5, 8, 20, FOREVER)


class Plain:
    """The same questions, answered by looking at every moment of every node."""

    def __init__(self, spec: ClusterSpec, state: ClusterState) -> None:
        self.spec = spec
        self.empty = state.empty
        self.there = state.empty[:, c.DEVICES : c.DEVICES + c.devices_of(state.empty)]
        self.status = state.table
        self.held: dict[int, tuple[Allocation, int, int]] = {}

    def owed(self, time: int, others: dict[int, tuple[Allocation, int, int]] | None = None) -> Table:
        """What is free at one moment, as a node table (devices, CPU and memory only)."""
        table = self.empty.copy()
        for allocation, start, end in (self.held if others is None else others).values():
            if start <= time < end:
                for piece in allocation.tolist():
                    for device in range(62):
                        if piece[MASK] >> device & 1:
                            table[piece[NODE], c.DEVICES + device] -= piece[MILLI]
                            table[piece[NODE], c.slices_at(table) + device] |= slices_of_tag(piece[TAG])
                    table[piece[NODE], c.CPU_FREE] -= piece[CPU]
                    table[piece[NODE], c.MEMORY_FREE] -= piece[MEMORY]
        return table

    def throughout(self, start: int, until: int) -> Table:
        """What is free at every moment of [start, until)."""
        moments = {start} | {begin for _, begin, _ in self.held.values() if start < begin < until}
        tables = [self.owed(moment) for moment in moments]
        table = np.minimum.reduce(tables)
        slices = np.bitwise_or.reduce(tables)[:, c.slices_at(table) :]
        table[:, c.slices_at(table) :] = slices
        free = 1000 - np.vectorize(lambda bits: int(bits).bit_count())(slices) * table[:, [c.MIG]] if slices.size else 0
        devices = table[:, c.DEVICES : c.DEVICES + c.devices_of(table)]
        devices[:] = np.where((table[:, [c.MIG]] > 0) & (self.there > 0), free, devices)
        table[:, c.STATUS] = self.status[:, c.STATUS]
        return table

    def fits_at(self, job: Job, group: PodGroup, start: int, duration: int) -> bool:
        table = self.throughout(start, start + duration)
        pods = [
            pods_that_fit(node, row, group.demand)
            for node, row in zip(self.spec.nodes, np.maximum(table, 0), strict=True)
            if admits(node, job)
        ]
        return sum(pods) >= group.count

    def starts(self, not_before: int) -> list[int]:
        return sorted({not_before} | {end for _, _, end in self.held.values() if not_before < end < FOREVER})

    def earliest(self, job: Job, group: PodGroup, duration: int, not_before: int) -> int | None:
        return next((t for t in self.starts(not_before) if self.fits_at(job, group, t, duration)), None)

    def holds(self, key: int) -> bool:
        allocation, start, end = self.held[key]
        table = self.throughout(start, end)
        meanwhile = [
            other
            for held, begin, until in self.held.values()
            for other in (held.tolist() if begin < end and start < until else ())
        ]  # fmt: skip
        for piece in allocation.tolist():
            slices = slices_of_tag(piece[TAG])
            rivals = [other for other in meanwhile if other[NODE] == piece[NODE] and other[MASK] & piece[MASK]]
            if sum(slices_of_tag(other[TAG]) & slices != 0 for other in rivals) > 1:
                return False
            row = table[piece[NODE]]
            devices = [device for device in range(62) if piece[MASK] >> device & 1]
            short = any(row[c.DEVICES + device] < 0 for device in devices)
            short |= piece[CPU] > 0 and row[c.CPU_FREE] < 0
            short |= piece[MEMORY] > 0 and row[c.MEMORY_FREE] < 0
            if short or row[c.STATUS] != 0:
                return False
        return True


class Both:
    """A timeline and brute force, told the same."""

    def __init__(self, spec: ClusterSpec) -> None:
        self.state = ClusterState(spec)
        self.spec = spec
        self.calendar = self.fresh()
        self.plain = Plain(spec, self.state)
        self.opened = 0

    def fresh(self) -> Calendar:
        return Calendar(self.state.empty, self.state.table, self.state.shapes)

    def replayed(self) -> Calendar:
        """A timeline that knows only what is committed now."""
        calendar = self.fresh()
        for key, (allocation, start, end) in self.plain.held.items():
            calendar.add(key, allocation, start, end)
        return calendar

    def add(self, key: int, allocation: Allocation, start: int, end: int) -> None:
        self.calendar.add(key, allocation, start, end)
        self.plain.held[key] = (allocation, start, end)

    def check_tightest(self, job: Job, duration: int, not_before: int, start: int, allocation: Allocation) -> None:
        """The nodes taken are those freed last before a later start, of these those with the least free; each but the
        last is used up."""
        demand, free = job.groups[0].demand, np.maximum(self.plain.throughout(start, start + duration), 0)
        shares = demand.gpus > 0 and (demand.milli < 1000 or demand.mig != "")
        fitting = []
        for index, node in enumerate(self.spec.nodes):
            pods = pods_that_fit(node, free[index], demand) if admits(node, job) else 0
            devices = free_devices(node, free[index])
            left = sum(devices) if shares else sum(device == 1000 for device in devices)
            ends = [
                end
                for held, _, end in self.plain.held.values()
                if not_before < start and end <= start and index in held[:, NODE]
            ]
            if pods:
                fitting.append((-max(ends, default=0), left, index, pods))
        expected, missing = {}, job.pods
        for _, _, index, pods in sorted(fitting):
            expected[index] = min(pods, missing)
            missing -= expected[index]
            if missing == 0:
                break
        taken: dict[int, int] = {}
        for piece in allocation.tolist():
            taken[piece[NODE]] = taken.get(piece[NODE], 0) + piece[PODS]
        assert list(taken.items()) == list(expected.items())
        assert shares or len(allocation) == len(taken), "pods on one node are one piece"

    def check_start(self, job: Job, duration: int, not_before: int) -> tuple[int, Allocation] | None:
        """Ask for the earliest start of `job`: it collides with nothing, and for one group nothing is earlier."""
        found = self.calendar.earliest(self.state.shapes.of(job), duration, not_before)
        alone = [self.plain.earliest(job, group, duration, not_before) for group in job.groups]
        if found is None:
            assert len(alone) > 1 or alone[0] is None
            return None
        start, allocation = found
        assert start in self.plain.starts(not_before)
        free = np.maximum(self.plain.throughout(start, start + duration), 0)
        assert not wrong_with(self.spec, free, job, allocation)
        assert all(bound is not None and start >= bound for bound in alone)
        if len(alone) == 1:
            assert start == alone[0]
            self.check_tightest(job, duration, not_before, start, allocation)
        again = self.replayed().earliest(self.state.shapes.of(job), duration, not_before)
        assert again is not None and again[0] == start and again[1].tolist() == allocation.tolist()
        return found


@st.composite
def pieces(draw: st.DrawFn, spec: ClusterSpec) -> Allocation:
    """One or two pieces on any nodes, not of any shape in particular."""
    rows = np.zeros((draw(st.integers(1, 2)), WIDTH), dtype=np.int64)
    for row in rows:
        node = draw(st.integers(0, len(spec.nodes) - 1))
        mask = draw(st.integers(0, (1 << spec.nodes[node].gpus) - 1))
        milli = draw(st.sampled_from((1000, 1000, 500, 200))) if mask else 0
        cpu, memory = draw(st.sampled_from((0, 0, 500, 1500))), draw(st.sampled_from((0, 0, 256, 900)))
        tag = -1
        if mask and spec.nodes[node].mig:
            geometry = GEOMETRIES[spec.nodes[node].mig]
            slices = draw(st.integers(1, (1 << geometry.slices) - 1))
            milli, tag = geometry.milli * slices.bit_count(), -1 - slices
        row[[NODE, PODS, MASK, MILLI, CPU, MEMORY, TAG]] = (node, 1, mask, milli, cpu, memory, tag)
    return rows


@st.composite
def spans(draw: st.DrawFn, now: int) -> tuple[int, int]:
    start = now + draw(st.sampled_from((0, 0, 0, 1, 2, 4, 7)))
    return start, draw(st.sampled_from((start + 1, start + 2, start + 3, start + 5, start + 9, FOREVER)))


@st.composite
def filled(draw: st.DrawFn, overdue: bool = False) -> Both:
    """Up to twelve commitments that collide with nothing; or where `overdue`, perhaps with each other."""
    both = Both(draw(clusters()))
    for key in range(draw(st.integers(0, 12))):
        allocation, (start, end) = draw(pieces(both.spec)), draw(spans(0))
        both.add(key, allocation, start, end)
        if not overdue and not all(map(both.plain.holds, both.plain.held)):
            both.calendar.remove(key)
            del both.plain.held[key]
    for node in range(len(both.spec.nodes)):
        both.state.table[node, c.STATUS] = draw(st.sampled_from((0, 0, 0, 0, 1, 2)))
    return both


def one_group() -> st.SearchStrategy[tuple[PodGroup, ...]]:
    kinds = st.one_of(demands(shares_of_several=True), demands(shares_of_several=True), slices())
    return st.builds(PodGroup, st.integers(1, 6), kinds).map(lambda group: (group,))


@given(st.data(), filled(), st.sampled_from(DURATIONS), st.integers(0, 6))
def test_the_start_of_one_group_is_the_earliest_there_is(
    data: st.DataObject, both: Both, duration: int, not_before: int
) -> None:
    both.check_start(make_job("j", groups=data.draw(one_group())), duration, not_before)


@given(st.data(), filled(overdue=True), st.sampled_from(DURATIONS))
def test_it_is_so_too_where_commitments_contradict_each_other(data: st.DataObject, both: Both, duration: int) -> None:
    both.check_start(make_job("j", groups=data.draw(one_group())), duration, 0)


@given(st.data(), filled(), st.sampled_from(DURATIONS))
def test_several_groups_collide_with_nothing_and_none_starts_before_it_could_alone(
    data: st.DataObject, both: Both, duration: int
) -> None:
    before = both.replayed()
    job = make_job("j", groups=data.draw(groups(3)))
    both.check_start(job, duration, 1)
    single = make_job("s", groups=(make_group(1, 3),))
    after, fresh = (calendar.earliest(both.state.shapes.of(single), 5, 1) for calendar in (both.calendar, before))
    assert str(after) == str(fresh), "what was tried leaves nothing behind"


@given(st.data(), filled(), st.sampled_from(DURATIONS), st.sampled_from(LEVELS))
def test_a_gang_that_requires_a_level_starts_when_the_first_domain_can_hold_it(
    data: st.DataObject, both: Both, duration: int, level: Any
) -> None:
    job = make_job("j", groups=data.draw(one_group()), within=level, within_required=True)
    domains = domains_of(both.spec, level) if job.pods > 1 else [list(range(len(both.spec.nodes)))]
    serving = both.state.table[:, c.STATUS].copy()
    starts = []
    for domain in domains:
        both.state.table[:, c.STATUS] = np.where(np.isin(np.arange(len(serving)), domain), serving, 2)
        starts.append(both.plain.earliest(job, job.groups[0], duration, 1))
    both.state.table[:, c.STATUS] = serving
    found = both.calendar.earliest(both.state.shapes.of(job), duration, 1)
    assert (found[0] if found else None) == min((start for start in starts if start is not None), default=None)
    if found is not None:
        free = np.maximum(both.plain.throughout(found[0], found[0] + duration), 0)
        assert not wrong_with(both.spec, free, job, found[1])
    plain = make_job("p", groups=job.groups)
    both.check_start(plain, duration, 1)  # what was tried leaves nothing behind


@given(st.data(), filled(), st.sampled_from(DURATIONS), st.sampled_from(LEVELS))
def test_several_groups_that_require_a_level_are_promised_one_domain(
    data: st.DataObject, both: Both, duration: int, level: Any
) -> None:
    job = make_job("j", groups=data.draw(groups(3)), within=level, within_required=True)
    found = both.calendar.earliest(both.state.shapes.of(job), duration, 1)
    if found is not None:
        free = np.maximum(both.plain.throughout(found[0], found[0] + duration), 0)
        assert not wrong_with(both.spec, free, job, found[1])


@given(st.data(), filled(), st.sampled_from(DURATIONS))
def test_a_promise_of_the_earliest_start_holds_and_the_next_one_beside_it(
    data: st.DataObject, both: Both, duration: int
) -> None:
    for key in range(100, 104):
        job = make_job(str(key), groups=data.draw(groups(2)))
        found = both.check_start(job, duration, 0)
        if found is not None:
            both.add(key, found[1], found[0], min(found[0] + duration, FOREVER))
            assert both.calendar.holds(key)


@given(filled(overdue=True))
def test_a_reservation_holds_if_nothing_else_takes_what_it_takes(both: Both) -> None:
    for key in both.plain.held:
        assert both.calendar.holds(key) == both.plain.holds(key)


@given(st.data(), filled(), st.integers(0, 8), st.integers(1, 12))
def test_what_is_left_beside_the_blocked_is_what_is_free_throughout(
    data: st.DataObject, both: Both, now: int, duration: int
) -> None:
    check_blocked(both, now, duration)
    check_blocked(both, data.draw(st.integers(0, 9)), duration)  # at another time, with what is known of the first
    job = make_job("j", groups=data.draw(one_group()))
    table = check_blocked(both, now, duration)
    snapshot = Snapshot(both.state)
    snapshot.table[:] = table
    shape = both.state.shapes.of(job)
    fits = not isinstance(Placer(snapshot, BestFit(), 0).place(shape), NoFit)
    found = both.calendar.earliest(shape, duration, now)
    assert fits == (found is not None and found[0] == now)


def check_blocked(both: Both, now: int, duration: int) -> Table:
    """Take what is blocked from the table of now; the rest must be exactly what is free throughout."""
    table = both.state.empty.copy()
    table[:, c.STATUS] = both.state.table[:, c.STATUS]
    log, pools = c.make_log(len(table)), both.state.pools.copy()
    serving = np.flatnonzero(table[:, c.STATUS] == 0)
    for allocation, start, end in both.plain.held.values():
        if start <= now < end:
            there = allocation[np.isin(allocation[:, NODE], serving)]
            assert c.take(table, log, pools, there, c.NO_DEMANDS) == -1
    blocked = both.calendar.blocked(now, now + duration)
    assert (blocked[:, PODS] == 1).all() and ((blocked[:, TAG] == -1) | (table[blocked[:, NODE], c.MIG] > 0)).all()
    assert (blocked[:, [MASK, CPU, MEMORY]].sum(axis=1) > 0).all()
    assert ((blocked[:, MASK] > 0) == (blocked[:, MILLI] > 0)).all()
    assert c.take(table, log, pools, blocked, c.NO_DEMANDS) == -1
    expected = both.plain.throughout(now, now + duration)
    slots = c.devices_of(table)
    columns = [c.CPU_FREE, c.MEMORY_FREE, *range(c.DEVICES, c.DEVICES + slots)]
    columns += range(c.slices_at(table), table.shape[1])
    assert table[serving][:, columns].tolist() == expected[serving][:, columns].tolist()
    return table


@settings(max_examples=examples(30))
@given(st.data())
def test_a_timeline_that_lived_long_answers_as_a_fresh_one(data: st.DataObject) -> None:
    """Adding, removing, moving, failing nodes and asking, in any order, while time goes on (and once back)."""
    both = Both(data.draw(clusters(4)))
    kinds = [make_job(str(i), groups=data.draw(groups(1) if i else groups(2))) for i in range(3)]
    now = 0
    for key in range(data.draw(st.integers(5, 25))):
        step = data.draw(st.sampled_from(("add", "book", "remove", "move", "status", "time", "ask", "ask", "blocked")))
        held = sorted(both.plain.held)
        job, duration = data.draw(st.sampled_from(kinds)), data.draw(st.sampled_from(DURATIONS))
        if step == "add":
            both.add(key, data.draw(pieces(both.spec)), *data.draw(spans(now)))
            if not both.plain.holds(key):
                both.calendar.remove(key)
                del both.plain.held[key]
        elif step == "book":
            found = both.check_start(job, duration, now)
            if found is not None:
                both.add(key, found[1], found[0], min(found[0] + duration, FOREVER))
        elif step == "remove" and held:
            gone = data.draw(st.sampled_from(held))
            both.calendar.remove(gone)
            del both.plain.held[gone]
        elif step == "move" and held:
            moved = data.draw(st.sampled_from(held))
            start, end = data.draw(spans(now))
            both.calendar.move(moved, start, end)
            both.plain.held[moved] = (both.plain.held[moved][0], start, end)
        elif step == "status":
            node = data.draw(st.integers(0, len(both.spec.nodes) - 1))
            both.state.table[node, c.STATUS] = data.draw(st.sampled_from((0, 0, 1, 2)))
        elif step == "time":
            now = max(now + data.draw(st.sampled_from((1, 2, 5, -3))), 0)
        elif step == "blocked":
            again = both.replayed()
            assert both.calendar.blocked(now, now + duration).tolist() == again.blocked(now, now + duration).tolist()
        else:
            both.check_start(job, duration, now + data.draw(st.sampled_from((0, 0, 4))))
        for known, (allocation, start, end) in both.plain.held.items():
            assert known in both.calendar and both.calendar.holds(known) == both.plain.holds(known)
            assert (both.calendar.start_of(known), both.calendar.expected_end(known)) == (start, end)
            assert both.calendar.allocation_of(known) is allocation
        assert len(both.calendar) == len(both.plain.held)


@settings(max_examples=examples(40))
@given(st.data())
def test_what_starts_sooner_is_what_a_timeline_without_the_promise_would_say(data: st.DataObject) -> None:
    """Promises are made, bettered, moved and taken back at any time; most take nodes of 2 GPUs whole, side by side.

    Whatever bounds have learned by then, asking anew without the promise finds the same, and finds nothing else sooner.
    """
    both = Both(make_cluster(*[2] * data.draw(st.integers(1, 5))))
    kinds = [make_job(f"{pods}x{gpus}", gpus, pods=pods) for pods, gpus in ((1, 2), (2, 2), (3, 2), (1, 1), (4, 1))]
    kinds += [make_job("share", milli=500), make_job("cpu", 0, cpu=500)]
    asked: dict[int, tuple[Job, int]] = {}
    now = 0
    for key in range(data.draw(st.integers(10, 40))):
        step = data.draw(st.sampled_from(("book", "book", "book", "sooner", "sooner", "sooner", "end", "move", "time")))
        held = sorted(asked)
        if step == "book":
            job, duration = data.draw(st.sampled_from(kinds)), data.draw(st.sampled_from(DURATIONS))
            found = both.calendar.earliest(both.state.shapes.of(job), duration, now)
            assert str(found) == str(both.replayed().earliest(both.state.shapes.of(job), duration, now))
            if found is not None:
                both.add(key, found[1], found[0], min(found[0] + duration, FOREVER))
                asked[key] = job, duration
        elif step == "time":
            now = max(now + data.draw(st.sampled_from((1, 3, -2))), 0)
        elif held:
            key = data.draw(st.sampled_from(held))
            if step == "end":
                both.calendar.remove(key)
                del both.plain.held[key], asked[key]
            elif step == "move":
                start, end = data.draw(spans(now))
                both.calendar.move(key, start, end)
                both.plain.held[key] = (both.plain.held[key][0], start, end)
                asked[key] = asked[key][0], FOREVER if end == FOREVER else end - start
            else:
                check_sooner(both, key, *asked[key], now)


def sooner(both: Both, key: int, shape: Shape, duration: int, now: int) -> tuple[int, Allocation] | None:
    """When a job of this shape, promised as `key`, could start sooner, and where, if nobody makes way for it."""
    jobs: Table = np.zeros((key + 1, c.JOB_WIDTH), dtype=np.int64)
    jobs[key, c.J_SHAPE] = shape.index
    told, none = np.ones((key + 1, 1), dtype=np.int64), np.zeros(1, dtype=np.int64)
    both.opened += 1  # what was asked in vain is asked again
    _, kept, found, moved = both.calendar.first_sooner(
        np.array([key]), 0, told, 0, jobs, -1, duration, None, none, now, both.opened
    )
    assert not (kept or moved)
    return found


def check_sooner(both: Both, key: int, job: Job, duration: int, now: int) -> None:
    """Ask when `job`, promised as `key`, can start sooner; where it can, promise it that."""
    shape, promise = both.state.shapes.of(job), both.plain.held.pop(key)
    full = both.replayed().earliest(shape, duration, now)
    both.plain.held[key] = promise
    found = sooner(both, key, shape, duration, now)
    if promise[1] <= now:
        full = None
    assert str(found) == str(full if full is not None and full[0] < promise[1] else None)
    assert both.calendar.holds(key) == both.plain.holds(key)
    if found is not None:
        both.calendar.remove(key)
        both.add(key, found[1], found[0], min(found[0] + duration, FOREVER))


@pytest.mark.parametrize(
    ("began", "free", "sooner"), [(8, 3, (3, 1, [])), (3, 3, (-1, -1, [])), (8, 4, (3, 0, [1]))],
    ids=["it can be sooner anyway", "it cannot be sooner", "it can be sooner where the other makes way"],
)  # fmt: skip
def test_another_makes_way_only_for_a_job_that_starts_sooner_by_it(
    began: int, free: int, sooner: tuple[int, int, list[int]]
) -> None:
    """A node is free from 3 on, one from `free` on; `other` has the first from then on. The job needs one for 2."""
    both, job, other = Both(make_cluster(1, 1)), 0, 1
    shape = both.state.shapes.of(make_job("one"))
    both.add(job, whole(1, 1), began, began + 2)
    both.add(other, whole(0, 1), free, free + 3)
    both.add(2, whole(0, 1), 0, 3)
    both.add(3, whole(1, 1), 0, free)
    jobs: Table = np.zeros((4, c.JOB_WIDTH), dtype=np.int64)
    jobs[:, c.J_SHAPE], jobs[:, c.J_LIMIT] = shape.index, -1
    reserved = np.array([(job, shape.index), (other, shape.index)], dtype=np.int64)
    recorded, attempts = np.ones((4, 1), dtype=np.int64), np.ones(1, dtype=np.int64)
    _, _, found, moved = both.calendar.first_sooner(
        np.array([job]), 0, recorded, 0, jobs, -1, 2, reserved, attempts, 0, 1
    )
    start, node = (-1, -1) if found is None else (found[0], int(found[1][0, NODE]))
    assert (start, node, moved) == sooner


def test_a_search_looks_only_at_nodes_where_something_may_start() -> None:
    """Ten nodes are full until 100, then promised to two gangs: only what comes free, and is enough, is looked at."""
    both = Both(make_cluster(*[8] * 10))
    one, gang = (both.state.shapes.of(make_job("j", 8, pods=pods)) for pods in (1, 10))
    for node in range(10):
        both.calendar.add(node, whole(node, 0xFF), 0, 100)
    for key, duration in ((50, 7), (51, 12)):
        found = both.calendar.earliest(gang, duration, 0)
        assert found is not None
        both.calendar.add(key, found[1], found[0], found[0] + duration)
    found = both.calendar.earliest(one, 10, 0)
    assert found is not None and found[0] == 119
    both.calendar.add(52, found[1], 119, 129)

    def looks(key: int, shape: Shape, duration: int, start: int | None) -> int:
        before = both.calendar.looks
        found = sooner(both, key, shape, duration, 0)
        assert (None if found is None else found[0]) == start
        return both.calendar.looks - before

    assert looks(51, gang, 12, None) == looks(52, one, 10, None) == 0
    both.calendar.remove(50)  # [100, 107) comes free: too short for the single job, not for the gang behind it
    assert looks(52, one, 10, None) == 0
    assert looks(51, gang, 12, 100) == 10
    both.calendar.remove(3)  # one node comes free up to 107
    assert looks(52, one, 10, 0) == 1
    assert looks(51, gang, 12, 100) <= 10


def whole(node: int, mask: int) -> Allocation:
    return np.array([[node, 1, mask, 1000, 0, 0, mask.bit_count(), 0, 0]], dtype=np.int64)


def test_a_promise_goes_to_the_tightest_node_and_devices_that_follow_each_other_do_not_add_up() -> None:
    both = Both(make_cluster(4, 4, 4))
    both.add(0, whole(0, 0b0001), 0, 10)
    both.add(1, whole(1, 0b0111), 0, 4)
    both.add(2, whole(1, 0b0011), 4, 9)
    found = both.check_start(make_job("a", 1), 9, 0)
    assert found is not None and found[1].tolist() == whole(1, 0b1000).tolist()
    found = both.check_start(make_job("b", 2), 9, 0)
    assert found is not None and found[1].tolist() == whole(0, 0b0110).tolist()
    found = both.check_start(make_job("c", 2), 5, 4)
    assert found is not None and (found[0], found[1].tolist()) == (4, whole(1, 0b1100).tolist())


def test_a_promise_takes_what_comes_free_last_so_that_others_keep_what_is_free() -> None:
    """Of three nodes one is free; of a node with four devices one is free, one comes free before the last two."""
    both = Both(make_cluster(1, 1, 1))
    both.add(0, whole(1, 1), 0, 4)
    both.add(1, whole(2, 1), 0, 5)
    found = both.check_start(make_job("two", 1, pods=2), 9, 0)
    assert found is not None and (found[0], found[1][:, NODE].tolist()) == (4, [1, 0])
    large = Both(make_cluster(4))
    large.add(0, whole(0, 0b0011), 0, 5)
    large.add(1, whole(0, 0b0100), 0, 3)
    found = large.check_start(make_job("three", 3), 9, 0)
    assert found is not None and (found[0], found[1][0, MASK]) == (5, 0b0111)


@given(st.data(), filled(), st.sampled_from(DURATIONS), st.integers(0, 6), st.integers(0, 9))
def test_a_gang_is_placed_at_a_moment_if_it_could_start_then(
    data: st.DataObject, both: Both, duration: int, now: int, later: int
) -> None:
    job = make_job("j", groups=data.draw(one_group()))
    start, group = now + later, job.groups[0]
    found = both.calendar.make_way(
        np.zeros((0, 2), dtype=np.int64), 99, both.state.shapes.of(job), duration, start, now
    )
    assert (found is not None) == both.plain.fits_at(job, group, start, duration)
    if found is not None:
        allocation, moved = found
        assert not moved
        free = np.maximum(both.plain.throughout(start, start + duration), 0)
        assert not wrong_with(both.spec, free, job, allocation)


@settings(max_examples=examples(40))
@given(st.data(), st.integers(1, 4))
def test_others_make_way_and_start_when_they_did(data: st.DataObject, gpus: int) -> None:
    """Promises of one or two groups on a small cluster; then a job asks for a place, and those that begin later move.

    All that is promised holds beside it, or nothing has changed; and the timeline answers as a fresh one.
    """
    nodes = data.draw(st.integers(1, 4))
    both = Both(make_cluster(*[gpus] * nodes))
    wide = both.state.shapes.of(make_job("wide", gpus, pods=nodes))
    promised: dict[int, int] = {}
    for key in range(data.draw(st.integers(2, 12))):
        sizes = data.draw(st.lists(st.tuples(st.integers(1, gpus), st.integers(1, 2)), min_size=1, max_size=2))
        job = make_job(str(key), groups=[make_group(size, pods) for size, pods in sizes])
        shape, duration = both.state.shapes.of(job), data.draw(st.sampled_from(DURATIONS))
        start = data.draw(st.integers(1, 6))
        before = dict(both.plain.held)
        rows = data.draw(st.sets(st.sampled_from(sorted(promised)))) if promised else set()
        reserved = np.array([(row, promised[row]) for row in rows], dtype=np.int64).reshape(-1, 2)
        found = both.calendar.make_way(reserved, key, shape, duration, start, 0)
        moved = set() if found is None else set(found[1])
        for other, (allocation, began, ended) in before.items():
            assert (both.calendar.start_of(other), both.calendar.expected_end(other)) == (began, ended)
            if other in moved:
                assert other in rows and began >= start
                both.plain.held[other] = both.calendar.held[other]
            else:
                assert both.calendar.allocation_of(other) is allocation
        if found is not None:
            both.add(key, found[0], start, min(start + duration, FOREVER))
            promised[key] = shape.index
        assert all(map(both.plain.holds, both.plain.held))
        for duration in (1, 3, FOREVER):
            assert str(both.calendar.earliest(wide, duration, 0)) == str(both.replayed().earliest(wide, duration, 0))
    for key in promised:
        both.calendar.remove(key)
    assert str(both.calendar.earliest(wide, FOREVER, 0)) == str(both.fresh().earliest(wide, FOREVER, 0))


@given(st.data(), st.integers(1, 5), st.sampled_from(DURATIONS), st.integers(0, 6))
def test_the_count_of_free_gpus_says_when_a_gang_may_start(
    data: st.DataObject, nodes: int, duration: int, now: int
) -> None:
    """On nodes of one GPU, some of them out of service."""
    both = Both(make_cluster(*[1] * nodes))
    for node in range(nodes):
        both.state.table[node, c.STATUS] = data.draw(st.sampled_from((0, 0, 0, 1)))
    shape = both.state.shapes.of(make_job("j", 1, pods=data.draw(st.integers(1, nodes))))
    held: dict[int, tuple[int, int, int]] = {}
    for key in range(data.draw(st.integers(0, 8))):
        start, end = data.draw(spans(0))
        node = data.draw(st.integers(0, nodes - 1))
        held[key] = node, start, end
        both.add(key, whole(node, 1), start, end)
        step = data.draw(st.sampled_from(("ask", "end", "move", "")))
        if step == "ask":  # counts are followed from now on
            both.calendar.least_start(shape, duration, now)
        elif step == "end":
            both.calendar.remove(key)
            del held[key]
        elif step == "move":
            start, end = data.draw(spans(0))
            both.calendar.move(key, start, end)
            held[key] = node, start, end
    pods = shape.pods
    up = {node for node in range(nodes) if both.state.table[node, c.STATUS] == 0}
    free = {time: len(up) - sum(s <= time < e and n in up for n, s, e in held.values()) for time in range(70)}
    wanted = next((t for t in range(now, 35) if all(free[u] >= pods for u in range(t, min(t + duration, 70)))), FOREVER)
    assert both.calendar.least_start(shape, duration, now) == wanted


def test_behind_a_commitment_without_end_nothing_ever_starts() -> None:
    both = Both(make_cluster(2))
    both.add(0, whole(0, 0b01), 0, FOREVER)
    assert both.check_start(make_job("a", 2), 1, 0) is None
    assert both.check_start(make_job("b", 1), FOREVER, 7) is not None
    assert both.check_start(make_job("c", groups=(make_group(1), make_group(1, 1, milli=999))), 1, 0) is None


def test_a_gap_without_end_is_long_enough_for_a_job_without_end() -> None:
    both = Both(make_cluster(2))
    both.add(0, whole(0, 0b11), 0, 5)
    both.add(1, whole(0, 0b11), 5, FOREVER)
    assert both.check_start(make_job("a", 2), FOREVER, 0) is None
    both.calendar.remove(1)
    del both.plain.held[1]
    found = both.check_start(make_job("b", 2), FOREVER, 0)
    assert found is not None and found[0] == 5


def test_a_commitment_is_one_a_job_and_lasts_for_some_time() -> None:
    calendar = Both(make_cluster(2)).calendar
    calendar.add(3, whole(0, 1), 5, 6)
    for key, start, end in ((3, 5, 6), (4, 6, 6), (4, 6, FOREVER + 1)):
        with pytest.raises(StateError):
            calendar.add(key, whole(0, 1), start, end)
    with pytest.raises(StateError):
        calendar.move(3, 7, 7)
    with pytest.raises(KeyError):
        calendar.remove(4)


def test_groups_without_an_end_wait_for_as_many_ends_as_they_need() -> None:
    """Alone each group fits at once, together they never fit beside what runs: halving finds the end to wait for."""
    both = Both(make_cluster(2, 2, 2))
    for node, end in enumerate((30, 20, 50)):
        both.add(node, whole(node, 0b01), 0, end)
    job = make_job("a", groups=(make_group(1, 3), make_group(1, 2, milli=600)))
    found = both.check_start(job, FOREVER, 0)
    assert found is not None and found[0] == 30


def test_bounds_that_are_given_up_are_learned_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kant.placement.calendar.calendar.BOUND_CELLS", 1)
    both = Both(make_cluster(8, 8, 4))
    for key, (gpus, duration) in enumerate((g, d) for d in (1, 9, 3, 60) for g in (8, 1, 4, 2)):
        found = both.check_start(make_job(str(key), gpus), duration, 0)
        assert found is not None
        both.add(key, found[1], found[0], found[0] + duration)


def test_a_node_may_be_committed_more_often_than_there_was_room_for() -> None:
    both = Both(make_cluster(1, 1))
    for key in range(300):
        found = both.calendar.earliest(both.state.shapes.of(make_job("j")), 5, 0)
        assert found is not None and found[0] == key // 2 * 5
        both.add(key, found[1], found[0], found[0] + 5)
    assert all(map(both.calendar.holds, range(300)))
    for key in range(0, 300, 2):
        both.calendar.remove(key)
    found = both.calendar.earliest(both.state.shapes.of(make_job("j")), FOREVER, 0)
    assert found is not None and (found[0], found[1][0, NODE]) == (0, 0)


def sample() -> str:
    """A digest of promises and of what they block, on a cluster that fills up."""
    draw = np.random.Generator(np.random.PCG64(5))
    both = Both(make_cluster(8, 8, 4, 4, 2, 8, cpu=9000))
    digest = hashlib.blake2b(digest_size=8)
    for key in range(60):
        gpus, pods = int(draw.integers(0, 5)), int(draw.integers(1, 6))
        groups = [make_group(gpus, pods, milli=int(draw.choice((1000, 1000, 300))), cpu=500)]
        groups += [make_group(1, 2, cpu=250)] * (key % 3 == 0)
        duration = int(draw.integers(1, 90))
        found = both.calendar.earliest(both.state.shapes.of(make_job(str(key), groups=groups)), duration, key)
        if found is not None:
            both.calendar.add(key, found[1], found[0], found[0] + duration)
            digest.update(str((found[0], found[1].tolist())).encode())
        if key % 7 == 6:
            gone = next(k for k in range(key) if k in both.calendar)
            both.calendar.remove(gone)
        digest.update(str(both.calendar.blocked(key, key + duration).tolist()).encode())
    return digest.hexdigest()


@pytest.mark.long
def test_compiled_and_plain_python_promise_the_same() -> None:
    plain = subprocess.run(
        [sys.executable, "-m", "tests.core.test_timeline"],
        cwd=ROOT,
        env={**os.environ, "NUMBA_DISABLE_JIT": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert plain.stdout.strip() == sample()


if __name__ == "__main__":
    print(sample())
