"""Requeue: when a job that came back may be tried again."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from kant.cluster.columns import J_RETURNS, J_SINCE
from kant.cluster.state import ClusterState
from kant.model.decision import BackOff, RetriesUsed
from kant.model.units import SECOND

DOUBLINGS = 30


class Requeue(Struct, frozen=True, forbid_unknown_fields=True):
    """A job that failed, timed out, was refused or lost its nodes goes back to its place in the queue, but waits first.

    `base_s` the first time in a row, twice as long each further time, `max_s` at most. A job that the scheduler has
    stopped waits for nothing, and its count begins anew. A job that failed more often than its retries leaves.

    A gang that has lost a node has the first claim on the rest of its devices for `in_place_s` (-1: none): if another
    node can take the place of the lost one, it waits for nothing. With `avoid_bad_nodes` a job is not placed on nodes
    on which it has failed as long as others suffice.
    """

    base_s: Annotated[int, Meta(ge=0, le=10**9)] = 0
    max_s: Annotated[int, Meta(ge=0, le=10**9)] = 3600
    in_place_s: Annotated[int, Meta(ge=-1, le=10**9)] = 60
    avoid_bad_nodes: bool = True

    def back_off(self, state: ClusterState, row: int) -> BackOff | None:
        """Until when a waiting job is not tried; None where it may be tried at any time."""
        returns = int(state.jobs[row, J_RETURNS])
        if returns == 0 or self.base_s == 0:
            return None
        wait = min(self.base_s << min(returns - 1, DOUBLINGS), max(self.max_s, self.base_s))
        return BackOff(returns, int(state.jobs[row, J_SINCE]) + wait * SECOND)


def retries_used(state: ClusterState, row: int, failures: int) -> RetriesUsed | None:
    """Why a job that has failed `failures` times may not be tried again; None where it may."""
    return RetriesUsed(failures) if failures > state.live[row].retries else None
