"""Snapshot: the nodes as a cycle sees them, copied only if they changed. Trial: what-if changes to a snapshot."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager

import numpy as np

from kant.cluster import columns as c
from kant.cluster.columns import Table
from kant.cluster.shapes import Shape
from kant.cluster.state import ClusterState
from kant.compiled import compiled
from kant.model.errors import StateError
from kant.model.placement import NODE, Allocation
from kant.model.status import NodeStatus

NO_TYPICAL_PODS: Table = np.zeros((0, 5), dtype=np.int64)


@compiled
def copy_changed(source: Table, source_log: Table, seen: int, target: Table, target_log: Table, tried: int) -> None:
    """Make `target` equal to `source`; check only the rows logged since `seen` and `tried` in the two logs.

    A row that differs is copied and logged in `target_log`, so that caches by demand recompute it.
    """
    ring, target_ring = source_log.shape[0] - 1, target_log.shape[0] - 1
    end = target_log[0]
    # Each node gets at most one new entry in `target_log`, and may not overwrite an entry that has not been read.
    overrun = source_log[0] - seen > ring or end - tried + source.shape[0] > target_ring
    first = source.shape[0] if overrun else source_log[0] - seen
    for k in range(first + (0 if overrun else end - tried)):
        if overrun:
            node = k
        elif k < first:
            node = source_log[1 + (seen + k) % ring]
        else:
            node = target_log[1 + (tried + k - first) % target_ring]
        for column in range(source.shape[1]):
            if target[node, column] != source[node, column]:
                c.copy_row(source, node, target, node)
                c.note_change(target_log, node)
                break


@compiled
def move(table: Table, log: Table, pieces: Table, demands: Table, taking: bool) -> None:
    """Take an allocation that is known to be free, or give it back."""
    for i in range(pieces.shape[0]):
        if taking:
            c.take_piece(table, pieces[i], demands)
        else:
            c.give_piece(table, pieces[i], demands)
        c.note_piece(table, log, pieces[i], demands)


@compiled
def set_statuses(table: Table, log: Table, nodes: Table, status: int) -> None:
    """Set the status of these nodes."""
    for node in nodes:
        table[node, c.STATUS] = status
        c.note_change(log, node)


Move = tuple[bool, Allocation, str]
"""Whether a trial took (True) or gave back an allocation, the allocation, and the affinity group of its job."""


class Snapshot:
    """The node table of a `ClusterState` at the start of a cycle.

    The job columns are read from the state itself, because they do not change between two events. `table` also has what
    the cycle's Trial has done so far; `refresh` undoes that.
    """

    def __init__(self, state: ClusterState) -> None:
        self.state = state
        self.now = state.now
        self.previous = 0  # time of the cycle before this one
        self.table = state.table.copy()
        self._empty = False
        self._layout = state.layout
        self.log = c.make_log(len(state.table))
        self.seen = int(state.log[0])
        self.tried = 0

    def of_empty_cluster(self) -> Snapshot:
        """Return the cluster with nothing taken and every node in service, including nodes that have left."""
        empty = Snapshot(self.state)
        empty.table = self.state.with_left.copy()
        empty._empty = True
        return empty

    @property
    def typical_pods(self) -> Table:
        """The typical pods. For an empty cluster only those given by an event, since its results must not change."""
        state = self.state
        return NO_TYPICAL_PODS if self._empty and state.given_pods is None else state.typical_pods

    def refresh(self, now: int) -> None:
        """Copy the present state. Takes time linear in the nodes that the state or a trial changed since the last call.

        Raises StateError if the table has been rebuilt: a new snapshot and a new placer are then needed.
        """
        self.now = now
        state = self.state
        if state.layout != self._layout:
            raise StateError("the snapshot is older than the last rebuild of the table; expected a new snapshot")
        source = state.log
        if source[0] != self.seen or self.log[0] != self.tried:
            truth = state.with_left if self._empty else state.table
            copy_changed(truth, source, self.seen, self.table, self.log, self.tried)
            self.seen = int(source[0])
            self.tried = int(self.log[0])


class Trial:
    """What-if changes on a snapshot: give back, take, and roll back to a checkpoint."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.table = snapshot.table
        self.log = snapshot.log
        self.state = snapshot.state
        self._done: list[Move] = []
        self.cycles = 0  # how often `begin` was called

    def checkpoint(self) -> int:
        """Return a mark for `rollback`."""
        return len(self._done)

    def rollback(self, mark: int) -> None:
        """Undo everything since `mark`."""
        while len(self._done) > mark:
            taking, allocation, _ = self._done.pop()
            move(self.table, self.log, allocation, self.state.shapes.demands, not taking)

    def cut(self, mark: int) -> list[Move]:
        """Undo everything since `mark`, and return it for `redo`."""
        done = self._done[mark:]
        self.rollback(mark)
        return done

    def redo(self, done: Iterable[Move]) -> None:
        """Repeat moves that `cut` has undone."""
        for taking, allocation, group in done:
            move(self.table, self.log, allocation, self.state.shapes.demands, taking)
            self._done.append((taking, allocation, group))

    def moves(self) -> Iterator[tuple[bool, Allocation]]:
        """Return what was taken (True) and given back (False) so far and has not been undone."""
        return ((taking, allocation) for taking, allocation, _ in self._done)

    def begin(self) -> None:
        """Forget the trials of earlier cycles. Call this once the snapshot has been refreshed."""
        self._done.clear()
        self.cycles += 1

    def evict(self, allocation: Allocation) -> None:
        """Free the devices of a running job."""
        move(self.table, self.log, allocation, self.state.shapes.demands, False)
        self._done.append((False, allocation, ""))

    def restore(self, allocation: Allocation, group: str = "") -> None:
        """Take exactly `allocation`, which the caller knows to be free, for a job of this affinity group."""
        move(self.table, self.log, allocation, self.state.shapes.demands, True)
        self._done.append((True, allocation, group))

    @contextmanager
    def without(self, nodes: tuple[int, ...]) -> Iterator[None]:
        """Keep new pods off these nodes while the context lasts."""
        closed = [node for node in nodes if self.table[node, c.STATUS] == NodeStatus.IN_SERVICE]
        for status in (NodeStatus.CORDONED, NodeStatus.IN_SERVICE):
            for node in closed:
                self.table[node, c.STATUS] = status.value
                c.note_change(self.log, node)
            if status == NodeStatus.CORDONED:
                yield

    @contextmanager
    def within(self, nodes: Collection[int]) -> Iterator[None]:
        """Allow new pods only on these nodes while the context lasts."""
        closed = self.table[:, c.STATUS] == NodeStatus.IN_SERVICE
        closed[list(nodes)] = False
        rows = np.flatnonzero(closed)
        set_statuses(self.table, self.log, rows, NodeStatus.CORDONED.value)
        try:
            yield
        finally:
            set_statuses(self.table, self.log, rows, NodeStatus.IN_SERVICE.value)

    def placed(self, allocation: Allocation, group: str = "") -> None:
        """Record a placement that the engine has already taken from the table."""
        self._done.append((True, allocation, group))

    def held_by(self, group: str) -> list[Allocation]:
        """Return what the jobs of an affinity group hold after the changes of the trial.

        An evicted job is recognised by its own allocation object. Giving back a combined allocation of several jobs
        evicts none.
        """
        running = self.state.running
        known = {id(running[row]): running[row] for row in self.state.affinity_members.get(group, ())}
        there = dict.fromkeys(known)
        for taking, allocation, whose in self._done:
            if whose == group:
                known[id(allocation)] = allocation
            if id(allocation) in known:
                if taking:
                    there[id(allocation)] = None
                else:
                    there.pop(id(allocation), None)
        return [known[key] for key in there]

    def keeps_apart(self, shape: Shape, allocation: Allocation) -> bool:
        """Return False if `shape` must keep apart from its affinity group and `allocation` shares a domain with it."""
        affinity = shape.affinity
        if affinity is None or not affinity.apart_required or not affinity.group:
            return True
        own = self._domains(affinity.apart, allocation)
        others = (held for held in self.held_by(affinity.group) if held is not allocation)
        return all(own.isdisjoint(self._domains(affinity.apart, held)) for held in others)

    def _domains(self, level: int, allocation: Allocation) -> set[int]:
        nodes = allocation[:, NODE]
        return set((self.table[nodes, c.HBD + level - 1] if level else nodes).tolist())

    def is_free(self, allocation: Allocation) -> bool:
        """Return whether all pieces of `allocation` are free."""
        return bool(all_free(self.table, allocation, self.state.shapes.demands))


@compiled
def all_free(table: Table, pieces: Table, demands: Table) -> bool:
    """Return whether all pieces of one gang are free, taken one after the other, and no rule among pods forbids them.

    A gang has at most one piece with a given device.
    """
    for i in range(pieces.shape[0]):
        free = c.can_take(table, pieces[i])
        if free and pieces[i, 8] > 0:
            free = c.counted_capacity(table, pieces[i, 0], demands, pieces[i, 8] - 1, 2) >= pieces[i, 1]
        if not free:
            for j in range(i):
                c.give_piece(table, pieces[j], demands)
            return False
        c.take_piece(table, pieces[i], demands)
    for i in range(pieces.shape[0]):
        c.give_piece(table, pieces[i], demands)
    return True
