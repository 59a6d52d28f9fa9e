"""`kant sweep`: profiles x workloads x clusters x seeds, each run once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from kant import __version__
from kant.cli.inputs import AtOnce, Json, check_out
from kant.cli.output import print_json
from kant.cli.show import console, print_table
from kant.experiments.store import RunStore
from kant.model.errors import InputError

if TYPE_CHECKING:
    from kant.experiments.design import Experiment, PlannedRun
    from kant.experiments.pool import Runner
    from kant.experiments.results import Results
    from kant.experiments.store import Record

SweepFile = Annotated[Path, Parameter(help="A TOML file (docs/experiments.md).")]


def sweep(
    file: SweepFile,
    /,
    *,
    out: Annotated[
        Path | None,
        Parameter(help="Folder of the runs, the table and the page. Default: the name of the file, in this folder."),
    ] = None,
    at_once: AtOnce = None,
    ray: Annotated[
        str | None, Parameter(help="Run on the Ray cluster at this address, such as auto or HOST:6379.")
    ] = None,
    dry_run: Annotated[bool, Parameter(help="Print the planned runs, and run none.", negative="")] = False,
    json: Json = False,
) -> int:
    """Simulate profiles on workloads, clusters and seeds, each run once, and write a table and a page of all."""
    from kant.cli.sweep_file import read_sweep

    folder = out or Path(file.stem)
    check_out(folder)
    chosen = read_sweep(file)
    experiment = chosen.experiment
    store = RunStore(folder / "runs")
    if not json:
        console.print(_design(experiment, sum(store.get(key) is not None for key in _keys(experiment))))
    if dry_run:
        if json:
            print_json({"runs": len(experiment.runs), "to_do": len(_missing(experiment, store))})
        return 0
    with store.alone():
        results, interrupted = finish(experiment, store, at_once, quiet=json, ray=ray)
    failures = _failures(results, chosen.command)
    _write(folder, results, chosen.metrics, failures)
    if json:
        _print_object(results, chosen.metrics, failures, interrupted)
    else:
        _print_tables(results, chosen.metrics, failures, interrupted, folder)
    return 130 if interrupted else 1 if failures else 0


def finish(
    experiment: Experiment, store: RunStore | None, at_once: int | None, quiet: bool, ray: str | None = None
) -> tuple[Results, bool]:
    """Do the runs that are not in the store yet; return all results, and whether the user interrupted.

    The runs use the cores of this machine, or of the Ray cluster at the address `ray`. Each is stored when it ends.
    Raises InputError if a run cannot be stored; the runs stored so far remain.
    """
    from kant.cli.runs import one_interrupt
    from kant.cli.sweep_show import watched
    from kant.experiments.results import Results

    records: dict[str, Record] = {}
    if store is not None:
        records = {key: record for key in _keys(experiment) if (record := store.get(key)) is not None}
    failed: dict[str, str] = {}
    waiting = list({run.key: run for run in reversed(experiment.runs) if run.key not in records}.values())[::-1]
    with (
        _runner(ray if waiting else None) as (run, cores),
        one_interrupt() as asked,
        watched(waiting, at_once or cores, quiet) as watch,
    ):
        for ended in run(experiment, waiting, at_once, lambda: bool(asked), watch):
            key = ended.run.key
            if ended.summary is None:
                failed[key] = ended.error
                continue
            records[key] = {"key": key, "kant": __version__, "wall_s": ended.wall_s, "summary": ended.summary}
            if store is not None:
                _keep(store, key, records[key], len(records), len(_keys(experiment)))
    return Results(experiment, records, failed), bool(asked) and len(records) + len(failed) < len(_keys(experiment))


@contextmanager
def _runner(ray: str | None) -> Iterator[tuple[Runner, int]]:
    """Yield the runner, and its default parallelism: this machine, or the Ray cluster at `ray`."""
    if ray is None:
        from kant.experiments.pool import cores, run_all

        yield run_all, cores()
        return
    from kant.experiments.ray_cluster import connected, cores_of, run_on_ray

    with connected(ray) as module:
        yield partial(run_on_ray, module), cores_of(module)


def _keep(store: RunStore, key: str, record: Record, count: int, total: int) -> None:
    try:
        store.put(key, record)
    except OSError as error:
        rest = f"{count - 1} of {total} runs are kept, and the same command continues from there"
        reason = error.strerror or str(error)
        raise InputError(str(store.folder), f"room to keep a finished run ({reason}); {rest}") from None


def _keys(experiment: Experiment) -> list[str]:
    return list(dict.fromkeys(run.key for run in experiment.runs))


def _missing(experiment: Experiment, store: RunStore) -> list[str]:
    return [key for key in _keys(experiment) if store.get(key) is None]


def _design(experiment: Experiment, there: int) -> str:
    """Format an experiment's size: `24 runs: 3 profiles x 2 workloads x 1 cluster x 4 seeds; 6 are there already`."""
    parts = sum(source.parts for source in experiment.sources.values())
    counts = [
        (len(experiment.profiles), "profile"),
        (parts, "workload" if parts == len(experiment.sources) else "part"),
        (len(experiment.clusters), "cluster"),
        (len(experiment.seeds), "seed"),
    ]
    product = " x ".join(f"{count:,} {name}{'s' * (count != 1)}" for count, name in counts)
    runs = len(experiment.runs)
    rest = f"; {there:,} of them {'is' if there == 1 else 'are'} there already" if there else ""
    return f"{runs:,} run{'s' * (runs != 1)}: {product}{rest}"


def _failures(results: Results, command: Callable[[PlannedRun], str]) -> list[tuple[str, str, str]]:
    """Return each failed run's name, error, and the command that repeats it."""
    runs = results.experiment.runs
    return [(str(run), results.failed[run.key], command(run)) for run in runs if run.key in results.failed]


def _write(folder: Path, results: Results, metrics: Sequence[str], failures: list[tuple[str, str, str]]) -> None:
    from kant.experiments.page import html_page, markdown
    from kant.experiments.results import write_table
    from kant.files import write_bytes

    write_table(results, folder / "runs.parquet")
    write_bytes(folder / "sweep.md", markdown(results, metrics, failures).encode())
    write_bytes(folder / "sweep.html", html_page(results, metrics, failures).encode())


def _print_object(
    results: Results, metrics: Sequence[str], failures: list[tuple[str, str, str]], interrupted: bool
) -> None:
    from kant.experiments.results import means

    print_json(
        {
            "runs": len(results.experiment.runs),
            "finished": len(results.finished),
            "interrupted": interrupted,
            "failed": [{"run": run, "error": error, "command": command} for run, error, command in failures],
            "means": means(results, metrics),
        }
    )


def _print_tables(
    results: Results, metrics: Sequence[str], failures: list[tuple[str, str, str]], interrupted: bool, folder: Path
) -> None:
    from kant.experiments.page import notes, sheets

    fit = max((console.width - 20) // 20, 1)
    for sheet in sheets(results, metrics[:fit]):
        print_table(sheet.header, sheet.rows, sheet.title)
    console.print(" ".join(notes(results)), style="dim")
    if len(metrics) > fit:
        console.print(f"the page also has {', '.join(metrics[fit:])}", style="dim")
    for run, error, command in failures:
        console.print(f"failed: {run}: {error}\n  {command}", style="bold red", soft_wrap=True)
    finished, runs = len(results.finished), len(results.experiment.runs)
    if interrupted:
        console.print(
            f"interrupted: {finished:,} of {runs:,} runs are kept; the same command continues", style="yellow"
        )
    cpu = sum(results.summary(run)["cpu_s"] for run in {run.key: run for run in results.finished}.values())
    console.print(f"{finished:,} of {runs:,} runs, {cpu:,.1f} CPU-s")
    console.print(
        f"table: {folder / 'runs.parquet'}\npage: {folder / 'sweep.html'}, {folder / 'sweep.md'}", soft_wrap=True
    )
