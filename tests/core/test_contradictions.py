"""An event that contradicts the state is refused with a sentence, and nothing has changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from kant.cluster.state import ClusterState
from kant.model import event as ev
from kant.model.errors import StateError
from kant.model.job import Job
from kant.model.node import Node
from kant.testing import make_cluster, make_group, make_job, submitted


def piece(
    node: int = 0, pods: int = 1, mask: int = 1, milli: int = 1000, cpu: int = 0, memory: int = 0, tag: int = 1
) -> Any:
    return np.array([[node, pods, mask, milli, cpu, memory, tag, 0]], dtype=np.int64)


def cluster() -> ClusterState:
    """`r` runs on device 0 of n0; `w` waits (one GPU), `g` waits (a gang of two); `f` has finished."""
    state = ClusterState(make_cluster(2, 2, cpu=4000, memory=1024))
    for job in (make_job("r"), make_job("w"), make_job("g", pods=2), make_job("f")):
        state.apply(submitted(job, at=5))
    state.apply(ev.JobStarted(10, "r", piece()))
    state.apply(ev.JobStarted(10, "f", piece(mask=2)))
    state.apply(ev.JobFinished(12, "f"))
    state.check()
    return state


def everything(state: ClusterState) -> dict[str, Any]:
    """All that a state is, as values that can be compared."""
    return {
        "table": state.table.tolist(),
        "pools": state.pools.tolist(),
        "jobs": state.jobs[: len(state.ids)].tolist(),
        "node sets": (state.shapes.node_sets.version, "s" in state.shapes.node_sets),
        "mix": state.typical_pods.tolist(),
        "running": {row: held.tolist() for row, held in state.running.items()},
        "order": (list(state.pending), list(state.running), list(state.live)),
        "known": (list(state.ids), dict(state.rows), state.job_changes.end, dict(state.queues)),
        "fleet": (
            state.nodes[:],
            dict(state.node_index),
            state.node_rows.places[:],
            state.empty.tolist(),
            state.left is None,
            state.shapes.pool_keys[:],
            state.fleet_version,
            state.layout,
            state.asked_anew,
        ),
        "health": (state.health.lost, state.health.drains, state.health.bad, dict(state.health.broken)),
        "rest": (state.now, state.node_version, state.pools.tolist(), state.waiting_milli, state.arrivals),
    }


CONTRADICTIONS: dict[str, Callable[[], Any]] = {
    "a job is submitted twice": lambda: submitted(make_job("w"), at=12),
    "a running job starts": lambda: ev.JobStarted(12, "r", piece(1)),
    "a finished job starts": lambda: ev.JobStarted(12, "f", piece(1)),
    "a device is given twice": lambda: ev.JobStarted(12, "w", piece()),
    "a node has no such device": lambda: ev.JobStarted(12, "w", piece(mask=4)),
    "there is no such node": lambda: ev.JobStarted(12, "w", piece(7)),
    "a node has a negative index": lambda: ev.JobStarted(12, "w", piece(-1)),
    "more of a device than there is": lambda: ev.JobStarted(12, "w", piece(1, milli=1001)),
    "more CPU than there is": lambda: ev.JobStarted(12, "w", piece(1, cpu=4001)),
    "more memory than there is": lambda: ev.JobStarted(12, "w", piece(1, memory=1025)),
    "the second piece of a gang is not there": lambda: ev.JobStarted(12, "g", np.concatenate([piece(1), piece(0)])),
    "the two pieces of a gang share a device": lambda: ev.JobStarted(12, "g", np.concatenate([piece(1), piece(1)])),
    "a waiting job finishes": lambda: ev.JobFinished(12, "w"),
    "a finished job finishes": lambda: ev.JobFinished(12, "f"),
    "a waiting job is preempted": lambda: ev.JobPreempted(12, "w"),
    "a waiting job is evicted": lambda: ev.JobEvicted(12, "w", "test"),
    "a start that never was is refused": lambda: ev.JobRefused(12, "w", "test"),
    "a running job is rejected": lambda: ev.JobRejected(12, "r", "test"),
    "a finished job is cancelled": lambda: ev.JobCancelled(12, "f"),
    "a waiting job makes progress": lambda: ev.JobProgressed(12, "w", 1),
    "an unknown job starts": lambda: ev.JobStarted(12, "x", piece(1)),
    "an unknown job finishes": lambda: ev.JobFinished(12, "x"),
    "an unknown job is preempted": lambda: ev.JobPreempted(12, "x"),
    "an unknown job is rejected": lambda: ev.JobRejected(12, "x", "test"),
    "an unknown job is cancelled": lambda: ev.JobCancelled(12, "x"),
    "an unknown job makes progress": lambda: ev.JobProgressed(12, "x", 1),
    "an unknown job is demoted": lambda: ev.JobDemoted(12, "x", 1),
    "an unknown job is protected": lambda: ev.JobProtected(12, "x", "somebody"),
    "an unknown job awaits a node": lambda: ev.JobAwaitsNode(12, "x"),
    "a running job awaits a node": lambda: ev.JobAwaitsNode(12, "r"),
    "an unknown job is priced": lambda: ev.JobPriced(12, "x", 5),
    "a waiting job gets another limit": lambda: ev.JobLimited(12, "w", 5),
    "an unknown job gets another limit": lambda: ev.JobLimited(12, "x", 5),
    "a run may last for less than nothing": lambda: ev.JobLimited(12, "r", 0),
    "a finished job is priced": lambda: ev.JobPriced(12, "f", 5),
    "a finished job is protected": lambda: ev.JobProtected(12, "f", "somebody"),
    "an unknown job is put in order after a known one": lambda: ev.QueueOrdered(12, ("w", "x")),
    "an unknown node changes": lambda: ev.NodeChanged(12, "x", 1),
    "a node takes a status that there is not": lambda: ev.NodeChanged(12, "n0", 7),
    "a node that stays is to be empty by a time": lambda: ev.NodeChanged(12, "n0", 1, 20),
    "a node loses a GPU that it never had": lambda: ev.DevicesChanged(12, "n0", 4),
    "a node loses a GPU that a job holds": lambda: ev.DevicesChanged(12, "n0", 3),
    "a node set without a name gains a node": lambda: ev.NodeSetChanged(12, "", ("n0",)),
    "a node set gains and loses the same node": lambda: ev.NodeSetChanged(12, "s", ("n0",), ("n0",)),
    "a node set loses an unknown node": lambda: ev.NodeSetChanged(12, "s", ("n0",), ("x",)),
    "a node joins that is there": lambda: ev.NodesJoined(12, (Node("x", 2), Node("n0", 2))),
    "two nodes of one name join": lambda: ev.NodesJoined(12, (Node("x", 2), Node("x", 2))),
    "a node without a name joins": lambda: ev.NodesJoined(12, (Node("", 2),)),
    "a node joins with blocks that do not divide it": lambda: ev.NodesJoined(12, (Node("x", 4), Node("y", 4, numa=3))),
    "no node joins": lambda: ev.NodesJoined(12, ()),
    "nodes of too many pools join": lambda: ev.NodesJoined(12, tuple(Node(f"x{i}", 1, f"m{i}") for i in range(62))),
    "an unknown node leaves": lambda: ev.NodesLeft(12, ("n1", "x")),
    "a node leaves twice": lambda: ev.NodesLeft(12, ("n1", "n1")),
    "a node leaves on which a job runs": lambda: ev.NodesLeft(12, ("n1", "n0")),
    "a node is retired": lambda: ev.NodeChanged(12, "n1", 4),
    "an unknown node is described": lambda: ev.NodeDescribed(12, Node("x", 2)),
    "a node is described without a GPU that a job holds": lambda: ev.NodeDescribed(12, Node("n0", 0)),
    "a node is described as of another model under a job": lambda: ev.NodeDescribed(12, Node("n0", 2, "A100")),
    "a node is described with amounts that cannot be": lambda: ev.NodeDescribed(12, Node("n1", 2, cpu=-1)),
    "an unknown node loses GPUs": lambda: ev.DevicesChanged(12, "x", 1),
    "a job is evicted for a node on which it does not run": lambda: ev.JobEvicted(12, "r", "test", node="n1"),
    "a job fails on an unknown node": lambda: ev.JobFailed(12, "r", "test", node="x"),
    "time goes backwards": lambda: submitted(make_job("new"), at=11),
}

MALFORMED: dict[str, Callable[[], Any]] = {
    "a count of pods beyond the row": lambda: piece(1, tag=40),
    "a count of pods before the row": lambda: piece(1, tag=-9),
    "a negative share": lambda: piece(1, milli=-500),
    "negative CPU": lambda: piece(1, cpu=-500),
    "negative memory": lambda: piece(1, memory=-1),
}


@pytest.mark.parametrize("what", CONTRADICTIONS)
def test_an_event_that_contradicts_the_state_is_refused_and_changes_nothing(what: str) -> None:
    state = cluster()
    before = everything(state)
    with pytest.raises(StateError):
        state.apply(CONTRADICTIONS[what]())
    assert everything(state) == before
    state.check()


@pytest.mark.parametrize("what", MALFORMED)
def test_an_allocation_that_cannot_be_is_refused_and_changes_nothing(what: str) -> None:
    state = cluster()
    before = everything(state)
    with pytest.raises(StateError):
        state.apply(ev.JobStarted(12, "w", MALFORMED[what]()))
    assert everything(state) == before


def started(job: Job, allocation: Any) -> ClusterState:
    state = ClusterState(make_cluster(2, 2))
    state.apply(submitted(job))
    state.apply(ev.JobStarted(0, job.id, allocation))
    return state


def test_a_gang_that_is_placed_in_part_is_caught_by_check() -> None:
    with pytest.raises(StateError, match="placed as a whole"):
        started(make_job("g", pods=2), piece()).check()


def test_a_job_that_holds_other_devices_than_it_asked_for_is_caught_by_check() -> None:
    with pytest.raises(StateError, match="the GPUs that it requests"):
        started(make_job("g"), piece(mask=3)).check()


def test_a_gang_of_two_groups_that_misses_one_is_caught_by_check() -> None:
    job = make_job("g", groups=(make_group(2), make_group(1)))
    with pytest.raises(StateError, match="placed as a whole"):
        started(job, piece(mask=3, tag=2)).check()


def test_a_node_that_fails_under_a_running_job_is_caught_by_check() -> None:
    state = started(make_job("j"), piece())
    state.apply(ev.NodeChanged(0, "n0", 2))
    with pytest.raises(StateError, match="only resources of nodes in service"):
        state.check()


def test_a_table_that_was_tampered_with_is_caught_by_check() -> None:
    state = started(make_job("j"), piece())
    state.table[1, 4] -= 1
    with pytest.raises(StateError, match="free and used resources add up"):
        state.check()


def test_a_job_that_got_lost_is_caught_by_check() -> None:
    state = ClusterState(make_cluster(1))
    state.apply(submitted(make_job("j")))
    state.pending.clear()
    with pytest.raises(StateError, match="every pending job is in the queue"):
        state.check()
