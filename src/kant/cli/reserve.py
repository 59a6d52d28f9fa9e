"""`kant reserve` and `kant reservations`: contiguous GPUs reserved for a window of time."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any
from urllib.parse import quote

from cyclopts import Parameter

from kant.cli.amounts import moment
from kant.cli.inputs import Home, Json, whole
from kant.cli.output import Reply
from kant.cli.plain import local_time
from kant.model.errors import InputError
from kant.model.units import SECOND, parse_limit
from kant.service.client import ServiceClient, home_of

SHOWN_NODES = 4


def reserve(
    name: Annotated[str, Parameter(help="The name for jobs: `kant submit --reservation NAME`.")],
    /,
    *,
    gpus: Annotated[int, Parameter(help="The number of GPUs, close to each other.", converter=whole)],
    start: Annotated[str, Parameter(help="The start: now, in 2h, at 22:00, or at 2030-01-31T08:00.")] = "now",
    time: Annotated[str | None, Parameter(help="The duration, such as 4h.")] = None,
    end: Annotated[str | None, Parameter(help="In place of --time: the end.")] = None,
    within: Annotated[
        str, Parameter(help="One domain of: node, hbd, leaf, spine, superspine. Default: a node, else anywhere.")
    ] = "",
    model: Annotated[str, Parameter(help="GPUs of this model. Default: of any single model.")] = "",
    queue: Annotated[
        tuple[str, ...], Parameter(help="Only jobs of this queue may use it; may be repeated.", negative="")
    ] = (),
    home: Home = None,
    json: Json = False,
) -> int:
    """Book GPUs for a window of time, for jobs that name the reservation.

    The GPUs are free when the window begins: jobs that would not end before are not started there, or are stopped if
    they are preemptible. If there is no place, the reservations and jobs in the way are named.
    """
    now = datetime.now()
    begins = 0.0 if start == "now" else moment(start, now, "--start")
    if (time is None) == (end is None):
        raise InputError("--time and --end", "exactly one of them")
    if time is not None:
        duration = parse_limit(time, "--time") / SECOND
    else:
        duration = moment(end or "", now, "--end") - (begins or now.timestamp())
    if duration <= 0:
        raise InputError("--time and --end", "an end after the start", end or time)
    client = ServiceClient(home_of(home))
    asked = {
        "name": name, "gpus": gpus, "start": begins, "duration_s": duration, "within": within, "model": model,
        "queues": queue,
    }  # fmt: skip
    found = client.post("/v1/reservations", asked)
    return Reply(found, lambda: _show_made(found)).print(json)


def reservations(
    *,
    cancel: Annotated[
        tuple[str, ...], Parameter(help="Cancel this reservation, if no job runs in it; may be repeated.", negative="")
    ] = (),
    home: Home = None,
    json: Json = False,
) -> int:
    """List the reservations that have not ended; or cancel some, and list those."""
    client = ServiceClient(home_of(home))
    found = _cancelled(client, cancel) if cancel else client.get("/v1/reservations")
    return Reply(found, lambda: _show(found["reservations"], bool(cancel))).print(json)


def _cancelled(client: ServiceClient, names: tuple[str, ...]) -> dict[str, Any]:
    gone = []
    for name in names:
        gone += client.post(f"/v1/reservations/{quote(name, safe='')}/cancel")["reservations"]
    return {"reservations": gone}


def _show_made(found: dict[str, Any]) -> None:
    from kant.cli.show import console

    one = found["reservation"]
    console.print(
        f"{one['name']}: {_gpus(one)} of {_place(one)} from {local_time(one['start'])} to {local_time(one['end'])}",
        soft_wrap=True,
    )
    if found["moved"]:
        console.print(f"These reservations have moved to other GPUs: {', '.join(found['moved'])}", soft_wrap=True)


def _show(rows: list[dict[str, Any]], gone: bool) -> None:
    from kant.cli.show import console, print_table

    if not rows:
        console.print("Nothing is booked.")
        return
    columns = ("reservation", "by", "phase", "from", "to", "GPUs", "where", "jobs")
    cells = [
        (
            one["name"], one["user"], one["phase"], local_time(one["start"]), local_time(one["end"]),
            f"{one['gpus']:,}", _place(one), ", ".join(one["jobs"]),
        )
        for one in rows
    ]  # fmt: skip
    title = "Cancelled" if gone else "What is booked"
    print_table(columns, cells, title, left={*columns} - {"GPUs"})


def _gpus(one: dict[str, Any]) -> str:
    return f"{one['gpus']:,} GPU{'s' * (one['gpus'] != 1)}"


def _place(one: dict[str, Any]) -> str:
    nodes = list(one["place"])
    more = f" and {len(nodes) - SHOWN_NODES} more nodes" if len(nodes) > SHOWN_NODES else ""
    if len(nodes) == 1:
        return f"{nodes[0]} ({one['place'][nodes[0]]})"
    return ", ".join(nodes[:SHOWN_NODES]) + more
