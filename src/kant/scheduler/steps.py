"""Work in steps: for an answer that takes long, in a process that has more to do meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Generic, TypeVar

T = TypeVar("T")

Steps = Generator[None, bool, T]
"""Yields after each short piece of work, and is sent whether anything may have happened since. Returns what was found.

What happens between two steps makes the answer no less true of the moment at which it was asked for: who has left is
left out of it.
"""


class Outdated(Exception):  # noqa: N818 - the word for it
    """So much has changed between two steps that the work has to begin anew."""


def at_once(steps: Steps[T]) -> T:
    """All steps, one after the other."""
    work = Work(steps)
    work.go_on(lambda: True)
    return work.found


class Work(Generic[T]):
    """Work under way. `found` is what it returned, once it is done."""

    __slots__ = ("_begun", "_steps", "found")
    found: T

    def __init__(self, steps: Steps[T]) -> None:
        self._steps = steps
        self._begun = False

    def go_on(self, more: Callable[[], bool]) -> bool:
        """Go on until all is done (True), or `more`, which is asked after each step, says no. Raises Outdated."""
        moved = True
        try:
            if not self._begun:
                self._begun = True
                next(self._steps)
                moved = False
                if not more():
                    return False
            while True:
                self._steps.send(moved)
                moved = False
                if not more():
                    return False
        except StopIteration as end:
            self.found = end.value
            return True
