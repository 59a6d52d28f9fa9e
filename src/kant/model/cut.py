"""Splits a total of GPUs into pods, for jobs that declare only their number of GPUs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from kant.model.node import Node


def blocks_for(
    nodes: Iterable[Node], models: Sequence[str] = (), queue: str = "", cpu: int = 0, memory: int = 0,
    island: bool = False,
) -> Counter[int]:  # fmt: skip
    """Return how many nodes a pod of whole GPUs may use, by their GPUs; with `island` how many NVLink islands.

    A pod may use a node that has GPUs, is one of the `models` (empty: any), is not dedicated to other queues, is not in
    MIG mode, and has the `cpu` (thousandths of a core) and `memory` (MiB) of the pod.
    """
    found: Counter[int] = Counter()
    for node in nodes:
        if not node.gpus or node.mig or (models and node.model not in models):
            continue
        if (node.queues and queue not in node.queues) or node.cpu < cpu or node.memory < memory:
            continue
        size = node.island if island else node.gpus
        found[size] += node.gpus // size
    return found


def pods_of(total: int, blocks: Mapping[int, int]) -> list[tuple[int, int]]:
    """Split a total of GPUs into pods that each lie in one block; return (number of pods, GPUs of each) pairs.

    `blocks` maps a number of GPUs to the number of blocks of that size. A total that fits into a block is one pod. A
    larger total is split into pods as large as the largest block, and a pod for the remainder. If the empty blocks
    cannot hold these pods, smaller sizes are tried. If no size works, the largest is taken: the job fits nowhere.
    """
    widths = sorted(blocks, reverse=True)
    width = widths[0] if widths else max(total, 1)
    for narrower in widths:
        if _holds(blocks, total, narrower):
            width = narrower
            break
    whole, rest = divmod(total, width)
    if not whole:
        return [(1, total)]
    return [(whole, width), (1, rest)] if rest else [(whole, width)]


def _holds(blocks: Mapping[int, int], total: int, width: int) -> bool:
    """Return whether empty blocks have room for a total that is split into pods of `width` GPUs and a remainder."""
    slots, left = 0, 0
    for block in blocks:
        slots += block // width * blocks[block]
        if block % width > left:
            left = block % width
    return slots > total // width or (slots == total // width and left >= total % width)
