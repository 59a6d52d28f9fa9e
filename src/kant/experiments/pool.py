"""Runs on the cores of this machine, each in a process of its own: a failure of one does not affect the others.

The processes are forks of this one, which has already read the traces and loaded the compiled code. Each sends its
progress and finally its summary over a pipe; a message to it, or the end of the pipe, stops it between two instants.
"""

from __future__ import annotations

import gc
import os
import signal
import time
import traceback
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from kant.experiments.design import Experiment, PlannedRun
from kant.model.errors import InputError

LOOK_S = 0.2
"""Seconds between two checks for an interrupt."""

Progress = Callable[[float], object]
"""Called with the share of the jobs that are done, 0 to 1."""


@dataclass(frozen=True, slots=True)
class EndedRun:
    """A run that has ended: with its summary, or with an error sentence."""

    run: PlannedRun
    wall_s: float
    summary: dict[str, Any] | None
    error: str = ""


class RunObserver:
    """Observes runs: its methods, which do nothing, may be overridden. The process that waits for runs calls them."""

    def begins(self, run: PlannedRun) -> None:
        """A run has started."""

    def is_at(self, run: PlannedRun, part: float) -> None:
        """A run has finished this share of its jobs."""

    def ends(self, ended: EndedRun) -> None:
        """A run has ended."""

    def ticks(self) -> None:
        """Some time has passed, a second at most."""


@dataclass(slots=True)
class _UnderWay:
    run: PlannedRun
    process: BaseProcess
    began: float


def simulate(
    experiment: Experiment, run: PlannedRun, progress: Progress, stop: Callable[[], bool]
) -> dict[str, Any] | None:
    """Simulate one run in this process; return its summary, None if stopped. Raises InputError for invalid input."""
    from kant.sim.run import RunHooks
    from kant.sim.run import simulate as simulated

    hooks = RunHooks(progress=lambda done, total, now: progress(done / max(total, 1)), stop=stop)
    result = simulated(
        experiment.sources[run.workload].workload(run.part, run.seed),
        experiment.clusters[run.cluster],
        experiment.profiles[run.profile],
        seed=run.seed,
        until=experiment.until,
        hooks=hooks,
        queue_config=experiment.queue_config,
        faults=experiment.faults.get(run.cluster, ()),
    )
    return None if result.interrupted else result.summary


Runner = Callable[[Experiment, Sequence[PlannedRun], int | None, Callable[[], bool], RunObserver], Iterator[EndedRun]]
"""Performs runs and yields each as it ends: `run_all` on this machine, `ray_cluster.run_on_ray` on a cluster."""


def run_all(
    experiment: Experiment,
    runs: Sequence[PlannedRun],
    at_once: int | None,
    stop: Callable[[], bool],
    watch: RunObserver,
) -> Iterator[EndedRun]:
    """Perform `runs`, `at_once` at a time (None: one for each core), and yield each as it ends.

    After `stop` the runs in progress are abandoned.
    """
    at_once = at_once or cores()
    import kant.sim.warm  # noqa: F401 - once for all: the processes have what this one has loaded

    waiting = deque(runs)
    under_way: dict[Connection, _UnderWay] = {}
    warm: dict[str, str] = {}
    try:
        while (under_way or waiting) and not stop():
            while waiting and len(under_way) < at_once:
                run = waiting.popleft()
                if run.profile not in warm:
                    warm[run.profile] = _warmed(experiment, run.profile)
                if warm[run.profile]:
                    yield _announced(watch, EndedRun(run, 0.0, None, warm[run.profile]))
                    continue
                line, process = forked(partial(_work, experiment, run), under_way)
                under_way[line] = _UnderWay(run, process, time.monotonic())
                watch.begins(run)
            for line in [line for line in wait(list(under_way), LOOK_S) if isinstance(line, Connection)]:
                ended = _received(line, under_way[line], watch)
                if ended is not None:
                    del under_way[line]
                    yield _announced(watch, ended)
            watch.ticks()
        for line, left in list(under_way.items()):  # results already sent before the end still count
            while line in under_way and line.poll():
                ended = _received(line, left, watch)
                if ended is not None:
                    del under_way[line]
                    yield _announced(watch, ended)
    finally:
        for line, left in under_way.items():
            left.process.kill()
            left.process.join()
            line.close()


def _announced(watch: RunObserver, ended: EndedRun) -> EndedRun:
    watch.ends(ended)
    return ended


def _warmed(experiment: Experiment, profile: str) -> str:
    """Load the compiled code of a profile. Returns an error sentence; "" if there was no error."""
    from kant.sim.warm import warm_up

    try:
        warm_up(experiment.profiles[profile])
    except Exception as error:  # any exception of a third-party policy
        return sentence(error)
    return ""


def _received(line: Connection, under_way: _UnderWay, watch: RunObserver) -> EndedRun | None:
    """Read a message of a process. Returns None if it reports progress, else how its run ended."""
    try:
        kind, value = line.recv()
    except (EOFError, ConnectionResetError):
        kind, value = "gone", None
    if kind == "at":
        watch.is_at(under_way.run, value)
        return None
    under_way.process.join()
    line.close()
    wall = time.monotonic() - under_way.began
    if kind == "gone":
        return EndedRun(under_way.run, wall, None, _death(under_way.process.exitcode or 0))
    summary, error = (value, "") if kind == "summary" else (None, value)
    return EndedRun(under_way.run, wall, summary, error)


def _death(code: int) -> str:
    if code < 0:
        name = signal.Signals(-code).name
        return f"its process was stopped by {name}" + (", for example for lack of memory" if name == "SIGKILL" else "")
    return f"its process ended without a message (exit code {code})"


def forked(work: Callable[[Connection], object], others: Collection[Connection]) -> tuple[Connection, BaseProcess]:
    """Start a process that does `work` with one end of a pipe; return the other end and the process.

    The process ignores Ctrl-C and SIGTERM, which a group of processes gets together, does not hold the pipes of
    `others`, and ends when the other end of its own pipe is closed.
    """
    forks = get_context("fork")
    ours, theirs = forks.Pipe()

    def run() -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        for other in (ours, *others):
            other.close()
        gc.freeze()
        with suppress(BrokenPipeError):
            work(theirs)

    process = forks.Process(target=run, daemon=True)
    process.start()
    theirs.close()
    return ours, process


def _work(experiment: Experiment, run: PlannedRun, line: Connection) -> None:
    """Perform a run in a process of its own."""
    try:
        line.send(("summary", simulate(experiment, run, lambda part: line.send(("at", part)), line.poll)))
    except BrokenPipeError:
        raise
    except Exception as error:
        line.send(("error", sentence(error)))


def sentence(error: Exception) -> str:
    """Return an error as a sentence: the message of an invalid input, else the exception and where it was raised."""
    if isinstance(error, InputError):
        return str(error)
    if isinstance(error, MemoryError):
        return "it ran out of memory"
    where = traceback.extract_tb(error.__traceback__)[-1] if error.__traceback__ else None
    place = f" ({where.filename}, line {where.lineno})" if where else ""
    return f"{type(error).__name__}: {error}{place}"


def cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
