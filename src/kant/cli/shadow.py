"""`kant kube shadow`: what Kant would have done in place of another scheduler."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from kant.cli.inputs import Json
from kant.cli.output import print_json
from kant.cli.show import console, print_table


def shadow(
    journal: Annotated[Path, Parameter(help="A journal of `kant kube run --shadow`.")],
    /,
    *,
    json: Json = False,
) -> int:
    """Print what Kant would have done differently, next to what was really scheduled."""
    from kant.kube.shadow import compared, summary

    jobs, end = compared(journal)
    found = summary(jobs, end)
    if json:
        print_json(found)
        return 0
    theirs, ours = found["wait_s"], found["wait_s_kant"]
    assert isinstance(theirs, dict) and isinstance(ours, dict)
    rows = [
        ("jobs started", str(found["started"]), str(found["decided"])),
        *((f"wait, {key} (s)", f"{theirs[key]:,.2f}", f"{ours[key]:,.2f}") for key in theirs),
        ("nodes of gangs", str(found["nodes"]), str(found["nodes_kant"])),
        ("leaves of gangs", str(found["leaves"]), str(found["leaves_kant"])),
    ]
    print_table(("", "as it was", "kant"), rows, frame=False)
    console.print(
        f"{found['jobs']} jobs arrived; {found['decided_but_waiting']} that Kant would have started still wait. "
        f"Each decision is independent of the others; kant replay {journal} --profile kant carries them all out.",
        soft_wrap=True,
    )
    return 0
