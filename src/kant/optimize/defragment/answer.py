"""The answer of `kant defrag`: migrations in a feasible order, the remaining fragments, and a lower bound for any plan
(docs/solvers.md).
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
from msgspec import Struct

from kant.model.errors import InputError
from kant.optimize.defragment.cluster import SPREAD, Move, VmCluster, VmLayout
from kant.optimize.defragment.instance import DefragInstance
from kant.optimize.defragment.plan_flow import FlowPlan, plan_flow
from kant.optimize.solvers import cp_sat, deterministic


def assign(cluster: VmCluster, layout: VmLayout, plan: FlowPlan, limit: float) -> tuple[list[Move], float]:
    """The most migrations of the plan that actual VMs can make, unordered; and the solver's deterministic seconds.

    A VM enters no host that has another VM of its service now, even if that VM leaves. So every order is valid.
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


TRIED = 24
"""For each VM size, this many source and target slots are tried, since the best slots may not be allowed."""


def best_move(layout: VmLayout) -> Move | None:
    """The migration of a single-slot VM that lowers the number of fragments most; None if none does."""
    cluster = layout.cluster
    block = cluster.instance.block
    rest = layout.cores % block
    best: tuple[int, Move] | None = None
    for size in sorted(set(cluster.vm_cores[~cluster.spread].tolist())):
        vms = np.flatnonzero(~cluster.spread & (cluster.vm_cores == size))
        host, slot = layout.host[vms], layout.slot[vms]
        saved_there = rest[host, slot] - (layout.cores[host, slot] + size) % block
        saved_here = np.where(layout.cores >= size, rest - (layout.cores - size) % block, -block)
        sources = np.argsort(-saved_there, kind="stable")[:TRIED].tolist()
        targets = np.argsort(-saved_here, axis=None, kind="stable")[:TRIED].tolist()
        pairs = sorted(
            ((int(saved_there[a] + saved_here.flat[b]), a, b) for a in sources for b in targets), key=lambda p: -p[0]
        )
        for saved, a, b in pairs:
            if saved <= (best[0] if best else 0):
                break
            move = Move(int(vms[a]), *map(int, np.unravel_index(b, layout.cores.shape)))
            if layout.may(move):
                best = saved, move
                break
    return best[1] if best else None


def greedy(layout: VmLayout, moves: int) -> list[Move]:
    """Make the best single migration, at most `moves` times."""
    made: list[Move] = []
    while len(made) < moves and (move := best_move(layout)) is not None:
        assert move.numa != SPREAD
        layout.make(move)
        made.append(move)
    return made


def ordered(layout: VmLayout, moves: list[Move], most: int) -> list[Move]:
    """The moves in a feasible order, at most `most` of them. Carries them out on `layout`.

    If VMs wait for each other in a cycle, one of them makes a detour through a spare slot, which costs one more move. A
    move without room or spare slot is left out, and so are the moves that wait for it.
    """
    left = sorted(moves, key=lambda move: (-int(layout.cluster.vm_cores[move.vm]), move.vm))
    done: list[Move] = []
    while left and len(done) < most:
        waiting = []
        for move in left:
            if len(done) < most and layout.may(move):
                layout.make(move)
                done.append(move)
            else:
                waiting.append(move)
        if len(waiting) == len(left):
            spare = _detour(layout, waiting) if len(done) + len(waiting) < most else None
            if spare is None:
                break
            layout.make(spare)
            done.append(spare)
        left = waiting
    return done


def _detour(layout: VmLayout, waiting: list[Move]) -> Move | None:
    """Return a move of a waiting VM to a slot that no VM waits for, so that another has room; None if there is none.

    Smaller VMs are tried first.
    """
    cluster = layout.cluster
    wanted = {(move.host, move.numa) for move in waiting}
    for blocked in sorted(waiting, key=lambda move: (int(cluster.vm_cores[move.vm]), move.vm)):
        if blocked.numa == SPREAD:
            continue
        room = np.argwhere(layout.cores >= cluster.vm_cores[blocked.vm])
        for host, numa in room[np.argsort(-layout.cores[tuple(room.T)], kind="stable")].tolist():
            move = Move(blocked.vm, host, numa)
            if (host, numa) in wanted or not layout.may(move):
                continue
            tried = layout.copy()
            tried.make(move)
            if any(tried.may(other) for other in waiting if other.vm != blocked.vm):
                return move
            break
    return None


ROUNDS = 4
"""The maximum number of plans. Another plan follows if the VMs cannot carry out the previous plan in full."""
MOST_MOVES = 100_000
LONGEST = 3600.0


class Migration(Struct, frozen=True):
    """The migration of one VM from a NUMA node of a host to another (None: spread over all NUMA nodes)."""

    vm: str
    source: str
    source_numa: int | None
    target: str
    target_numa: int | None


class DefragAnswer(Struct, frozen=True):
    """A plan and its bound. Fragments are free cores beyond whole blocks; a rate is their share of all free cores."""

    limit_s: float
    spent_s: float
    """Deterministic seconds of the solver."""
    moves_allowed: int
    free_cores: int
    fragments_before: int
    fragments_after: int
    fragments_bound: int
    """It is proven that no plan of `moves_allowed` moves leaves fewer fragments than this."""
    rate_before: float
    rate_after: float
    rate_bound: float
    proven: bool
    """Whether it is proven that no plan of `moves_allowed` moves is better."""
    moves: tuple[Migration, ...]


def defragment(instance: DefragInstance, moves: int, limit: float = 5.0) -> DefragAnswer:
    """At most `moves` migrations that leave the fewest fragments, planned within `limit` deterministic seconds.

    The answer does not depend on the load of the machine. Raises InputError if a number is out of range, or if OR-Tools
    is not installed.
    """
    if not 0 <= moves <= MOST_MOVES:
        raise InputError("--moves", f"a whole number from 0 to {MOST_MOVES:,}", moves)
    if not 0.01 <= limit <= LONGEST:
        raise InputError("--limit", "a time from 10ms to 1h")
    cluster = VmCluster.of(instance)
    made, bound, spent = plan(cluster, moves, limit)
    before, after = VmLayout(cluster), VmLayout(cluster)
    migrations = []
    for move in made:
        migrations.append(_migration(after, move))
        after.make(move)
    free = int(before.cores.sum())
    return DefragAnswer(
        limit_s=limit,
        spent_s=round(spent, 6),
        moves_allowed=moves,
        free_cores=free,
        fragments_before=before.fragments(),
        fragments_after=after.fragments(),
        fragments_bound=bound,
        rate_before=before.rate(),
        rate_after=after.rate(),
        rate_bound=bound / free if free else 0.0,
        proven=after.fragments() == bound,
        moves=tuple(migrations),
    )


def plan(cluster: VmCluster, moves: int, limit: float) -> tuple[list[Move], int, float]:
    """Migrations in a feasible order, a lower bound on the fragments, and the solver's deterministic seconds.

    The flow is planned, assigned to VMs and ordered. If a part of it is impossible, more moves are planned from the
    layout reached, and greedy moves complete the plan. The shortest list with the fewest fragments is kept.
    """
    layout = VmLayout(cluster)
    made: list[Move] = []
    bound, spent = 0, 0.0
    for round_ in range(ROUNDS):
        flow = plan_flow(cluster, layout, moves - len(made), max(limit - spent, 0.01))
        spent += flow.spent
        if round_ == 0:
            bound = flow.bound
        if not flow.nets:
            break
        chosen, used = assign(cluster, layout, flow, max(limit - spent, 0.01))
        spent += used
        now = layout.fragments()
        tried = layout.copy()
        steps = ordered(tried, chosen, moves - len(made))
        if tried.fragments() >= now:
            break
        layout = tried
        made += steps
        if layout.fragments() <= bound or len(made) >= moves or spent >= limit:
            break
    made += greedy(layout, moves - len(made))
    return made, bound, spent


def _migration(layout: VmLayout, move: Move) -> Migration:
    hosts = layout.cluster.instance.hosts
    numa = int(layout.slot[move.vm])
    return Migration(
        layout.cluster.instance.vms[move.vm].name,
        hosts[int(layout.host[move.vm])].name,
        None if numa == SPREAD else numa,
        hosts[move.host].name,
        None if move.numa == SPREAD else move.numa,
    )
