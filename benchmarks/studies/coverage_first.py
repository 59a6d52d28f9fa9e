"""How often expected starts hold on a first day: `python -m benchmarks.studies.coverage_first [--draws N]`.

Writes docs/studies/coverage-first.md. A node of eight GPUs is new: nothing is known but the limits that owners give.
Sixty jobs come, each with a limit of which it uses a share, and of those that have to wait one in three is asked about
as it comes. Forecasts that take a limit for the run time are asked beside, in the same runs. Takes two CPU-minutes.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.studies.sharing import STUDENT
from kant.cluster.columns import J_STARTED
from kant.insight.eta_calibrator import EtaCalibrator
from kant.insight.moment import moment_of
from kant.insight.past_jobs import PastJobs
from kant.model.units import MINUTE, SECOND
from kant.scheduler.cycle import Scheduler
from kant.scheduler.profile import builtin_profile, builtin_texts, parse_profile
from kant.sim.forecast_starts import forecast_starts
from kant.sim.run import RunHooks, simulate
from kant.workload.cluster_file import read_cluster
from kant.workload.workload import Workload, make_workload

PAGE = Path(__file__).parents[2] / "docs" / "studies" / "coverage-first.md"
JOBS, USERS, DRAWS = 60, 4, 8
PROFILES = ("kant", "easy")
EVERY = 3
LIMITS = np.array([10, 30, 60, 120, 240]) * MINUTE
SIZES = np.array([1, 1, 1, 2, 4, 8])
FEWEST = 30
"""A cell of the table has at least so many answers."""

Floats = NDArray[np.float64]
LAWS: dict[str, Callable[[np.random.Generator, Floats], Floats]] = {
    "any share": lambda draw, own: draw.random(JOBS),
    "each user their own": lambda draw, own: np.clip(own * draw.uniform(0.8, 1.2, JOBS), 0.01, 1.0),
    "nearly all of it": lambda draw, own: draw.uniform(0.9, 1.0, JOBS),
    "a tenth": lambda draw, own: 10 ** draw.uniform(-2, 0, JOBS),
}
"""What jobs use of their limits: each job any, each user about one share, all nearly all, a tenth in the median."""


class LimitsBelieved(PastJobs):
    """A past for which a limit is an estimate, and a job of which nothing is known uses all of it."""

    def _left(self, kind: int, said: int, elapsed: int, permille: int, limit: int) -> int:
        return super()._left(kind, said, elapsed, permille, -1)


class Asking:
    """Asks about one job in EVERY that has to wait as it comes, and notes when it starts."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler, self.state = scheduler, scheduler.state
        self.past, self.believed = PastJobs(), LimitsBelieved()
        self.answers = EtaCalibrator(self.state)
        self.asked: list[tuple[int, int, int, tuple[int | None, ...]]] = []  # row, when, finished by then, answers
        self._rows = 0

    def observe(self, now: int) -> None:
        for each in (self.past, self.believed):
            each.observe(self.state)
        self.answers.observe(now)
        new = [row for row in range(self._rows, len(self.state.ids)) if row in self.state.pending and row % EVERY == 0]
        self._rows = len(self.state.ids)
        for row in new:
            name = self.state.ids[row]
            raw = forecast_starts(moment_of(self.scheduler, self.past, now), bare=True)
            limits = forecast_starts(moment_of(self.scheduler, self.believed, now), only=name, bare=True)
            starts = (limits.jobs[name].start, self.answers.keep(raw).jobs[name].start)
            times = tuple(at for start in starts for at in (start.p50, start.p90))
            self.asked.append((row, now, self.past.learned, times))

    def rows(self) -> Iterator[list[int]]:
        """Yield how many jobs had finished, whether each answer held, and by how much it was off, in seconds."""
        for row, now, learned, times in self.asked:
            start = int(self.state.jobs[row, J_STARTED])
            if start < now or None in times:
                continue
            held = [start <= (at or 0) for at in times]
            yield [learned, *held, *(abs(start - (at or 0)) // SECOND for at in times)]


def workload(seed: int, law: str) -> Workload:
    """Jobs that come faster than they are served, by what they use of their limits."""
    draw = np.random.Generator(np.random.PCG64([seed, list(LAWS).index(law)]))
    users = draw.integers(0, USERS, JOBS)
    limit, gpus = draw.choice(LIMITS, JOBS), draw.choice(SIZES, JOBS)
    shares = LAWS[law](draw, draw.random(USERS)[users])
    runtime = np.maximum(limit * shares, SECOND).astype(np.int64)
    gaps = draw.exponential(float((runtime * gpus).mean()) / 8 / 1.3, JOBS)
    return make_workload(
        "first", np.cumsum(gaps).astype(np.int64), runtime, gpus.astype(np.int64), limit=limit.astype(np.int64),
        user=users, users=[f"user-{user}" for user in range(USERS)],
    )  # fmt: skip


def run(seed: int, law: str, name: str) -> list[list[int]]:
    """The answers of one run, a row each."""
    text = builtin_texts()[name] + '\n[simulation]\nestimates = "limit"\nenforce_limits = true\n'
    profile = parse_profile(text, name) if "[simulation]" not in builtin_texts()[name] else builtin_profile(name)
    asking: list[Asking] = []

    def observer(scheduler: Scheduler) -> Callable[[int], object]:
        asking.append(Asking(scheduler))
        return asking[0].observe

    simulate(workload(seed, law), read_cluster("1x8"), profile, seed=1, hooks=RunHooks(observer=observer))
    return list(asking[0].rows())


def share(runs: list[NDArray[np.int64]], column: int) -> str:
    """Percent held, and half the width of the 95 % interval of a ratio whose clusters are the draws."""
    counts = np.array([len(each) for each in runs])
    if counts.sum() < FEWEST:
        return "-"
    sums = np.array([each[:, column].sum() if len(each) else 0 for each in runs])
    mean = sums.sum() / counts.sum()
    spread = np.sqrt(len(runs) / (len(runs) - 1) * ((sums - mean * counts) ** 2).sum()) / counts.sum()
    return f"{100 * mean:.0f} ± {100 * STUDENT.get(len(runs) - 1, 2.05) * spread:.0f}"


def lines(tables: dict[str, list[NDArray[np.int64]]]) -> Iterator[str]:
    for law, runs in tables.items():
        for words, low, high in (("0 to 9", 0, 9), ("10 to 29", 10, 29), ("30 and more", 30, JOBS)):
            part = [each[(each[:, 0] >= low) & (each[:, 0] <= high)] for each in runs]
            every = np.concatenate(part)
            off = [f"{np.median(every[:, column]) / 60:.0f}" if len(every) else "-" for column in (5, 7)]
            cells = [share(part, column) for column in (1, 2, 3, 4)]
            yield f"| {law} | {words} | {len(every):,} | {' | '.join(cells)} | {' | '.join(off)} |"


ABOUT = """\
A node of eight GPUs is new: Kant knows only the limits that owners give their jobs, as with `kant submit --time`.
Sixty jobs arrive, faster than they are served, with limits of 10 minutes to 4 hours; one in three of those that have to
wait is asked about on arrival. An answer holds if the job starts no later. *limits* uses the limit as the run time
until ten jobs of a size have finished: its P50 and P90 are the latest start rather than a median. *P50* and *P90* are
what `kant eta` answers ([how](../why.md#when-will-it-start)): until then a job uses any share of its limit, and one in
five all of it. That rule is from the literature, and nothing in it was chosen on these draws.
"""


SHORT = """\
Before ten jobs of a size have finished, limits used as run times give no median: nearly all jobs start earlier. With
any share of it the P50 is one where jobs use any, and the P90 holds, but for owners whose limits are nearly exact:
there both are too early until enough of their jobs have finished, which takes ten of each size. Until then `kant eta`
says that an answer is not calibrated. That shares of jobs of any size count for those of which nothing is known was
tried: errors halve, but jobs that finish first used less, and the P90 of later ones holds for 67 to 83 %.
"""


def page(tables: dict[str, list[NDArray[np.int64]]], draws: int) -> Iterator[str]:
    yield "# Do expected starts hold on the first day?\n"
    yield f"Made by `python -m benchmarks.studies.coverage_first{f' --draws {draws}' if draws != DRAWS else ''}`.\n"
    yield ABOUT
    names = ", ".join(f"`{name}`" for name in PROFILES)
    yield f"{draws} draws under each of {names}; intervals are 95 %, with draws as clusters.\n"
    head = "jobs use of their limit | finished by then | answers | limits P50 | limits P90 | P50 | P90 | "
    yield f"| {head}error of limits' P50, min | of P50, min |"
    yield "|---|---|---|---|---|---|---|---|---|"
    yield from lines(tables)
    yield ""
    yield SHORT


def main() -> None:
    parser = argparse.ArgumentParser(description="How often expected starts hold on a first day.")
    parser.add_argument("--draws", type=int, default=DRAWS)
    draws: int = parser.parse_args().draws
    tables: dict[str, list[NDArray[np.int64]]] = {}
    for law in LAWS:
        for seed in range(draws):
            rows = [row for name in PROFILES for row in run(seed, law, name)]
            tables.setdefault(law, []).append(np.array(rows, dtype=np.int64).reshape(-1, 9))
    PAGE.write_text("\n".join(page(tables, draws)).rstrip() + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
