"""The quotas of a tree of queues as integer tables: what each slot may use, and what it uses.

A slot is one key at one queue (`cluster/quota_limits.py`). `cluster/quota_tree.py` says what the columns mean.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kant.cluster.columns import Table
from kant.compiled import compiled, inlined
from kant.model.units import FOREVER

# Limits of a slot.
Q_QUOTA, Q_GUARANTEED, Q_LIMIT, Q_CEILING, Q_PART, Q_UP = range(6)
"""Q_PART: the part of the nominal quota for the queue's own jobs. Q_UP: the slot of the parent; -1 at a root."""
LIMIT_WIDTH = 6

# Usage of a slot.
U_USAGE, U_OWN = range(2)  # U_USAGE: own jobs plus the use of queues below beyond guaranteed parts; U_OWN: own jobs
USED_WIDTH = 2

NO_QUOTAS: Table = np.zeros((0, LIMIT_WIDTH), dtype=np.int64)
"""The limits, and also the usage, if there is no tree of quotas."""


@compiled
def charge(limits: Table, used: Table, slot: int, amount: int) -> None:
    """Charge `amount` to a slot, and the part beyond the slot's guaranteed part to the slots above."""
    used[slot, U_OWN] += amount
    while slot >= 0 and amount > 0:
        before = used[slot, U_USAGE]
        used[slot, U_USAGE] += amount
        amount -= max(0, limits[slot, Q_GUARANTEED] - before)
        slot = limits[slot, Q_UP]


@compiled
def refund(limits: Table, used: Table, slot: int, amount: int) -> None:
    """Undo a charge of `amount`."""
    used[slot, U_OWN] -= amount
    while slot >= 0 and amount > 0:
        beyond = used[slot, U_USAGE] - limits[slot, Q_GUARANTEED]
        used[slot, U_USAGE] -= amount
        amount = min(amount, max(0, beyond))
        slot = limits[slot, Q_UP]


@compiled
def is_short(limits: Table, used: Table, slot: int, amount: int) -> bool:
    """Return whether a limit of the slot, or of one above, keeps a job from taking `amount`.

    Only the limits of slots whose usage would grow are checked; overuse elsewhere is ignored.
    """
    while slot >= 0 and amount > 0:
        before = used[slot, U_USAGE]
        if before + amount > limits[slot, Q_LIMIT]:
            return True
        amount -= max(0, limits[slot, Q_GUARANTEED] - before)
        slot = limits[slot, Q_UP]
    return False


@compiled
def binding(limits: Table, used: Table, slot: int) -> tuple[int, int]:
    """Return how much more may be charged to the slot (negative if overused), and the nearest slot that limits it."""
    depth, above = 0, limits[slot, Q_UP]
    while above >= 0:
        depth, above = depth + 1, limits[above, Q_UP]
    available, binds = FOREVER, -1
    for steps in range(depth, -1, -1):  # from the root down
        here = slot
        for _ in range(steps):
            here = limits[here, Q_UP]
        free = limits[here, Q_GUARANTEED] - used[here, U_USAGE]
        if free > 0 and steps < depth:
            available = free + max(0, available)
        room = limits[here, Q_LIMIT] - used[here, U_USAGE]
        if room <= available:
            available, binds = room, here
    return int(available), int(binds)


@compiled
def any_beyond_nominal(limits: Table, used: Table) -> bool:
    """Return whether the own jobs of some queue hold more than the queue's part of the nominal quotas."""
    beyond = False
    for slot in range(limits.shape[0]):
        beyond = beyond or used[slot, U_OWN] > limits[slot, Q_PART]
    return bool(beyond)


@inlined
def would_borrow(limits: Table, used: Table, first: int, amounts: Table) -> bool:
    """Return whether a queue's own jobs would exceed their part with `amounts` more; True if `amounts` is empty.

    `first` is the first slot of the queue; -1: the queue is not in the tree, so it borrows.
    """
    asks = False
    for key in range(amounts.shape[0] if first >= 0 else 0):
        if amounts[key] > 0:
            asks = True
            if used[first + key, U_OWN] + amounts[key] > limits[first + key, Q_PART]:
                return True
    return not asks


@inlined
def first_short(limits: Table, used: Table, first: int, amounts: Table) -> int:
    """Return the first key whose limits keep a job of a queue from taking `amounts`; -1: none does."""
    for key in range(amounts.shape[0] if first >= 0 else 0):
        if is_short(limits, used, first + key, amounts[key]):
            return key
    return -1


@inlined
def charge_all(limits: Table, used: Table, first: int, amounts: Table) -> None:
    for key in range(amounts.shape[0] if first >= 0 else 0):
        charge(limits, used, first + key, amounts[key])


@inlined
def refund_all(limits: Table, used: Table, first: int, amounts: Table) -> None:
    for key in range(amounts.shape[0] if first >= 0 else 0):
        refund(limits, used, first + key, amounts[key])


@inlined
def could_ever(limits: Table, first: int, amounts: Table) -> bool:
    """Return whether `amounts` would fit if no quota were used."""
    for key in range(amounts.shape[0] if first >= 0 else 0):
        if amounts[key] > max(0, limits[first + key, Q_CEILING]):
            return False
    return True


@compiled
def all_borrow(limits: Table, used: Table, entitled: Table, first: int, own: int, wanted: Table) -> bool:
    """Return whether a queue, and each queue above it below the first common ancestor, borrows some of what is wanted.

    `first` is the first slot of the queue, `own` that of the other queue; a slot borrows above its entry in `entitled`.
    """
    while first >= 0:
        above = own
        while above >= 0 and above != first:
            above = limits[above, Q_UP]
        if above == first:
            return True
        borrows = False
        for key in range(wanted.shape[0]):
            borrows = borrows or (wanted[key] > 0 and used[first + key, U_USAGE] > entitled[first + key])
        if not borrows:
            return False
        first = limits[first, Q_UP]
    return True


@inlined
def place_of_meeting(limits: Table, first: int, own: int) -> int:
    """Return the index in the path from slot `own` upwards where the path from `first` joins it; -1 if it does not."""
    while first >= 0:
        above, place = own, 0
        while above >= 0 and above != first:
            above, place = limits[above, Q_UP], place + 1
        if above == first:
            return place
        first = limits[first, Q_UP]
    return -1


@compiled
def reach(limits: Table, used: Table, first: int, amounts: Table, parts: Table, entitled: Table) -> int:
    """Return how many queues, from this queue upwards and without the root, stay in quota with `amounts` more. -1: the
    queue's own jobs would exceed their part (`parts`, by slot). `entitled` has the entitlement of each queue, by slot.
    """
    level, slot = -1, first
    while slot >= 0:
        level, slot = level + 1, limits[slot, Q_UP]
    for key in range(amounts.shape[0]):
        rest, slot, place = amounts[key], first + key, 0
        if rest > 0 and used[slot, U_OWN] + rest > parts[slot]:
            return -1
        while rest > 0 and place < level:
            if used[slot, U_USAGE] + rest > entitled[slot]:
                level = place
                break
            rest -= max(0, limits[slot, Q_GUARANTEED] - used[slot, U_USAGE])
            slot, place = limits[slot, Q_UP], place + 1
    return int(level)


@compiled
def weigh(held: Table, first: Table, runs: NDArray[np.bool_], parts: Table, borrows: NDArray[np.bool_]) -> None:
    """Write into `borrows` which running jobs borrow, by key. Jobs of one queue count in the order of their starts.

    `held` is what the jobs hold, `first` the first slots of their queues (below 0: in no tree), and `parts` has, by
    slot, the entitlement of a queue's own jobs. A job whose `runs` is False is not counted; its entries do not change.
    """
    counted = np.zeros_like(parts)
    for i in range(held.shape[0]):
        for key in range(held.shape[1] if runs[i] else 0):
            beyond = first[i] < 0
            if not beyond:
                counted[first[i] + key] += held[i, key]
                beyond = counted[first[i] + key] > parts[first[i] + key]
            borrows[i, key] = held[i, key] > 0 and beyond
