"""The record of a run whose state is replaced, after a restart or a change of its nodes.

Call `begin_rebuild` when the next state begins to be built, apply the events for jobs that existed before, and then
call `finish_rebuild`. Jobs, and the devices that they hold, are matched by name. A job that is not in the next state is
in `left`, until `resolve_missing` says what happened to it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kant.cluster import columns as c
from kant.cluster.state import ClusterState
from kant.live.record.columns import END, SINCE, START, STATUS, SUBMIT, WAIT
from kant.live.record.continuity import Change, LeftJob
from kant.live.record.run_record import RunRecord
from kant.live.samples import LiveRecorder
from kant.live.sentences import public_id
from kant.live.waits import Waits
from kant.metrics import recorder as rec
from kant.model.node import Node
from kant.model.status import JobStatus, NodeStatus

STARTS = 200
"""Maximum number of state builds whose times are kept."""


class LastingRecord(RunRecord):
    """Follows one state from its beginning, and then each state that replaces it."""

    def begin_rebuild(self, state: ClusterState, zero: int, profile: str, waits: Waits | None = None) -> None:
        """Leave the present state and follow `state`, which begins to be built and whose clock begins at `zero`."""
        seen = max(self.last, self.state.now) + self.ahead
        for own, row in self.row_of.items():
            name = public_id(self.ids[row])
            self.left[name] = LeftJob(row, self.open_pieces.get(own, []), seen)
        self.row_of, self.open_pieces, self.before = {}, {}, {}
        self._keep_samples(seen)
        self._other_nodes(self.state.nodes, state.nodes)
        if zero < self.zero:
            self._move(self.zero - zero)
            self.zero = zero
            seen = max((left.seen for left in self.left.values()), default=seen)
        self.state, self.profile, self.ahead = state, profile, zero - self.zero
        self.waits, self.own = waits, [-1] * len(self.own)
        self.state_queues, self.last = [], 0
        self.recorder = LiveRecorder(state, self.recorder.most)
        self.recorder.observe(state.now)
        self.telling.nodes = [node.name for node in state.nodes]
        self.change = Change(seen)
        self.answers.forget_summary()
        self.epoch += 1

    def finish_rebuild(self, now: int) -> None:
        """Finish the rebuild at `now` (state's clock): the state has all that existed before; later events are new."""
        change, moment = self.change, now + self.ahead
        if change is not None:
            self.change = None
            for own, was in change.was.items():
                if own in self.row_of:
                    self._join(own, was, moment)
            for piece in [piece for pieces in change.pieces.values() for piece in pieces]:
                self.end_pieces([piece], self._ended_by(piece, moment))
            state = self.state
            out = (state.table[:, c.STATUS] != NodeStatus.IN_SERVICE).nonzero()[0].tolist()
            ill = [row for row in out if state.nodes[row].name]
            for node in sorted({*self.stands, *ill, *state.health.lost}):
                self.serve(node, moment)
            self.sampling, recorder = now, self.recorder
            recorder.settle(recorder.present[rec.S_TIME] + recorder.gap)  # so that later samples are compared with it
            present = np.array([recorder.present], dtype=np.int64)
            present[0, rec.S_TIME] = moment
            if not len(self.sampled) or (self.sampled[-1, 1:] != present[0, 1:]).any():
                self.sampled = np.concatenate([self.sampled, present])
            self.bound()
        self.starts = [*self.starts, moment][-STARTS:]

    def resolve_missing(self, job: str, status: JobStatus, end: int) -> None:
        """Record what happened to a `left` job: its status, and its `end` in microseconds since the Unix epoch."""
        left = self.left.pop(job)
        row, moment = self.jobs.table[left.row].tolist(), end - self.zero
        for piece in left.pieces:
            self.end_pieces([piece], max(moment, int(self.pieces.table[piece, 4])))
        if row[STATUS] == JobStatus.PENDING:
            row[WAIT] += max(moment - row[SINCE], 0)
        row[STATUS], row[END], row[SINCE] = int(status), max(moment, row[SUBMIT], row[START]), moment
        self.jobs.set(left.row, row)
        self.over += 1
        self.bound()

    def adopt(self, other: LastingRecord) -> None:
        """Take over the tables of another record, which has followed an equal state and the states before it."""
        notes = self.notes or []
        for name in (
            "jobs", "pieces", "nodes", "stands", "queues", "state_queues", "ids", "names", "by_id", "row_of", "own",
            "open_pieces", "before", "left", "sampled", "sampling", "starts", "over", "ended", "zero", "ahead",
            "telling",
        ):  # fmt: skip
            setattr(self, name, getattr(other, name))
        self.notes = None
        for job, time, what, text in notes:
            self.note(job, time - self.zero - self.ahead, what, text)
        self.answers.forget_summary()
        self.epoch += 1

    def _join(self, own: int, was: list[int], moment: int) -> None:
        """Set how long a job waited before this state, given its wait in this state.

        Time for which the job was queued in the old and in the new state counts once.
        """
        job, earlier = self.state.jobs[own].tolist(), self.before[own]
        since, runs = job[c.J_SINCE] + self.ahead, job[c.J_STATUS] == JobStatus.RUNNING
        earlier.wait = was[WAIT] - job[c.J_WAITED]
        if was[STATUS] == JobStatus.PENDING:
            earlier.wait += since - was[SINCE]
            if not runs:
                earlier.entered, earlier.since = since, was[SINCE]
        elif not runs:
            earlier.wait -= moment - since
        self.jobs.set(self.row_of[own], self.columns(own))

    def _ended_by(self, piece: int, moment: int) -> int:
        """Return when a job gave up a `piece`: when another job got one of its devices, at the latest at `moment`."""
        _, node, mask, _, start, _ = self.pieces.table[piece].tolist()
        table = self.pieces.table[[other for held in self.open_pieces.values() for other in held]]
        others = table[(table[:, 1] == node) & (table[:, 2] & mask != 0) & (table[:, 4] > start), 4]
        return min([moment, *map(int, others)])

    def _keep_samples(self, seen: int) -> None:
        recorder = self.recorder
        recorder.settle(seen - self.ahead + recorder.gap)
        rows = self.samples(0, True)
        while len(rows) > recorder.most:
            rows = rows[[*range(0, len(rows) - 1, 2), len(rows) - 1]]
        self.sampled = rows

    def _other_nodes(self, then: Sequence[Node], now: Sequence[Node]) -> None:
        """Renumber nodes, matched by name. Runs and lost devices of nodes that no longer exist are dropped."""
        if then == now:
            return
        index = {node.name: i for i, node in enumerate(now)}
        place = np.array([index.get(node.name, -1) for node in then], dtype=np.int64)
        gpus = np.array([node.gpus for node in now], dtype=np.int64)
        table = self.pieces.table[: self.pieces.used]
        table[:, 1] = place[table[:, 1]]
        stays = (table[:, 1] >= 0) & (table[:, 2] >> gpus[table[:, 1]] == 0)
        moved = self.pieces.keep(np.flatnonzero(stays).tolist())
        for left in self.left.values():
            left.pieces = [moved[piece] for piece in left.pieces if piece in moved]
        self.ended = int((self.pieces.table[: self.pieces.used, 5] >= 0).sum())
        self.nodes = [(int(place[node]), s, since, lost) for node, s, since, lost in self.nodes if place[node] >= 0]
        self.stands = {int(place[node]): stands for node, stands in self.stands.items() if place[node] >= 0}

    def _move(self, by: int) -> None:
        """Move the record's zero back by `by` microseconds: add it to all times."""
        jobs, pieces = self.jobs.table[: self.jobs.used], self.pieces.table[: self.pieces.used]
        for column in (SUBMIT, SINCE, START, END):
            jobs[jobs[:, column] >= 0, column] += by
        for column in (4, 5):
            pieces[pieces[:, column] >= 0, column] += by
        self.nodes = [(node, status, since + by, lost) for node, status, since, lost in self.nodes]
        self.sampled[:, rec.S_TIME] += by
        self.starts = [start + by for start in self.starts]
        self.telling.move(by)
        for left in self.left.values():
            left.seen += by
