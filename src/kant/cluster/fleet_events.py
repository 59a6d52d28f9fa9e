"""The events by which nodes join, leave, or get a new description: a function applies each to the state.

Caches with an entry for each node follow the log of changed nodes. They are rebuilt only if the table becomes longer or
wider (`StateData.layout`). Caches by domain are also rebuilt if a row moves in the fabric (`StateData.moves`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from msgspec.structs import replace

from kant.cluster import columns as c
from kant.cluster.columns import Table
from kant.cluster.node_events import ask_again, change_node_set, node_of, node_offers
from kant.cluster.node_rows import NO_NODE, place_of, spare_rows
from kant.cluster.node_table import PLACE, check_node, enlarged, retire_row, write_node
from kant.cluster.state_data import StateData
from kant.model import event as ev
from kant.model.errors import StateError
from kant.model.node import MAX_POOLS, Node
from kant.model.placement import NODE
from kant.model.units import GPU


def joined(state: StateData, event: ev.NodesJoined) -> None:
    nodes, rows_of = event.nodes, state.node_rows
    names = {node.name for node in nodes}
    if not nodes or "" in names or len(names) < len(nodes) or names & rows_of.index.keys():
        raise StateError("joining nodes have no name or exist already; expected new nodes, each once")
    _check(state, nodes)
    booked = {node for own in state.bookings.values() if own.end > event.time for node in own.devices()}
    rows = rows_of.rows_for(nodes, booked)
    new = iter(range(len(state.table), len(state.table) + rows.count(-1)))
    larger = _make_room(state, rows.count(-1), nodes)
    rows = [row if row >= 0 else next(new) for row in rows]
    before = [rows_of.nodes[row] for row in rows]
    asking = dict[int, None]()
    for row, node, last in zip(rows, nodes, before, strict=True):
        if last.name not in ("", node.name):
            state.health.replaced(row)
            for name in state.shapes.node_sets.of(row):
                asking.update(dict.fromkeys(change_node_set(state, name, (), (row,), event.time)))
    _put(state, rows, nodes, larger)
    asking.update(dict.fromkeys(_add_pools(state, nodes)))
    for row, node, last in zip(rows, nodes, before, strict=True):
        asking.update(dict.fromkeys(_write(state, row, node, last)))
        state.table[row, : c.extra_at(state.table)] = state.empty[row, : c.extra_at(state.table)]
        c.count_node(state.table, state.pools, row, 1)
    state.counter_tables.place(rows)
    _changed(state, rows, event.time, list(asking))


def left(state: StateData, event: ev.NodesLeft) -> None:
    rows = [node_of(state, name) for name in event.nodes]
    if not rows or len(set(rows)) < len(rows):
        raise StateError("leaving nodes are none, or named twice")
    for name in event.nodes:
        if is_in_use(state, name):
            raise StateError(f"node {name!r} leaves while a job holds resources of it")
    if state.left is None:
        state.left = state.empty.copy()
    slots = c.devices_of(state.table)
    for row in rows:
        c.count_node(state.table, state.pools, row, -1)
        state.health.left(row)
        state.node_rows.retire(row)
        retire_row(state.empty[row], slots)
        state.empty[row, c.REVISION] += 1
        state.table[row, : c.extra_at(state.table)] = state.empty[row, : c.extra_at(state.table)]
        state.counter_tables.has_left(row)
    void = _void_promises(state, rows)
    _changed(state, rows, event.time, (), void)


def described(state: StateData, event: ev.NodeDescribed) -> None:
    node, row = event.node, node_of(state, event.node.name)
    before = state.nodes[row]
    if node == before:
        return
    _check(state, (node,))
    if not stays_on(state, node):
        raise StateError(f"node {node.name!r} is now described with less than jobs hold there")
    for follower in state.followers:
        follower.node_changed(row, event.time)  # so that followers update the groups of the old pool
    used = _used(state, row)
    larger = _make_room(state, 0, (node,))
    _put(state, [row], [node], larger)
    added = _add_pools(state, (node,))
    c.count_node(state.table, state.pools, row, -1)
    status = state.table.item(row, c.STATUS)
    asking = _write(state, row, node, before)
    lost = state.health.keep_devices(row, node.gpus)
    _write_used(state, row, status, lost, used)
    state.counter_tables.place([row])
    c.count_node(state.table, state.pools, row, 1)
    _void_promises(state, [row])
    if node.model != before.model and state.quota_usage.tree is not None:
        for job in state.jobs_on(row):
            state.quota_usage.resized(job, state.shape_of(job), state.running[job], event.time)
    _changed(state, [row], event.time, added or asking)


def stays_on(state: StateData, node: Node) -> bool:
    """Return whether all that jobs hold on the node of this name would still fit with `node` as its description."""
    row = node_of(state, node.name)
    return _fits(node, state.nodes[row], _used(state, row))


def is_in_use(state: StateData, name: str) -> bool:
    """Return whether a job holds something on a node."""
    row = node_of(state, name)
    used = _used(state, row)
    if used[c.CPU_FREE] or used[c.MEMORY_FREE] or used[c.DEVICES : c.extra_at(state.table)].any():
        return True
    return state.shapes.ask_nothing and bool(state.jobs_on(row))


def _check(state: StateData, nodes: Iterable[Node]) -> None:
    """Raise StateError for a node that cannot be added."""
    for node in nodes:
        check_node(node)
    pools = {*state.shapes.pool_keys, *(node.pool for node in nodes)}
    if len(pools) > MAX_POOLS:
        raise StateError(f"a cluster has at most {MAX_POOLS} pools, these nodes would make it {len(pools)}")


def _make_room(state: StateData, rows: int, nodes: Sequence[Node]) -> bool:
    """Make room for `rows` more rows, and for the GPUs of these nodes. Returns whether the tables were rebuilt."""
    slots, has = max(c.devices_of(state.table), *(node.gpus for node in nodes)), len(state.table)
    if not rows and slots == c.devices_of(state.table):
        return False
    wanted = has + max(rows, spare_rows(has)) if rows else has
    state.empty, state.table = enlarged(state.empty, wanted, slots), enlarged(state.table, wanted, slots)
    if state.left is not None:
        state.left = enlarged(state.left, wanted, slots)
    if rows:
        count = int(state.log[0])
        state.log = c.make_log(wanted)
        state.log[0] = count + len(state.log)  # so every reader of the log has missed entries, and reads all nodes
        state.counter_tables.rows_added(has)
        state.node_rows.grow(wanted, place_of(nodes[-1]))
        state.shapes.grow(wanted)
    return True


def _put(state: StateData, rows: Sequence[int], nodes: Sequence[Node], anew: bool) -> None:
    """Put these nodes into these rows, and set their places in the fabric; with `anew`, the places of all rows."""
    for row, node in zip(rows, nodes, strict=True):
        if place := state.node_rows.put(row, node, anew):
            state.moves += 1
            for table in state.tables:
                table[row, PLACE] = place
    if anew:
        state.layout += 1
        columns = state.node_rows.columns()
        for table in state.tables:
            table[:, PLACE] = columns


def _add_pools(state: StateData, nodes: Iterable[Node]) -> list[int]:
    """Add the new pools of these nodes. Returns the live jobs that a new pool may admit."""
    new = [key for key in dict.fromkeys(node.pool for node in nodes) if key not in state.shapes.pool_of]
    if not new:
        return []
    state.shapes.add_pools(new)
    state.pools = np.vstack([state.pools, np.zeros((len(new), c.POOL_WIDTH), dtype=np.int64)])
    state.layout += 1
    return list(state.live)


def _write(state: StateData, row: int, node: Node, last: Node) -> list[int]:
    """Write `node` into the row that `last` had. Returns the live jobs whose shape may change with their node sets."""
    pool = state.shapes.pool_of[node.pool]
    write_node(state.empty[row], node, pool, c.devices_of(state.table))
    state.empty[row, c.REVISION] += 1
    if state.left is not None:
        state.left[row, : c.extra_at(state.left)] = state.empty[row, : c.extra_at(state.left)]
    if last is not NO_NODE and replace(last, name=node.name) != node:
        state.asked_anew += 1
    names = set(state.shapes.node_sets.move(row, pool))
    for name in names:
        state.shapes.forget_pools(name)
    return [job for job in state.live if names & set(state.shape_of(job).ask.node_sets)] if names else []


def _changed(state: StateData, rows: Iterable[int], now: int, asking: Sequence[int], more: bool = True) -> None:
    """Announce that nodes have changed (`more`: they may have more capacity). Jobs in `asking` may get a new shape."""
    state.fleet_version += 1
    for row in rows:
        c.note_change(state.log, row)
        node_offers(state, row, now, more)
    if asking:
        ask_again(state, asking, now)


# --- what is held ------------------------------------------------------------------------------------------------


def _used(state: StateData, row: int) -> Table:
    """Return what is held on a node, as a row: thousandths of each device, CPU, memory, pods and slices."""
    used: Table = state.table[row] - state.empty[row]
    devices = slice(c.DEVICES, c.DEVICES + c.devices_of(state.table))
    used[devices] = np.where(state.table[row, devices] >= 0, -used[devices], 0)
    used[[c.CPU_FREE, c.MEMORY_FREE]] *= -1
    return used


def _fits(node: Node, before: Node, used: Table) -> bool:
    """Return whether what is held on a node fits its new description."""
    by_device = used[c.DEVICES : c.DEVICES + c.devices_of(used[None])]
    if used[c.CPU_FREE] > node.cpu or used[c.MEMORY_FREE] > node.memory or by_device[node.gpus :].any():
        return False
    return not by_device.any() or (node.model, node.mig, node.nvlink) == (before.model, before.mig, before.nvlink)


def _write_used(state: StateData, row: int, status: int, lost: int, used: Table) -> None:
    """Write the row of a node from its empty row, with this status, without devices `lost`, and with `used` taken."""
    own, had, slots = state.table[row], c.devices_of(used[None]), c.devices_of(state.table)
    head = slice(0, c.extra_at(state.table))
    own[head] = state.empty[row, head]
    own[c.STATUS] = status
    own[[c.CPU_FREE, c.MEMORY_FREE]] -= used[[c.CPU_FREE, c.MEMORY_FREE]]
    for device, taken in enumerate(used[c.DEVICES : c.DEVICES + had].tolist()):
        if lost >> device & 1:
            own[c.DEVICES + device] = -1
            own[[c.GPUS, c.IDLE]] -= 1
            own[c.FREE] -= GPU
        elif taken:
            own[c.DEVICES + device] -= taken
            own[c.IDLE] -= 1
            own[c.FREE] -= taken
    own[c.DEVICES + slots : c.DEVICES + slots + had + 1] = used[c.DEVICES + had : c.DEVICES + 2 * had + 1]
    own[c.slices_at(state.table) : c.slices_at(state.table) + had] = used[
        c.slices_at(used[None]) : c.extra_at(used[None])
    ]


def _void_promises(state: StateData, rows: Sequence[int]) -> bool:
    """Drop the reservations that would not fit on these nodes even if they were empty. Returns whether any was."""
    nodes, before = set(rows), len(state.reserved)
    for job, promise in list(state.reserved.items()):
        there = [piece for piece in promise.allocation if int(piece[NODE]) in nodes]
        bits = state.shape_of(job).pool_bits
        if any(
            not c.can_take(state.empty, piece) or not bits >> state.empty.item(int(piece[NODE]), c.POOL) & 1
            for piece in there
        ):
            del state.reserved[job]
    return len(state.reserved) < before
