"""Runs simulations from the command line: progress bar, Ctrl-C, and the folder with the results."""

from __future__ import annotations

import ctypes
import gc
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from kant import __version__
from kant.cli.inputs import (
    check_out,
    load_cluster,
    load_faults,
    load_queues,
    load_reservations,
    load_services,
    load_workload,
)  # fmt: skip
from kant.cli.progress import shown, span_of
from kant.cli.side_by_side import run_side_by_side
from kant.experiments.pool import cores
from kant.files import full_disk_named, replacing, write_bytes, write_parquet
from kant.model.node import ClusterSpec
from kant.model.status import JobStatus
from kant.sim import run

if TYPE_CHECKING:
    from kant.cli.inputs import SimulationSetting
    from kant.cli.progress import ProgressDisplay
    from kant.metrics.result import RunResult
    from kant.model.event import GpusBooked
    from kant.model.tenant import QueueConfig
    from kant.scheduler.profile import Profile
    from kant.serving.services_file import Declared
    from kant.workload.faults_file import NodeHealth
    from kant.workload.workload import Workload

errors = Console(stderr=True)

REPORT = "report.html"
M_MMAP_THRESHOLD = -3
"""In malloc.h of glibc: each block of at least this size has a memory map of its own."""
LONGEST_LABEL = 60
"""The maximum number of characters of a label: even with four bytes each, and a number, it is a valid folder name."""


def give_back_large_blocks() -> None:
    """Make glibc return freed blocks of a megabyte or more to the system at once. By default it does so only for the
    first blocks.

    Otherwise the memory of a table that was replaced by a larger one stays occupied.
    """
    try:
        ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 1 << 20)
    except (OSError, AttributeError):
        return  # a C library other than glibc


@contextmanager
def one_interrupt() -> Iterator[list[bool]]:
    """Turn the first Ctrl-C or SIGTERM into a flag that stops a run after the current instant; the second one ends it
    at once.
    """
    asked: list[bool] = []

    def ask(number: int, frame: FrameType | None) -> None:
        if asked:
            raise KeyboardInterrupt
        asked.append(True)

    usual = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    # shells ignore Ctrl-C for what they start in the background
    heard = [number for number, handler in usual.items() if handler is not signal.SIG_IGN]
    for number in heard:
        signal.signal(number, ask)
    try:
        yield asked
    finally:
        for number in heard:
            signal.signal(number, usual[number])


@dataclass(frozen=True, slots=True)
class RunBatch:
    """The common settings of the runs of one command. `runs` is their number.

    With `out`, journals are written, and the intervals needed for pictures are kept.
    """

    workload: Workload
    cluster: ClusterSpec
    seed: int
    until: int
    out: Path | None
    runs: int = 1
    queue_config: QueueConfig | None = None
    ledger: bool = False
    faults: Sequence[NodeHealth] = ()
    services: Sequence[Declared] = ()
    reservations: Sequence[GpusBooked] = ()

    def run(
        self, label: str, profile: Profile, progress: Callable[[int, int], object], stop: Callable[[], bool]
    ) -> RunResult:
        """Simulate under one profile; with `out`, write its journal as it happens."""
        hooks = run.RunHooks(
            progress=lambda done, total, now: progress(done, now),
            stop=stop,
            keep_intervals=self.out is not None,
            ledger=self.ledger,
        )
        with ExitStack() as files:
            if self.out is not None:
                folder = run_folder(self.out, label, self.runs)
                folder.mkdir(parents=True, exist_ok=True)
                files.enter_context(full_disk_named(folder))
                hooks.journal = files.enter_context((folder / "journal.jsonl").open("wb", buffering=1 << 20)).write
            return run.simulate(
                self.workload, self.cluster, profile, seed=self.seed, until=self.until, hooks=hooks,
                queue_config=self.queue_config, faults=self.faults, services=self.services,
                reservations=self.reservations,
            )  # fmt: skip


def batch_of(
    file: Path, setting: SimulationSetting, window: str | None, profiles: Sequence[Profile], seed: int, until: int,
    out: Path | None, ledger: bool, reservations: Path | None = None,
) -> RunBatch:  # fmt: skip
    """Read all files of the options, and check them against each other. Raises InputError."""
    check_out(out)
    give_back_large_blocks()
    jobs = load_workload(file, setting.format, setting.slice, window)
    cluster = load_cluster(setting.cluster, jobs)
    queue_config = load_queues(setting.queues, jobs, profiles)
    return RunBatch(
        jobs, cluster, seed, until, out, len(profiles), queue_config, ledger,
        faults=load_faults(setting.faults, cluster, profiles),
        services=load_services(setting.services, jobs, queue_config, profiles, seed),
        reservations=load_reservations(reservations, cluster),
    )  # fmt: skip


def run_all(
    batch: RunBatch, profiles: Sequence[Profile], at_once: int | None = None, quiet: bool = False
) -> list[RunResult]:
    """Simulate each profile, `at_once` at a time, by default one per core; with `out`, write the journals."""
    runs = list(zip(labels(profiles), profiles, strict=True))
    at_once = min(cores() if at_once is None else at_once, len(runs))
    gc.freeze()  # the input exists as long as the runs: garbage collection need not examine it
    with ExitStack() as stack:
        asked = stack.enter_context(one_interrupt())
        sight = stack.enter_context(shown(len(batch.workload), span_of(batch.until, batch.workload.submit), quiet))
        if at_once > 1:
            results = run_side_by_side(batch, runs, at_once, asked, sight)
        else:
            results = _run_in_turn(batch, runs, asked, sight)
    for result in results:
        result.summary["kant"] = __version__  # the result names the version that produced it
    return results


def _run_in_turn(
    batch: RunBatch, runs: Sequence[tuple[str, Profile]], asked: list[bool], sight: ProgressDisplay
) -> list[RunResult]:
    results: list[RunResult] = []
    for label, profile in runs:
        sight.begin(label)
        update = partial(sight.update, label)
        result = batch.run(label, profile, update, lambda: bool(asked))
        results.append(result if len(runs) == 1 else replace(result, jobs=result.jobs.apart()))
        sight.end(label)
        if asked:
            break
    return results


def cut_short(results: Sequence[RunResult], wanted: int) -> bool:
    """Whether Ctrl-C ended the runs, either during one or before all `wanted` ones had begun."""
    return len(results) < wanted or any(result.interrupted for result in results)


def progress_bar() -> Progress:
    """Return a progress bar on standard error, silent if standard error is no terminal."""
    return Progress(
        TextColumn("{task.description:>20}"), BarColumn(), MofNCompleteColumn(), TextColumn("jobs"),
        TimeRemainingColumn(), console=errors, disable=not errors.is_terminal,
    )  # fmt: skip


def labels(profiles: Sequence[Profile]) -> list[str]:
    """Return a valid folder name for each profile, numbered if two are equal."""
    safe = ("".join(ch if ch.isalnum() or ch in "-_." else "_" for ch in p.name[:LONGEST_LABEL]) for p in profiles)
    names = [name.strip(".") or "run" for name in safe]
    found: list[str] = []
    for i, name in enumerate(names, start=1):
        label = name if names.count(name) == 1 and name != REPORT else f"{name}-{i}"
        while label in found or (label != name and label in names):
            label += "_"
        found.append(label)
    return found


def run_folder(out: Path, label: str, runs: int) -> Path:
    """Return the folder of one run's files: `out` itself for a single run, otherwise one folder for each."""
    return out if runs == 1 else out / label


def write_results(out: Path, results: Sequence[RunResult], names: Sequence[str], title: str) -> Path:
    """Write summary, jobs and series of each run, and one report for all; return the report's path."""
    import polars as pl

    from kant.report import write_report

    for name, result in zip(names, results, strict=False):
        folder = run_folder(out, name, len(names))
        folder.mkdir(parents=True, exist_ok=True)
        text = msgspec.json.format(msgspec.json.encode(result.summary), indent=2)
        jobs, series = result.jobs, result.series
        waits = pl.DataFrame(
            {
                "id": jobs.id,
                "queue": [result.queues[code] for code in jobs.queue.tolist()],
                "gpus": jobs.gpus / 1000,
                "submit_us": jobs.submit,
                "first_start_us": jobs.first_start,
                "end_us": jobs.end,
                "wait_us": jobs.wait,
                "preemptions": jobs.preemptions,
                "status": [JobStatus(status).name.lower() for status in jobs.status.tolist()],
            }
            | {f"waited_{cause}_us".replace("-", "_"): column for cause, column in (result.wait_by_cause or {}).items()}
        )
        states = pl.DataFrame(
            {
                "time_us": series.time,
                "allocated_milli_gpus": series.allocated,
                "in_service_milli_gpus": series.in_service,
                "fragmented_nodes": series.fragmented,
                "nodes": series.nodes,
                "waiting_jobs": series.waiting_jobs,
                "waiting_milli_gpus": series.waiting_gpus,
            }
        )
        with full_disk_named(folder):
            write_bytes(folder / "summary.json", text + b"\n")
            for frame, file in ((waits, "jobs.parquet"), (states, "series.parquet")):
                with replacing(folder / file) as written:
                    write_parquet(frame, written)
    report = out / REPORT
    with full_disk_named(report):
        write_report(report, results, title)
    return report
