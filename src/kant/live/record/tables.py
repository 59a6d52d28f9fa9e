"""The tables of a record. Their sizes are bounded: the oldest ended entries are dropped."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kant.cluster import columns as c
from kant.cluster.change_log import ChangeLog
from kant.cluster.columns import Table, longer
from kant.cluster.state import ClusterState
from kant.live.record.columns import END, JOB_COLUMNS, PIECE_COLUMNS
from kant.live.record.continuity import Change, EarlierState, LeftJob, NodeChange
from kant.live.samples import SAMPLES, LiveRecorder
from kant.live.sentences import JobSentences
from kant.live.waits import Waits
from kant.metrics import recorder as rec


class Rows:
    """A table of integers with `width` columns. Adding or changing a row is logged in `log`."""

    def __init__(self, width: int) -> None:
        self.table: Table = np.zeros((256, width), dtype=np.int64)
        self.used = 0
        self.log = ChangeLog()

    def add(self, values: Sequence[int]) -> int:
        """Add a row; return its index."""
        row = self.used
        if row == len(self.table):
            self.table = longer(self.table)
        self.table[row] = values
        self.used += 1
        self.log.add(row)
        return row

    def set(self, row: int, values: Sequence[int]) -> None:
        """Set the values of a row."""
        self.table[row] = values
        self.log.add(row)

    def since(self, mark: int | None) -> list[int]:
        """Return the rows that were added or changed since the log's `end` was `mark`; all rows if `mark` is None."""
        return list(range(self.used)) if mark is None else self.log.since(mark)

    def keep(self, rows: Sequence[int]) -> dict[int, int]:
        """Drop all other rows. Returns the new index of each of `rows`, by its old index."""
        kept = self.table[rows].copy()
        self.table[: len(kept)] = kept
        self.used = len(kept)
        return {old: new for new, old in enumerate(rows)}


JOBS = 20_000
"""Number of ended jobs kept. The oldest are dropped once there are twice as many."""
PIECES = 100_000
"""Number of pieces of ended runs kept (the devices of a job on one node); dropped once there are twice as many."""
CHANGES = 20_000
"""Number of node changes kept, up to twice as many, plus the last earlier change of each node."""


class RecordTables:
    """The tables of one record: jobs, pieces (devices held on a node), changes of nodes, and the state they follow.

    `name` distinguishes the record from all others that a client may have seen. The record's times count from `zero`:
    the state's times plus `ahead`. `starts` has the times at which states were built, `left` the jobs that were live at
    the end of a state and are not yet in the next. `waits` splits the waits by cause, for jobs of this state.
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
        self.stands: dict[int, tuple[int, int]] = {}  # by node: status and lost devices of the last change
        self.queues: dict[str, int] = {}
        self.state_queues: list[int] = []  # by queue of the state: its index in the record
        self.sampled: c.Table = np.zeros((0, rec.SAMPLE_WIDTH), dtype=np.int64)  # the samples of earlier states
        self.sampling = -1  # since when the samples of this state count
        self.starts: list[int] = []
        self.last = 0  # the time when the state was last seen, if that was after its last event
        self.left: dict[str, LeftJob] = {}
        self.change: Change | None = None
        self.notes: list[tuple[str, int, str, str]] | None = None  # kept for another record that is to replace this one
        self.ids: list[str] = []
        self.names: list[tuple[str, str]] = []  # by job: its name and its user
        self.by_id: dict[str, int] = {}
        self.own: list[int] = []  # by job: its row in the state; -1: not in it
        self.telling = JobSentences([node.name for node in state.nodes])
        self.row_of: dict[int, int] = {}  # by row of a live job in the state: the record's row
        self.open_pieces: dict[int, list[int]] = {}  # by row in the state: the pieces that it holds
        self.before: dict[int, EarlierState] = {}  # for jobs that returned
        self.over = 0
        self.ended = 0
        self.epoch = 0
        self.recorder.observe(state.now)

    def end_pieces(self, pieces: Sequence[int], now: int) -> None:
        """Record that these pieces (rows of the table) were given up at `now`."""
        for piece in pieces:
            self.pieces.set(piece, [*self.pieces.table[piece, :5].tolist(), now])
        self.ended += len(pieces)

    def queue(self, own: int) -> int:
        """Return the record's index of the state's queue `own`; the record may also have queues of earlier states."""
        if len(self.state_queues) < len(self.state.queues):
            for name in list(self.state.queues)[len(self.state_queues) :]:
                self.state_queues.append(self.queues.setdefault(name, len(self.queues)))
        return self.state_queues[own]

    def queue_names(self) -> list[str]:
        """Return the queues, by the index used in the jobs' rows."""
        for own in range(len(self.state_queues), len(self.state.queues)):
            self.queue(own)
        return list(self.queues)

    def samples(self, mark: int, whole: bool) -> c.Table:
        """Return the samples of this state from `mark` on; with `whole` also those of earlier states."""
        rows = self.recorder.samples[mark : self.recorder.used].copy()
        rows = rows[rows[:, rec.S_TIME] >= self.sampling]
        rows[:, rec.S_TIME] += self.ahead
        return np.concatenate([self.sampled, rows]) if whole else rows

    def bound(self) -> None:
        """Drop the oldest entries if there are too many."""
        if self.change is None and (self.over > 2 * self.most[0] or self.ended > 2 * self.most[1]):
            self._forget()

    def _forget(self) -> None:
        """Drop all ended entries but the latest. Rows get new numbers, so every cursor becomes invalid."""
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
