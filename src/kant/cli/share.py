"""`kant share`: assigns GPUs in rounds to jobs whose speed changes during training."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import msgspec
from cyclopts import App, Parameter

from kant.cli.inputs import Format, Json, Seed, Slice, WorkloadFile, load_workload, whole, write_text
from kant.cli.output import Reply
from kant.cli.pack import ToFile
from kant.cli.show import console, percent
from kant.cli.show_answers import table
from kant.model.adaptive import AdaptiveJob, plain_job
from kant.model.errors import InputError
from kant.model.units import SECOND, parse_duration
from kant.optimize.share.outcome import SharingOutcome
from kant.optimize.share.policy import RoundPolicy
from kant.optimize.share.rounds import simulate as run

share_app = App(
    name="share",
    help="Share GPUs in rounds among jobs whose batch size changes: fairness and efficiency.",
    help_format="plaintext",
)

PolicyName = Annotated[str, Parameter(name=("--policy", "--profile"), help="A policy of docs/solvers.md.")]
Gpus = Annotated[int, Parameter(help="GPUs of the cluster, all alike.", converter=whole)]
Round = Annotated[str, Parameter("--round", help="Length of a round.")]
Preemption = Annotated[
    str, Parameter(help="The part of a round that a job loses if it did not run in the previous one.")
]
Weights = Annotated[
    str | None,
    Parameter(help="Queues as tenants, with weights such as prod=3,research=1 (others: 1); or equal."),
]
MOST_GPUS = 1_000_000


@share_app.command
def simulate(
    workload: WorkloadFile,
    /,
    *,
    policy: PolicyName = "shockwave",
    gpus: Gpus = 32,
    round_length: Round = "120s",
    preemption: Preemption = "20s",
    weights: Weights = None,
    format: Format = None,
    slice: Slice = None,
    json: Json = False,
) -> int:
    """Run a workload in rounds under one policy: makespan, completion times, finish-time fairness.

    Jobs of a trace in the format `shockwave` change their batch size as published; jobs of other traces keep their
    speed."""
    jobs = _jobs(workload, format, slice)
    found = _outcome(jobs, _policy(policy), gpus, round_length, preemption, weights)
    return Reply({"policy": policy, **_json(found)}, lambda: _show([(policy, found)])).print(json)


@share_app.command
def compare(
    workload: WorkloadFile,
    policies: Annotated[list[str] | None, Parameter(help="The policies. Default: all.")] = None,
    /,
    *,
    gpus: Gpus = 32,
    round_length: Round = "120s",
    preemption: Preemption = "20s",
    weights: Weights = None,
    format: Format = None,
    slice: Slice = None,
    json: Json = False,
) -> int:
    """Run a workload in rounds under several policies side by side."""
    from kant.optimize.share.policies import POLICIES

    jobs = _jobs(workload, format, slice)
    chosen = [(name, _policy(name)) for name in policies or POLICIES]
    found = [(name, _outcome(jobs, policy, gpus, round_length, preemption, weights)) for name, policy in chosen]
    rows = [{"policy": name, **_json(outcome, each=False)} for name, outcome in found]
    return Reply({"policies": rows}, lambda: _show(found)).print(json)


@share_app.command
def generate(
    *,
    jobs: Annotated[int, Parameter(help="The number of jobs.", converter=whole)] = 120,
    interval: Annotated[str, Parameter(help="Mean time between two arrivals.")] = "40s",
    seed: Seed = 0,
    out: ToFile = None,
) -> None:
    """Draw a trace of the format `shockwave`: the models, batch sizes and run times of its published traces."""
    from kant.workload.shockwave import adaptive_text
    from kant.workload.shockwave_draw import draw

    drawn = draw(jobs, parse_duration(interval, "--interval") / SECOND, seed)
    write_text(adaptive_text(drawn, f"drawn-{seed}"), out)


def _jobs(path: Path, format: str | None, slice: str | None) -> list[AdaptiveJob]:
    """Return the jobs of a trace, with their epochs if it has them."""
    from kant.workload.shockwave import is_shockwave, read_adaptive

    if format == "shockwave" or (format is None and is_shockwave(path)):
        return read_adaptive(path, slice)
    jobs = load_workload(path, format, slice, None)
    rows = zip(jobs.ids, jobs.submit.tolist(), jobs.total_gpus.tolist(), jobs.runtime.tolist(), jobs.queue, strict=True)
    return [
        plain_job(name, submit / SECOND, max(1, gpus), runtime / SECOND, jobs.queues[queue])
        for name, submit, gpus, runtime, queue in rows
    ]


def _policy(name: str) -> RoundPolicy:
    from kant.optimize.share.policies import ALSO, POLICIES

    found = POLICIES.get(ALSO.get(name, name))
    if found is None:
        raise InputError("--policy", f"one of {', '.join([*POLICIES, *ALSO])}", name)
    return found


def _outcome(
    jobs: list[AdaptiveJob], policy: RoundPolicy, gpus: int, length: str, preemption: str, weights: str | None
) -> SharingOutcome:
    if not 1 <= gpus <= MOST_GPUS:
        raise InputError("--gpus", f"a whole number from 1 to {MOST_GPUS:,}", gpus)
    seconds = parse_duration(length, "--round") / SECOND
    lost = parse_duration(preemption, "--preemption") / SECOND
    shares = None if weights is None else dict(_weights(weights))
    return run(jobs, gpus, policy, round_s=seconds, preemption_s=lost, weights=shares)


def _weights(text: str) -> Iterable[tuple[str, float]]:
    for part in text.split(",") if text != "equal" else ():
        name, _, value = part.rpartition("=")
        try:
            weight = float(value)
        except ValueError:
            weight = -1.0
        if not name or not 0 < weight < 1e6:
            raise InputError("--weights", "queues with numbers above 0, such as prod=3,research=1, or equal", part)
        yield name.strip(), weight


def _json(found: SharingOutcome, each: bool = True) -> dict[str, Any]:
    answer: dict[str, Any] = msgspec.to_builtins(found)
    jobs = answer.pop("each")
    return answer | ({"each": jobs} if each else {})


def _show(found: list[tuple[str, SharingOutcome]]) -> None:
    """Print the runs in the terminal."""
    rows = [
        {
            "policy": name,
            "makespan": f"{run.makespan_s:,.0f}",
            "jct": f"{run.jct_s:,.0f}",
            "worst": f"{run.ftf.worst:.2f}",
            "mean": f"{run.ftf.mean:.2f}",
            "unfair": percent(run.ftf.unfair_share),
            "busy": percent(run.busy_share),
        }
        for name, run in found
    ]
    run = found[0][1]
    columns = {"policy": "policy", "makespan": "makespan s", "jct": "completion s", "worst": "worst FTF"}
    columns |= {"mean": "mean FTF", "unfair": "unfair", "busy": "GPUs busy"}
    table(f"{run.jobs:,} jobs on {run.gpus:,} GPUs", rows, columns)
    if len(found) == 1 and len(run.queues) > 1:
        queues = [
            {"name": queue.name, "jobs": queue.jobs, "jct": f"{queue.jct_s:,.0f}", "ftf": f"{queue.ftf_mean:.2f}"}
            for queue in run.queues
        ]
        table("Queues", queues, {"name": "queue", "jobs": "jobs", "jct": "completion s", "ftf": "mean FTF"})
    for note in dict.fromkeys(note for _, each in found for note in each.notes):
        console.print(note, style="yellow", soft_wrap=True)
    console.print("FTF: time relative to an equal share of the cluster; above 1.05 is unfair", style="dim")
