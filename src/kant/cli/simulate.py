"""`kant simulate`: one workload, one cluster, one profile."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from kant.cli.inputs import (
    SETTING,
    Json,
    LedgerFlag,
    Out,
    Reservations,
    Seed,
    SimulationSetting,
    Until,
    Window,
    WorkloadFile,
    load_profile,
    parse_until,
)
from kant.cli.ledger import show_causes
from kant.cli.output import print_json
from kant.cli.show import console, show_rejected, show_runs


def simulate(
    workload: WorkloadFile,
    /,
    *,
    setting: SimulationSetting = SETTING,
    reservations: Reservations = None,
    profile: Annotated[str, Parameter(help="A built-in profile (see `kant profiles`) or a TOML file.")] = "kant",
    window: Window = None,
    seed: Seed = 0,
    until: Until = None,
    out: Out = None,
    ledger: LedgerFlag = False,
    json: Json = False,
) -> int:
    """Schedule a trace on a virtual cluster and print the five metrics."""
    from kant.cli.runs import batch_of, run_all, write_results

    end = parse_until(until)
    chosen = load_profile(profile)
    batch = batch_of(workload, setting, window, [chosen], seed, end, out, ledger, reservations)
    results = run_all(batch, [chosen], quiet=json)
    title = f"{batch.workload.name} under {chosen.name}"
    report = write_results(out, results, ["run"], title) if out is not None else None
    if json:
        print_json(results[0].summary)
    else:
        for note in batch.workload.notes:
            console.print(note, style="yellow")
        show_runs(results)
        show_causes(results)
        show_rejected(results[0])
        if batch.services:
            from kant.cli.serve_show import show_services

            show_services(results[0].summary["services"])
        summary = results[0].summary
        console.print(
            f"{summary['decisions']:,} decisions, digest {summary['digest']}, {summary['cpu_s']:.1f} CPU-s "
            f"({summary['jobs_per_cpu_s']:,.0f} jobs a CPU-second), {summary['peak_rss_mib']:.0f} MiB"
        )
        if report is not None:
            console.print(f"report: {report}", soft_wrap=True)
        else:
            console.print("--out DIR writes the report, the journal and the tables", style="dim")
    return 130 if results[0].interrupted else 0
