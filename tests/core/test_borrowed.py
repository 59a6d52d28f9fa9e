"""Kernels count references to what they own, and not to what they borrow from their caller."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest
from numba.core.runtime import _nrt_python, rtsys
from numba.core.runtime.context import NRTContext

from kant.compiled import compiled_at_once, inlined

Array = np.ndarray


class Pair(NamedTuple):
    left: Array
    right: Array


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("KANT_CACHE_DIR", str(tmp_path))
    _nrt_python.memsys_enable_stats()
    yield
    _nrt_python.memsys_disable_stats()


@inlined
def longer(pair: Pair, most: int) -> Array:
    """A part of an argument, or an array of its own."""
    left = pair.left
    return left[1:] if left.shape[0] > most else np.full(most, 0)


def every_way(pair: Pair, table: Array, times: int) -> tuple[Array, Array, Pair, int]:
    left, right = pair
    own = longer(pair, 9)
    tail = own[2:]  # the last to hold it
    ones = np.full(9, 1)
    row, kept, total = table[0], table[0], ones[8]
    for i in range(times):
        kept = longer(Pair(right, left), i + 2)  # assigned twice: it owns
        left, right = right, kept
        part = table[i % table.shape[0]]
        few = table[np.array([0, 1]), i % 2]  # a copy
        total += part[0] + left[0] + few[1]
        inner = np.full(3, 5 + i)
        if i == 0:
            first = inner[1:]  # it outlives what `inner` is in the next turn
        if i == 2:
            lead = left[:1]
        made = (np.full(9, 2), i)
        total += np.full(9, 1)[0] + made[0][1]
        held = Pair(np.full(9, i), tail)
        total += inner[0] + np.full(9, 1)[0] + held.left[1]
        total += first[1] * 100
    total += (part[1] if times > 0 else 0) + (lead[0] if times > 3 else 0)
    source = np.full(9, 3)
    if times > 4:
        total += source[0]
    end = source[1:]  # the last to hold it
    total += end[0] + np.full(9, 1)[0] + end[1]
    copy = table.copy()
    if times == 3:
        return copy[1], kept, Pair(copy[0], tail), total  # copy is there until the end, whichever it is
    for i in range(times):
        for k in range(2):
            one, other = copy[i % 2], Pair(copy[k], tail)
            total += one[0] * other.left[1]
    return row, kept, Pair(pair.right, tail), total


def test_what_a_kernel_returns_outlives_its_arguments_and_nothing_is_kept_for_ever() -> None:
    kernel = compiled_at_once(every_way)

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


def test_a_kernel_that_only_borrows_counts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    counted, real = Counter[bool](), NRTContext._call_incref_decref

    def count(self: Any, builder: Any, kind: Any, *rest: Any) -> None:
        by_wrapper = builder.function.name.startswith("_ZN7cpython")  # which boxes what comes from Python
        counted[by_wrapper] += "array" in str(kind)
        real(self, builder, kind, *rest)

    monkeypatch.setattr(NRTContext, "_call_incref_decref", count)

    @inlined
    def at(pair: Pair, i: int) -> int:
        left = pair.left
        return int(left[i] + pair.right[i])

    def total(pairs: tuple[Pair, Pair], table: Array) -> int:
        first, second = pairs
        found, own = 0, table.copy()  # the copy is freed at the end, and nothing else is counted
        for i in range(first.left.shape[0]):
            head, same = first.left[: i + 1], Pair(second.left, (own[i], i)[0])
            found += at(first, i) + at(same, i) + head[i] + table[i, :1][0] + table[0][i]
        return found

    pair = Pair(np.arange(3), np.arange(3))
    assert compiled_at_once(total)((pair, pair), np.eye(3, dtype=np.int64)) == 17
    assert counted[True] > 0 and counted[False] == 4
