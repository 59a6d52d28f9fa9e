"""Many schedulers of short tasks: machines run what they can, messages are counted, caches know what they were told."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.cli.command import kant
from tests.examples import examples

from kant.model.choice import second_is_lighter
from kant.model.errors import InputError
from kant.optimize.dispatch import kernel
from kant.optimize.dispatch.dispatchers import DISPATCHERS, Dispatched, TaskDispatcher, dispatch, picks_of
from kant.optimize.dispatch.kernel import FEWER, PROBE, SCORE
from kant.optimize.dispatch.tasks import TaskStream, draw_functions, draw_machines, machines, read_tasks

NUMBERS = st.floats(0, 1e9)
DELAY = 700


def drawn(seed: int, count: int = 300, load: float = 0.9) -> TaskStream:
    """Of either mix; every third one asks for so much memory that it, too, runs out."""
    tasks = draw_machines(count, seed, 30) if seed % 2 else draw_functions(count, seed, 3)
    if seed % 3 == 0:
        tasks = replace(tasks, needs=np.column_stack((tasks.needs[:, :-1], tasks.needs[:, -1] % 1000 * 50)))
    return tasks.at_load(load)


def run_naive(tasks: TaskStream, found: Dispatched, after: int, fifo: bool) -> list[int]:
    """The ends of tasks on machines that look at their whole queue at each instant, by the places that were found."""
    kinds, sizes = machines()
    ends = [-1] * len(tasks.arrivals)
    for machine in set(found.places.tolist()):
        kind, (cores, memory, slots) = kinds[machine], sizes[machine]
        coming = [(int(tasks.arrivals[i]) + after, i) for i in np.flatnonzero(found.places == machine)]
        queue: list[int] = []
        running: list[tuple[int, int]] = []
        while coming or running:
            now = min([*(at for at, _ in coming), *(end for end, _ in running)])
            running = [each for each in running if each[0] > now]
            queue += [i for at, i in coming if at == now]
            coming = [each for each in coming if each[0] > now]
            for i in list(queue):
                held = tasks.needs[[i, *(other for _, other in running)]]
                fits = held[:, kind].sum() <= cores and held[:, -1].sum() <= memory
                if fits and (fifo or len(running) < slots):
                    queue.remove(i)
                    ends[i] = now + int(tasks.times[i, kind])
                    running.append((ends[i], i))
                elif fifo:
                    break
    return ends


@given(st.integers(0, 10_000), st.sampled_from(sorted(DISPATCHERS)), st.booleans())
@settings(max_examples=examples(24))
def test_machines_run_what_they_are_given_as_soon_as_it_fits(seed: int, name: str, fifo: bool) -> None:
    by = DISPATCHERS[name]
    tasks = drawn(seed)
    found = dispatch(tasks, by, seed, delay_us=DELAY, fifo=fifo)
    if name == "sparrow":  # who is first depends on messages; but nobody is sooner than his messages
        kinds, _ = machines()
        own = tasks.times[np.arange(len(tasks.times)), kinds[found.places]]
        assert (found.latencies >= own + 3 * DELAY).all()
        return
    ends = run_naive(tasks, found, (3 if by.view == PROBE else 1) * DELAY, fifo)
    assert (found.latencies + tasks.arrivals).tolist() == ends


def test_a_task_of_sparrow_runs_once_at_the_machine_that_asks_first() -> None:
    tasks, by = drawn(1), DISPATCHERS["sparrow"]
    kinds, sizes = machines()
    picks = picks_of(len(tasks.arrivals), by, 1, sizes)
    apart = replace(tasks, arrivals=np.arange(len(picks)) * 10**9)
    found = dispatch(apart, by, 1, delay_us=DELAY)
    assert (found.places == picks[:, 0]).all()
    assert (found.latencies == 3 * DELAY + tasks.times[np.arange(len(picks)), kinds[picks[:, 0]]]).all()
    found = dispatch(tasks, by, 1, delay_us=DELAY)
    first, second = (found.places == picks[:, 0], found.places == picks[:, 1])
    assert (first | second).all() and not first.all() and second.any()


@pytest.mark.parametrize("name", ["two-choices", "dodoor", "prequal", "ends"])
def test_any_number_of_choices_is_drawn(name: str) -> None:
    """Also more than a row of draws had before, and messages follow the choices."""
    tasks = drawn(1)
    found = [dispatch(tasks, replace(DISPATCHERS[name], choices=choices), 1) for choices in (2, 9, 100)]
    if name in ("two-choices", "prequal"):
        assert [each.sent for each in found] == [3, 10, 101]
    assert (found[0].places != found[2].places).any()


@pytest.mark.parametrize(
    ("name", "settings"),
    [("dodoor", {"choices": 0}), ("dodoor", {"choices": 101}), ("sparrow", {"choices": 3}), ("dodoor", {"flush": 0}),
     ("dodoor", {"batch": -1}), ("ends", {"report": -1})],
)  # fmt: skip
def test_numbers_that_the_loop_has_no_room_for_are_refused(name: str, settings: dict[str, int]) -> None:
    with pytest.raises(InputError, match=f"{next(iter(settings))}.* of a dispatcher: expected"):
        replace(DISPATCHERS[name], **settings)


def test_the_pool_of_prequal() -> None:
    """Old and used probes go; hot ones lose; the oldest and the one with the most requests go in turn."""
    take = getattr(kernel.from_pool, "py_func", kernel.from_pool)
    now, second = 5_000_000, 1_000_000
    for turn in (0, 1):
        pool = np.zeros((16, 5), np.int64)  # machine, requests, latency, time, uses
        pool[0], pool[1] = (80, 0, 0, now - second - 1, 0), (81, 0, 0, now, 2)
        for k in range(8):
            pool[2 + k] = (k, k, {4: 5, 7: 1}.get(k, 50), now - 8 + k, 1)
        assert take(pool, 10, now, turn) == (4, 7)
        left = [k for k in range(8) if k != (7 if turn else 0)]
        assert pool[:7, 0].tolist() == left
        assert pool[:7, 1].tolist() == [k + (k == 4) for k in left]
        assert pool[:7, 4].tolist() == [1 + (k == 4) for k in left]
    assert take(np.array([(80, 0, 0, 0, 0), (81, 0, 0, now, 2)]), 2, now, 0) == (-1, 0)


@pytest.mark.parametrize(
    ("name", "sent", "one_way"),
    [("random", 1, 1), ("two-choices", 3, 5), ("two-choices-score", 3, 5), ("sparrow", 4, 6), ("prequal", 4, 7)],
)
def test_each_message_of_those_that_ask_is_counted(name: str, sent: int, one_way: int) -> None:
    found = dispatch(drawn(1), DISPATCHERS[name], 1)
    assert (found.sent, found.reports, found.one_way) == (sent, 0, one_way)


@given(st.integers(1, 7), st.integers(1, 9), st.integers(1, 60), st.booleans())
@settings(max_examples=examples(12))
def test_each_message_of_a_cache_is_counted(schedulers: int, flush: int, batch: int, reply: bool) -> None:
    """By hand: a flush for so many decisions of a scheduler; news to all at each batch, or an answer to each flush."""
    count = 200
    by = replace(DISPATCHERS["dodoor"], flush=flush, batch=0 if reply else batch)
    found = dispatch(draw_machines(count, 3, 30).at_load(0.6), by, 3, schedulers=schedulers, delay_us=0)
    heard = told = flushes = 0
    made = [0] * schedulers
    for task in range(count):
        made[task % schedulers] += 1
        if made[task % schedulers] % flush == 0:
            flushes += 1
            told += (heard + flush) // batch > heard // batch
            heard += flush
    news = 0 if reply else told * schedulers
    assert round(found.sent * count) == count + flushes + news
    assert found.reports == 1
    assert round(found.one_way * count) == count + flushes + (flushes if reply else news) + count


def decide_again(tasks: TaskStream, found: Dispatched, by: TaskDispatcher, seed: int) -> list[int]:
    """The places of a single scheduler whose messages take no time, each by what was known when it was decided."""
    kinds, sizes = machines()
    picks = picks_of(len(tasks.arrivals), by, seed, sizes)
    ends = found.latencies + tasks.arrivals

    def row(task: int) -> np.ndarray:
        kind = kinds[found.places[task]]
        cores, time = tasks.needs[task, kind], tasks.times[task, kind]
        return np.array([cores, tasks.needs[task, -1], 1, time, cores * time])

    def better(view: dict[int, np.ndarray], task: int, a: int, b: int) -> int:
        own = [(m, view[m], kinds[m], sizes[m]) for m in (a, b)]
        if by.rule == FEWER:
            cost = [held[2] for _, held, _, _ in own]
        elif by.rule == SCORE:
            need = [(tasks.needs[task, kind], tasks.needs[task, -1]) for _, _, kind, _ in own]
            load = [
                r[0] * h[0] / c[0] ** 2 + r[1] * h[1] / c[1] ** 2 for r, (_, h, _, c) in zip(need, own, strict=True)
            ]
            parts = [(x[0] / sum(x) if sum(x) else 0.5) for x in (load, [held[3] for _, held, _, _ in own])]
            cost = [(1 - by.alpha) * parts[0] + by.alpha * parts[1], 0.5]
        else:
            cost = []
            for _, held, kind, size in own:
                need, time = tasks.needs[task, [kind, -1]], tasks.times[task, kind]
                room = (held[:2] + need <= size[:2]).all() and held[2] < size[2]
                wait = max(held[3] / size[2], held[4] / size[0])
                cost.append(time * (1 + held[0] / size[0] / 20) if room else time + wait)
        return a if cost[0] <= cost[1] else b

    nothing = {machine: np.zeros(5, int) for machine in range(len(kinds))}
    store, view, true = dict(nothing), dict(nothing), dict(nothing)
    left = sorted((int(end), i) for i, end in enumerate(ends))
    unsaid: dict[int, list[int]] = {}
    places, heard = [], 0
    for task, at in enumerate(tasks.arrivals.tolist()):
        while left and left[0][0] < at:
            _, gone = left.pop(0)
            machine = int(found.places[gone])
            true[machine] = true[machine] - row(gone)
            unsaid.setdefault(machine, []).append(gone)
            if by.report == 0:
                store[machine] = true[machine]
            elif len(unsaid[machine]) >= by.report or true[machine][2] == 0:
                store[machine] = store[machine] - sum(row(each) for each in unsaid.pop(machine))
        best = int(picks[task, 0])
        for other in picks[task, 1 : by.choices].tolist():
            best = better(view, task, best, other)
        places.append(best)
        true[best] = true[best] + row(task)
        if by.own:
            view[best] = view[best] + row(task)
        if (task + 1) % by.flush == 0:
            for sent in range(task + 1 - by.flush, task + 1):
                store[places[sent]] = store[places[sent]] + row(sent)
            if not by.batch or (heard + by.flush) // by.batch > heard // by.batch:
                view = dict(store)
            heard += by.flush
    return places


@given(
    st.integers(0, 10_000), st.sampled_from(["two-choices-cached", "dodoor", "ends"]), st.integers(1, 9),
    st.sampled_from([0, 1, 7]), st.sampled_from([0, 1, 2]), st.booleans(),
)  # fmt: skip
@settings(max_examples=examples(16), deadline=None)
def test_a_cache_knows_what_it_was_told(seed: int, name: str, flush: int, batch: int, report: int, own: bool) -> None:
    """With own decisions and a store that tells all: what is not flushed yet is in no news, and stays in the cache."""
    tasks = drawn(seed)
    by = replace(DISPATCHERS[name], flush=flush, batch=batch, report=report, own=own)
    found = dispatch(tasks, by, seed, schedulers=1, delay_us=0)
    if not np.isin(found.latencies + tasks.arrivals, tasks.arrivals).any():
        assert found.places.tolist() == decide_again(tasks, found, by, seed)


def test_a_cache_with_own_decisions_needs_no_news_of_them() -> None:
    """One scheduler, and no task ends while they come: what it decided is all there is."""
    tasks = drawn(7)
    tasks = replace(tasks, times=tasks.times + 10**12)
    known = replace(DISPATCHERS["ends"], flush=7)
    found = [dispatch(tasks, by, 7, schedulers=1) for by in (known, replace(known, view=PROBE))]
    assert (found[0].places == found[1].places).all()


@given(NUMBERS, NUMBERS, NUMBERS, NUMBERS, st.floats(0, 1), st.floats(0.5, 2))
def test_the_rule_of_two_choices(a: float, b: float, c: float, d: float, alpha: float, scale: float) -> None:
    second = second_is_lighter((a, b), (c, d), alpha)
    assert not (second and second_is_lighter((b, a), (d, c), alpha))
    if a <= b and c <= d:
        assert not second
    if a > b and c > d and a > 1.01 * b and c > 1.01 * d:
        assert second and second_is_lighter((a * scale, b * scale), (c, d), alpha)
    if c > 1.01 * d:
        assert second_is_lighter((a, b), (c, d), 1.0)
    if a > 1.01 * b:
        assert second_is_lighter((a, b), (c, d), 0.0)


def test_dodoor_costs_less_and_gives_more_than_two_choices_and_ours_than_dodoor() -> None:
    """The claims of the study (docs/studies/dispatch.md), on one seed of a fifth of its tasks."""
    for load in (0.6, 0.8):
        tasks = draw_machines(2_000, 1, 30).at_load(load)
        asking, dodoor, ours = (
            dispatch(tasks, DISPATCHERS[n], 1, fifo=True) for n in ("two-choices", "dodoor", "ends")
        )
        assert dodoor.sent <= 0.45 * asking.sent and ours.sent < dodoor.sent and ours.one_way < dodoor.one_way
        assert ours.mean_s < dodoor.mean_s < asking.mean_s
        assert ours.quantile_s(0.99) < dodoor.quantile_s(0.99) < asking.quantile_s(0.99)


def test_rows_are_read_and_bad_ones_named(tmp_path: Path) -> None:
    path = tmp_path / "rows"
    path.write_text("7,0.5,100,9,2000,5000,simulated\n\n3,2,64,9,1000.0,3000,simulated,medium\n")
    tasks = read_tasks(path)
    assert tasks.arrivals.tolist() == [0, 2_000_000]
    assert tasks.needs[:, [0, 3, 4]].tolist() == [[2000, 2000, 64], [500, 500, 100]]
    assert tasks.times[:, 1].tolist() == [1_000_000, 2_000_000]
    assert tasks.at_load(0.5).arrivals[1] * 1334 * 0.5 == pytest.approx(2 * 1e6 + 0.5 * 2e6, rel=1e-3)
    for row, part in (
        ("1,2,3", "line 2: expected id,cores"), ("1,9,1,1,1,1,x", "line 2, cores: expected a number from"),
        ("1,1,1,1,nan,1,x", "duration"), ("1,1,1,1,0,1,x", "duration"), ("1,1,-1,1,1,1,x", "memMB"),
    ):  # fmt: skip
        path.write_text(f"1,1,1,1,1,1,x\n{row}\n")
        with pytest.raises(InputError, match=part):
            read_tasks(path)


def test_the_command(tmp_path: Path) -> None:
    rows = tmp_path / "rows.csv"
    rows.write_text("".join(f"{i},1,512,0,{1000 + i},{40 * i},x\n" for i in range(200)))
    done = kant("plan", "dispatch", str(rows), "--policy", "dodoor", "--load", "0.5", "--seeds", "2", "--json")
    (row,) = done.json()["rows"]
    assert row["policy"] == "dodoor" and row["scheduler_messages"] == pytest.approx(1 + 25 / 200 + 5 * 2 / 200)
    assert "dodoor" in kant("plan", "dispatch", str(rows), "--load", "0.5", "--seeds", "1").out
    for wrong in (("--policy", "none"), ("--tasks", "1"), ("--load", "0"), ("--schedulers", "0")):
        kant("plan", "dispatch", *wrong).refusal()


def test_dispatchers_differ(tmp_path: Path) -> None:
    """No name stands for what another one does."""
    tasks = drawn(9)
    every: list[TaskDispatcher] = list(DISPATCHERS.values())
    assert len({dispatch(tasks, by, 9).latencies.tobytes() for by in every}) == len(every)
