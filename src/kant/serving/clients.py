"""Simulated clients that give up if a response takes too long."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from kant.serving import columns as c
from kant.serving.columns import Table
from kant.serving.engine import Engine


@dataclass(frozen=True, slots=True)
class Patience:
    """When clients give up: no first token within `ttft_s`, or no next token within `gap_s` (both in seconds).

    An engine drops such requests; if `begun` is False, not those that already have a first token. `again` is called for
    each failed request, before the callback `after` of `kant.serving.fleet.simulate`. Policies are not told of dropped
    requests.
    """

    ttft_s: float
    gap_s: float
    again: Callable[[int], None]
    begun: bool = True

    def in_vain(self, engine: Engine, rows: Table) -> Table:
        """Return which of the requests `rows` have missed an objective."""
        times, now = engine.times[rows], engine.now
        first = np.where(np.isnan(times[:, c.FIRST]), now, times[:, c.FIRST])
        since = np.where(np.isnan(times[:, c.FINISH]), now - times[:, c.LAST], 0.0)
        found = (first - times[:, c.ARRIVAL] > self.ttft_s) | (np.fmax(times[:, c.GAP], since) > self.gap_s)
        return np.asarray(found)

    def let_go(self, engine: Engine) -> list[int]:
        """Return the requests that an engine drops now. None of them is in a step."""
        live = np.concatenate([engine.running[: engine.state[c.RUNS]], engine.waiting[: engine.state[c.WAITS]]])
        if not self.begun:
            live = live[np.isnan(engine.times[live, c.FIRST])]
        found: list[int] = live[self.in_vain(engine, live)].tolist()
        return found
