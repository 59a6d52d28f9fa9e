"""Power caps as amounts (`kant.model.rules`) of a machine's node and of the whole cluster, which every plan respects.

An amount is the number of milli-GPUs that may be in use at the same time, if each GPU draws the maximum power of its
model. So machines with different GPUs have their own caps, and a job takes as much of the amount as it has milli-GPUs
on the machine. The cap of all machines together counts the same watts for each GPU, so a machine whose GPUs draw more
may not join.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from kant.model.errors import InputError, together
from kant.model.job import PodGroup
from kant.model.node import Node
from kant.model.rules import PodRules
from kant.model.units import GPU

POWER = "power"
"""The name of the amount of a node; the reason of a job that waits for it is "not enough power"."""

SHARED_POWER = "power of all machines"
"""The name of the amount of the cluster."""


class PowerCaps(Struct, frozen=True):
    """The power caps in watts: `machine` for this machine and `pool` for all machines together (0: no cap). `gpu` is
    the maximum power of one GPU (0: as NVML says).
    """

    machine: int = 0
    pool: int = 0
    gpu: int = 0


NO_CAPS = PowerCaps()


def read_caps(machine: str | None, pool: str | None, gpu: str | None, virtual: bool, alone: bool = False) -> PowerCaps:
    """Return the caps that the options of the command line set. With `alone`, the power of a GPU may be given without a
    cap; a cap on a `virtual` machine requires it. Raises InputError with all faults.
    """
    given = {"--power-cap": machine, "--pool-power-cap": pool, "--gpu-watts": gpu}
    watts, faults = dict.fromkeys(given, 0), list[InputError]()
    for option, text in given.items():
        try:
            watts[option] = parse_watts(text, option) if text is not None else 0
        except InputError as fault:
            faults.append(fault)
    caps, each = (watts["--power-cap"], watts["--pool-power-cap"]), watts["--gpu-watts"]
    if gpu is not None and machine is pool is None and not alone:
        faults.append(InputError("--gpu-watts", "--power-cap or --pool-power-cap beside it"))
    if gpu is None and virtual and (machine is not None or pool is not None):
        faults.append(InputError("--gpu-watts", "the power of one GPU, such as 700W, for a power cap with --cluster"))
    for option, cap in zip(given, caps, strict=False):
        if cap:
            try:
                powered_by(cap, each, option)
            except InputError as fault:
                faults.append(fault)
    if faults:
        raise together(faults)
    return PowerCaps(caps[0], caps[1], each)


def parse_watts(text: str, where: str) -> int:
    """Return the watts in a text such as `1400W` or `2.1kW`. Raises InputError."""
    match = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,3})?) ?(k?)W", text.strip())
    watts = round(float(match[1]) * (1000 if match[2] else 1)) if match is not None else 0
    if not watts:
        raise InputError(where, "watts such as 1400W or 2.1kW", text)
    return watts


def powered_by(cap: int, gpu_watts: int, option: str) -> int:
    """Return how many milli-GPUs a cap (watts) allows to be in use, each GPU at `gpu_watts`; -1 if that is 0 (unknown).

    Raises InputError, with the name of the option, if the cap does not allow one whole GPU.
    """
    if cap < gpu_watts:
        raise InputError(option, f"at least {gpu_watts}W, the power of one GPU", f"{cap}W")
    return cap * GPU // gpu_watts if gpu_watts else -1


def capped(node: Node, cap: int, gpu_watts: int) -> Node:
    """Return the node with a power cap: its GPUs in use draw at most `cap` watts together, each `gpu_watts`.

    Raises InputError if the node could never use one whole GPU.
    """
    most = powered_by(cap, gpu_watts, "--power-cap") if node.gpus else 0
    return replace(node, amounts=((POWER, min(most, node.gpus * GPU)),))


def beside(node: Node, others: Iterable[Node]) -> Node:
    """Return a node for a cluster with these `others`. If any of them has a cap and the node has none, the node gets an
    amount that allows the use of all its GPUs.
    """
    if node.amounts or all(powered(other) < 0 for other in others):
        return node
    return replace(node, amounts=((POWER, node.gpus * GPU),))


def usable(nodes: Iterable[Node]) -> Sequence[Node]:
    """Return the nodes with only as many GPUs as may be in use at once: no job can have more."""
    return [replace(node, gpus=powered(node) // GPU) if powered(node) >= 0 else node for node in nodes]


def power_rules(groups: Sequence[PodGroup], nodes: Iterable[Node], shared: int = -1) -> tuple[PodRules, ...]:
    """Return what each group's pods use of power caps: of their node's cap, if any node has one, and of the `shared`
    milli-GPUs that may be in use on all machines together (-1: no cap).
    """
    takes, has_caps = [group.demand.gpu_milli for group in groups], any(powered(node) >= 0 for node in nodes)
    if not any(takes) or not (has_caps or shared >= 0):
        return ()
    return tuple(
        PodRules(
            amounts=((POWER, milli),) if has_caps else (),
            shared=((SHARED_POWER, milli, shared),) if shared >= 0 else (),
        )
        if milli
        else PodRules()
        for milli in takes
    )


def powered(node: Node) -> int:
    """Return how many milli-GPUs may be in use on a node; -1 if the node has no power cap."""
    return dict(node.amounts).get(POWER, -1)
