"""The events of nodes, queues and the typical pods: a function for each, which applies it to the state."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from kant.cluster import columns as c
from kant.cluster.shapes import Shape
from kant.cluster.state_data import StateData
from kant.model import event as ev
from kant.model.errors import StateError
from kant.model.placement import NODE, Allocation
from kant.model.status import NodeStatus
from kant.model.tenant import owner_of
from kant.model.units import GPU


def node_changed(state: StateData, event: ev.NodeChanged) -> None:
    node = node_of(state, event.node)
    if event.status not in list(NodeStatus) or event.status == NodeStatus.RETIRED:
        raise StateError(f"{event.status} is not a status of a node")
    if event.until >= 0 and event.status != NodeStatus.DRAINING:
        raise StateError(f"node {event.node!r} has a time by which it is drained, but is not draining")
    state.health.status_changed(node, event.status, event.until)
    c.set_status(state.table, state.log, state.pools, node, event.status)
    node_offers(state, node, event.time, event.status == NodeStatus.IN_SERVICE)


def devices_changed(state: StateData, event: ev.DevicesChanged) -> None:
    node = node_of(state, event.node)
    devices, before = state.nodes[node].gpus, state.health.lost.get(node, 0)
    if event.lost < 0 or event.lost >> devices:
        raise StateError(f"node {event.node!r} has {devices} GPUs and cannot lose those in the bit mask {event.lost}")
    own = state.table[node, c.DEVICES : c.DEVICES + devices].tolist()
    for device, free in enumerate(own):
        if (event.lost >> device) & 1 and 0 <= free < GPU:
            raise StateError(f"GPU {device} of node {event.node!r} is lost while a job holds it")
    state.health.devices_changed(node, event.lost)
    c.set_lost(state.table, state.log, state.pools, node, devices, event.lost)
    node_offers(state, node, event.time, before & ~event.lost != 0)


def node_set_changed(state: StateData, event: ev.NodeSetChanged) -> None:
    name = event.node_set
    if not name:
        raise StateError("a node set has no name")
    try:
        added, removed = (list(map(state.node_index.__getitem__, nodes)) for nodes in (event.added, event.removed))
    except KeyError as missing:
        raise StateError(f"node {missing.args[0]!r} does not exist") from None
    if not set(added).isdisjoint(removed):
        raise StateError(f"node set {name!r} gains and loses the same node")
    ask_again(state, change_node_set(state, name, added, removed, event.time), event.time)


def change_node_set(state: StateData, name: str, added: Sequence[int], removed: Sequence[int], now: int) -> list[int]:
    """Add nodes to a node set, or remove them. Returns the live jobs whose shape may change, or that may never fit."""
    shapes, before = state.shapes, state.shapes.node_sets.pools(name)
    entered = shapes.change_node_set(name, added, True)
    for node in [*entered, *shapes.change_node_set(name, removed, False)]:
        state.empty[node, c.REVISION] = state.table[node, c.REVISION] = state.table[node, c.REVISION] + 1
        if state.left is not None:
            state.left[node, c.REVISION] += 1
        c.note_change(state.log, node)
        node_offers(state, node, now, node in entered)
    moved = shapes.node_sets.pools(name) != before
    if moved:
        shapes.forget_pools(name)
    if not shapes.is_named(name):
        return []
    return [row for row in (state.live if moved else state.pending) if name in state.shape_of(row).ask.node_sets]


def ask_again(state: StateData, rows: Sequence[int], now: int) -> None:
    """Give live jobs the shapes that they would get if submitted now. Some may then never fit, others fit again."""
    before = [state.jobs.item(row, c.J_SHAPE) for row in rows]
    for row in rows:
        _ask_again(state, row, now)
    if [state.jobs.item(row, c.J_SHAPE) for row in rows] != before:
        state.asked_anew += 1
        for follower in state.followers:
            follower.reshaped()


def _ask_again(state: StateData, row: int, now: int) -> None:
    shape = state.shapes.of(state.live[row])
    state.jobs[row, c.J_SHAPE] = shape.index
    if row in state.elastic:
        state.elastic[row].shape = shape
    if row in state.running and state.quota_usage.tree is not None:
        state.quota_usage.resized(row, shape, state.running[row], now)
    state.job_changes.add(row)
    for follower in state.followers:
        follower.job_changed(row, now)


def node_of(state: StateData, name: str) -> int:
    node = state.node_index.get(name)
    if node is None:
        raise StateError(f"node {name!r} does not exist")
    return node


def node_offers(state: StateData, node: int, now: int, more: bool) -> None:
    """Announce that the capacity of a node has changed; `more`: it may have grown."""
    state.node_version += 1
    for follower in state.followers:
        follower.node_changed(node, now)
    if more:
        capacity_freed(state, [state.table.item(node, c.POOL)])


def blamed_for(state: StateData, job: str, name: str) -> tuple[int, Allocation] | None:
    """Return the node at fault for the stop of a running job, and all that the job holds; None if no node is named."""
    if not name:
        return None
    node, held = node_of(state, name), state.running.get(state.row_of(job))
    if held is None or not (held[:, NODE] == node).any():
        raise StateError(f"job {job!r} does not run on node {name!r}")
    return node, held


def capacity_freed(state: StateData, pools: Collection[int]) -> None:
    """Record that capacity in these pools was freed, although no job returned it."""
    state.capacity_version += 1
    state.pools[list(pools), c.P_FREED] += 1


def queues_changed(state: StateData, event: ev.QueuesChanged) -> None:
    state.quota_usage.queues_changed(event.queue_config, _running(state), event.time)
    state.capacity_version += 1


def add_user_queue(state: StateData, name: str) -> None:
    """Add the queue of a user that no job has named before. Does nothing for any other queue."""
    quotas = state.quota_usage
    if quotas.tree is not None and name not in quotas.tree.index and (parent := owner_of(name, quotas.shared)):
        quotas.user_queue_added(name, parent, _running(state), state.now)


def _running(state: StateData) -> dict[int, tuple[Shape, Allocation]]:
    return {row: (state.shape_of(row), allocation) for row, allocation in state.running.items()}


def queues_used(state: StateData, event: ev.QueuesUsed) -> None:
    hours = state.quota_usage.hours
    if hours is None:  # the queue order does not depend on past use
        return
    new = [name for name in event.queues if name not in state.queues]
    codes = state.queues | {name: len(state.queues) + i for i, name in enumerate(new)}
    hours.restore(event.time, event.phase, {codes[name]: use for name, use in event.queues.items()})
    for name in new:
        add_user_queue(state, name)
        state.queues[name] = codes[name]
        state.quota_usage.queue_added(name)
    state.quota_usage.quota_version += 1


def budgets_used(state: StateData, event: ev.BudgetsUsed) -> None:
    quotas = state.quota_usage
    used = [spent for users in event.used.values() for spent in users.values()]
    if min(used, default=0) < 0 or not all(a < b for a, b in zip((event.time, *event.ends), event.ends, strict=False)):
        raise StateError("the used budgets are negative, or the ends of months do not increase from now on")
    if quotas.budgets is None:  # no queue has a budget
        return
    for name in event.used:
        if name not in state.queues:
            add_user_queue(state, name)
            state.queues[name] = len(state.queues)
            quotas.queue_added(name)
    codes = {
        (state.queues[queue], state.users.setdefault(user, len(state.users))): spent
        for queue, users in event.used.items()
        for user, spent in users.items()
    }
    quotas.budgets.restore(event.time, event.ends, codes)


def typical_pods_given(state: StateData, event: ev.TypicalPodsGiven) -> None:
    state.given_pods = np.ascontiguousarray(event.rows, dtype=np.int64).reshape(-1, 5)


def policy_routed(state: StateData, event: ev.PolicyRouted) -> None:
    state.routed = event


def plan_proposed(state: StateData, event: ev.PlanProposed) -> None:
    state.proposal = event
