"""`kant submit --graph`: all stages of a workflow file at once, or none."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from kant.cli.amounts import mebibytes
from kant.cli.output import Reply, printable
from kant.cli.place import Wanted, WantedStage
from kant.cli.places import place_of
from kant.model.errors import InputError
from kant.model.units import SECOND, parse_limit

if TYPE_CHECKING:
    from kant.cli.kube_options import KubeSubmission
    from kant.optimize.workflow.file import StageTable, WorkflowFile

MOST_STAGES = 1_000
MOST_NAMES = 31
"""The maximum number of stages of a critical path that are printed; of a longer path, only the first and the last."""


def submit_graph(
    path: Path, base: Wanted, wait: bool, home: Path | None, json: bool, there: KubeSubmission | None
) -> int:
    """Queue the stages of a file and print the id of each; return the exit code."""
    stages = stages_of(path, base)
    jobs = place_of(home, there).submit_workflow(stages).jobs
    ids = {stage.facts["stage"]: job for stage, job in zip(stages, jobs, strict=True)}

    def show() -> None:
        for stage, job in ids.items():
            print(f"{job} {printable(stage)}")

    Reply({"jobs": jobs, "stages": ids}, show).print(json)
    if wait:
        from kant.cli.wait import wait_for

        return wait_for(home, there, tuple(jobs))
    return 0


def stages_of(path: Path, base: Wanted) -> list[WantedStage]:
    """Return the jobs of a workflow file, each after the jobs that it waits for. Common settings are in `base`.

    Raises InputError with the line and the field of the first error.
    """
    from kant.optimize.workflow.file import likely_graph, read_workflow

    for name in ("command", "gpus", "cpus", "memory_mib", "time_s", "retries"):
        if base.get(name):
            option = {"command": "COMMAND", "memory_mib": "--memory", "time_s": "--time"}.get(name, f"--{name}")
            raise InputError(option, "none with --graph, whose stages have commands", base[name])
    if "array" in base:
        raise InputError("--array", "none with --graph")
    file = read_workflow(path)
    if len(file.stages) > MOST_STAGES:
        raise InputError(str(path), f"at most {MOST_STAGES:,} stages", len(file.stages))
    graph = likely_graph(file)
    place = {stage.id: n for n, stage in enumerate(file.stages)}
    title = base.get("name") or path.stem
    way: tuple[str, ...] = ()
    length = -1.0
    if graph is not None:
        unit = SECOND if graph.timed else 1
        way = _shortened([graph.stages[i].id for i in graph.critical_path])
        length = max(graph.upward) / unit
    found = []
    for n, stage in enumerate(file.stages):
        slack = graph.spare[n] / unit if graph is not None else -1.0
        facts = {"workflow": title, "stage": stage.id, "critical_path": way, "length_s": length, "slack_s": slack}
        anyhow = set(stage.after_any) - set(stage.after)
        found.append(
            WantedStage(
                wanted=_wanted(file, stage, base, title),
                after_ok=tuple(sorted(place[name] for name in stage.after)),
                after=tuple(sorted(place[name] for name in anyhow)),
                facts=facts,
            )
        )
    return found


def _shortened(names: list[str]) -> tuple[str, ...]:
    if len(names) <= MOST_NAMES:
        return tuple(names)
    half = MOST_NAMES // 2
    return (*names[:half], f"({len(names) - 2 * half:,} more)", *names[-half:])


def _wanted(file: WorkflowFile, stage: StageTable, base: Wanted, title: str) -> Wanted:
    """Return the job of a stage; a first stage also waits for the dependencies of the whole workflow."""
    if stage.run is None or not stage.run:
        raise InputError(file.where(stage, "run"), "a command, such as `python train.py`, or a list of its words")
    time_s = None
    if stage.time is not None:
        time_s = parse_limit(stage.time, file.where(stage, "time")) / SECOND
        if time_s <= 0:
            raise InputError(file.where(stage, "time"), "a duration such as 2h", stage.time)
    try:
        memory = mebibytes(stage.memory) if stage.memory is not None else 0
    except InputError as error:
        raise InputError(file.where(stage, "memory"), error.expected, error.got) from None
    ahead = ("after", "after_ok", "after_not_ok") if stage.ahead else ()
    return {name: value for name, value in base.items() if name not in ahead} | {
        "command": ("sh", "-c", stage.run) if isinstance(stage.run, str) else tuple(stage.run),
        "gpus": stage.gpus,
        "cpus": stage.cpus,
        "memory_mib": memory,
        "time_s": time_s,
        "retries": stage.retries,
        "name": f"{title}/{stage.id}",
        "queue": stage.queue or base.get("queue", "default"),
        "priority": stage.priority or base.get("priority", 0),
        "env": base.get("env", {}) | stage.env,
    }
