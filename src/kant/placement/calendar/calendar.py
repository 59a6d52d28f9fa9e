"""The calendar: the present and future commitments of every node, and when a gang can start around them.

Running jobs are commitments up to their expected end, reservations from their start to their end. Backfilling asks for
the earliest start of a gang on real devices (a reservation that can be kept), whether a reservation still holds, and
which capacity must stay free now so that all reservations hold. For one group of identical pods the answer is exact;
several groups are placed one after the other, as the Placer does.

Reservations made and kept in this way for each waiting job are conservative backfilling (A. W. Mu'alem and D. G.
Feitelson, "Utilization, predictability, workloads, and user runtime estimates in scheduling the IBM SP2 with
backfilling", IEEE TPDS 12(6), 2001). For one job only, they are EASY backfilling. Kant reserves devices, not counts.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from kant.cluster.columns import GPUS, J_SHAPE, MIG, POOL, Narrow, Table, longer
from kant.cluster.shapes import Shape, Shapes
from kant.model.errors import StateError
from kant.model.placement import CPU, GROUP, MASK, MEMORY, WIDTH, Allocation
from kant.model.units import FOREVER, GPU
from kant.placement.calendar.book import (
    ANYWHERE,
    FULL,
    G_COLUMN,
    G_FIRST,
    G_PODS,
    G_POOLS,
    GANG_WIDTH,
    H_END,
    H_FIRST,
    H_OPENED,
    H_START,
    ONE_NODE,
    PART_WIDTH,
    SPAN_WIDTH,
    Book,
    gang_of,
    rows_of,
    zeros,
)
from kant.placement.calendar.commitments import COMMITMENT_WIDTH, L_CHANGE, L_GPUS, L_POOL, LEDGER_WIDTH, NEVER
from kant.placement.calendar.counted import count_again, count_steps, first_count
from kant.placement.calendar.earliest_start import ENTRY_WIDTH, find_earliest
from kant.placement.calendar.gangs import place_gang
from kant.placement.calendar.lower_bounds import BLOCK, LOOKS, SIZES, SLOT_WIDTH
from kant.placement.calendar.moves import (
    ELSEWHERE,
    KEPT,
    M_CHANGED,
    M_GANG,
    MADE_WAY,
    MOVE_WIDTH,
    NOWHERE,
    SOONER,
    first_candidate,
    first_sooner,
    make_way,
)
from kant.placement.calendar.no_room import NoRoom
from kant.placement.calendar.reserved import all_hold, promised
from kant.placement.calendar.store import enter, make_ring, strike

BOUND_CELLS = 1 << 23
"""Maximum number of bounds over all slots: 670 pairs of a demand and a duration class at 12,500 nodes, 67 MB."""

_NOTHING: Allocation = zeros(0, WIDTH)
_TIGHT = np.zeros(0, dtype=np.bool_)  # all nodes have valid bounds

Commitment = tuple[Allocation, int, int]
"""The allocation that is committed, and the start and end of the commitment (µs)."""


class Calendar:
    """Which job has which devices when; job rows are the keys. Times are microseconds, FOREVER: unknown end.

    `empty` has the capacity of each node, `table` the nodes in service. `table` is read on every query, so no call is
    needed when a node fails or returns, except for lost devices (`lack`). Commitments are accepted as given. If they
    contradict each other (a job outlives its estimate), `holds` returns False, and their devices are not free.
    """

    def __init__(self, empty: Table, table: Table, shapes: Shapes) -> None:
        nodes = len(empty)
        self._empty = empty
        self._table = table
        self._shapes = shapes
        self.held: dict[int, Commitment] = {}
        """The commitments, by key."""
        self._store: Table = zeros(16 * nodes, COMMITMENT_WIDTH)
        self.no_room = NoRoom(shapes)
        self._met = 0  # number of shapes of jobs whose gangs are in the book
        self._parts = 0  # number of rows of the book's parts
        self._pieces: Table = np.zeros((256, WIDTH), dtype=np.int64)
        self._asked = 0  # the `now` of the last call of `blocked`
        self._steps: dict[int, Table] = {}  # free GPUs over time, by pools, computed on first use
        self._pools = 0  # the pools last counted for `first_sooner`
        ledgers: Table = np.zeros((nodes, LEDGER_WIDTH), dtype=np.int64)
        ledgers[:, [L_GPUS, L_POOL]] = empty[:, [GPUS, POOL]]
        demands = shapes.demands
        self._book = Book(
            empty, table, ledgers,
            used=zeros(1), freed=make_ring(nodes), taken=make_ring(nodes), demands=demands,
            most=zeros(len(demands)) - 1, slots=zeros(len(demands) + 1, SIZES) - 1,
            bounds=zeros(4, nodes), floors=zeros(4, -(-nodes // BLOCK)), marks=zeros(4, SLOT_WIDTH),
            entries=zeros(nodes, ENTRY_WIDTH), heap=zeros(nodes + 1, 2), rows=zeros(4, empty.shape[1]),
            gangs=zeros(16, GANG_WIDTH), parts=zeros(16, PART_WIDTH), spans=zeros(64, SPAN_WIDTH),
            arena=zeros(1024, WIDTH), pieces=zeros(1),
        )  # fmt: skip
        self._give_up_slots()

    # --- what is committed ---------------------------------------------------------------------------------

    def __contains__(self, key: object) -> bool:
        return key in self.held

    def __len__(self) -> int:
        return len(self.held)

    def allocation_of(self, key: int) -> Allocation:
        return self.held[key][0]

    def start_of(self, key: int) -> int:
        return self.held[key][1]

    def expected_end(self, key: int) -> int:
        return self.held[key][2]

    def add(self, key: int, allocation: Allocation, start: int, end: int) -> None:
        """Commit the devices, CPU and memory of `allocation` over [start, end). A job has at most one commitment."""
        if key in self.held or key < 0 or not start < end <= FOREVER:
            raise StateError(f"job row {key} is committed already, or the time range is empty: [{start}, {end})")
        self._enter(key, allocation, start, end)
        self._count(allocation, start, end, -1)

    def remove(self, key: int) -> None:
        """Remove a commitment: the job has ended, or has lost its reservation."""
        allocation, start, end = self.held.pop(key)
        self._count(allocation, start, end, 1)
        self._strike(key, allocation)

    def move(self, key: int, start: int, end: int) -> None:
        """Change the span of a commitment: a job is overdue, or a reservation is postponed."""
        allocation, began, ended = self.held[key]
        if not start < end <= FOREVER:
            raise StateError(f"job row {key}: the time range of its commitment is empty: [{start}, {end})")
        self._strike(key, allocation, not start <= began < ended <= end)
        self._enter(key, allocation, start, end)
        self._count(allocation, began, ended, 1)
        self._count(allocation, start, end, -1)

    def forget(self) -> None:
        """Drop what was derived from demands, after changes to the nodes or to which nodes admit the demands."""
        self._book.ledgers[:, [L_GPUS, L_POOL]] = self._empty[:, [GPUS, POOL]]
        self._steps.clear()
        self._book.most[:] = -1
        self._give_up_slots()

    def lack(self, lost: dict[int, int], now: int) -> None:
        """From `now` on, mark exactly these devices as lost (bits by index of the node)."""
        self._steps.clear()
        lacking = {-2 - node: devices for node, devices in lost.items()}  # keys of no job
        lost_keys = [key for key in self.held if -2 - len(self._empty) < key < 0]
        for key in [key for key in lost_keys if lacking.get(key) != self.held[key][0][0, MASK]]:
            self.remove(key)
        for key, devices in lacking.items():
            if key not in self.held:
                milli = int(self._empty[-2 - key, MIG])
                slices = (1 << GPU // milli) - 1 if milli else 0
                pieces: Allocation = np.array([[-2 - key, 1, devices, GPU, 0, 0, -1 - slices, 0, 0]], dtype=np.int64)
                self._enter(key, pieces, now, FOREVER)

    def book(self, booked: Iterable[tuple[Allocation, int, int]]) -> None:
        """Commit the GPUs of exactly these bookings over [start, end), with keys that no job has."""
        self._steps.clear()
        first = -2 - len(self._empty)  # keys of no job and no node
        for key in [key for key in self.held if key <= first]:
            self.remove(key)
        for place, (allocation, start, end) in enumerate(booked):
            pieces: Allocation = np.zeros((len(allocation), WIDTH), dtype=np.int64)
            pieces[:, :GROUP] = allocation[:, :GROUP]
            pieces[:, [CPU, MEMORY]] = 0  # the jobs of the booking count CPU and memory themselves
            self._enter(first - place, pieces, start, end)

    def _count(self, allocation: Allocation, start: int, end: int, sign: int) -> None:
        """Update the counts for a commitment that is added (`sign` -1) or removed (1)."""
        for pools, steps in list(self._steps.items()):
            if len(steps) > 4 * len(self.held) + 64:  # most of the steps are of ended commitments
                del self._steps[pools]
            else:
                ledgers = self._book.ledgers
                self._steps[pools] = count_again(self._table, ledgers, pools, steps, allocation, start, end, sign)

    def _enter(self, key: int, allocation: Allocation, start: int, end: int) -> None:
        book = self._room_for(key, len(allocation))
        self._store = enter(
            self._store, book.used, book.ledgers, book.taken, book.spans, book.arena, book.pieces, allocation, key,
            start, end,
        )  # fmt: skip
        self.held[key] = (allocation, start, end)

    def _strike(self, key: int, allocation: Allocation, logs: bool = True) -> None:
        strike(self._store, self._book.ledgers, self._book.freed, self._book.spans, allocation, key, logs)

    def _room_for(self, key: int, pieces: int) -> Book:
        """Return the book with room for `pieces` more pieces, and with a row for this job."""
        book = self._book
        if key >= len(book.spans):
            self._book = book = book._replace(spans=longer(book.spans, key + 1))
        used = book.pieces.item(0)
        if used + pieces > len(book.arena):  # drop stale pieces
            held = [(key, allocation) for key, (allocation, _, _) in self.held.items() if key >= 0]
            lengths = [len(allocation) for _, allocation in held]
            ends = np.cumsum([0, *lengths])
            arena = zeros(2 * (int(ends[-1]) + pieces) + 1024, WIDTH)
            if held:
                np.concatenate([allocation for _, allocation in held], out=arena[: ends[-1]])
            book.spans[[key for key, _ in held], H_FIRST] = ends[:-1]
            book.pieces[0] = ends[-1]
            self._book = book = book._replace(arena=arena)
        return book

    def tables(self, jobs: int, more: int) -> tuple[Book, Table, Table, Table]:
        """Return the book with room for `jobs` jobs and `more` pieces, the store, `no_room.table`, and scratch rows."""
        self.no_room.meet()
        self._meet_all()
        return self._room_for(jobs, more), self._store, self.no_room.table, self._pieces

    def follow(self, store: Table, held: dict[int, Allocation], now: int) -> None:
        """Record what compiled code planned up to `now`: what jobs hold (`held`), over the spans in the book."""
        spans = self._book.spans[list(held), H_START : H_END + 1].tolist()
        lost = {key: one for key, one in self.held.items() if key < 0}
        self.held = lost | {row: (held[row], *span) for row, span in zip(held, spans, strict=True)}
        self._store, self._asked = store, now
        self._steps.clear()

    @property
    def looks(self) -> int:
        """How often searches have looked at a node, for the demands that have bounds now: a measure of their cost."""
        return int(self._book.marks[: self._book.slots[0, 0], LOOKS].sum())

    # --- when something can start --------------------------------------------------------------------------

    def earliest(self, shape: Shape, duration: int, not_before: int) -> tuple[int, Allocation] | None:
        """Find the earliest start from `not_before` on at which the gang can be placed for `duration`, and where.

        None if there is no such start, for example after commitments without an end, or if the gang is not
        `reservable`. Calls are quick while `not_before` does not decrease. For a gang that requires a level of the
        fabric each domain is searched in turn.
        """
        if not shape.reservable:
            return None
        duration, best, book = min(max(duration, 1), FOREVER), None, self._met_by(shape)
        column, domains = book.gangs.item(gang_of(shape.index), G_COLUMN), 1
        if column != ANYWHERE:
            domains = len(self._empty) if column == ONE_NODE else int(self._table[:, column].max(initial=-1)) + 1
        for domain in range(domains):
            search = self._earliest_of_groups if len(shape.parts) > 1 else self._earliest_of_group
            found = search(shape, duration, not_before, column, domain)
            if found is not None and (best is None or found[0] < best[0]):
                best = found
            if best is not None and best[0] == not_before:
                break
        return best

    def least_start(self, shape: Shape, duration: int, not_before: int) -> int:
        """Return when, from `not_before` on, the gang's pools first have enough free GPUs for `duration`; or NEVER."""
        duration = min(max(duration, 1), FOREVER)
        return int(first_count(self._counted(shape.pool_bits), shape.gpu_milli, duration, not_before, 0, NEVER, NEVER))

    def _counted(self, pools: int) -> Table:
        steps = self._steps.get(pools)
        if steps is None:
            steps = self._steps[pools] = count_steps(self._table, self._store, self._book.ledgers, pools, 0)
        return steps

    def _earliest_of_group(
        self, shape: Shape, duration: int, now: int, column: int, domain: int
    ) -> tuple[int, Allocation] | None:
        pods, demand = shape.parts[0]
        while True:
            start, pieces = find_earliest(
                self._book, self._store, demand, pods, duration, now, now, column, domain, NEVER, _NOTHING, -1, 0, 0
            )
            if start != FULL:
                break
            self.make_slots()
        if shape.numbers[0]:
            pieces[:, GROUP] = shape.numbers[0]
        return (int(start), pieces) if start < NEVER else None

    def _earliest_of_groups(
        self, shape: Shape, duration: int, now: int, column: int, domain: int
    ) -> tuple[int, Allocation] | None:
        """Return the earliest start of a gang of several groups, with its devices; None: never. If one group has no
        place at a time, the next time to try is when it fits beside the others. If that never happens, more
        commitments have to end first: bisection finds how many."""
        start = now
        while start < NEVER:
            later, pieces = self._at(shape, duration, now, start, column, domain)
            if len(pieces):
                return start, pieces
            if later == NEVER:
                break
            start = later
        ends = sorted({end for _, _, end in self.held.values() if start < end < FOREVER})
        found, low, high = None, 0, len(ends) - 1
        trial = high  # try the last end first: if the gang does not fit then, it never does
        while low <= high:
            _, pieces = self._at(shape, duration, now, ends[trial], column, domain)
            if len(pieces):
                found = ends[trial], pieces
                high = trial - 1
            elif found is None:
                break
            else:
                low = trial + 1
            trial = (low + high) // 2
        return found

    def _at(
        self, shape: Shape, duration: int, now: int, start: int, column: int, domain: int
    ) -> tuple[int, Allocation]:
        """Place the gang at `start`; or return no pieces, and when to try next (NEVER: unknown)."""
        gang = gang_of(shape.index)
        while True:
            later, pieces, self._store = place_gang(
                self._book, self._store, gang, duration, now, start, column, domain, _TIGHT
            )
            if later != FULL:
                return int(later), pieces
            self.make_slots()

    # --- reservations that move ----------------------------------------------------------------------------

    def make_way(
        self, reserved: Table, row: int, shape: Shape, duration: int, start: int, now: int
    ) -> tuple[Allocation, list[int]] | None:
        """Find devices for a job at `start`, not before `now`, and move other reservations to free them.

        `reserved` has job rows and the indices of their shapes (-1: may not move). Reservations from `start` on may
        move, but keep their times. Returns None, and moves nothing, if that fails; else removes the job's reservation.
        """
        duration, moves = min(max(duration, 1), FOREVER), self._moves(reserved, row)
        while True:
            made, pieces, self._store = make_way(
                self._book, self._store, moves, row, gang_of(shape.index), duration, start, now
            )
            if made != FULL:
                return None if made in (NEVER, NOWHERE) else (pieces, self._take_in(moves, row))
            self.make_slots()

    def first_sooner(
        self, rows: Table, at: int, recorded: Narrow, by: int, jobs: Table, promised: int, given: int,
        reserved: Table | None, attempts: Table, now: int, opened: int,
    ) -> tuple[int, bool, tuple[int, Allocation] | None, list[int]]:  # fmt: skip
        """Call `first_sooner` (moves.py). Returns the job's position, whether it keeps its reservation, the earlier
        start and its pieces, if any, and the jobs whose reservations moved.
        """
        moves = self._moves(reserved, len(jobs) - 1)
        while True:
            steps = self._counted(self._pools) if self._pools and len(moves) else _NOTHING
            at, what, start, pieces, self._store = first_sooner(
                self._book, self._store, rows, at, recorded, by, jobs, promised, given, steps, self._pools, moves,
                attempts, now, opened,
            )  # fmt: skip
            if what == ELSEWHERE:
                self._pools = self._book.gangs.item(gang_of(jobs.item(rows.item(at), J_SHAPE)), G_POOLS)
            elif what == FULL:
                self.make_slots()
            else:
                break
        found = (int(start), pieces) if what in (SOONER, MADE_WAY) else None
        return at, what == KEPT, found, self._take_in(moves, rows.item(at)) if what == MADE_WAY else []

    def first_candidate(
        self, rows: Table, at: int, recorded: Narrow, by: int, jobs: Table, promised: int, stamp: int, lowest: int,
        reserved: Table | None, now: int,
    ) -> tuple[int, Allocation | None, list[int]]:  # fmt: skip
        """Call `first_candidate` (moves.py). Returns the job's position; if others moved, its pieces and these jobs."""
        self.no_room.meet()
        moves = self._moves(reserved, len(jobs) - 1)
        while True:
            at, what, pieces, self._store = first_candidate(
                self._book, self._store, rows, at, recorded, by, jobs, promised, self.no_room.table, stamp,
                self.no_room.now, lowest, moves, reserved is not None, now,
            )  # fmt: skip
            if what != FULL:
                break
            self.make_slots()
        return (at, pieces, self._take_in(moves, rows.item(at))) if what == MADE_WAY else (at, None, [])

    def ask_again(self, rows: list[int]) -> None:
        """Forget that earlier searches found no earlier start for these jobs."""
        spans = self._book.spans
        if rows and max(rows) < len(spans):
            spans[rows, H_OPENED] = 0
        elif rows:
            spans[:, H_OPENED] = 0

    def _moves(self, reserved: Table | None, row: int) -> Table:
        """Return the reservations that may move, by start (columns M_*). Makes room for their pieces and for jobs up to
        `row`, and adds the gangs of all jobs to the book."""
        self._meet_all()
        rows = zeros(0, 2) if reserved is None else reserved
        if len(rows) > 1:
            rows = rows[np.lexsort((rows[:, 0], self._book.spans[rows[:, 0], H_START]))]
        moves = zeros(len(rows), MOVE_WIDTH)
        if len(rows):
            moves[:, :2] = rows
            moves[:, M_GANG] *= 2  # `gang_of` of jobs' shapes
        self._room_for(row, int(self._book.gangs[moves[:, M_GANG], G_PODS].sum()))
        return moves

    def _meet_all(self) -> None:
        """Add the gangs of all jobs to the book."""
        shapes = self._shapes.shapes
        for shape in shapes[self._met :]:
            self._met_by(shape)
        self._met = len(shapes)
        if self._book.demands is not self._shapes.demands:
            self._follow_demands()

    def _take_in(self, moves: Table, row: int) -> list[int]:
        """Record the new devices of moved reservations, and remove the job's own reservation."""
        book, moved = self._book, moves[moves[:, M_CHANGED] == 1].tolist()
        if row in self.held:
            self._count(*self.held.pop(row), 1)
        for other, _, _, first, count in moved:
            old, start, end = self.held[other]
            self.held[other] = book.arena[first : first + count].copy(), start, end
            self._count(old, start, end, 1)
            self._count(*self.held[other], -1)
        return [other for other, *_ in moved]

    # --- shapes in the book --------------------------------------------------------------------------------

    def _met_by(self, shape: Shape) -> Book:
        """Return the book after adding this gang to it."""
        gang = gang_of(shape.index)
        if self._book.demands is not self._shapes.demands:
            self._follow_demands()
        if gang >= len(self._book.gangs):
            self._book = self._book._replace(gangs=longer(self._book.gangs, gang + 1))
        if self._book.gangs[gang, G_FIRST] or not shape.reservable:
            return self._book
        first, count = self._parts + 1, len(shape.parts)
        self._parts += count
        if self._parts >= len(self._book.parts):
            self._book = self._book._replace(parts=longer(self._book.parts, self._parts + 1))
        self._book.gangs[gang], self._book.parts[first : first + count] = rows_of(shape, first)
        return self._book

    def _follow_demands(self) -> None:
        """Use the new table of demands, after it has been replaced by a larger one."""
        book, demands = self._book, self._shapes.demands
        most, slots = np.full(len(demands), -1, dtype=np.int64), np.full((len(demands) + 1, SIZES), -1, dtype=np.int64)
        most[: len(book.most)], slots[: len(book.slots)] = book.most, book.slots
        self._book = book._replace(demands=demands, most=most, slots=slots)

    def _give_up_slots(self) -> None:
        self._book.slots[:] = -1
        self._book.slots[0, :2] = 0, 2 * self._book.bounds.size <= BOUND_CELLS

    def make_slots(self) -> None:
        """Double the number of slots."""
        book = self._book
        bounds, floors, marks = longer(book.bounds), longer(book.floors), longer(book.marks)
        book.slots[0, 1] = 2 * bounds.size <= BOUND_CELLS
        self._book = book._replace(bounds=bounds, floors=floors, marks=marks)

    # --- whether reservations hold ---------------------------------------------------------------------------

    def holds(self, key: int) -> bool:
        """Return whether reservation `key` still fits with all other commitments, on nodes in service."""
        allocation, start, end = self.held[key]
        book = self._book
        demands = self._shapes.demands
        return bool(
            all_hold(self._empty, self._table, self._store, book.ledgers, allocation, start, end, demands, book.rows)
        )

    def blocked(self, now: int, until: int) -> Allocation:
        """Return what is free now on nodes in service, but reserved for a commitment that starts in (now, until).

        Once this is taken, all capacity that is still free stays free throughout [now, until). The pieces (TAG -1,
        PODS 1) can be taken, all together, from a node table on which exactly the current commitments are taken.
        """
        if now < self._asked:
            self._book.ledgers[:, L_CHANGE] = -1
        self._asked = now
        while True:
            used = promised(
                self._empty, self._table, self._store, self._book.ledgers, now, until, self._shapes.demands,
                self._book.rows, self._pieces,
            )  # fmt: skip
            if used >= 0:
                return self._pieces[:used].copy()
            self._pieces = np.zeros((2 * len(self._pieces), WIDTH), dtype=np.int64)
