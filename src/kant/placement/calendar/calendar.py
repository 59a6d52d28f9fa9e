"""The Timeline: what every node is committed to from now on, and when a gang can start beside all that.

Running jobs are commitments up to their expected end, reservations from their start to their end. Backfilling asks
three things of it: the earliest start of a gang on real devices (a promise that can be kept), whether a promise still
holds, and what must be left alone now for all promises to hold. To answer for one group of identical pods is exact;
several groups are placed one after the other, as the Placer does it.

Reservations made and kept in this way for each waiting job are conservative backfilling (A. W. Mu'alem and
D. G. Feitelson, "Utilization, predictability, workloads, and user runtime estimates in scheduling the IBM SP2 with
backfilling", IEEE TPDS 12(6), 2001), for one job only EASY backfilling; on devices of nodes instead of a count.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from kant.cluster.columns import GPUS, J_SHAPE, MIG, POOL, Table, longer
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
    H_FIRST,
    H_OPENED,
    H_START,
    ONE_NODE,
    PART_WIDTH,
    SPAN_WIDTH,
    Book,
    gang_of,
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
    SOONER,
    first_candidate,
    first_sooner,
    make_way,
)
from kant.placement.calendar.no_room import NoRoom
from kant.placement.calendar.reserved import all_hold, promised
from kant.placement.calendar.store import enter, make_ring, strike
from kant.placement.topology.index import COLUMNS

BOUND_CELLS = 1 << 23
"""Most bounds kept over all slots: 670 pairs of a demand and a class of durations at 12,500 nodes, 67 MB."""

_NOTHING: Allocation = np.zeros((0, WIDTH), dtype=np.int64)
_TIGHT = np.zeros(0, dtype=np.bool_)  # no nodes of which bounds say nothing

Commitment = tuple[Allocation, int, int]
"""What is committed, from when to when (µs)."""


class Calendar:
    """Who is committed to what, when; job rows are the keys. Times are microseconds, FOREVER for an unknown end.

    `empty` says what each node has, `table` which of them are in service: it is read whenever something is asked, so
    nothing need be told when a node fails or returns; only of lost devices (`lack`). Commitments are taken as they are
    given: what contradicts another (a job that outlives its estimate) makes `holds` say no, and leaves nothing free
    where it does.
    """

    def __init__(self, empty: Table, table: Table, shapes: Shapes) -> None:
        nodes = len(empty)
        self._empty = empty
        self._table = table
        self._shapes = shapes
        self.held: dict[int, Commitment] = {}
        """What is committed, from when to when, by key."""
        self._store: Table = np.zeros((16 * nodes, COMMITMENT_WIDTH), dtype=np.int64)
        self.no_room = NoRoom(shapes)
        self._met = 0  # shapes of jobs whose gangs are in the book
        self._parts = 0  # rows of the book's parts
        self._pieces: Table = np.zeros((256, WIDTH), dtype=np.int64)
        self._asked = 0  # the time of the last call of `blocked`
        self._steps: dict[int, Table] = {}  # counts of free GPUs over time, by pools, once somebody has asked
        self._pools = 0  # of whom they were counted last for those who ask when they may start sooner
        ledgers: Table = np.zeros((nodes, LEDGER_WIDTH), dtype=np.int64)
        ledgers[:, [L_GPUS, L_POOL]] = empty[:, [GPUS, POOL]]
        demands = shapes.demands
        self._book = Book(
            empty, table, ledgers,
            used=_zeros(1), freed=make_ring(nodes), taken=make_ring(nodes), demands=demands,
            most=_zeros(len(demands)) - 1, slots=_zeros(len(demands) + 1, SIZES) - 1,
            bounds=_zeros(4, nodes), floors=_zeros(4, -(-nodes // BLOCK)), marks=_zeros(4, SLOT_WIDTH),
            entries=_zeros(nodes, ENTRY_WIDTH), heap=_zeros(nodes + 1, 2), rows=_zeros(4, empty.shape[1]),
            gangs=_zeros(16, GANG_WIDTH), parts=_zeros(16, PART_WIDTH), spans=_zeros(64, SPAN_WIDTH),
            arena=_zeros(1024, WIDTH), pieces=_zeros(1),
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
        """Commit the devices, CPU and memory of `allocation` over [start, end). A job has one commitment."""
        if key in self.held or key < 0 or not start < end <= FOREVER:
            raise StateError(f"job row {key} is committed already, or over no time: [{start}, {end})")
        self._enter(key, allocation, start, end)
        self._count(allocation, start, end, -1)

    def remove(self, key: int) -> None:
        """Take a commitment back: the job has ended, or has lost its reservation."""
        allocation, start, end = self.held.pop(key)
        self._count(allocation, start, end, 1)
        self._strike(key, allocation)

    def move(self, key: int, start: int, end: int) -> None:
        """Change when a commitment holds: a job is overdue, a reservation slides."""
        allocation, began, ended = self.held[key]
        if not start < end <= FOREVER:
            raise StateError(f"job row {key} is committed over no time: [{start}, {end})")
        self._strike(key, allocation, not start <= began < ended <= end)
        self._enter(key, allocation, start, end)
        self._count(allocation, began, ended, 1)
        self._count(allocation, start, end, -1)

    def forget(self) -> None:
        """Forget what was learned of demands: other nodes admit them now, or nodes are others than they were."""
        self._book.ledgers[:, [L_GPUS, L_POOL]] = self._empty[:, [GPUS, POOL]]
        self._steps.clear()
        self._book.most[:] = -1
        self._give_up_slots()

    def lack(self, lost: dict[int, int], now: int) -> None:
        """From `now` on the nodes lack these devices (bits by index of the node), and no others: nobody has them."""
        self._steps.clear()
        lacking = {-2 - node: devices for node, devices in lost.items()}  # keys that are no job's
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
        """Commit the GPUs of these bookings over [start, end) to nobody's job, and those of no others."""
        self._steps.clear()
        first = -2 - len(self._empty)  # keys that are no job's, and no node's
        for key in [key for key in self.held if key <= first]:
            self.remove(key)
        for place, (allocation, start, end) in enumerate(booked):
            pieces: Allocation = np.zeros((len(allocation), WIDTH), dtype=np.int64)
            pieces[:, :GROUP] = allocation[:, :GROUP]
            pieces[:, [CPU, MEMORY]] = 0  # of these its jobs say themselves what they take
            self._enter(first - place, pieces, start, end)

    def _count(self, allocation: Allocation, start: int, end: int, sign: int) -> None:
        """Follow in the counts what is committed (-1) or no longer is (1)."""
        for pools, steps in list(self._steps.items()):
            if len(steps) > 4 * len(self.held) + 64:  # most of them are over
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

    def _strike(self, key: int, allocation: Allocation, loosens: bool = True) -> None:
        strike(self._store, self._book.ledgers, self._book.freed, self._book.spans, allocation, key, loosens)

    def _room_for(self, key: int, pieces: int) -> Book:
        """The book with room for so many more pieces, and with a row for this job."""
        book = self._book
        if key >= len(book.spans):
            self._book = book = book._replace(spans=longer(book.spans, key + 1))
        used = book.pieces.item(0)
        if used + pieces > len(book.arena):  # pieces of those who have gone are given up
            held = [(key, allocation) for key, (allocation, _, _) in self.held.items() if key >= 0]
            lengths = [len(allocation) for _, allocation in held]
            ends = np.cumsum([0, *lengths])
            arena = _zeros(2 * (int(ends[-1]) + pieces) + 1024, WIDTH)
            if held:
                np.concatenate([allocation for _, allocation in held], out=arena[: ends[-1]])
            book.spans[[key for key, _ in held], H_FIRST] = ends[:-1]
            book.pieces[0] = ends[-1]
            self._book = book = book._replace(arena=arena)
        return book

    @property
    def looks(self) -> int:
        """How often searches have looked at a node, for the demands that have bounds now: what they cost."""
        return int(self._book.marks[: self._book.slots[0, 0], LOOKS].sum())

    # --- when something can start --------------------------------------------------------------------------

    def earliest(self, shape: Shape, duration: int, not_before: int) -> tuple[int, Allocation] | None:
        """The earliest start from `not_before` on at which the gang can be placed for `duration`, and where.

        None where it never can be, such as behind commitments without an end. Calls whose `not_before` does not
        go back are quick; one that does looks at every node. A gang that requires a level of the fabric is looked for
        in one domain after the other, which costs a search for each. For one that is not `reservable` none is known.
        """
        if not shape.reservable:
            return None
        duration, best = min(max(duration, 1), FOREVER), None
        book = self._met_by(shape)
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
        """The first time from `not_before` on at which as many GPUs as the gang asks for are free for `duration`.

        They are counted in its pools, wherever they are: a place for the gang need not exist then. NEVER where there
        are never so many.
        """
        duration = min(max(duration, 1), FOREVER)
        return int(first_count(self._counted(shape.pool_bits), shape.gpu_milli, duration, not_before, 0, NEVER, NEVER))

    def _counted(self, pools: int) -> Table:
        steps = self._steps.get(pools)
        if steps is None:
            steps = self._steps[pools] = count_steps(self._table, self._store, self._book.ledgers, pools)
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
            self._make_slots()
        if shape.numbers[0]:
            pieces[:, GROUP] = shape.numbers[0]
        return (int(start), pieces) if start < NEVER else None

    def _earliest_of_groups(
        self, shape: Shape, duration: int, now: int, column: int, domain: int
    ) -> tuple[int, Allocation] | None:
        """Where the gang cannot be placed at some moment, the next that is tried is when the group that failed would
        fit beside the others, did they stay where they were placed. Where it never would, the gang must wait for the
        end of more commitments: halving finds of how many.
        """
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
        trial = high  # the last first: if it does not fit then, it never does
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
        """The gang placed at `start`; or nothing, and when to try next (NEVER: nobody knows)."""
        gang = gang_of(shape.index)
        while True:
            later, pieces, self._store = place_gang(
                self._book, self._store, gang, duration, now, start, column, domain, _TIGHT
            )
            if later != FULL:
                return int(later), pieces
            self._make_slots()

    # --- reservations that move ----------------------------------------------------------------------------

    def make_way(
        self, reserved: Table, row: int, shape: Shape, duration: int, start: int, now: int
    ) -> tuple[Allocation, list[int]] | None:
        """A place for a job at `start`, which is not before `now`, and whose reservations have moved for it.

        `reserved` has those that may, if they begin no earlier: job rows, and the indices of their shapes (-1: it stays
        where it is). They still start when they did. None where there is no such place: then nothing has moved. Else
        what the job held is off the calendar.
        """
        duration, moves = min(max(duration, 1), FOREVER), self._moves(reserved)
        self._meet()
        while True:
            book = self._room_to_move(moves, row)
            made, pieces, self._store = make_way(
                book, self._store, moves, row, gang_of(shape.index), duration, start, now
            )
            if made != FULL:
                return None if made == NEVER else (pieces, self._take_in(moves, row))
            self._make_slots()

    def first_sooner(
        self, rows: Table, at: int, told: Table, by: int, jobs: Table, promised: int, given: int,
        reserved: Table | None, attempts: Table, now: int, opened: int,
    ) -> tuple[int, bool, tuple[int, Allocation] | None, list[int]]:  # fmt: skip
        """As the kernel says (moves.py): where the job stands; whether it keeps what it holds, and is to be told that
        it waits; from when it could have another place, and which; and who has moved for that."""
        self._meet()
        moves = self._moves(reserved)
        while True:
            book = self._room_to_move(moves, len(jobs) - 1)
            steps = self._counted(self._pools) if self._pools and len(moves) else _NOTHING
            at, what, start, pieces, self._store = first_sooner(
                book, self._store, rows, at, told, by, jobs, promised, given, steps, self._pools, moves, attempts,
                now, opened,
            )  # fmt: skip
            if what == ELSEWHERE:
                self._pools = book.gangs.item(gang_of(jobs.item(rows.item(at), J_SHAPE)), G_POOLS)
            elif what == FULL:
                self._make_slots()
            else:
                break
        found = (int(start), pieces) if what in (SOONER, MADE_WAY) else None
        return at, what == KEPT, found, self._take_in(moves, rows.item(at)) if what == MADE_WAY else []

    def first_candidate(
        self, rows: Table, at: int, told: Table, by: int, jobs: Table, promised: int, stamp: int, lowest: int,
        reserved: Table | None, now: int,
    ) -> tuple[int, Allocation | None, list[int]]:  # fmt: skip
        """As the kernel says (moves.py): where the job stands; its place and who has moved, if others have made way."""
        self._meet()
        self.no_room.meet()
        moves = self._moves(reserved)
        while True:
            book = self._room_to_move(moves, len(jobs) - 1)
            at, what, pieces, self._store = first_candidate(
                book, self._store, rows, at, told, by, jobs, promised, self.no_room.table, stamp, self.no_room.now,
                lowest, moves, reserved is not None, now,
            )  # fmt: skip
            if what != FULL:
                break
            self._make_slots()
        return (at, pieces, self._take_in(moves, rows.item(at))) if what == MADE_WAY else (at, None, [])

    def ask_again(self, rows: list[int]) -> None:
        """Forget what was asked in vain of these jobs."""
        spans = self._book.spans
        if rows and max(rows) < len(spans):
            spans[rows, H_OPENED] = 0
        elif rows:
            spans[:, H_OPENED] = 0

    def _moves(self, reserved: Table | None) -> Table:
        """The reservations that may move, in the order of their starts (columns M_*)."""
        rows = _zeros(0, 2) if reserved is None else reserved
        if len(rows) > 1:
            rows = rows[np.lexsort((rows[:, 0], self._book.spans[rows[:, 0], H_START]))]
        moves = _zeros(len(rows), MOVE_WIDTH)
        if len(rows):
            moves[:, :2] = rows
            moves[:, M_GANG] *= 2  # `gang_of` of jobs' shapes
        return moves

    def _room_to_move(self, moves: Table, row: int) -> Book:
        pods = int(self._book.gangs[moves[:, M_GANG], G_PODS].sum()) if len(moves) else 0
        return self._room_for(row, pods)

    def _take_in(self, moves: Table, row: int) -> list[int]:
        """Reservations have other devices, and the job has lost its own."""
        book, moved = self._book, moves[moves[:, M_CHANGED] == 1].tolist()
        if row in self.held:
            self._count(*self.held.pop(row), 1)
        for other, _, _, first, count in moved:
            old, start, end = self.held[other]
            self.held[other] = book.arena[first : first + count].copy(), start, end
            self._count(old, start, end, 1)
            self._count(*self.held[other], -1)
        return [other for other, *_ in moved]

    # --- what the book knows of shapes ---------------------------------------------------------------------

    def _meet(self) -> None:
        """The book has the gangs of all jobs."""
        shapes = self._shapes.shapes
        for shape in shapes[self._met :]:
            self._met_by(shape)
        self._met = len(shapes)
        if self._book.demands is not self._shapes.demands:
            self._follow_demands()

    def _met_by(self, shape: Shape) -> Book:
        """The book once it has this gang."""
        gang, count = gang_of(shape.index), len(shape.parts)
        if self._book.demands is not self._shapes.demands:
            self._follow_demands()
        if gang >= len(self._book.gangs):
            self._book = self._book._replace(gangs=longer(self._book.gangs, gang + 1))
        if self._book.gangs[gang, G_FIRST] or not shape.reservable:
            return self._book
        first = self._parts = self._parts + 1
        self._parts += count
        if self._parts + 1 > len(self._book.parts):
            self._book = self._book._replace(parts=longer(self._book.parts, self._parts + 1))
        column = ANYWHERE
        if shape.required:
            column = COLUMNS[shape.level - 1] if shape.level else ONE_NODE
        self._book.gangs[gang] = (
            first, count, column, shape.gpu_milli, shape.pool_bits, shape.pods, bool(shape.ceiling)
        )  # fmt: skip
        self._book.parts[first : first + count] = [
            (*part, number) for part, number in zip(shape.parts, shape.numbers, strict=True)
        ]
        return self._book

    def _follow_demands(self) -> None:
        """The table of demands is another one, with more of them."""
        book, demands = self._book, self._shapes.demands
        most, slots = np.full(len(demands), -1, dtype=np.int64), np.full((len(demands) + 1, SIZES), -1, dtype=np.int64)
        most[: len(book.most)], slots[: len(book.slots)] = book.most, book.slots
        self._book = book._replace(demands=demands, most=most, slots=slots)

    def _give_up_slots(self) -> None:
        slots, bounds = self._book.slots, self._book.bounds
        slots[:] = -1
        slots[0, :2] = 0, 2 * bounds.size <= BOUND_CELLS

    def _make_slots(self) -> None:
        """There is room for twice as many slots."""
        book = self._book
        bounds, floors, marks = longer(book.bounds), longer(book.floors), longer(book.marks)
        book.slots[0, 1] = 2 * bounds.size <= BOUND_CELLS
        self._book = book._replace(bounds=bounds, floors=floors, marks=marks)

    # --- what is promised ----------------------------------------------------------------------------------

    def holds(self, key: int) -> bool:
        """Whether reservation `key` still fits beside all other commitments, on nodes that are in service."""
        allocation, start, end = self.held[key]
        book = self._book
        demands = self._shapes.demands
        return bool(
            all_hold(self._empty, self._table, self._store, book.ledgers, allocation, start, end, demands, book.rows)
        )

    def blocked(self, now: int, until: int) -> Allocation:
        """What is free now on nodes in service, but promised to a commitment that starts in (now, until).

        Once this is taken, what is free is free throughout [now, until). Its pieces (TAG -1, PODS 1) can be taken,
        all together, from a node table on which exactly the commitments of now are taken.
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


def _zeros(*shape: int) -> Table:
    return np.zeros(shape, dtype=np.int64)
