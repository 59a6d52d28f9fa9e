"""`kant compare`: one workload under several profiles, side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from kant.cli.inputs import (
    AtOnce,
    ClusterOption,
    FaultsFile,
    Format,
    Json,
    LedgerFlag,
    Queues,
    Seed,
    Services,
    Slice,
    Until,
    Window,
    WorkloadFile,
    check_out,
    load_cluster,
    load_faults,
    load_profile,
    load_queues,
    load_services,
    load_workload,
    parse_until,
)
from kant.cli.output import print_json
from kant.model.errors import InputError


def compare(
    workload: WorkloadFile,
    /,
    *,
    profile: Annotated[
        list[str] | None, Parameter(help="A profile; repeat for each. Gains are relative to the first.", negative="")
    ] = None,
    format: Format = None,
    slice: Slice = None,
    cluster: ClusterOption = None,
    queues: Queues = None,
    faults: FaultsFile = None,
    services: Services = None,
    window: Window = None,
    seed: Seed = 0,
    until: Until = None,
    out: Annotated[Path, Parameter(help="Folder for the results and the report.")] = Path("kant-run"),
    ledger: LedgerFlag = False,
    at_once: AtOnce = None,
    json: Json = False,
) -> int:
    """Schedule a trace under several profiles; print the gains and write the report."""
    from kant.cli.ledger import show_causes
    from kant.cli.runs import cut_short, labels, run_all, write_results
    from kant.cli.show import console, show_rejected, show_runs

    if profile is None or len(profile) < 2:
        raise InputError("--profile", "at least two profiles, such as --profile fifo --profile kant", profile)
    end = parse_until(until)
    chosen = [load_profile(name) for name in profile]
    check_out(out)
    jobs = load_workload(workload, format, slice, window)
    machines = load_cluster(cluster, jobs)
    queue_config = load_queues(queues, jobs, chosen)
    ills = load_faults(faults, machines, chosen)
    declared = load_services(services, jobs, queue_config, chosen, seed)
    results = run_all(
        jobs, machines, chosen, seed, end, out,
        queue_config=queue_config, ledger=ledger, faults=ills, at_once=at_once, quiet=json,
        services=declared,
    )  # fmt: skip
    report = write_results(out, results, labels(chosen), f"{jobs.name}: {', '.join(p.name for p in chosen)}")
    interrupted = cut_short(results, len(chosen))
    if json:
        print_json({"runs": [result.summary for result in results], "interrupted": interrupted})
    else:
        show_runs(results)
        show_causes(results)
        show_rejected(results[0])
        if declared:
            from kant.cli.serve_show import compare_services

            compare_services([(result.profile, result.summary) for result in results])
        for missing in chosen[len(results) :]:
            console.print(f"{missing.name}: interrupted before it began", style="bold yellow")
        console.print(f"report: {report}", soft_wrap=True)
    return 130 if interrupted else 0
