"""One line: the queues stand in one line, and the first that does not fit stops all."""

from __future__ import annotations

from typing import ClassVar

from kant.model.taxonomy import Tags, tagged
from kant.queueing.discipline import Discipline


class OneLine(Discipline, frozen=True, tag="one-line"):
    """Nobody passes a job that is before it in the order, of whatever queue."""

    source: ClassVar[str] = "an example of this documentation"
    tags: ClassVar[Tags] = tagged(Discipline.tags, objective="none", knowledge="none")

    def bucket(self, queue: int, shape: int) -> tuple[int, ...]:
        return ()
