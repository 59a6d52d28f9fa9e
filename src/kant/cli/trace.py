"""`kant trace`: generate, describe and convert workloads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import App, Parameter

from kant.cli.inputs import (
    ClusterOption,
    Format,
    Json,
    Seed,
    Slice,
    Window,
    WorkloadFile,
    load_cluster,
    load_workload,
    whole,
    write_text,
)
from kant.cli.output import Reply
from kant.cli.show import console, print_table, show_mapping
from kant.model.errors import InputError
from kant.workload.tenants_text import text_of

if TYPE_CHECKING:
    from kant.workload.workload import Workload

trace_app = App(name="trace", help="Generate, describe and convert workloads.", help_format="plaintext")


@trace_app.command
def generate(
    row: Annotated[
        str,
        Parameter(help="philly, helios-venus, -earth, -saturn, -uranus, seren, kalos, pai, or a file of `trace fit`."),
    ],
    /,
    *,
    out: Annotated[Path, Parameter(help="The file to write: .csv, .csv.gz or .parquet.")],
    jobs: Annotated[int | None, Parameter(help="The exact number of jobs.", converter=whole)] = None,
    days: Annotated[
        float | None, Parameter(help="Span of the submissions. Default: 30, or that of the fitted trace.")
    ] = None,
    gpus: Annotated[int | None, Parameter(help="With --load: GPUs of the cluster to fill.", converter=whole)] = None,
    load: Annotated[
        float | None, Parameter(help="With --gpus: requested GPU time divided by the available GPU time.")
    ] = None,
    services: Annotated[
        float, Parameter(help="With --load: the part requested by inference services, with hourly bursts.")
    ] = 0.0,
    tenants: Annotated[
        int | None, Parameter(help="The number of queues. Default: as in the trace.", converter=whole)
    ] = None,
    seed: Seed = 0,
) -> None:
    """Draw a workload from the published statistics of a real cluster, or from a fitted trace."""
    from kant.workload.convert import write_workload
    from kant.workload.generate import generate as draw

    if row.endswith(".json"):
        from kant.workload.fitted import draw as draw_fitted
        from kant.workload.fitted import read_fit

        if gpus is not None or load is not None or services or tenants is not None:
            raise InputError("trace generate", "only --jobs, --days and --seed with a fitted trace")
        workload = draw_fitted(read_fit(Path(row)), days=days, jobs=jobs, seed=seed)
    else:
        span = 30 if days is None else days
        workload = draw(row, jobs=jobs, days=span, gpus=gpus, load=load, services=services, tenants=tenants, seed=seed)
    write_workload(workload, out)
    console.print(f"{len(workload):,} jobs written to {out}", soft_wrap=True)


@trace_app.command
def describe(
    workload: WorkloadFile,
    /,
    *,
    format: Format = None,
    slice: Slice = None,
    window: Window = None,
    json: Json = False,
) -> int:
    """Print the contents of a trace: jobs, sizes, run times, arrivals, tenants."""
    from kant.workload.describe import describe as facts

    jobs = load_workload(workload, format, slice, window)
    found = facts(jobs)
    return Reply(found, lambda: show_mapping(jobs.name, found)).print(json)


@trace_app.command
def fit(
    workload: WorkloadFile,
    /,
    *,
    out: Annotated[Path | None, Parameter(help="File for the generator, a .json without names.")] = None,
    format: Format = None,
    slice: Slice = None,
    window: Window = None,
    seed: Seed = 0,
    json: Json = False,
) -> int:
    """Fit a generator to a trace, and print how similar a drawn workload is to the trace."""
    from kant.workload.fit import fit as fit_to
    from kant.workload.fit import quality
    from kant.workload.fitted import draw, write_fit

    if out is not None and out.suffix != ".json":
        raise InputError(f"--out {out}", "a name that ends with .json")
    jobs = load_workload(workload, format, slice, window)
    fitted = fit_to(jobs)
    drawn = draw(fitted, jobs=len(jobs), seed=seed)
    rows = quality(jobs, drawn)
    if out is not None:
        write_fit(fitted, out)
    found = {"name": jobs.name, "jobs": len(jobs), "days": fitted.days, "seed": seed, "quality": rows}
    return Reply(found, lambda: show_quality(jobs.name, rows, out)).print(json)


Anonymous = Annotated[
    bool,
    Parameter("--anonymous", help="Replace names of users, queues and jobs by numbers; keep no date.", negative=""),
]


@trace_app.command
def convert(
    workload: WorkloadFile,
    target: Annotated[Path, Parameter(help="The file to write: .csv, .csv.gz or .parquet.")],
    /,
    *,
    format: Format = None,
    slice: Slice = None,
    window: Window = None,
    anonymous: Anonymous = False,
) -> None:
    """Write a trace in Kant's own format."""
    _write_read(load_workload(workload, format, slice, window), target, anonymous)


CpuJobs = Annotated[bool, Parameter(help="Keep jobs without GPUs.", negative="")]


@trace_app.command
def from_slurm(
    accounting: Annotated[Path, Parameter(help="The output of `sacct -P` (docs/workloads.md), plain or gzip.")],
    target: Annotated[Path, Parameter(help="The file to write: .csv, .csv.gz or .parquet.")],
    /,
    *,
    queue: Annotated[
        Literal["Account", "Partition", "QOS"] | None,
        Parameter(help="The column with the owner of a job. Default: the first of these that exists."),
    ] = None,
    cpu_jobs: CpuJobs = False,
    anonymous: Anonymous = False,
) -> None:
    """Write a trace of the jobs that Slurm has accounted for."""
    from kant.workload.slurm import read_sacct

    _write_read(read_sacct(accounting, queue=queue, cpu_jobs=cpu_jobs), target, anonymous)


@trace_app.command
def from_kubernetes(
    pods: Annotated[
        Path, Parameter(help="The output of `kubectl get pods -A -o json`, or an audit log; plain or gzip.")
    ],
    target: Annotated[Path, Parameter(help="The file to write: .csv, .csv.gz or .parquet.")],
    /,
    *,
    queue_label: Annotated[
        str | None, Parameter(help="The label with the owner of a job. Default: the namespace is the owner.")
    ] = None,
    cpu_jobs: CpuJobs = False,
    anonymous: Anonymous = False,
) -> None:
    """Write a trace of the pods that ran in a Kubernetes cluster."""
    from kant.workload.kubernetes_pods import read_pods

    _write_read(read_pods(pods, queue_label=queue_label, cpu_jobs=cpu_jobs), target, anonymous)


def _write_read(jobs: Workload, target: Path, nameless: bool) -> None:
    from kant.workload.anonymous import anonymous
    from kant.workload.convert import write_workload

    if target.is_dir():
        raise InputError(str(target), "a file, not a folder")
    write_workload(anonymous(jobs) if nameless else jobs, target)
    for note in jobs.notes:
        console.print(note, style="yellow")
    console.print(f"{len(jobs):,} jobs written to {target}", soft_wrap=True)


@trace_app.command
def tenants(
    workload: WorkloadFile,
    /,
    *,
    cluster: ClusterOption = None,
    out: Annotated[Path | None, Parameter(help="The file to write. Default: standard output.")] = None,
    format: Format = None,
    slice: Slice = None,
    window: Window = None,
) -> None:
    """Draft a file of queues for a trace: each gets a quota in proportion to its GPU-hours."""
    from kant.workload.tenants_draft import proportional

    jobs = load_workload(workload, format, slice, window)
    machines = load_cluster(cluster, jobs)
    drafted = proportional(jobs, machines.gpus)
    about = f"# Queues of {jobs.name} on {machines.gpus:,} GPUs: quotas in proportion to GPU-hours."
    text = f"{about} Unused quota is lent to the others.\n\n{text_of(drafted)}"
    write_text(text, out)
    if out is not None:
        made = f"{len(drafted.queues) - 1:,} queues with {machines.gpus:,} GPUs"
        console.print(f"{made} written to {out}", soft_wrap=True)


def show_quality(name: str, rows: Sequence[Mapping[str, Any]], out: Path | None) -> None:
    """Print, for each quantity, the quantiles of the trace and of the drawn workload, and their distance."""
    parts = list(rows[0]["trace"])
    lines = []
    for row in rows:
        cells = (f"{_short(row['trace'][part])} / {_short(row['generated'][part])}" for part in parts)
        lines.append((str(row["quantity"]), f"{row['distance']:.3f}", *cells))
    print_table(["quantity", "distance", *parts], lines, f"{name}: trace / generated")
    console.print("distance: the largest difference of the two distribution functions", style="dim")
    if out is not None:
        console.print(f"generator: {out} (kant trace generate {out} --seed 1 --out jobs.csv)", soft_wrap=True)


def _short(value: float) -> str:
    """Format a number with three digits, thousands as `12.3k`."""
    for size, unit in ((1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            return f"{value / (1e6 if unit == 'M' else 1e3):.3g}{unit}"
    return f"{value:.3g}" if value < 1000 else f"{value:.0f}"
