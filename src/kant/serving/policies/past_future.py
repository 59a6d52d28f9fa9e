"""Limits admissions by the past (Past-Future, arXiv 2507.10150).

A new request is admitted while the KV can hold the peak of the running requests. If requests have a_i tokens now and
b_i to come, sorted by b descending, the peak is max_i (a_1 + … + a_i + i b_i): when the i-th request finishes, requests
1 to i are left, each with b_i more tokens.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from kant.model.taxonomy import Tags, tagged
from kant.serving import columns as c
from kant.serving.columns import Table, Times
from kant.serving.engine import Engine
from kant.serving.policies.limited import Limited, tokens_of
from kant.serving.policy import ENDED, Policy


def peaks(now: Table, to_come: Table) -> Table:
    """Return the most tokens that requests hold at once if each ends after its tokens to come. The result has a number
    for each row of `to_come`.
    """
    order = np.argsort(-to_come, axis=1, kind="stable")
    held = np.cumsum(np.broadcast_to(now, to_come.shape)[np.arange(len(to_come))[:, None], order], axis=1)
    at_the_end = np.take_along_axis(to_come, order, axis=1) * np.arange(1, to_come.shape[1] + 1)
    return np.asarray((held + at_the_end).max(axis=1, initial=0))


class Past:
    """The output lengths of the latest finished requests, and random draws from them.

    Initially the history is half filled with outputs of `initial` tokens, as in the artifact.
    """

    def __init__(self, window: int, initial: int, longest: int, draw: np.random.Generator) -> None:
        self.latest = deque([initial] * (window // 2), maxlen=window)
        self.longest = longest
        self.draw = draw
        self.ordered = np.array(sorted(self.latest))

    def note(self, output: int) -> None:
        """Record the number of output tokens of a finished request."""
        self.latest.append(output)
        self.ordered = np.zeros(0, dtype=np.int64)

    def _sorted(self) -> Table:
        if len(self.ordered) == 0:
            self.ordered = np.sort(np.array(self.latest))
        return self.ordered

    def new(self, count: int) -> Table:
        """Draw outputs of requests about which nothing is known."""
        ordered = self._sorted()
        return ordered[self.draw.integers(len(ordered), size=count)]

    def uniform(self, lists: int, requests: int) -> Times:
        """Return random numbers from 0 to 1 for `rests`, of shape [lists, requests]."""
        return self.draw.random((lists, requests))

    def rests(self, said: Table, lists: int) -> Table:
        """Draw the remaining tokens of requests that have produced `said` tokens. The result has `lists` rows.

        A draw is from the outputs longer than `said`, interpolated between neighbours, from `said` up to the longest
        possible output.
        """
        ordered = self._sorted()
        longer = np.searchsorted(ordered, said, side="right")
        count = len(ordered) - longer
        at = self.uniform(lists, len(said)) * (count + 1)
        k = at.astype(np.int64)
        low = np.where(k == 0, said, ordered[np.minimum(longer + k - 1, len(ordered) - 1)])
        last = np.maximum(self.longest, np.where(count > 0, ordered[-1], said))
        high = np.where(k < count, ordered[np.minimum(longer + k, len(ordered) - 1)], last)
        return np.rint(low + (high - low) * (at - k)).astype(np.int64) - said


def lists_for(running: int, most: int) -> int:
    """Return how many draws are made if this many requests run."""
    return min(most, 200 // max(running, 1) + 1)


@dataclass
class PastFuture(Limited):
    """Admits requests while the peak fits in the KV, with outputs drawn from those of the latest finished requests.

    The history of `window` outputs begins half filled with `initial`. For a request with l output tokens, outputs
    longer than l are drawn; the worst of up to `lists` draws counts. `reserve` of the KV is kept free.
    """

    source: ClassVar[str] = "Past-Future, ASPLOS 2025, arXiv 2507.10150"
    tags: ClassVar[Tags] = tagged(
        Policy.tags, objective="utilisation latency", knowledge="learned", method="learned randomised"
    )
    signals: ClassVar[tuple[str, ...]] = (ENDED,)

    window: int = 1000
    initial: int = 512
    lists: int = 5
    longest: int = 4096
    reserve: float = 0.03
    seed: int = 0
    past: Past = field(init=False)

    def __post_init__(self) -> None:
        self.past = Past(self.window, self.initial, self.longest, np.random.Generator(np.random.PCG64(self.seed)))

    def finished(self, engine: Engine, number: int) -> None:
        self.past.note(int(engine.requests[number, c.OUTPUT]))

    def admitted(self, engine: Engine, running: list[int], waiting: list[int]) -> int:
        limit = (1 - self.reserve) * engine.settings.tokens
        lists = lists_for(len(running), self.lists)
        have, more = tokens_of(engine, running), self.past.rests(engine.requests[running, c.DONE], lists)
        for k, r in enumerate(waiting):
            have = np.append(have, tokens_of(engine, [r]))
            more = np.column_stack([more, self.past.new(lists)])
            if peaks(have, more).max() >= limit:
                return k
        return len(waiting)
