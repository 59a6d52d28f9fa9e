"""Strict: the blocked head blocks its queue."""

from __future__ import annotations

from typing import ClassVar

from kant.model.taxonomy import Tags, tagged
from kant.queueing.discipline import Discipline


class Strict(Discipline, frozen=True, tag="strict"):
    """No job passes another of the same queue that is ahead of it in the order."""

    source: ClassVar[str] = "StrictFIFO of Kueue; Strict FIFO of Kant, arXiv 2510.01256"
    tags: ClassVar[Tags] = tagged(Discipline.tags, objective="none", knowledge="none")
