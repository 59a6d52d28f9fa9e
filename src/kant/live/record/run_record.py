"""The record of a live run: its jobs, which of them held which GPUs when, nodes, and samples.

A fold over the same events that the state applies. It is bounded: the oldest ended entries are dropped. It outlives its
state: `begin_rebuild` when the next state begins to be built; then the events for jobs that existed before; then
`finish_rebuild`. Jobs, and the pieces that they hold, are matched by name. A job that the next state does not mention
is `left`, until `resolve_missing` says what happened to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from kant.cluster import columns as c
from kant.cluster.state import ClusterState
from kant.live.record.columns import END, JOB_COLUMNS, PREEMPTIONS, SINCE, START, STATUS, SUBMIT, WAIT
from kant.live.record.continuity import LATE, Change, EarlierState, LeftJob
from kant.live.record.tables import RecordTables
from kant.live.samples import LiveRecorder
from kant.live.sentences import public_id
from kant.live.waits import Waits
from kant.metrics import recorder as rec
from kant.model.decision import Plan
from kant.model.event import (
    DevicesChanged,
    Event,
    JobEvicted,
    JobFailed,
    JobPreempted,
    JobSubmitted,
    NodeChanged,
    NodeDescribed,
    NodesJoined,
    NodesLeft,
)
from kant.model.node import Node
from kant.model.placement import MASK, MILLI, NODE
from kant.model.status import JobStatus, NodeStatus
from kant.placement.cost.slowdown import T_LEAVES, T_NODES

if TYPE_CHECKING:
    from kant.live.record.answers import RecordAnswers

STARTS = 200
"""Maximum number of times of state builds that are kept."""


class RunRecord(RecordTables):
    """Follows one state from its beginning, and then each state that replaces it."""

    @cached_property
    def answers(self) -> RecordAnswers:
        """The queries on this record; loaded on first use."""
        from kant.live.record.answers import RecordAnswers

        return RecordAnswers(self)

    # --- the fold -------------------------------------------------------------------------------------------------

    def happened(self, event: Event) -> None:
        """Record an event that the state has applied."""
        if isinstance(event, JobSubmitted):
            self._come(event)
        elif isinstance(event, NodeChanged | DevicesChanged):
            self._serve(event)
        elif isinstance(event, NodesJoined | NodesLeft | NodeDescribed):
            self._meet(event)
        job = getattr(event, "job", None)
        if job is not None:
            self._change(job if isinstance(job, str) else job.id, event)
        self.recorder.observe(event.time)
        self.bound()

    def decided(self, plan: Plan) -> None:
        """Record the decisions of a plan."""
        self.last = plan.time
        for decision in plan.decisions:
            row = self.row_of.get(self.state.rows.get(getattr(decision, "job", ""), -1))
            if row is not None:
                self.telling.decided(row, plan.time + self.ahead, decision)

    def _come(self, event: JobSubmitted) -> None:
        job, own = event.job, self.state.rows[event.job.id]
        public = public_id(job.id)
        left = self.left.pop(public, None)
        row = left.row if left is not None else self.by_id.get(public)
        if row is not None and (left is not None or self._was_put_off(row, event.time + self.ahead)):
            self._return(own, row, left, event.time + self.ahead)
        else:
            row = self.jobs.add([0] * len(JOB_COLUMNS))
            self.own.append(own)
            name = public if public not in self.by_id else job.id
            if name in self.by_id:  # of an earlier state
                self._rename(name)
            self.ids.append(name)
            self.names.append((job.name, job.user))
            self.by_id[name] = row
        self.row_of[own], self.own[row] = row, own

    def _was_put_off(self, row: int, now: int) -> bool:
        """Return whether a job that had left returns: it was held, or had not left when its state was last written."""
        status, end = self.jobs.table[row, [STATUS, END]].tolist()
        return status == JobStatus.CANCELLED or (self.change is not None and now < end)

    def _rename(self, name: str) -> None:
        """Rename an ended job, so that another one can have its name."""
        count = 2
        while (other := f"{public_id(name)}~{count}") in self.by_id:
            count += 1
        row = self.by_id[other] = self.by_id.pop(name)
        self.ids[row] = other
        self.jobs.log.add(row)

    def _return(self, own: int, row: int, left: LeftJob | None, now: int) -> None:
        was = self.jobs.table[row].tolist()
        wait = was[WAIT] + (now - was[SINCE] if left is not None and was[STATUS] == JobStatus.PENDING else 0)
        self.before[own] = EarlierState(was[SUBMIT], was[START], wait, was[PREEMPTIONS])
        if left is None:
            self.over -= 1
        if self.change is not None:
            self.change.was[own] = was
            self.change.pieces[own] = [] if left is None else left.pieces
        elif left is not None:
            self.end_pieces(left.pieces, now)

    def _change(self, job: str, event: Event) -> None:
        own = self.state.rows[job]
        row = self.row_of.get(own)
        if row is None:
            return
        held = self.state.running.get(own)
        changed = self._hold(own, row, event.time + self.ahead)
        if held is not None and (changed or self.change is not None):
            self.recorder.started(own, held)
        if isinstance(event, JobPreempted | JobEvicted | JobFailed):
            self.recorder.lost(own, event.cost)
        self.jobs.set(row, self.columns(own))
        if self.change is None or own not in self.change.was:
            self.telling.happened(row, event, self.ahead)
        if own not in self.state.live:
            del self.row_of[own]
            self.before.pop(own, None)
            self.over += 1

    def columns(self, own: int) -> list[int]:
        """Return the record's row of a job in the state."""
        state, ahead = self.state, self.ahead
        job = state.jobs[own].tolist()
        fewest = self.recorder.model.best(self.recorder.shape_at(own))
        submit = job[c.J_SUBMIT] + ahead
        start, end = (time + ahead if time >= 0 else -1 for time in (job[c.J_FIRST_START], job[c.J_END]))
        wait, since, preemptions = job[c.J_WAITED], job[c.J_SINCE] + ahead, job[c.J_PREEMPTIONS]
        earlier = self.before.get(own)
        if earlier is not None:
            submit, start = earlier.submit, earlier.start if earlier.start >= 0 else start
            wait, preemptions = wait + earlier.wait, preemptions + earlier.preemptions
            if since == earlier.entered and job[c.J_STATUS] == JobStatus.PENDING:
                wait, since = wait - (since - earlier.since), earlier.since
        return [
            self.queue(job[c.J_QUEUE]), state.shapes.at(job[c.J_SHAPE]).most_milli, submit, start, end, wait, since,
            job[c.J_STATUS], preemptions, int(fewest[T_NODES]), int(fewest[T_LEAVES]),
        ]  # fmt: skip

    def _hold(self, own: int, row: int, now: int) -> bool:
        """Update the open pieces of a job to those that it holds; return whether this changed any."""
        held = self.state.running.get(own)
        wanted = [] if held is None else held[:, [NODE, MASK, MILLI]].tolist()
        kept, changed = [], False
        returns = self.change.pieces.get(own, []) if self.change is not None else []
        for piece in list(returns):
            values = self.pieces.table[piece].tolist()
            if values[1:4] in wanted and self.change is not None and now <= self.change.seen + LATE:
                wanted.remove(values[1:4])
                returns.remove(piece)
                kept.append(piece)
        for piece in self.open_pieces.get(own, ()):
            values = self.pieces.table[piece].tolist()
            if values[1:4] in wanted:
                wanted.remove(values[1:4])
                kept.append(piece)
            else:
                self.pieces.set(piece, [*values[:5], now])
                self.ended += 1
                changed = True
        for node, mask, milli in wanted:
            kept.append(self.pieces.add((row, node, mask, milli, now, -1)))
            changed = True
        if kept:
            self.open_pieces[own] = kept
        else:
            self.open_pieces.pop(own, None)
        return changed

    def _serve(self, event: NodeChanged | DevicesChanged) -> None:
        if self.change is None:
            self.serve(self.state.node_index[event.node], event.time + self.ahead)

    def _meet(self, event: NodesJoined | NodesLeft | NodeDescribed) -> None:
        """Take in that nodes have joined, left or changed: clients get all nodes again."""
        self.telling.nodes = [node.name for node in self.state.nodes]
        self.epoch += 1
        self.recorder.nodes_changed(event.time)
        if self.change is None and not isinstance(event, NodeDescribed):
            named = event.nodes
            names = {one if isinstance(one, str) else one.name for one in named}
            for row in [row for row, node in enumerate(self.state.nodes) if node.name in names]:
                self.serve(row, event.time + self.ahead)

    def serve(self, node: int, now: int) -> None:
        """Record a change of a node, unless it is as before."""
        status = int(self.state.table[node, c.STATUS])
        stands = status, self.state.health.lost.get(node, 0)
        if stands == self.stands.get(node, (NodeStatus.IN_SERVICE, 0)):
            return
        self.stands[node] = stands
        self.nodes.append((node, stands[0], now, stands[1]))
        if len(self.nodes) > 2 * self.most[2] + len(self.state.nodes):
            early, late = self.nodes[: -self.most[2]], self.nodes[-self.most[2] :]
            self.nodes = [*{change[0]: change for change in early}.values(), *late]
            self.epoch += 1

    # --- queries --------------------------------------------------------------------------------------------------

    def since(self, cursor: str, now: int) -> dict[str, Any]:
        """Return what is new since the answer that gave this `cursor` (`RecordAnswers.since`)."""
        return self.answers.since(cursor, now)

    def summary(self, now: int) -> dict[str, Any]:
        """Return the metrics now, and so far."""
        return self.answers.summary(now)

    def waited(self, job: str, now: int) -> dict[str, int] | None:
        """Return the microseconds that a job has waited, in `total` and by cause; None if unknown to this state."""
        row = self.by_id.get(job)
        if row is None or self.waits is None or self.own[row] < 0:
            return None
        split = self.waits.of(self.own[row], now)
        return {"total": sum(split.values())} | split

    def history(self, job: str) -> list[dict[str, Any]] | None:
        """Return what happened to a job, and what was decided about it; None for one that is not kept."""
        row = self.by_id.get(job)
        return None if row is None else self.telling.of(row)

    def note(self, job: str, time: int, what: str, text: str) -> None:
        """Add another note about a job, such as who gave an order."""
        row, moment = self.by_id.get(job), time + self.ahead
        if row is not None:
            self.telling.note(row, moment, what, text)
        if self.notes is not None:
            self.notes.append((job, moment + self.zero, what, text))

    # --- another state ---------------------------------------------------------------------------------------------

    def begin_rebuild(self, state: ClusterState, zero: int, profile: str, waits: Waits | None = None) -> None:
        """Leave the state; another one, with its own `zero`, begins to be built."""
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
        """Finish the rebuild at `now` on the state's clock: all that existed before is in it, later events are new."""
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

    def adopt(self, other: RunRecord) -> None:
        """Take over another record that has followed an equal state, and its earlier past."""
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
        """Set what a job waited before this state, given its wait in this state.

        Time for which it was queued in both counts once.
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
        """Return when a piece that its job no longer holds ended: before another job had these devices, or just now."""
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
        """Match nodes by name. Runs and lost devices of nodes that no longer exist are dropped."""
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
        """Move the record's zero back by `by`."""
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
