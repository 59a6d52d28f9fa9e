"""What a calendar knows of failed attempts to make way: it answers as one that tries each of them again."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.examples import examples

from kant.cluster import columns as c
from kant.cluster.columns import Table
from kant.cluster.state import ClusterState
from kant.model.placement import Allocation
from kant.model.units import GPU
from kant.placement.calendar.calendar import Calendar
from kant.placement.calendar.moves import held_by, keep_failures
from kant.placement.calendar.store import enter, strike, version_of
from kant.testing import make_cluster, make_job

JOBS = 400
ROOT = Path(__file__).parents[2]


class World:
    """Jobs on a few nodes that run for as long as they say, and the reservations of those that wait."""

    def __init__(self, seed: int) -> None:
        self.draw = np.random.Generator(np.random.PCG64(seed))
        self.state = ClusterState(make_cluster(*self.draw.choice([1, 2, 4], int(self.draw.integers(3, 9))).tolist()))
        self.calendar = self.fresh()
        self.jobs: Table = np.zeros((JOBS, c.JOB_WIDTH), dtype=np.int64)
        self.jobs[:, [c.J_ESTIMATE, c.J_LIMIT]] = -1
        self.told = np.ones((JOBS, 1), dtype=np.int64)
        self.waiting: list[int] = []
        self.now, self.opened, self.came = 0, 1, 0
        self.asked = JOBS  # how many of those that wait, at most

    def fresh(self) -> Calendar:
        return Calendar(self.state.empty, self.state.table, self.state.shapes)

    def follow(self, store: Table) -> None:
        self.calendar.follow(store, {key: one for key, (one, _, _) in self.calendar.held.items()}, self.now)

    def ends(self) -> None:
        """Jobs end when they are expected to."""
        book, store, _, _ = self.calendar.tables(JOBS, 64)
        for key in [key for key, (_, _, end) in self.calendar.held.items() if end <= self.now]:
            strike(store, book.ledgers, book.freed, book.spans, held_by(book.spans, book.arena, key), key, False)
            del self.calendar.held[key]
        self.follow(store)

    def starts(self, row: int, pieces: Allocation, end: int, was_reserved: bool) -> None:
        """A job starts, on the pieces that it has reserved if it has."""
        book, store, _, _ = self.calendar.tables(JOBS, 64)
        version = version_of(book.freed, book.taken)
        if was_reserved:
            strike(store, book.ledgers, book.freed, book.spans, pieces, row, True)
        store = enter(
            store, book.used, book.ledgers, book.taken, book.spans, book.arena, book.pieces, pieces, row, self.now, end
        )
        rows = np.array(self.waiting, dtype=np.int64)
        keep_failures(book, rows, version, pieces, -1 if was_reserved else end)
        self.calendar.held[row] = pieces, self.now, end
        self.follow(store)

    def comes(self) -> None:
        row, self.came = self.came, self.came + 1
        gpus, pods = self.draw.choice([(1, 1), (1, 1), (2, 1), (4, 1), (1, 3), (1, 6), (2, 2)]).tolist()
        shape, length = (
            self.state.shapes.of(make_job(f"j{row}", gpus, pods=pods)),
            int(self.draw.choice([1, 2, 4, 9, 20, 40])),
        )
        self.jobs[row, [c.J_SHAPE, c.J_ESTIMATE, c.J_REMAINING]] = shape.index, length, length
        found = self.calendar.earliest(shape, length, self.now)
        if found is None:
            return
        if found[0] == self.now:
            self.starts(row, found[1], self.now + length, False)
        else:
            self.calendar.add(row, found[1], found[0], found[0] + length)
            self.waiting.append(row)

    def sooner(self, calendar: Calendar) -> tuple[int, str, list[int]]:
        """Ask for the first job that may start sooner: its place in line, when and where, and who moves for that."""
        rows = np.array(self.waiting, dtype=np.int64)
        reserved = np.column_stack([rows, self.jobs[rows, c.J_SHAPE]])
        at, _, found, moved = calendar.first_sooner(
            rows[: self.asked], 0, self.told, 0, self.jobs, -1, -1, reserved, np.full(1, JOBS), self.now, self.opened
        )
        if calendar is self.calendar and found is not None:
            row, length = rows.item(at), self.jobs.item(rows.item(at), c.J_REMAINING)
            if row in calendar:
                calendar.remove(row)
            calendar.add(row, found[1], found[0], found[0] + length)
            self.opened += 1
        return at, str(found), moved

    def asked_anew(self) -> tuple[int, str, list[int]]:
        calendar = self.fresh()
        for key, commitment in self.calendar.held.items():
            calendar.add(key, *commitment)
        return self.sooner(calendar)

    def step(self) -> None:
        self.now += int(self.draw.integers(0, 2))
        self.ends()
        for row in [row for row in self.waiting if self.calendar.start_of(row) <= self.now]:
            self.waiting.remove(row)
            self.starts(row, self.calendar.allocation_of(row), self.calendar.expected_end(row), True)
        for _ in range(int(self.draw.integers(0, 3))):
            self.comes()
        while self.waiting:
            anew, found = self.asked_anew(), self.sooner(self.calendar)
            assert found == anew
            if found[1] == "None":
                break


@pytest.mark.parametrize("seed", range(examples(20)))
def test_an_attempt_that_would_fail_again_is_all_that_is_left_out(seed: int) -> None:
    world = World(seed)
    for _ in range(60):
        world.step()


def asked_twice(then: str) -> tuple[str, str]:
    """What a job of five GPUs, with four of `d`, may have for its reservation at 13: asked at once, and `then` again.

    At 10 it takes the four of `d` and one of `a`, which is freed at 3, after `b`; there the job with both
    GPUs of `a` from 12 on is in the way. On `b` only a job that can move to `c` is.
    """
    world, b, c_, a, d = World(0), 0, 1, 2, 3
    world.state = ClusterState(make_cluster(1, 1, 2, 4))
    world.calendar, world.waiting, world.asked = world.fresh(), [0, 1, 2, 3], 1
    for row, gpus, pods, length, start, held in (
        (0, 1, 5, 10, 13, [(d, 15, 4), (b, 1, 1)]), (1, 2, 1, 4, 12, [(a, 3, 1)]), (2, 1, 1, 2, 11, [(b, 1, 1)]),
        (3, 1, 1, 30, 13, [(c_, 1, 1)]), (4, 2, 1, 3, 0, [(a, 3, 1)]), (5, 1, 4, 10, 0, [(d, 15, 4)]),
    ):  # fmt: skip
        shape = world.state.shapes.of(make_job(f"j{row}", gpus, pods=pods))
        world.jobs[row, [c.J_SHAPE, c.J_ESTIMATE, c.J_REMAINING]] = shape.index, length, length
        pieces = np.array([[node, pods, bits, GPU, 0, 0, gpus, 0, 0] for node, bits, pods in held], dtype=np.int64)
        world.calendar.add(row, pieces, start, start + length)
    first = world.sooner(world.calendar)
    world.now = 3 if then == "time passes" else 1
    world.ends()
    if then != "time passes":
        end = 5 if then == "a job starts that ends at 5" else 2
        pieces = np.array([[node, 1, 1, GPU, 0, 0, 1, 0, 0] for node in (b, c_)], dtype=np.int64)
        world.starts(9, pieces, end, False)
    anew, second = world.asked_anew(), world.sooner(world.calendar)
    assert second == anew
    return first[1], second[1]


@pytest.mark.parametrize(
    ("then", "start"),
    [("time passes", "(10,"), ("a job starts that ends at 5", "(10,"), ("a job starts that ends at 2", "None")],
)
def test_an_attempt_is_made_again_where_another_node_is_now_freed_last(then: str, start: str) -> None:
    first, second = asked_twice(then)
    assert first == "None" and second.startswith(start)


def test_an_attempt_is_made_again_where_a_job_starts_on_a_free_device_of_a_node_that_was_chosen() -> None:
    """Job 0 asks for two GPUs from 5 on. It takes those that job 3 frees then, where job 2 is in the way and cannot
    move. Once a short job has been on the first GPU, this counts as freed too: job 0 takes the first two, and job 1
    moves to the other node."""
    world = World(0)
    world.state = ClusterState(make_cluster(4, 1))
    world.calendar, world.waiting, world.asked = world.fresh(), [0, 1, 2], 1
    for row, gpus, length, start, node, bits in (
        (0, 2, 15, 30, 0, 0b0011), (1, 1, 20, 10, 0, 0b0001), (2, 2, 16, 14, 0, 0b1100), (3, 3, 5, 0, 0, 0b1110),
        (4, 1, 10, 0, 1, 0b0001),
    ):  # fmt: skip
        shape = world.state.shapes.of(make_job(f"j{row}", gpus))
        world.jobs[row, [c.J_SHAPE, c.J_ESTIMATE, c.J_REMAINING]] = shape.index, length, length
        pieces = np.array([[node, 1, bits, GPU, 0, 0, gpus, 0, 0]], dtype=np.int64)
        world.calendar.add(row, pieces, start, start + length)
    assert world.sooner(world.calendar)[1] == "None"
    world.now = 1
    world.starts(9, np.array([[0, 1, 0b0001, GPU, 0, 0, 1, 0, 0]], dtype=np.int64), 3, False)
    anew, (at, found, moved) = world.asked_anew(), world.sooner(world.calendar)
    assert (at, found, moved) == anew and found.startswith("(5,") and moved == [1]


COUNT = """
from collections import Counter
from benchmarks import traces
from kant.placement.calendar import moves
from kant.sim import reserve

calls = Counter()

def counted(function):
    def call(*args):
        calls[function.__name__] += 1
        return function(*args)
    return call

moves.place_somewhere = counted(moves.place_somewhere)
moves.make_way = reserve.make_way = counted(moves.make_way)
reserve.count_steps = counted(reserve.count_steps)
traces.saturated(5).simulate("conservative")
print(calls["make_way"], calls["place_somewhere"], calls["count_steps"])
"""


@pytest.mark.long
def test_attempts_places_and_counts_of_free_gpus_only_fall() -> None:
    """Of five saturated days under conservative backfilling, with kernels as plain Python."""
    environment = os.environ | {"NUMBA_DISABLE_JIT": "1"}
    done = subprocess.run(
        [sys.executable, "-c", COUNT], env=environment, cwd=ROOT, check=True, capture_output=True, text=True
    )
    attempts, places, counts = map(int, done.stdout.split())
    assert attempts <= 1442 and places <= 3062 and counts <= 713
