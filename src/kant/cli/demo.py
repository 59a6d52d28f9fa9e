"""`kant demo`: two weeks of jobs on a virtual cluster, under a plain baseline and under Kant's profile."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from kant.cli.compare import run_compared
from kant.cli.inputs import AtOnce, Json, Queues, Seed, check_out, load_profile, load_queues, whole
from kant.cli.show import console
from kant.model.errors import InputError
from kant.model.units import DAY
from kant.workload.cluster_file import read_cluster


def demo(
    *,
    out: Annotated[Path, Parameter(help="Folder for the results and the report.")] = Path("kant-run"),
    row: Annotated[
        str, Parameter(help="The published distribution to draw from (see `kant trace generate`).")
    ] = "helios-venus",
    days: Annotated[float, Parameter(help="Span of the submissions.")] = 14,
    nodes: Annotated[int, Parameter(help="Nodes of 8 GPUs.", converter=whole)] = 1024,
    load: Annotated[float, Parameter(help="Requested GPU time divided by the available GPU time.")] = 0.9,
    queues: Queues = None,
    seed: Seed = 1,
    at_once: AtOnce = None,
    json: Json = False,
) -> int:
    """Generate two weeks of jobs, schedule it twice, print the gain and write the report."""
    from kant.cli.runs import RunBatch
    from kant.workload.generate import generate

    if not 1 <= nodes <= 100_000:
        raise InputError("--nodes", "a number of nodes from 1 to 100000", nodes)
    check_out(out)
    cluster = read_cluster(f"{nodes}x8")
    profiles = [load_profile("baseline"), load_profile("kant")]
    workload = generate(row, days=days, gpus=cluster.gpus, load=load, seed=seed)
    queue_config = load_queues(queues, workload, profiles)
    if not json:
        console.print(
            f"{len(workload):,} jobs of {days:g} days drawn from {row}, on {cluster.gpus:,} virtual GPUs",
        )
    batch = RunBatch(workload, cluster, seed, round(days * DAY), out, len(profiles), queue_config=queue_config)
    return run_compared(batch, profiles, at_once, out, f"{days:g} days of {row} on {cluster.gpus:,} GPUs", json)
