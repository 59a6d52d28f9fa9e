"""Runs several profiles in parallel, each in its own process. A run makes the same decisions as it would alone.

The processes are forks of this one, so they already have the workload. Each sends its progress over a pipe, and finally
its result; a message back, or the end of the pipe, stops a run at its next instant. Only this process handles Ctrl-C.
"""

from __future__ import annotations

import traceback
from collections import deque
from collections.abc import Collection, Sequence
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import TYPE_CHECKING, Any

from kant.experiments.pool import LOOK_S, forked

if TYPE_CHECKING:
    from kant.cli.progress import ProgressDisplay
    from kant.cli.runs import RunBatch
    from kant.metrics.result import RunResult
    from kant.scheduler.profile import Profile


def run_side_by_side(
    batch: RunBatch, runs: Sequence[tuple[str, Profile]], at_once: int, asked: list[bool], shown: ProgressDisplay
) -> list[RunResult]:
    """Run each profile, `at_once` at a time. Once `asked` is not empty (Ctrl-C), runs end early, and none begins."""
    import kant.sim.run  # noqa: F401 - once for all: the processes have what this one has loaded

    waiting = deque(runs)
    under_way: dict[Connection, tuple[str, BaseProcess]] = {}
    found: dict[str, RunResult] = {}
    announced = False
    try:
        while under_way or (waiting and not asked):
            while waiting and len(under_way) < at_once and not asked:
                label, profile = waiting.popleft()
                line, process = forked(partial(_run, batch, label, profile), under_way)
                under_way[line] = (label, process)
                shown.begin(label)
            if asked and not announced:
                announced = True
                for line in under_way:
                    with suppress(OSError):
                        line.send(None)
            for line in _with_news(under_way):
                label, process = under_way[line]
                kind, value = _receive(line)
                if kind == "progress":
                    shown.update(label, *value)
                elif kind == "error":
                    raise value
                else:
                    found[label] = value
                    shown.end(label)
                    del under_way[line]
                    line.close()
                    process.join()
            shown.tick()
    finally:
        for line, (_, process) in under_way.items():
            process.kill()
            process.join()
            line.close()
    return [found[label] for label, _ in runs if label in found]


def _with_news(lines: Collection[Connection]) -> list[Connection]:
    """Return the pipes that have a message, or whose other end is closed."""
    ready = wait(list(lines), LOOK_S)
    return [line for line in lines if line in ready]


def _receive(line: Connection) -> tuple[str, Any]:
    try:
        kind, value = line.recv()
    except EOFError:  # the process ended without a message, usually killed for lack of memory
        raise MemoryError from None
    return kind, value


def _run(batch: RunBatch, label: str, profile: Profile, line: Connection) -> None:
    """Run one profile in its own process."""
    try:
        result = batch.run(label, profile, lambda done, now: line.send(("progress", (done, now))), line.poll)
        line.send(("result", result))
    except BrokenPipeError:
        raise
    except Exception as error:
        error.add_note(traceback.format_exc())
        line.send(("error", error))
