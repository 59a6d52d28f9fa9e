"""Queries to a record: what is new since the last answer, and the metrics so far."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from kant.cluster import columns as c
from kant.live.record.columns import (
    JOB_COLUMNS,
    LOW,
    NODE_COLUMNS,
    PIECE_COLUMNS,
    SERIES_COLUMNS,
    columns_of,
    described,
)
from kant.live.record.tables import RecordTables
from kant.metrics import recorder as rec

SUMMARY_EVERY = 900_000
"""Microseconds for which a summary stays valid, at least; SUMMARY_PER_JOB for each job if that is longer."""
SUMMARY_PER_JOB = 100


class RecordAnswers:
    """Reads one record."""

    def __init__(self, run: RecordTables) -> None:
        self.run = run
        self._summary: tuple[int, dict[str, Any]] | None = None

    def since(self, cursor: str, now: int) -> dict[str, Any]:
        """Return what has been added or changed since the answer that gave this `cursor`; all if the cursor is unknown.

        The cost depends only on the changes. Times are on the run's clock.
        """
        run = self.run
        run.recorder.settle(now)
        marks = self._marks(cursor)
        jobs, pieces = run.jobs.since(marks[0] if marks else None), run.pieces.since(marks[1] if marks else None)
        if jobs is None or pieces is None:
            marks, jobs, pieces = None, run.jobs.since(None) or [], run.pieces.since(None) or []
        nodes, samples = (marks[2], marks[3]) if marks else (0, 0)
        here = run.jobs.log.end, run.pieces.log.end, len(run.nodes), run.recorder.used
        return {
            "cursor": ".".join(map(str, (run.name, run.epoch, run.recorder.thinned, *here))),
            "complete": marks is None,
            "time_us": now + run.ahead,
            "zero_us": run.zero,
            "starts": run.starts,
            "profile": run.profile,
            "cluster_name": run.state.spec.name,
            "cluster": None if marks else described(run.state.cluster),
            "queues": run.queue_names(),
            "jobs": self._jobs(jobs),
            "intervals": self._pieces(pieces),
            "nodes": self._nodes(nodes),
            "series": columns_of(SERIES_COLUMNS, run.samples(samples, marks is None)),
            "summary": self.summary(now),
        }

    def _marks(self, cursor: str) -> list[int] | None:
        name, *parts = cursor.split(".")
        if (
            name != self.run.name
            or len(parts) != 6
            or not all(re.fullmatch("[0-9]{1,15}", part, re.ASCII) for part in parts)
        ):
            return None
        epoch, thinned, *marks = map(int, parts)
        ends = self.run.jobs.log.end, self.run.pieces.log.end, len(self.run.nodes), self.run.recorder.used
        if (epoch, thinned) != (self.run.epoch, self.run.recorder.thinned) or any(
            mark > end for mark, end in zip(marks, ends, strict=True)
        ):
            return None
        return marks

    def _nodes(self, mark: int) -> dict[str, Any]:
        table = np.array(self.run.nodes[mark:], dtype=np.int64).reshape(-1, 4)
        lost = table[:, 3:]
        return columns_of(NODE_COLUMNS, np.hstack([table[:, :3], lost & LOW, lost >> 31]))

    def _jobs(self, rows: Sequence[int]) -> dict[str, Any]:
        found: dict[str, Any] = {"row": list(rows), "id": [self.run.ids[row] for row in rows]}
        for at, name in enumerate(("name", "user")):
            found[name] = [self.run.names[row][at] for row in rows]
        return found | columns_of(JOB_COLUMNS, self.run.jobs.table[rows])

    def _pieces(self, rows: Sequence[int]) -> dict[str, Any]:
        table = self.run.pieces.table[rows]
        found = {"row": list(rows)} | columns_of(PIECE_COLUMNS, table)
        mask = table[:, 2]
        del found["mask"]
        return found | {"mask_low": (mask & LOW).tolist(), "mask_high": (mask >> 31).tolist()}

    def summary(self, now: int) -> dict[str, Any]:
        """Return the metrics now and so far; a recent summary is reused while it is valid."""
        good = max(SUMMARY_EVERY, SUMMARY_PER_JOB * len(self.run.state.ids))
        if self._summary is None or not 0 <= now - self._summary[0] < good:
            self._summary = now, self._so_far(now)
        state = self.run.state
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
        """Discard the cached summary."""
        self._summary = None

    def _so_far(self, now: int) -> dict[str, Any]:
        keys = (
            "jobs", "completed", "rejected", "cancelled", "wait_s", "first_wait_s", "wait_by_size", "gar", "sor", "gfr",
            "jtted", "preemptions", "evictions", "failures", "node_faults",
        )  # fmt: skip
        found = self.run.recorder.so_far(now)
        causes = {} if self.run.waits is None else {"wait_by_cause": {"total": self.run.waits.total(now)}}
        return {key: found[key] for key in keys} | causes | {"time_us": now + self.run.ahead, "begins_us": self.begins}

    @property
    def begins(self) -> int:
        """Return the first time known to the state, from which on the sums of the summary count."""
        return int(self.run.recorder.samples[0, rec.S_TIME]) + self.run.ahead if self.run.recorder.used else 0
