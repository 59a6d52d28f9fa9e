"""The least cost of spreading replicas over nodes, against closed forms and by hand."""

from __future__ import annotations

from itertools import product
from math import factorial

import pytest
from benchmarks.preferences_bound import GPUS, LOST, SERVICES, SIZES, coming, ending, serving, solve
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples


def test_who_comes_goes_wherever_there_is_room_and_replicas_part_as_far_as_nodes_have_it() -> None:
    full, half, empty = (0, 0, 1, 0), (0, 1, 0, 0), (0, 0, 0, 0)
    assert coming((empty, half, full), 1) == {((0, 0, 1, 0), (0, 1, 0, 0), half), (empty, full, (0, 2, 0, 0))}
    assert coming((half, full), 2) == set()
    assert serving((empty, half), 2, True) == {((0, 0, 0, 1), (0, 1, 0, 1))}
    together = {((0, 0, 0, 2), half), (empty, (0, 1, 0, 2))}
    assert serving((empty, half), 2, False) == together | serving((empty, half), 2, True)
    assert serving((empty, full), 2, True) == {((0, 0, 0, 2), full)}
    assert serving(((0, 0, 0, 1),), 2, True) == {((0, 0, 0, 1),)}
    assert ending(((0, 0, 0, 1), (0, 1, 0, 1))) == {(empty, half): 1, ((0, 0, 0, 1), (0, 0, 0, 1)): 1}


@given(st.floats(0.1, 1.5), st.integers(1, 4))
@settings(max_examples=examples(10), deadline=None)
def test_one_node_is_the_loss_network_of_the_textbook(load: float, replicas: int) -> None:
    """Where nothing can be chosen the states have the product form of Kelly's loss networks."""
    rate, weights = load * GPUS / sum(SIZES), {}
    for counts in product(range(5), range(3), range(2), range(2)):
        if sum(count * size for count, size in zip(counts, (*SIZES, replicas), strict=True)) <= GPUS:
            weights[counts] = SERVICES ** counts[3]
            for count in counts[:3]:
                weights[counts] *= rate**count / factorial(count)
    whole, found = sum(weights.values()), solve(1, replicas, load, True)
    taken = {one: sum(n * size for n, size in zip(one, (*SIZES, replicas), strict=True)) for one in weights}
    broken = sum(w for one, w in weights.items() if any(one[:3]) and taken[one] < GPUS)
    lost = sum(w * rate * sum(size for size in SIZES if taken[one] + size > GPUS) for one, w in weights.items())
    lost += sum(w * SERVICES * replicas for one, w in weights.items() if not one[3] and taken[one] + replicas > GPUS)
    assert found.broken == pytest.approx(broken / whole, abs=1e-5)
    assert found.lost == pytest.approx(lost / whole, abs=1e-5)
    assert found.allocated == pytest.approx(sum(w * taken[one] for one, w in weights.items()) / whole / GPUS, abs=1e-5)


@given(st.floats(0.2, 1.2), st.integers(2, 3))
@settings(max_examples=examples(4), deadline=None)
def test_the_policy_that_is_found_costs_what_the_bound_says_and_parting_never_less(load: float, nodes: int) -> None:
    apart, at_will = (solve(nodes, 2, load, one) for one in (True, False))
    for found in (apart, at_will):
        assert found.gain == pytest.approx(found.broken + LOST * found.lost, abs=1e-3)
    assert apart.gain >= at_will.gain - 1e-6
    assert apart.used / apart.services > at_will.used / at_will.services
