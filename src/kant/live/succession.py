"""A record that outlives its state: it goes on with the next one, as if there had been no change.

`follow` when the next state begins to be built; then the events that say who was there before, as everybody is told
them; then `arrived`. Jobs, and the pieces that they hold, are known again by their names. What the next state has
heard nothing of is `left`: whoever knows what became of it says so (`settle`).
"""

from __future__ import annotations

import numpy as np

from kant.cluster import columns as c
from kant.cluster.state import ClusterState
from kant.live.earlier import Change, Left
from kant.live.record import END, SINCE, START, STATUS, SUBMIT, WAIT, RunRecord
from kant.live.samples import LiveRecorder
from kant.live.sentences import public
from kant.live.waits import Waits
from kant.metrics.recorder import S_TIME
from kant.model.node import ClusterSpec
from kant.model.status import JobStatus, NodeStatus

STARTS = 200
"""Moments at which states were built, and kept."""


def follow(record: RunRecord, state: ClusterState, zero: int, profile: str, waits: Waits | None = None) -> None:
    """The state of `record` is left; another one, with its own `zero`, begins to be built."""
    seen = max(record.last, record.state.now) + record.ahead
    for own, row in record.row_of.items():
        name = public(record.ids[row])
        record.left[name] = Left(row, record.open_pieces.get(own, []), seen)
    record.row_of, record.open_pieces, record.before = {}, {}, {}
    _keep_samples(record, seen)
    _other_nodes(record, record.state.spec, state.spec)
    if zero < record.zero:
        _move(record, record.zero - zero)
        record.zero = zero
        seen = max((left.seen for left in record.left.values()), default=seen)
    record.state, record.profile, record.ahead = state, profile, zero - record.zero
    record.waits, record.own = waits, [-1] * len(record.own)
    record.state_queues, record.last = [], 0
    record.recorder = LiveRecorder(state, record.recorder.most)
    record.recorder.observe(state.now)
    record.telling.nodes = [node.name for node in state.spec.nodes]
    record.change = Change(seen)
    record.forget_summary()
    record.epoch += 1


def arrived(record: RunRecord, now: int) -> None:
    """All that was there before is in the state, at `now` on its clock: from here on it is news."""
    change, moment = record.change, now + record.ahead
    if change is not None:
        record.change = None
        for own, was in change.was.items():
            if own in record.row_of:
                _join(record, own, was, moment)
        for piece in [piece for pieces in change.pieces.values() for piece in pieces]:
            record.end_pieces([piece], _ended_by(record, piece, moment))
        state = record.state
        ill = (state.table[:, c.STATUS] != NodeStatus.IN_SERVICE).nonzero()[0].tolist()
        for node in sorted({*record.stands, *ill, *state.health.lost}):
            record.serve(node, moment)
        record.sampling, recorder = now, record.recorder
        recorder.settle(recorder.present[S_TIME] + recorder.gap)  # so that what comes is compared with it
        present = np.array([recorder.present], dtype=np.int64)
        present[0, S_TIME] = moment
        if not len(record.sampled) or (record.sampled[-1, 1:] != present[0, 1:]).any():
            record.sampled = np.concatenate([record.sampled, present])
        record.bound()
    record.starts = [*record.starts, moment][-STARTS:]


def settle(record: RunRecord, job: str, status: JobStatus, end: int) -> None:
    """What became of a job that is left: it ended so, at `end` in microseconds since the Unix epoch."""
    left = record.left.pop(job)
    row, moment = record.jobs.table[left.row].tolist(), end - record.zero
    for piece in left.pieces:
        record.end_pieces([piece], max(moment, int(record.pieces.table[piece, 4])))
    if row[STATUS] == JobStatus.PENDING:
        row[WAIT] += max(moment - row[SINCE], 0)
    row[STATUS], row[END], row[SINCE] = int(status), max(moment, row[SUBMIT], row[START]), moment
    record.jobs.set(left.row, row)
    record.over += 1
    record.bound()


def inherit(record: RunRecord, other: RunRecord) -> None:
    """`record` takes over all of another that has followed an equal state, and what was before that."""
    notes = record.notes or []
    for name in (
        "jobs", "pieces", "nodes", "stands", "queues", "state_queues", "ids", "names", "by_id", "row_of", "own",
        "open_pieces", "before", "left", "sampled", "sampling", "starts", "over", "ended", "zero", "ahead", "telling",
    ):  # fmt: skip
        setattr(record, name, getattr(other, name))
    record.notes = None
    for job, time, what, text in notes:
        record.note(job, time - record.zero - record.ahead, what, text)
    record.forget_summary()
    record.epoch += 1


def _join(record: RunRecord, own: int, was: list[int], moment: int) -> None:
    """What a job waited before it came to this state, given what it is told to have waited in it.

    All the time that it was queued in both counts once.
    """
    job, earlier = record.state.jobs[own].tolist(), record.before[own]
    since, runs = job[c.J_SINCE] + record.ahead, job[c.J_STATUS] == JobStatus.RUNNING
    earlier.wait = was[WAIT] - job[c.J_WAITED]
    if was[STATUS] == JobStatus.PENDING:
        earlier.wait += since - was[SINCE]
        if not runs:
            earlier.entered, earlier.since = since, was[SINCE]
    elif not runs:
        earlier.wait -= moment - since
    record.jobs.set(record.row_of[own], record.columns(own))


def _ended_by(record: RunRecord, piece: int, moment: int) -> int:
    """When a piece ended that its job does not hold any more: before anybody else had these devices, or just now."""
    _, node, mask, _, start, _ = record.pieces.table[piece].tolist()
    table = record.pieces.table[[other for held in record.open_pieces.values() for other in held]]
    others = table[(table[:, 1] == node) & (table[:, 2] & mask != 0) & (table[:, 4] > start), 4]
    return min([moment, *map(int, others)])


def _keep_samples(record: RunRecord, seen: int) -> None:
    recorder = record.recorder
    recorder.settle(seen - record.ahead + recorder.gap)
    rows = record.samples(0, True)
    while len(rows) > recorder.most:
        rows = rows[[*range(0, len(rows) - 1, 2), len(rows) - 1]]
    record.sampled = rows


def _other_nodes(record: RunRecord, then: ClusterSpec, now: ClusterSpec) -> None:
    """Nodes are known again by their names. What ran on one that is no more is forgotten there, as what it lacks."""
    if then.nodes == now.nodes:
        return
    index = {node.name: i for i, node in enumerate(now.nodes)}
    place = np.array([index.get(node.name, -1) for node in then.nodes], dtype=np.int64)
    gpus = np.array([node.gpus for node in now.nodes], dtype=np.int64)
    table = record.pieces.table[: record.pieces.used]
    table[:, 1] = place[table[:, 1]]
    stays = (table[:, 1] >= 0) & (table[:, 2] >> gpus[table[:, 1]] == 0)
    moved = record.pieces.keep(np.flatnonzero(stays).tolist())
    for left in record.left.values():
        left.pieces = [moved[piece] for piece in left.pieces if piece in moved]
    record.ended = int((record.pieces.table[: record.pieces.used, 5] >= 0).sum())
    record.nodes = [(int(place[node]), s, since, lost) for node, s, since, lost in record.nodes if place[node] >= 0]
    record.stands = {int(place[node]): stands for node, stands in record.stands.items() if place[node] >= 0}


def _move(record: RunRecord, by: int) -> None:
    """The record's zero is earlier than it was."""
    jobs, pieces = record.jobs.table[: record.jobs.used], record.pieces.table[: record.pieces.used]
    for column in (SUBMIT, SINCE, START, END):
        jobs[jobs[:, column] >= 0, column] += by
    for column in (4, 5):
        pieces[pieces[:, column] >= 0, column] += by
    record.nodes = [(node, status, since + by, lost) for node, status, since, lost in record.nodes]
    record.sampled[:, S_TIME] += by
    record.starts = [start + by for start in record.starts]
    record.telling.move(by)
    for left in record.left.values():
        left.seen += by
