"""The facts behind a reason, read off the state: how much is free and where, who holds the rest, who borrows."""

from __future__ import annotations

from itertools import chain

import numpy as np

from kant.cluster import columns as c
from kant.cluster.columns import Table
from kant.cluster.shapes import Shape
from kant.model.decision import BackOff, Behind, Closed, CoreWaits, NoFit, OverQuota, Reason, Reserved
from kant.model.placement import NODE, gpu_milli
from kant.model.status import NodeStatus
from kant.model.units import GPU
from kant.scheduler.evidence import (
    Blocker,
    Borrower,
    Ending,
    Fact,
    Fitting,
    Free,
    Holder,
    Promise,
    QuotaUse,
    UserUse,
    known,
)
from kant.scheduler.inquiry import Inquiry

MOST = 3
"""Queues, borrowers and next ends that are named: the largest, or the first."""


def facts_behind(inquiry: Inquiry, row: int, reason: Reason | None) -> tuple[Fact, ...]:
    """What stands behind the reason for which the job waits."""
    match reason:
        case NoFit(group=group):
            _, option = inquiry.missing(row)
            found = (*room(inquiry, option, group), *holders(inquiry, option))
            return (*found, *promises(inquiry, row, option), *next_ends(inquiry, option))
        case OverQuota():
            return quotas(inquiry, row, reason)
        case Reserved(job=job):
            shape = inquiry.state.shape_of(row)
            return (promise(inquiry, inquiry.state.rows[job]), *room(inquiry, shape, 0))
        case Behind(job=job) | CoreWaits(job=job):
            return blocker(inquiry, row, job)
        case Closed() | BackOff() | None | _:
            return ()


def rivals(inquiry: Inquiry, shape: Shape) -> list[int]:
    """The running jobs that hold something of the pools that admit the shape, as they started."""
    state = inquiry.state
    groups = [group.running for bits, group in state.rivals.items() if bits & shape.pool_bits]
    nodes = _open_nodes(inquiry, shape.pool_bits)
    running = sorted(chain.from_iterable(groups))
    return [row for row in running if nodes[state.running[row][:, NODE]].any()]


def _open_nodes(inquiry: Inquiry, pool_bits: int) -> np.ndarray:
    """A mask over the nodes: in service, and of one of the pools."""
    table = inquiry.state.table
    mask: np.ndarray = (table[:, c.STATUS] == NodeStatus.IN_SERVICE) & ((pool_bits >> table[:, c.POOL]) & 1 == 1)
    return mask


def room(inquiry: Inquiry, shape: Shape, group: int) -> tuple[Fact, ...]:
    """How much is free in all, and how many nodes take a pod of the group: whether GPUs lack, or whole nodes."""
    state = inquiry.state
    mask = _open_nodes(inquiry, shape.pool_bits)
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
        bool(demand[c.D_ISLAND]), shape.groups[group].demand.mig,
    )  # fmt: skip
    return (free, fitting) if shape.gpu_milli else (fitting,)


def _pods_on(nodes: Table, demand: Table) -> tuple[np.ndarray, np.ndarray]:
    """How many pods of a demand each node takes: by its devices alone, and by its CPU and memory too."""
    gpus, milli = int(demand[c.D_GPUS]), int(demand[c.D_MILLI])
    slots = c.devices_of(nodes)
    free = np.maximum(nodes[:, c.DEVICES : c.DEVICES + slots], 0)
    if gpus == 0:
        devices = np.full(len(nodes), 1 << 40, dtype=np.int64)
    elif demand[c.D_SLICES]:
        occupied, size = nodes[:, c.slices_at(nodes) :], int(demand[c.D_SLICES])
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
    """The pods that devices serve which have room for so many shares each: rounds in which `gpus` of them serve."""
    most_first = np.sort(shares, axis=1)[:, ::-1]
    rounds: Table = most_first.sum(axis=1) // gpus
    for always in range(1, min(gpus, shares.shape[1] + 1)):  # so many may serve in every round
        rounds = np.minimum(rounds, most_first[:, always:].sum(axis=1) // (gpus - always))
    return rounds


def holders(inquiry: Inquiry, shape: Shape) -> tuple[Holder, ...]:
    """The queues that hold the most of the shape's pools."""
    state = inquiry.state
    held: dict[str, list[int]] = {}
    for row in rivals(inquiry, shape):
        own = held.setdefault(state.live[row].queue, [0, 0])
        own[0] += gpu_milli(state.running[row])
        own[1] += 1
    ranked = sorted(held.items(), key=lambda entry: (-entry[1][0], entry[0]))
    return tuple(Holder(queue, milli, jobs) for queue, (milli, jobs) in ranked[:MOST])


def expected_ends(inquiry: Inquiry, rows: list[int]) -> list[tuple[int, int]]:
    """(expected end, row) of running jobs, the first first; those of whom nobody knows come last, as they are given."""
    estimates = inquiry.profile.estimates
    ends = [(estimates.end(inquiry.state, row, inquiry.now), row) for row in rows]
    return sorted(ends, key=lambda entry: entry[0])


def next_ends(inquiry: Inquiry, shape: Shape) -> tuple[Ending, ...]:
    """The running jobs of the shape's pools that are expected to end first."""
    state = inquiry.state
    ends = expected_ends(inquiry, rivals(inquiry, shape))
    return tuple(Ending(state.ids[row], gpu_milli(state.running[row]), known(end)) for end, row in ends[:MOST])


def quotas(inquiry: Inquiry, row: int, reason: OverQuota) -> tuple[Fact, ...]:
    """What the job's queue, and the queue that binds, use of the quota; and who uses more than their own of it."""
    state, books = inquiry.state, inquiry.admission.books
    key = books.keys.index((reason.model, reason.resource))
    node = state.holdings.node_of[int(state.jobs[row, c.J_QUEUE])]
    binding = books.index[reason.queue]
    found: list[Fact] = []
    for queue in dict.fromkeys((node, binding)):
        nominal, used = books.nominal(queue, key), books.usage(queue, key)
        lent = max(0, nominal - max(used, 0) - max(0, books.available(queue, key)))
        found.append(
            QuotaUse(
                books.queues[queue].name, reason.model, reason.resource, nominal, used, books.borrowed(queue, key),
                0 if used >= nominal else lent,
            )
        )  # fmt: skip
    if reason.limit == "user":
        user = int(state.jobs[row, c.J_USER])
        held = books.held_by(binding, user, key)
        found.append(UserUse(state.live[row].user, reason.queue, reason.resource, held, held + reason.available))
        return tuple(found)
    root = books.paths[node][-1]
    beyond = [
        (books.borrowed(other, key), books.queues[other].name)
        for other, path in enumerate(books.paths)
        if path[-1] == root
        and other not in books.paths[node]
        and books.borrowed(other, key) > 0
        and not any(books.borrowed(child, key) for child in books.children[other])
    ]
    beyond.sort(key=lambda entry: (-entry[0], entry[1]))
    return (*found, *(Borrower(name, reason.resource, amount) for amount, name in beyond[:MOST]))


def promises(inquiry: Inquiry, row: int, shape: Shape) -> tuple[Promise, ...]:
    """What the job itself is promised, and what others are of the shape's pools: the first to start."""
    state = inquiry.state
    nodes = _open_nodes(inquiry, shape.pool_bits)
    found = [
        (other != row, held.start, other) for other, held in state.reserved.items()
        if nodes[held.allocation[:, NODE]].any()
    ]  # fmt: skip
    return tuple(promise(inquiry, other, own=other == row) for _, _, other in sorted(found)[:MOST])


def promise(inquiry: Inquiry, row: int, own: bool = False) -> Promise:
    """What a waiting job was promised."""
    held = inquiry.state.reserved[row]
    nodes = len(set(held.allocation[:, NODE].tolist()))
    job = inquiry.state.ids[row]
    return Promise(job, held.since, held.start, held.end, gpu_milli(held.allocation), nodes, own)


def blocker(inquiry: Inquiry, row: int, job: str) -> tuple[Fact, ...]:
    """The job that has to go first, why it waits, and what stands behind that; nothing where it does not wait."""
    state = inquiry.state
    first = state.rows[job]
    if first not in state.pending:
        return ()
    reason = inquiry.why(first)
    same = state.shape_of(first).index == state.shape_of(row).index
    behind = () if isinstance(reason, Behind | CoreWaits) else facts_behind(inquiry, first, reason)
    return (Blocker(job, int(state.jobs[first, c.J_SINCE]), reason, same), *behind)
