"""The events of rules among pods and of their counts: a function for each, which applies it to the state."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from msgspec.structs import replace

from kant.cluster import columns as c
from kant.cluster.asks import MAX_EXACT
from kant.cluster.counter_tables import Others
from kant.cluster.node_events import ask_again, node_of, node_offers
from kant.cluster.state_data import StateData
from kant.model import event as ev
from kant.model.errors import StateError
from kant.model.job import LEVELS
from kant.model.rules import CLUSTER


def topology_changed(state: StateData, event: ev.TopologyChanged) -> None:
    if event.topology in ("", CLUSTER, *LEVELS):
        raise StateError(f"{event.topology!r} is not a name for a topology: expected a name that is not built in")
    rows = {node_of(state, name): domain for name, domain in event.domains.items()}
    said = state.counter_tables.said.setdefault(event.topology, {})
    for row, domain in rows.items():
        if domain:
            said[row] = domain
        else:
            said.pop(row, None)
    state.counter_tables.place(rows, (event.topology,))
    _offers(state, rows, event.time)


def pods_counted(state: StateData, event: ev.PodsCounted) -> None:
    row = node_of(state, event.node)
    for name, number in (*event.classes.items(), *event.amounts.items()):
        if not name or not 0 <= number < MAX_EXACT:
            raise StateError(f"pods on node {event.node!r} count {number} as {name!r}: expected a name and a number")
    counts = tuple({name: number for name, number in of.items() if number} for of in (event.classes, event.amounts))
    others: Others = (counts[0], counts[1])
    state.counter_tables.count_others(row, others)
    _offers(state, (row,), event.time)


def ruled(state: StateData, event: ev.JobRuled) -> None:
    row = state.row_of(event.job)
    job = state.live.get(row)
    if job is None:
        raise StateError(f"job {event.job!r} has ended, so no rule can apply to it")
    changed = replace(job, rules=event.rules)
    shape = state.shapes.of(changed)
    state.live[row] = changed
    held = state.running.get(row)
    if held is not None:
        demands = state.shapes.demands
        c.give(state.table, state.log, state.pools, held, demands)
        state.holds(row, state.shapes.counted(shape, held))
        c.take(state.table, state.log, state.pools, state.running[row], demands)
        _offers(state, held[:, 0].tolist(), event.time)
    if row in state.reserved:
        promise = state.reserved[row]
        own = state.shapes.counted(shape, promise.allocation)
        state.reserved[row] = dataclasses.replace(promise, allocation=own)
    ask_again(state, [row], event.time)


def _offers(state: StateData, rows: Iterable[int], now: int) -> None:
    """Announce that waiting jobs may fit on these nodes, or elsewhere, since some rules look beyond one node."""
    for row in rows:
        node_offers(state, row, now, True)
