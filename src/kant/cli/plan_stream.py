"""`kant plan stream` and `kant plan train`: streams of arriving workflows, and a scheduling order trained on them."""

from __future__ import annotations

from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from kant.cli.inputs import Json, Seed, whole, write_text
from kant.cli.output import Reply
from kant.cli.plan_workflow import ClusterNodes, WorkflowPath, load_graph, policy_named, shown_by
from kant.cli.show import console, print_table
from kant.model.errors import InputError
from kant.model.units import SECOND, parse_duration
from kant.optimize.workflow.load import WorkflowStream
from kant.optimize.workflow.policies import POLICIES

if TYPE_CHECKING:
    from kant.metrics.paired import Interval

Files = Annotated[Path, Parameter(help="More workflows on the same processors: each arrival is one of them.")]
Every = Annotated[str, Parameter(help="The mean time between two arrivals, such as 30m (or a whole number).")]
Until = Annotated[str | None, Parameter(help="No workflow arrives from this time on. Default: 200 intervals.")]
Most = Annotated[
    int, Parameter(help="The most workflows at a time; one that arrives beyond is lost. 0: no limit.", converter=whole)
]
Seeds = Annotated[int, Parameter(help="The number of streams, with seeds from --seed on.", converter=whole)]


def stream(
    file: WorkflowPath,
    /,
    *files: Files,
    every: Every,
    until: Until = None,
    most: Most = 0,
    policy: Annotated[tuple[str, ...], Parameter(help="Rules to compare. Default: all.", negative="")] = (),
    seeds: Seeds = 10,
    seed: Seed = 0,
    cluster: ClusterNodes = None,
    json: Json = False,
) -> int:
    """Let workflows arrive at random times, and print the latency of each policy from arrival to end.

    All policies see the same streams. The latencies of each policy are compared pair by pair with those of the first.
    """
    from kant.metrics.paired import mean_interval

    load = load_of((file, *files), cluster, every, until, most)
    if not 1 <= seeds <= 1_000:
        raise InputError("--seeds", "a number of streams from 1 to 1,000", seeds)
    names = list(dict.fromkeys(policy)) or list(POLICIES)
    rules = {name: policy_named(name, list(POLICIES)) for name in names}
    found = {name: [load.under(rule, seed + n) for n in range(seeds)] for name, rule in rules.items()}
    rows = []
    first = [each.latency for each in found[names[0]]]
    for name in names:
        means = [each.latency for each in found[name]]
        every_one = sorted(latency for each in found[name] for latency in each.latencies)
        if not every_one:
            raise InputError("--until", "a time after the arrival of the first workflow")
        change = mean_interval([mine / other - 1 if other else 0.0 for mine, other in zip(means, first, strict=True)])
        rows.append(
            {
                "policy": name,
                "latency": mean_interval(means),
                "p90": every_one[int(0.9 * (len(every_one) - 1))],
                "change": None if name == names[0] else change,
                "ended": len(every_one) / seeds,
                "lost": sum(each.lost for each in found[name]) / seeds,
            }
        )
    return Reply(_stream_json(load, rows), lambda: _show_stream(load, rows, names[0], seeds)).print(json)


def train(
    file: WorkflowPath,
    /,
    *files: Files,
    every: Annotated[tuple[str, ...], Parameter(help="Mean intervals to train at; may be repeated.", negative="")],
    out: Annotated[Path, Parameter(help="The TOML file of weights to write.")],
    until: Until = None,
    most: Most = 0,
    generations: Annotated[int, Parameter(help="Steps of the training.", converter=whole)] = 24,
    seed: Seed = 0,
    cluster: ClusterNodes = None,
    json: Json = False,
) -> int:
    """Train the learned order on streams of workflows. It takes minutes of one core, and depends only on the seed.

    `kant plan workflow` and `kant plan stream` take the file as --policy."""
    from kant.optimize.workflow.train import train as generations_of
    from kant.optimize.workflow.weights import weights_toml

    if not every:
        raise InputError("--every", "at least one interval")
    if not 1 <= generations <= 1_000:
        raise InputError("--generations", "a number from 1 to 1,000", generations)
    loads = [load_of((file, *files), cluster, each, until, most) for each in every]
    made = None
    for made in generations_of(loads, seed, generations):
        if not json:
            console.print(f"generation {made.number + 1}: latency {made.ratio:.4f} times ETF's")
    assert made is not None
    write_text(weights_toml(made.policy), out)
    answer = {"generations": generations, "ratio": made.ratio, "weights": str(out)}
    return Reply(answer, lambda: console.print(f"weights written to {out}", soft_wrap=True)).print(json)


def load_of(files: tuple[Path, ...], cluster: str | None, every: str, until: str | None, most: int) -> WorkflowStream:
    """Return the stream that the options describe. Times are durations, or whole numbers, as in the files."""
    graphs = tuple(load_graph(path, cluster) for path in files)
    if any(graph.timed != graphs[0].timed for graph in graphs):
        raise InputError(str(files[-1]), "durations if the other files have durations, otherwise whole numbers")

    def ticks(text: str, option: str) -> int:
        if graphs[0].timed:
            return parse_duration(text, option)
        if not (text.isascii() and text.isdecimal() and len(text) < 16):
            raise InputError(option, "a whole number, like the times in the file", text)
        return int(text)

    if not 0 <= most <= 1_000_000:
        raise InputError("--most", "a number of workflows from 0 on", most)
    mean = ticks(every, "--every")
    return WorkflowStream(graphs, mean, ticks(until, "--until") if until is not None else 200 * mean, most, most)


def _stream_json(load: WorkflowStream, rows: list[dict[str, Any]]) -> dict[str, Any]:
    unit = SECOND if load.pool[0].timed else 1

    def ends(of: Interval | None, unit: int) -> dict[str, float | None] | None:
        if of is None:
            return None
        low, high = ((end / unit if isfinite(end) else None) for end in (of.low, of.high))
        return {"mean": of.mean / unit, "low": low, "high": high}

    return {
        "policies": [
            row | {"latency": ends(row["latency"], unit), "p90": row["p90"] / unit, "change": ends(row["change"], 1)}
            for row in rows
        ]
    }


def _show_stream(load: WorkflowStream, rows: list[dict[str, Any]], first: str, seeds: int) -> None:
    show = shown_by(load.pool[0])
    console.print(f"{seeds} streams, one workflow every {show(load.every)} on average until {show(load.until)}")
    cells = []
    for row in rows:
        change = row["change"]
        beside = "" if change is None else f"{100 * change.mean:+.1f} %"
        if change is not None and change.half < float("inf"):
            beside += f" ± {100 * change.half:.1f}"
        mean, p90 = show(row["latency"].mean), show(row["p90"])
        cells.append((row["policy"], mean, p90, beside, f"{row['ended']:,.1f}", f"{row['lost']:,.1f}"))
    print_table(("policy", "mean", "P90", f"beside {first}", "ended", "lost"), cells, "From arrival to end")
