"""The columns: one row of integers for each node, each job, each demand and each pool.

A node row ends with three series. First, the free thousandths of each device (-1 if the node has no such device). Then
`devices + 1` counts of hosted pods: entry 0 counts pods with a share of a GPU, entry k pods with k whole GPUs. Then the
occupied MIG slices of each device, as bits. If rules among pods or exact amounts need them, *extra* columns follow, in
blocks of `EXTRA` (`kant.cluster.counters`).
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from kant.compiled import compiled, inlined, shared
from kant.model.units import FOREVER, MINUTE

Table = NDArray[np.int64]
Narrow = NDArray[np.int32]
Row = TypeVar("Row", bound=np.generic)

# --- nodes ---------------------------------------------------------------------------------------------------
STATUS = 0  # model.status.NodeStatus
POOL = 1
GPUS = 2
IDLE = 3  # completely free devices
FREE = 4  # free thousandths, all devices together
CPU_FREE = 5
MEMORY_FREE = 6
CPU = 7
MEMORY = 8
HBD = 9  # the levels of the fabric in the order of LEVELS
LEAF = 10
SPINE = 11
SUPERSPINE = 12
ISLAND = 13  # GPUs in an NVLink island
BLOCKS = 14  # GPUs in a block of devices that are close: three sizes, the narrowest first (model.node.Node)
MIG = 17  # thousandths of a memory slice if the GPUs are in MIG mode; else 0
REVISION = 18  # counts changes of the node's description and of its node sets
DEVICES = 19  # first device
EXTRA = 192
"""The extra columns in one block: more than the columns for devices, three for each of `model.node.MAX_GPUS`."""

# --- demands: what one pod of a group asks for ------------------------------------------------------------------
D_GPUS = 0
D_MILLI = 1
D_CPU = 2
D_MEMORY = 3
D_POOLS = 4  # bit p set: pool p is admitted
D_TAG = 5  # model.placement.TAG
D_ISLAND = 6  # 1: the GPUs of a pod lie in one NVLink island
D_SLICES = 7  # memory slices of a MIG instance; 0: none is asked for
D_STARTS = 8  # the slices at which that instance may begin, as bits
D_PARTS = 9  # milli-GPUs of the GPU partitions that a pod asks for, if it asks for these instead of GPUs; else 0
D_LIMITED = 10  # the first column with the bits of its node set; 0: no node set, so any node
D_COUNTED = 11  # 1 + the first row of a demand with the same rules and exact amounts; 0: no rules and amounts
D_ENTRIES = 12  # number of entries (N_*) after the first DEMAND_WIDTH columns
D_WIDE = 13  # 1: how many pods fit on a node also depends on the rows of other nodes
DEMAND_WIDTH = 14
NODES_IN_WORD = 32
"""Nodes of a set in one column of a demand row, one bit each."""
NO_DEMANDS: Table = np.zeros((0, DEMAND_WIDTH), dtype=np.int64)
"""The demands for pieces that change no counter."""

# --- pools -----------------------------------------------------------------------------------------------------
P_NODES = 0  # nodes in service that have GPUs; also cordoned ones, and draining ones until their GPUs are free
P_CAPACITY = 1  # milli-GPUs in service
P_ALLOCATED = 2  # milli-GPUs allocated on nodes in service
P_FRAGMENTED = 3  # nodes in service with some but not all of their GPUs allocated
P_FREED = 4  # how often capacity was freed: "does not fit" is valid until this changes
POOL_WIDTH = 5

# --- jobs (all times in µs) --------------------------------------------------------------------------------------
J_SUBMIT = 0
J_STATUS = 1  # model.status.JobStatus
J_QUEUE = 2
J_SHAPE = 3
J_PRIORITY = 4
J_MILLI = 5  # milli-GPUs, all pods together
J_ESTIMATE = 6  # run time that policies may use (-1: unknown)
J_REMAINING = 7  # what remained of the estimate at J_SINCE (-1: unknown)
J_SINCE = 8  # when the present wait or run began, or the job last reported progress
J_ATTAINED = 9  # time spent running, up to J_SINCE
J_WAITED = 10  # time spent waiting, up to J_SINCE
J_FIRST_START = 11  # -1: not yet
J_END = 12  # -1: not yet
J_LEVEL = 13  # level of a multi-level queue
J_RANK = 14  # position in the queue order of the last cycle, for orders that use it
J_PREEMPTIONS = 15
J_PODS = 16
J_PREEMPTIBLE = 17  # 1: the scheduler may stop the job
J_STARTED = 18  # when the job last started (-1: not yet)
J_USER = 19
J_DUE = 20  # -1: no due date
J_CHECKPOINT = 21  # time between two checkpoints (-1: the job saves nothing)
J_FAILURES = 22  # how often the job failed or timed out
J_RETURNS = 23  # returns to the queue in a row, without a preemption in between
J_BASE = 24  # row of the base job of a burst replica (-1: no burst replica)
J_PIECE = 25  # while the job runs: its first row in the table of held pieces (`StateData.pieces`)
J_PIECES = 26  # while the job runs: the number of its rows in that table
J_LIMIT = 27  # time limit of a run, counted from its start (-1: none)
JOB_WIDTH = 28
# If run times are learned (`StateData.history`), a row has three more columns:
J_KIND = 28  # number of the job's kind in `kant.cluster.history`
J_P50 = 29  # run times predicted at submission, not exceeded in 50 and 90 % of cases (-1: unknown)
J_P90 = 30
LEARNED_WIDTH = 31

# --- the log of changed nodes: entry 0 counts the changes, the rest is a ring buffer of node indices --------------


def longer(table: NDArray[Row], rows: int = 0) -> NDArray[Row]:
    """Return the table with at least double its rows, or `rows` in total.

    Rows that are not written yet take no memory.
    """
    more: NDArray[Row] = np.zeros((max(2 * len(table), rows), *table.shape[1:]), dtype=table.dtype)
    more[: len(table)] = table
    return more


def make_log(nodes: int) -> Table:
    """Return an empty log that keeps at least the last `4 * nodes` changes."""
    return np.zeros(1 + max(1 << (4 * nodes - 1).bit_length(), 64), dtype=np.int64)


@inlined
def devices_of(table: Table) -> int:
    """Return the number of device slots of a node row: the devices of the largest node."""
    return int(table.shape[1] - DEVICES - 1) % EXTRA // 3


@inlined
def extra_at(table: Table) -> int:
    """Return the first extra column of a node row; the end of the row if there are none."""
    return DEVICES + 3 * devices_of(table) + 1


@inlined
def slices_at(table: Table) -> int:
    """Return the column of the occupied MIG slices of the first device."""
    return DEVICES + 2 * devices_of(table) + 1


@inlined
def slices_of(tag: int) -> int:
    """Return the MIG slices, as bits, that a piece with this tag takes of each of its devices (`model.placement`)."""
    return -1 - tag if tag < -1 else 0


@inlined
def admits(demands: Table, d: int, pool: int, node: int) -> bool:
    """Return whether the pools and the node set (if any) of demand `d` admit this node, which is in `pool`."""
    if (demands[d, D_POOLS] >> pool) & 1 == 0:
        return False
    word = demands[d, demands[d, D_LIMITED] + node // NODES_IN_WORD] if demands[d, D_LIMITED] > 0 else -1
    return bool((word >> (node % NODES_IN_WORD)) & 1)


@inlined
def bits_in(mask: int) -> int:
    """Return the number of set bits of a mask of at most 62 devices."""
    pairs = mask - ((mask >> 1) & 0x5555555555555555)
    fours = (pairs & 0x3333333333333333) + ((pairs >> 2) & 0x3333333333333333)
    bytes_ = (fours + (fours >> 4)) & 0x0F0F0F0F0F0F0F0F
    halves = bytes_ + (bytes_ >> 8)
    halves += halves >> 16
    return int((halves + (halves >> 32)) & 0x7F)


@inlined
def planned_run(job: Table, promised: int) -> int:
    """Return the planned run time of a job, at most its time limit, µs; FOREVER: unknown.

    `promised` is J_P50 or J_P90 for the learned run time, or -1 for the estimate.
    """
    run = FOREVER
    if promised >= 0 and job[promised] >= 0:
        run = max(job[promised] - job[J_ATTAINED], MINUTE)
    elif job[J_REMAINING] >= 0:
        run = max(job[J_REMAINING], 1)
    return int(run if job[J_LIMIT] < 0 else min(run, max(job[J_LIMIT], 1)))


@inlined
def expected_end(since: int, span: int, now: int) -> int:
    """Return when a run of `span` from `since` on is expected to end, later than `now`, µs.

    A job that outlives its estimate is expected to run twice as long; the expectation doubles whenever it is exceeded.
    """
    end = since + span
    while end <= now:
        end += span
        span *= 2
    return int(min(end, FOREVER))


@inlined
def end_of_devices(table: Table, node: int) -> int:
    """Return 1 + the last device that the node has; devices before it may be lost."""
    end = devices_of(table)
    while end > 0 and table[node, DEVICES + end - 1] < 0:
        end -= 1
    return end


@inlined
def copy_row(source: Table, row: int, target: Table, into: int) -> None:
    """Copy one row. Numba takes seconds to compile a slice assignment, with its check for unequal shapes."""
    for column in range(source.shape[1]):
        target[into, column] = source[row, column]


@inlined
def note_change(log: Table, node: int) -> None:
    log[1 + log[0] % (log.shape[0] - 1)] = node
    log[0] += 1


# --- entries: the counters of a demand's pods, and their limits (`kant.cluster.counters`) -------------------
N_TOPOLOGY = 0  # extra column with the row that has the counts of a node's domain; -1: the node's own row
N_COLUMN = 1  # extra column: what is left of an amount, or minus the number of counted pods
N_EACH = 2  # by how much each pod lowers that column
N_KIND = 3  # AT_MOST, AFFINITY or SPREAD
N_LIMIT = 4
N_DOMAINS = 5  # of a spread: with fewer domains, the minimum over domains counts as 0
ENTRY_WIDTH = 6

AT_MOST = 0  # once the pods are added, the column plus N_LIMIT must be at least 0
AFFINITY = 1  # the domain has a pod of the class, or no domain has and the new pod is in it; N_LIMIT 0: no rule
SPREAD = 2  # with the pods, the domain has at most N_LIMIT more than the emptiest domain; N_LIMIT 0: no rule
NO_LIMIT = 1 << 40


@inlined
def domain_row(table: Table, node: int, topology: int) -> int:
    """Return the row that has the counts of the node's domain; -1 if the node is in no domain of the topology."""
    return node if topology < 0 else int(table[node, extra_at(table) + topology])


@inlined
def add_count(table: Table, row: int, topology: int, column: int, kind: int, pods: int) -> None:
    """Add `pods` to the count of a domain, and update the value over all domains in row 0.

    For affinity that value is the sum over all domains, for a spread the minimum.
    """
    at = extra_at(table) + column
    before = -table[row, at]
    table[row, at] -= pods
    if kind == AFFINITY:
        table[0, at + 1] += pods
    elif kind == SPREAD:
        if before + pods < table[0, at + 1]:
            table[0, at + 1] = before + pods
        elif before == table[0, at + 1]:
            table[0, at + 1] = fewest_in(table, topology, column)


@inlined
def fewest_in(table: Table, topology: int, column: int) -> int:
    """Return the number of pods in the emptiest domain of a topology; 0 if it has no domain."""
    extra, fewest = extra_at(table), NO_LIMIT
    for row in range(table.shape[0]):
        if table[row, extra + topology] == row:
            fewest = min(fewest, -table[row, extra + column])
    return int(fewest) if fewest < NO_LIMIT else 0


@shared
def count_pods(table: Table, node: int, demands: Table, d: int, pods: int) -> None:
    """Add `pods` pods of demand `d` on a node to all their counters."""
    for entry in range(demands[d, D_ENTRIES]):
        at = DEMAND_WIDTH + ENTRY_WIDTH * entry
        row = domain_row(table, node, demands[d, at + N_TOPOLOGY])
        each = demands[d, at + N_EACH]
        if row >= 0 and each > 0:
            add_count(
                table, row, demands[d, at + N_TOPOLOGY], demands[d, at + N_COLUMN], demands[d, at + N_KIND], pods * each
            )


OWN = 0  # entries that depend only on the row of the node
WIDE = 1  # entries that depend on other rows
ALL = 2
BUT_AFFINITY = 3


@inlined
def wanted_anywhere(table: Table, demands: Table, d: int) -> bool:
    """Return whether any domain has a pod of a class that the affinity of a demand requires."""
    for entry in range(demands[d, D_ENTRIES]):
        at = DEMAND_WIDTH + ENTRY_WIDTH * entry
        column = extra_at(table) + demands[d, at + N_COLUMN] + 1
        if demands[d, at + N_KIND] == AFFINITY and demands[d, at + N_LIMIT] > 0 and table[0, column] > 0:
            return True
    return False


@shared
def counted_capacity(table: Table, node: int, demands: Table, d: int, which: int) -> int:
    """Return how many pods of demand `d` fit on the node by exact amounts and affinity rules. `which` (OWN to
    BUT_AFFINITY) selects the entries. All pods are checked against the counts before any of them is placed.
    """
    pods, extra = NO_LIMIT, extra_at(table)
    for entry in range(demands[d, D_ENTRIES]):
        at = DEMAND_WIDTH + ENTRY_WIDTH * entry
        topology, kind, limit = demands[d, at + N_TOPOLOGY], demands[d, at + N_KIND], demands[d, at + N_LIMIT]
        if which == 1 - (1 if topology >= 0 else 0) or limit == (NO_LIMIT if kind == AT_MOST else 0):
            continue
        row, each = domain_row(table, node, topology), demands[d, at + N_EACH]
        if row < 0:
            if kind != AT_MOST:
                return 0
            continue
        column = extra + demands[d, at + N_COLUMN]
        left = table[row, column]
        if kind == AFFINITY:
            if left == 0 and which != BUT_AFFINITY and (each == 0 or wanted_anywhere(table, demands, d)):
                return 0
            continue
        left += limit
        if kind == SPREAD and table[0, extra + topology + 1] >= demands[d, at + N_DOMAINS]:
            left += table[0, column + 1]
        if left < 0:
            return 0
        if each > 0:
            pods = min(pods, left // each)
    return int(pods)


@inlined
def note_counts(table: Table, log: Table, node: int, demands: Table, d: int) -> None:
    """Log the rows of the other nodes whose counters include pods of demand `d` on this node."""
    for entry in range(demands[d, D_ENTRIES]):
        at = DEMAND_WIDTH + ENTRY_WIDTH * entry
        row = domain_row(table, node, demands[d, at + N_TOPOLOGY])
        if row >= 0 and row != node:
            note_change(log, row)
        if demands[d, at + N_KIND] != AT_MOST:
            note_change(log, 0)


@inlined
def fragmented(table: Table, node: int) -> int:
    """Return 1 if some but not all of the node's GPU capacity is allocated, else 0."""
    free = table[node, FREE]
    return 1 if 0 < free < table[node, GPUS] * 1000 else 0


@shared
def take_piece(table: Table, piece: Table, demands: Table) -> None:
    """Take one piece of an allocation from its node. The caller has checked that the piece is free."""
    node, mask, milli = piece[0], piece[2], piece[3]
    slots = devices_of(table)
    for device in range(slots):
        if (mask >> device) & 1:
            if table[node, DEVICES + device] == 1000:
                table[node, IDLE] -= 1
            table[node, DEVICES + device] -= milli
            table[node, FREE] -= milli
            if piece[6] < -1:
                table[node, slices_at(table) + device] |= slices_of(piece[6])
    table[node, CPU_FREE] -= piece[4]
    table[node, MEMORY_FREE] -= piece[5]
    if piece[6] >= 0:
        table[node, DEVICES + slots + piece[6]] += piece[1]
    if piece[8] > 0:
        count_pods(table, node, demands, piece[8] - 1, piece[1])


@shared
def give_piece(table: Table, piece: Table, demands: Table) -> None:
    """Return one piece of an allocation to its node."""
    node, mask, milli = piece[0], piece[2], piece[3]
    slots = devices_of(table)
    for device in range(slots):
        if (mask >> device) & 1:
            table[node, DEVICES + device] += milli
            table[node, FREE] += milli
            if table[node, DEVICES + device] == 1000:
                table[node, IDLE] += 1
            if piece[6] < -1:
                table[node, slices_at(table) + device] &= ~slices_of(piece[6])
    table[node, CPU_FREE] += piece[4]
    table[node, MEMORY_FREE] += piece[5]
    if piece[6] >= 0:
        table[node, DEVICES + slots + piece[6]] -= piece[1]
    if piece[8] > 0:
        count_pods(table, node, demands, piece[8] - 1, -piece[1])


@inlined
def note_piece(table: Table, log: Table, piece: Table, demands: Table) -> None:
    """Log the rows that a piece has changed."""
    note_change(log, piece[0])
    if piece[8] > 0:
        note_counts(table, log, piece[0], demands, piece[8] - 1)


@inlined
def can_take(table: Table, piece: Table) -> bool:
    """Return whether the piece is valid and free on its node."""
    node, mask, milli = piece[0], piece[2], piece[3]
    if node < 0 or node >= table.shape[0] or table[node, STATUS] == 2 or table[node, STATUS] == 4:
        return False
    slots = devices_of(table)
    if mask < 0 or (mask >> slots) != 0 or piece[6] > slots or not _is_one_view(table, piece):
        return False
    if piece[1] < 1 or piece[4] < 0 or piece[5] < 0 or milli < 0 or (mask > 0 and (milli == 0 or milli > 1000)):
        return False
    for device in range(slots):
        if (mask >> device) & 1 and table[node, DEVICES + device] < milli:
            return False
        if (mask >> device) & 1 and table[node, slices_at(table) + device] & slices_of(piece[6]) != 0:
            return False
    return bool(table[node, CPU_FREE] >= piece[4] and table[node, MEMORY_FREE] >= piece[5])


@inlined
def _is_one_view(table: Table, piece: Table) -> bool:
    """Return whether the piece's GPUs match the node's mode: MIG slices and their milli-GPUs, or else no slices."""
    slices, milli = slices_of(piece[6]), table[piece[0], MIG]
    if slices == 0 or milli == 0:
        return bool(slices == 0 and (milli == 0 or piece[2] == 0))
    return bool(piece[2] > 0 and slices >> (1000 // milli) == 0 and piece[3] == milli * bits_in(slices))


@inlined
def count_node(table: Table, pools: Table, node: int, sign: int) -> None:
    """Add the node to the totals of its pool (`sign` -1: remove it), unless it has failed or is drained."""
    capacity, free = table[node, GPUS] * 1000, table[node, FREE]
    if capacity == 0 or table[node, STATUS] == 2 or (table[node, STATUS] == 3 and free == capacity):
        return
    pool = table[node, POOL]
    pools[pool, P_NODES] += sign
    pools[pool, P_CAPACITY] += sign * capacity
    pools[pool, P_ALLOCATED] += sign * (capacity - free)
    pools[pool, P_FRAGMENTED] += sign * fragmented(table, node)


@compiled
def take(table: Table, log: Table, pools: Table, pieces: Table, demands: Table) -> int:
    """Take a whole allocation and return -1, or take nothing and return the index of the first piece not free."""
    for i in range(pieces.shape[0]):
        if not can_take(table, pieces[i]):
            for j in range(i - 1, -1, -1):
                _move(table, log, pools, pieces[j], demands, False)
            return i
        _move(table, log, pools, pieces[i], demands, True)
    return -1


@compiled
def give(table: Table, log: Table, pools: Table, pieces: Table, demands: Table) -> None:
    """Return a whole allocation to its nodes: capacity is freed in its pools."""
    for i in range(pieces.shape[0]):
        _move(table, log, pools, pieces[i], demands, False)
        pools[table[pieces[i, 0], POOL], P_FREED] += 1


@inlined
def _move(table: Table, log: Table, pools: Table, piece: Table, demands: Table, taking: bool) -> None:
    node = piece[0]
    count_node(table, pools, node, -1)
    if taking:
        take_piece(table, piece, demands)
    else:
        give_piece(table, piece, demands)
    count_node(table, pools, node, 1)
    note_piece(table, log, piece, demands)


@compiled
def set_status(table: Table, log: Table, pools: Table, node: int, status: int) -> None:
    """Set the status of a node, and add its GPUs to the pool's totals or remove them."""
    count_node(table, pools, node, -1)
    table[node, STATUS] = status
    count_node(table, pools, node, 1)
    note_change(log, node)


@compiled
def set_lost(table: Table, log: Table, pools: Table, node: int, devices: int, lost: int) -> None:
    """Set which devices the node has lost (`lost`, as bits). Newly lost devices must be completely free."""
    count_node(table, pools, node, -1)
    for device in range(DEVICES, DEVICES + devices):
        away = (lost >> (device - DEVICES)) & 1
        if away == (0 if table[node, device] < 0 else 1):
            sign = 1 - 2 * away
            table[node, device] = -1 if away == 1 else 1000
            table[node, GPUS] += sign
            table[node, IDLE] += sign
            table[node, FREE] += sign * 1000
    count_node(table, pools, node, 1)
    note_change(log, node)
