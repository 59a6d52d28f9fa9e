"""The TOML file of a workflow: its stages, the data between them, and the processors that a plan may use.

bandwidth = "10GiB/s"

[[stage]]
id = "prepare"
duration = "40m"
run = "python prepare.py"

[[stage]]
id = "train"
duration = {A100 = "4h", H100 = "1h30m"}
after = {prepare = "200GiB"}

[[processor]]
model = "H100"

A duration is a single time, which is divided by the `speed` of the GPU model, or a table of times by the models that
can run the stage. `after` is a list of stages, or a table with the amount of data from each. In one file all times and
sizes have units, or all of them are whole numbers.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Annotated

from msgspec import Meta, Struct

from kant.model.errors import InputError
from kant.model.precedence import order_of
from kant.model.units import SECOND, parse_duration
from kant.optimize.workflow.graph import MOST, MOST_STAGES, NEVER, Graph, Stage
from kant.toml_file import mebibytes_of, parse_toml, read_text

Time = int | str
MOST_PROCESSORS = 1_000
MOST_LETTERS = 16 << 20

_NAME = re.compile(r"[^\s/]{1,128}")
_A_NAME = "a name of 1 to 128 characters without spaces and slashes"


class StageTable(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One `[[stage]]`. Plans use its times, its data and its `gpus`; the rest is for `kant submit --graph`."""

    id: str
    duration: Time | dict[str, Time] | None = None
    after: list[str] | dict[str, Time] = []
    after_any: list[str] = []
    gpus: Annotated[float, Meta(ge=0, le=100_000)] = 0
    run: str | list[str] | None = None
    cpus: Annotated[float, Meta(ge=0, le=10**9)] | None = None
    memory: str | None = None
    time: str | None = None
    retries: Annotated[int, Meta(ge=0, le=1000)] = 0
    priority: Annotated[int, Meta(ge=-(10**9), le=10**9)] = 0
    queue: str | None = None
    env: dict[str, str] = {}

    @property
    def ahead(self) -> list[str]:
        """The stages that this stage depends on, each once."""
        return list(dict.fromkeys([*self.after, *self.after_any]))


class ProcessorTable(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One `[[processor]]`: `count` equal processors. Each runs one stage at a time, with at most `gpus` GPUs."""

    name: str = ""
    model: str = ""
    count: Annotated[int, Meta(ge=1, le=MOST_PROCESSORS)] = 1
    gpus: Annotated[int, Meta(ge=0, le=100_000)] = 1


class WorkflowTables(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The whole file."""

    stage: Annotated[list[StageTable], Meta(min_length=1, max_length=MOST_STAGES)]
    processor: list[ProcessorTable] = []
    speed: dict[str, Annotated[float, Meta(gt=0, le=10**6)]] = {}
    bandwidth: Time | None = None
    latency: Time = 0


@dataclass(frozen=True, slots=True)
class Processor:
    """A unit that runs one stage at a time: a GPU, a node, or a part of one."""

    name: str
    model: str
    gpus: int


@dataclass(frozen=True, slots=True)
class WorkflowFile:
    """A file with valid names and dependencies. `stages` are in topological order.

    `text` is the file's content: error messages name places in it.
    """

    path: str
    tables: WorkflowTables
    stages: tuple[StageTable, ...]
    text: str

    def where(self, stage: StageTable, field: str) -> str:
        """The place of a field of a stage, for error messages."""
        n = next(n for n, each in enumerate(self.tables.stage) if each.id == stage.id)
        return f"{self.path}, {_line(self.text, 'stage', n, field.partition('.')[0])}stage {stage.id}, {field}"


def read_workflow(path: Path) -> WorkflowFile:
    """Read the workflow of a TOML file. Raises InputError with file, line, field, and the expected value."""
    text = read_text(path)
    if len(text) > MOST_LETTERS:
        raise InputError(str(path), f"at most {MOST_LETTERS:,} characters", len(text))
    return parse_workflow(str(path), text)


def parse_workflow(where: str, text: str) -> WorkflowFile:
    """The workflow of a TOML text; `where` names it in error messages. Raises InputError."""
    try:
        tables = parse_toml(where, text, WorkflowTables, _EXPECTED)
    except InputError as error:
        raise _with_line(error, where, text) from None
    known: set[str] = set()
    for n, stage in enumerate(tables.stage):
        if not _NAME.fullmatch(stage.id):
            raise InputError(_place(where, text, "stage", n, "id"), _A_NAME, stage.id)
        if stage.id in known:
            raise InputError(_place(where, text, "stage", n, "id"), "a name that no other stage has", stage.id)
        known.add(stage.id)
    for n, stage in enumerate(tables.stage):
        for field, names in (("after", list(stage.after)), ("after_any", stage.after_any)):
            for name in names:
                if name not in known:
                    raise InputError(_place(where, text, "stage", n, field), "stages of the file", name)
    ids = [stage.id for stage in tables.stage]
    order, circle = order_of(ids, [stage.ahead for stage in tables.stage])
    if circle:
        place = _place(where, text, "stage", ids.index(circle[0]), "after")
        way = " -> ".join([*circle, circle[0]])
        raise InputError(place, "stages that do not wait for each other in a cycle", way)
    return WorkflowFile(where, tables, tuple(tables.stage[i] for i in order), text)


def _line(text: str, kind: str, n: int, field: str) -> str:
    """`line L, ` with the line of the field in the nth table of a kind, or of its header; empty if there is none."""
    head = re.compile(r"\s*\[\[\s*(\w+)\s*\]\]")
    key = re.compile(rf"\s*[\"']?{re.escape(field)}[\"']?\s*[=.]")
    seen, found = -1, 0
    for number, line in enumerate(text.splitlines(), 1):
        if match := head.match(line):
            if found:
                break
            seen += match[1] == kind
            found = number if match[1] == kind and seen == n else 0
        elif found and field and key.match(line):
            return f"line {number}, "
    return f"line {found}, " if found else ""


def _place(where: str, text: str, kind: str, n: int, field: str) -> str:
    return f"{where}, {_line(text, kind, n, field)}[[{kind}]] {n + 1}" + f", {field}" * bool(field)


_EXPECTED = {
    "id": _A_NAME,
    "duration": "a time, or a table of times by GPU model",
    "after": "a list of stages, or a table of data by stage",
    "after_any": "a list of stages",
    "gpus": "a number of GPUs from 0 to 100,000",
    "run": "a command as text, or a list of its words",
    "cpus": "cores as a number from 0 on",
    "memory": "a size such as 16GiB",
    "time": "a duration such as 2h",
    "retries": "a whole number from 0 to 1,000",
    "priority": "a whole number",
    "queue": "the name of a queue",
    "env": "a table of texts",
    "name": _A_NAME,
    "model": "a GPU model as text",
    "count": f"a whole number from 1 to {MOST_PROCESSORS:,}",
    "stage": f"from 1 to {MOST_STAGES:,} [[stage]] tables",
    "processor": "[[processor]] tables",
    "speed": "a table of numbers above 0 by GPU model",
    "bandwidth": "a rate such as 10GiB/s, or a whole number",
    "latency": "a duration such as 1s, or a whole number",
}


def _with_line(error: InputError, where: str, text: str) -> InputError:
    """Add the number of the line to an error about a field of a table."""
    found = re.match(r", \[\[(stage|processor)\]\] (\d+)(?:, (\w+))?", error.where.removeprefix(where))
    if found is None:
        return error
    field = found[3] or (str(error.got) if error.expected.startswith("only the keys") else "")
    return InputError(_place(where, text, found[1], int(found[2]) - 1, field), error.expected, error.got)


def processors_of(file: WorkflowFile) -> tuple[Processor, ...]:
    """The processors of the file. Raises InputError if it has none."""
    tables = file.tables.processor
    if not tables:
        raise InputError(f"{file.path}, [[processor]]", "at least one, or --cluster")
    if sum(table.count for table in tables) > MOST_PROCESSORS:
        raise InputError(f"{file.path}, [[processor]]", f"at most {MOST_PROCESSORS:,} in all")
    found: list[Processor] = []
    for table in tables:
        stem = table.name or table.model or "processor"
        if not _NAME.fullmatch(stem):
            raise InputError(f"{file.path}, [[processor]], name", _A_NAME, stem)
        for n in range(table.count):
            found.append(Processor(stem if table.count == 1 else f"{stem}-{n}", table.model, table.gpus))
    names = [each.name for each in found]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise InputError(f"{file.path}, [[processor]], name", "a name that no other processor has", twice)
    return tuple(found)


def likely_graph(file: WorkflowFile) -> Graph | None:
    """The workflow on the processors of the file, or on one of each GPU model in it, large enough for any stage.

    None if a duration or the bandwidth is missing, since the lengths of paths are then unknown.
    """
    tables = file.tables
    data = any(isinstance(stage.after, dict) and any(stage.after.values()) for stage in tables.stage)
    if any(stage.duration is None for stage in tables.stage) or (data and tables.bandwidth is None):
        return None
    if tables.processor:
        return graph_of(file, processors_of(file))
    models = {model for stage in tables.stage if isinstance(stage.duration, dict) for model in stage.duration}
    return graph_of(file, [Processor(model, model, 100_000) for model in sorted(models | set(tables.speed) or {""})])


def graph_of(file: WorkflowFile, processors: Sequence[Processor]) -> Graph:
    """The workflow as numbers, on these processors. Raises InputError for the first field that does not fit."""
    timed = _is_timed(file)
    index = {stage.id: i for i, stage in enumerate(file.stages)}
    speed = {model: Fraction(str(value)) for model, value in file.tables.speed.items()}
    latency = _time(file.tables.latency, timed, f"{file.path}, latency")
    rate = file.tables.bandwidth
    per_tick = _volume(rate, timed, f"{file.path}, bandwidth", "/s") if rate is not None else Fraction(0)
    if rate is not None and per_tick <= 0:
        raise InputError(f"{file.path}, bandwidth", "more than 0", rate)
    if timed:
        per_tick /= SECOND
    stages = []
    for stage in file.stages:
        data = stage.after if isinstance(stage.after, dict) else {}
        before = []
        for name in stage.ahead:
            volume = _volume(data.get(name, 0), timed, file.where(stage, f"after.{name}"))
            if volume and rate is None:
                raise InputError(f"{file.path}, bandwidth", "a rate such as 10GiB/s, as stages send data")
            ticks = latency - (-volume // per_tick) if volume else 0
            before.append((index[name], _within(ticks, file.where(stage, f"after.{name}"))))
        stages.append(Stage(stage.id, _durations(file, stage, processors, speed, timed), tuple(sorted(before))))
    return Graph(tuple(each.name for each in processors), tuple(stages), timed)


def _is_timed(file: WorkflowFile) -> bool:
    """Whether times are durations. The first time in a file decides for the whole file."""
    for stage in file.tables.stage:
        times = stage.duration.values() if isinstance(stage.duration, dict) else [stage.duration]
        for time in times:
            if time not in (None, 0):
                return isinstance(time, str)
    return False


def _durations(
    file: WorkflowFile,
    stage: StageTable,
    processors: Sequence[Processor],
    speed: dict[str, Fraction],
    timed: bool,
) -> tuple[int, ...]:
    where = file.where(stage, "duration")
    if stage.duration is None:
        raise InputError(where, "how long it runs, such as 30m")
    by_model = {
        model: _time(time, timed, f"{where}.{model}") for model, time in stage.duration.items()
    } if isinstance(stage.duration, dict) else None  # fmt: skip
    plain = _time(stage.duration, timed, where) if not isinstance(stage.duration, dict) else 0
    found = []
    for each in processors:
        if stage.gpus > each.gpus or (by_model is not None and each.model not in by_model):
            found.append(NEVER)
        elif by_model is not None:
            found.append(by_model[each.model])
        else:
            found.append(_within(-(-plain // speed.get(each.model, Fraction(1))), where))
    if all(duration == NEVER for duration in found):
        models = sorted({each.model for each in processors if stage.gpus <= each.gpus and each.model})
        if all(stage.gpus > each.gpus for each in processors):
            raise InputError(file.where(stage, "gpus"), "a processor with this number of GPUs", stage.gpus)
        of = f" with {stage.gpus:g} GPUs" if stage.gpus else ""
        raise InputError(
            where, f"a time on a GPU model that there is{of} ({', '.join(models) or 'none is named'})", stage.duration
        )
    return tuple(found)


def _time(time: Time, timed: bool, where: str) -> int:
    if isinstance(time, int):
        if time and timed:
            raise InputError(where, "a duration such as 30m, as elsewhere in the file", time)
        return _within(time, where)
    if not timed:
        raise InputError(where, "a whole number, as elsewhere in the file", time)
    return _within(parse_duration(time, where), where)


def _within(ticks: int, where: str) -> int:
    if not 0 <= ticks <= MOST:
        raise InputError(where, f"a time from 0 to {MOST:,}", ticks)
    return int(ticks)


def _volume(volume: Time, timed: bool, where: str, per: str = "") -> Fraction:
    """An amount of data in MiB, or as a plain number. `per` is the suffix of a rate, such as "/s"."""
    if isinstance(volume, int):
        if volume and timed:
            raise InputError(where, f"a size such as 10GiB{per}", volume)
        if not 0 <= volume <= MOST:
            raise InputError(where, f"a number from 0 to {MOST:,}", volume)
        return Fraction(volume)
    if not timed:
        raise InputError(where, "a whole number, as durations are in this file", volume)
    mib = mebibytes_of(volume.removesuffix(per)) if volume.endswith(per) else None
    if mib is None:
        raise InputError(where, f"a size such as 10GiB{per}", volume)
    return mib


def workflow_toml(graph: Graph, models: Sequence[str] | None = None) -> str:
    """A graph with plain numbers as a file, with each processor as a GPU model of its own."""
    names = list(models or graph.processors)
    lines = ["bandwidth = 1"]
    for stage in graph.stages:
        times = ", ".join(f"{name} = {d}" for name, d in zip(names, stage.durations, strict=True) if d != NEVER)
        data = ", ".join(f"{graph.stages[j].id} = {ticks}" for j, ticks in stage.before)
        lines += ["", "[[stage]]", f'id = "{stage.id}"', f"duration = {{{times}}}"]
        lines += [f"after = {{{data}}}"] if data else []
    for name in names:
        lines += ["", "[[processor]]", f'model = "{name}"']
    return "\n".join(lines) + "\n"
