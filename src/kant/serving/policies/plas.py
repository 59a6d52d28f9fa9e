"""Least attained service of a program (Autellix, arXiv 2502.13965)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from kant.model.taxonomy import Tags, tagged
from kant.serving.policies.mlfq import Call, Mlfq


@dataclass
class Plas(Mlfq):
    """Program-level attained service (PLAS): a call inherits the tokens of all finished calls of its program."""

    source: ClassVar[str] = "Autellix, Luo et al., arXiv 2502.13965"
    tags: ClassVar[Tags] = tagged(Mlfq.tags, unit="request dag")
    signals: ClassVar[tuple[str, ...]] = ("program",)

    def inherit(self, program: int) -> int:
        return self.service[program]

    def account(self, call: Call, tokens: int) -> None:
        self.service[call.program] += tokens
        self.waits[call.program] += call.waited
        self.times[call.program] += call.served
