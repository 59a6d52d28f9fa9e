"""What a live run leaves behind for those who look at it: jobs, who held which GPUs when, nodes, samples.

A fold over the same events that the state takes in. It is bounded: of what is over, the oldest is forgotten.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from kant.cluster import columns as c
from kant.cluster.state import ClusterState
from kant.live.rows import Rows
from kant.live.samples import SAMPLES, LiveRecorder
from kant.live.sentences import Telling
from kant.live.sentences import public as public_id
from kant.live.waits import Waits
from kant.metrics import recorder as rec
from kant.model.decision import Plan
from kant.model.event import Event, JobEvicted, JobFailed, JobPreempted, JobSubmitted, NodeChanged
from kant.model.node import ClusterSpec
from kant.model.placement import MASK, MILLI, NODE
from kant.model.status import JobStatus
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
NODE_COLUMNS = ("node", "status", "since")
SERIES_COLUMNS = ("time", "allocated", "in_service", "fragmented", "nodes", "waiting_jobs", "waiting_milli")
SUBMIT, START, END, WAIT, STATUS, PREEMPTIONS = (JOB_COLUMNS.index(n) for n in (
    "submit", "start", "end", "wait", "status", "preemptions"))  # fmt: skip
LOW = (1 << 31) - 1


class RunRecord:
    """Follows one state from its beginning. `name` tells it from every other record that a client may have seen.

    `waits` splits the waits by cause.
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
        self.profile = profile
        self.waits = waits
        self.name = name
        self.most = jobs, pieces, changes
        self.recorder = LiveRecorder(state, samples)
        self.jobs = Rows(len(JOB_COLUMNS))
        self.pieces = Rows(len(PIECE_COLUMNS))
        self.nodes: list[tuple[int, int, int]] = []
        self.ids: list[str] = []
        self.names: list[tuple[str, str]] = []  # of each job: its name and its user
        self.by_id: dict[str, int] = {}
        self.own: list[int] = []  # of each job the row that the state has, or had, for it
        self.telling = Telling([node.name for node in state.spec.nodes])
        self._row: dict[int, int] = {}  # of jobs that the state has: its row to ours
        self._open: dict[int, list[int]] = {}  # by the same: the pieces that it holds
        self._before: dict[int, tuple[int, int, int, int]] = {}  # of jobs that came again: what they had been through
        self._over = 0
        self._ended = 0
        self._epoch = 0
        self._summary: tuple[int, dict[str, Any]] | None = None
        self.recorder.observe(state.now)

    # --- the fold -------------------------------------------------------------------------------------------------

    def happened(self, event: Event) -> None:
        """The state has taken in an event."""
        if isinstance(event, JobSubmitted):
            self._come(event)
        elif isinstance(event, NodeChanged):
            self._serve(event)
        job = getattr(event, "job", None)
        if job is not None:
            self._change(job if isinstance(job, str) else job.id, event)
        self.recorder.observe(event.time)
        if self._over > 2 * self.most[0] or self._ended > 2 * self.most[1]:
            self._forget()

    def decided(self, plan: Plan) -> None:
        """The scheduler has decided."""
        for decision in plan.decisions:
            row = self._row.get(self.state.rows.get(getattr(decision, "job", ""), -1))
            if row is not None:
                self.telling.decided(row, plan.time, decision)

    def _come(self, event: JobSubmitted) -> None:
        job, own = event.job, self.state.rows[event.job.id]
        public = public_id(job.id)
        row = self.by_id.get(public)
        if row is not None and self.jobs.table[row, STATUS] == JobStatus.CANCELLED:  # held, or put off; now it is back
            was = self.jobs.table[row].tolist()
            self._before[own] = was[SUBMIT], was[START], was[WAIT], was[PREEMPTIONS]
            self._over -= 1
        else:
            row = self.jobs.add([0] * len(JOB_COLUMNS))
            self.own.append(own)
            name = public if public not in self.by_id else job.id
            self.ids.append(name)
            self.names.append((job.name, job.user))
            self.by_id[name] = row
        self._row[own], self.own[row] = row, own

    def _change(self, job: str, event: Event) -> None:
        own = self.state.rows[job]
        row = self._row.get(own)
        if row is None:
            return
        held = self.state.running.get(own)
        changed = self._hold(own, row, event.time)
        if changed and held is not None:
            self.recorder.started(own, held)
        if isinstance(event, JobPreempted | JobEvicted | JobFailed):
            self.recorder.lost(own, event.cost)
        self.jobs.set(row, self._columns(own))
        self.telling.happened(row, event)
        if own not in self.state.live:
            del self._row[own]
            self._before.pop(own, None)
            self._over += 1

    def _columns(self, own: int) -> list[int]:
        state = self.state
        job = state.jobs[own].tolist()
        fewest = self.recorder.model.best(self.recorder.shape_at(own))
        submit, start, wait, preemptions = self._before.get(own, (job[c.J_SUBMIT], -1, 0, 0))
        return [
            job[c.J_QUEUE], state.shapes.at(job[c.J_SHAPE]).most_milli, submit,
            start if start >= 0 else job[c.J_FIRST_START], job[c.J_END], wait + job[c.J_WAITED], job[c.J_SINCE],
            job[c.J_STATUS], preemptions + job[c.J_PREEMPTIONS], int(fewest[T_NODES]), int(fewest[T_LEAVES]),
        ]  # fmt: skip

    def _hold(self, own: int, row: int, now: int) -> bool:
        """Make the open pieces of a job those that it holds; False where they are that already."""
        held = self.state.running.get(own)
        wanted = [] if held is None else held[:, [NODE, MASK, MILLI]].tolist()
        kept, changed = [], False
        for piece in self._open.get(own, ()):
            values = self.pieces.table[piece].tolist()
            if values[1:4] in wanted:
                wanted.remove(values[1:4])
                kept.append(piece)
            else:
                self.pieces.set(piece, [*values[:5], now])
                self._ended += 1
                changed = True
        for node, mask, milli in wanted:
            kept.append(self.pieces.add((row, node, mask, milli, now, -1)))
            changed = True
        if kept:
            self._open[own] = kept
        else:
            self._open.pop(own, None)
        return changed

    def _serve(self, event: NodeChanged) -> None:
        self.nodes.append((self.state.node_index[event.node], event.status, event.time))
        if len(self.nodes) > 2 * self.most[2] + len(self.state.spec.nodes):
            early, late = self.nodes[: -self.most[2]], self.nodes[-self.most[2] :]
            self.nodes = [*{change[0]: change for change in early}.values(), *late]
            self._epoch += 1

    def _forget(self) -> None:
        """Of what is over only the latest stays. Rows get new numbers, so everybody has to begin anew."""
        jobs, pieces = self.jobs.table[: self.jobs.used], self.pieces.table[: self.pieces.used]
        going = np.ones(len(jobs), dtype=np.bool_)
        going[list(self._row.values())] = False
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
        self._row = {own: rows[row] for own, row in self._row.items()}
        self._open = {own: [moved[piece] for piece in kept] for own, kept in self._open.items()}
        self._over, self._ended = len(rows) - len(self._row), len(ended)
        self._epoch += 1

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
        series = self.recorder.samples[samples : self.recorder.used]
        state = self.state
        here = self.jobs.log.end, self.pieces.log.end, len(self.nodes), self.recorder.used
        return {
            "cursor": ".".join(map(str, (self.name, self._epoch, self.recorder.thinned, *here))),
            "complete": marks is None,
            "time_us": now,
            "zero_us": self.zero,
            "profile": self.profile,
            "cluster_name": state.spec.name,
            "cluster": None if marks else described(state.spec),
            "queues": list(state.queues),
            "jobs": self._jobs(jobs),
            "intervals": self._pieces(pieces),
            "nodes": _columns_of(NODE_COLUMNS, np.array(self.nodes[nodes:], dtype=np.int64).reshape(-1, 3)),
            "series": _columns_of(SERIES_COLUMNS, series),
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
        if (epoch, thinned) != (self._epoch, self.recorder.thinned) or any(
            mark > end for mark, end in zip(marks, ends, strict=True)
        ):
            return None
        return marks

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

    def _so_far(self, now: int) -> dict[str, Any]:
        keys = (
            "jobs", "completed", "rejected", "cancelled", "wait_s", "first_wait_s", "wait_by_size", "gar", "sor", "gfr",
            "jtted", "preemptions", "evictions", "failures", "node_faults",
        )  # fmt: skip
        found = self.recorder.so_far(now)
        causes = {} if self.waits is None else {"wait_by_cause": {"total": self.waits.total(now)}}
        return {key: found[key] for key in keys} | causes | {"time_us": now, "begins_us": self.begins}

    @property
    def begins(self) -> int:
        """When the first of what is kept happened."""
        return int(self.recorder.samples[0, rec.S_TIME]) if self.recorder.used else 0

    def waited(self, job: str, now: int) -> dict[str, int] | None:
        """Microseconds that a job has waited, in `total` and by cause; None for one that is not kept."""
        row = self.by_id.get(job)
        if row is None or self.waits is None:
            return None
        split = self.waits.of(self.own[row], now)
        return {"total": sum(split.values())} | split

    def history(self, job: str) -> list[dict[str, Any]] | None:
        """What happened to a job, and what was decided about it; None for one that is not kept."""
        row = self.by_id.get(job)
        return None if row is None else self.telling.of(row)

    def note(self, job: str, time: int, what: str, text: str) -> None:
        """Keep also something else about a job, such as who gave an order."""
        row = self.by_id.get(job)
        if row is not None:
            self.telling.note(row, time, what, text)


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
