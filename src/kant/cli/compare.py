"""`kant compare`: one workload under several profiles, side by side."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from kant.cli.inputs import (
    SETTING,
    AtOnce,
    Json,
    LedgerFlag,
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
from kant.model.errors import InputError

if TYPE_CHECKING:
    from kant.cli.runs import RunBatch
    from kant.scheduler.profile import Profile


def compare(
    workload: WorkloadFile,
    /,
    *,
    profile: Annotated[
        list[str] | None, Parameter(help="A profile; repeat for each. Gains are relative to the first.", negative="")
    ] = None,
    setting: SimulationSetting = SETTING,
    window: Window = None,
    seed: Seed = 0,
    until: Until = None,
    out: Annotated[Path, Parameter(help="Folder for the results and the report.")] = Path("kant-run"),
    ledger: LedgerFlag = False,
    at_once: AtOnce = None,
    json: Json = False,
) -> int:
    """Schedule a trace under several profiles; print the gains and write the report."""
    from kant.cli.runs import batch_of

    if profile is None or len(profile) < 2:
        raise InputError("--profile", "at least two profiles, such as --profile fifo --profile kant", profile)
    end = parse_until(until)
    chosen = [load_profile(name) for name in profile]
    batch = batch_of(workload, setting, window, chosen, seed, end, out, ledger)
    title = f"{batch.workload.name}: {', '.join(p.name for p in chosen)}"
    return run_compared(batch, chosen, at_once, out, title, json)


def run_compared(
    batch: RunBatch, profiles: list[Profile], at_once: int | None, out: Path, title: str, json: bool
) -> int:
    """Run the profiles, write the report, and print their metrics side by side; return the exit code."""
    from kant.cli.runs import cut_short, labels, run_all, write_results

    results = run_all(batch, profiles, at_once, quiet=json)
    report = write_results(out, results, labels(profiles), title)
    interrupted = cut_short(results, len(profiles))
    if json:
        print_json({"runs": [result.summary for result in results], "interrupted": interrupted})
    else:
        show_runs(results)
        show_causes(results)
        show_rejected(results[0])
        if batch.services:
            from kant.cli.serve_show import compare_services

            compare_services([(result.profile, result.summary) for result in results])
        for missing in profiles[len(results) :]:
            console.print(f"{missing.name}: interrupted before it began", style="bold yellow")
        console.print(f"report: {report}", soft_wrap=True)
    return 130 if interrupted else 0
