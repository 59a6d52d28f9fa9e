"""A frozen copy of a scheduler at one moment: all input of a start forecast, sent to the process that computes it.

A state is frozen in steps, so that a live scheduler can run between the steps. The first step copies what may change.
The other steps encode jobs and nodes, which never change.
"""

from __future__ import annotations

import pickle
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple, TypeVar

import msgspec
import numpy as np

from kant.cluster.change_log import ChangeLog
from kant.cluster.columns import Table
from kant.cluster.node_rows import NO_NODE
from kant.cluster.state import ClusterState
from kant.insight.past_jobs import PastJobs
from kant.model.event import JobSubmitted
from kant.model.job import Job
from kant.model.node import Node
from kant.model.placement import WIDTH, Allocation
from kant.scheduler.cycle import Scheduler
from kant.scheduler.profile import Profile

NOTHING = np.zeros((0, WIDTH), dtype=np.int64)

PART = 1_000
"""Number of jobs or nodes that one step encodes, which takes less than a millisecond."""

Found = TypeVar("Found")
Steps = Generator[None, None, Found]
"""Work that is done in steps, and returns its result at the end."""


class PackedTable(NamedTuple):
    """A copy of a table without the columns that are all zero. In most node tables nine tenths of the columns are."""

    rows: int
    width: int
    columns: Table
    values: Table

    def unpacked(self) -> Table:
        """Return the table with its columns of zeros, as a new array at each call."""
        found: Table = np.zeros((self.rows, self.width), dtype=np.int64)
        found[:, self.columns] = self.values
        return found


def _packed(table: Table) -> PackedTable:
    columns = np.flatnonzero(table.any(axis=0))
    return PackedTable(len(table), table.shape[1], columns, table[:, columns])


TABLES = ("table", "empty", "left", "jobs")
"""The names of the large tables of a state. `left` may be missing."""


class FrozenState(NamedTuple):
    """A state in parts. `rest` is the pickled state without its TABLES, its nodes and what it holds for each job.

    `by_job` has the names of all jobs, their rows, and the quota that the running jobs use.
    """

    rest: bytes
    tables: dict[str, PackedTable]
    by_job: bytes
    live: list[int]
    jobs: list[bytes]
    running: list[int]
    lengths: list[int]
    pieces: Allocation
    nodes: list[bytes]
    spec_nodes: list[bytes]


@dataclass(frozen=True, slots=True)
class Moment:
    """The `state` at `now`, as written by `freeze`, with the profile and the known past.

    `zero` is the clock's zero in microseconds since the Unix epoch; 0: the clock has no dates. `trial` is a job that
    has not been submitted: the forecast is about it alone, as if it arrived now. None: about all waiting jobs.
    """

    state: FrozenState
    profile: Profile
    seed: int
    now: int
    past: PastJobs
    zero: int = 0
    trial: Job | None = None

    def thawed(self) -> ClusterState:
        """Return a new copy of the state on each call, with the trial job, if any, waiting in it."""
        state = thaw(self.state)
        if self.trial is not None:
            state.apply(JobSubmitted(self.now, self.trial))
        return state


def at_once(steps: Steps[Found]) -> Found:
    """Take all steps, and return the result."""
    try:
        while True:
            next(steps)
    except StopIteration as end:
        found: Found = end.value
        return found


def freeze(state: ClusterState) -> FrozenState:
    """Serialise the state, without the objects that are notified of its changes."""
    return at_once(_freezing(state))


def _freezing(state: ClusterState) -> Steps[FrozenState]:
    own, rows, usage = vars(state), state.node_rows, state.quota_usage
    kept, held, charged = dict(own), state.running, usage.charged
    by_job = state.ids.copy(), state.rows.copy(), charged.copy()
    running, lengths = list(held), list(map(len, held.values()))
    pieces = np.concatenate([NOTHING, *held.values()])
    live, jobs, nodes, spec_nodes = list(state.live), list(state.live.values()), list(state.nodes), state.spec.nodes
    tables = {name: _packed(kept[name]) for name in TABLES if kept[name] is not None}
    tables["jobs"] = _packed(state.jobs[: len(state.ids) + 1])
    try:  # in place, since other parts refer to the state
        own.update(
            running={}, live={}, followers=[], job_changes=ChangeLog(), _competing=None, pieces=NOTHING,
            spec=msgspec.structs.replace(state.spec, nodes=()), nodes=[], ids=[], rows={}, **dict.fromkeys(tables),
        )  # fmt: skip
        rows.nodes, usage.charged = state.nodes, {}
        rest = pickle.dumps(state, pickle.HIGHEST_PROTOCOL)
    finally:
        own.update(kept)
        rows.nodes, usage.charged = state.nodes, charged
    yield
    names = pickle.dumps(by_job, pickle.HIGHEST_PROTOCOL)
    job_parts, node_parts = (yield from _encoding(jobs)), (yield from _encoding(nodes))
    spec_parts = yield from _encoding(spec_nodes)
    return FrozenState(rest, tables, names, live, job_parts, running, lengths, pieces, node_parts, spec_parts)


def _encoding(objects: Sequence[Job] | Sequence[Node]) -> Steps[list[bytes]]:
    found = []
    for at in range(0, len(objects), PART):
        yield
        found.append(msgspec.msgpack.encode(objects[at : at + PART]))
    return found


def thaw(frozen: FrozenState) -> ClusterState:
    """Restore a frozen state."""
    found = pickle.loads(frozen.rest)
    assert isinstance(found, ClusterState)
    found.ids, found.rows, found.quota_usage.charged = pickle.loads(frozen.by_job)
    vars(found).update((name, table.unpacked()) for name, table in frozen.tables.items())
    nodes, spec_nodes = (
        [node if node.name else NO_NODE for part in parts for node in msgspec.msgpack.decode(part, type=list[Node])]
        for parts in (frozen.nodes, frozen.spec_nodes)
    )
    found.nodes += nodes  # in place: the node rows have the same list
    found.spec = msgspec.structs.replace(found.spec, nodes=tuple(spec_nodes))
    ends = accumulate(frozen.lengths)
    found.running = {
        row: frozen.pieces[end - own : end].copy()
        for row, own, end in zip(frozen.running, frozen.lengths, ends, strict=True)
    }
    found.lay_out_pieces(0)
    jobs = [job for part in frozen.jobs for job in msgspec.msgpack.decode(part, type=list[Job])]
    found.live = dict(zip(frozen.live, jobs, strict=True))
    return found


def moment_of(
    scheduler: Scheduler, past: PastJobs, now: int | None = None, zero: int = 0, trial: Job | None = None
) -> Moment:
    """Return the present moment of a scheduler (by default, and at least, the time of the last event)."""
    return at_once(moment_in_steps(scheduler, past, now, zero, trial))


def moment_in_steps(
    scheduler: Scheduler, past: PastJobs, now: int | None = None, zero: int = 0, trial: Job | None = None
) -> Steps[Moment]:
    """Like `moment_of`, but in steps. The result is the moment of the first step, whatever happens later."""
    state = scheduler.state
    profile, now = scheduler.given, max(now or 0, state.now)
    return Moment((yield from _freezing(state)), profile, 0, now, past, zero, trial)
