"""The HTML report of a simulation: its numbers, and charts of requests, queues and KV over time for each engine.

One self-contained HTML file: a time slider moves a line through all charts, which show their values at that time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from typing import Any

import msgspec
import numpy as np
import polars as pl

from kant.serving.columns import Times

WIDTH, HEIGHT, LEFT, BOTTOM = 860, 130, 44, 18
COLOURS = ("#2f6fb5", "#c4572a", "#3c8048", "#9a58b0", "#94770f", "#2a8c95", "#b0506e", "#6b747d")
"""Colours of engines. From the ninth engine on they repeat, with dashes."""

CHARTS = (
    ("Requests that run", "running", ".0f"),
    ("Requests that wait", "waiting", ".0f"),
    ("KV held, % of its blocks", "kv_share", ".1f"),
)
NUMBERS = (
    ("time to first token, s", "ttft_s"),
    ("time per token, s", "tpot_s"),
    ("end to end, s", "e2e_s"),
)
QUANTILES = ("mean", "p50", "p90", "p99")

POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
"""Content security policy: the page makes no connections, wherever it is opened."""

STYLE = """
:root { color-scheme: light dark; --ink: #1d2329; --faint: #59636d; --ground: #fff; --field: #f3f5f7; --line: #cdd4da; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e4e8ec; --faint: #a4aeb8; --ground: #14181c; --field: #1d2328; --line: #3b444d; }
}
body { font: 15px/1.5 system-ui, sans-serif; margin: 0 auto; padding: 1.5em; max-width: 920px; color: var(--ink);
  background: var(--ground); }
h1 { font-size: 1.5em; } h2 { font-size: 1.15em; margin: 1.6em 0 .2em; } h3 { font-size: 1em; margin: 1em 0 .2em; }
.wide { overflow-x: auto; } table { border-collapse: collapse; }
td, th { padding: .15em .9em .15em 0; text-align: right; } th { font-weight: 600; }
td:first-child, th:first-child { text-align: left; } tbody th { font-weight: 400; }
svg { display: block; width: 100%; height: auto; background: var(--field); }
text { font: 11px system-ui, sans-serif; fill: var(--faint); } .grid { stroke: var(--line); stroke-width: .6; }
polyline { fill: none; stroke-width: 1.4; } .now { stroke: var(--ink); stroke-width: 1; }
.bar { position: sticky; top: 0; background: var(--ground); padding: .6em 0; display: flex; gap: 1em; z-index: 1; }
.bar input { flex: 1; } .bar output { min-width: 7em; text-align: right; }
ul { list-style: none; margin: .2em 0 0; padding: 0; display: flex; flex-wrap: wrap; gap: 0 1.2em; }
li { color: var(--faint); } li span { color: var(--ink); font-variant-numeric: tabular-nums; }
li i { display: inline-block; width: 1em; height: .6em; margin-right: .4em; }
"""

SCRIPT = """
const runs = JSON.parse(document.getElementById("data").textContent);
const bar = document.getElementById("time"), said = document.getElementById("said");
function show() {
  const t = Number(bar.value);
  said.textContent = t.toFixed(1) + " s";
  for (const chart of document.querySelectorAll("[data-run]")) {
    const run = runs[chart.dataset.run], rows = run[chart.dataset.column];
    let low = 0, high = run.time_s.length - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (run.time_s[middle] <= t) low = middle; else high = middle - 1;
    }
    const x = LEFT + (t - FROM) / (TO - FROM) * (WIDTH - LEFT);
    for (const end of ["x1", "x2"]) chart.querySelector(".now").setAttribute(end, x);
    const over = t > run.time_s[run.time_s.length - 1];
    chart.querySelectorAll("li span").forEach((value, k) => {
      value.textContent = over ? "-" : rows[k][low].toFixed(Number(chart.dataset.digits));
    });
  }
}
bar.addEventListener("input", show);
show();
"""


def page(summaries: Sequence[dict[str, Any]], series: pl.DataFrame, title: str | None = None) -> str:
    """Return the report of one run, or of several side by side. `series` has the columns of `kant.serving.bundle`."""
    return "\n".join(_lines(summaries, series, title)) + "\n"


def _lines(summaries: Sequence[dict[str, Any]], series: pl.DataFrame, title: str | None) -> Iterator[str]:
    names = [f"{summary['policy']}, {summary['router']}" for summary in summaries]
    heading = escape(title or f"{summaries[0]['workload']}: {names[0] if len(names) == 1 else 'a comparison'}")
    yield "<!doctype html><html lang='en'><head><meta charset='utf-8'>"
    yield f"<meta http-equiv='Content-Security-Policy' content=\"{POLICY}\">"
    yield "<meta name='viewport' content='width=device-width'>"
    yield f"<title>{heading} - Kant</title><style>{STYLE}</style></head><body><main>"
    yield f"<h1>{heading}</h1>"
    yield from _table(summaries, names)
    runs = [_columns(series.filter(pl.col("run") == k)) for k in range(len(summaries))]
    times = np.concatenate([run["time_s"] for run in runs])
    if len(times) == 0:
        yield "<p>Nothing was served.</p></main></body></html>"
        return
    begin, end = float(times.min()), max(float(times.max()), float(times.min()) + 1e-9)
    yield "<div class='bar'><label for='time'>time</label>"
    yield f"<input id='time' type='range' min='{begin}' max='{end}' step='any' value='{begin}'>"
    yield "<output id='said' for='time'></output></div>"
    for label, column, digits in CHARTS:
        yield f"<h2>{label}</h2>"
        top = 100.0 if column == "kv_share" else max(1.0, *(float(run[column].max(initial=0)) for run in runs))
        for k, run in enumerate(runs):
            digit = digits[1]
            yield f"<div data-run='{k}' data-column='{column}' data-digits='{digit}'>"
            if len(runs) > 1:
                yield f"<h3>{escape(names[k])}</h3>"
            yield _chart(run, column, begin, end, top, f"{label}, {names[k]}")
            colours = [COLOURS[e % len(COLOURS)] for e in range(len(run[column]))]
            legend = (f"<li><i style='background:{c}'></i>engine {e} <span></span></li>" for e, c in enumerate(colours))
            yield f"<ul>{''.join(legend)}</ul></div>"
    data = [{name: _rounded(values) for name, values in run.items()} for run in runs]
    yield f"<script type='application/json' id='data'>{msgspec.json.encode(data).decode()}</script>"
    numbers = {"LEFT": LEFT, "WIDTH": WIDTH, "FROM": begin, "TO": end}
    constants = "".join(f"const {name} = {value};" for name, value in numbers.items())
    yield f"<script>{constants}{SCRIPT}</script></main></body></html>"


def _table(summaries: Sequence[dict[str, Any]], names: Sequence[str]) -> Iterator[str]:
    """Yield the table of numbers, with a column for each run."""
    heads = "".join(f"<th scope='col'>{escape(name)}</th>" for name in names)
    yield "<div class='wide' tabindex='0' role='region' aria-label='numbers'>"
    yield f"<table><thead><tr><td></td>{heads}</tr></thead><tbody>"

    def row(label: str, cells: Sequence[str]) -> str:
        return f"<tr><th scope='row'>{label}</th>{''.join(f'<td>{escape(cell)}</td>' for cell in cells)}</tr>"

    for label, key in NUMBERS:
        for q in QUANTILES:
            values = [summary[key][q] for summary in summaries]
            cells = ["-" if value is None else f"{value:.4g}" for value in values]
            yield row(f"{label}, {q.replace('p', 'P')}", cells)
    yield row("within the objectives", [f"{100 * s['goodput']['share']:.1f} %" for s in summaries])
    yield row("requests", [f"{s['requests']:,}" for s in summaries])
    yield row("preemptions", [f"{s['preemptions']:,}" for s in summaries])
    hits = [s["cache_hit_rate"] for s in summaries]
    yield row("found in the prefix cache", ["-" if hit is None else f"{100 * hit:.1f} %" for hit in hits])
    yield row("digest", [str(s["digest"]) for s in summaries])
    yield "</tbody></table></div>"


def _columns(rows: pl.DataFrame) -> dict[str, Times]:
    """Return `time_s`, and for every other column a row per engine with its values at these times."""
    engines = max(1, rows["engine"].n_unique())
    shaped = {name: rows[name].to_numpy().astype(np.float64).reshape(-1, engines).T for name in COLUMNS}
    return {"time_s": shaped.pop("time_s")[0], **shaped, "kv_share": 100 * shaped["kv_share"]}


COLUMNS = ("time_s", "running", "waiting", "kv_share")


def _rounded(values: Times) -> Any:
    return np.round(values, 4).tolist()


def _chart(run: dict[str, Times], column: str, begin: float, end: float, top: float, label: str) -> str:
    """Return a chart with a line for each engine, on axes that all runs share."""
    box = f"viewBox='0 0 {WIDTH} {HEIGHT + BOTTOM}'"
    lines = [f"<svg role='img' aria-label='{escape(label, quote=True)}, over time, by engine' {box}>"]
    for part in range(3):
        up, value = HEIGHT - part * (HEIGHT - 10) / 2, top * part / 2
        lines.append(f"<line class='grid' x1='{LEFT}' x2='{WIDTH}' y1='{up:.1f}' y2='{up:.1f}'/>")
        lines.append(f"<text x='{LEFT - 5}' y='{up + 4:.1f}' text-anchor='end'>{value:,.4g}</text>")
    for part in range(5):
        at, time = LEFT + part * (WIDTH - LEFT) / 4, begin + part * (end - begin) / 4
        anchor = ("start", "middle", "middle", "middle", "end")[part]
        said = f"{time:,.1f}" if end - begin >= 10 else f"{time:.3f}"
        lines.append(f"<text x='{at:.1f}' y='{HEIGHT + 14}' text-anchor='{anchor}'>{said} s</text>")
    x = LEFT + (run["time_s"] - begin) / (end - begin) * (WIDTH - LEFT)
    for engine, values in enumerate(run[column]):
        y = HEIGHT - values / top * (HEIGHT - 10)
        points = " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(x.tolist(), y.tolist(), strict=True))
        dashes = " stroke-dasharray='5 3'" if engine >= len(COLOURS) else ""
        colour = COLOURS[engine % len(COLOURS)]
        lines.append(f"<polyline stroke='{colour}'{dashes} points='{points}'><title>engine {engine}</title></polyline>")
    lines.append(f"<line class='now' x1='{LEFT}' x2='{LEFT}' y1='0' y2='{HEIGHT}'/></svg>")
    return "".join(lines)
