"""The words of the page: header, notices, what the numbers mean and how to repeat them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from html import escape

from kant.metrics.result import RunResult
from kant.model.node import ClusterSpec
from kant.model.units import show_duration
from kant.report.scoreboard import digest
from kant.report.series import span
from kant.report.summary import NONE, dig, show

DEFINITIONS = (
    ("GAR(t)", "GPUs allocated at t / GPUs in service at t; mean and median are weighted by time."),
    (
        "SOR",
        'GPU-seconds allocated / GPU-seconds in service, whole run; "all nodes" counts failed ones too.',
    ),
    ("GFR(t)", "nodes in service with some but not all of their GPUs allocated / nodes in service."),
    (
        "JWTD",
        "time from submission until every pod of the gang is bound, and any later wait, by job size class.",
    ),
    ("JTTED", "predicted run time under the placement given / that under the best possible placement."),
    ("JCT", "time from submission to completion, of the jobs that completed."),
    ("censored", "jobs that had not finished when the run ended; their waits count as they stand."),
    ("gain", "the change against the first run; pp are percentage points, percent are relative."),
)


def header(runs: Sequence[RunResult], labels: Sequence[str]) -> str:
    """What ran where: workload, cluster, profiles and period."""
    begin, end = span(runs)
    profiles = "".join(f'<span class="run r{i % 6}">{escape(label)}</span>' for i, label in enumerate(labels))
    period = show_duration(end - begin)
    if begin * 100 > end:
        period += f", from {show_duration(begin)} to {show_duration(end)}"
    facts = (
        ("Workload", " · ".join(dict.fromkeys(escape(run.workload) for run in runs))),
        ("Cluster", " · ".join(dict.fromkeys(describe(run.cluster) for run in runs))),
        ("Period", escape(period)),
        ("Profiles" if len(runs) > 1 else "Profile", profiles),
    )
    return "".join(f"<div><dt>{name}</dt><dd>{text}</dd></div>" for name, text in facts)


def describe(cluster: ClusterSpec) -> str:
    """A cluster in one line: name, nodes, GPUs and models."""
    models = Counter[str]()
    for node in cluster.nodes:
        models[node.model or "unnamed model"] += node.gpus
    kinds = sorted(((-count, name) for name, count in models.items() if count))
    shown = [f"{-count:,} {escape(name)}" if len(kinds) > 1 else escape(name) for count, name in kinds]
    more = f" and {len(shown) - 6} more" if len(shown) > 6 else ""
    return (
        f"{escape(cluster.name)}: {len(cluster.nodes):,} nodes, {cluster.gpus:,} GPUs"
        f"{' (' + ', '.join(shown[:6]) + more + ')' if shown else ''}"
    )


def banner(runs: Sequence[RunResult], labels: Sequence[str]) -> str:
    """The notice that a run did not reach its end; nothing if all did."""
    cut = [(label, run.end) for label, run in zip(labels, runs, strict=True) if run.interrupted]
    if not cut:
        return ""
    named = "; ".join(f"<strong>{escape(label)}</strong> stopped at {show_duration(at)}" for label, at in cut)
    return (
        '<p class="banner" role="alert"><span aria-hidden="true">⚠</span> <span>Partial result: '
        f"interrupted before the end. {named}. Its numbers cover only what ran.</span></p>"
    )


def definitions() -> str:
    """One line for each word that the page uses."""
    return "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(text)}</dd></div>" for name, text in DEFINITIONS)


def repeat(runs: Sequence[RunResult], labels: Sequence[str]) -> str:
    """What to give to run it again, and the digest that the repetition must have."""
    rows = ""
    for i, (run, label) in enumerate(zip(runs, labels, strict=True)):
        seed = dig(run.summary, "seed")
        cells = (
            f'<th scope="row"><span class="run r{i % 6}">{escape(label)}</span></th>'
            f"<td>{escape(run.profile)}</td><td>{escape(run.workload)}</td><td>{escape(run.cluster.name)}</td>"
            f"<td>{NONE if seed is None else escape(str(seed))}</td><td>{digest(run)}</td>"
            f"<td>{show(dig(run.summary, 'decisions'), 'count')}</td>"
            f"<td>{show(dig(run.summary, 'cpu_s'), 'time')}</td>"
        )
        rows += f"<tr>{cells}</tr>"
    names = ("run", "profile", "workload", "cluster", "seed", "digest", "decisions", "CPU time")
    heads = "".join(f'<th scope="col">{name}</th>' for name in names)
    return f'<table id="repeat"><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>'
