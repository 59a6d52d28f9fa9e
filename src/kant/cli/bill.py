"""`kant bill`: what users and queues cost, at the prices of GPU models."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from kant.cli.history import moment, print_csv
from kant.cli.inputs import Home, Json
from kant.cli.output import Reply
from kant.model.errors import InputError
from kant.model.units import FOREVER
from kant.service.client import home_of
from kant.workload.tenants_file import read_tenants

BY = ("user", "queue", "model")
HEADS = {
    "gpu_hours": "GPU-hours", "cost": "cost", "waited_gpu_hours": "waited for", "waited_cost": "would cost",
    "fragment_gpu_hours": "left idle", "fragment_cost": "costs",
}  # fmt: skip


def bill(
    *journals: Annotated[
        Path, Parameter(help="Journals that follow one another. Default: those of Kant on this machine.")
    ],
    by: Annotated[str, Parameter(help="Group by any of user, queue, model, separated by commas.")] = "user",
    since: Annotated[
        str, Parameter(help="Only from this time on: 30d (ago), or 2030-01-31. Default: from the start.")
    ] = "",
    until: Annotated[str, Parameter(help="Only before this time. Default: the end of the record.")] = "",
    queues: Annotated[
        Path | None, Parameter(help="The file of queues whose [prices] are used. Default: those of the journals.")
    ] = None,
    csv: Annotated[bool, Parameter(help="Comma-separated values.", negative="")] = False,
    home: Home = None,
    json: Json = False,
) -> int:
    """Print what users held, waited for and left idle, in GPU-hours and at the prices of their GPU models.

    The bill is added up from journals, so it includes every run, even one that was stopped. Left idle are the idle GPUs
    of partly used nodes; they are divided among the users of each node. Prices are for one hour of a GPU, from the file
    of queues; waiting jobs are priced at the cheapest model that they accept.
    """
    from kant.live.journal_walk import has_header
    from kant.sim.bill import bill_of

    parts = [part for part in by.split(",") if part]
    for part in parts:
        if part not in BY or parts.count(part) > 1:
            raise InputError("--by", f"some of {', '.join(BY)}, each at most once", part)
    now = datetime.now()
    start, end = (moment(text, now, option) if text else default for text, option, default in (
        (since, "--since", 0), (until, "--until", FOREVER)
    ))  # fmt: skip
    prices = dict(read_tenants(queues).prices) if queues is not None else None
    folder = home_of(home) / "journal"
    paths = list(journals) or [path for path in sorted(folder.glob("*.jsonl")) if has_header(path)]
    if not paths:
        expected = "journals of Kant that this user can read, or JOURNAL as an argument"
        raise InputError(str(folder), expected)
    found = bill_of(paths, start, end, prices).rows(parts)
    if csv and not json:
        return print_csv((*parts, *HEADS), found)
    return Reply({"by": parts, "rows": found}, lambda: _show(parts, found)).print(json)


def _show(parts: list[str], rows: list[dict[str, Any]]) -> None:
    from kant.cli.show_answers import table

    shown = [row | {name: None if row[name] is None else f"{row[name]:,.2f}" for name in HEADS} for row in rows]
    table("Bill, in GPU-hours and what they cost", shown, {part: part for part in parts} | HEADS)
