"""Inputs shared by several verbs: a workload, a cluster, a profile, a time range."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter, Token

from kant.files import write_bytes
from kant.model.errors import InputError
from kant.model.node import ClusterSpec
from kant.model.units import FOREVER, SECOND, parse_duration, parse_window

if TYPE_CHECKING:
    from kant.model.event import GpusBooked
    from kant.model.tenant import QueueConfig
    from kant.scheduler.profile import Profile
    from kant.serving.services_file import Declared
    from kant.workload.faults_file import NodeHealth
    from kant.workload.workload import Workload

WorkloadFile = Annotated[Path, Parameter(help="A trace: plain or gzip.")]
Format = Annotated[str | None, Parameter(help="A format of docs/workloads.md, such as philly. Default: detected.")]
Slice = Annotated[str | None, Parameter(help="One trace, virtual cluster or workload of a file that holds several.")]
Window = Annotated[str | None, Parameter(help="Keep jobs submitted in the span A:B, such as 27d:88d.")]
ClusterOption = Annotated[
    str | None, Parameter(help="A cluster file, or NxG: N nodes of G GPUs. Default: sized to the workload.")
]

Queues = Annotated[
    Path | None,
    Parameter(help="A TOML file of queues and their quotas (see `kant trace tenants`). Default: no quotas."),
]

FaultsFile = Annotated[
    Path | None,
    Parameter(help="A CSV file of nodes that fail, are drained, lose GPUs and come back (docs/faults.md)."),
]

Services = Annotated[
    Path | None,
    Parameter(help="A TOML file of services with objectives; their replicas follow a forecast (docs/serving.md)."),
]

Reservations = Annotated[
    Path | None,
    Parameter(help="A CSV file of bookings, whose GPUs no other job may use meanwhile (docs/reservations.md)."),
]


@Parameter(name="*")
@dataclass(frozen=True, slots=True)
class SimulationSetting:
    """The options by which `kant simulate` and `kant compare` simulate a workload."""

    format: Format = None
    slice: Slice = None
    cluster: ClusterOption = None
    queues: Queues = None
    faults: FaultsFile = None
    services: Services = None


SETTING = SimulationSetting()

LedgerFlag = Annotated[bool, Parameter(help="Split every wait by its causes (docs/why.md).", negative="")]


def whole(kind: type, tokens: Sequence[Token]) -> int:
    """Parse a whole number; nothing is rounded."""
    token = tokens[0]
    if not re.fullmatch("-?[0-9]{1,100}", token.value):
        raise InputError(token.keyword or "number", "a whole number", token.value)
    return int(token.value)


def numbers(text: str, option: str, example: str) -> list[int]:
    """Parse whole numbers separated by commas."""
    if not re.fullmatch("[0-9]{1,6}(,[0-9]{1,6})*", text):
        raise InputError(option, f"numbers separated by commas, such as {example}", text)
    return [int(word) for word in text.split(",")]


def check_seed(kind: type, seed: int | None) -> None:
    if seed is not None and not 0 <= seed < 1 << 63:
        raise InputError("--seed", "a whole number from 0 to 2^63 - 1", seed)


Seed = Annotated[int, Parameter(help="The seed of all random choices.", converter=whole, validator=check_seed)]


def effort(limit: str) -> float:
    """Parse `--limit` into seconds of search, counted in solver steps; raises InputError if it is not above 0."""
    seconds = parse_duration(limit, "--limit") / SECOND
    if seconds <= 0:
        raise InputError("--limit", "a time to search, such as 10s", limit)
    return seconds


def _check_jobs(kind: type, jobs: int | None) -> None:
    if jobs is not None and jobs < 1:
        raise InputError("--jobs", "at least one run", jobs)


AtOnce = Annotated[
    int | None,
    Parameter("--jobs", help="Runs in parallel. Default: one for each core.", converter=whole, validator=_check_jobs),
]
Until = Annotated[str | None, Parameter(help="Stop at this time, such as 30d; jobs that still run then are censored.")]
Out = Annotated[
    Path | None, Parameter(help="Folder for the summary, the jobs, the series, the journal and the report.")
]
Json = Annotated[bool, Parameter(help="Print one JSON object instead of tables.", negative="")]

Home = Annotated[
    Path | None,
    Parameter(help="The folder with all data of Kant. Default: KANT_HOME, else ~/.local/share/kant."),
]
JournalFile = Annotated[Path, Parameter(help="A journal.jsonl of a run.")]
At = Annotated[str | None, Parameter(help="A time of the run, such as 2h or 1d3h. Default: the end of the journal.")]

Limit = Annotated[
    str,
    Parameter(
        help="Deterministic seconds of search, about a second of a core each: counted in steps and not by the clock, "
        "so a busy machine answers the same."
    ),
]

Learn = Annotated[
    bool, Parameter(help="Use how well earlier expected starts of the journal came true (takes some seconds).")
]

DEFAULT_LOAD = 0.85
DEFAULT_NODE = 8


def load_workload(path: Path, format: str | None, slice: str | None, window: str | None) -> Workload:
    """Read the trace. Raises InputError."""
    from kant.workload.read import read_workload

    span = parse_window(window, "--window") if window is not None else None
    return read_workload(path, format=format, slice=slice, window=span)


def load_cluster(spec: str | None, workload: Workload) -> ClusterSpec:
    """Return the named cluster; without a name, as many 8-GPU nodes as the workload loads to about 85 %."""
    from kant.workload.cluster_file import read_cluster

    if spec is not None:
        return read_cluster(spec)
    span = max(int(workload.submit.max() - workload.submit.min()), 1)
    work = float((workload.total_gpus.astype(float) * workload.runtime * (workload.milli / 1000)).sum())
    gpus = max(work / span / DEFAULT_LOAD, float(workload.total_gpus.max()), 1.0)
    return read_cluster(f"{min(-(-int(gpus) // DEFAULT_NODE), 100_000)}x{DEFAULT_NODE}")


def load_queues(path: Path | None, workload: Workload, profiles: Sequence[Profile]) -> QueueConfig | None:
    """Read the queues of the file, if one is given, and check workload and profiles against them."""
    from kant.sim.checks import check_profile, check_queues
    from kant.workload.tenants_file import read_tenants

    queue_config = read_tenants(path) if path is not None else None
    if queue_config is not None and queue_config.queues:
        check_queues(workload, queue_config, str(path))
    for profile in profiles:
        check_profile(profile, queue_config, burst_replicas=bool((workload.base_job >= 0).any()))
    return queue_config


def load_faults(path: Path | None, cluster: ClusterSpec, profiles: Sequence[Profile]) -> tuple[NodeHealth, ...]:
    """Read the faults of the cluster's nodes, and check the profiles against them."""
    from kant.sim.checks import check_faults
    from kant.sim.options import read_options
    from kant.workload.faults_file import read_faults

    for profile in profiles:
        check_faults(profile, read_options(profile.simulation, f"profile {profile.name}"), path is not None)
    return read_faults(path, cluster) if path is not None else ()


def load_reservations(path: Path | None, cluster: ClusterSpec) -> list[GpusBooked]:
    """Read the bookings of a calendar, and assign each to GPUs. Raises InputError if a booking does not fit."""
    if path is None:
        return []
    from kant.optimize.calendar.file import read_calendar
    from kant.optimize.calendar.week import book

    found = read_calendar(path)
    if not found.timed:
        raise InputError(str(path), "the columns id, start, end and gpus, with times such as 1d8h")
    return book(found.bookings, cluster, str(path))


def load_services(
    path: Path | None, workload: Workload, queue_config: QueueConfig | None, profiles: Sequence[Profile], seed: int
) -> tuple[Declared, ...]:
    """Read the services of the file, if one is given, and check jobs, queues and profiles against them."""
    if path is None:
        return ()
    from kant.serving.services_file import read_services
    from kant.sim.checks import check_profile
    from kant.sim.options import read_options
    from kant.sim.services import check_services

    found = read_services(path, seed)
    for profile in profiles:
        check_profile(profile, queue_config, burst_replicas=True)
        options = read_options(profile.simulation, f"profile {profile.name}")
        check_services(found, workload, profile, options, queue_config)
    return found


def load_profile(name: str) -> Profile:
    """Return a built-in profile by name, or one from a TOML file, whose table `[simulation]` is checked too."""
    from kant.live.profile_file import read_profile
    from kant.sim.options import read_options

    profile = read_profile(name, "--profile")
    read_options(profile.simulation, name)
    return profile


def parse_until(text: str | None) -> int:
    """Parse the end of the run into microseconds; FOREVER for None."""
    return FOREVER if text is None else parse_duration(text, "--until")


def check_out(out: Path | None) -> None:
    """Raise InputError if the folder `out` cannot be written; called before anything is computed."""
    if out is None:
        return
    if out.exists() and not out.is_dir():
        raise InputError(f"--out {out}", "a folder, not a file")
    parent = next(folder for folder in (out, *out.absolute().parents) if folder.exists())
    if not parent.is_dir():
        raise InputError(f"--out {out}", "a folder that can be created")
    if not os.access(parent, os.W_OK | os.X_OK):
        raise InputError(f"--out {out}", "a folder that can be written")


def write_text(text: str, out: Path | None) -> None:
    """Write to the file of `--out`, without one to standard output. Raises InputError if the file cannot be written."""
    if out is None:
        sys.stdout.write(text)
        return
    try:
        write_bytes(out, text.encode())
    except OSError as error:
        raise InputError(f"--out {out}", "a file that can be written", error.strerror) from None


def parse_at(text: str | None) -> int | None:
    """Parse a time of the run into microseconds; None, for the end of the journal, stays None."""
    return None if text is None else parse_duration(text, "--at")
