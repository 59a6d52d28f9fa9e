"""What `kant ops` prints in a terminal."""

from __future__ import annotations

import json
from typing import Any

from kant.cli.plain import local_time
from kant.cli.show import console, print_table
from kant.model.units import SECOND, clock, show_duration


def _line(text: str, style: str = "") -> None:
    console.print(text, style=style, soft_wrap=True, markup=False, highlight=False)


def show_plan(found: dict[str, Any]) -> None:
    """Print a plan: its orders, the rules that it violates, the jobs that it affects, and whose waits change."""
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
        _line(f"beyond the limits: {', '.join(found['asks_a_person'])}: it needs the agreement of a person", "yellow")
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
        _line("no waiting time changes")
        return
    cells = [(str(row["job"]), *(show_duration(row[key] * SECOND) for key in ("before_s", "after_s"))) for row in rows]
    print_table(("job", "as it is", "with the plan"), cells, "Waits")


def show_transaction(found: dict[str, Any]) -> None:
    """Print what was done, and how to undo it."""
    _line(f"{found['txn']}: {found['state']}", "bold")
    for did in found["did"]:
        _line(f"  {did}")
    for left in found.get("not_undone", ()):
        _line(f"not undone: {left}", "yellow")
    if found["undo_until_us"] is not None and not found["txn"].startswith("u"):
        _line(f"kant ops undo {found['txn']} --reason WHY", "dim")


def show_audit(rows: list[dict[str, Any]]) -> None:
    """Print the audit, the latest entry first."""
    columns = ("when", "who", "what", "id", "orders and reason")
    cells = []
    for row in rows:
        orders = "; ".join(row.get("orders", ()))
        said = " - ".join(part for part in (orders, row.get("reason", ""), row.get("sentence", "")) if part)
        what = row["what"] + (f" ({row['code']})" if row.get("code") else "")
        when = clock(row["time_us"]) if row["time_us"] < 10**15 else local_time(row["time_us"])
        cells.append((when, row.get("who", ""), what, row.get("txn") or row.get("plan", ""), said))
    print_table(columns, cells, left=columns)


def show_habits(rows: list[dict[str, Any]]) -> None:
    """Print facts about users, one per line."""
    for row in rows:
        _line(row["sentence"])
    if not rows:
        _line("no ended job provides data for this")


def show_runbooks(rows: list[dict[str, Any]]) -> None:
    """Print runbooks, one per line."""
    columns = ("name", "words that ask for it", "steps", "stale")
    cells = [(row["name"], "; ".join(row["tasks"]), str(row["steps"]), str(row["stale"] or "")) for row in rows]
    print_table(columns, cells, left=columns[:2])


def show_runbook(found: dict[str, Any]) -> None:
    """Print a runbook as a tree: each step below the one that it follows, with its conditions."""
    _line("; ".join(found["tasks"]), "bold")

    def below(after: str, depth: int) -> None:
        for step in (each for each in found["step"] if each.get("after", "") == after):
            conditions = [f"{what} {how}" if what != "answer" else how for what, how in step.get("when", {}).items()]
            if conditions:
                _line("  " * depth + f"if {'; '.join(conditions)}", "dim")
            most = "".join(f", at most {number:g} {name}" for name, number in step.get("most", {}).items())
            bad = step.get("stale") or step.get("ask")
            text = f"{step['tool']} {json.dumps(step.get('args', {}), ensure_ascii=False)}{most}"
            _line("  " * depth + text + f" - not replayed: {bad}" * bool(bad), "yellow" if bad else "")
            below(step["id"], depth + 1)

    below("", 1)


def show_runs(rows: list[dict[str, Any]]) -> None:
    """Print the result of each task, step by step."""
    for row in rows:
        _line(row["task"], "bold")
        for step in row["steps"]:
            said = step["answer"].get("sentence") or "; ".join(step["answer"].get("did", ()))
            _line(f"  {step['tool']} {json.dumps(step['args'], ensure_ascii=False)}" + f": {said}" * bool(said))
        _line("  it is done" if row["over"] else f"  it stops here: {row['stopped']}", "" if row["over"] else "yellow")


def _count(count: int, what: str) -> str:
    return f"{count} {what}" + "s" * (count != 1)
