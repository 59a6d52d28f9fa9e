"""The record of a live run: its jobs, which of them held which GPUs when, nodes, and samples.

It is computed from the events that the state applies. Its size is bounded: the oldest ended entries are dropped. A
record that outlives its state is a `LastingRecord`.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

from kant.cluster import columns as c
from kant.live.record.columns import END, JOB_COLUMNS, PREEMPTIONS, SINCE, START, STATUS, SUBMIT, WAIT
from kant.live.record.continuity import LATE, EarlierState, LeftJob
from kant.live.record.tables import RecordTables
from kant.live.sentences import public_id
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
from kant.model.placement import MASK, MILLI, NODE
from kant.model.status import JobStatus, NodeStatus
from kant.placement.cost.slowdown import T_LEAVES, T_NODES

if TYPE_CHECKING:
    from kant.live.record.answers import RecordAnswers


class RunRecord(RecordTables):
    """The record of one state, which it follows from the beginning."""

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
            if name in self.by_id:  # an ended job of an earlier state has this name
                self._rename(name)
            self.ids.append(name)
            self.names.append((job.name, job.user))
            self.by_id[name] = row
        self.row_of[own], self.own[row] = row, own

    def _was_put_off(self, row: int, now: int) -> bool:
        """Return whether the job of `row` returns: it was held, or it ends after `now` while the state is rebuilt."""
        status, end = self.jobs.table[row, [STATUS, END]].tolist()
        return status == JobStatus.CANCELLED or (self.change is not None and now < end)

    def _rename(self, name: str) -> None:
        """Rename an ended job, so that another job can have its name."""
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
        """Return the values (JOB_COLUMNS) in the record of the job with row `own` in the state."""
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
        """Update the open pieces (held devices) of a job to its allocation; return whether any changed."""
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
        """Record that nodes have joined, left or changed: clients get all nodes again."""
        self.telling.nodes = [node.name for node in self.state.nodes]
        self.epoch += 1
        self.recorder.nodes_changed(event.time)
        if self.change is None and not isinstance(event, NodeDescribed):
            named = event.nodes
            names = {one if isinstance(one, str) else one.name for one in named}
            for row in [row for row, node in enumerate(self.state.nodes) if node.name in names]:
                self.serve(row, event.time + self.ahead)

    def serve(self, node: int, now: int) -> None:
        """Record the status and lost devices of a node, unless both are as before."""
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
        """Return what is new since the answer that gave this `cursor`, as `RecordAnswers.since` describes."""
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
        """Return the events of a job and the decisions about it; None if the job is no longer in the record."""
        row = self.by_id.get(job)
        return None if row is None else self.telling.of(row)

    def note(self, job: str, time: int, what: str, text: str) -> None:
        """Add a note about a job, such as who gave an order, at a time on the state's clock."""
        row, moment = self.by_id.get(job), time + self.ahead
        if row is not None:
            self.telling.note(row, moment, what, text)
        if self.notes is not None:
            self.notes.append((job, moment + self.zero, what, text))
