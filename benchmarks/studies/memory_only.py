"""The simulator of Past-Future's artifact (arXiv 2507.10150; WuSiYu/lightllm-ae, behavior-analysis): memory, no time.

A batch decodes one token of each request a step. Every ten steps new requests are admitted, in order, up to 32,768
prompt tokens. When the memory overflows, the last admitted request is evicted, keeps its tokens and waits first. The
run ends when a request is wanted and there is none; running requests are then not counted.

The artifact's scripts draw without seeds. With their generators, equally seeded, and their order of draws
(`drawn_lazily`, `ArtifactPast`) the counts here equal theirs exactly.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from kant.serving.columns import Table, Times
from kant.serving.policies.past_future import Past, lists_for, peaks

INTERVAL = 10
PREFILL = 32768


@dataclass(frozen=True, slots=True)
class Outcome:
    """Counts of a run: steps, the mean share of memory used, finished requests, and evictions."""

    steps: int
    use: float
    finished: int
    evictions: int

    @property
    def evicted(self) -> float:
        """Evictions per finished request."""
        return self.evictions / max(self.finished, 1)


class Rule(Protocol):
    """A rule that decides whether one more request may join the batch."""

    def begin(self, batch: Table) -> None:
        """Start a round with rows of (prompt, said, output) in the batch; requests are then asked about singly."""

    def admits(self, request: Table) -> bool:
        """Whether this request may join those in the batch and those admitted since."""

    def ended(self, outputs: Table) -> None:
        """Note the outputs of finished requests."""


class Aggressive:
    """Admits by current use, with a reserve of 1 %."""

    def __init__(self, memory: int) -> None:
        self.room, self.used = 0.99 * memory, 0

    def begin(self, batch: Table) -> None:
        self.used = int(batch[:, :2].sum())

    def admits(self, request: Table) -> bool:
        fits = self.used + request[0] <= self.room
        self.used += int(request[0] + request[1])
        return bool(fits)

    def ended(self, outputs: Table) -> None:
        pass


class Conservative:
    """Admits by the worst case: every request outputs `longest` tokens."""

    def __init__(self, memory: int, longest: int = 4096) -> None:
        self.room, self.longest, self.worst = memory, longest, 0

    def begin(self, batch: Table) -> None:
        self.worst = int(batch[:, 0].sum()) + self.longest * len(batch)

    def admits(self, request: Table) -> bool:
        self.worst += int(request[0]) + self.longest
        return self.worst <= self.room

    def ended(self, outputs: Table) -> None:
        pass


class Optimum:
    """Admits by the peak of the true outputs, which are not known in practice."""

    def __init__(self, memory: int) -> None:
        self.room, self.batch = memory, np.zeros((0, 3), dtype=np.int64)

    def begin(self, batch: Table) -> None:
        self.batch = batch

    def admits(self, request: Table) -> bool:
        # A new request counts its whole output, even if it was evicted half way.
        self.batch = np.vstack([self.batch, [request[0], request[1], request[2] + request[1]]])
        return bool(
            peaks(self.batch[:, 0] + self.batch[:, 1], (self.batch[:, 2] - self.batch[:, 1])[None])[0] < self.room
        )

    def ended(self, outputs: Table) -> None:
        pass


class ArtifactPast(Past):
    """The artifact's history, which draws from Python's and NumPy's older generators, request by request."""

    def __init__(self, draw: random.Random, conditional: np.random.RandomState, longest: int = 4096) -> None:
        super().__init__(1000, 512, longest, np.random.Generator(np.random.PCG64(0)))
        self.choose, self.conditional = draw, conditional

    def new(self, count: int) -> Table:
        return np.array([self.choose.choice(self.latest) for _ in range(count)], dtype=np.int64)

    def uniform(self, lists: int, requests: int) -> Times:
        return self.conditional.random_sample((requests, lists)).T


class FromThePast:
    """Admits by the worst peak of draws from the past, with a reserve of 3 % of the memory."""

    def __init__(self, memory: int, past: Past, most: int = 5) -> None:
        self.room, self.most = 0.97 * memory, most
        self.past = past
        self.lists = 1
        self.have: Table = np.zeros(0, dtype=np.int64)
        self.more: Table = np.zeros((1, 0), dtype=np.int64)

    def begin(self, batch: Table) -> None:
        self.lists = lists_for(len(batch), self.most) if len(batch) else 1
        self.have, self.more = batch[:, 0] + batch[:, 1], self.past.rests(batch[:, 1], self.lists)

    def admits(self, request: Table) -> bool:
        self.have = np.append(self.have, request[0] + request[1])
        self.more = np.column_stack([self.more, self.past.new(self.lists)])
        return bool(peaks(self.have, self.more).max() < self.room)

    def ended(self, outputs: Table) -> None:
        for output in outputs.tolist():
            self.past.note(output)


def drawn_lazily(
    draw: random.Random, prompt: tuple[int, int], output: tuple[int, int], count: int
) -> Iterator[tuple[int, int]]:
    """Yield prompts and outputs, uniform within inclusive bounds, drawn on demand as in the artifact."""
    for _ in range(count):
        yield draw.randint(*prompt), draw.randint(*output)


def run_batch(rule: Rule, requests: Iterable[tuple[int, int]], memory: int = 120_000) -> Outcome:
    """Run all requests under a rule. Each is a prompt and an output in tokens, and is taken when it is asked about."""
    batch = np.zeros((0, 3), dtype=np.int64)
    coming = iter(requests)
    evicted: deque[Table] = deque()
    steps = finished = evictions = looks = 0
    used = 0
    while True:
        total = int(batch[:, :2].sum())
        left = int((batch[:, 2] - batch[:, 1]).min(initial=1 << 40))
        if left > INTERVAL and total + INTERVAL * len(batch) <= memory:  # nothing happens in these steps
            batch[:, 1] += INTERVAL
            used += INTERVAL * total + len(batch) * INTERVAL * (INTERVAL + 1) // 2
        else:
            for _ in range(INTERVAL):
                batch[:, 1] += 1
                over = batch[:, 1] >= batch[:, 2]
                if over.any():
                    rule.ended(batch[over, 1])
                    finished += int(over.sum())
                    batch = batch[~over]
                total = int(batch[:, :2].sum())
                used += total
                while total > memory:
                    evictions += 1
                    evicted.appendleft(batch[-1])
                    batch = batch[:-1]
                    total = int(batch[:, :2].sum())
        steps += INTERVAL
        looks += INTERVAL
        rule.begin(batch)
        prefilled = 0
        while prefilled < PREFILL:
            if not evicted:
                following = next(coming, None)
                if following is None:
                    return Outcome(steps, used / looks / memory, finished, evictions)
                evicted.append(np.array([following[0], 0, following[1]], dtype=np.int64))
            if not rule.admits(evicted[0]):
                break
            request = evicted.popleft()
            batch = np.vstack([batch, request])
            prefilled += int(request[0])
        used += int(batch[:, :2].sum())
        looks += 1
