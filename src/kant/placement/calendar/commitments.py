"""Commitments: which devices, CPU and memory of each node are committed to which job and when, and what remains free.

A commitment is a piece (row) of an allocation over the time span [start, end), in microseconds. Each node has a ledger:
its commitments contiguous in one store, ordered by end. The free capacity of a node *throughout* a window is its
capacity less the peak of its commitments in that window: successive commitments do not add up. A whole device is free
only if no job holds any part of it at any time in the window.
"""

from __future__ import annotations

from kant.cluster import columns as c
from kant.cluster.columns import Table
from kant.compiled import compiled, inlined
from kant.model.units import FOREVER
from kant.placement.devices import pods_in_islands, span
from kant.placement.fits import amounts_capacity, capacity, in_one_island

# --- commitments: rows of the store -------------------------------------------------------------------------------
C_START = 0
C_END = 1  # FOREVER: unknown
C_MASK = 2  # devices, as bits
C_MILLI = 3  # of each device
C_CPU = 4
C_MEMORY = 5
C_KEY = 6  # the job
C_SLICES = 7  # MIG slices of each of the devices, as bits
C_COUNTED = 8  # COUNTED of the piece (`kant.model.placement`)
C_PODS = 9
COMMITMENT_WIDTH = 10

# --- ledgers: one row a node --------------------------------------------------------------------------------------
L_FIRST = 0  # row of the store where the node's commitments begin
L_COUNT = 1
L_ROOM = 2  # rows of the store reserved for the node; if more are needed, its commitments move to other rows
L_CHANGE = 3  # L_RISE is valid until this time; -1: it must be computed
L_RISE = 4  # first time at which more GPUs, CPU or memory are committed than now
L_GPUS = 5  # of the node; kept here so that a check of a node touches little memory
L_POOL = 6
LEDGER_WIDTH = 8  # one cache line

NEVER = FOREVER
"""The start of a gang that never fits. No commitment ends then, so no job can start then."""


@inlined
def committed_at(store: Table, first: int, last: int, time: int, demands: Table, rows: Table, into: int) -> None:
    """Write what the commitments in store[first:last] use at `time` to row `into`, in the columns of a node row."""
    slots, slices = c.devices_of(rows), c.slices_at(rows)
    for column in range(c.extra_at(rows), rows.shape[1]):
        rows[into, column] = 0
    rows[into, c.CPU_FREE] = 0
    rows[into, c.MEMORY_FREE] = 0
    for device in range(slots):
        rows[into, c.DEVICES + device] = 0
        rows[into, slices + device] = 0
    for row in range(first, last):
        if store[row, C_START] <= time < store[row, C_END]:
            rows[into, c.CPU_FREE] += store[row, C_CPU]
            rows[into, c.MEMORY_FREE] += store[row, C_MEMORY]
            for entry in range(demands[store[row, C_COUNTED] - 1, c.D_ENTRIES] if store[row, C_COUNTED] > 0 else 0):
                at, d = c.DEMAND_WIDTH + c.ENTRY_WIDTH * entry, store[row, C_COUNTED] - 1
                if demands[d, at + c.N_TOPOLOGY] < 0:
                    rows[into, c.extra_at(rows) + demands[d, at + c.N_COLUMN]] += (
                        store[row, C_PODS] * demands[d, at + c.N_EACH]
                    )
            for device in range(slots):
                if (store[row, C_MASK] >> device) & 1:
                    rows[into, c.DEVICES + device] += store[row, C_MILLI]
                    rows[into, slices + device] |= store[row, C_SLICES]


@inlined
def free_throughout(
    empty: Table, store: Table, ledgers: Table, node: int, start: int, until: int, demands: Table, rows: Table,
    into: int,
) -> None:  # fmt: skip
    """Write to row `into` the free capacity of a node throughout [start, until), as the row of a node in service.

    Free amounts are negative if commitments contradict each other. The row before `into` is scratch. The peak is at
    `start` or at the begin of a commitment.
    """
    slots = c.devices_of(rows)
    first = ledgers[node, L_FIRST]
    last = first + ledgers[node, L_COUNT]
    for column in range(rows.shape[1]):
        rows[into, column] = empty[node, column]
    for row in range(first - 1, last):
        time = start if row < first else store[row, C_START]
        if row >= first and (time <= start or time >= until or store[row, C_END] <= start):
            continue
        committed_at(store, first, last, time, demands, rows, into - 1)
        for column in range(c.extra_at(rows), rows.shape[1]):
            rows[into, column] = min(rows[into, column], empty[node, column] - rows[into - 1, column])
        for column in (c.CPU_FREE, c.MEMORY_FREE):
            rows[into, column] = min(rows[into, column], empty[node, column] - rows[into - 1, column])
        for column in range(c.DEVICES, c.DEVICES + slots):
            rows[into, column] = min(rows[into, column], empty[node, column] - rows[into - 1, column])
        for column in range(c.slices_at(rows), c.slices_at(rows) + slots):
            rows[into, column] |= rows[into - 1, column]
    if empty[node, c.MIG] > 0:  # a slice held at any time is not free, so slices add up
        for device in range(empty[node, c.GPUS]):
            held = c.bits_in(rows[into, c.slices_at(rows) + device])
            rows[into, c.DEVICES + device] = 1000 - held * empty[node, c.MIG]
    rows[into, c.IDLE] = 0
    rows[into, c.FREE] = 0
    for column in range(c.DEVICES, c.DEVICES + empty[node, c.GPUS]):
        rows[into, c.IDLE] += 1 if rows[into, column] == 1000 else 0
        rows[into, c.FREE] += max(rows[into, column], 0)


@inlined
def mask_throughout(store: Table, ledgers: Table, node: int, start: int, until: int) -> int:
    """Return as bits the devices of which a commitment uses some part at some time in [start, until)."""
    mask = 0
    first = ledgers[node, L_FIRST]
    for row in range(first + ledgers[node, L_COUNT] - 1, first - 1, -1):
        if store[row, C_END] <= start:
            break
        if store[row, C_START] < until:
            mask |= store[row, C_MASK]
    return mask


@inlined
def freed_by(store: Table, ledgers: Table, node: int, start: int) -> tuple[int, int]:
    """Return the last end of a node's commitments up to `start` (0: none), and the devices of these commitments."""
    last = mask = 0
    first = ledgers[node, L_FIRST]
    for row in range(first, first + ledgers[node, L_COUNT]):
        if store[row, C_END] > start:
            break
        if store[row, C_START] < start:  # otherwise the commitment is `HIDDEN`
            last = store[row, C_END]
            mask |= store[row, C_MASK]
    return int(last), int(mask)


@inlined
def _reaches(free: int, amount: int, pods: int) -> bool:
    """Return whether `pods` pods of this amount fit in what is free (the product could exceed 64 bits)."""
    return amount == 0 or free // amount >= pods


@inlined
def _counts_reach(
    empty: Table, store: Table, ledgers: Table, node: int, demands: Table, d: int, pods: int, start: int, until: int
) -> bool:
    """Return whether rules and exact amounts allow `pods` pods on the node, counting all commitments of the window."""
    first = ledgers[node, L_FIRST]
    for entry in range(demands[d, c.D_ENTRIES]):
        at = c.DEMAND_WIDTH + c.ENTRY_WIDTH * entry
        if demands[d, at + c.N_TOPOLOGY] >= 0 or demands[d, at + c.N_LIMIT] == c.NO_LIMIT:
            continue
        column = demands[d, at + c.N_COLUMN]
        left = empty[node, c.extra_at(empty) + column] + demands[d, at + c.N_LIMIT] - pods * demands[d, at + c.N_EACH]
        for row in range(first, first + ledgers[node, L_COUNT]):
            if store[row, C_END] > start and store[row, C_START] < until and store[row, C_COUNTED] > 0:
                left -= store[row, C_PODS] * counts_in(demands, store[row, C_COUNTED] - 1, column)
        if left < 0:
            return False
    return True


@inlined
def counts_in(demands: Table, d: int, column: int) -> int:
    """Return by how much each pod of a demand lowers a column of its own node."""
    for entry in range(demands[d, c.D_ENTRIES]):
        at = c.DEMAND_WIDTH + c.ENTRY_WIDTH * entry
        if demands[d, at + c.N_TOPOLOGY] < 0 and demands[d, at + c.N_COLUMN] == column:
            return int(demands[d, at + c.N_EACH])
    return 0


@inlined
def pods_throughout(
    empty: Table, store: Table, ledgers: Table, node: int, demands: Table, d: int, most: int, start: int, until: int,
    rows: Table,
) -> int:  # fmt: skip
    """Return how many pods of demand `d`, up to `most`, the node takes throughout [start, until) if in service."""
    gpus = demands[d, c.D_GPUS]
    pods = most
    if gpus == 0 or demands[d, c.D_MILLI] == 1000:
        if gpus > 0:
            held = mask_throughout(store, ledgers, node, start, until)
            if in_one_island(empty, node, demands, d):
                idle = span(0, ledgers[node, L_GPUS]) & ~held
                pods = min(pods, pods_in_islands(empty, node, idle, gpus))
            else:
                pods = min(pods, (ledgers[node, L_GPUS] - c.bits_in(held)) // gpus)
        counted = demands[d, c.D_ENTRIES] > 0
        if pods == 0 or (demands[d, c.D_CPU] == 0 and demands[d, c.D_MEMORY] == 0 and not counted):
            return int(pods)
        cpu = memory = 0  # summed up, which is never less than the peak
        first = ledgers[node, L_FIRST]
        for row in range(first, first + ledgers[node, L_COUNT]):
            if store[row, C_END] > start and store[row, C_START] < until:
                cpu += store[row, C_CPU]
                memory += store[row, C_MEMORY]
        enough = _reaches(empty[node, c.CPU] - cpu, demands[d, c.D_CPU], pods) and _reaches(
            empty[node, c.MEMORY] - memory, demands[d, c.D_MEMORY], pods
        )
        if enough and (not counted or _counts_reach(empty, store, ledgers, node, demands, d, pods, start, until)):
            return int(pods)
    free_throughout(empty, store, ledgers, node, start, until, demands, rows, 1)
    pods = min(amounts_capacity(rows, 1, demands, d, node), pods)
    if demands[d, c.D_ENTRIES] > 0 and pods > 0:
        pods = min(c.counted_capacity(rows, 1, demands, d, c.OWN), pods)
    return int(pods)


@inlined
def next_end(store: Table, ledgers: Table, node: int, time: int) -> int:
    """Return the first end of a commitment of the node after `time`; NEVER if there is none."""
    first = ledgers[node, L_FIRST]
    for row in range(first, first + ledgers[node, L_COUNT]):
        if store[row, C_END] > time:
            return int(store[row, C_END])
    return NEVER


@inlined
def wait_for_devices(store: Table, ledgers: Table, node: int, devices: int, time: int, duration: int) -> int:
    """Return the earliest start from `time` on at which `devices` devices are idle for `duration`; NEVER: none."""
    first = ledgers[node, L_FIRST]
    spare = ledgers[node, L_GPUS] - devices
    row = first + ledgers[node, L_COUNT] - 1
    mask = 0
    while row >= first and store[row, C_END] > time:
        if store[row, C_START] < time + duration:
            mask |= store[row, C_MASK]
            if c.bits_in(mask) > spare:
                # The commitments seen so far end no earlier than this one, so they block every start until then.
                time = store[row, C_END]
                row = first + ledgers[node, L_COUNT]
                mask = 0
        row -= 1
    return int(time) if spare >= 0 else NEVER


@inlined
def first_start(
    empty: Table, store: Table, ledgers: Table, node: int, demands: Table, d: int, pods: int, time: int, duration: int,
    rows: Table,
) -> int:  # fmt: skip
    """Return the earliest start from `time` on at which `pods` pods fit on the node for `duration`; or NEVER."""
    whole = demands[d, c.D_GPUS] > 0 and demands[d, c.D_MILLI] == 1000
    while True:
        if whole:
            time = wait_for_devices(store, ledgers, node, pods * demands[d, c.D_GPUS], time, duration)
        if time >= NEVER:
            return NEVER
        devices_alone = (
            whole and demands[d, c.D_CPU] == 0 and demands[d, c.D_MEMORY] == 0 and demands[d, c.D_ENTRIES] == 0
        )
        if devices_alone and not in_one_island(empty, node, demands, d):
            return int(time)
        if pods_throughout(empty, store, ledgers, node, demands, d, pods, time, time + duration, rows) >= pods:
            return int(time)
        time = next_end(store, ledgers, node, time)


@compiled
def most_pods(empty: Table, demands: Table, d: int) -> int:
    """Return how many pods of demand `d` fit on the empty node that fits the most."""
    most = 0
    for node in range(empty.shape[0]):
        most = max(most, capacity(empty, node, demands, d))
    return most
