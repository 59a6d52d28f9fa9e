"""`kant kube shadow`: what Kant would have done next to another scheduler."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from kant.cli.inputs import Json
from kant.cli.output import print_json


def shadow(
    journal: Annotated[Path, Parameter(help="A journal of `kant kube run --shadow`.")],
    /,
    *,
    json: Json = False,
) -> int:
    """Print what Kant would have done differently, beside what was really scheduled."""
    from rich.table import Table

    from kant.cli.show import console
    from kant.kube.shadow import compared, summary

    jobs, end = compared(journal)
    found = summary(jobs, end)
    if json:
        print_json(found)
        return 0
    table = Table(box=None, pad_edge=False)
    for name in ("", "as it was", "kant"):
        table.add_column(name, justify="left" if not name else "right")
    theirs, ours = found["wait_s"], found["wait_s_kant"]
    assert isinstance(theirs, dict) and isinstance(ours, dict)
    table.add_row("jobs started", str(found["started"]), str(found["decided"]))
    for key in theirs:
        table.add_row(f"wait, {key} (s)", f"{theirs[key]:,.2f}", f"{ours[key]:,.2f}")
    table.add_row("nodes of gangs", str(found["nodes"]), str(found["nodes_kant"]))
    table.add_row("leaves of gangs", str(found["leaves"]), str(found["leaves_kant"]))
    console.print(table)
    console.print(
        f"{found['jobs']} jobs arrived; {found['decided_but_waiting']} of those that Kant would start still wait. "
        f"Each decision is independent of the others; kant replay {journal} --profile kant follows them all.",
        soft_wrap=True,
    )
    return 0
