"""Plans of a step: against brute force, against FSMoE's own, and against the table that FSMoE measured."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from benchmarks.studies.judges import stream_faults as faults
from benchmarks.studies.step_time import TABLE_5, speedups, table_5
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples

from kant.placement.perf.gaps import spread
from kant.placement.perf.layer import DEGREES, Cost, OperationCosts, Volumes
from kant.placement.perf.plan import LayerPlan, Stack, best_plan, our_plan, published_plan, runs, timed

AMOUNT = st.floats(0.1, 10.0)
COST = st.builds(Cost, st.floats(0.0, 0.5), st.floats(0.05, 2.0))
COSTS = st.builds(OperationCosts, COST, COST, COST, COST, COST, st.sampled_from((0.5, 0.68, 1.0)))
LAYER = st.builds(
    Volumes, st.just(0.0) | AMOUNT, AMOUNT, AMOUNT, AMOUNT, st.integers(1, 3), AMOUNT, AMOUNT, AMOUNT,
    st.just(4), st.just(0.0) | AMOUNT,
)  # fmt: skip


@st.composite
def stacks(draw: st.DrawFn) -> Stack:
    kinds = draw(st.lists(LAYER, min_size=1, max_size=2))
    layers = draw(st.lists(st.sampled_from(kinds), min_size=1, max_size=5))
    return Stack(tuple(layers), draw(COSTS), draw(st.booleans()))


@given(stacks())
@settings(max_examples=examples(40), deadline=None)
def test_no_plan_is_slower_than_the_papers(stack: Stack) -> None:
    best = best_plan(stack)
    assert best.seconds <= published_plan(stack).seconds
    assert best.seconds <= our_plan(stack).seconds


@given(stacks())
@settings(max_examples=examples(30), deadline=None)
def test_a_plan_is_the_sum_of_its_runs_and_sums_every_gradient_once(stack: Stack) -> None:
    for plan in (our_plan(stack), published_plan(stack)):
        seconds = 0.0
        for i, layer in enumerate(plan.layers):
            for each in runs(stack, i, layer):
                assert faults(each) == []
                seconds += each.seconds
        assert plan.seconds == pytest.approx(seconds + stack.costs.all_reduce.of(plan.tail))
        summed = [layer.in_experts + layer.in_attention for layer in reversed(plan.layers)]
        ready = np.cumsum(stack.arrivals)
        assert sum(summed) + plan.tail == pytest.approx(ready[-1])
        assert (np.cumsum(summed) <= ready[:-1] * (1 + 1e-9) + 1e-9).all()


@given(st.integers(0, 2**32 - 1), st.integers(1, 3), st.integers(1, 2))
@settings(max_examples=examples(60), deadline=None)
def test_buckets_go_where_all_choices_tried_put_them(seed: int, steps: int, kinds: int) -> None:
    draw = np.random.default_rng(seed)
    arrivals = draw.integers(0, 3, steps + 1)
    most = int(arrivals.sum())
    seconds = np.sort(draw.integers(0, 20, (kinds, most + 1)).astype(float), axis=1)
    tail = np.sort(draw.integers(0, 20, most + 1).astype(float))
    which = draw.integers(0, kinds, steps)

    def total(choice: tuple[int, ...]) -> float:
        ready, found = 0, 0.0
        for step, k in enumerate(choice):
            ready += int(arrivals[step])
            if k > ready:
                return float("inf")
            ready -= k
            found += float(seconds[which[step], k])
        return found + float(tail[ready + int(arrivals[-1])])

    least = min(total(choice) for choice in product(range(most + 1), repeat=steps))
    found, taken = spread(seconds, which, arrivals, tail)
    assert found == least == total(taken)


@given(LAYER, COSTS)
@settings(max_examples=examples(6), deadline=None)
def test_the_plan_of_a_layer_is_the_best_of_all_degrees_and_splits(layer: Volumes, costs: OperationCosts) -> None:
    stack = Stack((layer,), costs, steady=True)
    pieces = [layer.gradient * k / 20 for k in range(21)]
    least = min(
        timed(stack, (LayerPlan(ahead, 1, 0.0, layer.gradient),)).forward for ahead in DEGREES
    ) + min(
        timed(stack, (LayerPlan(1, back, first, second),)).backward
        for back in DEGREES
        for i, first in enumerate(pieces)
        for second in pieces[: 21 - i]
    )  # fmt: skip
    assert our_plan(stack).seconds == pytest.approx(least, rel=1e-9)


def test_gradients_of_the_last_layer_wait_for_a_layer_that_hides_them() -> None:
    layer = Volumes(1.0, 1.0, 1.0, 1.0, 1, 1.0, 1.0, 1.0, 1, 1.0)
    free = Cost(0.0, 1.0)
    plan = best_plan(Stack((layer, layer), OperationCosts(free, free, free, free, free)))
    assert plan.layers[1].in_experts + plan.layers[1].in_attention == 0.0  # the first of the backward pass has none yet
    assert plan.layers[0].in_experts + plan.layers[0].in_attention == 1.0
    assert plan.tail == 1.0  # nothing comes after the first layer
    assert plan.exposed == 1.0


@pytest.mark.long
@pytest.mark.parametrize("name", ["A", "B"])
def test_the_table_of_the_paper_is_met_within_five_hundredths(name: str) -> None:
    rows = table_5(name)
    assert len(rows) == 1458
    here = speedups(rows)
    assert here == pytest.approx(TABLE_5[name], abs=0.05)
    assert list(here) == sorted(here)
    assert all(row.best.seconds <= row.published.seconds for row in rows)
