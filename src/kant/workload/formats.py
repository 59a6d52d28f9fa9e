"""The trace formats that Kant reads: names, columns, sources, and how each is recognized by the content of a file.

A package offers a format under the entry point group `kant.readers`. The name is that of the format, the value is a
`Format`: `"our-log" = "kant_our_log:FORMAT"`. A package is imported only if its format is named, or if a file has none
of Kant's own formats.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

from kant.files import head
from kant.model.errors import InputError
from kant.workload import google, helios, kant_table, muri, openb, pai, philly, philly_log, shockwave, swf
from kant.workload.table import Field
from kant.workload.trace import Trace


@dataclass(frozen=True, slots=True)
class Format:
    """One format: its summary, its source, its columns, the meaning of a slice, and its reader."""

    name: str
    summary: str
    source: str
    fields: tuple[Field, ...]
    sliced_by: str
    parse: Callable[[Path], Trace]


FORMATS: dict[str, Format] = {
    form.name: form
    for form in (
        Format(
            "kant",
            "Kant's own table, CSV or Parquet: gangs, shares, CPU, memory, limits, queues and users",
            "this project",
            kant_table.FIELDS,
            "queue",
            kant_table.parse,
        ),
        Format(
            "philly",
            "Microsoft Philly as CSV: submission, run time, GPUs and virtual cluster",
            "Jeon et al., ATC'19; msr-fiddle/philly-traces (CC-BY-4.0)",
            philly.FIELDS,
            "virtual cluster (all without a slice)",
            philly.parse,
        ),
        Format(
            "philly-log",
            "Microsoft Philly as published: the JSON list cluster_job_log, with the attempts of each job",
            "Jeon et al., ATC'19; msr-fiddle/philly-traces (CC-BY-4.0)",
            philly_log.FIELDS,
            "virtual cluster (all without a slice)",
            philly_log.parse,
        ),
        Format(
            "helios",
            "SenseTime Helios: cluster_log.csv of Earth, Saturn, Uranus or Venus; jobs with GPUs",
            "Hu et al., SC'21; S-Lab-System-Group/HeliosData",
            helios.HELIOS,
            "virtual cluster (all without a slice)",
            helios.parse_helios,
        ),
        Format(
            "acme",
            "Acme: trace_seren.csv or trace_kalos.csv; jobs with GPUs",
            "Hu et al., NSDI'24; InternLM/AcmeTrace (CC-BY-4.0)",
            helios.ACME,
            "type of workload (all without a slice)",
            helios.parse_acme,
        ),
        Format(
            "pai",
            "Alibaba PAI: pai_task_table.csv, with pai_job_table.csv next to it; tasks with GPUs",
            "Weng et al., NSDI'22; alibaba/clusterdata, cluster-trace-gpu-v2020",
            pai.FIELDS,
            "all: it has one queue",
            pai.parse,
        ),
        Format(
            "google",
            "Google 2019: a slice of instance_events as JSON lines or CSV; tasks without GPUs",
            "Tirmazi et al., EuroSys'20; google/cluster-data (CC-BY-4.0)",
            google.FIELDS,
            "tier of priority (all without a slice)",
            google.parse,
        ),
        Format(
            "muri",
            "traces of the Muri artifact: iterations and time per iteration, several traces a file",
            "Zhao et al., SIGCOMM'22; Muri artifact (Apache-2.0)",
            muri.FIELDS,
            "trace (required where there are several)",
            muri.parse,
        ),
        Format(
            "openb",
            "Alibaba openb pods: GPU shares, whole GPUs and CPU-only pods, several workloads a file",
            "Weng et al., ATC'23; FGD artifact (Apache-2.0)",
            openb.FIELDS,
            "workload (required if there are several)",
            openb.parse,
        ),
        Format(
            "shockwave",
            "training jobs whose batch size changes: runs of epochs with one batch size, several traces a file",
            "Zheng et al., NSDI'23; Shockwave artifact (MIT)",
            shockwave.FIELDS,
            "trace (required where there are several)",
            shockwave.parse,
        ),
        Format(
            "swf",
            "Standard Workload Format 2.2: 18 columns, a processor read as one GPU",
            "Feitelson, Parallel Workloads Archive",
            swf.FIELDS,
            "queue number (all without a slice)",
            swf.parse,
        ),
    )
}


GROUP = "kant.readers"
"""The entry point group of formats from other packages."""


def format_named(name: str) -> Format:
    """Return the format with this name. Raises InputError if there is none, or if a package's format is unusable."""
    if name in _offers():
        return _loaded(name)
    if name not in FORMATS:
        raise InputError("format", f"one of {', '.join((*FORMATS, *_offers()))}", name)
    return FORMATS[name]


@cache
def _offers() -> dict[str, tuple[EntryPoint, ...]]:
    """Return the formats of installed packages by name. Nothing is imported."""
    found: dict[str, tuple[EntryPoint, ...]] = {}
    for point in sorted(entry_points(group=GROUP), key=lambda point: (point.name, _package(point), point.value)):
        found[point.name] = (*found.get(point.name, ()), point)
    return found


def _package(point: EntryPoint) -> str:
    return point.dist.name if point.dist is not None else "?"


@cache
def _loaded(name: str) -> Format:
    """Return a format of another package. Raises InputError if several packages offer it, or it is not a `Format`."""
    points = _offers()[name]
    packages = [_package(point) for point in points]
    if len(points) > 1 or name in FORMATS:
        owners = " and ".join([*["kant"] * (name in FORMATS), *packages])
        raise InputError(f"format {name}", f"one package that offers it, but {owners} do: uninstall one")
    where = f"format {name} of package {packages[0]}"
    try:
        form = points[0].load()
    except Exception as error:  # any exception of a third-party module
        raise InputError(where, f"a Format that can be imported ({type(error).__name__}: {error})") from None
    if not isinstance(form, Format) or form.name != name:
        raise InputError(where, f'a kant.workload.formats.Format with name="{name}"', points[0].value)
    return form


def detect(path: Path) -> Format:
    """Return the format of a file: by its first bytes, by its header row or, failing these, by its extension.

    Raises InputError if no format fits, or if the file cannot be read.
    """
    content = head(path)
    if not content.strip():
        raise InputError(str(path), "a trace with at least one job", "an empty file")
    if content.startswith(kant_table.PARQUET_MAGIC):
        return FORMATS["kant"]
    first = content.decode("utf-8-sig", "replace").lstrip().split("\n", 1)[0].strip()
    if first.startswith(";") or _is_swf_row(first):
        return FORMATS["swf"]
    if first.startswith("[") and b'"attempts"' in content:
        return FORMATS["philly-log"]
    if google.looks_so(first):
        return FORMATS["google"]
    if pai.looks_so(first):
        return FORMATS["pai"]
    header = {name.strip(' "') for name in first.split(",")}
    if header.issuperset(pai.TASK_HEADER):
        return FORMATS["pai"]
    for name in ("helios", "acme", "philly", "muri", "openb", "shockwave", "kant"):
        if header.issuperset(_required(FORMATS[name])):
            return FORMATS[name]
    if path.name.lower().removesuffix(".gz").endswith(".swf"):
        return FORMATS["swf"]
    for name in _offers():
        needed = set() if name in FORMATS else _required(_loaded(name))
        if needed and header >= needed:
            return _loaded(name)
    if "submit_s" in header:
        return FORMATS["kant"]
    raise InputError(str(path), f"a trace of one of the formats {', '.join((*FORMATS, *_offers()))}", first)


def _required(form: Format) -> set[str]:
    """Return the columns by which a table is recognized. A format without such columns is only selected by name."""
    return {field.name for field in form.fields if field.default is None and field.name != "id"}


def _is_swf_row(line: str) -> bool:
    cells = line.split()
    return len(cells) == swf.WIDTH and all(cell[-1:].isdigit() for cell in cells)
