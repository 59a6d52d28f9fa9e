"""Limits admissions by what the KV holds now, as a baseline for Past-Future."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from kant.model.taxonomy import Tags, tagged
from kant.serving.engine import Engine
from kant.serving.policies.limited import Limited, tokens_of
from kant.serving.policy import Policy


@dataclass
class Aggressive(Limited):
    """Admits requests while their prompts fit into the free KV and the share `reserve` of all KV stays free."""

    source: ClassVar[str] = "the rival of Past-Future, ASPLOS 2025, arXiv 2507.10150"
    tags: ClassVar[Tags] = tagged(Policy.tags, objective="utilisation")

    reserve: float = 0.01

    def admitted(self, engine: Engine, running: list[int], waiting: list[int]) -> int:
        room = (1 - self.reserve) * engine.settings.tokens - tokens_of(engine, running).sum()
        return int(np.searchsorted(np.cumsum(tokens_of(engine, waiting)), room, side="left"))
