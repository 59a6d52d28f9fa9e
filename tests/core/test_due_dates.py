"""The sequences by due dates, against brute force, the exact dynamic programme and examples by hand."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import numpy as np
import pytest
from benchmarks.tardiness import draw_instances, least_tardiness
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples

from kant.cluster.columns import J_DUE, J_ESTIMATE, J_REMAINING, JOB_WIDTH
from kant.model.units import FOREVER, SECOND
from kant.queueing.due_dates import (
    augmented_mddc,
    best_of_the_rules,
    challengers,
    descend,
    descent,
    edd,
    eddc,
    mdd_sequence,
    mdd_vnd,
    mddc,
    rules,
    total_tardiness,
)
from kant.queueing.order import Order
from kant.queueing.orders.edd import Edd
from kant.queueing.orders.eddc import Eddc
from kant.queueing.orders.mdd import Mdd
from kant.queueing.orders.mdd_vnd import MddVnd
from kant.queueing.orders.mddc import Mddc

RULES = (edd, mdd_sequence, eddc, mddc, augmented_mddc, mdd_vnd)
ORDERS = (Edd(), Mdd(), Eddc(), Mddc(), MddVnd(), MddVnd(depth=2), MddVnd(depth=0))
KERNELS = (
    (rules, "total_tardiness", "edd", "mdd_sequence"),
    (challengers, "eddc", "choose_mddc", "append_all", "move_one_to_end", "mddc", "augmented_mddc"),
    (descent, "best_swap", "best_block_move", "descend", "best_of_the_rules", "mdd_vnd"),
)


def ints(*values: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.array(values, dtype=np.int64)


@st.composite
def instances(draw: st.DrawFn, most: int = 12) -> tuple[Any, Any, int]:
    """Few distinct numbers, so that ties are common; due dates may lie before the start."""
    n = draw(st.integers(0, most))
    p = draw(st.lists(st.integers(0, 12), min_size=n, max_size=n))
    d = draw(st.lists(st.integers(-10, 60), min_size=n, max_size=n))
    return ints(*p), ints(*d), draw(st.integers(0, 20))


@pytest.mark.long
@given(instances())
def test_every_rule_sequences_each_job_once(instance: tuple[Any, Any, int]) -> None:
    for rule in RULES:
        assert sorted(rule(*instance).tolist()) == list(range(len(instance[0]))), rule


@given(instances(6))
@settings(max_examples=examples(30))
def test_the_dynamic_programme_finds_what_trying_all_sequences_finds(instance: tuple[Any, Any, int]) -> None:
    p, d, start = instance
    tried = min(total_tardiness(p, d, np.array(s, dtype=np.int64), start) for s in permutations(range(len(p))))
    assert least_tardiness(p, d, start) == tried


def test_both_ways_to_the_optimum_agree_on_instances_of_eight_jobs() -> None:
    every = np.array(list(permutations(range(8))))
    for p, d in draw_instances(8, 1, seed=7):
        tardiness = np.maximum(np.cumsum(p[every], axis=1) - d[every], 0).sum(axis=1)
        assert least_tardiness(p, d, 0) == tardiness.min()


@given(instances(10))
def test_the_descent_ends_between_its_start_and_the_optimum(instance: tuple[Any, Any, int]) -> None:
    p, d, start = instance
    least = least_tardiness(p, d, start)
    for begin in (best_of_the_rules(*instance), edd(*instance)):
        before = total_tardiness(p, d, begin, start)
        previous = before
        for steps in (0, 1, 2, 1000):
            after = total_tardiness(p, d, descend(p, d, begin, start, steps), start)
            assert least <= after <= previous
            assert steps > 0 or after == before
            previous = after


@pytest.mark.long
@given(instances(7))
def test_no_swap_and_no_insertion_betters_where_the_descent_ends(instance: tuple[Any, Any, int]) -> None:
    p, d, start = instance
    end = mdd_vnd(*instance).tolist()
    least = total_tardiness(p, d, ints(*end), start)
    for i in range(len(end)):
        for j in range(len(end)):
            swapped, moved = list(end), list(end)
            swapped[i], swapped[j] = swapped[j], swapped[i]
            moved.insert(j, moved.pop(i))
            assert min(total_tardiness(p, d, ints(*s), start) for s in (swapped, moved)) >= least


@given(instances(7))
def test_a_move_gains_what_it_says(instance: tuple[Any, Any, int]) -> None:
    p, d, start = instance
    sequence = edd(*instance)
    before = total_tardiness(p, d, sequence, start)
    gain, i, j = descent.best_swap(p, d, sequence, start)
    swapped = sequence.copy()
    if gain:
        swapped[[i, j]] = sequence[[j, i]]
    assert total_tardiness(p, d, swapped, start) == before - gain
    for shortest, longest in ((1, 1), (2, 3)):
        gain, i, j, k = descent.best_block_move(p, d, sequence, start, shortest, longest)
        moved = np.concatenate((sequence[:i], sequence[j:k], sequence[i:j], sequence[k:]))
        assert total_tardiness(p, d, moved, start) == before - gain


@given(instances(20))
def test_mdd_with_heaps_is_mdd_by_looking_at_all(instance: tuple[Any, Any, int]) -> None:
    p, d, time = instance
    left, sequence = set(range(len(p))), []
    while left:
        job = min(left, key=lambda j: (max(d[j], time + p[j]), d[j], p[j], j))
        left.remove(job)
        sequence.append(job)
        time += int(p[job])
    assert mdd_sequence(*instance).tolist() == sequence


@given(instances())
def test_eddc_is_its_published_text(instance: tuple[Any, Any, int]) -> None:
    p, d, start = instance
    s = sorted(range(len(p)), key=lambda j: (p[j], d[j]))
    for i in range(1, len(s)):
        j = i
        while j > 0 and d[s[j]] < d[s[j - 1]]:
            if d[s[j - 1]] > start + sum(p[s[k]] for k in range(j)):
                s[j], s[j - 1] = s[j - 1], s[j]
            j -= 1
    assert eddc(*instance).tolist() == s


@given(instances())
@settings(max_examples=examples(25), deadline=None)
def test_compiled_sequences_are_the_uncompiled_ones(instance: tuple[Any, Any, int]) -> None:
    compiled = [rule(*instance).tolist() for rule in RULES]
    with pytest.MonkeyPatch.context() as patch:
        for module, *names in KERNELS:
            for name in names:
                kernel = getattr(module, name)
                for user in (rules, challengers, descent):  # wherever it is called by its name
                    if getattr(user, name, None) is kernel:
                        patch.setattr(user, name, getattr(kernel, "py_func", kernel))
        plain = (rules.edd, rules.mdd_sequence, challengers.eddc, challengers.mddc, challengers.augmented_mddc)
        uncompiled = [rule(*instance).tolist() for rule in (*plain, descent.mdd_vnd)]
    assert compiled == uncompiled


def test_edd_goes_by_due_date_then_by_length() -> None:
    assert edd(ints(3, 1, 2), ints(5, 5, 4), 0).tolist() == [2, 1, 0]


def test_mdd_lets_a_late_long_job_wait_where_edd_does_not() -> None:
    p, d = ints(10, 1), ints(1, 2)
    assert edd(p, d, 0).tolist() == [0, 1]
    assert mdd_sequence(p, d, 0).tolist() == [1, 0]  # max(1, 10) = 10 against max(2, 1) = 2
    assert total_tardiness(p, d, ints(0, 1), 0) == 18
    assert total_tardiness(p, d, ints(1, 0), 0) == 10


def test_eddc_passes_jobs_that_are_still_in_time_only() -> None:
    # Job 1 passes 0 (9 > 2), then job 2 passes 0 (9 > 3 + 2) and stays behind 1, which is due earlier.
    assert eddc(ints(2, 3, 4), ints(9, 4, 5), 0).tolist() == [1, 2, 0]
    assert eddc(ints(2, 3), ints(2, 1), 0).tolist() == [0, 1]  # 2 > 2 does not hold


def test_mddc_weighs_the_length_and_its_augmented_form_looks_back() -> None:
    # Job 0: max(4.4, 5) * (1 + 1/2) + 4/3 = 8.83; job 1: max(2.2, 6) * (1 + .25/1.25) + 2/3 = 7.87.
    p, d = ints(4, 2), ints(5, 6)
    assert mddc(p, d, 0).tolist() == [1, 0]
    assert mdd_sequence(p, d, 0).tolist() == [0, 1]
    assert augmented_mddc(p, d, 0).tolist() == [0, 1]  # job 1, moved to the end, saves the tardiness of job 0


def test_the_descent_comes_within_a_fifth_of_a_percent_of_the_optimum() -> None:
    drawn = draw_instances(12, 5, seed=100)
    found = sum(total_tardiness(p, d, mdd_vnd(p, d, 0), 0) for p, d in drawn)
    assert found <= 1.002 * sum(least_tardiness(p, d, 0) for p, d in drawn)


def table(*jobs: tuple[int, int]) -> Any:
    """Waiting jobs: due date and estimate in seconds; -1 where there is none."""
    rows = np.full((len(jobs), JOB_WIDTH), -1, dtype=np.int64)
    rows[:, 1:6] = 0
    for row, (due, estimate) in zip(rows, jobs, strict=True):
        row[J_DUE] = due * SECOND if due >= 0 else -1
        row[J_ESTIMATE] = row[J_REMAINING] = estimate * SECOND if estimate >= 0 else -1
    return rows


def ranked(order: Order, jobs: Any, now: int = 0) -> list[int]:
    keys = order.keys(jobs, np.arange(len(jobs)), now * SECOND).tolist()
    return sorted(range(len(jobs)), key=lambda row: (keys[row], row))


@pytest.mark.parametrize("order", ORDERS, ids=repr)
def test_jobs_without_a_due_date_come_last_as_they_arrived(order: Order) -> None:
    jobs = table((-1, 5), (90, 10), (-1, 1), (50, 10), (-1, -1), (70, 10))
    assert ranked(order, jobs) == [3, 5, 1, 0, 2, 4]


@pytest.mark.parametrize("order", ORDERS[1:], ids=repr)
def test_without_an_estimate_a_due_date_says_nothing_to_a_moving_order(order: Order) -> None:
    assert order.moving
    assert ranked(order, table((1, -1), (-1, 5), (90, 10))) == [2, 0, 1]
    assert ranked(Edd(), table((1, -1), (-1, 5), (90, 10))) == [0, 2, 1]


@given(st.lists(st.tuples(st.integers(-1, 99), st.integers(-1, 30)), max_size=15), st.integers(0, 80), st.randoms())
def test_keys_of_moving_orders_are_places_whatever_the_order_of_the_rows(
    drawn: list[tuple[int, int]], now: int, shuffle: Any
) -> None:
    jobs = table(*drawn)
    rows = np.arange(len(jobs))
    mixed = list(range(len(jobs)))
    shuffle.shuffle(mixed)
    for order in ORDERS[1:]:
        keys = order.keys(jobs, rows, now * SECOND)
        assert sorted(keys.tolist()) == rows.tolist()
        assert order.keys(jobs, rows[mixed], now * SECOND).tolist() == keys[mixed].tolist()


@given(st.lists(st.tuples(st.integers(0, 99), st.integers(1, 30)), min_size=1, max_size=15), st.integers(0, 80))
def test_the_rule_and_the_sequence_of_mdd_begin_with_the_same_job(drawn: list[tuple[int, int]], now: int) -> None:
    jobs = table(*drawn)
    assert ranked(Mdd(), jobs, now)[0] == ranked(MddVnd(depth=0), jobs, now)[0]
    assert ranked(MddVnd(depth=1), jobs, now) == ranked(MddVnd(depth=0), jobs, now)


def test_mdd_changes_its_mind_as_time_passes() -> None:
    jobs = table((20, 15), (25, 5))
    assert ranked(Mdd(), jobs, 0) == [0, 1]
    assert ranked(Mdd(), jobs, 15) == [1, 0]  # max(20, 15 + 15) = 30 against max(25, 20) = 25
    assert ranked(Edd(), jobs, 15) == [0, 1]


def test_estimates_and_due_dates_without_measure_do_no_harm() -> None:
    jobs = table(*[(5, 7), (40, 3)] * 30)
    jobs[0, J_REMAINING] = FOREVER - 1
    jobs[1, J_DUE] = FOREVER - 1
    for order in ORDERS[1:]:
        assert ranked(order, jobs, 10)[0] not in (0, 1), order
    assert ranked(Mdd(), jobs, 10)[-2:] == [0, 1]
