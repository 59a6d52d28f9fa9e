"""The shortest predicted remaining output first: SRPT on predictions."""

from __future__ import annotations

from typing import ClassVar

from kant.serving import columns as c
from kant.serving.engine import Engine
from kant.serving.policies.ranked import Ranked


class RemainingFirst(Ranked):
    """Before every step, the requests with the shortest predicted remaining outputs are chosen: SRPT on predictions."""

    source: ClassVar[str] = "L. Schrage, Operations Research 16, 1968, on predictions"

    preemptive = True
    by_step = True

    def after_step(self, engine: Engine, took: float) -> None:
        ran = engine.ran()
        ran = ran[engine.requests[ran, c.COMPUTED] + 1 >= engine.requests[ran, c.PROMPT]]
        engine.times[ran, c.PRIORITY] -= 1
