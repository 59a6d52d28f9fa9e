"""Prints tables of `kant serve`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from kant.cli.show import console, percent, plain, print_table, value_at


def milliseconds(value: float) -> str:
    """Format a time in seconds: below 10 s as milliseconds."""
    return f"{1e3 * value:,.1f} ms" if value < 10 else f"{value:,.1f} s"


def _rate(value: float) -> str:
    return f"{value:,.2f}/s"


ROWS: tuple[tuple[str, tuple[str, ...], Callable[[float], str]], ...] = (
    ("requests", ("requests",), plain),
    ("finished", ("finished",), plain),
    *(
        (f"{label} {word}", (key, word), milliseconds)
        for label, key in (
            ("first token", "ttft_s"),
            ("time per token", "tpot_s"),
            ("end to end", "e2e_s"),
            ("latency per token", "normalised_latency_s_per_token"),
        )
        for word in ("mean", "p50", "p99")
    ),
    ("longest gap between tokens", ("max_gap_s",), milliseconds),
    ("preemptions", ("preemptions",), plain),
    ("evicted requests", ("evicted_share",), percent),
    ("requests served", ("throughput", "requests_per_s"), _rate),
    ("tokens generated", ("throughput", "output_tokens_per_s"), _rate),
    ("within objectives", ("goodput", "share"), percent),
    ("goodput", ("goodput", "requests_per_s"), _rate),
    ("KV in use, mean", ("kv_use", "mean"), percent),
    ("prefix cache hits", ("cache_hit_rate",), percent),
    ("host memory hits", ("host_hit_rate",), percent),
)


def show_served(summaries: Sequence[dict[str, Any]]) -> None:
    """Print one run, or several side by side."""
    first = summaries[0]
    engines = f"{first['engines']} x {first['model']} on {first['gpu']}"
    columns = ("metric", *(f"{summary['policy']}, {summary['router']}" for summary in summaries))
    rows: list[tuple[str, ...]] = []
    ends = []
    for label, path, show in ROWS:
        values = [value_at(summary, path) for summary in summaries]
        if label.endswith(" p99") or label in ("finished", "evicted requests"):
            ends.append(len(rows))
        rows.append((label, *("-" if value is None else show(value) for value in values)))
    print_table(columns, rows, f"{first['workload']} on {engines}", ends=ends)
    console.print(f"latency: {first['latency']}", soft_wrap=True, markup=False, style="dim")
    for note in dict.fromkeys(note for summary in summaries for note in summary.get("signals", ())):
        console.print(note, soft_wrap=True, markup=False, style="dim")


def show_policies(found: dict[str, list[dict[str, Any]]]) -> None:
    """Print the policies, the routers and the models."""
    for title, rows in found.items():
        columns = [name.replace("_", " ") for name in rows[0]]
        cells = [[f"{value:,}" if isinstance(value, int) else value for value in row.values()] for row in rows]
        print_table(columns, cells, title, left=columns)


def _about(summary: dict[str, Any]) -> str:
    """Return the heading of the numbers: the service and its objectives."""
    promise = summary["objectives"]
    return (
        f"{summary['mix']} on {summary['model']}, {summary['tensor_parallel']} x {summary['gpu']} a replica:"
        f" P99 within {promise['ttft_s']:g} s to the first token, {1e3 * promise['tpot_s']:g} ms a token"
    )


def show_capacity(summary: dict[str, Any]) -> None:
    """Print requests per second by replicas."""
    console.print(_about(summary), soft_wrap=True)
    console.print(f"latency: {summary['latency']}", soft_wrap=True, markup=False, style="dim")
    rows = []
    for row in summary["capacity"]:
        rates = (_rate(row["requests_per_s"]), _rate(row["requests_per_s_each"]))
        times = (milliseconds(row["ttft_p99_s"]), milliseconds(row["tpot_p99_s"]))
        rows.append((str(row["replicas"]), *rates, *times, f"{row['kept']} of {row['minutes']}"))
    columns = ("replicas", "requests", "of each", "first token p99", "per token p99", "minutes kept")
    print_table(columns, rows, left=())


def show_removal(summary: dict[str, Any]) -> None:
    """Print the cost of a replica's absence, on average over the runs."""
    console.print(_about(summary), soft_wrap=True)
    how = "stopped" if summary["kill"] else "drained"
    title = f"one of {summary['replicas']} replicas {how} for {summary['seconds']:g} s at {summary['rate']:g}/s"
    rows: tuple[tuple[str, str, Callable[[float], str]], ...] = (
        ("requests that come late or are lost", "late", "{:,.1f}".format),
        ("requests lost", "lost", "{:,.1f}".format),
        ("requests sent again elsewhere", "moved", "{:,.1f}".format),
        ("delay of all requests together", "delay_s", "{:,.0f} s".format),
        ("empty after", "drained_s", "{:,.1f} s".format),
    )
    cells = []
    for label, key, show in rows:
        values = [run[key] for run in summary["runs"]]
        cells.append((label, show(summary["mean"][key]), f"{show(min(values))} to {show(max(values))}"))
    print_table(("cost", "mean", "runs"), cells, title)


def compare_services(runs: Sequence[tuple[str, dict[str, Any]]]) -> None:
    """Print the services of several runs: GPU-hours and kept minutes, a column per profile."""
    lines, ends = [], []
    by_name = [{row["service"]: row for row in summary["services"]} for _, summary in runs]
    for name in by_name[0]:
        rows = [services.get(name, {"minutes": 0}) for services in by_name]
        for label, show in (
            ("GPU-hours", lambda row: f"{row['gpu_hours']:,.1f}"),
            ("replicas", lambda row: f"{row['replicas']['mean']:.1f}"),
            ("within capacity", lambda row: f"{100 * row['kept_by_capacity']:.2f} %"),
            ("objectives kept", _kept),
        ):
            cells = [show(row) if row["minutes"] else "-" for row in rows]
            lines.append((name if label == "GPU-hours" else "", label, *cells))
        ends.append(len(lines) - 1)
    print_table(("service", "", *(profile for profile, _ in runs)), lines, "services", left=("service", ""), ends=ends)


def _kept(row: dict[str, Any]) -> str:
    """Return the share of minutes within the objectives, as judged by the engine, with its interval."""
    return f"{100 * row['engine']['share']:.2f} ± {196 * row['engine']['error']:.2f} %"


def show_services(rows: Sequence[dict[str, Any]]) -> None:
    """Print the results of a run's services."""
    columns = ("service", "requests", "replicas", "GPU-hours", "within capacity", "objectives kept")
    print_table((*columns, "judged by the engine"), [_service(row) for row in rows], "services")


def _service(row: dict[str, Any]) -> tuple[str, ...]:
    if not row["minutes"]:
        return (row["service"], "0", *("-" for _ in range(5)))
    replicas, engine = row["replicas"], row["engine"]
    return (
        row["service"],
        f"{row['requests']:,}",
        f"{replicas['mean']:.1f} ({replicas['min']} to {replicas['max']})",
        f"{row['gpu_hours']:,.1f}",
        f"{100 * row['kept_by_capacity']:.2f} %",
        _kept(row),
        f"{engine['judged']} of {row['minutes']:,} minutes",
    )
