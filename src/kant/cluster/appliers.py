"""Appliers: which function takes which event into the state."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from kant.cluster import job_events as job
from kant.cluster import node_events as node
from kant.cluster import size_events as size
from kant.model import event as ev

if TYPE_CHECKING:
    from kant.cluster.state import ClusterState


def queues_changed(state: ClusterState, event: ev.QueuesChanged) -> None:
    running = {row: (state.shape_of(row), allocation) for row, allocation in state.running.items()}
    state.holdings.queues_changed(event.tenancy, running)
    state.openings += 1


def mix_observed(state: ClusterState, event: ev.MixObserved) -> None:
    state.told = np.ascontiguousarray(event.rows, dtype=np.int64).reshape(-1, 5)


APPLIERS: dict[type, Callable[[ClusterState, Any], None]] = {
    ev.JobSubmitted: job.submitted,
    ev.JobStarted: job.started,
    ev.JobGrown: size.grown,
    ev.JobShrunk: size.shrunk,
    ev.JobFinished: job.finished,
    ev.JobPreempted: job.preempted,
    ev.JobEvicted: job.evicted,
    ev.JobRefused: job.refused,
    ev.JobFound: job.found,
    ev.JobFailed: job.failed,
    ev.JobReserved: job.reserved,
    ev.JobReleased: job.released,
    ev.JobRejected: job.rejected,
    ev.JobCancelled: job.cancelled,
    ev.JobProgressed: job.progressed,
    ev.JobDemoted: job.demoted,
    ev.JobProtected: job.protected,
    ev.QueueOrdered: job.ordered,
    ev.QueuesChanged: queues_changed,
    ev.NodeChanged: node.node_changed,
    ev.DevicesChanged: node.devices_changed,
    ev.MixObserved: mix_observed,
}
