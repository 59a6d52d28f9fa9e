"""Running simulations from the command line: the progress bar, Ctrl-C, and the folder with the results."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from kant.model.node import ClusterSpec

if TYPE_CHECKING:
    from kant.metrics.result import RunResult
    from kant.model.tenant import Tenancy
    from kant.scheduler.profile import Profile
    from kant.workload.faults_file import NodeHealth
    from kant.workload.workload import Workload

errors = Console(stderr=True)

REPORT = "report.html"
LONGEST_LABEL = 60
"""In characters: four bytes each, and a number, still make a name that a folder can have."""


@contextmanager
def one_interrupt() -> Iterator[list[bool]]:
    """Turn the first Ctrl-C into a flag, so that the run stops between two instants; the second one is final."""
    asked: list[bool] = []

    def ask(number: int, frame: FrameType | None) -> None:
        if asked:
            raise KeyboardInterrupt
        asked.append(True)

    previous = signal.signal(signal.SIGINT, ask)
    try:
        yield asked
    finally:
        signal.signal(signal.SIGINT, previous)


def run_all(
    workload: Workload,
    cluster: ClusterSpec,
    profiles: Sequence[Profile],
    seed: int,
    until: int,
    out: Path | None,
    keep: bool = False,
    tenancy: Tenancy | None = None,
    ledger: bool = False,
    faults: Sequence[NodeHealth] = (),
) -> list[RunResult]:
    """Simulate under each profile in turn; with `out`, write each journal as it happens.

    Intervals, which pictures need, are kept for `out` or where `keep` asks for them.
    """
    from kant.sim.options import read_options
    from kant.sim.run import RunHooks, simulate
    from kant.sim.warm import warm_up

    for profile in profiles:  # all of them are right, or nothing is run and nothing is written
        read_options(profile.simulation, f"profile {profile.name}")
    for profile in profiles:
        warm_up(profile)
    results: list[RunResult] = []
    with ExitStack() as stack:
        asked = stack.enter_context(one_interrupt())
        bar = stack.enter_context(progress_bar())
        for label, profile in zip(labels(profiles), profiles, strict=True):
            task = bar.add_task(label, total=len(workload))
            hooks = RunHooks(
                progress=lambda done, total, task=task: bar.update(task, completed=done, total=total),  # type: ignore[misc]
                stop=lambda: bool(asked),
                keep_intervals=keep or out is not None,
                ledger=ledger,
            )
            with ExitStack() as files:
                if out is not None:
                    folder = run_folder(out, label, len(profiles))
                    folder.mkdir(parents=True, exist_ok=True)
                    hooks.journal = files.enter_context((folder / "journal.jsonl").open("wb", buffering=1 << 20)).write
                results.append(
                    simulate(
                        workload, cluster, profile, seed=seed, until=until, hooks=hooks, tenancy=tenancy, faults=faults
                    )
                )
            if asked:
                break
    return results


def cut_short(results: Sequence[RunResult], wanted: int) -> bool:
    """Whether Ctrl-C ended the runs: in the midst of one, or before all `wanted` had their turn."""
    return len(results) < wanted or results[-1].interrupted


def progress_bar() -> Progress:
    """A bar on standard error, gone when it is done; silent where standard error is no terminal."""
    return Progress(
        TextColumn("{task.description:>20}"), BarColumn(), MofNCompleteColumn(), TextColumn("jobs"),
        TimeRemainingColumn(), console=errors, disable=not errors.is_terminal,
    )  # fmt: skip


def labels(profiles: Sequence[Profile]) -> list[str]:
    """A name for each profile that is good for a folder, numbered where two are alike."""
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
    """Where one run's own files go: the folder itself for a single run, else one folder for each."""
    return out if runs == 1 else out / label


def write_results(out: Path, results: Sequence[RunResult], names: Sequence[str], title: str) -> Path:
    """Write summary, jobs and series of each run, and one report for all; returns the report's path."""
    import polars as pl

    from kant.model.status import JobStatus
    from kant.report import write_report

    for name, result in zip(names, results, strict=False):
        folder = run_folder(out, name, len(names))
        folder.mkdir(parents=True, exist_ok=True)
        text = msgspec.json.format(msgspec.json.encode(result.summary), indent=2)
        (folder / "summary.json").write_bytes(text + b"\n")
        jobs, series = result.jobs, result.series
        pl.DataFrame(
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
        ).write_parquet(folder / "jobs.parquet")
        pl.DataFrame(
            {
                "time_us": series.time,
                "allocated_milli_gpus": series.allocated,
                "in_service_milli_gpus": series.in_service,
                "fragmented_nodes": series.fragmented,
                "nodes": series.nodes,
                "waiting_jobs": series.waiting_jobs,
                "waiting_milli_gpus": series.waiting_gpus,
            }
        ).write_parquet(folder / "series.parquet")
    report = out / REPORT
    write_report(report, results, title)
    return report
