"""What a live run leaves behind for those who look at it: jobs, who held which GPUs when, nodes, samples.

A fold over the same events that the state takes in. It is bounded: of what is over, the oldest is forgotten. It can
outlive its state: `kant.live.succession` lets it go on with the next one, also with one of another process.

Long: what is folded in stands beside what is answered from it, since every column is written by the one and read by the
other.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from kant.cluster import columns as c
from kant.cluster.state import ClusterState
from kant.live.earlier import LATE, Change, Earlier, Left, NodeChange
from kant.live.rows import Rows
from kant.live.samples import SAMPLES, LiveRecorder
from kant.live.sentences import Telling
from kant.live.sentences import public as public_id
from kant.live.waits import Waits
from kant.metrics import recorder as rec
from kant.model.decision import Plan
from kant.model.event import DevicesChanged, Event, JobEvicted, JobFailed, JobPreempted, JobSubmitted, NodeChanged
from kant.model.node import ClusterSpec
from kant.model.placement import MASK, MILLI, NODE
from kant.model.status import JobStatus, NodeStatus
from kant.placement.spans import T_LEAVES, T_NODES

JOBS = 20_000
"""Jobs that are over, and kept. There may be twice as many before the oldest half goes."""
PIECES = 100_000
"""Pieces of runs that are over, and kept, in the same way."""
CHANGES = 20_000
"""Changes of nodes that are kept, in the same way; besides, of each node the last one before them."""

SUMMARY_EVERY = 900_000
"""Microseconds for which a summary is good; longer with many jobs, since it takes as long as there are jobs."""
SUMMARY_PER_JOB = 100

JOB_COLUMNS = (
    "queue", "milli", "submit", "start", "end", "wait", "since", "status", "preemptions", "fewest_nodes",
    "fewest_leaves",
)  # fmt: skip
PIECE_COLUMNS = ("job", "node", "mask", "milli", "start", "end")
NODE_COLUMNS = ("node", "status", "since", "lost_low", "lost_high")
SERIES_COLUMNS = ("time", "allocated", "in_service", "fragmented", "nodes", "waiting_jobs", "waiting_milli")
SUBMIT, START, END, WAIT, SINCE, STATUS, PREEMPTIONS = (JOB_COLUMNS.index(n) for n in (
    "submit", "start", "end", "wait", "since", "status", "preemptions"))  # fmt: skip
LOW = (1 << 31) - 1


class RunRecord:
    """Follows one state from its beginning. `name` tells it from every other record that a client may have seen.

    Its times count from `zero`; the clock of the state that it follows was `ahead` then. `starts` has the moments at
    which states were built, `left` the jobs that lived at the end of one and have not come to the next.
    `waits` splits the waits by cause, of the jobs that this state has had.
    """

    def __init__(
        self,
        state: ClusterState,
        name: str,
        *,
        zero: int = 0,
        profile: str = "",
        waits: Waits | None = None,
        jobs: int = JOBS,
        pieces: int = PIECES,
        changes: int = CHANGES,
        samples: int = SAMPLES,
    ) -> None:
        self.state = state
        self.zero = zero
        self.ahead = 0
        self.profile = profile
        self.waits = waits
        self.name = name
        self.most = jobs, pieces, changes
        self.recorder = LiveRecorder(state, samples)
        self.jobs = Rows(len(JOB_COLUMNS))
        self.pieces = Rows(len(PIECE_COLUMNS))
        self.nodes: list[NodeChange] = []
        self.stands: dict[int, tuple[int, int]] = {}  # of nodes: the status and the lost devices of the last change
        self.queues: dict[str, int] = {}
        self.state_queues: list[int] = []  # of each queue of the state: its index of ours
        self.sampled: c.Table = np.zeros((0, rec.SAMPLE_WIDTH), dtype=np.int64)  # of states before this one
        self.sampling = -1  # since when the samples of this state count
        self.starts: list[int] = []
        self.last = 0  # when the state was seen last, if that is later than its last event
        self.left: dict[str, Left] = {}
        self.change: Change | None = None
        self.notes: list[tuple[str, int, str, str]] | None = None  # kept for another record that is to take the place
        self.ids: list[str] = []
        self.names: list[tuple[str, str]] = []  # of each job: its name and its user
        self.by_id: dict[str, int] = {}
        self.own: list[int] = []  # of each job the row that the state has, or had, for it; -1: it has not had it
        self.telling = Telling([node.name for node in state.spec.nodes])
        self.row_of: dict[int, int] = {}  # of jobs that the state has: its row to ours
        self.open_pieces: dict[int, list[int]] = {}  # by the same: the pieces that it holds
        self.before: dict[int, Earlier] = {}  # of jobs that came again
        self.over = 0
        self.ended = 0
        self.epoch = 0
        self._summary: tuple[int, dict[str, Any]] | None = None
        self.recorder.observe(state.now)

    # --- the fold -------------------------------------------------------------------------------------------------

    def happened(self, event: Event) -> None:
        """The state has taken in an event."""
        if isinstance(event, JobSubmitted):
            self._come(event)
        elif isinstance(event, NodeChanged | DevicesChanged):
            self._serve(event)
        job = getattr(event, "job", None)
        if job is not None:
            self._change(job if isinstance(job, str) else job.id, event)
        self.recorder.observe(event.time)
        self.bound()

    def decided(self, plan: Plan) -> None:
        """The scheduler has decided."""
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
            if name in self.by_id:  # of a state before this one
                self._rename(name)
            self.ids.append(name)
            self.names.append((job.name, job.user))
            self.by_id[name] = row
        self.row_of[own], self.own[row] = row, own

    def _was_put_off(self, row: int, now: int) -> bool:
        """Whether a job that had left comes again: it was held; or it had not left when its state was last written."""
        status, end = self.jobs.table[row, [STATUS, END]].tolist()
        return status == JobStatus.CANCELLED or (self.change is not None and now < end)

    def _rename(self, name: str) -> None:
        """A job that is over makes way for another one of its name."""
        count = 2
        while (other := f"{public_id(name)}~{count}") in self.by_id:
            count += 1
        row = self.by_id[other] = self.by_id.pop(name)
        self.ids[row] = other
        self.jobs.log.add(row)

    def _return(self, own: int, row: int, left: Left | None, now: int) -> None:
        was = self.jobs.table[row].tolist()
        wait = was[WAIT] + (now - was[SINCE] if left is not None and was[STATUS] == JobStatus.PENDING else 0)
        self.before[own] = Earlier(was[SUBMIT], was[START], wait, was[PREEMPTIONS])
        if left is None:
            self.over -= 1
        if self.change is not None:
            self.change.was[own] = was
            self.change.pieces[own] = [] if left is None else left.pieces
        elif left is not None:
            self.end_pieces(left.pieces, now)

    def end_pieces(self, pieces: Sequence[int], now: int) -> None:
        """These pieces end."""
        for piece in pieces:
            self.pieces.set(piece, [*self.pieces.table[piece, :5].tolist(), now])
        self.ended += len(pieces)

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
        """The row of a job that the state has."""
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

    def queue(self, own: int) -> int:
        """The record's index of a queue of the state: the record may know queues that the state has never had."""
        if len(self.state_queues) < len(self.state.queues):
            for name in list(self.state.queues)[len(self.state_queues) :]:
                self.state_queues.append(self.queues.setdefault(name, len(self.queues)))
        return self.state_queues[own]

    def _hold(self, own: int, row: int, now: int) -> bool:
        """Make the open pieces of a job those that it holds; False where they are that already."""
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

    def serve(self, node: int, now: int) -> None:
        """A node has changed, unless it stands as it stood."""
        stands = int(self.state.table[node, c.STATUS]), self.state.health.lost.get(node, 0)
        if stands == self.stands.get(node, (NodeStatus.IN_SERVICE, 0)):
            return
        self.stands[node] = stands
        self.nodes.append((node, stands[0], now, stands[1]))
        if len(self.nodes) > 2 * self.most[2] + len(self.state.spec.nodes):
            early, late = self.nodes[: -self.most[2]], self.nodes[-self.most[2] :]
            self.nodes = [*{change[0]: change for change in early}.values(), *late]
            self.epoch += 1

    def bound(self) -> None:
        """Forget the oldest where there is too much."""
        if self.change is None and (self.over > 2 * self.most[0] or self.ended > 2 * self.most[1]):
            self._forget()

    def _forget(self) -> None:
        """Of what is over only the latest stays. Rows get new numbers, so everybody has to begin anew."""
        jobs, pieces = self.jobs.table[: self.jobs.used], self.pieces.table[: self.pieces.used]
        going = np.ones(len(jobs), dtype=np.bool_)
        going[[*self.row_of.values(), *(left.row for left in self.left.values())]] = False
        over = np.flatnonzero(going)
        stays = ~going
        stays[over[np.argsort(jobs[over, END], kind="stable")][-self.most[0] :]] = True
        rows = self.jobs.keep(np.flatnonzero(stays).tolist())
        running = pieces[:, 5] < 0
        ended = np.flatnonzero(~running & stays[pieces[:, 0]])
        ended = ended[np.argsort(pieces[ended, 5], kind="stable")][-self.most[1] :]
        running[ended] = True
        moved = self.pieces.keep(np.flatnonzero(running).tolist())
        table = self.pieces.table[: self.pieces.used]
        renumbered = np.full(len(jobs), -1, dtype=np.int64)
        renumbered[list(rows)] = list(rows.values())
        table[:, 0] = renumbered[table[:, 0]]
        self.ids, self.names = [self.ids[row] for row in rows], [self.names[row] for row in rows]
        self.own = [self.own[row] for row in rows]
        self.by_id = {name: row for row, name in enumerate(self.ids)}
        self.telling.keep(rows)
        self.row_of = {own: rows[row] for own, row in self.row_of.items()}
        self.open_pieces = {own: [moved[piece] for piece in kept] for own, kept in self.open_pieces.items()}
        for left in self.left.values():
            left.row, left.pieces = rows[left.row], [moved[piece] for piece in left.pieces]
        self.over, self.ended = len(rows) - len(self.row_of) - len(self.left), len(ended)
        self.epoch += 1

    # --- what can be asked ----------------------------------------------------------------------------------------

    def since(self, cursor: str, now: int) -> dict[str, Any]:
        """What has come or changed since the answer that gave this `cursor`; everything where that is not known.

        It costs as much as has changed. Times are on the run's clock.
        """
        self.recorder.settle(now)
        marks = self._marks(cursor)
        jobs, pieces = self.jobs.since(marks[0] if marks else None), self.pieces.since(marks[1] if marks else None)
        if jobs is None or pieces is None:
            marks, jobs, pieces = None, self.jobs.since(None) or [], self.pieces.since(None) or []
        nodes, samples = (marks[2], marks[3]) if marks else (0, 0)
        state = self.state
        here = self.jobs.log.end, self.pieces.log.end, len(self.nodes), self.recorder.used
        return {
            "cursor": ".".join(map(str, (self.name, self.epoch, self.recorder.thinned, *here))),
            "complete": marks is None,
            "time_us": now + self.ahead,
            "zero_us": self.zero,
            "starts": self.starts,
            "profile": self.profile,
            "cluster_name": state.spec.name,
            "cluster": None if marks else described(state.spec),
            "queues": self.queue_names(),
            "jobs": self._jobs(jobs),
            "intervals": self._pieces(pieces),
            "nodes": self._nodes(nodes),
            "series": _columns_of(SERIES_COLUMNS, self.samples(samples, marks is None)),
            "summary": self.summary(now),
        }

    def _marks(self, cursor: str) -> list[int] | None:
        name, *parts = cursor.split(".")
        if (
            name != self.name
            or len(parts) != 6
            or not all(re.fullmatch("[0-9]{1,15}", part, re.ASCII) for part in parts)
        ):
            return None
        epoch, thinned, *marks = map(int, parts)
        ends = self.jobs.log.end, self.pieces.log.end, len(self.nodes), self.recorder.used
        if (epoch, thinned) != (self.epoch, self.recorder.thinned) or any(
            mark > end for mark, end in zip(marks, ends, strict=True)
        ):
            return None
        return marks

    def queue_names(self) -> list[str]:
        """The queues, by the index that stands in the jobs' rows."""
        for own in range(len(self.state_queues), len(self.state.queues)):
            self.queue(own)
        return list(self.queues)

    def samples(self, mark: int, whole: bool) -> c.Table:
        """The samples of this state from `mark` on, and if `whole` those of the states before."""
        rows = self.recorder.samples[mark : self.recorder.used].copy()
        rows = rows[rows[:, rec.S_TIME] >= self.sampling]
        rows[:, rec.S_TIME] += self.ahead
        return np.concatenate([self.sampled, rows]) if whole else rows

    def _nodes(self, mark: int) -> dict[str, Any]:
        table = np.array(self.nodes[mark:], dtype=np.int64).reshape(-1, 4)
        lost = table[:, 3:]
        return _columns_of(NODE_COLUMNS, np.hstack([table[:, :3], lost & LOW, lost >> 31]))

    def _jobs(self, rows: Sequence[int]) -> dict[str, Any]:
        found: dict[str, Any] = {"row": list(rows), "id": [self.ids[row] for row in rows]}
        for at, name in enumerate(("name", "user")):
            found[name] = [self.names[row][at] for row in rows]
        return found | _columns_of(JOB_COLUMNS, self.jobs.table[rows])

    def _pieces(self, rows: Sequence[int]) -> dict[str, Any]:
        table = self.pieces.table[rows]
        found = {"row": list(rows)} | _columns_of(PIECE_COLUMNS, table)
        mask = table[:, 2]
        del found["mask"]
        return found | {"mask_low": (mask & LOW).tolist(), "mask_high": (mask >> 31).tolist()}

    def summary(self, now: int) -> dict[str, Any]:
        """The metrics now, and so far: those that were made lately, while they are good."""
        good = max(SUMMARY_EVERY, SUMMARY_PER_JOB * len(self.state.ids))
        if self._summary is None or not 0 <= now - self._summary[0] < good:
            self._summary = now, self._so_far(now)
        state = self.state
        nodes, capacity, allocated, fragmented = (
            int(state.pools[:, column].sum()) for column in (c.P_NODES, c.P_CAPACITY, c.P_ALLOCATED, c.P_FRAGMENTED)
        )
        return {
            "now": {
                "gar": allocated / capacity if capacity else None,
                "gfr": fragmented / nodes if nodes else None,
                "allocated": allocated,
                "in_service": capacity,
                "fragmented": fragmented,
                "nodes": nodes,
                "running": len(state.running),
                "waiting": len(state.pending),
                "waiting_milli": state.waiting_milli,
            },
            "so_far": self._summary[1],
        }

    def forget_summary(self) -> None:
        """The next summary is made anew."""
        self._summary = None

    def _so_far(self, now: int) -> dict[str, Any]:
        keys = (
            "jobs", "completed", "rejected", "cancelled", "wait_s", "first_wait_s", "wait_by_size", "gar", "sor", "gfr",
            "jtted", "preemptions", "evictions", "failures", "node_faults",
        )  # fmt: skip
        found = self.recorder.so_far(now)
        causes = {} if self.waits is None else {"wait_by_cause": {"total": self.waits.total(now)}}
        return {key: found[key] for key in keys} | causes | {"time_us": now + self.ahead, "begins_us": self.begins}

    @property
    def begins(self) -> int:
        """Since when the sums of the summary count: the first moment that the state knows."""
        return int(self.recorder.samples[0, rec.S_TIME]) + self.ahead if self.recorder.used else 0

    def waited(self, job: str, now: int) -> dict[str, int] | None:
        """Microseconds that a job has waited, in `total` and by cause; None for one that this state has not had."""
        row = self.by_id.get(job)
        if row is None or self.waits is None or self.own[row] < 0:
            return None
        split = self.waits.of(self.own[row], now)
        return {"total": sum(split.values())} | split

    def history(self, job: str) -> list[dict[str, Any]] | None:
        """What happened to a job, and what was decided about it; None for one that is not kept."""
        row = self.by_id.get(job)
        return None if row is None else self.telling.of(row)

    def note(self, job: str, time: int, what: str, text: str) -> None:
        """Keep also something else about a job, such as who gave an order."""
        row, moment = self.by_id.get(job), time + self.ahead
        if row is not None:
            self.telling.note(row, moment, what, text)
        if self.notes is not None:
            self.notes.append((job, moment + self.zero, what, text))


def described(spec: ClusterSpec) -> dict[str, Any]:
    """The nodes of a cluster by columns; `model` has indices of `models`."""
    models = sorted({node.model for node in spec.nodes})
    codes = {model: code for code, model in enumerate(models)}
    return {
        "names": [node.name for node in spec.nodes],
        "gpus": [node.gpus for node in spec.nodes],
        "models": models,
        "model": [codes[node.model] for node in spec.nodes],
        "leaf": [node.leaf for node in spec.nodes],
        "spine": [node.spine for node in spec.nodes],
        "superspine": [node.superspine for node in spec.nodes],
    }


def _columns_of(names: Sequence[str], table: c.Table) -> dict[str, list[int]]:
    return dict(zip(names, table.T.tolist(), strict=True))
