"""ChangeLog: which rows of a table have changed, for those who follow it from cycle to cycle."""

from __future__ import annotations

from array import array
from typing import Self


class ChangeLog(array):  # type: ignore[type-arg]
    """Every change in order, as the row that changed: four bytes each, as a scheduler that runs for months keeps all.

    A follower keeps how long the log was when it last looked.
    """

    def __new__(cls) -> Self:
        return super().__new__(cls, "i")  # type: ignore[return-value]

    add = array.append
    """Note that a row has changed."""

    end = property(array.__len__)
    """The number of changes so far."""

    def since(self, mark: int) -> list[int]:
        """The rows that have changed since there were `mark` changes, each once."""
        return list(dict.fromkeys(self[mark:])) if mark < len(self) else []
