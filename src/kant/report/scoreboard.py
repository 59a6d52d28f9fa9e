"""The five metrics side by side: which numbers, in which unit, and which way is better."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from kant.metrics.result import RunResult
from kant.report.summary import NONE, dig, number, show, show_gain
from kant.report.waits import CLASSES, class_waits

HIGHER, LOWER, NEITHER = 1, -1, 0


@dataclass(frozen=True, slots=True)
class Row:
    """One line: its words, where in the summary its value is, how it is shown, and which way is better."""

    name: str
    keys: tuple[str, ...]
    kind: str
    better: int = NEITHER


@dataclass(frozen=True, slots=True)
class Section:
    """The lines of one metric under its name."""

    name: str
    words: str
    rows: tuple[Row, ...]


def spread(key: str) -> tuple[Row, ...]:
    """Mean and quantiles of the times under `key`."""
    names = (("mean", "mean"), ("P50", "p50"), ("P90", "p90"), ("P99", "p99"), ("max", "max"))
    return tuple(Row(name, (key, part), "time", LOWER) for name, part in names)


SECTIONS = (
    Section(
        "GAR",
        "GPU allocation ratio",
        (Row("mean", ("gar", "mean"), "share", HIGHER), Row("median", ("gar", "median"), "share", HIGHER)),
    ),
    Section(
        "SOR",
        "scheduling occupancy rate",
        (
            Row("nodes in service", ("sor",), "share", HIGHER),
            Row("all nodes", ("sor_all_nodes",), "share", HIGHER),
        ),
    ),
    Section(
        "GFR",
        "GPU node fragmentation ratio",
        (Row("mean", ("gfr", "mean"), "share", LOWER), Row("median", ("gfr", "median"), "share", LOWER)),
    ),
    Section("JWTD", "job waiting time", spread("wait_s")),
    Section(
        "JTTED",
        "job training time estimation",
        (
            Row("mean", ("jtted", "mean"), "factor", LOWER),
            Row("nodes / fewest", ("jtted", "nodes_ratio"), "factor", LOWER),
            Row("leaf groups / fewest", ("jtted", "leaves_ratio"), "factor", LOWER),
        ),
    ),
    Section(
        "Jobs",
        "what became of them",
        (
            Row("arrived", ("jobs",), "count"),
            Row("completed", ("completed",), "count", HIGHER),
            Row("censored", ("censored",), "count", LOWER),
            Row("rejected", ("rejected",), "count", LOWER),
            Row("preemptions", ("preemptions",), "count", LOWER),
            Row("evictions", ("evictions",), "count", LOWER),
        ),
    ),
    Section("JCT", "job completion time", spread("jct_s")),
    Section("Run", "the run as a whole", (Row("makespan", ("makespan_s",), "time", LOWER),)),
)

TENANTS = Section(
    "Tenants",
    "what sharing costs them",
    (
        Row("finish-time fairness, worst", ("fairness", "worst"), "factor", LOWER),
        Row("finish-time fairness, mean", ("fairness", "mean"), "factor", LOWER),
        Row("GPU time lost", ("lost_gpu_s",), "time", LOWER),
    ),
)
"""Shown where queues have quotas."""

CARDS = (
    Row("GAR", ("gar", "mean"), "share", HIGHER),
    Row("SOR", ("sor",), "share", HIGHER),
    Row("GFR", ("gfr", "mean"), "share", LOWER),
    Row("JWTD", ("wait_s", "mean"), "time", LOWER),
    Row("JTTED", ("jtted", "mean"), "factor", LOWER),
)
CARD_WORDS = {
    "GAR": "mean GPU allocation",
    "SOR": "scheduling occupancy",
    "GFR": "mean node fragmentation",
    "JWTD": "mean job wait",
    "JTTED": "mean run time / best possible",
}


def gain(value: Any, base: Any, kind: str, better: int) -> str:
    """The change against the baseline, marked better or worse in colour, in shape and in words."""
    text = show_gain(value, base, kind)
    if not text:
        return ""
    change = (number(value) or 0.0) - (number(base) or 0.0)
    verdict = "" if not change or better == NEITHER else "better" if change * better > 0 else "worse"
    arrow = {True: "▲ ", False: "▼ "}[change > 0] if change else ""
    said = {"better": '<span class="said"> better</span>', "worse": " worse", "": ""}[verdict]
    return f' <span class="gain {verdict}">{arrow}{escape(text)}{said}</span>'


def cards(runs: Sequence[RunResult], labels: Sequence[str]) -> str:
    """One card for each of the five metrics."""
    parts: list[str] = []
    for row in CARDS:
        aim = "higher is better" if row.better == HIGHER else "lower is better"
        base = dig(runs[0].summary, *row.keys)
        lines = []
        for i, (run, label) in enumerate(zip(runs, labels, strict=True)):
            value = dig(run.summary, *row.keys)
            change = gain(value, base, row.kind, row.better) if i else ""
            lines.append(
                f'<li><span class="run r{i % 6}">{escape(label)}</span>'
                f"<strong>{escape(show(value, row.kind))}</strong>{change}</li>"
            )
        parts.append(
            f'<article class="card"><h3>{row.name}</h3><p>{CARD_WORDS[row.name]} <em>{aim}</em></p>'
            f"<ul>{''.join(lines)}</ul></article>"
        )
    return "".join(parts)


def metrics_table(runs: Sequence[RunResult], labels: Sequence[str]) -> str:
    """Every number of every run, with its gain against the first run."""
    body: list[str] = []
    shared = any(dig(run.summary, "fairness", "mean") is not None for run in runs)
    for section in (*SECTIONS, TENANTS) if shared else SECTIONS:
        for at, row in enumerate(section.rows):
            base = dig(runs[0].summary, *row.keys)
            head = (
                f'<th scope="rowgroup" rowspan="{len(section.rows)}">{section.name}<small>{section.words}</small></th>'
                if at == 0
                else ""
            )
            cells = ""
            for i, run in enumerate(runs):
                value = dig(run.summary, *row.keys)
                change = gain(value, base, row.kind, row.better) if i else ""
                cells += f"<td><span>{escape(show(value, row.kind))}</span>{change}</td>"
            first = ' class="first"' if at == 0 else ""
            body.append(f'<tr{first}>{head}<th scope="row">{row.name}</th>{cells}</tr>')
    digests = "".join(f"<td>{digest(run, 12)}</td>" for run in runs)
    body.append(f'<tr><th scope="row" colspan="2">digest of the decisions</th>{digests}</tr>')
    heads = run_heads(labels)
    return (
        '<table id="metrics"><thead><tr><th scope="col" colspan="2">metric</th>'
        f"{heads}</tr></thead><tbody>{''.join(body)}</tbody></table>"
    )


def waits_table(runs: Sequence[RunResult], labels: Sequence[str]) -> str:
    """Waiting time and JTTED of each size class, for each run."""
    rows_of = [class_waits(run) for run in runs]
    body: list[str] = []
    for index, name in enumerate(CLASSES):
        found = [rows[index]["row"] for rows in rows_of]
        if not any(number(row.get("count")) or number(row.get("censored")) for row in found):
            continue
        for i, (run, label, row) in enumerate(zip(runs, labels, found, strict=True)):
            head = f'<th scope="rowgroup" rowspan="{len(runs)}">{escape(name)}</th>' if i == 0 else ""
            jtted = dig(run.summary, "jtted", "by_size", name)
            jtted = dig(jtted, "mean") if isinstance(jtted, dict) else jtted
            cells = [(key, "count") for key in ("count", "censored")]
            cells += [(key, "time") for key in ("mean", "p50", "p90", "p99", "max")]
            shown = "".join(f"<td>{escape(show(row.get(key), kind))}</td>" for key, kind in cells)
            first = ' class="first"' if i == 0 else ""
            body.append(
                f'<tr{first}>{head}<th scope="row"><span class="run r{i % 6}">{escape(label)}</span></th>'
                f"{shown}<td>{show(jtted, 'factor')}</td></tr>"
            )
    if not body:
        return '<p class="empty">No job arrived.</p>'
    names = ("GPUs", "run", "jobs", "censored", "mean", "P50", "P90", "P99", "max", "JTTED")
    heads = "".join(f'<th scope="col">{name}</th>' for name in names)
    return f'<table id="waits"><thead><tr>{heads}</tr></thead><tbody>{"".join(body)}</tbody></table>'


def run_heads(labels: Sequence[str]) -> str:
    """Column heads, one a run, in the colour that the run has in every picture."""
    return "".join(
        f'<th scope="col"><span class="run r{i % 6}">{escape(label)}</span>'
        f"{'<small>baseline</small>' if i == 0 and len(labels) > 1 else ''}</th>"
        for i, label in enumerate(labels)
    )


def digest(run: RunResult, length: int = 0) -> str:
    """The digest of a run, cut to `length` characters where that is given."""
    whole = dig(run.summary, "digest")
    if whole is None:
        return NONE
    text = str(whole)
    shown = text[:length] + "…" if 0 < length < len(text) else text
    return f'<code title="{escape(text)}">{escape(shown)}</code>'
