"""Predictions of run times, learned from finished jobs.

The *kind* of a job is its queue, user, name and size class. A prediction for a kind uses the latest run times of the
narrowest group that has enough of them. The groups are jobs with the same user and name, with the same user, in the
same queue, and all jobs; all groups have one size class.

Two steps make predictions hold with a probability q. Of n run times the ceil(q (n + 1))-th shortest covers the next one
with probability q if these n + 1 are exchangeable (split conformal prediction: Vovk, Gammerman and Shafer, Algorithmic
Learning in a Random World, 2005; Lei et al., JASA 2018). Run times are not exchangeable: the short jobs of a burst
finish first, so finished jobs look shorter than submitted ones. So each prediction is judged when its job finishes: the
level (quantile) of later predictions rises a little after a miss and falls after a hit. The share of hits then tends to
q for any sequence, if the window has long enough run times (Gibbs and Candès, Adaptive Conformal Inference, 2021).

Times are microseconds, probabilities permille, levels millionths. There are no floats, so the result is the same on
every machine. `benchmarks/studies/run_times.py` measures the coverage on real traces; the constants below were chosen
on the first half of Philly's jobs.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort

from kant.model.units import FOREVER, GPU

WINDOW = 128
"""The number of latest run times that a group keeps."""

MIN_SAMPLES = 10
"""The fewest run times for which a group makes predictions."""

FEW_LONGER = 3
"""`drawn` uses a group only if at least this many of its run times are longer than the elapsed time."""

STEP = 1
"""In millionths: a run longer than predicted at q permille raises that level by STEP x q; others lower it by
STEP x (1000 - q)."""

HIGHEST_LEVEL = 1_500_000
"""The highest level, in millionths. From one million on the longest run time is predicted. Hits must first undo the
excess over one million, so that a burst of long jobs still counts for a while after it has ended."""

STATED = (500, 900)
"""The probabilities (permille) of the run times that `promises` returns; levels of others are interpolated."""

_ONE = 1_000_000
_JUDGED = tuple(enumerate(STATED, start=1))  # each with its index in a list of levels


def size_class_of(milli: int) -> int:
    """Return the size class of a job of `milli` milli-GPUs: 0 for none, 1 up to one GPU, 2 up to 2, 3 up to 4, …"""
    return (-(-milli // GPU) - 1).bit_length() + 1 if milli > 0 else 0


class Window:
    """The latest `size` numbers of one group, in order of arrival (a ring; `at` is the oldest when full) and sorted."""

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
    """Run times of finished jobs, and predictions from them.

    The same calls of `kind` and `finished` in the same order give the same results; queries change nothing. Every size
    class has its own levels, which never fall from one stated probability to the next.
    """

    def __init__(self) -> None:
        self._kinds: dict[tuple[int, int, str | int, int, int], int] = {}
        self._of: list[tuple[int, tuple[Window, ...]]] = []  # by kind: size class; windows, the narrowest first
        self._groups: dict[tuple[str | int, ...], Window] = {}
        self._levels: list[list[int]] = []  # by size class: millionths at 0, the stated probabilities and 1000

    def kind(self, queue: int, user: int, name: str | int, milli: int, part: int = 0) -> int:
        """Return the number of the kind of a job that asks for `milli` thousandths of GPUs, for all calls below.

        `queue`, `user`, `name` and `part` are codes chosen by the caller. A user or name that is negative or empty is
        unknown, and forms no group. Each `part` has separate groups. The number is assigned at the first call with
        these arguments, and does not change.
        """
        size = size_class_of(milli)
        key = (queue, user, name, size, part)
        kind = self._kinds.get(key)
        if kind is None:
            kind = self._kinds[key] = len(self._of)
            groups: list[tuple[str | int, ...]] = [("queue", queue, size, part), ("size", size, part)]
            if user >= 0:
                groups.insert(0, ("user", user, size, part))
            if name != "" and name != -1:
                groups.insert(0, ("name", user, name, size, part))
            self._of.append((size, tuple(self._groups.setdefault(group, Window()) for group in groups)))
            while len(self._levels) <= size:
                self._levels.append([1000 * at for at in (0, *STATED, 1000)])
        return kind

    def finished(self, kind: int, runtime: int, promised: tuple[int, ...] = ()) -> None:
        """Learn from a job of `kind` that finished on its own after running for `runtime`.

        Do not call it for jobs that were killed or cancelled, or reached their limit: their full run time is unknown.
        `promised` is the result of `promises` when the job was submitted; if it is empty, no level changes.
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
                # a promise of higher probability is never shorter
                below = levels[at] = min(max(level, below), HIGHEST_LEVEL)
            levels[-1] = max(levels[-2], _ONE)

    def promises(self, kind: int) -> tuple[int, ...]:
        """Return the run time (microseconds) that a new job does not exceed with each of the STATED probabilities, or
        -1 if unknown. The caller keeps it with the job, and passes it to `finished`."""
        return tuple(self.quantile(kind, permille) for permille in STATED)

    def quantile(self, kind: int, permille: int) -> int:
        """Return the run time (µs) that a new job of `kind` does not exceed with probability `permille` (1 to 999).

        -1 if no group has enough run times: at least MIN_SAMPLES and q / (1 - q), with q = permille / 1000. If a narrow
        group has too few, a wider group is used, so the result may be below that for a smaller `permille`.
        """
        return self._total(kind, -1, permille)

    def remaining(self, kind: int, elapsed: int, permille: int) -> int:
        """Return the time (µs) within which a job that has run for `elapsed` (µs) ends with probability `permille`.

        The time is a quantile of the run times longer than `elapsed`, less `elapsed`. If these are too few, it is
        elapsed x q / (1 - q): at 500 permille a job is expected to run for as long again as it has run (Gott, Nature
        363, 1993; a Pareto distribution of index 1). -1 if nothing is known and the job has not run.
        """
        total = self._total(kind, elapsed, permille)
        if total >= 0:
            return total - elapsed
        return min(elapsed * permille // (1000 - permille), FOREVER) if elapsed > 0 else -1

    def drawn(self, kind: int, elapsed: int, permille: int) -> int:
        """Return a possible run time (µs) of a job of `kind` that has run for `elapsed`; `permille` is its rank.

        The result is one of the run times longer than `elapsed` (-1: of all) in the narrowest group that has at least
        MIN_SAMPLES run times and FEW_LONGER longer ones; -1 if there is none. Rank 0 is the shortest, 999 the longest.
        """
        for window in self._of[kind][1]:
            ordered = window.ordered
            shorter = bisect_right(ordered, elapsed) if elapsed >= 0 else 0
            if len(ordered) >= MIN_SAMPLES and len(ordered) - shorter >= FEW_LONGER:
                return ordered[shorter + permille * (len(ordered) - shorter) // 1000]
        return -1

    def _total(self, kind: int, elapsed: int, permille: int) -> int:
        """Return the quantile of the run times longer than `elapsed` in the narrowest group that has enough, or -1."""
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
        """Return the quantile (millionths) of run times that a job does not exceed with the probability `permille`."""
        levels, low = self._levels[size], 0
        for at, high in enumerate((*STATED, 1000)):
            if permille <= high:
                below, above = levels[at], levels[at + 1]
                return below + (above - below) * (permille - low) // (high - low)
            low = high
        return _ONE
