"""Cooperative tasks: an answer that takes long is found in short steps, between which the process does other work."""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import update_wrapper
from typing import Generic, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

Task = Generator[None, bool, T]
"""A generator that yields after each short step and returns the answer. It is sent whether the state may have changed.

The answer is about the moment at which it was asked for. Jobs that have left since are left out of it.
"""


class OutdatedError(Exception):
    """The state has changed so much between two steps that the task has to start again."""


def run_to_end(task: Task[T]) -> T:
    """Run all steps of a task and return its answer."""
    run = TaskRun(task)
    run.advance(lambda: True)
    return run.found


class TaskRun(Generic[T]):
    """A task under way. `found` is its answer once it is done."""

    __slots__ = ("_begun", "_task", "found")
    found: T

    def __init__(self, task: Task[T]) -> None:
        self._task = task
        self._begun = False

    def advance(self, more: Callable[[], bool]) -> bool:
        """Take steps until the task is done (True) or `more`, called after each step, says no. Raises OutdatedError."""
        moved = True
        try:
            if not self._begun:
                self._begun = True
                next(self._task)
                moved = False
                if not more():
                    return False
            while True:
                self._task.send(moved)
                moved = False
                if not more():
                    return False
        except StopIteration as end:
            self.found = end.value
            return True


class Cooperative(Generic[P, T]):
    """A question with two ways to ask it: called, it returns the answer; `task` returns the steps that find it."""

    def __init__(self, task: Callable[P, Task[T]]) -> None:
        self.task = task
        update_wrapper(self, task)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T:
        return run_to_end(self.task(*args, **kwargs))


def cooperative(task: Callable[P, Task[T]]) -> Cooperative[P, T]:
    """Make a question of a generator that finds its answer in steps."""
    return Cooperative(task)
