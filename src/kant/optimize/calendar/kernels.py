"""The compiled search for a plan: a depth-first search over canonical placements, with bounds by section.

In a plan with the least sum of offsets every booking rests on GPU 0 or on another booking, as low as its alignment and
the pinned bookings allow. Such plans are built from below. A booking is *open* until it is placed, and `low` is a lower
bound of its offset. The lowest `low` in a section is the section's floor. A choice is made in one section: either one
of its bookings begins at the floor, or none does. So the alternatives are these bookings, one by one, and finally that
all of them are lifted above the floor. A section is chosen only if no booking at its floor has a lower one that
overlaps it in time. - Bound: in every section the open bookings, in order of `low`, are stacked, each at its `low` or
above. If the stack exceeds the capacity, the node fails. (On one machine with release dates this order gives the least
makespan, so no plan is lost.) - Dominance: a lifted booking needs another booking below it, since it could fall
otherwise. Of equal bookings (twins) the first is placed first. - A failed part is remembered by its open bookings and
their `low`, across restarts, too. - Parts of the calendar that no longer share an open booking are searched separately:
a failure in one of them goes back to the last choice that concerned it.

Sources: M. D. Moffitt, MiniMalloc, ASPLOS 2023 (canonical solutions, sections, dominance); the choice of a section, the
stacked bound and the memory of failures are ours. Pinned bookings, alignment and gaps are part of the search.
"""

from __future__ import annotations

import numpy as np

from kant.compiled import compiled_at_once, inlined
from kant.optimize.calendar.sections import Numbers, Sections
from kant.placement.fits import mixed

FOUND, OPEN, NONE = 1, 0, -1
"""The results of a search, in this order: a plan is in `offsets`; the limit was reached; no plan exists."""

NEVER = 1 << 60

# --- columns of a frame of the search ---------------------------------------------------------------------------
PART, PART_END, SECTION, CHOICES_END, NEXT, TRAIL, PLACED, KEY, KEY_2, FRAME_WIDTH = range(10)

# --- columns of the trail: the earlier values of a booking --------------------------------------------------------
WHO, LOW, REST, TRAIL_WIDTH = range(4)

# --- which section is chosen: the one with the fewest alternatives, the least slack, or the lowest floor -----------
FEWEST, TIGHTEST, LOWEST = range(3)


@inlined
def lowest(s: Sections, is_open: Numbers, i: int, since: int) -> int:
    """The least offset, from `since` on, at which booking i is aligned and clear of open pinned bookings; or NEVER."""
    if s.pinned[i] >= 0:
        return int(s.pinned[i]) if since <= s.pinned[i] else NEVER
    step = s.alignment[i]
    at = (since + step - 1) // step * step
    for k in range(s.pins_from[i], s.pins_from[i + 1]):
        j = s.pins[k]
        if is_open[j] and at < s.pinned[j] + s.gpus[j] and s.pinned[j] < at + s.gpus[i]:
            at = (s.pinned[j] + s.gpus[j] + step - 1) // step * step
    return int(at)


@inlined
def reopen(s: Sections, frames: Numbers, depth: int, is_open: Numbers, crossing: Numbers) -> int:
    """Undo the placement of a frame. Returns the number of reopened bookings: 0 or 1."""
    i = frames[depth, PLACED]
    if i < 0:
        return 0
    frames[depth, PLACED] = -1
    is_open[i] = 1
    for k in range(s.first[i] + 1, s.last[i]):
        crossing[k] += 1
    return 1


@inlined
def undo(frames: Numbers, depth: int, trail: Numbers, used: int, low: Numbers, rest: Numbers) -> int:
    """Restore `low` and `rest` to their values at the frame; returns the length of the trail."""
    while used > frames[depth, TRAIL]:
        used -= 1
        low[trail[used, WHO]] = trail[used, LOW]
        rest[trail[used, WHO]] = trail[used, REST]
    return used


@inlined
def stack(
    s: Sections, listed: Numbers, count: int, low: Numbers, begin: int, end: int, capacity: int, floor: Numbers,
    height: Numbers, undercut: Numbers,
) -> int:  # fmt: skip
    """Stack the listed bookings, which are sorted by `low`. Returns a section that exceeds the capacity, or -1.

    Fills `floor` and `height` by section, and `undercut`: whether a lower booking overlaps the booking in time.
    """
    for k in range(begin, end):
        floor[k] = -1
        height[k] = 0
    for x in range(count):
        i = listed[x]
        undercut[i] = 0
        for k in range(s.first[i], s.last[i]):
            if not s.covers[i, k]:
                continue
            if floor[k] < 0:
                floor[k] = low[i]
            elif floor[k] < low[i]:
                undercut[i] = 1
            height[k] = max(height[k], low[i]) + s.gpus[i]
            if height[k] > capacity:
                return k
    return -1


@inlined
def may_come(s: Sections, is_open: Numbers, low: Numbers, rest: Numbers, i: int) -> bool:
    """Whether booking i rests at its `low`, and no open twin precedes it."""
    j = s.twin[i]
    return bool(rest[i] == low[i] and not (j >= 0 and is_open[j] and low[j] == low[i] and rest[j] == rest[i]))


@inlined
def choose_section(
    s: Sections, listed: Numbers, count: int, low: Numbers, rest: Numbers, is_open: Numbers, begin: int, end: int,
    capacity: int, floor: Numbers, height: Numbers, undercut: Numbers, comers: Numbers, rule: int,
) -> int:  # fmt: skip
    """The section of the next choice: no booking at its floor may be undercut. The lowest section qualifies."""
    for k in range(begin, end):
        comers[k] = 0
    for x in range(count):
        i = listed[x]
        comes = may_come(s, is_open, low, rest, i)
        for k in range(s.first[i], s.last[i]):
            if not s.covers[i, k] or floor[k] != low[i]:
                continue
            if undercut[i]:
                comers[k] = -1
            elif comes and comers[k] >= 0:
                comers[k] += 1
    best, chosen = NEVER, -1
    for k in range(begin, end):
        if floor[k] < 0 or comers[k] < 0:
            continue
        if rule == FEWEST:
            worth = comers[k] * (capacity + 1) + capacity - height[k]
        elif rule == TIGHTEST:
            worth = (capacity - height[k]) * 64 + comers[k]
        else:
            worth = floor[k] * 64 + comers[k]
        if worth < best:
            best, chosen = worth, k
    return chosen


@inlined
def lift(s: Sections, k: int, low: Numbers, rest: Numbers, is_open: Numbers, capacity: int, lifted: Numbers) -> bool:
    """Fill `lifted`: the least offsets in section k if no booking begins at its floor. Returns False if infeasible.

    A lifted booking must rest on another booking: one outside the section that reaches above the floor, or one of the
    section. Also, another booking must overlap its old position, since it could fall back otherwise.
    """
    floor = NEVER
    for i in range(s.gpus.shape[0]):
        if is_open[i] and s.covers[i, k]:
            floor = min(floor, low[i])
    least, least_2, whose_least, top, top_2, whose_top = NEVER, NEVER, -1, NEVER, NEVER, -1
    for i in range(s.gpus.shape[0]):
        if not is_open[i] or not s.covers[i, k]:
            continue
        lifted[i] = low[i]
        if low[i] == floor:
            if s.pinned[i] >= 0:
                return False
            lifted[i] = NEVER
            for x in range(s.meets_from[i], s.meets_from[i + 1]):
                j = s.meets[x]
                if is_open[j] and not s.covers[j, k]:
                    lifted[i] = min(lifted[i], low[j] + s.gpus[j])
        if lifted[i] < least:
            least, least_2, whose_least = lifted[i], least, i
        else:
            least_2 = min(least_2, lifted[i])
        if lifted[i] + s.gpus[i] < top:
            top, top_2, whose_top = lifted[i] + s.gpus[i], top, i
        else:
            top_2 = min(top_2, lifted[i] + s.gpus[i])
    for i in range(s.gpus.shape[0]):
        if not is_open[i] or not s.covers[i, k] or low[i] != floor:
            continue
        if rest[i] == floor:
            blocked = (least_2 if whose_least == i else least) < floor + s.gpus[i]
            for x in range(s.meets_from[i], s.meets_from[i + 1]):
                j = s.meets[x]
                if blocked:
                    break
                blocked = bool(is_open[j] and not s.covers[j, k] and low[j] < floor + s.gpus[i])
            if not blocked:
                return False
        lifted[i] = lowest(s, is_open, i, min(lifted[i], top_2 if whose_top == i else top))
        if lifted[i] + s.gpus[i] > capacity:
            return False
    return True


@inlined
def order_by_low(low: Numbers, in_order: Numbers) -> None:
    """Sort the bookings by `low`. They are almost sorted already."""
    for x in range(1, in_order.shape[0]):
        i, y = in_order[x], x - 1
        while y >= 0 and low[in_order[y]] > low[i]:
            in_order[y + 1] = in_order[y]
            y -= 1
        in_order[y + 1] = i


@inlined
def list_open(s: Sections, in_order: Numbers, is_open: Numbers, begin: int, end: int, listed: Numbers) -> int:
    """List the open bookings of a part, in order; returns their number."""
    count = 0
    for x in range(in_order.shape[0]):
        i = in_order[x]
        if is_open[i] and s.first[i] >= begin and s.last[i] <= end:
            listed[count] = i
            count += 1
    return count


@inlined
def key_of(
    s: Sections, listed: Numbers, count: int, low: Numbers, rest: Numbers, begin: int, end: int, salt: int
) -> int:
    """A key of 32 bits, at least 1, for the open bookings of a part and their offsets."""
    key = 0
    for x in range(count):
        i = listed[x]
        if s.first[i] >= begin and s.last[i] <= end:
            key += mixed(mixed(salt + i, low[i]), rest[i])
    return 1 + (key & 0xFFFFFFFF)


@inlined
def list_choices(
    s: Sections, listed: Numbers, count: int, low: Numbers, rest: Numbers, is_open: Numbers, k: int, floor: int,
    rank: Numbers, choices: Numbers, begin: int,
) -> int:  # fmt: skip
    """List the bookings that may begin at the floor of section k, by rank, from index `begin` on. Returns the end."""
    stop = begin
    for x in range(count):
        i = listed[x]
        if not s.covers[i, k] or low[i] != floor or not may_come(s, is_open, low, rest, i):
            continue
        y = stop - 1
        while y >= begin and rank[choices[y]] > rank[i]:
            choices[y + 1] = choices[y]
            y -= 1
        choices[y + 1] = i
        stop += 1
    return stop


@inlined
def note(trail: Numbers, used: int, i: int, low: Numbers, rest: Numbers) -> int:
    """Record `low` and `rest` of booking i before they change; returns the length of the trail."""
    trail[used, WHO], trail[used, LOW], trail[used, REST] = i, low[i], rest[i]
    return used + 1


@inlined
def place(
    s: Sections, i: int, low: Numbers, rest: Numbers, is_open: Numbers, crossing: Numbers, trail: Numbers, used: int
) -> int:
    """Place booking i at its `low`, below the open bookings that it overlaps. Returns the trail's length."""
    is_open[i] = 0
    for k in range(s.first[i] + 1, s.last[i]):
        crossing[k] -= 1
    top = low[i] + s.gpus[i]
    for x in range(s.meets_from[i], s.meets_from[i + 1]):
        j = s.meets[x]
        if is_open[j] and rest[j] < top:
            used = note(trail, used, j, low, rest)
            rest[j] = lowest(s, is_open, j, top)
            low[j] = max(low[j], rest[j])
    return used


@compiled_at_once
def search(
    s: Sections, rank: Numbers, capacity: int, rule: int, limit: int, failed: Numbers, offsets: Numbers, count: Numbers
) -> int:
    """Search for a plan within `capacity`; returns FOUND with `offsets` filled, NONE, or OPEN after `limit` nodes.

    `rank` orders alternatives; `rule` chooses sections. `failed` [slots, 2] is the memory of failures for this
    capacity: zeros at first, then kept between calls. `count` [1] grows by the number of visited nodes.
    """
    n, width = s.covers.shape
    slots = failed.shape[0]
    is_open = np.ones(n, np.int64)
    low, rest = np.zeros(n, np.int64), np.zeros(n, np.int64)
    lifted, undercut = np.zeros(n, np.int64), np.zeros(n, np.int64)
    floor, height, comers = np.zeros(width, np.int64), np.zeros(width, np.int64), np.zeros(width, np.int64)
    crossing = np.zeros(width + 1, np.int64)  # by section: the open bookings that cover it and the section before it
    in_order, listed = np.arange(n), np.zeros(n, np.int64)
    frames = np.zeros((16 * n + 4096, FRAME_WIDTH), np.int64)
    choices = np.zeros(16 * n + 65536, np.int64)
    trail = np.zeros((16 * n + 262144, TRAIL_WIDTH), np.int64)
    remaining, depth, used, nodes, begin, end = n, 0, 0, 0, 0, width
    for i in range(n):
        low[i] = rest[i] = lowest(s, is_open, i, 0)
        for k in range(s.first[i] + 1, s.last[i]):
            crossing[k] += 1
    while True:
        # --- a new node, in the part [begin, end) of the choice above it
        nodes += 1
        order_by_low(low, in_order)
        here = list_open(s, in_order, is_open, begin, end, listed)
        if here == 0:
            if remaining == 0:
                count[0] += nodes
                return FOUND
            begin, end = 0, width
            here = list_open(s, in_order, is_open, begin, end, listed)
        fails = stack(s, listed, here, low, begin, end, capacity, floor, height, undercut) >= 0
        if not fails:
            k = choose_section(
                s, listed, here, low, rest, is_open, begin, end, capacity, floor, height, undercut, comers, rule
            )
            begin, end = k, k + 1
            while crossing[begin] > 0:
                begin -= 1
            while end < width and crossing[end] > 0:
                end += 1
            key = key_of(s, listed, here, low, rest, begin, end, 1)
            key_2 = key_of(s, listed, here, rest, low, begin, end, n + 1)
            slot = (key * 31 + key_2) % slots
            fails = failed[slot, 0] == key and failed[slot, 1] == key_2
            if not fails:
                chosen = frames[depth - 1, CHOICES_END] if depth else 0
                if depth + 1 >= frames.shape[0] or chosen + n >= choices.shape[0] or used + n >= trail.shape[0]:
                    count[0] += nodes
                    return OPEN
                frame = frames[depth]
                frame[PART], frame[PART_END], frame[SECTION], frame[KEY], frame[KEY_2] = begin, end, k, key, key_2
                frame[CHOICES_END] = list_choices(
                    s, listed, here, low, rest, is_open, k, floor[k], rank, choices, chosen
                )
                frame[NEXT], frame[TRAIL], frame[PLACED] = chosen, used, -1
                depth += 1
        if nodes > limit:
            count[0] += nodes
            return OPEN
        # --- the next alternative of the last choice that concerns this part
        moved = False
        while not moved:
            while fails and depth and (frames[depth - 1, PART_END] <= begin or frames[depth - 1, PART] >= end):
                depth -= 1
                remaining += reopen(s, frames, depth, is_open, crossing)
                used = undo(frames, depth, trail, used, low, rest)
            if depth == 0:
                count[0] += nodes
                return NONE
            frame = frames[depth - 1]
            remaining += reopen(s, frames, depth - 1, is_open, crossing)
            used = undo(frames, depth - 1, trail, used, low, rest)
            begin, end = frame[PART], frame[PART_END]
            frame[NEXT] += 1
            if frame[NEXT] <= frame[CHOICES_END]:
                i = choices[frame[NEXT] - 1]
                frame[PLACED], offsets[i] = i, low[i]
                remaining -= 1
                used, moved = place(s, i, low, rest, is_open, crossing, trail, used), True
            elif frame[NEXT] == frame[CHOICES_END] + 1:
                moved = lift(s, frame[SECTION], low, rest, is_open, capacity, lifted)
                for i in range(n):
                    if moved and is_open[i] and s.covers[i, frame[SECTION]] and lifted[i] > low[i]:
                        used = note(trail, used, i, low, rest)
                        low[i] = lifted[i]
            else:
                slot = (frame[KEY] * 31 + frame[KEY_2]) % slots
                failed[slot, 0], failed[slot, 1] = frame[KEY], frame[KEY_2]
                depth -= 1
                fails = True
