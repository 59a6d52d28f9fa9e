"""From counts to virtual machines: which VMs leave each slot, and where they enter, within memory and anti-affinity."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np

from kant.optimize.defragment.cluster import Cluster, Layout, Move
from kant.optimize.defragment.plan_flow import FlowPlan
from kant.optimize.solvers import cp_sat, deterministic


def assign(cluster: Cluster, layout: Layout, plan: FlowPlan, limit: float) -> tuple[list[Move], float]:
    """As many migrations of the plan as concrete VMs can make, unordered; and the solver's deterministic seconds.

    A VM does not enter a host that has another VM of its service now, even if that one leaves: so any order is valid.
    """
    nodes = layout.cores.shape[1]
    model: Any = cp_sat().CpModel()
    leaves: dict[tuple[int, int], int] = {}
    enters: dict[tuple[int, int], int] = {}
    for slot, net in plan.nets:
        for size, n in zip(plan.sizes, net, strict=True):
            if n:
                (enters if n > 0 else leaves)[slot, size] = abs(n)
    by_size: dict[int, list[int]] = defaultdict(list)
    for slot, size in enters:
        by_size[size].append(slot)
    goes: dict[Move, Any] = {}
    of_vm: dict[int, list[Any]] = defaultdict(list)
    out: dict[tuple[int, int], list[Any]] = defaultdict(list)
    into: dict[tuple[int, int], list[Any]] = defaultdict(list)
    memory: dict[int, list[Any]] = defaultdict(list)
    meets: dict[tuple[int, int], list[Any]] = defaultdict(list)
    for slot, size in leaves:
        host, numa = divmod(slot, nodes)
        here = ~cluster.spread & (layout.host == host) & (layout.slot == numa) & (cluster.vm_cores == size)
        for vm in np.flatnonzero(here).tolist():
            service, need = int(cluster.service[vm]), int(cluster.vm_memory[vm])
            for target in by_size[size]:
                to = target // nodes
                if target == slot or (to != host and (service, to) in layout.services):
                    continue
                var = goes[Move(vm, to, target % nodes)] = model.new_bool_var("")
                of_vm[vm].append(var)
                out[slot, size].append(var)
                into[target, size].append(var)
                memory[target].append(need * var)
                memory[slot].append(-need * var)
                if service >= 0:
                    meets[service, to].append(var)
    for found in of_vm.values():
        model.add_at_most_one(found)
    for found in meets.values():
        model.add_at_most_one(found)
    for counts, found_by in ((leaves, out), (enters, into)):
        for key, found in found_by.items():
            model.add(sum(found) <= counts[key])
    for slot, taken in memory.items():
        model.add(sum(taken) <= int(layout.memory.ravel()[slot]))
    model.maximize(sum(goes.values()))
    solver = deterministic(limit)
    status = solver.status_name(solver.solve(model))
    known = status in ("OPTIMAL", "FEASIBLE")
    chosen = [move for move, var in goes.items() if known and solver.boolean_value(var)]
    return chosen, float(solver.response_proto.deterministic_time)
