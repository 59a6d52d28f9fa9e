"""An event loop whose clock jumps to the next thing to do: minutes of waiting take no time."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class _Jumping(selectors.SelectSelector):
    now = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            raise AssertionError("everybody waits for ever")
        self.now += max(timeout, 0.0)
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._jumping = _Jumping()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now


def run(main: Coroutine[Any, Any, T]) -> T:
    """As asyncio.run, in virtual time that begins with 0."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)


def timed(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Make a test that is a coroutine run in virtual time."""

    @wraps(test)
    def timed(*arguments: P.args, **named: P.kwargs) -> None:
        run(test(*arguments, **named))

    return timed


def now() -> float:
    return asyncio.get_running_loop().time()
