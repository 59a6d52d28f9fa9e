"""The window program: in how many of the next rounds each job runs, for welfare over time and a short makespan.

The rounds of a window are alike, so a plan has only one number for each job: in how many rounds the job runs. The
published program (Shockwave, arXiv 2210.00093) has a Boolean for each job and round.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

BENDS = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
"""Progress at which the utility is the exact logarithm; it is linear in between. At 0 it is that of one millionth."""
LOGS = (math.log(1e-6), *(math.log(bend) for bend in BENDS[1:]))
LONGEST_TRIED = (0.0, 0.02, 0.05, 0.1, 0.2, 0.4, 0.7, 1.0)
"""The bounds to try on the remaining time of the longest job, as fractions between the least and the most possible."""
HALVINGS = 20
HEAVIEST = 1e4
"""The largest factor by which lateness may multiply a weight."""
ALMOST = 100.0
"""The exponent of lateness for jobs that need less than one more round."""

GOES_ON = 4.0
"""A running job is preferred to jobs of the same weight with at most this many more rounds left."""


def late_weight(late: float, power: float, almost: bool) -> float:
    """Return the factor of the weight of a job that is expected to take `late` times its fair time.

    `almost`: the job needs less than one more round.
    """
    if late <= 1:
        return 1.0
    return math.exp(min(math.log(HEAVIEST), (ALMOST if almost else power) * math.log(late)))


@dataclass(frozen=True, slots=True)
class WindowJob:
    """A job in the window: its GPUs, its weight, its progress (0 to 1), and the rounds that it has left.

    The job is expected to progress evenly.
    """

    gpus: int
    weight: float
    progress: float
    left: float

    def utility(self, rounds: int) -> float:
        """Return the logarithm of the job's progress after this many rounds, linear between BENDS."""
        at = self.progress + (1 - self.progress) * min(1.0, rounds / self.left)
        i = min(int(at * 5), 4)
        return LOGS[i] + (at - BENDS[i]) / 0.2 * (LOGS[i + 1] - LOGS[i])

    def most(self, rounds: int) -> int:
        """Return the number of rounds until the job has ended, at most `rounds`."""
        return max(1, min(rounds, math.ceil(self.left - 1e-9)))


@dataclass(frozen=True, slots=True)
class Window:
    """`rounds` rounds on `gpus` GPUs. `price` is the welfare that one more remaining round of the longest job costs."""

    entries: tuple[WindowJob, ...]
    gpus: int
    rounds: int
    price: float

    def value(self, counts: Sequence[int]) -> float:
        """Return the objective: mean weighted utility over jobs and rounds, less the price of the longest remainder."""
        welfare = sum(entry.weight * entry.utility(count) for entry, count in zip(self.entries, counts, strict=True))
        return welfare / (len(self.entries) * self.rounds) - self.price * self.longest(counts)

    def longest(self, counts: Sequence[int]) -> float:
        """Return the rounds left after the window for the job that has most of them left."""
        return max(max(0.0, entry.left - count) for entry, count in zip(self.entries, counts, strict=True))

    def fits(self, counts: Sequence[int]) -> bool:
        """Return whether the counts are feasible: the GPUs suffice, and no job has more rounds than it needs."""
        used = sum(entry.gpus * count for entry, count in zip(self.entries, counts, strict=True))
        within = all(0 <= count <= entry.most(self.rounds) for entry, count in zip(self.entries, counts, strict=True))
        return within and used <= self.gpus * self.rounds


def fill(window: Window) -> list[int]:
    """Compute the counts greedily: what the longest job needs, then repeatedly the round with the best gain per GPU.

    A few bounds on the remaining time of the longest job are tried; the best plan is taken.
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
    """Return counts that leave no job more than `longest` rounds, filled up by marginal gain; None if infeasible."""
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
    """Return the jobs that run in each of the first `rounds` rounds, as indices of entries.

    Jobs that must run in every remaining round come first, the widest of them first; then the others by weight. Idle
    GPUs go to the jobs with most rounds left, whatever their counts. Jobs in `running` count as if they had GOES_ON
    more rounds left, since a stopped job must be loaded again.
    """
    entries, planned = window.entries, list(counts)
    by_rest = sorted(range(len(entries)), key=lambda i: (-entries[i].left, i))
    laid: list[list[int]] = []
    for done in range(rounds):
        urgent = [i for i in range(len(entries)) if planned[i] and planned[i] >= window.rounds - done]
        other = [i for i in range(len(entries)) if 0 < planned[i] < window.rounds - done]
        urgent.sort(key=lambda i: (-entries[i].gpus, -entries[i].weight, -entries[i].left, i))
        other.sort(key=lambda i: (-entries[i].weight, -entries[i].left - GOES_ON * (i in running), i))
        free = window.gpus
        chosen: dict[int, None] = {}
        for i in [*urgent, *other, *by_rest]:
            if i not in chosen and entries[i].gpus <= free:
                free -= entries[i].gpus
                chosen[i] = None
                planned[i] = max(0, planned[i] - 1)
        laid.append(list(chosen))
    return laid
