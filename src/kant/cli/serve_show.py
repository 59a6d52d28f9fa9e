"""Tables of `kant serve` for the terminal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rich.table import Table

from kant.cli.show import console, percent, plain, value_at


def _ms(value: float) -> str:
    return f"{1e3 * value:,.1f} ms" if value < 10 else f"{value:,.1f} s"


def _rate(value: float) -> str:
    return f"{value:,.2f}/s"


ROWS: tuple[tuple[str, tuple[str, ...], Callable[[float], str]], ...] = (
    ("requests", ("requests",), plain),
    ("finished", ("finished",), plain),
    *(
        (f"{label} {word}", (key, word), _ms)
        for label, key in (
            ("first token", "ttft_s"),
            ("time per token", "tpot_s"),
            ("end to end", "e2e_s"),
            ("latency per token", "normalised_latency_s_per_token"),
        )
        for word in ("mean", "p50", "p99")
    ),
    ("longest gap between tokens", ("max_gap_s",), _ms),
    ("preemptions", ("preemptions",), plain),
    ("evicted requests", ("evicted_share",), percent),
    ("requests served", ("throughput", "requests_per_s"), _rate),
    ("tokens generated", ("throughput", "output_tokens_per_s"), _rate),
    ("within objectives", ("goodput", "share"), percent),
    ("goodput", ("goodput", "requests_per_s"), _rate),
    ("KV in use, mean", ("kv_use", "mean"), percent),
    ("prefix cache hits", ("cache_hit_rate",), percent),
)


def show_served(summaries: Sequence[dict[str, Any]]) -> None:
    """One run, or several side by side."""
    first = summaries[0]
    engines = f"{first['engines']} x {first['model']} on {first['gpu']}"
    table = Table(title=f"{first['workload']} on {engines}", title_justify="left")
    table.add_column("metric")
    for summary in summaries:
        table.add_column(f"{summary['policy']}, {summary['router']}", justify="right")
    for label, path, show in ROWS:
        values = [value_at(summary, path) for summary in summaries]
        last = label.endswith(" p99") or label in ("finished", "evicted requests")
        table.add_row(label, *("-" if value is None else show(value) for value in values), end_section=last)
    console.print(table)


def show_policies(found: dict[str, list[dict[str, Any]]]) -> None:
    """The policies, the routers and the models."""
    for title, rows in found.items():
        table = Table(title=title, title_justify="left")
        for name in rows[0]:
            table.add_column(name.replace("_", " "), overflow="fold")
        for row in rows:
            table.add_row(*(f"{value:,}" if isinstance(value, int) else value for value in row.values()))
        console.print(table)
