"""Prints answers about jobs and queues in the terminal, from any source."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from kant.cli.show import console, print_table, section
from kant.cli.show_everyday import due, earlier_lines, earlier_said, explained, rests_on, waits
from kant.model.units import SECOND, clock, show_duration

LONGEST_LIST = 20
NO_NOTES: Mapping[str, list[str]] = MappingProxyType({})


def show_queues(rows: list[dict[str, Any]], budgets: list[dict[str, Any]], gone: str = "") -> None:
    """Print the queues and the use of their budgets; `gone` says why nothing starts."""
    names = {"nominal_gpus": "quota", "used_gpus": "used", "borrowed_gpus": "borrowed", "lent_gpus": "lent"}
    counts = {"running": "running", "waiting": "waiting", "waiting_gpus": "GPUs waited for"}
    table("Queues", rows, {"queue": "queue", "model": "model", "state": "state"} | names | counts)
    _show_budgets(budgets)
    section("nothing starts", [gone] if gone else [])


def _show_budgets(rows: list[dict[str, Any]]) -> None:
    """Print the use of this month's budgets; print nothing if there are none."""
    hours = {f"{name}_gpu_hours": name for name in ("used", "soft", "hard")}
    left = {"": "", "soft": "goes after all others", "hard": "starts nothing"}
    shown = [
        row
        | {name: None if row[name] is None else f"{row[name]:,.2f}".removesuffix(".00") for name in hours}
        | {"state": left[row["state"]], "until": clock(row["until_us"])}
        for row in rows
    ]
    if shown:
        names = {"queue": "queue", "user": "user"} | hours | {"state": "used up", "until": "month ends"}
        table("Budgets, GPU-hours of this month", shown, names)


def show_top(pools: list[dict[str, Any]], jobs: list[dict[str, Any]], unread: Sequence[str] = ()) -> None:
    """Print pools, jobs and what could not be read."""
    show_pools(pools)
    lasted = [row | {"running_us": show_duration(row["running_us"])} for row in jobs[:LONGEST_LIST]]
    table(
        "Largest jobs", lasted, {"job": "job", "queue": "queue", "gpus": "GPUs", "nodes": "nodes", "running_us": "for"}
    )
    section("not understood", list(unread))


def show_pools(pools: list[dict[str, Any]]) -> None:
    """Print the capacity of the pools."""
    shown = [
        row | {part: f"{100 * row[part]:.1f} %" if row[part] is not None else None for part in ("gar", "gfr")}
        for row in pools
    ]
    table(
        "Pools",
        shown,
        {"pool": "pool", "nodes": "nodes", "gpus": "GPUs", "allocated": "allocated", "gar": "GAR", "gfr": "GFR"}
        | {"idle_node_gpus": "on idle nodes", "waiting_gpus": "GPUs waited for"},
    )


def table(title: str, rows: list[dict[str, Any]], columns: dict[str, str]) -> None:
    """Print rows; `columns` has the heading of each key."""
    if not rows:
        console.print(f"{title}: none")
        return
    right = {key for key in columns if key in ("gar", "gfr") or any(isinstance(row[key], int | float) for row in rows)}
    cells = [[_cell(row[key]) for key in columns] for row in rows]
    print_table(list(columns.values()), cells, title, left=[name for key, name in columns.items() if key not in right])


def _cell(value: Any) -> str:
    return "-" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def show_one(row: dict[str, Any], now: int) -> None:
    """Print the expected start of one job."""
    early, late = (_when(row["expected_us"], name, now) for name in ("p50", "p90"))
    console.print(f"{row['job']}: P50 {early}, P90 {late}", style="bold", soft_wrap=True)
    why = row["sentence"] or "nothing keeps it from starting"
    console.print(f"number {row['place']:,} of {row['of']:,} waiting jobs; {why}", style="dim", soft_wrap=True)
    section("rests on", rests_on(row))
    section("how accurate such answers were", _earlier([row]))
    section("wait or place", [row["wait_or_place"]["sentence"]] if row["wait_or_place"] else [])


def show_age(answer: dict[str, Any]) -> None:
    """Print the age of a forecast, if it is at least a second."""
    if (age := answer["time_us"] - answer["as_of_us"]) >= SECOND:
        console.print(f"as forecast {show_duration(age)} ago", style="dim")


def show_expectations(rows: list[dict[str, Any]], now: int, budgets: list[dict[str, Any]]) -> None:
    """Print the expected starts, and when budgets are used up."""
    if rows:
        _show_expectations(rows, now)
    else:
        console.print(f"no job waits at {clock(now)}")
    show_dry(budgets, now)


def _show_expectations(rows: list[dict[str, Any]], now: int) -> None:
    cells = []
    for row in rows:
        times = (_when(row["expected_us"], name, now) for name in ("p50", "p90"))
        waits = show_duration(now - row["since_us"])
        cells.append((row["job"], row["queue"], f"{row['gpus']:g}", waits, row["why"], *times))
    columns = ("job", "queue", "GPUs", "waits", "because", "P50", "P90")
    title = f"Expected starts as of {clock(now)}, first in order first"
    print_table(columns, cells, title, left={*columns} - {"GPUs", "waits"})
    section("rests on", [f"{row['job']}: {text}" for row in rows[:LONGEST_LIST] for text in rests_on(row)])
    section("how accurate such answers were", _earlier(rows))
    section(
        "wait or place", [f"{row['job']}: {row['wait_or_place']['sentence']}" for row in rows if row["wait_or_place"]]
    )


def show_dry(budgets: list[dict[str, Any]], now: int) -> None:
    """Print when budgets will be used up, and whose waits change then."""
    lines = []
    for row in budgets:
        whose = f"user {row['user']} of {row['queue']}" if row["user"] else row["queue"]
        what = "is used up" if row["limit"] == "hard" else "exceeds its soft budget"
        early, middle = row["expected_us"]["p10"], row["expected_us"]["p50"]
        if early <= now:
            when = "now"
        elif middle is None:
            when = f"perhaps this month: at {clock(early)} at the earliest (P10)"
        else:
            when = (
                f"at {clock(middle)} (P50), not before {clock(early)} (P10)"
                if early < middle
                else f"at {clock(middle)}"
            )
        lines.append(f"{whose} {what} {when}")
        if names := row["jobs"]:
            more = f" and {len(names) - 5:,} more" if names[5:] else ""
            jobs = f"job{'s' * bool(names[1:])} {', '.join(names[:5])}{more}"
            lines[-1] += f"; {jobs} then wait{'s' * (not names[1:])} until {clock(row['until_us'])}"
    section("budgets", lines)


def _earlier(rows: list[dict[str, Any]]) -> list[str]:
    """Return a line for each group of jobs with the same track record, in order."""
    jobs: dict[str, list[str]] = {}
    for row in rows:
        if row["expected_us"]["p50"] is not None:
            jobs.setdefault(earlier_said(row["earlier"]), []).append(row["job"])
    return [f"{named[0]}{f' and {len(named) - 1:,} more' if named[1:] else ''}: {said}" for said, named in jobs.items()]


def _when(expected: dict[str, Any], name: str, now: int) -> str:
    start = expected[name]
    if start is None:
        return "never" if expected["never"] else "unknown"
    return f"{clock(start)} (in {show_duration(start - now)})"


def show_explanation(answer: dict[str, Any], notes: Mapping[str, list[str]] = NO_NOTES) -> None:
    """Print why a job waits (`live/explained.py`), and `notes` by their titles."""
    now, starts = answer["time_us"], answer["expected_us"]
    what = answer["sentence"] or "nothing keeps it from starting"
    console.print(f"{answer['job']}: {what}", style="bold", soft_wrap=True)
    console.print(
        f"at {clock(now)} it has waited {show_duration(now - answer['since_us'])} for {_asks(answer)}",
        style="dim",
        soft_wrap=True,
    )
    explained(answer, section)
    early, late = (
        due(starts, name, now) if starts[name] is None else f"{clock(starts[name])} ({due(starts, name, now)})"
        for name in ("p50", "p90")
    )
    times = f"P50 {early}, P90 {late}" if early != late else f"P50 and P90 {early}"
    section("expected start", [times, *rests_on(answer), *earlier_lines(answer)])
    section("wait or place", [answer["wait_or_place"]["sentence"]] if answer["wait_or_place"] else [])
    section("waited so far", waits(answer["waited_us"]))
    for title, lines in notes.items():
        section(title, lines)


def show_untried(pod: str, sentence: str) -> None:
    """Print why a pod waits that is not part of a job yet."""
    console.print(f"{pod}: it is not scheduled: {sentence}", style="bold", soft_wrap=True)


def show_place(answer: dict[str, Any], now: int) -> None:
    """Print where a job runs that does not wait."""
    since = show_duration(now - answer["started_us"])
    size = f", and {answer['size']}" if answer["size"] else ""
    what = f"it has run for {since}{size}" if answer["status"] == "running" else f"it is {answer['status']}"
    console.print(f"{answer['job']}: it does not wait, {what}", style="bold", soft_wrap=True)
    section("on", [f"{node}: {pods} pod{'s' if pods > 1 else ''}" for node, pods in answer["nodes"].items()])


def show_history(answer: dict[str, Any]) -> None:
    """Print the history of a job that does not wait."""
    started, ended = clock(answer["started_us"]), clock(answer["end_us"])
    what = {
        "running": f"has run since {started}",
        "finished": f"ran from {started} and finished at {ended}",
        "rejected": f"was rejected at {ended}: {answer['rejected_because']}",
        "cancelled": f"was cancelled at {ended}",
    }[answer["status"]]
    console.print(f"{answer['job']}: it does not wait, it {what}", style="bold", soft_wrap=True)
    console.print(
        f"at {clock(answer['time_us'])}; submitted at {clock(answer['submitted_us'])} for {_asks(answer)}",
        style="dim",
        soft_wrap=True,
    )
    section("has lost its place to", [", ".join(answer["bad_nodes"])] if answer["bad_nodes"] else [])
    section("waited", waits(answer["waited_us"]))


def _asks(answer: dict[str, Any]) -> str:
    pods = "1 pod" if answer["pods"] == 1 else f"{answer['pods']:,} pods"
    where = f" in queue {answer['queue']}" if answer["queue"] else ""
    gpus = "1 GPU" if answer["gpus"] == 1 else f"{answer['gpus']:g} GPUs"
    return f"{gpus} in {pods}{where}, priority {answer['priority']}"
