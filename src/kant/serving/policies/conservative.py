"""Limits admissions by the worst case, as a baseline for Past-Future."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from kant.model.taxonomy import Tags, tagged
from kant.serving import columns as c
from kant.serving.engine import Engine
from kant.serving.policies.limited import Limited
from kant.serving.policy import Policy


@dataclass
class Conservative(Limited):
    """Admits requests while all would fit even if each had an output of `longest` tokens, so no request is ever
    preempted.
    """

    source: ClassVar[str] = "the rival of Past-Future, ASPLOS 2025, arXiv 2507.10150"
    tags: ClassVar[Tags] = tagged(Policy.tags, objective="utilisation", preemption="none")

    longest: int = 4096

    def admitted(self, engine: Engine, running: list[int], waiting: list[int]) -> int:
        worst = engine.requests[running, c.PROMPT].sum() + self.longest * len(running)
        need = worst + np.cumsum(engine.requests[waiting, c.PROMPT] + self.longest)
        return int(np.searchsorted(need, engine.settings.tokens, side="right"))
