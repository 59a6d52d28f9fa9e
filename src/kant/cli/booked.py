"""`kant plan calendar` of a journal: the bookings at a time, and which of them collide."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kant.cli.inputs import parse_at
from kant.cli.output import Reply
from kant.cli.show import SHOWN, console, print_table
from kant.model.units import FOREVER, SECOND, clock

if TYPE_CHECKING:
    from kant.model.node import ClusterSpec
    from kant.optimize.calendar.booked import Collision, HeldGpus


def booked_calendar(path: Path, at: str | None, json: bool) -> int:
    """Print the bookings of a journal at a time (None: its end); return 1 if any collide."""
    from kant.optimize.calendar.booked import booked_in, collisions
    from kant.sim.state_at import state_at

    rebuilt = state_at(path, parse_at(at))
    state, now, estimates = rebuilt.state, rebuilt.now, rebuilt.scheduler.profile.estimates
    preempts = rebuilt.scheduler.profile.preemption is not None
    bookings, shared = booked_in(state, now, lambda row: estimates.end(state, row, now), preempts)
    found = collisions(bookings)
    reply = Reply(
        _json(state.spec, now, bookings, found, shared), lambda: _show(state.spec, now, bookings, found, shared)
    )
    reply.print(json)
    return 1 if found else 0


def _json(
    spec: ClusterSpec, now: int, bookings: list[HeldGpus], found: list[Collision], shared: list[str]
) -> dict[str, Any]:
    def seconds(time: int) -> float | None:
        return None if time >= FOREVER else time / SECOND

    return {
        "status": "infeasible" if found else "fits",
        "time": now / SECOND,
        "bookings": [
            {
                "id": each.id, "kind": each.kind, "start": seconds(each.start), "end": seconds(each.end),
                "gpus": each.gpus, "held": [[spec.nodes[node].name, mask] for node, mask in each.held],
            }
            for each in bookings
        ],
        "collide": [
            {
                "ids": [bookings[each.first].id, bookings[each.second].id], "node": spec.nodes[each.node].name,
                "gpus": each.gpus, "since": each.since / SECOND,
            }
            for each in found
        ],
        "shared": shared,
    }  # fmt: skip


def _show(spec: ClusterSpec, now: int, bookings: list[HeldGpus], found: list[Collision], shared: list[str]) -> None:
    counts = Counter(each.kind for each in bookings)
    booked = f"{counts['booked']:,} booked, " if counts["booked"] else ""
    console.print(
        f"At {clock(now)}: {counts['running']:,} running, {counts['reserved']:,} reserved, {booked}"
        f"{counts['maintenance']:,} in maintenance.",
        soft_wrap=True,
    )
    if shared:
        console.print(f"{len(shared):,} jobs that share GPUs are left out.")
    if not found:
        console.print("No two of these hold the same GPUs.", style="green")
    for each in found[:SHOWN]:
        one, two = bookings[each.first], bookings[each.second]
        console.print(
            f"{one.id} ({one.kind}) and {two.id} ({two.kind}) both hold {each.gpus.bit_count()} GPUs of "
            f"{spec.nodes[each.node].name} from {clock(each.since)} on.",
            style="red",
            soft_wrap=True,
        )
    rows = []
    for booking in bookings:
        times = (clock(booking.start), "not known" if booking.end >= FOREVER else clock(booking.end))
        rows.append((booking.id, booking.kind, *times, f"{booking.gpus:,}", f"{len(booking.held):,}"))
    if rows:
        columns = ("booking", "kind", "from", "to", "GPUs", "nodes")
        print_table(columns, rows, "What is booked", left=("booking", "kind"), most=SHOWN)
    if len(found) > SHOWN:
        console.print(f"and {len(found) - SHOWN:,} more collisions (--json has all)")
