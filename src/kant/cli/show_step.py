"""Prints `kant perf step`: a table of placements, and a picture of the streams."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from kant.cli.show import console, print_table

if TYPE_CHECKING:
    from kant.placement.cost.communication import Spans
    from kant.placement.perf.step import TrainingStep
    from kant.placement.perf.streams import StreamTimes

BUSY = ("compute", "dispatch", "combine", "gather", "scatter", "gradients")
WIDTH = 96
"""The width of a picture."""
LETTERS = {"dispatch": "D", "gather": "G", "compute": "E", "scatter": "S", "combine": "C", "gradients": "R"}
LEGEND = (
    "D dispatch, G gather, E compute, S scatter, C combine, R gradients; a chunk in capitals, the next in small letters"
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
    """Print the streams of one layer, both passes at one scale."""
    scale = max(second.seconds for _, (_, second) in passes) / WIDTH
    for name, part in passes:
        console.print(f"{text}: layer {layer + 1} {name}, {_ms(part[1].seconds)} ms", style="bold")
        for stream, row in zip(("between nodes", "inside nodes", "arithmetic"), picture(part, scale), strict=True):
            console.print(f"  {stream:<14}{row}", soft_wrap=True)


def show_legend() -> None:
    """Print the meaning of a picture's letters."""
    console.print(LEGEND, style="dim", soft_wrap=True)


def picture(part: tuple[StreamTimes, ...], scale: float) -> list[str]:
    """Return a row of letters per stream: a column is what runs in the middle of its `scale` seconds, a dot nothing."""
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
