"""The power cap of a machine, as an amount of its node that every plan knows (`kant.model.rules`).

The amount counts thousandths of GPUs that may be in use at once, each at the most that its model draws. So machines
with unlike GPUs have caps of their own, and a job takes as many thousandths as it has of GPUs, wherever it runs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from kant.model.errors import InputError
from kant.model.job import PodGroup
from kant.model.node import Node
from kant.model.rules import PodRules
from kant.model.units import GPU

POWER = "power"
"""The name of the amount; "too little power" is how a job that waits for it is explained."""


def parse_watts(text: str, where: str) -> int:
    """Return the watts in a text such as `1400W` or `2.1kW`. Raises InputError."""
    match = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,3})?) ?(k?)W", text.strip())
    watts = round(float(match[1]) * (1000 if match[2] else 1)) if match is not None else 0
    if not watts:
        raise InputError(where, "watts such as 1400W or 2.1kW", text)
    return watts


def capped(node: Node, cap: int, gpu_watts: int) -> Node:
    """Return a node whose GPUs in use draw at most `cap` watts together, each `gpu_watts`.

    Raises InputError if it could never use one whole GPU.
    """
    if node.gpus and cap < gpu_watts:
        raise InputError(
            "--power-cap", f"{gpu_watts}W or more, which one GPU draws: with less none can be used", f"{cap}W"
        )
    return replace(node, amounts=((POWER, min(cap * GPU // gpu_watts, node.gpus * GPU)),))


def beside(node: Node, others: Iterable[Node]) -> Node:
    """Return a node as it counts beside others: if one of these has a cap and it has none, all its GPUs may be used."""
    if node.amounts or all(powered(other) < 0 for other in others):
        return node
    return replace(node, amounts=((POWER, node.gpus * GPU),))


def usable(nodes: Iterable[Node]) -> Sequence[Node]:
    """Return the nodes as wide as a job can have them: with the GPUs that may be in use at once."""
    return [replace(node, gpus=powered(node) // GPU) if powered(node) >= 0 else node for node in nodes]


def power_rules(groups: Sequence[PodGroup], nodes: Iterable[Node]) -> tuple[PodRules, ...]:
    """Return what the pods of each group take of the power of their node; nothing where no node has a cap."""
    takes = [group.demand.gpu_milli for group in groups]
    if not any(takes) or all(powered(node) < 0 for node in nodes):
        return ()
    return tuple(PodRules(amounts=((POWER, milli),)) if milli else PodRules() for milli in takes)


def powered(node: Node) -> int:
    """Return how many thousandths of GPUs may be in use on a node; -1 if it has no cap."""
    return dict(node.amounts).get(POWER, -1)
