"""The folder of a run: summary, requests, series, and a report to look at."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import polars as pl

from kant.serving.columns import Times
from kant.serving.summary import Served

WIDTH, HEIGHT = 860, 120
COLOURS = ("#1f5fa8", "#c4572a", "#3c8048", "#8a4d9e", "#a08315", "#2a8c95", "#7a5648", "#67707a")

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2em auto; max-width: 920px; color: #1d2329; }
table { border-collapse: collapse; } td, th { padding: .15em .9em .15em 0; text-align: right; }
td:first-child, th:first-child { text-align: left; } svg { background: #f6f7f8; margin-bottom: 1em; }
text { font: 11px system-ui, sans-serif; fill: #4a525a; }
"""


def write_bundle(folder: Path, summaries: Sequence[dict[str, Any]], runs: Sequence[Served]) -> None:
    """Write `summary.json`, `requests.csv`, `series.csv` and `report.html`; several runs have a number in each row."""
    folder.mkdir(parents=True, exist_ok=True)
    summary = summaries[0] if len(summaries) == 1 else {"runs": list(summaries)}
    (folder / "summary.json").write_bytes(msgspec.json.format(msgspec.json.encode(summary), indent=2) + b"\n")
    pl.concat([_requests(k, run) for k, run in enumerate(runs)]).write_csv(folder / "requests.csv")
    pl.concat([_series(k, run) for k, run in enumerate(runs)]).write_csv(folder / "series.csv")
    (folder / "report.html").write_text("\n".join(_page(summaries, runs)), encoding="utf-8")


def _requests(number: int, run: Served) -> pl.DataFrame:
    requests = run.requests
    return pl.DataFrame(
        {
            "run": np.full(len(requests), number),
            "request": np.arange(len(requests)),
            "arrival_s": requests.arrival,
            "prompt": requests.prompt,
            "output": requests.output,
            "engine": run.engine,
            "first_s": run.first,
            "finish_s": run.finish,
            "longest_gap_s": run.gap,
            "preempted": run.preempted,
            "cached": run.cached,
        }
    )


def _series(number: int, run: Served) -> pl.DataFrame:
    time, engine, running, waiting, kv = run.series.T
    return pl.DataFrame(
        {
            "run": np.full(len(time), number),
            "time_s": time,
            "engine": engine.astype(np.int64),
            "running": running.astype(np.int64),
            "waiting": waiting.astype(np.int64),
            "kv_share": kv,
        }
    )


def _page(summaries: Sequence[dict[str, Any]], runs: Sequence[Served]) -> Iterator[str]:
    yield "<!doctype html><html lang='en'><head><meta charset='utf-8'><title>Kant serve</title>"
    yield f"<style>{STYLE}</style></head><body>"
    for summary, run in zip(summaries, runs, strict=True):
        title = f"{summary['workload']}: {summary['policy']}, {summary['router']}"
        yield f"<h1>{escape(title)}</h1><table><tr><th></th><th>mean</th><th>P50</th><th>P90</th><th>P99</th></tr>"
        for label, key in (
            ("time to first token, s", "ttft_s"),
            ("time per token, s", "tpot_s"),
            ("end to end, s", "e2e_s"),
        ):
            cells = "".join(f"<td>{'-' if value is None else f'{value:.4g}'}</td>" for value in summary[key].values())
            yield f"<tr><td>{label}</td>{cells}</tr>"
        yield "</table>"
        share, digest = summary["goodput"]["share"], summary["digest"]
        yield f"<p>{summary['requests']:,} requests, {summary['preemptions']:,} preemptions,"
        yield f" {100 * share:.1f} % within objectives, digest <code>{digest}</code>.</p>"
        for label, column in (("requests that run", 2), ("requests that wait", 3), ("share of KV held", 4)):
            yield f"<h2>{label}</h2>"
            yield _plot(run.series, column, int(summary["engines"]), label)
    yield "</body></html>"


def _plot(series: Times, column: int, engines: int, label: str) -> str:
    """Lines over time, one for each engine (of the first eight)."""
    if len(series) == 0:
        return "<p>nothing</p>"
    begin, end = float(series[0, 0]), max(float(series[-1, 0]), float(series[0, 0]) + 1e-9)
    top = max(float(series[:, column].max()), 1.0)
    lines = [f"<svg role='img' aria-label='{label} over time' viewBox='0 0 {WIDTH} {HEIGHT + 20}' width='{WIDTH}'>"]
    for k in range(min(engines, len(COLOURS))):
        rows = series[series[:, 1] == k]
        x = (rows[:, 0] - begin) / (end - begin) * (WIDTH - 2) + 1
        y = HEIGHT - rows[:, column] / top * (HEIGHT - 14)
        points = " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(x.tolist(), y.tolist(), strict=True))
        lines.append(
            f"<polyline fill='none' stroke='{COLOURS[k]}' points='{points}'><title>engine {k}</title></polyline>"
        )
    lines.append(f"<text x='4' y='11'>{top:,.4g}</text><text x='4' y='{HEIGHT + 15}'>{begin:,.0f} s</text>")
    lines.append(f"<text x='{WIDTH - 4}' y='{HEIGHT + 15}' text-anchor='end'>{end:,.0f} s</text></svg>")
    return "".join(lines)
