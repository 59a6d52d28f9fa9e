"""Kant's default: the node on which the typical pods lose least."""

from __future__ import annotations

from typing import Annotated, ClassVar

import numpy as np
from msgspec import Meta

from kant.cluster import columns as c
from kant.cluster.columns import Table, devices_of
from kant.compiled import inlined
from kant.model.job import Level
from kant.model.taxonomy import Tags, tagged
from kant.model.units import GPU
from kant.placement.cost.claims import node_claims
from kant.placement.cost.fragmentation import M_CPU, M_GPUS, M_MILLI, M_POOLS, M_WEIGHT, fragments
from kant.placement.cost.gap_prices import gap_prices
from kant.placement.fits import tightest
from kant.placement.policies.most_pods import MostPods
from kant.placement.policy import NodePolicy, Terms

Percent = Annotated[int, Meta(ge=0, le=1000)]
Step = Annotated[int, Meta(ge=1, le=1_000_000)]

# The layout of `params`: the fields, the sum of the typical pods' weights, the price of each gap from 0 to 1000, and
# the claim on each node.
P_GAPS, P_CPU, P_WHOLE, P_BOUND, P_FRAGMENTATION, P_STEP, P_WEIGHT, P_PRICES = range(8)
P_CLAIMS = P_PRICES + GPU + 1

WEIGHTS = {"gaps": P_GAPS, "cpu": P_CPU, "whole": P_WHOLE, "bound": P_BOUND, "fragmentation": P_FRAGMENTATION}
"""The terms of a pod's cost, in GPUs once weighted."""

MOST_PODS = 1 << 16
"""More pods than fit on any node, so that unlimited CPU stays within 63 bits."""
ROOM = 1 << 24
FINE = 1 << 8
"""Fractions of a milli-GPU kept in a mean over kinds of pods."""


@inlined
def most_served(table: Table, node: int, gpus: int, milli: int, cpu: int) -> int:
    """Return the thousandths of the node's GPUs that pods of this demand use if they alone fill the empty node."""
    has = max(table[node, c.GPUS], 1)
    return int(max(min(table[node, c.CPU] // cpu, has // gpus * (GPU // milli)), 0) * gpus * milli // has)


@inlined
def lost(table: Table, node: int, typical: Table, params: Table) -> int:
    """Return what typical pods lose on the node as it is, in percent of a milli-GPU times the sum of their weights."""
    free, idle, cpu = table[node, c.FREE], table[node, c.IDLE], table[node, c.CPU_FREE]
    worth = 0
    for device in range(devices_of(table)):
        worth += params[P_PRICES + max(table[node, c.DEVICES + device], 0)]
    unserved, broken, able = 0, 0, 0
    for m in range(typical.shape[0]):
        gpus, milli, weight = typical[m, M_GPUS], typical[m, M_MILLI], typical[m, M_WEIGHT]
        if gpus == 0 or (typical[m, M_POOLS] >> table[node, c.POOL]) & 1 == 0:
            continue
        able_here = weight * GPU
        if typical[m, M_CPU] > 0:
            served = max(min(cpu // typical[m, M_CPU], MOST_PODS), 0) * gpus * milli
            able_here = weight * most_served(table, node, gpus, milli, typical[m, M_CPU])
            unserved += max(free - served, 0) * able_here
        able += able_here
        if milli == 1000:
            broken += (free - idle // gpus * gpus * 1000) * weight
    unserved = unserved * FINE // max(able, 1) * params[P_WEIGHT] // FINE
    total = params[P_CPU] * unserved + params[P_WHOLE] * broken - params[P_GAPS] * params[P_WEIGHT] * worth
    total -= params[P_BOUND] * params[P_WEIGHT] * (free * params[P_CLAIMS + node] // 1000)
    if params[P_FRAGMENTATION] > 0:
        total += params[P_FRAGMENTATION] * fragments(table, node, typical)
    return int(total)


@inlined
def lost_after(table: Table, node: int, demands: Table, d: int, typical: Table, params: Table, chosen: int) -> int:
    """Return what typical pods lose once a pod has the devices `chosen`."""
    milli = demands[d, c.D_MILLI]
    free, idle = table[node, c.FREE], table[node, c.IDLE]
    for device in range(devices_of(table)):
        if (chosen >> device) & 1:
            if table[node, c.DEVICES + device] == 1000:
                table[node, c.IDLE] -= 1
            table[node, c.DEVICES + device] -= milli
            table[node, c.FREE] -= milli
    table[node, c.CPU_FREE] -= demands[d, c.D_CPU]
    result = lost(table, node, typical, params)
    table[node, c.CPU_FREE] += demands[d, c.D_CPU]
    for device in range(devices_of(table)):
        if (chosen >> device) & 1:
            table[node, c.DEVICES + device] += milli
    table[node, c.FREE], table[node, c.IDLE] = free, idle
    return result


@inlined
def best_choice(table: Table, node: int, demands: Table, d: int, typical: Table, params: Table) -> tuple[int, int]:
    """Return (steps lost, devices): for a share the device with the least loss, the first on ties."""
    before = lost(table, node, typical, params)
    unit = 100 * params[P_WEIGHT] * params[P_STEP]
    if demands[d, c.D_GPUS] != 1 or demands[d, c.D_MILLI] == 1000:
        chosen = tightest(table, node, demands, d)
        more = lost_after(table, node, demands, d, typical, params, chosen) - before
        return int((2 * more + unit) // (2 * unit)), chosen
    least, mask = ROOM, 0
    for device in range(devices_of(table)):
        amount = table[node, c.DEVICES + device]
        if amount < demands[d, c.D_MILLI]:
            continue
        seen = False  # a device equal to an earlier one has the same worth
        for earlier in range(device):
            seen = seen or table[node, c.DEVICES + earlier] == amount
        if not seen:
            more = lost_after(table, node, demands, d, typical, params, 1 << device) - before
            steps = (2 * more + unit) // (2 * unit)
            if steps < least:
                least, mask = steps, 1 << device
    return int(least), mask


@inlined
def used(table: Table, node: int) -> int:
    """Return the thousandths of the node's GPUs in use; 1000 if it has none, so that nothing can be lost there."""
    return int(1000 - table[node, c.FREE] // table[node, c.GPUS]) if table[node, c.GPUS] > 0 else 1000


@inlined
def score(table: Table, node: int, demands: Table, d: int, typical: Table, params: Table, draw: int) -> int:
    return (ROOM - best_choice(table, node, demands, d, typical, params)[0]) * 1024 + used(table, node)


@inlined
def pick(table: Table, node: int, demands: Table, d: int, typical: Table, params: Table, draw: int) -> int:
    return best_choice(table, node, demands, d, typical, params)[1]


class Kant(NodePolicy, frozen=True, tag="kant"):
    """Where the typical pods lose least: gaps that fit together, GPUs that keep their CPU, nodes whole for gangs.

    The cost of a pod is the capacity that typical pods can no longer use, in milli-GPUs. `gaps`: how much the pod
    lowers the worth of the gap that it uses on a device (cost/gap_prices.py). `cpu`: the free GPU capacity that would
    be left without CPU if one kind of typical pod filled the node; in expectation, weighting each kind by how far it
    fits on the empty node. `whole`: the free GPU capacity that would not be in whole devices, or would be left over by
    pods of whole GPUs. `bound`: the free GPU capacity that is claimed by pods that fit on few nodes (cost/claims.py).
    `fragmentation`: FGD's measure. The five are weights in percent. Costs within `step` milli-GPUs count as equal; of
    equal nodes the fullest wins, relative to its size. Gangs, and pods that fill a node, go as under `e-binpack`.
    """

    gaps: Percent = 100
    cpu: Percent = 50
    whole: Percent = 5
    bound: Percent = 30
    fragmentation: Percent = 0
    step: Step = 40  # milli-GPUs

    source: ClassVar[str] = "this project; fragmentation after FGD, Weng et al., USENIX ATC 2023, section 4"
    tags: ClassVar[Tags] = tagged(
        NodePolicy.tags,
        objective="fragmentation utilisation",
        resources="multi-d topology heterogeneous",
        knowledge="learned",
    )
    score = staticmethod(score)
    pick = staticmethod(pick)
    reads_typical_pods: ClassVar[bool] = True
    preferred_level: ClassVar[Level] = "node"
    ignores_topology: ClassVar[bool] = True
    learns: ClassVar[bool] = True

    def numbers(self, typical: Table, empty: Table) -> Table:
        fields = (
            self.gaps,
            self.cpu,
            self.whole,
            self.bound,
            self.fragmentation,
            self.step,
            max(int(np.add.reduce(typical[:, M_WEIGHT])), 1),
        )
        return np.concatenate([np.array(fields, dtype=np.int64), gap_prices(typical), node_claims(typical, empty)])

    @staticmethod
    def terms(table: Table, node: int, demands: Table, d: int, typical: Table, params: Table) -> Terms:
        steps, chosen = best_choice(table, node, demands, d, typical, params)
        found: Terms = {}
        for name, weight in WEIGHTS.items():
            alone = params.copy()
            alone[[other for other in WEIGHTS.values() if other != weight]] = 0
            if alone[weight] > 0:
                more = lost_after(table, node, demands, d, typical, alone, chosen) - lost(table, node, typical, alone)
                found[name] = more / (100 * params[P_WEIGHT] * 1000)
        return found | {"steps lost": steps, "of it used": used(table, node) / 1000}

    def policy_for(self, group: int, groups: int, pods: int) -> tuple[NodePolicy, bool]:
        return (self, False) if pods == 1 else (MostPods(ties=self.ties), True)
