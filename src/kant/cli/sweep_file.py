"""The file of a sweep: TOML that names profiles, workloads, clusters and seeds (docs/experiments.md)."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from msgspec import Struct

from kant.cli.inputs import load_faults, load_profile
from kant.experiments.design import Drawn, DrawnAfter, Experiment, GivenJobs, JobSource, PlannedRun
from kant.experiments.figures import SHOWN, check_figure
from kant.model.errors import InputError, SentenceError
from kant.model.tenant import QueueConfig
from kant.model.units import FOREVER, parse_duration, parse_window
from kant.scheduler.profile import Profile
from kant.sim.checks import check_profile, check_queues
from kant.toml_file import read_toml
from kant.workload.cluster_file import read_cluster
from kant.workload.faults_file import NodeHealth
from kant.workload.fitted import read_fit
from kant.workload.read import read_parts
from kant.workload.tenants_file import read_tenants

MOST_SEEDS = 100_000
MOST_RUNS = 1_000_000


class WorkloadTable(Struct, frozen=True, forbid_unknown_fields=True):
    """A `[[workloads]]` table: a `trace`, or the settings to `generate` one with the seed of each run."""

    name: str = ""
    trace: str = ""
    format: str | None = None
    slice: str | None = None
    window: str | None = None
    parts: int = 1
    generate: str = ""
    jobs: int | None = None
    days: float | None = None
    gpus: int | None = None
    load: float | None = None
    services: float | None = None
    tenants: int | None = None


class SweepTable(Struct, frozen=True, forbid_unknown_fields=True):
    """The whole file."""

    profiles: list[str]
    workloads: list[WorkloadTable]
    clusters: list[str]
    seeds: int | list[int] = 1
    name: str = ""
    until: str | None = None
    queues: str | None = None
    faults: str | None = None
    metrics: tuple[str, ...] = SHOWN


OF_A_TRACE = ("format", "slice", "window")
OF_A_FIT = ("jobs", "days")
DRAWN_WITH = ("jobs", "days", "gpus", "load", "services", "tenants")


@dataclass(frozen=True, slots=True)
class Sweep:
    """A sweep as read from its file: the experiment, the figures to show, and the pieces of the command of each run."""

    experiment: Experiment
    metrics: tuple[str, ...]
    profiles: dict[str, str]
    clusters: dict[str, str]
    jobs: dict[tuple[str, int], tuple[str, ...]]
    """By workload and part: the arguments that give the trace to `kant simulate`, or that generate it."""
    options: tuple[str, ...]

    def command(self, run: PlannedRun) -> str:
        """Return the command that repeats a run; add `--out` to look at the run."""
        words = self.jobs[run.workload, run.part]
        first = ""
        if words[0] == "generate":
            file = f"{_safe(run.workload)}-{run.seed}.csv"
            first = shlex.join(["kant", "trace", *words, "--seed", str(run.seed), "--out", file]) + " && "
            words = (file,)
        rest = ["--profile", self.profiles[run.profile], "--cluster", self.clusters[run.cluster]]
        return first + shlex.join(["kant", "simulate", *words, *rest, "--seed", str(run.seed), *self.options])


def read_sweep(path: Path) -> Sweep:
    """Read the sweep in a TOML file; its paths are relative to its folder. Raises InputError if it is invalid."""
    table, here = read_toml(path, SweepTable), path.parent
    where = str(path)
    for name in ("profiles", "workloads", "clusters"):
        if not getattr(table, name):
            raise InputError(f"{where}: {name}", "at least one")
    metrics = tuple(check_figure(name, f"{where}: metrics") for name in table.metrics)
    paths = {text: _found(here, text) for text in (*table.profiles, *table.clusters)}
    with _named(f"{where}: profiles"):
        chosen = {text: load_profile(paths[text]) for text in _once(table.profiles, f"{where}: profiles")}
    profiles = dict(zip(_labels([p.name for p in chosen.values()]), chosen.items(), strict=True))
    with _named(f"{where}: clusters"):
        clusters = {text: read_cluster(paths[text]) for text in _once(table.clusters, f"{where}: clusters")}
    queues = _beside(here, table.queues)
    queue_config = read_tenants(Path(queues)) if queues is not None else None
    faults = _beside(here, table.faults)
    all_profiles = [profile for _, profile in profiles.values()]
    sources, words = _sources(table, where, here, queue_config, all_profiles)
    until = FOREVER if table.until is None else parse_duration(table.until, f"{where}: until")
    experiment = Experiment(
        name=table.name or path.stem,
        profiles={label: profile for label, (_, profile) in profiles.items()},
        clusters=dict(zip(_labels([spec.name for spec in clusters.values()]), clusters.values(), strict=True)),
        sources=sources,
        seeds=_seeds(table.seeds, f"{where}: seeds"),
        until=until,
        queue_config=queue_config,
    )
    if faults is not None:
        listed: dict[str, Sequence[NodeHealth]] = {
            name: load_faults(Path(faults), spec, all_profiles) for name, spec in experiment.clusters.items()
        }
        experiment = replace(experiment, faults=listed)
    options = [
        word
        for option, value in (("--until", table.until), ("--queues", queues), ("--faults", faults))
        if value is not None
        for word in (option, value)
    ]
    samples = sum(source.parts for source in sources.values()) * len(experiment.seeds)
    if samples * len(profiles) * len(clusters) > MOST_RUNS:
        raise InputError(where, f"at most {MOST_RUNS:,} runs")
    return Sweep(
        experiment,
        metrics,
        {label: paths[text] for label, (text, _) in profiles.items()},
        {label: paths[text] for label, text in zip(experiment.clusters, clusters, strict=True)},
        words,
        tuple(options),
    )


def _sources(
    table: SweepTable, where: str, here: Path, queue_config: QueueConfig | None, profiles: Sequence[Profile]
) -> tuple[dict[str, JobSource], dict[tuple[str, int], tuple[str, ...]]]:
    """Return the workloads by name, with the words for their commands, each read or drawn once."""
    sources: dict[str, JobSource] = {}
    words: dict[tuple[str, int], tuple[str, ...]] = {}
    names = _labels([entry.name or Path(entry.trace).name or entry.generate for entry in table.workloads])
    for number, (name, entry) in enumerate(zip(names, table.workloads, strict=True), start=1):
        own = f"{where}: workloads, table {number}"
        if bool(entry.trace) == bool(entry.generate):
            raise InputError(own, "either `trace` or `generate`")
        strange = DRAWN_WITH if entry.trace else OF_A_TRACE
        wrong = [field for field in strange if getattr(entry, field) is not None]
        wrong += ["parts"] if entry.generate and entry.parts != 1 else []
        if wrong:
            raise InputError(f"{own}: {wrong[0]}", f"only fields for {'a trace' if entry.trace else 'generate'}")
        if entry.trace:
            sources[name] = read_trace(name, entry, here, own, words)
        else:
            options = {field: getattr(entry, field) for field in DRAWN_WITH if getattr(entry, field) is not None}
            fitted = entry.generate.endswith(".json")
            if fitted and (other := [field for field in options if field not in OF_A_FIT]):
                raise InputError(f"{own}: {other[0]}", f"only those of {' and '.join(OF_A_FIT)} for a fitted trace")
            file = _found(here, entry.generate)
            sources[name] = (
                DrawnAfter(name, read_fit(Path(file)), options) if fitted else Drawn(name, entry.generate, options)
            )
            given = [word for field, value in options.items() for word in (f"--{field}", f"{value}")]
            words[name, 0] = ("generate", file if fitted else entry.generate, *given)
        for part in range(sources[name].parts):
            with _named(own):
                jobs = sources[name].workload(part, 0)
            if queue_config is not None and queue_config.queues:
                check_queues(jobs, queue_config, own)
            for profile in profiles:
                check_profile(profile, queue_config, burst_replicas=bool((jobs.base_job >= 0).any()))
    return sources, words


def read_trace(
    name: str, entry: WorkloadTable, here: Path, where: str, words: dict[tuple[str, int], tuple[str, ...]]
) -> GivenJobs:
    """Read a trace in its parts; the words that give each part to `kant simulate` are added to `words`."""
    if not 1 <= entry.parts <= 10_000:
        raise InputError(f"{where}: parts", "a number from 1 to 10000", entry.parts)
    window = parse_window(entry.window, f"{where}: window") if entry.window is not None else None
    path = here / entry.trace
    if entry.parts == 1:
        from kant.workload.read import read_workload

        read = [(read_workload(path, format=entry.format, slice=entry.slice, window=window), window)]
    else:
        read = [*read_parts(path, parts=entry.parts, format=entry.format, slice=entry.slice, window=window)]
    given = [
        word
        for option, value in (("--format", entry.format), ("--slice", entry.slice))
        if value is not None
        for word in (option, value)
    ]
    for part, (_, span) in enumerate(read):
        text = entry.window if entry.parts == 1 else f"{span[0]}us:{span[1]}us" if span else None
        words[name, part] = (str(path), *given, *(("--window", text) if text is not None else ()))
    return GivenJobs.of(name, [jobs for jobs, _ in read])


@contextmanager
def _named(where: str) -> Iterator[None]:
    """Add the sweep's file and the position in it (`where`) to errors about what the file refers to."""
    try:
        yield
    except InputError as error:
        if str(error).startswith(where):
            raise
        raise SentenceError(f"{where}, {error}") from None


def _found(here: Path, text: str) -> str:
    """Return a file next to the sweep's file, if it exists; otherwise the text, which names something built in."""
    return str(here / text) if (here / text).is_file() else text


def _beside(here: Path, text: str | None) -> str | None:
    return None if text is None else str(here / text)


def _once(texts: list[str], where: str) -> list[str]:
    twice = next((text for text in texts if texts.count(text) > 1), None)
    if twice is not None:
        raise InputError(where, "no name twice", twice)
    return texts


def _labels(names: list[str]) -> list[str]:
    """Return names, numbered if two are equal."""
    labels: list[str] = []
    for number, name in enumerate(names, start=1):
        label = name if names.count(name) == 1 else f"{name}-{number}"
        while label in labels:
            label += "_"
        labels.append(label)
    return labels


def _seeds(seeds: int | list[int], where: str) -> tuple[int, ...]:
    """Return the list of seeds itself, or 1 to N for a number N."""
    if isinstance(seeds, int):
        if not 1 <= seeds <= MOST_SEEDS:
            raise InputError(where, f"a number of seeds from 1 to {MOST_SEEDS}, or a list of them", seeds)
        return tuple(range(1, seeds + 1))
    if not seeds or len(set(seeds)) < len(seeds) or not all(0 <= seed < 1 << 63 for seed in seeds):
        raise InputError(where, "whole numbers from 0 to 2^63 - 1, none twice", seeds)
    return tuple(seeds)


def _safe(name: str) -> str:
    return "".join(ch if ch.isalnum() or ch in "-_." else "_" for ch in name).lstrip(".-") or "jobs"
