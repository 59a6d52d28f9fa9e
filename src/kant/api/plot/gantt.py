"""Which job holds which GPU when: a Gantt chart by node."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from kant.api.plot.figure import Figure
from kant.api.plot.style import COLOURS, REST, look, unit_of
from kant.api.result import Result
from kant.model.errors import InputError
from kant.model.units import GPU, SECOND

NODES = 16
"""Default number of nodes shown."""
NAMED = 60
"""Up to this many pieces, each that is wide enough is labelled with its job."""
VECTORS = 4000
"""From this many pieces on, bars are drawn as one bitmap inside the picture."""

Piece = tuple[int, int, int, float, float]
"""The row of a job, the first device, the number of consecutive devices, the start and the end in axis units."""


def gantt(
    result: Result,
    *,
    nodes: int | list[str] = NODES,
    size: tuple[float, float] | None = None,
) -> Figure:
    """Draw a row for each node and in it a lane for each GPU, with a bar while a job holds it, coloured by queue.

    `nodes` are names, or how many of the first nodes with GPUs are shown. The queues with the most GPU time have
    colours, others are grey. If there is only one queue, neighbouring jobs differ in colour instead. Jobs that share a
    GPU have narrower bars in its lane. Raises InputError for a node that the cluster does not have.
    """
    chosen = _chosen(result, nodes)
    spec = result.cluster.inner
    rows = result.inner.intervals
    last = max(int(rows[:, 5].max(initial=0)), result.inner.end, 1)
    unit, word = unit_of(last / SECOND)
    scale = 1 / SECOND / unit
    tops = np.cumsum([0, *(spec.nodes[node].gpus + 0.6 for node in chosen)])
    place = {node: float(tops[k]) for k, node in enumerate(chosen)}
    shown = rows[np.isin(rows[:, 1], chosen)]
    colours, key = _colours(result, shown)
    with look():
        from matplotlib.collections import PolyCollection
        from matplotlib.figure import Figure as Inner
        from matplotlib.patches import Patch

        lane = min(max(2.4 / float(tops[-1]), 0.055), 0.12)  # inches
        inner = Inner(figsize=size or (6.4, min(0.5 + lane * float(tops[-1]) + (0.25 if key else 0), 9.0)))
        axes = inner.subplots()
        boxes, fills, edges = [], [], []
        for row, above in zip(shown.tolist(), offsets(shown), strict=True):
            share = row[3] / GPU
            for first, count in rows_of(row[2]):
                low = place[row[1]] + first + above
                high = low + (share if count == 1 else count)
                start, end = row[4] * scale, row[5] * scale
                boxes.append([(start, low), (end, low), (end, high), (start, high)])
                fills.append(colours[row[0]])
                edges.append("white" if end - start > 0.005 * last * scale else fills[-1])  # otherwise nothing is left
                if len(shown) <= NAMED and (end - start) > 0.035 * last * scale and count * share >= 0.9:
                    _name(axes, result.inner.jobs.id[row[0]], (start + end) / 2, (low + high) / 2, fills[-1])
        bars = PolyCollection(boxes, facecolors=fills, edgecolors=edges, linewidths=0.3)
        bars.set_rasterized(len(boxes) > VECTORS)
        axes.add_collection(bars)
        for node in chosen:
            top = place[node]
            axes.axhspan(top, top + spec.nodes[node].gpus, color="#F4F4F4", zorder=0, linewidth=0)
        axes.set_xlim(0, last * scale)
        axes.set_ylim(float(tops[-1]), -0.3)
        axes.set_yticks([place[n] + spec.nodes[n].gpus / 2 for n in chosen], [spec.nodes[n].name for n in chosen])
        axes.tick_params(axis="y", length=0)
        axes.grid(False, axis="y")
        axes.spines["left"].set_visible(False)
        axes.set_xlabel(f"Time ({word})")
        if key:
            axes.legend(
                handles=[Patch(color=colour, label=name) for name, colour in key.items()], loc="lower left",
                bbox_to_anchor=(0, 1.0), ncols=min(len(key), 7), borderaxespad=0.2, handlelength=1, columnspacing=1.2,
            )  # fmt: skip
    left = len([node for node in spec.nodes if node.gpus]) - len(chosen)
    rest = f" ({left:,} more nodes are not shown)" if left > 0 else ""
    return Figure(inner, f"which job holds which GPU under {result.profile.name}{rest}")


def _chosen(result: Result, nodes: int | list[str]) -> list[int]:
    spec = result.cluster.inner
    if isinstance(nodes, int):
        if nodes < 1:
            raise InputError("nodes", "a number of at least 1, or names of nodes", nodes)
        return [index for index, node in enumerate(spec.nodes) if node.gpus][:nodes]
    index = {node.name: number for number, node in enumerate(spec.nodes)}
    for name in nodes:
        if name not in index:
            raise InputError("nodes", f"names of nodes such as {spec.nodes[0].name}", name)
    return [index[name] for name in nodes]


def rows_of(mask: int) -> Iterator[tuple[int, int]]:
    """Yield the devices of a mask as (first, number of consecutive devices)."""
    first = 0
    while mask >> first:
        if not mask >> first & 1:
            first += 1
            continue
        count = 1
        while mask >> (first + count) & 1:
            count += 1
        yield first, count
        first += count


def offsets(rows: np.ndarray) -> list[float]:
    """Return where in the lane of its GPU each piece begins: 0 for whole GPUs; shares are next to each other.

    A share is drawn in the first gap that is large enough. If the free space is split, the share ends at the edge of
    the lane, overlapping others.
    """
    found = [0.0] * len(rows)
    held: dict[tuple[int, int], list[tuple[int, int, int]]] = {}  # by node and device: end, from, to, in thousandths
    for k in sorted(range(len(rows)), key=lambda k: (rows[k, 4], rows[k, 0])):
        _, node, mask, milli, start, end = rows[k].tolist()
        if milli == GPU:
            continue
        lane = held[node, mask] = [piece for piece in held.get((node, mask), ()) if piece[0] > start]
        begins = [0, *(to for _, _, to in lane)]
        free = [at for at in begins if at + milli <= GPU and all(to <= at or at + milli <= low for _, low, to in lane)]
        at = min(free, default=max(GPU - milli, 0))
        lane.append((end, at, at + milli))
        found[k] = at / GPU
    return found


def _colours(result: Result, rows: np.ndarray) -> tuple[dict[int, str], dict[str, str]]:
    """Return a colour for each job row, and the legend; without a legend colours only separate neighbours."""
    queue, names = result.inner.jobs.queue, result.inner.queues
    time = np.zeros(len(names))
    devices = np.array([mask.bit_count() for mask in rows[:, 2].tolist()], dtype=np.float64)
    np.add.at(time, queue[rows[:, 0]], (rows[:, 5] - rows[:, 4]) * devices * rows[:, 3])
    busiest = [code for code in sorted(range(len(names)), key=lambda code: (-time[code], names[code])) if time[code]]
    jobs = np.unique(rows[:, 0]).tolist()
    if len(busiest) <= 1:
        return {row: COLOURS[row % (len(COLOURS) - 1)] for row in jobs}, {}
    kept = busiest[: len(COLOURS) - 1]
    key = {names[code]: COLOURS[k] for k, code in enumerate(kept)}
    if len(busiest) > len(kept):
        key[f"{len(busiest) - len(kept)} others"] = REST
    return {row: key.get(names[queue[row]], REST) for row in jobs}, key


def _name(axes: Any, name: str, x: float, y: float, fill: str) -> None:
    dark = sum(int(fill[k : k + 2], 16) * part for k, part in ((1, 0.3), (3, 0.59), (5, 0.11))) < 140
    axes.text(x, y, name, ha="center", va="center", fontsize=6, color="white" if dark else "black", clip_on=True)
