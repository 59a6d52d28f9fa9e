"""RowLog: which jobs have moved, for those who follow the state from cycle to cycle."""

from __future__ import annotations

SPAN = 1 << 16


class RowLog:
    """The last rows of jobs that came, started, made progress, stopped or left, in order; `end` counts them all."""

    def __init__(self) -> None:
        self.end = 0
        self._rows: list[int] = []

    def add(self, row: int) -> None:
        self._rows.append(row)
        self.end += 1
        if len(self._rows) > 2 * SPAN:
            del self._rows[:SPAN]

    def since(self, mark: int) -> list[int] | None:
        """The rows added since `end` was `mark`, each once; None where the log does not reach back that far."""
        count = self.end - mark
        if count > len(self._rows):
            return None
        return list(dict.fromkeys(self._rows[len(self._rows) - count :])) if count else []
