"""The GPUs that a new reservation cannot use: those of non-preemptible jobs and of nodes out of service."""

from __future__ import annotations

from kant.cluster.columns import J_PREEMPTIBLE, J_STARTED
from kant.cluster.state import ClusterState
from kant.model.placement import MASK, NODE
from kant.model.units import FOREVER
from kant.optimize.calendar.booked import out_of_service
from kant.optimize.calendar.choose import Taken


def occupied(state: ClusterState, now: int, preempts: bool) -> list[Taken]:
    """The GPUs of running jobs until their time limits, and nodes and GPUs that are out of service.

    Jobs in reservations are left out, since the caller adds the reservations themselves. If the profile `preempts`,
    preemptible jobs are left out, too.
    """
    found = []
    for row, pieces in state.running.items():
        started, preemptible = state.jobs[row, [J_STARTED, J_PREEMPTIBLE]].tolist()
        limit = state.live[row].limit
        if state.shape_of(row).ask.reservation or (preempts and preemptible):
            continue
        held: dict[int, int] = {}
        for node, bits in pieces[:, [NODE, MASK]].tolist():
            held[node] = held.get(node, 0) | bits
        end = max(started + limit, now + 1) if limit >= 0 else FOREVER
        found.append(Taken(f"job {state.ids[row].partition('~')[0]}", now, end, held))
    sick = out_of_service(state, now)
    return found + [Taken(f"node {each.id}", each.start, each.end, dict(each.held)) for each in sick]
