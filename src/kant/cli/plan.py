"""`kant plan`: what next week needs, and whether it fits."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

from kant.cli.inputs import Json, whole
from kant.cli.output import Reply
from kant.model.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable

    from kant.optimize.calendar.file import CalendarFile
    from kant.optimize.calendar.solve import Answer

plan_app = App(name="plan", help="Plan ahead: calendars of contiguous GPUs, and capacity.", help_format="plaintext")

SHOWN = 40
"""Rows that a table has at most; --json has all."""

Limit = Annotated[str, Parameter(help="Time to search; after it the best that was found is said.")]


@plan_app.command
def calendar(
    file: Annotated[Path, Parameter(help="A CSV file of bookings, or one of MiniMalloc (docs/planning.md).")],
    /,
    *,
    capacity: Annotated[
        int | None, Parameter(help="GPUs of the line. Default: as few as will do.", converter=whole)
    ] = None,
    slice: Annotated[str | None, Parameter(help="One calendar of a file that holds several.")] = None,
    limit: Limit = "60s",
    json: Json = False,
) -> int:
    """Say whether bookings of contiguous GPUs over windows of time fit, and where each goes; or which collide."""
    from kant.optimize.calendar.file import read_calendar
    from kant.optimize.calendar.solve import solve, solve_least

    read = read_calendar(file, slice)
    stop = stop_after(limit)
    bookings = read.bookings
    answer = solve_least(bookings, stop=stop) if capacity is None else solve(bookings, capacity, stop=stop)
    Reply(calendar_json(read, answer), lambda: _show_calendar(read, answer)).print(json)
    return 0 if answer.status == "fits" else 1


def stop_after(limit: str) -> Callable[[float], bool]:
    """What tells whether a share of the time is over."""
    from time import monotonic

    from kant.model.units import SECOND, parse_duration

    span = parse_duration(limit, "--limit") / SECOND
    if span <= 0:
        raise InputError("--limit", "a time to search, such as 60s", limit)
    begun = monotonic()
    return lambda share: monotonic() - begun >= share * span


def calendar_json(read: CalendarFile, answer: Answer) -> dict[str, Any]:
    """The answer as `--json` prints it. Times are as in the file: seconds, or plain numbers."""
    from kant.model.units import SECOND

    def seconds(time: int) -> float:
        return time / SECOND if read.timed else time

    offsets = answer.offsets or (None,) * len(read.bookings)
    return {
        "status": answer.status,
        "capacity": answer.capacity,
        "needed": answer.needed if answer.offsets else None,
        "lower_bound": answer.lower_bound,
        "first_fit": answer.first_fit if answer.offsets else None,
        "nodes": answer.nodes,
        "collide": [read.bookings[i].id for i in answer.collide],
        "minimal": answer.minimal,
        "bookings": [
            {"id": b.id, "start": seconds(b.start), "end": seconds(b.end), "gpus": b.gpus, "first_gpu": first}
            for b, first in zip(read.bookings, offsets, strict=True)
        ],
    }


def _show_calendar(read: CalendarFile, answer: Answer) -> None:
    from rich.table import Table

    from kant.cli.show import console
    from kant.model.units import show_duration

    count = f"{len(read.bookings):,} bookings"
    gpus = f"{answer.capacity:,} GPUs"
    if answer.status == "fits":
        least = " (no fewer will do)" if answer.needed == answer.lower_bound else ""
        console.print(f"{count} fit on {gpus}; the plan uses {answer.needed:,}{least}.", style="green")
    elif answer.status == "infeasible":
        console.print(f"{count} do not fit on {gpus}.", style="red")
    else:
        console.print(f"{count}: no plan on {gpus} was found in the time, and none is ruled out.", style="yellow")
    if answer.collide:
        names = ", ".join(read.bookings[i].id for i in answer.collide)
        without = ": without any one of them the others of these fit" if answer.minimal else ""
        console.print(f"{len(answer.collide)} collide{without}: {names}", soft_wrap=True)
    if not answer.offsets:
        return
    if answer.status != "fits":
        console.print(f"The best plan needs {answer.needed:,} GPUs; fewer than {answer.lower_bound:,} cannot do.")
    console.print(f"First fit needs {answer.first_fit:,}.")
    table = Table(title=f"The plan on {max(answer.needed, 1):,} GPUs", title_justify="left")
    for name in ("booking", "from", "to", "GPUs", "first GPU", "last GPU"):
        table.add_column(name, justify="left" if name == "booking" else "right")
    rows = sorted(range(len(read.bookings)), key=lambda i: (read.bookings[i].start, answer.offsets[i], i))
    for i in rows[:SHOWN]:
        b, first = read.bookings[i], answer.offsets[i]
        start, end = (show_duration(t) if read.timed else f"{t:,}" for t in (b.start, b.end))
        table.add_row(b.id, start, end, f"{b.gpus:,}", f"{first:,}", f"{first + b.gpus - 1:,}")
    console.print(table)
    if len(rows) > SHOWN:
        console.print(f"and {len(rows) - SHOWN:,} more (--json has all)")
