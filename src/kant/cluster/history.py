"""How long jobs are likely to run, learned from those that finished.

A job is of one *kind*: its queue, user, name and size class. What is known of a kind is the latest run times of the
narrowest group that has enough of them: jobs of one owner and name, of one owner, of one queue, or of any, each of
one size class.

A stated probability is kept in two steps. Of n run times the ceil(q (n + 1))-th shortest covers the next one with
probability q if these n + 1 are exchangeable (split conformal prediction: Vovk, Gammerman and Shafer, Algorithmic
Learning in a Random World, 2005; Lei et al., JASA 2018). Runs are not: in a burst the short ones finish first, and
what has finished looks shorter than what was submitted. So each promise is judged when its job finishes, and the
level at which later ones are read off moves a little up after a miss and down after a hit. That draws the share of
promises kept to q for any sequence, as far as the window holds run times long enough (Gibbs and Candès, Adaptive
Conformal Inference, NeurIPS 2021).

Times are microseconds, probabilities permille, levels millionths: no floats, so every machine learns the same.
`benchmarks/studies/run_times.py` measures the coverage on real traces; the constants below were chosen on the
first half of Philly's jobs.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort

import numpy as np

from kant.cluster.columns import Table
from kant.model.units import FOREVER, GPU

WINDOW = 128
"""Latest run times that a group remembers."""

MIN_SAMPLES = 10
"""Run times that a group must know before it speaks."""

FEW_LONGER = 3
"""Run times from which that of a job is drawn that has run for some time."""

STEP = 1
"""How fast levels move: by STEP x q millionths after a miss at q permille, by STEP x (1000 - q) after a hit."""

HIGHEST_LEVEL = 1_500_000
"""Where levels end, in millionths. Above one the longest run time is the answer, and the excess is the debt of misses
that is still to be made good by hits; without it a burst of long jobs is forgotten as soon as it is over."""

STATED = (500, 900)
"""The probabilities (permille) at which promises are judged; levels between them are interpolated."""

_ONE = 1_000_000
_JUDGED = tuple(enumerate(STATED, start=1))  # each with its place among the levels


def size_class_of(milli: int) -> int:
    """Size class of a job of `milli` thousandths of GPUs: 0 for none, 1 up to one GPU, 2 up to 2, 3 up to 4, …"""
    return (-(-milli // GPU) - 1).bit_length() + 1 if milli > 0 else 0


class Window:
    """The latest `size` numbers of one group, as they came (a ring, `at` the oldest when full) and in order."""

    __slots__ = ("at", "latest", "ordered", "size")

    def __init__(self, size: int = WINDOW) -> None:
        self.size = size
        self.latest: list[int] = []
        self.ordered: list[int] = []
        self.at = 0

    def add(self, number: int) -> None:
        if len(self.latest) < self.size:
            self.latest.append(number)
        else:
            del self.ordered[bisect_left(self.ordered, self.latest[self.at])]
            self.latest[self.at] = number
            self.at = (self.at + 1) % self.size
        insort(self.ordered, number)


class RunTimes:
    """Run times of finished jobs, and what they say about the next ones.

    A fold: the same calls of `kind` and `finished` in the same order give the same answers; asking changes nothing.
    Every size class has its own levels, never falling from one stated probability to the next.
    """

    def __init__(self) -> None:
        self._kinds: dict[tuple[int, int, str | int, int], int] = {}
        self._of: list[tuple[int, tuple[Window, ...]]] = []  # by kind: size class; windows, the narrowest first
        self._groups: dict[tuple[str | int, ...], Window] = {}
        self._levels: list[list[int]] = []  # by size class: millionths at 0, the stated probabilities and 1000

    def kind(self, queue: int, user: int, name: str | int, milli: int) -> int:
        """The number of the kind of a job that asks for `milli` thousandths of GPUs, for all calls below.

        `queue`, `user` and `name` are codes of the caller's; a negative user or name, or an empty one, is unknown
        and no group of its own. The number is given at the first call, and stays.
        """
        size = size_class_of(milli)
        key = (queue, user, name, size)
        kind = self._kinds.get(key)
        if kind is None:
            kind = self._kinds[key] = len(self._of)
            groups: list[tuple[str | int, ...]] = [("queue", queue, size), ("size", size)]
            if user >= 0:
                groups.insert(0, ("user", user, size))
            if name != "" and name != -1:
                groups.insert(0, ("name", user, name, size))
            self._of.append((size, tuple(self._groups.setdefault(group, Window()) for group in groups)))
            while len(self._levels) <= size:
                self._levels.append([1000 * at for at in (0, *STATED, 1000)])
        return kind

    def finished(self, kind: int, runtime: int, promised: tuple[int, ...] = ()) -> None:
        """A job of `kind` finished by itself after running for `runtime`.

        Jobs that were killed or cancelled, or met their limit, must not come here: how long they would have run is
        not known. `promised` is what `promises` said when the job was submitted; without it nothing is judged.
        """
        size, windows = self._of[kind]
        for window in windows:
            window.add(runtime)
        if promised:
            levels, below = self._levels[size], 0
            for at, permille in _JUDGED:
                level, promise = levels[at], promised[at - 1]
                if promise >= 0:
                    level += STEP * permille if runtime > promise else STEP * (permille - 1000)
                # a likelier promise is never read off lower
                below = levels[at] = min(max(level, below), HIGHEST_LEVEL)
            levels[-1] = max(levels[-2], _ONE)

    def promises(self, kind: int) -> tuple[int, ...]:
        """The run time (microseconds) that a new job keeps to with each of the STATED probabilities, or -1 where
        nothing is known. To be remembered with the job, and given back to `finished`."""
        return tuple(self.quantile(kind, permille) for permille in STATED)

    def quantile(self, kind: int, permille: int) -> int:
        """The run time (microseconds) that a new job of `kind` keeps to with probability `permille` (1 to 999).

        -1 where no group has enough run times for it: at least MIN_SAMPLES, and q / (1 - q) of them. A probability
        that asks for more than a narrow group has is answered by a wider one, and may so lie below a smaller one.
        """
        return self._total(kind, -1, permille)

    def remaining(self, kind: int, elapsed: int, permille: int) -> int:
        """The time (microseconds) within which a job that has run for `elapsed` ends with probability `permille`.

        The quantile among the run times longer than `elapsed`. Where they are too few the answer grows with the job:
        elapsed x q / (1 - q), so that at 500 permille it is expected to run for as long again as it has run (Gott,
        Nature 363, 1993; the residual life of a Pareto law of index 1). -1 where nothing is known and it has not run.
        """
        total = self._total(kind, elapsed, permille)
        if total >= 0:
            return total - elapsed
        return min(elapsed * permille // (1000 - permille), FOREVER) if elapsed > 0 else -1

    def drawn(self, kind: int, elapsed: int, permille: int) -> int:
        """One of the run times (microseconds) of a job of `kind` that has run for `elapsed`, by its rank among them.

        They are those longer than `elapsed` (-1: all), of the narrowest group that knows MIN_SAMPLES and has FEW_LONGER
        of these; -1 where no group has. Permille 0 to 999 go over all of them, from the shortest to the longest.
        """
        for window in self._of[kind][1]:
            ordered = window.ordered
            shorter = bisect_right(ordered, elapsed) if elapsed >= 0 else 0
            if len(ordered) >= MIN_SAMPLES and len(ordered) - shorter >= FEW_LONGER:
                return ordered[shorter + permille * (len(ordered) - shorter) // 1000]
        return -1

    def quantiles(self, kinds: Table, permille: int) -> Table:
        """`quantile` of every entry of `kinds`. Costs one look at each kind that occurs."""
        distinct, which = np.unique(kinds, return_inverse=True)
        known = [self._total(kind, -1, permille) for kind in distinct.tolist()]
        return np.array(known, dtype=np.int64)[which]

    def remainders(self, kinds: Table, elapsed: Table, permille: int) -> Table:
        """`remaining` of every entry of `kinds` and `elapsed`."""
        pairs = zip(kinds.tolist(), elapsed.tolist(), strict=True)
        return np.array([self.remaining(kind, ran, permille) for kind, ran in pairs], dtype=np.int64)

    def _total(self, kind: int, elapsed: int, permille: int) -> int:
        """Quantile of the run times longer than `elapsed` in the narrowest group that has enough, or -1."""
        size, windows = self._of[kind]
        for window in windows:
            ordered = window.ordered
            shorter = bisect_right(ordered, elapsed) if elapsed >= 0 else 0
            n = len(ordered) - shorter
            if n >= MIN_SAMPLES and permille * (n + 1) <= 1000 * n:
                rank = -(-self._level(size, permille) * (n + 1) // _ONE)
                return ordered[shorter + min(max(rank, 1), n) - 1]
        return -1

    def _level(self, size: int, permille: int) -> int:
        """The level (millionths) at which to read off what shall hold with probability `permille`."""
        levels, low = self._levels[size], 0
        for at, high in enumerate((*STATED, 1000)):
            if permille <= high:
                below, above = levels[at], levels[at + 1]
                return below + (above - below) * (permille - low) // (high - low)
            low = high
        return _ONE
