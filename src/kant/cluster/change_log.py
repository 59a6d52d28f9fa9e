"""ChangeLog: the changed rows of a table, in order, for readers that look up in each cycle what has changed."""

from __future__ import annotations

from array import array
from typing import Self


class ChangeLog(array):  # type: ignore[type-arg]
    """The index of the changed row for each change, in order. An index takes only four bytes, since the log grows long.

    A reader remembers the length of the log at its last read.
    """

    def __new__(cls) -> Self:
        return super().__new__(cls, "i")  # type: ignore[return-value]

    def __deepcopy__(self, memo: object) -> Self:
        """Return a ChangeLog, and not the plain array that the base class returns."""
        found = type(self)()
        found.extend(self)
        return found

    add = array.append
    """Append a changed row."""

    end = property(array.__len__)
    """The number of changes so far."""

    def since(self, mark: int) -> list[int]:
        """Return the rows that changed since the log had `mark` changes, each once."""
        return list(dict.fromkeys(self[mark:])) if mark < len(self) else []
