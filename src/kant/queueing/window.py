"""The window program: in how many of the next rounds each job runs, for welfare over time and an early end of all.

Rounds of a window are alike, so what counts is how often a job runs in it and not when: one integer a job, where the
published program (Shockwave, arXiv 2210.00093) has a Boolean for each job and round.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

BENDS = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
"""Where the logarithm of progress is exact; between them it is a line. At zero it is that of a millionth."""
LOGS = (math.log(1e-6), *(math.log(bend) for bend in BENDS[1:]))
LONGEST_TRIED = (0.0, 0.02, 0.05, 0.1, 0.2, 0.4, 0.7, 1.0)
"""Where between the least and the most that is possible the time that stays for the longest job is tried."""
HALVINGS = 20
HEAVIEST = 1e4
"""The most that lateness may multiply a weight by."""
ALMOST = 100.0
"""The power of lateness for jobs that need less than one more round."""

GOES_ON = 4.0
"""A job that runs goes on before those that weigh the same and have no more than so many rounds more left than it."""


def late_weight(late: float, power: float, almost: bool) -> float:
    """What the weight of a job is multiplied by that is expected to take `late` times its fair time.

    `almost`: it needs less than one more round.
    """
    if late <= 1:
        return 1.0
    return math.exp(min(math.log(HEAVIEST), (ALMOST if almost else power) * math.log(late)))


@dataclass(frozen=True, slots=True)
class Entry:
    """A job in the window: its GPUs and weight, what of its epochs is over (0 to 1), and what is left of it in rounds.

    Its progress is expected to be even.
    """

    gpus: int
    weight: float
    progress: float
    left: float

    def utility(self, rounds: int) -> float:
        """The logarithm of its progress after so many rounds, by lines between BENDS."""
        at = self.progress + (1 - self.progress) * min(1.0, rounds / self.left)
        i = min(int(at * 5), 4)
        return LOGS[i] + (at - BENDS[i]) / 0.2 * (LOGS[i + 1] - LOGS[i])

    def most(self, rounds: int) -> int:
        """The rounds after which it has ended, at most those of the window."""
        return max(1, min(rounds, math.ceil(self.left - 1e-9)))


@dataclass(frozen=True, slots=True)
class Window:
    """`rounds` rounds on `gpus` GPUs, and `price`, what a round by which the longest job is longer costs in welfare."""

    entries: tuple[Entry, ...]
    gpus: int
    rounds: int
    price: float

    def value(self, counts: Sequence[int]) -> float:
        """The objective: the mean weighted utility over jobs and rounds, less the price of the longest rest."""
        welfare = sum(entry.weight * entry.utility(count) for entry, count in zip(self.entries, counts, strict=True))
        return welfare / (len(self.entries) * self.rounds) - self.price * self.longest(counts)

    def longest(self, counts: Sequence[int]) -> float:
        """The rounds that stay for the job that has most of them left."""
        return max(max(0.0, entry.left - count) for entry, count in zip(self.entries, counts, strict=True))

    def fits(self, counts: Sequence[int]) -> bool:
        """Whether the counts are possible: GPUs over all rounds, and no job more often than it needs."""
        used = sum(entry.gpus * count for entry, count in zip(self.entries, counts, strict=True))
        within = all(0 <= count <= entry.most(self.rounds) for entry, count in zip(self.entries, counts, strict=True))
        return within and used <= self.gpus * self.rounds


def fill(window: Window) -> list[int]:
    """Counts without a solver: what the longest job needs, then again and again the round that gains most for its GPUs.

    How long the longest job may still be is tried at a few lengths; the best of the plans is taken.
    """
    low = max(max(0.0, entry.left - window.rounds) for entry in window.entries)
    high = max(entry.left for entry in window.entries)
    if _filled(window, low) is None:
        short, long = low, high
        for _ in range(HALVINGS):
            middle = (short + long) / 2
            short, long = (middle, long) if _filled(window, middle) is None else (short, middle)
        low = long
    plans = [_filled(window, low + part * (high - low)) for part in LONGEST_TRIED]
    return max((plan for plan in plans if plan is not None), key=window.value)


def _filled(window: Window, longest: float) -> list[int] | None:
    """Counts that leave no job longer than `longest`, filled up by marginal gain; None where there is no room."""
    entries = window.entries
    most = [entry.most(window.rounds) for entry in entries]
    counts = [
        min(top, max(0, math.ceil(entry.left - longest - 1e-9))) for entry, top in zip(entries, most, strict=True)
    ]
    room = window.gpus * window.rounds - sum(entry.gpus * n for entry, n in zip(entries, counts, strict=True))
    if room < 0:
        return None

    def gain(i: int) -> tuple[float, int]:
        entry, count = entries[i], counts[i]
        return -entry.weight * (entry.utility(count + 1) - entry.utility(count)) / entry.gpus, i

    heap = [gain(i) for i in range(len(entries)) if counts[i] < most[i]]
    heapq.heapify(heap)
    while heap and room > 0:
        _, i = heapq.heappop(heap)
        if entries[i].gpus > room:
            continue
        room -= entries[i].gpus
        counts[i] += 1
        if counts[i] < most[i]:
            heapq.heappush(heap, gain(i))
    return counts


def lay_out(window: Window, counts: Sequence[int], rounds: int, running: Collection[int] = ()) -> list[list[int]]:
    """Who runs in each of the first `rounds` rounds, as indices of entries.

    First come those that must run in every round that is left, the widest of them first; then the rest by weight. What
    stays idle is given to those with most left, whether they were to run or not. Those in `running` count as if they
    had GOES_ON more rounds left, since a job that is stopped has to be loaded again.
    """
    entries, owed = window.entries, list(counts)
    by_rest = sorted(range(len(entries)), key=lambda i: (-entries[i].left, i))
    laid: list[list[int]] = []
    for done in range(rounds):
        urgent = [i for i in range(len(entries)) if owed[i] and owed[i] >= window.rounds - done]
        other = [i for i in range(len(entries)) if 0 < owed[i] < window.rounds - done]
        urgent.sort(key=lambda i: (-entries[i].gpus, -entries[i].weight, -entries[i].left, i))
        other.sort(key=lambda i: (-entries[i].weight, -entries[i].left - GOES_ON * (i in running), i))
        free = window.gpus
        chosen: dict[int, None] = {}
        for i in [*urgent, *other, *by_rest]:
            if i not in chosen and entries[i].gpus <= free:
                free -= entries[i].gpus
                chosen[i] = None
                owed[i] = max(0, owed[i] - 1)
        laid.append(list(chosen))
    return laid
