"""What Kant's compiler does less than Numba's own."""

from __future__ import annotations

import gc
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Any

import numpy as np
import pytest
from llvmlite.ir import Instruction
from numba.core.types.functions import BaseFunction
from tests.patience import PATIENCE_S

from kant.compiled import as_written, compiled, compiled_at_once, compiler, compiling_ahead, inlined

MOST_LEFT = 7
"""Instructions of LLVM that objects of Numba still know when a small kernel is compiled. May only fall."""


@inlined
def collects(x: int) -> int:
    return x + 1


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Counter[Any]:
    """How often Numba looks for the definition of each of its functions, by the types of the arguments."""
    found: Counter[Any] = Counter()
    real = compiler._get_call_type

    def count(function: Any, context: Any, args: Any, kws: Any) -> Any:
        found[function, *args] += 1
        return real(function, context, args, kws)

    monkeypatch.setattr(compiler, "_get_call_type", count)
    monkeypatch.setattr(compiler, "_signatures", {})
    return found


def test_the_type_of_a_call_is_found_once(asked: Counter[Any], tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KANT_CACHE_DIR", str(tmp_path))

    def add_up(table: Any, x: int) -> int:
        return int(table[0] + table[1] + table[x] + collects(x + x) + x + x)

    kernel = compiled_at_once(add_up)
    assert kernel(np.array([1, 2, 3], dtype=np.int64), 2) == 1 + 2 + 3 + 5 + 2 + 2
    assert asked
    assert set(asked.values()) == {1}


def test_an_error_of_types_is_said_again_and_not_remembered(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KANT_CACHE_DIR", str(tmp_path))

    def nonsense(x: int) -> int:
        return x + "one"  # type: ignore[operator]

    kernel = compiled_at_once(nonsense)
    for _ in range(2):
        with pytest.raises(Exception, match="unicode_type"):
            kernel(1)
    assert BaseFunction.get_call_type is compiler._get_call_type


def test_what_was_compiled_leaves_no_instructions_to_the_collector(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KANT_CACHE_DIR", str(tmp_path))

    def twice_for_the_collector(x: int) -> int:
        return collects(x) + x

    kernel = compiled_at_once(twice_for_the_collector)
    gc.disable()
    try:
        assert kernel(1) == 3
        left = [each for each in gc.get_objects() if isinstance(each, Instruction)]
    finally:
        gc.enable()
    own = [each for each in left if "twice_for" in each.function.name or "collects" in each.function.name]
    assert len(own) <= MOST_LEFT, own
    assert {unit.type_annotation for unit in kernel.overloads.values()} == {None}  # type: ignore[attr-defined]


@pytest.mark.parametrize("before", [True, False])
def test_the_collector_is_left_as_it_was(before: bool, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KANT_CACHE_DIR", str(tmp_path))

    def plain(x: int) -> int:
        return x + (1 if before else 2)

    kernel = compiled_at_once(plain)
    was = gc.isenabled()
    try:
        gc.enable() if before else gc.disable()
        kernel(1)
        assert gc.isenabled() is before
    finally:
        gc.enable() if was else gc.disable()


def test_a_thread_that_does_not_compile_runs_what_another_one_compiles_as_it_is_written(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KANT_CACHE_DIR", str(tmp_path))
    begun, compile_now = Event(), Event()

    @compiled_at_once
    def half(number: int) -> int:
        return number // 2

    def other() -> int:
        begun.set()
        assert compile_now.wait(PATIENCE_S)
        return half(9)

    with as_written(), ThreadPoolExecutor(1) as pool:
        there = pool.submit(other)
        assert begun.wait(PATIENCE_S) and half(7) == 3 and half.signatures == []  # type: ignore[attr-defined]
        compile_now.set()
        assert there.result() == 4 and len(half.signatures) == 1  # type: ignore[attr-defined]
        assert half(7) == 3 and half(0.5) == 0 and len(half.signatures) == 1  # type: ignore[attr-defined, arg-type]
    assert half(1.5) == 0 and len(half.signatures) == 2, "now it compiles again"  # type: ignore[attr-defined, arg-type]


def test_a_kernel_that_is_not_kept_runs_as_plain_python_for_as_long_as_compiling_it_would_take(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KANT_CACHE_DIR", str(tmp_path))

    def made(factor: int) -> tuple[Any, Any]:
        @compiled
        def inner(x: int) -> int:
            return factor * x

        @compiled
        def outer(x: int, times: int) -> int:
            total = 0
            for _ in range(times):
                total += inner(x)
            return total

        return inner, outer

    inner, outer = made(3)
    assert [outer(1, 2) for _ in range(9)] == [6] * 9 and outer.signatures == inner.signatures == []
    assert outer._cache.compile_s > inner._cache.compile_s > 0.0
    monkeypatch.setattr(type(outer._cache), "compile_s", 0.05)
    while not outer.signatures:
        assert outer(1, 1000) == 3000
    assert len(inner.signatures) == 1, "compiled as a part of the other one"
    again = made(3)
    assert again[1](1, 2) == 6 and len(again[1].signatures) == 1, "it is kept now"
    inner, outer = made(5)
    with compiling_ahead():
        assert outer(1, 2) == 10 and len(outer.signatures) == 1
