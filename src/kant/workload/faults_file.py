"""The table of node faults: when each node fails, is drained, loses GPUs, and comes back.

A CSV file with a header; each row is the complete state of a node from then on.

    time_s,node,state,gpus,until_s
    3600,n3,failed,,
    5400,n3,in-service,2|5,             # back, without its GPUs 2 and 5
    7200,n4,draining,,10800             # its jobs have until 10800
    9000,n5,left,,                      # absent until it has another state
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from kant.model.errors import InputError
from kant.model.node import ClusterSpec
from kant.model.status import NodeStatus
from kant.model.units import SECOND
from kant.workload.table import MAX_TIME, Field, read_table

STATES = {
    "in-service": NodeStatus.IN_SERVICE,
    "cordoned": NodeStatus.CORDONED,
    "draining": NodeStatus.DRAINING,
    "failed": NodeStatus.FAILED,
    "left": NodeStatus.RETIRED,
}

FIELDS = (
    Field("time_s", "seconds", "when, in decimal seconds after time zero", high=MAX_TIME),
    Field("node", "text", "name of the node"),
    Field("state", "text", f"the state of the node from then on: {', '.join(STATES)}"),
    Field("gpus", "text", "the GPUs that it lacks from then on, separated by '|'; empty: none", default=""),
    Field("until_s", "seconds", "of a draining node: when its jobs have to leave; empty: when they end",
          high=MAX_TIME, default=-1),
)  # fmt: skip


class NodeHealth(NamedTuple):
    """The state of a node from `time` on: its status, its lost devices (bits), and when its drain ends (-1: no end).

    A node with the status RETIRED is absent.
    """

    time: int
    node: int
    status: NodeStatus
    lost: int = 0
    until: int = -1


def read_faults(path: Path, cluster: ClusterSpec) -> tuple[NodeHealth, ...]:
    """Read the rows, in order of time. Raises InputError for the first invalid row."""
    table = read_table(path, FIELDS, strict=True)
    index = {node.name: i for i, node in enumerate(cluster.nodes)}
    texts = {name: table.texts.get(name, [""] * table.rows) for name in ("node", "state", "gpus")}
    found: list[NodeHealth] = []
    seen: set[tuple[int, int]] = set()
    for row in range(table.rows):
        where = f"{path}, row {row + 1}"
        name, state = texts["node"][row], texts["state"][row]
        if name not in index:
            raise InputError(f"{where}, field node", f"a node of the cluster {cluster.name}", name)
        if state not in STATES:
            raise InputError(f"{where}, field state", f"one of {', '.join(STATES)}", state)
        time, until = int(table.numbers["time_s"][row]), int(table.numbers["until_s"][row])
        if until >= 0 and (state != "draining" or until < time):
            raise InputError(
                f"{where}, field until_s", "none, or with state draining a time not before time_s", until / SECOND
            )
        lost = _devices(texts["gpus"][row], cluster.nodes[index[name]].gpus, f"{where}, field gpus")
        if lost and state == "left":
            raise InputError(f"{where}, field gpus", "no GPUs of a node that has left", texts["gpus"][row])
        if (time, index[name]) in seen:
            raise InputError(where, f"one row for node {name} at {time / SECOND:g} s")
        seen.add((time, index[name]))
        found.append(NodeHealth(time, index[name], STATES[state], lost, until))
    return tuple(sorted(found))


def _devices(text: str, gpus: int, where: str) -> int:
    """Return the GPUs that a cell names, as bits."""
    lost = 0
    for part in text.split("|") if text.strip() else ():
        number = part.strip()
        if not (number.isdecimal() and number.isascii() and len(number) < 4 and int(number) < gpus):
            raise InputError(where, f"numbers of GPUs from 0 to {gpus - 1}, separated by '|'", text)
        lost |= 1 << int(number)
    return lost
