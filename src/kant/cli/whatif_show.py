"""Prints the answer of `kant whatif`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from kant.cli.show import console, percent, plain, points, print_table, seconds, section
from kant.model.units import SECOND, clock, show_duration

SOURCES = {
    "recorded": "from the journal",
    "learned": "learned (P50)",
    "estimate": "as their owners said",
    "limit": "up to their limits",
    "assumed": "as the median of those that finished",
}
SHARES = {"gar": "GAR mean", "sor": "SOR", "gfr": "GFR mean"}


def show_answer(answer: dict[str, Any], report: Path | None) -> None:
    """Print what changes, for whom, and by how much."""
    console.print(
        f"What if, at {clock(answer['time_us'])}: {'; '.join(answer['change'])}", style="bold", soft_wrap=True
    )
    known = ", ".join(f"{count:,} {SOURCES[source]}" for source, count in answer["run_times"].items())
    coming = "1 job arrives" if answer["coming"] == 1 else f"{plain(answer['coming'])} jobs arrive"
    console.print(f"{coming} later; run times: {known or 'of no job'}", style="dim", soft_wrap=True)
    section("submitted", [_submitted(job, answer["time_us"]) for job in answer["submitted"]])
    _show_waits(answer["waits"])
    _show_ratios(answer["ratios"])
    for name, title in (
        ("helped", "Waits that become shorter by most"),
        ("harmed", "Waits that become longer by most"),
    ):
        _show_jobs(answer[name], title)
    for key in ("rejected", "preemptions"):
        before, after = answer["before"][key], answer["after"][key]
        if before != after:
            console.print(f"{key}: {before:,} before, {after:,} after", style="yellow")
    if report is not None:
        console.print(f"report: {report}", soft_wrap=True)


def _submitted(job: dict[str, Any], now: int) -> str:
    if job["start_us"] is None:
        what = "is given back" if job["status"] == "rejected" else "does not start"
    elif job["start_us"] == now:
        what = "starts at once"
    else:
        what = f"starts at {clock(job['start_us'])}, after {show_duration(job['start_us'] - now)}"
    why = f": {job['sentence']}" if job["sentence"] and job["start_us"] != now else ""
    return f"{job['job']} {what}{why}"


def _show_waits(waits: dict[str, Any]) -> None:
    """Print waits before and after, by queue and by size class."""
    table = Table(title="Waits, before and after", title_justify="left")
    for name in ("jobs of", "jobs", "mean", "P50", "P90", "sooner", "later"):
        table.add_column(name, justify="left" if name == "jobs of" else "right", no_wrap=name in ("jobs of", "jobs"))
    rows = [("all jobs", waits["all"], True)]
    for label, group in (("queue {}", waits["by_queue"]), ("size {}", waits["by_size"])):
        own = [(label.format(name), row, False) for name, row in group.items()]
        rows += [(*own[-1][:2], True) if i == len(own) - 1 else row for i, row in enumerate(own)]
    for name, row, ends in rows:
        cells: list[str | Text] = [name, plain(row["jobs"])]
        cells += [_pair(row["before_s"][key], row["after_s"][key]) for key in ("mean", "p50", "p90")]
        cells += [_moved(row["sooner"], -1), _moved(row["later"], 1)]
        table.add_row(*cells, end_section=ends)
    console.print(table)


def _pair(before: float | None, after: float | None) -> str | Text:
    if before is None or after is None:
        return "-"
    if before == after:
        return seconds(before)
    return Text.assemble(f"{seconds(before)} → ", _coloured(seconds(after), after - before))


def _moved(own: dict[str, Any], sign: int) -> Text:
    """Return how many jobs start sooner, or later, and by how much on average."""
    return _coloured(f"{own['jobs']:,} by {seconds(own['mean_s'])}", sign) if own["jobs"] else Text("-")


def _show_ratios(ratios: dict[str, Any]) -> None:
    rows = []
    for key, label in SHARES.items():
        before, after = ratios["before"][key], ratios["after"][key]
        if before is not None and after is not None:
            rows.append((label, percent(before), percent(after), points(after, before)))
    print_table(("", "before", "after", "change"), rows, f"The cluster until {clock(ratios['until_us'])}")


def _show_jobs(jobs: list[dict[str, Any]], title: str) -> None:
    if not jobs:
        return
    rows = []
    for job in jobs:
        change = job["after_s"] - job["before_s"]
        shown = ("+" if change > 0 else "-") + show_duration(abs(change) * SECOND)
        times = (seconds(job["before_s"]), seconds(job["after_s"]))
        rows.append((job["job"], job["queue"], f"{job['gpus']:g}", *times, _coloured(shown, change)))
    print_table(("job", "queue", "GPUs", "before", "after", "change"), rows, title, left=("job", "queue"))


def _coloured(text: str, change: float) -> Text:
    return Text(text, style="green" if change < 0 else "red" if change > 0 else "dim")
