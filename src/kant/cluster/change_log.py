"""ChangeLog: which rows of a table have changed, for those who follow it from cycle to cycle."""

from __future__ import annotations


class ChangeLog(list[int]):
    """Every change in order, as the row that changed. A follower keeps how long the log was when it last looked."""

    add = list.append
    """Note that a row has changed."""

    end = property(list.__len__)
    """The number of changes so far."""

    def since(self, mark: int) -> list[int]:
        """The rows that have changed since there were `mark` changes, each once."""
        return list(dict.fromkeys(self[mark:])) if mark < len(self) else []
