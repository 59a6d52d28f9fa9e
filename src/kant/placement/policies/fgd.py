"""FGD: fragmentation gradient descent."""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np

from kant.cluster.columns import CPU_FREE, D_CPU, D_GPUS, D_MILLI, DEVICES, FREE, Table, devices_of
from kant.compiled import inlined
from kant.model.taxonomy import Tags, tagged
from kant.placement.cost.fragmentation import M_WEIGHT, fragments
from kant.placement.fits import tightest
from kant.placement.policy import NodePolicy, Terms

# trunc(100 sigmoid(x)) is at least k from x = ln(k / (100 - k)) on: a table of steps, since the last bit of a libm
# differs between machines. At the ends: 0 and 99 (100 is never reached below x = 37, where floats round up to 1).
STEPS = np.array([math.log(k / (100 - k)) for k in range(1, 100)])
ROUNDS_TO_ONE = 36.7368005696771


@inlined
def percent(x: float) -> int:
    """Return trunc(100 * sigmoid(x))."""
    return 100 if x >= ROUNDS_TO_ONE else int(np.searchsorted(STEPS, x, side="right"))


@inlined
def after(table: Table, node: int, demands: Table, d: int, typical: Table, chosen: int) -> int:
    """Return the fragmentation of the node once the pod has the devices `chosen`."""
    milli = demands[d, D_MILLI]
    for device in range(devices_of(table)):
        if (chosen >> device) & 1:
            table[node, DEVICES + device] -= milli
            table[node, FREE] -= milli
    table[node, CPU_FREE] -= demands[d, D_CPU]
    result = fragments(table, node, typical)
    table[node, CPU_FREE] += demands[d, D_CPU]
    for device in range(devices_of(table)):
        if (chosen >> device) & 1:
            table[node, DEVICES + device] += milli
            table[node, FREE] += milli
    return result


@inlined
def unit_of(typical: Table) -> float:
    """Return the amount of fragmentation that equals one GPU which the typical pods cannot use, in expectation."""
    weight = 0
    for m in range(typical.shape[0]):
        weight += typical[m, M_WEIGHT]
    return 1000.0 * max(weight, 1)


@inlined
def best_choice(table: Table, node: int, demands: Table, d: int, typical: Table) -> tuple[int, int]:
    """Return (score, devices): for a share the first device with the best score, otherwise the first idle devices."""
    unit = unit_of(typical)
    before = fragments(table, node, typical)
    milli = demands[d, D_MILLI]
    if demands[d, D_GPUS] != 1 or milli == 1000:
        chosen = tightest(table, node, demands, d)
        return percent((before - after(table, node, demands, d, typical, chosen)) / unit), chosen
    best, best_mask = -1, 0
    for device in range(devices_of(table)):
        amount = table[node, DEVICES + device]
        if amount < milli:
            continue
        seen = False  # a device equal to an earlier one has the same score, and comes after it
        for earlier in range(device):
            seen = seen or table[node, DEVICES + earlier] == amount
        if not seen:
            worth = percent((before - after(table, node, demands, d, typical, 1 << device)) / unit)
            if worth > best:
                best, best_mask = worth, 1 << device
    return best, best_mask


@inlined
def score(table: Table, node: int, demands: Table, d: int, typical: Table, params: Table, draw: int) -> int:
    return best_choice(table, node, demands, d, typical)[0]


@inlined
def pick(table: Table, node: int, demands: Table, d: int, typical: Table, params: Table, draw: int) -> int:
    return best_choice(table, node, demands, d, typical)[1]


class Fgd(NodePolicy, frozen=True, tag="fgd"):
    """The node, and for a share the device, with the least growth of fragmentation for the typical pods."""

    source: ClassVar[str] = "FGD, Weng et al., USENIX ATC 2023, section 4"
    tags: ClassVar[Tags] = tagged(
        NodePolicy.tags, objective="fragmentation", resources="multi-d heterogeneous", knowledge="estimated"
    )
    score = staticmethod(score)
    pick = staticmethod(pick)
    reads_typical_pods: ClassVar[bool] = True

    @staticmethod
    def terms(table: Table, node: int, demands: Table, d: int, typical: Table, params: Table) -> Terms:
        chosen, unit = best_choice(table, node, demands, d, typical)[1], unit_of(typical)
        before, later = fragments(table, node, typical), after(table, node, demands, d, typical, chosen)
        return {"fragments before, GPUs": before / unit, "fragments after, GPUs": later / unit}
