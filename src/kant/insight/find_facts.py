"""Finds the facts behind a reason: how much is free and where, which queues hold the rest, and which queues borrow."""

from __future__ import annotations

import numpy as np

from kant.cluster import columns as c
from kant.cluster.closing_rules import closing_rules, rule_words
from kant.cluster.columns import Table
from kant.cluster.shapes import Shape
from kant.insight.diagnosis import Diagnosis
from kant.insight.facts import (
    Blocker,
    Borrower,
    ClosedByRule,
    Ending,
    Fact,
    Fitting,
    Free,
    HeldReservation,
    HoldingQueue,
    NotReservable,
    QuotaUse,
    UserUse,
    known,
)
from kant.model.decision import BackOff, BaseJobWaits, Behind, Closed, NoFit, Outranked, OverQuota, Reason, Reserved
from kant.model.placement import NODE, gpu_milli
from kant.model.status import NodeStatus
from kant.model.units import GPU

MOST = 3
"""Maximum number of queues and borrowers that are named (the largest), and of running jobs (the first to end)."""


def find_facts(diagnosis: Diagnosis, row: int, reason: Reason | None) -> tuple[Fact, ...]:
    """Return the facts behind the reason why the job waits."""
    match reason:
        case NoFit(group=group):
            _, option = diagnosis.missing(row)
            free = (*free_capacity(diagnosis, option, group), *rules_in_the_way(diagnosis, option, group))
            plans = diagnosis.profile.discipline.forecasts and not (option.reservable or option.ask.reservation)
            found = (*free, *[NotReservable()] * plans, *holders(diagnosis, option))
            return (*found, *reservations(diagnosis, row, option), *next_ends(diagnosis, option))
        case OverQuota():
            return quotas(diagnosis, row, reason)
        case Reserved(job=job):
            shape = diagnosis.state.shape_of(row)
            return (reservation(diagnosis, diagnosis.state.rows[job]), *free_capacity(diagnosis, shape, 0))
        case Behind(job=job) | Outranked(job=job) | BaseJobWaits(job=job):
            return blocker(diagnosis, row, job)
        case Closed() | BackOff() | None | _:
            return ()


def competitors(diagnosis: Diagnosis, shape: Shape) -> list[int]:
    """Return the running jobs that hold a part of a pool that admits the shape, in order of submission."""
    state = diagnosis.state
    nodes = _open_nodes(diagnosis, shape)
    running = (row for row in sorted(state.running) if state.shape_of(row).pool_bits & shape.pool_bits)
    return [row for row in running if nodes[state.running[row][:, NODE]].any()]


def _open_nodes(diagnosis: Diagnosis, shape: Shape) -> np.ndarray:
    """Return a mask of the nodes in service that admit a pod of the shape."""
    state = diagnosis.state
    open_to = state.shapes.admitting(shape, state.table[:, c.POOL])
    mask: np.ndarray = (state.table[:, c.STATUS] == NodeStatus.IN_SERVICE) & open_to
    return mask


def free_capacity(diagnosis: Diagnosis, shape: Shape, group: int) -> tuple[Fact, ...]:
    """Return how much capacity is free in total, and how many nodes fit a pod of the group."""
    state = diagnosis.state
    mask = _open_nodes(diagnosis, shape)
    nodes, empty = state.table[mask], state.empty[mask]
    demand = state.shapes.demands[shape.parts[group][1]]
    devices, whole = _pods_on(nodes, demand)
    _, at_most = _pods_on(empty, demand)
    pods = int(shape.parts[group][0])
    needed = int(np.searchsorted(np.cumsum(np.sort(at_most)[::-1]), pods)) + 1
    gpus = nodes[:, c.GPUS] > 0
    free = Free(
        int(nodes[:, c.FREE].sum()),
        int(nodes[:, c.GPUS].sum()) * GPU,
        int((nodes[:, c.FREE] > 0).sum()),
        int(gpus.sum()),
    )
    asked = int(demand[c.D_GPUS])
    fitting = Fitting(
        group, asked, int(demand[c.D_MILLI]), pods, int(np.minimum(whole, pods).sum()), int((whole > 0).sum()),
        int(gpus.sum() if asked else len(nodes)), needed, int(((devices > 0) & (whole == 0)).sum()) if asked else 0,
        bool(demand[c.D_ISLAND]), shape.groups[group].demand.profile,
    )  # fmt: skip
    return (free, fitting) if shape.gpu_milli else (fitting,)


def rules_in_the_way(diagnosis: Diagnosis, shape: Shape, group: int) -> tuple[ClosedByRule, ...]:
    """Return the pod rules, and amounts of other resources, that exclude nodes with room for a pod of the group."""
    state = diagnosis.state
    if not shape.ask.rules:
        return ()
    demand = state.shapes.demands[shape.parts[group][1]]
    roomy = _open_nodes(diagnosis, shape) & (_pods_on(state.table, demand)[1] > 0)
    closing = closing_rules(state.table, state.shapes.rules.counters, shape.ask.rules[group])
    found = [ClosedByRule(group, rule_words(rule), int((mask & roomy).sum())) for rule, mask in closing]
    return tuple(sorted((one for one in found if one.nodes), key=lambda one: (-one.nodes, one.rule)))


def _pods_on(nodes: Table, demand: Table) -> tuple[np.ndarray, np.ndarray]:
    """Return how many pods of a demand fit on each node: first by devices alone, then by CPU and memory as well."""
    gpus, milli = int(demand[c.D_GPUS]), int(demand[c.D_MILLI])
    slots = c.devices_of(nodes)
    free = np.maximum(nodes[:, c.DEVICES : c.DEVICES + slots], 0)
    if gpus == 0:
        devices = np.full(len(nodes), 1 << 40, dtype=np.int64)
    elif demand[c.D_SLICES]:
        occupied, size = nodes[:, c.slices_at(nodes) : c.extra_at(nodes)], int(demand[c.D_SLICES])
        starts = [start for start in range(8) if int(demand[c.D_STARTS]) >> start & 1]
        there = np.arange(slots) < nodes[:, c.GPUS, None]
        devices = sum(((occupied & ((1 << size) - 1 << start) == 0) & there).sum(axis=1) for start in starts)
    elif demand[c.D_ISLAND]:
        devices = np.zeros(len(nodes), dtype=np.int64)
        islands = np.arange(slots) // np.maximum(nodes[:, c.ISLAND, None], 1)
        for island in range(slots):
            devices += _rounds(np.where(islands == island, free // milli, 0), gpus)
    elif milli == GPU:
        devices = nodes[:, c.IDLE] // gpus
    else:
        devices = _rounds(free // milli, gpus)
    both = devices
    for wanted, left in ((c.D_CPU, c.CPU_FREE), (c.D_MEMORY, c.MEMORY_FREE)):
        if demand[wanted] > 0:
            both = np.minimum(both, nodes[:, left] // demand[wanted])
    return devices, both


def _rounds(shares: Table, gpus: int) -> Table:
    """Return how many pods fit on each node if a pod takes a share of `gpus` devices. `shares` has nodes x devices."""
    most_first = np.sort(shares, axis=1)[:, ::-1]
    rounds: Table = most_first.sum(axis=1) // gpus
    for always in range(1, min(gpus, shares.shape[1] + 1)):  # this many devices serve every pod
        rounds = np.minimum(rounds, most_first[:, always:].sum(axis=1) // (gpus - always))
    return rounds


def holders(diagnosis: Diagnosis, shape: Shape) -> tuple[HoldingQueue, ...]:
    """Return the queues whose running jobs hold the most GPUs in the pools that admit the shape."""
    state = diagnosis.state
    held: dict[str, list[int]] = {}
    for row in competitors(diagnosis, shape):
        own = held.setdefault(state.live[row].queue, [0, 0])
        own[0] += gpu_milli(state.running[row])
        own[1] += 1
    ranked = sorted(held.items(), key=lambda entry: (-entry[1][0], entry[0]))
    return tuple(HoldingQueue(queue, milli, jobs) for queue, (milli, jobs) in ranked[:MOST])


def expected_ends(diagnosis: Diagnosis, rows: list[int]) -> list[tuple[int, int]]:
    """Return (expected end, row) of running jobs, the soonest first. Unknown ends come last, in the given order."""
    estimates = diagnosis.profile.estimates
    ends = [(estimates.end(diagnosis.state, row, diagnosis.now), row) for row in rows]
    return sorted(ends, key=lambda entry: entry[0])


def next_ends(diagnosis: Diagnosis, shape: Shape) -> tuple[Ending, ...]:
    """Return the running jobs in the shape's pools that are expected to end first."""
    state = diagnosis.state
    ends = expected_ends(diagnosis, competitors(diagnosis, shape))
    return tuple(Ending(state.ids[row], gpu_milli(state.running[row]), known(end)) for end, row in ends[:MOST])


def quotas(diagnosis: Diagnosis, row: int, reason: OverQuota) -> tuple[Fact, ...]:
    """Return the quota usage of the job's queue and of the queue whose limit binds, and the queues that borrow."""
    state, tree = diagnosis.state, diagnosis.admission.quota_tree
    key = tree.keys.index((reason.model, reason.resource))
    node = state.quota_usage.node_of[int(state.jobs[row, c.J_QUEUE])]
    binding = tree.index[reason.queue]
    found: list[Fact] = []
    for queue in dict.fromkeys((node, binding)):
        nominal, used = tree.nominal(queue, key), tree.usage(queue, key)
        lent = max(0, nominal - max(used, 0) - max(0, tree.available(queue, key)))
        found.append(
            QuotaUse(
                tree.queues[queue].name, reason.model, reason.resource, nominal, used, tree.borrowed(queue, key),
                0 if used >= nominal else lent,
            )
        )  # fmt: skip
    if reason.limit == "user":
        user = int(state.jobs[row, c.J_USER])
        held = tree.held_by(binding, user, key)
        found.append(UserUse(state.live[row].user, reason.queue, reason.resource, held, held + reason.available))
        return tuple(found)
    root = tree.paths[node][-1]
    beyond = [
        (tree.borrowed(other, key), tree.queues[other].name)
        for other, path in enumerate(tree.paths)
        if path[-1] == root
        and other not in tree.paths[node]
        and tree.borrowed(other, key) > 0
        and not any(tree.borrowed(child, key) for child in tree.children[other])
    ]
    beyond.sort(key=lambda entry: (-entry[0], entry[1]))
    return (*found, *(Borrower(name, reason.resource, amount) for amount, name in beyond[:MOST]))


def reservations(diagnosis: Diagnosis, row: int, shape: Shape) -> tuple[HeldReservation, ...]:
    """Return the reservations that begin first in the shape's pools. The job's own reservation comes first."""
    state = diagnosis.state
    nodes = _open_nodes(diagnosis, shape)
    found = [
        (other != row, held.start, other) for other, held in state.reserved.items()
        if nodes[held.allocation[:, NODE]].any()
    ]  # fmt: skip
    return tuple(reservation(diagnosis, other, own=other == row) for _, _, other in sorted(found)[:MOST])


def reservation(diagnosis: Diagnosis, row: int, own: bool = False) -> HeldReservation:
    """Return the reservation of a waiting job as a fact."""
    held = diagnosis.state.reserved[row]
    nodes = len(set(held.allocation[:, NODE].tolist()))
    job = diagnosis.state.ids[row]
    return HeldReservation(job, held.since, held.start, held.end, gpu_milli(held.allocation), nodes, own)


def blocker(diagnosis: Diagnosis, row: int, job: str) -> tuple[Fact, ...]:
    """Return a fact that `job` goes first and why it waits, and the facts behind that; () if it does not wait."""
    state = diagnosis.state
    first = state.rows[job]
    if first not in state.pending:
        return ()
    reason = diagnosis.why(first)
    same = state.shape_of(first).index == state.shape_of(row).index
    behind = () if isinstance(reason, Behind | Outranked | BaseJobWaits) else find_facts(diagnosis, first, reason)
    return (Blocker(job, int(state.jobs[first, c.J_SINCE]), reason, same), *behind)
