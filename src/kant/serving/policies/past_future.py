"""How many may run at once: by what is used now, by the worst case, or by the past (Past-Future, arXiv 2507.10150).

A new request is admitted while the KV will hold the peak of those that run. The peak of requests that have a_i tokens
and b_i more to come is max_i (a_1 + … + a_i + i b_i), sorted by b descending: when the i-th last ends, the i longest
are there and all have b_i tokens more.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from kant.serving import columns as c
from kant.serving.columns import Table
from kant.serving.engine import Engine
from kant.serving.policy import Policy


def peak(now: Sequence[int] | Table, to_come: Sequence[int] | Table) -> int:
    """The most tokens that requests hold at once, if each ends after those to come."""
    order = np.argsort(-np.asarray(to_come), kind="stable")
    held = np.cumsum(np.asarray(now)[order])
    return int((held + np.asarray(to_come)[order] * np.arange(1, len(held) + 1)).max(initial=0))


class _Limited(Policy):
    """Admits in order while `fits` says so; a request that is alone is always admitted."""

    by_step = True

    def before_step(self, engine: Engine) -> None:
        state = engine.state
        engine.state[c.ADMIT] = -1
        room = min(int(state[c.WAITS]), engine.settings.max_num_seqs - int(state[c.RUNS]))
        if room > 0:
            waiting = engine.queue()[:room]
            running = engine.running[: state[c.RUNS]].tolist()
            count = self.admitted(engine, running, waiting)
            engine.state[c.ADMIT] = max(count, 1) if not running else count

    def admitted(self, engine: Engine, running: list[int], waiting: list[int]) -> int:
        """How many of those that wait may run with those that do."""
        raise NotImplementedError


def tokens_of(engine: Engine, rows: list[int]) -> Table:
    """Tokens of each request so far."""
    found: Table = engine.requests[rows, c.PROMPT] + engine.requests[rows, c.DONE]
    return found


@dataclass
class Aggressive(_Limited):
    """Admits while the prompts fit in what is free now, but for `reserve` of the KV."""

    reserve: float = 0.01

    def admitted(self, engine: Engine, running: list[int], waiting: list[int]) -> int:
        room = (1 - self.reserve) * engine.settings.tokens - tokens_of(engine, running).sum()
        return int(np.searchsorted(np.cumsum(tokens_of(engine, waiting)), room, side="left"))


@dataclass
class Conservative(_Limited):
    """Admits while all would fit even if each said `longest` tokens: nobody is ever preempted."""

    longest: int = 4096

    def admitted(self, engine: Engine, running: list[int], waiting: list[int]) -> int:
        worst = engine.requests[running, c.PROMPT].sum() + self.longest * len(running)
        need = worst + np.cumsum(engine.requests[waiting, c.PROMPT] + self.longest)
        return int(np.searchsorted(need, engine.settings.tokens, side="right"))


@dataclass
class PastFuture(_Limited):
    """Admits while the peak fits, with outputs drawn from those of the latest finished requests.

    The history of `window` outputs begins half filled with `initial`. A request that has said l tokens draws from the
    outputs longer than l; the worst of up to `lists` draws counts. `reserve` of the KV is kept free.
    """

    window: int = 1000
    initial: int = 512
    lists: int = 5
    longest: int = 4096
    reserve: float = 0.03
    seed: int = 0
    history: deque[int] = field(init=False)

    def __post_init__(self) -> None:
        self.history = deque([self.initial] * (self.window // 2), maxlen=self.window)
        self.ordered = sorted(self.history)
        self.draw = np.random.Generator(np.random.PCG64(self.seed))

    def finished(self, engine: Engine, number: int) -> None:
        self.history.append(int(engine.requests[number, c.OUTPUT]))
        self.ordered = []

    def rest(self, said: int) -> int:
        """Tokens still to come of a request that has said so many: a draw from the longer ones, interpolated."""
        longer = bisect_right(self.ordered, said)
        count = len(self.ordered) - longer
        at = self.draw.random() * (count + 1)
        k = int(at)
        low = said if k == 0 else self.ordered[longer + k - 1]
        high = self.ordered[longer + k] if k < count else max(self.longest, low)
        return max(round(low + (high - low) * (at - k)) - said, 0)

    def admitted(self, engine: Engine, running: list[int], waiting: list[int]) -> int:
        self.ordered = self.ordered or sorted(self.history)
        limit = (1 - self.reserve) * engine.settings.tokens
        count = len(waiting)
        for _ in range(min(self.lists, 200 // max(len(running), 1) + 1)):
            have = tokens_of(engine, running).tolist()
            more = [self.rest(int(said)) for said in engine.requests[running, c.DONE]]
            for k, r in enumerate(waiting[:count]):
                have.append(int(tokens_of(engine, [r])[0]))
                more.append(self.ordered[int(self.draw.integers(len(self.ordered)))])
                if peak(have, more) >= limit:
                    count = k
                    break
        return count
