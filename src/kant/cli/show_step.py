"""Prints `kant perf step`: a table of placements, and a picture of the streams."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table

from kant.cli.show import console

if TYPE_CHECKING:
    from kant.placement.cost.communication import Spans
    from kant.placement.perf.step import TrainingStep
    from kant.placement.perf.streams import StreamTimes

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
    table = Table(title="A training step, in ms", title_justify="left")
    table.add_column("")
    for text, _, _ in found:
        table.add_column(text, justify="right")
    fastest = min(each.seconds for _, _, each in found)
    steps = [each for _, _, each in found]
    table.add_row("step", *(_ms(each.seconds) for each in steps))
    table.add_row(
        "slower than the fastest", *(f"{100 * (s.seconds / fastest - 1):.1f} %" for s in steps), end_section=True
    )
    table.add_row("forward, one micro-batch", *(_ms(each.plan.forward) for each in steps))
    table.add_row("backward, the last one", *(_ms(each.plan.backward) for each in steps))
    table.add_row("of it gradients after all layers", *(_ms(each.plan.exposed) for each in steps))
    table.add_row("micro-batches", *(f"{each.micro_batches:,}" for each in steps))
    table.add_row("waiting for other stages", *(_ms(each.bubble) for each in steps))
    table.add_row("messages between stages", *(_ms(each.passing) for each in steps), end_section=True)
    busy = [each.busy() for each in steps]
    for name in ("compute", "dispatch", "combine", "gather", "scatter", "gradients"):
        table.add_row(f"busy with {name}", *(_ms(each[name]) for each in busy), end_section=name == "gradients")
    for name, key in (
        ("experts exchanged over", "all_to_all"),
        ("layers shared over", "all_gather"),
        ("gradients summed over", "all_reduce"),
    ):
        table.add_row(name, *(each.groups.at[key] for each in steps))
    table.add_row("chunks forward, backward", *(_degrees(each) for each in steps))
    console.print(table)


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
