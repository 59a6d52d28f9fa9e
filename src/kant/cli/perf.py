"""`kant perf`: how long a training step takes, and which parts of it; and costs fitted to measurements."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

from kant.cli.inputs import Json, whole, write_text
from kant.cli.output import Reply
from kant.cli.show import console, print_table
from kant.model.errors import InputError
from kant.placement.perf.places import PlacementShape, hbd_nodes, places_in
from kant.workload.cluster_file import read_cluster
from kant.workload.training_text import read_training

if TYPE_CHECKING:
    from kant.placement.cost.communication import Spans
    from kant.placement.perf.fit import Fit
    from kant.placement.perf.step import TrainingStep
    from kant.placement.perf.streams import StreamTimes

perf_app = App(name="perf", help="How long a training step takes, and where.", help_format="plaintext")

_PLACE = re.compile(r"([0-9]{1,7})x([0-9]{1,4})((?:/[0-9]{1,7}){0,3})")
_EXPECTED = "NODESxGPUS/LEAVES/SPINES/SUPERSPINES, such as 8x8 or 16x4/2, each level with no more domains than below it"


@perf_app.command
def step(
    job: Annotated[Path, Parameter(help="A TOML file of the model and its parallelism (docs/step-time.md).")],
    /,
    *,
    placement: Annotated[
        list[str] | None,
        Parameter(help="NODESxGPUS, such as 8x8; 8x8/2 uses two leaves, 8x8/4/2 two spines. May be repeated."),
    ] = None,
    gpus: Annotated[
        int | None,
        Parameter(help="Instead of --placement: all that a job of this number of GPUs could get.", converter=whole),
    ] = None,
    cluster: Annotated[
        str | None, Parameter(help="A cluster file, or NxG. Default: 1024x8, eight H100 in each node.")
    ] = None,
    costs: Annotated[Path | None, Parameter(help="Costs as `kant perf fit --out` writes them.")] = None,
    layer: Annotated[int | None, Parameter(help="The layer to draw, from 1 on. Default: one in the middle.")] = None,
    json: Json = False,
) -> int:
    """Predict the step time of a training job under each placement: its parts, and a picture of the streams."""
    from kant.placement.perf.on_fabric import NOTHING_MEASURED
    from kant.placement.perf.step import step as predict
    from kant.workload.measured_file import read_costs

    training = read_training(job)
    if (gpus is None) == (not placement):
        raise InputError("--placement and --gpus", "exactly one of them")
    spec = read_cluster(cluster or "1024x8")
    if gpus is not None and gpus < 1:
        raise InputError("--gpus", "at least 1", gpus)
    chosen = [place_of(text) for text in placement or ()] if gpus is None else places_in(spec, gpus)
    island = hbd_nodes(spec)
    places = [(str(place), place.spans(island)) for place in chosen]
    measured = NOTHING_MEASURED if costs is None else read_costs(costs)
    found = [(text, spans, predict(training, spec.fabric, spans, measured)) for text, spans in places]
    least = min(len(each.plan.layers) for _, _, each in found)
    if layer is not None and not 1 <= layer <= least:
        raise InputError("--layer", f"a layer of one stage, from 1 to {least}", layer)
    which = least // 2 if layer is None else layer - 1
    reply = Reply(
        {"placements": [step_json(text, spans, each, which) for text, spans, each in found]},
        lambda: _show(found, which),
    )
    return reply.print(json)


@perf_app.command
def fit(
    measured: Annotated[Path, Parameter(help="A CSV file: operation, place, size, seconds, beside.")],
    /,
    *,
    out: Annotated[Path | None, Parameter(help="The TOML file to write, for `kant perf step --costs`.")] = None,
    json: Json = False,
) -> int:
    """Fit the costs of operations to measurements: a start-up cost and a rate for each operation and place."""
    from kant.placement.perf.fit import fit as fitted
    from kant.workload.measured_file import costs_text, read_samples

    found = fitted(read_samples(measured))
    if out is not None:
        write_text(costs_text(found), out)
    return Reply(fit_json(found), lambda: _show_fit(found, out)).print(json)


def place_of(text: str) -> PlacementShape:
    """Parse the shape of a placement."""
    match = _PLACE.fullmatch(text.strip())
    if match is None:
        raise InputError("--placement", _EXPECTED, text)
    nodes, each = int(match[1]), int(match[2])
    place = PlacementShape(nodes, each, *(int(part) for part in match[3].split("/")[1:]))
    domains = (nodes, place.leaves, place.spines, place.superspines)
    if nodes * each == 0 or 0 in domains or any(wide > narrow for narrow, wide in pairwise(domains)):
        raise InputError("--placement", _EXPECTED, text)
    return place


def step_json(text: str, spans: Spans, found: TrainingStep, layer: int) -> dict[str, Any]:
    """Return a step as `--json` prints it; times in seconds."""
    plan = found.plan
    return {
        "placement": text,
        "gpus": spans.gpus,
        "step_s": found.seconds,
        "micro_batches": found.micro_batches,
        "forward_s": plan.forward,
        "backward_s": plan.backward,
        "gradients_exposed_s": plan.exposed,
        "bubble_s": found.bubble,
        "between_stages_s": found.passing,
        "busy_s": found.busy(),
        "parallel": {name: getattr(found.groups, name) for name in ("tensor", "expert", "data", "pipeline")},
        "spans": {name: place for name, place in found.groups.at.items() if place},
        "layers": [each._asdict() for each in plan.layers],
        "streams": {
            name: [
                {"task": task.name, "stream": task.stream, "start_s": start, "end_s": end}
                for run in part
                for task, start, end in zip(run.tasks, run.starts, run.ends, strict=True)
            ]
            for name, part in _passes(found, layer)
        },
    }


def fit_json(found: Fit) -> dict[str, Any]:
    """Return fitted costs as `--json` prints them."""
    return {
        "contention": found.contention,
        "contention_samples": found.beside,
        "costs": [
            {
                "operation": line.operation,
                "place": line.place,
                "alpha_s": line.cost.alpha,
                "beta_s": line.cost.beta,
                "samples": line.samples,
                "r2": line.r2,
            }
            for line in found.lines
        ],
    }


def _passes(found: TrainingStep, layer: int) -> list[tuple[str, tuple[StreamTimes, StreamTimes]]]:
    """Return the two passes of a layer; the second half of each is shifted to the end of the first half."""
    from kant.placement.perf.plan import runs

    first, second, third, fourth = runs(found.stack, layer, found.plan.layers[layer])
    return [("forward", (first, second.later(first.seconds))), ("backward", (third, fourth.later(third.seconds)))]


def _show(found: list[tuple[str, Spans, TrainingStep]], layer: int) -> None:
    show_breakdown(found)
    for text, _, each in found:
        show_streams(text, layer, _passes(each, layer))
    show_legend()


def _show_fit(found: Fit, out: Path | None) -> None:
    rows = []
    for line in found.lines:
        alpha, beta = line.cost
        unit = (2e-12, "TFLOP/s") if line.operation == "gemm" else (1e-9, "GB/s")
        rate = f"{unit[0] / beta:,.1f} {unit[1]}" if beta > 0 else "-"
        rows.append((line.operation, line.place, f"{1e6 * alpha:,.1f} us", rate, f"{line.samples:,}", f"{line.r2:.4f}"))
    columns = ("operation", "place", "start", "rate", "samples", "R2")
    print_table(columns, rows, "Fitted costs", left=("operation", "place"))
    source = (
        f"from {found.beside:,} sample{'s' * (found.beside > 1)}"
        if found.beside
        else "not measured here; as fitted to FSMoE's table 5"
    )
    console.print(f"Contention {found.contention:.3f} ({source}).")
    if out is not None:
        console.print(f"Written to {out}.", soft_wrap=True)


BUSY = ("compute", "dispatch", "combine", "gather", "scatter", "gradients")
WIDTH = 96
"""The width of a picture in characters."""
LETTERS = {"dispatch": "D", "gather": "G", "compute": "E", "scatter": "S", "combine": "C", "gradients": "R"}
LEGEND = (
    "D dispatch, G gather, E compute, S scatter, C combine, R gradients; capitals and small letters alternate by chunk"
)


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:,.2f}"


def show_breakdown(found: list[tuple[str, Spans, TrainingStep]]) -> None:
    """Print the parts of the step under each placement, in milliseconds."""
    steps = [each for _, _, each in found]
    fastest = min(each.seconds for each in steps)
    shown: list[tuple[str, Callable[[TrainingStep], str]]] = [
        ("step", lambda each: _ms(each.seconds)),
        ("slower than the fastest", lambda each: f"{100 * (each.seconds / fastest - 1):.1f} %"),
        ("forward, one micro-batch", lambda each: _ms(each.plan.forward)),
        ("backward, the last one", lambda each: _ms(each.plan.backward)),
        ("of it gradients after all layers", lambda each: _ms(each.plan.exposed)),
        ("micro-batches", lambda each: f"{each.micro_batches:,}"),
        ("waiting for other stages", lambda each: _ms(each.bubble)),
        ("messages between stages", lambda each: _ms(each.passing)),
        *((f"busy with {name}", partial(_busy, name)) for name in BUSY),
        ("experts exchanged over", lambda each: each.groups.at["all_to_all"]),
        ("layers shared over", lambda each: each.groups.at["all_gather"]),
        ("gradients summed over", lambda each: each.groups.at["all_reduce"]),
        ("chunks forward, backward", _degrees),
    ]
    rows = [(name, *map(cell, steps)) for name, cell in shown]
    ends = (1, 7, 7 + len(BUSY))
    print_table(("", *(text for text, _, _ in found)), rows, "A training step, in ms", ends=ends)


def _busy(name: str, found: TrainingStep) -> str:
    return _ms(found.busy()[name])


def _degrees(found: TrainingStep) -> str:
    forward = sorted({layer.forward_degree for layer in found.plan.layers})
    backward = sorted({layer.backward_degree for layer in found.plan.layers})
    return ", ".join("|".join(map(str, degrees)) for degrees in (forward, backward))


def show_streams(text: str, layer: int, passes: list[tuple[str, tuple[StreamTimes, StreamTimes]]]) -> None:
    """Print the streams of one layer, with both passes at one scale."""
    scale = max(second.seconds for _, (_, second) in passes) / WIDTH
    for name, part in passes:
        console.print(f"{text}: layer {layer + 1} {name}, {_ms(part[1].seconds)} ms", style="bold")
        for stream, row in zip(("between nodes", "inside nodes", "arithmetic"), picture(part, scale), strict=True):
            console.print(f"  {stream:<14}{row}", soft_wrap=True)


def show_legend() -> None:
    """Print the meaning of the letters in a picture."""
    console.print(LEGEND, style="dim", soft_wrap=True)


def picture(part: tuple[StreamTimes, ...], scale: float) -> list[str]:
    """Return a row of letters per stream: each column shows the task at the middle of its `scale` seconds, or a dot if
    there is none.
    """
    rows = []
    for stream in range(3):
        spans = []
        for run in part:
            seen: dict[str, int] = {}
            for task, start, end in zip(run.tasks, run.starts, run.ends, strict=True):
                chunk = seen[task.name] = seen.get(task.name, -1) + 1
                if task.stream == stream and end > start:
                    letter = LETTERS[task.name]
                    spans.append((start, end, letter.lower() if chunk % 2 else letter))
        width = round(max(run.seconds for run in part) / scale) if scale > 0 else 0
        at = ((i + 0.5) * scale for i in range(width))
        rows.append("".join(next((mark for start, end, mark in spans if start <= t < end), ".") for t in at))
    return rows
