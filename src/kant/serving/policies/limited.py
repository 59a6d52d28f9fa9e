"""The base of policies that limit admissions by the KV that the running requests have or will have."""

from __future__ import annotations

from kant.serving import columns as c
from kant.serving.columns import Table
from kant.serving.engine import Engine
from kant.serving.policy import Policy


class Limited(Policy):
    """Admits requests in order while `admitted` allows it; a request that is alone is always admitted."""

    by_step = True
    limits = True

    def before_step(self, engine: Engine) -> None:
        state = engine.state
        engine.state[c.ADMIT] = -1
        room = min(int(state[c.WAITS]), engine.settings.max_num_seqs - int(state[c.RUNS]))
        if room > 0:
            waiting = engine.queue()[:room]
            running = engine.running[: state[c.RUNS]].tolist()
            count = self.admitted(engine, running, waiting)
            engine.state[c.ADMIT] = max(count, 1) if not running else count


def tokens_of(engine: Engine, rows: list[int]) -> Table:
    """Return the number of tokens of each request so far."""
    found: Table = engine.requests[rows, c.PROMPT] + engine.requests[rows, c.DONE]
    return found
