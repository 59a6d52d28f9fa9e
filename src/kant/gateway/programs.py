"""The programs, sessions and agents that send requests, by number: clients name them, and there may be many."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from kant.serving.requests import NO_PROGRAM
from kant.serving.routing import PROGRAMS


class ProgramNumbers:
    """Numbers programs by name. Beyond PROGRAMS names the least recently used is dropped; `forget` gets its number."""

    def __init__(self, forget: Callable[[int], object]) -> None:
        self.forget = forget
        self.known: OrderedDict[str, int] = OrderedDict()
        self.count = 0

    def number(self, name: str) -> int:
        """Return the number of a program; NO_PROGRAM for an empty name."""
        if not name:
            return NO_PROGRAM
        if name in self.known:
            self.known.move_to_end(name)
        else:
            if len(self.known) >= PROGRAMS:
                self.forget(self.known.popitem(last=False)[1])
            self.known[name] = self.count
            self.count += 1
        return self.known[name]
