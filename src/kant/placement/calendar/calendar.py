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

from kant.cluster.columns import GPUS, MIG, POOL, STATUS, Table
from kant.cluster.shapes import Shape, Shapes
from kant.model.errors import StateError
from kant.model.placement import CPU, GROUP, MASK, MEMORY, MILLI, NODE, WIDTH, Allocation
from kant.model.units import FOREVER, GPU
from kant.placement.calendar.commitments import (
    COMMITMENT_WIDTH,
    L_CHANGE,
    L_COUNT,
    L_GPUS,
    L_POOL,
    LEDGER_WIDTH,
    NEVER,
    most_pods,
)
from kant.placement.calendar.counted import count_again, count_steps, first_count
from kant.placement.calendar.earliest_start import ENTRY_WIDTH, find_earliest
from kant.placement.calendar.lower_bounds import BLOCK, FREED, LOOKS, SLOT_WIDTH
from kant.placement.calendar.reserved import all_hold, promised
from kant.placement.calendar.store import commit, make_ring, release, resettle
from kant.placement.group_order import PLACED, place_groups
from kant.placement.topology.index import one_domain_each

BOUND_CELLS = 1 << 23
"""Most bounds kept over all slots: 670 pairs of a demand and a class of durations at 12,500 nodes, 67 MB."""

_NOTHING: Allocation = np.zeros((0, WIDTH), dtype=np.int64)
_TRIED = -1  # key of what `earliest` enters to try the groups of a gang one after the other


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
        self._lifted: dict[int, Commitment] | None = None
        self._ledgers: Table = np.zeros((nodes, LEDGER_WIDTH), dtype=np.int64)
        self._ledgers[:, [L_GPUS, L_POOL]] = empty[:, [GPUS, POOL]]
        self._store: Table = np.zeros((16 * nodes, COMMITMENT_WIDTH), dtype=np.int64)
        self._used = np.zeros(1, dtype=np.int64)  # rows of the store
        self._freed = make_ring(nodes)
        self._taken = make_ring(nodes)
        self._most: dict[int, int] = {}
        self._slot_of: dict[tuple[int, int], int] = {}
        self._allot(4)
        self._entries: Table = np.zeros((nodes, ENTRY_WIDTH), dtype=np.int64)
        self._heap: Table = np.zeros((nodes + 1, 2), dtype=np.int64)
        self._rows: Table = np.zeros((4, empty.shape[1]), dtype=np.int64)
        self._pieces: Table = np.zeros((256, WIDTH), dtype=np.int64)
        self._asked = 0  # the time of the last call of `blocked`
        self._steps: dict[int, Table] = {}  # counts of free GPUs over time, by pools, once somebody has asked

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
        self.held[key] = (allocation, start, end)
        self._count(allocation, start, end, -1)

    def remove(self, key: int) -> None:
        """Take a commitment back: the job has ended, or has lost its reservation."""
        allocation, start, end = self.held.pop(key)
        self._count(allocation, start, end, 1)
        release(self._store, self._ledgers, self._freed, allocation, key, True)

    def lift(self, commitments: dict[int, Commitment]) -> None:
        """Take these off, to try others in their place. Free GPUs are not counted again until `settle`."""
        self._lifted = commitments
        for key, (allocation, _, _) in commitments.items():
            del self.held[key]
            release(self._store, self._ledgers, self._freed, allocation, key, True)

    def settle(self, back: bool = False) -> None:
        """What was lifted is gone, or entered anew by now; or goes `back` where it was, where nothing else is new."""
        lifted, self._lifted = self._lifted or {}, None
        for key, (allocation, start, end) in lifted.items():
            if back:
                self._enter(key, allocation, start, end)
                self.held[key] = (allocation, start, end)
                continue
            now = self.held.get(key)
            if now is None or now[0] is not allocation:
                self._count(allocation, start, end, 1)
                if now is not None:
                    self._count(*now, -1)

    def move(self, key: int, start: int, end: int) -> None:
        """Change when a commitment holds: a job is overdue, a reservation slides."""
        allocation, began, ended = self.held[key]
        if not start < end <= FOREVER:
            raise StateError(f"job row {key} is committed over no time: [{start}, {end})")
        release(self._store, self._ledgers, self._freed, allocation, key, not start <= began < ended <= end)
        self._enter(key, allocation, start, end)
        self.held[key] = (allocation, start, end)
        self._count(allocation, began, ended, 1)
        self._count(allocation, start, end, -1)

    def forget(self) -> None:
        """Forget what was learned of demands: other nodes admit them now, or nodes are others than they were."""
        self._ledgers[:, [L_GPUS, L_POOL]] = self._empty[:, [GPUS, POOL]]
        self._steps.clear()
        self._most.clear()
        self._slot_of.clear()

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
                self.held[key] = (pieces, now, FOREVER)

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
            self.held[first - place] = (pieces, start, end)

    def _count(self, allocation: Allocation, start: int, end: int, sign: int) -> None:
        """Follow in the counts what is committed (-1) or no longer is (1)."""
        for pools, steps in list(self._steps.items()) if self._lifted is None else ():
            if len(steps) > 4 * len(self.held) + 64:  # most of them are over
                del self._steps[pools]
            else:
                self._steps[pools] = count_again(self._table, self._ledgers, pools, steps, allocation, start, end, sign)

    def _enter(self, key: int, allocation: Allocation, start: int, end: int) -> None:
        entered = 0
        while True:
            entered = commit(self._store, self._used, self._ledgers, self._taken, allocation, entered, key, start, end)
            if entered == len(allocation):
                return
            # What ledgers left behind as they moved is given up; every ledger gets room to double.
            rows = int(np.maximum(2 * self._ledgers[:, L_COUNT], 4).sum())
            store: Table = np.zeros((2 * rows + 64, COMMITMENT_WIDTH), dtype=np.int64)
            self._used[0] = resettle(self._store, self._ledgers, store)
            self._store = store

    @property
    def looks(self) -> int:
        """How often searches have looked at a node, for the demands that have bounds now: what they cost."""
        return int(self._marks[: len(self._slot_of), LOOKS].sum())

    # --- when something can start --------------------------------------------------------------------------

    def earliest(self, shape: Shape, duration: int, not_before: int) -> tuple[int, Allocation] | None:
        """The earliest start from `not_before` on at which the gang can be placed for `duration`, and where.

        None where it never can be, such as behind commitments without an end. Calls whose `not_before` does not
        go back are quick; one that does looks at every node. A gang that requires a level of the fabric is looked for
        in one domain after the other, which costs a search for each. For one that is not `reservable` none is known.
        """
        if not shape.reservable:
            return None
        duration = min(max(duration, 1), FOREVER)
        table, best = self._table, None
        try:
            for domain in self._tables(shape):
                self._table = domain
                found = self._earliest(shape, duration, not_before)
                if found is not None and (best is None or found[0] < best[0]):
                    best = found
                if best is not None and best[0] == not_before:
                    break
        finally:
            self._table = table
        return best

    def place_at(self, shape: Shape, duration: int, start: int, now: int) -> Allocation | None:
        """Where the gang can be placed at `start`, which is not before `now`, for `duration`; None where it cannot."""
        if not shape.reservable:
            return None
        duration, table = min(max(duration, 1), FOREVER), self._table
        try:
            for domain in self._tables(shape):
                self._table = domain
                pieces: Allocation | None
                if len(shape.parts) > 1:
                    pieces = self._at(shape, duration, now, start)[1]
                else:
                    possible, pieces = self._earliest_of_group(*shape.parts[0], duration, now, start)
                    if shape.numbers[0]:
                        pieces[:, GROUP] = shape.numbers[0]
                    pieces = pieces if possible == start else None
                if pieces is not None:
                    return pieces
        finally:
            self._table = table
        return None

    def _tables(self, shape: Shape) -> Iterable[Table]:
        """The node table; for a gang that requires one domain, once for each domain, with only its nodes in service."""
        # Bounds do not depend on which nodes are in service, so they stay true.
        return one_domain_each(self._table, shape.level) if shape.required else (self._table,)

    def least_start(self, shape: Shape, duration: int, not_before: int, key: int = -1) -> int:
        """The first time from `not_before` on at which as many GPUs as the gang asks for are free for `duration`.

        They are counted in its pools, wherever they are: a place for the gang need not exist then. NEVER where there
        are never so many. With `key` as if that reservation were not there.
        """
        steps = self._steps.get(shape.pool_bits)
        if steps is None:
            steps = self._steps[shape.pool_bits] = count_steps(self._table, self._store, self._ledgers, shape.pool_bits)
        own, began, ended = 0, NEVER, NEVER
        if key >= 0:
            pieces, began, ended = self.held[key]
            serving = self._table[pieces[:, NODE], STATUS] == 0
            own = sum(piece[MILLI] * piece[MASK].bit_count() for piece in pieces[serving].tolist())
        duration = min(max(duration, 1), FOREVER)
        return int(first_count(steps, shape.gpu_milli, duration, not_before, own, began, ended))

    def _earliest(self, shape: Shape, duration: int, not_before: int) -> tuple[int, Allocation] | None:
        if len(shape.parts) > 1:
            return self._earliest_of_groups(shape, duration, not_before)
        start, pieces = self._earliest_of_group(*shape.parts[0], duration, not_before, not_before)
        if shape.numbers[0]:
            pieces[:, GROUP] = shape.numbers[0]
        return (start, pieces) if start < NEVER else None

    def sooner(self, key: int, shape: Shape, duration: int, not_before: int) -> tuple[int, Allocation] | None:
        """What `earliest` would find before the start of reservation `key`, were it not there.

        For gangs of one group that require no level of the fabric.
        """
        duration = min(max(duration, 1), FOREVER)
        (group,) = shape.parts
        start, pieces = self._earliest_of_group(*group, duration, not_before, not_before, key)
        return (start, pieces) if start < NEVER else None

    def _earliest_of_group(
        self, pods: int, demand: int, duration: int, now: int, not_before: int, key: int = -1
    ) -> tuple[int, Allocation]:
        demands = self._shapes.demands
        most = self._most.get(demand, -1)
        if most < 0:
            most = self._most[demand] = int(most_pods(self._empty, demands, demand))
        if most * len(self._empty) < pods:
            return NEVER, _NOTHING
        least = 1 << (duration.bit_length() - 1)  # classes by powers of two: finer ones would have to learn more
        slot = self._slot(demand, least)
        own, began, ended = self.held[key] if key >= 0 else (_NOTHING, NEVER, NEVER)
        start, pieces = find_earliest(
            self._empty, self._table, self._store, self._ledgers, self._freed, self._taken, demands, demand, pods,
            min(most, pods), duration, least, now, not_before, self._bounds, self._floors, self._marks, slot,
            self._entries, self._heap, self._rows, own, key, began, ended,
        )  # fmt: skip
        return int(start), pieces

    def _earliest_of_groups(self, shape: Shape, duration: int, now: int) -> tuple[int, Allocation] | None:
        """Where the gang cannot be placed at some moment, the next that is tried is when the group that failed would
        fit beside the others, did they stay where they were placed. Where it never would, the gang must wait for the
        end of more commitments: halving finds of how many.
        """
        start = now
        while start < NEVER:
            later, pieces = self._at(shape, duration, now, start)
            if pieces is not None:
                return start, pieces
            if later == NEVER:
                break
            start = later
        ends = sorted({end for _, _, end in self.held.values() if start < end < FOREVER})
        found, low, high = None, 0, len(ends) - 1
        trial = high  # the last first: if it does not fit then, it never does
        while low <= high:
            _, pieces = self._at(shape, duration, now, ends[trial])
            if pieces is not None:
                found = ends[trial], pieces
                high = trial - 1
            elif found is None:
                break
            else:
                low = trial + 1
            trial = (low + high) // 2
        return found

    def _at(self, shape: Shape, duration: int, now: int, start: int) -> tuple[int, Allocation | None]:
        """The gang placed at `start`; or nothing, and when to try next (NEVER: nobody knows)."""
        later: list[int] = []
        placed: list[Allocation] = []

        def attempt(order: list[int]) -> int:
            failed, possible, pieces = self._in_order(shape, order, duration, now, start)
            if pieces is None:
                if failed == order[0]:  # it does not fit alone either
                    later.clear()
                later.append(possible)
                return failed
            placed.append(pieces)
            return PLACED

        if place_groups(len(shape.parts), attempt):
            return start, placed[0]
        return min(later), None

    def _in_order(
        self, shape: Shape, order: list[int], duration: int, now: int, start: int
    ) -> tuple[int, int, Allocation | None]:
        """The groups placed at `start` in the order given, or which of them fails, and when it would fit instead."""
        placed: list[Allocation] = []
        try:
            for group in order:
                possible, pieces = self._earliest_of_group(*shape.parts[group], duration, now, start)
                if possible > start:
                    return group, possible, None
                pieces[:, GROUP] = shape.numbers[group]
                self._enter(_TRIED, pieces, start, FOREVER)  # else the next could always wait for its end
                placed.append(pieces)
        finally:
            for pieces in placed:
                release(self._store, self._ledgers, self._freed, pieces, _TRIED, True)
        return -1, start, np.concatenate(placed)

    def _slot(self, demand: int, least: int) -> int:
        """The slot of bounds of a demand and a class of durations. When there are too many, all are given up."""
        slot = self._slot_of.get((demand, least))
        if slot is not None:
            return slot
        slot = len(self._slot_of)
        if slot == len(self._bounds):
            if 2 * slot * len(self._empty) <= BOUND_CELLS:
                bounds, floors, marks = self._bounds, self._floors, self._marks
                self._allot(2 * slot)
                self._bounds[:slot], self._floors[:slot], self._marks[:slot] = bounds, floors, marks
            else:
                self._slot_of.clear()
                slot = 0
        # What does not start earlier for a shorter duration does not for a longer one.
        shorter = max((other for kind, other in self._slot_of if kind == demand and other < least), default=-1)
        if shorter < 0:
            self._marks[slot, FREED] = -1
        else:
            known = self._slot_of[demand, shorter]
            self._bounds[slot], self._floors[slot] = self._bounds[known], self._floors[known]
            self._marks[slot] = self._marks[known]
        self._marks[slot, LOOKS] = 0
        self._slot_of[demand, least] = slot
        return slot

    def _allot(self, slots: int) -> None:
        self._bounds: Table = np.zeros((slots, len(self._empty)), dtype=np.int64)
        self._floors: Table = np.zeros((slots, -(-len(self._empty) // BLOCK)), dtype=np.int64)
        self._marks: Table = np.full((slots, SLOT_WIDTH), -1, dtype=np.int64)

    # --- what is promised ----------------------------------------------------------------------------------

    def holds(self, key: int) -> bool:
        """Whether reservation `key` still fits beside all other commitments, on nodes that are in service."""
        allocation, start, end = self.held[key]
        return bool(
            all_hold(
                self._empty,
                self._table,
                self._store,
                self._ledgers,
                allocation,
                start,
                end,
                self._shapes.demands,
                self._rows,
            )
        )

    def blocked(self, now: int, until: int) -> Allocation:
        """What is free now on nodes in service, but promised to a commitment that starts in (now, until).

        Once this is taken, what is free is free throughout [now, until). Its pieces (TAG -1, PODS 1) can be taken,
        all together, from a node table on which exactly the commitments of now are taken.
        """
        if now < self._asked:
            self._ledgers[:, L_CHANGE] = -1
        self._asked = now
        while True:
            used = promised(
                self._empty, self._table, self._store, self._ledgers, now, until, self._shapes.demands, self._rows,
                self._pieces,
            )  # fmt: skip
            if used >= 0:
                return self._pieces[:used].copy()
            self._pieces = np.zeros((2 * len(self._pieces), WIDTH), dtype=np.int64)
