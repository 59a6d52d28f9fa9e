"""Kernels count references to what they own, and not to what they borrow from their caller."""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

import numpy as np
import pytest
from numba.core.runtime import rtsys

from kant.compiled import compiled, inlined

Array = np.ndarray


class Pair(NamedTuple):
    left: Array
    right: Array


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KANT_CACHE_DIR", str(tmp_path))


@inlined
def longer(pair: Pair, most: int) -> Array:
    """A part of an argument, or an array of its own."""
    left = pair.left
    return left[1:] if left.shape[0] > most else np.zeros(most, dtype=np.int64)


def every_way(pair: Pair, table: Array, times: int) -> tuple[Array, Array, Pair, int]:
    left, right = pair
    row, kept, total = table[0], table[0], 0
    for i in range(times):
        kept = longer(Pair(right, left), i + 2)  # assigned twice: it owns
        left, right = right, kept
        part = table[i % table.shape[0]]
        total += part[0] + left[0]
    return row, kept, Pair(pair.right, right), total


def test_what_a_kernel_returns_outlives_its_arguments_and_nothing_is_kept_for_ever() -> None:
    kernel = compiled(every_way)

    def arguments() -> tuple[Pair, Array]:
        return Pair(np.arange(4), np.arange(4, 7)), np.arange(20, 30).reshape(2, 5)

    kernel(*arguments(), 1)
    pair, table = arguments()
    before = [sys.getrefcount(each) for each in (*pair, table)]
    was = rtsys.get_allocation_stats()
    for times in range(8):
        found, expected = kernel(*arguments(), times), every_way(*arguments(), times)
        again = kernel(pair, table, times)
        junk = [np.full(size, -1) for size in range(1, 12)]  # what was freed too early is written over
        for one in (found, again):
            assert [each.tolist() for each in (one[0], one[1], *one[2])] == [
                each.tolist() for each in (expected[0], expected[1], *expected[2])
            ]
            assert one[3] == expected[3]
        del junk, one, found, again
    assert [sys.getrefcount(each) for each in (*pair, table)] == before
    now = rtsys.get_allocation_stats()
    assert now.alloc - was.alloc == now.free - was.free > 0 and now.mi_alloc - was.mi_alloc == now.mi_free - was.mi_free


def test_a_kernel_that_only_borrows_counts_nothing() -> None:
    @inlined
    def at(pair: Pair, i: int) -> int:
        return int(pair.left[i] + pair.right[i])

    def total(pairs: tuple[Pair, Pair]) -> int:
        first, second = pairs
        found = 0
        for i in range(first.left.shape[0]):
            head = first.left[: i + 1]
            found += at(first, i) + at(second, i) + head[i]
        return found

    kernel: Any = compiled(total)
    pair = Pair(np.arange(3), np.arange(3))
    assert kernel((pair, pair)) == 15
    (code,) = kernel.inspect_llvm().values()
    own = [body for body in code.split("\ndefine ") if "total" in body[:300] and "cpython" not in body[:300]]
    assert own and not [body for body in own if "NRT_incref" in body or "NRT_decref" in body]
