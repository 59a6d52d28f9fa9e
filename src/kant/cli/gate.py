"""`kant gate`: decides whether a change of policy is acceptable."""

from __future__ import annotations

import re
from dataclasses import asdict
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from kant.cli.inputs import AtOnce, ClusterOption, Format, Json, Queues, load_cluster, load_profile, load_queues, whole
from kant.cli.output import Reply
from kant.cli.show import console
from kant.cli.sweep import finish
from kant.experiments.figures import check_figure, show
from kant.experiments.store import RunStore
from kant.model.errors import InputError

if TYPE_CHECKING:
    from kant.experiments.design import Experiment
    from kant.experiments.gate import GateVerdict
    from kant.experiments.results import Results
    from kant.metrics.paired import Interval
    from kant.scheduler.profile import Profile


def gate(
    old: Annotated[str, Parameter(help="The current profile: a built-in one or a TOML file.")],
    new: Annotated[str, Parameter(help="The new profile.")],
    /,
    *,
    traces: Annotated[
        list[Path], Parameter(help="Traces to judge it on, such as last month's.", consume_multiple=True, negative="")
    ],
    format: Format = None,
    cluster: ClusterOption = None,
    queues: Queues = None,
    slices: Annotated[int, Parameter(help="Number of samples into which each trace is cut.", converter=whole)] = 10,
    seeds: Annotated[int, Parameter(help="Runs of each sample.", converter=whole)] = 1,
    max_regret: Annotated[str, Parameter(help="The allowed regression, as a share of the current value.")] = "2%",
    metric: Annotated[
        list[str] | None,
        Parameter(help="A metric; repeat for each. Default: wait_s.p90, the P90 of the waits.", negative=""),
    ] = None,
    confidence: Annotated[str, Parameter(help="1 - the rate of false alarms, for all metrics together.")] = "95%",
    strict: Annotated[bool, Parameter(help="Also refuse a change that is not proven harmless.", negative="")] = False,
    summary: Annotated[Path | None, Parameter(help="Write the verdict as Markdown at the end of this file.")] = None,
    store: Annotated[Path | None, Parameter(help="Folder of finished runs, which are not run again.")] = None,
    at_once: AtOnce = None,
    json: Json = False,
) -> int:
    """Test on traces whether a change of policy does harm. Exit code: 0 if it passes, 1 if not, 2 for bad input."""
    from kant.experiments.gate import verdict

    allowed, level = part(max_regret, "--max-regret", 0, 10), part(confidence, "--confidence", 0.5, 0.9999)
    metrics = [check_figure(name, "--metric") for name in dict.fromkeys(metric or ["wait_s.p90"])]
    if not 1 <= slices <= 10_000 or not 1 <= seeds <= 10_000:
        raise InputError("--slices and --seeds", "numbers from 1 to 10000", f"{slices} and {seeds}")
    both = [load_profile(old), load_profile(new)]
    experiments = [_experiment(path, both, slices, seeds, format, cluster, queues) for path in traces]
    kept = RunStore(store) if store is not None else None
    found: list[Results] = []
    for experiment in experiments:
        results, interrupted = finish(experiment, kept, at_once, quiet=json)
        if interrupted:
            console.print("interrupted: no verdict", style="yellow")
            return 130
        found.append(results)
    judged = verdict(found, metrics, allowed, level)
    text = _markdown(judged, [old, new], traces, allowed, level, strict)
    if summary is not None:
        _append(summary, text)
    said = "\n".join(_lines(judged, strict))
    Reply(_object(judged, strict), lambda: console.print(said, soft_wrap=True)).print(json)
    return 1 if judged.refuses(strict) else 0


def _experiment(
    path: Path,
    both: list[Profile],
    slices: int,
    seeds: int,
    format: str | None,
    cluster: str | None,
    queues: Path | None,
) -> Experiment:
    """Return the experiment of both policies on the slices of one trace. Without a cluster, one is sized to it."""
    from kant.experiments.design import Experiment, GivenJobs
    from kant.workload.read import read_parts, read_workload

    jobs = read_workload(path, format=format)
    machines = load_cluster(cluster, jobs)
    return Experiment(
        name=path.name,
        profiles={"old": both[0], "new": both[1]},
        clusters={machines.name: machines},
        sources={
            path.name: GivenJobs.of(path.name, [part for part, _ in read_parts(path, parts=slices, format=format)])
        },
        seeds=tuple(range(1, seeds + 1)),
        queue_config=load_queues(queues, jobs, both),
    )


def part(text: str, where: str, low: float, high: float) -> float:
    """Parse a fraction such as `2%` or `0.02`. Raises InputError unless it is from `low` to `high`."""
    found = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)\s*(%?)", text.strip())
    value = float(found[1]) / (100 if found[2] else 1) if found else -1.0
    if not low <= value <= high:
        raise InputError(where, f"a share such as 2% or 0.02, from {low:g} to {high:g}", text)
    return value


def heading(judged: GateVerdict, strict: bool) -> str:
    if judged.refuses(strict):
        unsure = not judged.objections and all(found.outcome != "regression" for found in judged.comparisons)
        return "REFUSED: not proven harmless" if unsure else "REGRESSION"
    return "PASS: both decide the same on every slice" if judged.alike else "PASS"


def _lines(judged: GateVerdict, strict: bool) -> list[str]:
    """Return the lines of the verdict for the terminal."""
    lines = [heading(judged, strict), *judged.objections]
    for found in judged.comparisons:
        lines.append(str(found))
        if found.outcome == "unsure":
            lines.append(f"  {found.metric}: no regression found, and none ruled out: use more or larger traces")
    return lines


def _markdown(
    judged: GateVerdict, names: list[str], traces: list[Path], allowed: float, confidence: float, strict: bool
) -> str:
    """Return the verdict as a section of Markdown."""
    from kant.experiments.gate import ends_text
    from kant.experiments.page import cell

    parts = [f"## {heading(judged, strict)}: {cell(names[1])} in place of {cell(names[0])}", ""]
    parts += [f"- {cell(objection)}" for objection in judged.objections]
    if judged.comparisons:
        header = "| metric | before | after | regret of the typical slice | in the mean | outcome |"
        parts += ["", header, "|---|---|---|---|---|---|"]
    for found in judged.comparisons:
        shown = show(found.metric)
        word = {"pass": "within", "unsure": "no regression found, none excluded", "regression": "regression"}
        regrets = [ends_text(found.regret), ends_text(found.mean_regret)]
        cells = [found.metric, shown(found.old), shown(found.new), *regrets]
        parts.append(f"| {' | '.join([*cells, word[found.outcome]])} |")
    where = ", ".join(cell(path.name) for path in traces)
    parts += [
        "",
        f"{judged.slices} slices of {where}, each simulated under both policies. A regret of {allowed:.1%} is allowed."
        f" Paired tests (signed ranks, t): one within this regret is refused at most {1 - confidence:.1%} of the time.",
    ]
    return "\n".join(parts) + "\n"


def _append(path: Path, text: str) -> None:
    """Append text to a file: other steps of a CI job write to the same summary."""
    try:
        with path.open("a", encoding="utf-8") as out:
            out.write(text)
    except OSError as error:
        raise InputError(f"--summary {path}", "a file that can be written", error.strerror) from None


def _object(judged: GateVerdict, strict: bool) -> dict[str, object]:
    return {
        "passes": not judged.refuses(strict),
        "alike": judged.alike,
        "objections": list(judged.objections),
        "metrics": [
            asdict(found) | {"regret": ends(found.regret), "mean_regret": ends(found.mean_regret)}
            for found in judged.comparisons
        ],
    }


def ends(regret: Interval) -> dict[str, float | None]:
    finite = {"low": regret.low, "high": regret.high}
    return {"value": regret.mean} | {name: end if isfinite(end) else None for name, end in finite.items()}
