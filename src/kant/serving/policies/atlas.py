"""Least attained service of a program's longest chain (Autellix, arXiv 2502.13965)."""

from __future__ import annotations

from dataclasses import dataclass

from kant.serving.policies.mlfq import Call
from kant.serving.policies.plas import Plas


@dataclass
class Atlas(Plas):
    """PLAS for programs that call in parallel: a program's service is that of its longest chain of calls so far."""

    def account(self, call: Call, tokens: int) -> None:
        self.service[call.program] = max(self.service[call.program], call.inherited + tokens)
        self.waits[call.program] += call.waited
        self.times[call.program] += call.served
