"""What `kant ops` prints in a terminal."""

from __future__ import annotations

from typing import Any

from rich.table import Table

from kant.cli.show import console
from kant.model.units import SECOND, clock, show_duration


def _line(text: str, style: str = "") -> None:
    console.print(text, style=style, soft_wrap=True, markup=False, highlight=False)


def show_plan(found: dict[str, Any]) -> None:
    """A plan: its orders, what they break, whom they touch, and whose wait changes."""
    _line(f"plan {found['plan_id']}", "bold")
    for order in found["orders"]:
        _line(f"  {order}")
    for broken in found["violations"]:
        which = f"order {broken['order']}: " if broken.get("order") else ""
        _line(f"not possible: {which}{broken['sentence']}", "red")
    blast = found["blast_radius"]
    _line(
        f"touches {_count(len(blast['jobs']), 'job')}, {blast['gpus']:g} GPUs, {_count(len(blast['nodes']), 'node')}; "
        f"{found['gpu_hours_lost']:g} GPU-hours of work are lost"
    )
    _show_effects(found["effects"])
    for each in found["cannot_be_undone"]:
        _line(f"cannot be undone: {each}", "yellow")
    if found["asks_a_person"]:
        _line(f"beyond the limits: {', '.join(found['asks_a_person'])}: it has to be agreed to", "yellow")
    if found["can_be_applied"]:
        _line(f"kant ops apply {found['plan_id']} --reason WHY", "dim")


def _show_effects(effects: dict[str, Any]) -> None:
    if effects.get("not_foretold"):
        _line(effects["not_foretold"], "yellow")
    if "waits" not in effects:
        return
    for word, name in (("starts at once", "start_now"), ("stops", "stop"), ("moves", "move")):
        if effects[name]:
            _line(f"{word}: {', '.join(map(str, effects[name]))}")
    rows = [row for row in (*effects["sooner"], *effects["later"]) if isinstance(row, dict)]
    if not rows:
        _line("nobody's wait changes")
        return
    table = Table(title="Waits", title_justify="left")
    for name in ("job", "as it is", "with the plan"):
        table.add_column(name, justify="left" if name == "job" else "right")
    for row in rows:
        times = [show_duration(row[key] * SECOND) for key in ("before_s", "after_s")]
        table.add_row(str(row["job"]), *times)
    console.print(table)


def show_transaction(found: dict[str, Any]) -> None:
    """What was done, and how it is taken back."""
    _line(f"{found['txn']}: {found['state']}", "bold")
    for did in found["did"]:
        _line(f"  {did}")
    for left in found.get("not_undone", ()):
        _line(f"not taken back: {left}", "yellow")
    if found["undo_until_us"] is not None and not found["txn"].startswith("u"):
        _line(f"kant ops undo {found['txn']} --reason WHY", "dim")


def show_audit(rows: list[dict[str, Any]]) -> None:
    """The audit, the latest first."""
    table = Table()
    for name in ("when", "who", "what", "id", "orders and reason"):
        table.add_column(name)
    for row in rows:
        orders = "; ".join(row.get("orders", ()))
        said = " - ".join(part for part in (orders, row.get("reason", ""), row.get("sentence", "")) if part)
        what = row["what"] + (f" ({row['code']})" if row.get("code") else "")
        when = clock(row["time_us"]) if row["time_us"] < 10**15 else _date(row["time_us"])
        table.add_row(when, row.get("who", ""), what, row.get("txn") or row.get("plan", ""), said)
    console.print(table)


def _date(time_us: int) -> str:
    from datetime import datetime

    return datetime.fromtimestamp(time_us / SECOND).isoformat(" ", "seconds")


def _count(count: int, what: str) -> str:
    return f"{count} {what}" + "s" * (count != 1)
