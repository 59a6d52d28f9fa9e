"""`kant replay`: runs the decisions of a journal again, or simulates another profile on its jobs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from kant.cli.inputs import Json, Out, check_out, load_profile
from kant.cli.output import print_json
from kant.cli.show import console, show_runs
from kant.model.units import show_duration


def replay(
    journal: Annotated[Path, Parameter(help="A journal.jsonl of a run.")],
    /,
    *,
    profile: Annotated[str | None, Parameter(help="Run the journal's jobs under this profile instead.")] = None,
    out: Out = None,
    json: Json = False,
) -> int:
    """Run a journal through the core again, and compare every decision.

    Exits with 0 if the digests are equal, and with 1 if not.
    """
    from kant.cli.runs import write_results
    from kant.sim import replay as sim

    other = load_profile(profile) if profile is not None else None
    check_out(out)
    again = sim.replay(journal)
    results = [again.result]
    if other is not None:
        results.append(sim.rerun(again, other))
    if out is not None:
        write_results(out, results, ["recorded", "other"][: len(results)], f"Replay of {again.header.workload}")
    if json:
        print_json(
            {"equal": again.equal, "recorded_digest": again.recorded, "digest": again.replayed}
            | ({"runs": [result.summary for result in results]} if other is not None else {"run": results[0].summary})
        )
        return 0 if again.equal else 1
    decisions = again.result.summary["decisions"]
    if again.equal:
        console.print(f"equal: {decisions:,} decisions, digest {again.replayed}")
    else:
        console.print(f"different: recorded {again.recorded}, replayed {again.replayed}", style="bold red")
        if again.difference is not None:
            then, now = again.difference
            console.print(
                f"first at {show_duration(then.time)}: recorded {then.decisions[:2]}, now {now.decisions[:2]}"
            )
        if again.lacks_cycles:
            console.print(
                f"The journal is of Kant {again.header.version}, which did not record cycles "
                "without a decision: which jobs are recorded as waiting may differ."
            )
    if other is not None:
        show_runs(results)
    return 0 if again.equal else 1
