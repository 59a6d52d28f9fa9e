"""What a policy for workflows is: it chooses the next stage and its processor, until none is left to place."""

from __future__ import annotations

from typing import Protocol

from kant.optimize.workflow.board import Board, Key


class Policy(Protocol):
    """A frozen class; `whole` says when it is asked.

    With `whole` it places all stages of a graph when that arrives, each after those that it waits for have their
    place. Otherwise a stage is placed when it is ready: all that it waits for has ended. Only such a policy can work
    where durations are not known before.
    """

    @property
    def whole(self) -> bool: ...

    def choose(self, board: Board, open: list[Key]) -> tuple[Key, int]:
        """One of the stages that may be placed now, and its processor. `open` is in the order in which they came."""
        ...
