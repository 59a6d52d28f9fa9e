"""The compiled search for starts of tasks: insertion where peaks grow least, and repair of ticks above a target.

Both work towards *targets*: a peak for each resource. Use above a target is overload. A plan without overload costs at
most as much as the targets. A good start of a task adds little squared overload (squared to spread it out). Of equal
starts, the one with less usage is chosen.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kant.compiled import compiled_at_once, inlined
from kant.optimize.capacity.arrays import Numbers, TaskArrays
from kant.placement.fits import mixed

LEVELLING = 1e-3
"""The weight of a unit of use at the target, relative to that of a unit of squared overload."""
STEP = 200
"""The cost of a repair step, besides the entries of `usage` that it reads."""

Profile = NDArray[np.float64]


@inlined
def put(s: TaskArrays, i: int, start: int, sign: int, usage: Numbers) -> None:
    """Add task i to `usage` (`sign` 1), or remove it (-1)."""
    for r in range(usage.shape[0]):
        amount = sign * s.demand[i, r]
        if amount:
            for t in range(start, start + s.duration[i]):
                usage[r, t] += amount


@inlined
def price(s: TaskArrays, i: int, low: int, high: int, usage: Numbers, target: Numbers, prices: Profile) -> None:
    """Fill `prices` by tick, from `low` to before `high`: the overload that task i would add in the tick."""
    for t in range(low, high):
        prices[t] = 0.0
    for r in range(usage.shape[0]):
        amount = s.demand[i, r]
        if amount == 0:
            continue
        scale = 1.0 / (target[r] + 1)
        for t in range(low, high):
            level = usage[r, t] * scale
            over = max(usage[r, t] + amount - target[r], 0)
            was = max(usage[r, t] - target[r], 0)
            squares = over * over - was * was
            prices[t] += s.cost[r] * (squares + LEVELLING * amount * level * level * level)


@inlined
def cheapest(
    s: TaskArrays, i: int, low: int, high: int, tabu: int, usage: Numbers, target: Numbers, prices: Profile, draw: int
) -> int:
    """The cheapest start from `low` to `high`, except `tabu`. Ties go to the first one after a random start."""
    duration = s.duration[i]
    price(s, i, low, high + duration, usage, target, prices)
    total = 0.0
    for t in range(low, low + duration):
        total += prices[t]
    first = low + draw % (high - low + 1)
    best, chosen, after = 0.0, -1, False
    for start in range(low, high + 1):
        if start > low:
            total += prices[start + duration - 1] - prices[start - 1]
        if start == tabu:
            continue
        if chosen < 0 or total < best - 1e-9 or (total < best + 1e-9 and not after and start >= first):
            best, chosen, after = total, start, start >= first
    return chosen


@inlined
def overload_of(s: TaskArrays, i: int, start: int, usage: Numbers, target: Numbers) -> int:
    """The squared overload that task i adds at `start`; `usage` must not include the task."""
    total = 0
    for r in range(usage.shape[0]):
        amount = s.demand[i, r]
        if amount:
            for t in range(start, start + s.duration[i]):
                over = max(usage[r, t] + amount - target[r], 0)
                was = max(usage[r, t] - target[r], 0)
                total += s.cost[r] * (over * over - was * was)
    return total


@inlined
def insert(
    s: TaskArrays, p: int, starts: Numbers, usage: Numbers, target: Numbers, prices: Profile, grow: bool, draw: int
) -> int:
    """Insert the tasks of process p, one by one. `grow` raises targets to the new peaks. Returns the added overload."""
    total = 0
    for i in range(s.tasks_from[p], s.tasks_from[p + 1]):
        low = s.earliest[i]
        for x in range(s.before_from[i], s.before_from[i + 1]):
            low = max(low, starts[s.before[x]] + s.duration[s.before[x]])
        start = low
        if s.duration[i] > 0:
            start = cheapest(s, i, low, s.latest[i], -1, usage, target, prices, mixed(draw, i) if draw else 0)
            if not grow:
                total += overload_of(s, i, start, usage, target)
        starts[i] = start
        put(s, i, start, 1, usage)
        if grow:
            for r in range(usage.shape[0]):
                if s.demand[i, r]:
                    for t in range(start, start + s.duration[i]):
                        target[r] = max(target[r], usage[r, t])
    return total


@compiled_at_once
def insert_all(s: TaskArrays, order: Numbers, starts: Numbers, usage: Numbers, target: Numbers) -> None:
    """Insert the processes in `order`. `target` grows to the peaks; `starts` and `usage` are filled."""
    prices = np.zeros(usage.shape[1] + 1, np.float64)
    for x in range(order.shape[0]):
        insert(s, order[x], starts, usage, target, prices, True, 0)


@inlined
def choose(
    left: Numbers, n: int, windows: Numbers, known: Profile, shares: Profile, weights: Profile,
    filled: Profile, target: Numbers,
) -> int:  # fmt: skip
    """The index in `left`, from n on, of the process with the highest score; of equal scores, the first process."""
    best, chosen = 0.0, -1
    for x in range(n, left.shape[0]):
        p = left[x]
        begin, end = windows[p, 0], windows[p, 1]
        crowd = 0.0
        for r in range(target.shape[0]):
            crowd += shares[p, r] * (filled[r, end] - filled[r, begin]) / ((end - begin) * (target[r] + 1.0))
        score = (weights[0] + weights[1] * known[p, 0]) * crowd
        for k in range(known.shape[1]):
            score += weights[2 + k] * known[p, k]
        if chosen < 0 or score > best or (score == best and p < left[chosen]):
            best, chosen = score, x
    return chosen


@compiled_at_once
def insert_chosen(
    s: TaskArrays, movable: Numbers, windows: Numbers, known: Profile, shares: Profile, weights: Profile,
    starts: Numbers, usage: Numbers, target: Numbers,
) -> None:  # fmt: skip
    """Insert the processes, at each step the one with the highest score, given those already inserted.

    `known` has the features of each process, of which work is the first; `shares` has the shares of the resources in
    its cost; `windows` has its release and deadline. `target` grows to the peaks; `starts` and `usage` are filled.
    """
    prices = np.zeros(usage.shape[1] + 1, np.float64)
    filled = np.zeros((usage.shape[0], usage.shape[1] + 1), np.float64)
    left = movable.copy()
    for n in range(left.shape[0]):
        for r in range(usage.shape[0]):
            for t in range(usage.shape[1]):
                filled[r, t + 1] = filled[r, t] + usage[r, t]
        x = choose(left, n, windows, known, shares, weights, filled, target)
        left[n], left[x] = left[x], left[n]
        insert(s, left[n], starts, usage, target, prices, True, 0)


@inlined
def overloaded(usage: Numbers, target: Numbers, draw: int) -> int:
    """A flat index into `usage` where a target is exceeded: the first after a random index; -1 if there is none."""
    width = usage.shape[1]
    size = usage.shape[0] * width
    at = draw % size
    for _ in range(size):
        if usage[at // width, at % width] > target[at // width]:
            return int(at)
        at = at + 1 if at + 1 < size else 0
    return -1


@inlined
def active(s: TaskArrays, r: int, t: int, starts: Numbers, open_from: Numbers, opened: Numbers, draw: int) -> int:
    """A task in `opened` that uses resource r at tick t: the first after a random one; -1 if there is none."""
    count = open_from[t + 1] - open_from[t]
    for x in range(count):
        i = opened[open_from[t] + (draw + x) % count]
        if s.demand[i, r] and starts[i] <= t < starts[i] + s.duration[i]:
            return int(i)
    return -1


@inlined
def push(s: TaskArrays, i: int, start: int, starts: Numbers, usage: Numbers, target: Numbers, kept: Numbers) -> int:
    """Start task i at `start`, and shift the tasks of its process as needed; returns the overload added.

    `kept` receives the process's former starts. Shifted tasks move as little as possible.
    """
    p = s.process[i]
    change = 0
    for j in range(s.tasks_from[p], s.tasks_from[p + 1]):
        kept[j] = starts[j]
    starts[i] = start
    for j in range(i + 1, s.tasks_from[p + 1]):
        for x in range(s.before_from[j], s.before_from[j + 1]):
            starts[j] = max(starts[j], starts[s.before[x]] + s.duration[s.before[x]])
    for j in range(i - 1, s.tasks_from[p] - 1, -1):
        for x in range(s.after_from[j], s.after_from[j + 1]):
            starts[j] = min(starts[j], starts[s.after[x]] - s.duration[j])
    for j in range(s.tasks_from[p], s.tasks_from[p + 1]):
        if starts[j] != kept[j]:
            put(s, j, kept[j], -1, usage)
            change -= overload_of(s, j, kept[j], usage, target)
    for j in range(s.tasks_from[p], s.tasks_from[p + 1]):
        if starts[j] != kept[j]:
            change += overload_of(s, j, starts[j], usage, target)
            put(s, j, starts[j], 1, usage)
    return change


@inlined
def take_back(s: TaskArrays, p: int, starts: Numbers, usage: Numbers, kept: Numbers) -> None:
    """Restore the former starts of the tasks of process p."""
    for j in range(s.tasks_from[p], s.tasks_from[p + 1]):
        if starts[j] != kept[j]:
            put(s, j, starts[j], -1, usage)
            starts[j] = kept[j]
            put(s, j, starts[j], 1, usage)


@compiled_at_once
def repair(
    s: TaskArrays, starts: Numbers, usage: Numbers, target: Numbers, open_from: Numbers, opened: Numbers,
    steps: int, seed: int, heat: float, work: Numbers,
) -> int:  # fmt: skip
    """Move tasks away from ticks above a target, until there are none. Returns the remaining overload.

    A step moves a task that is active at such a tick to the cheapest start that its neighbours allow, or to the
    cheapest start of all while pushing the neighbours, or it reinserts the whole process. A change that adds overload
    is kept with a probability that falls with the added overload, and rises with `heat`, which cools to zero over the
    steps (simulated annealing). `opened[open_from[t]:open_from[t + 1]]` are the movable tasks that may be active at
    tick t. `work` [1] grows by the number of entries of `usage` read: a measure of cost that does not depend on the
    load of the machine. Source: min-conflicts, S. Minton et al., Artificial Intelligence 58, 1992.
    """
    prices = np.zeros(usage.shape[1] + 1, np.float64)
    kept = np.zeros(starts.shape[0], np.int64)
    total = 0
    for r in range(usage.shape[0]):
        for t in range(usage.shape[1]):
            total += s.cost[r] * max(usage[r, t] - target[r], 0) ** 2
    size = usage.shape[0] * usage.shape[1]
    work[0] += size
    for step in range(steps):
        look = mixed(seed, 4 * step)
        at = overloaded(usage, target, look)
        work[0] += STEP + (size if at < 0 else (at - look) % size)
        if at < 0:
            return 0
        draw, kind = mixed(seed, 4 * step + 1), mixed(seed, 4 * step + 2) % 8
        i = active(s, at // usage.shape[1], at % usage.shape[1], starts, open_from, opened, draw)
        if i < 0:
            continue
        p, change = s.process[i], 0
        if kind == 0:
            for j in range(s.tasks_from[p + 1] - 1, s.tasks_from[p] - 1, -1):
                kept[j] = starts[j]
                put(s, j, starts[j], -1, usage)
                change -= overload_of(s, j, starts[j], usage, target)
                work[0] += usage.shape[0] * (s.latest[j] - s.earliest[j] + s.duration[j])
            change += insert(s, p, starts, usage, target, prices, False, draw)
        else:
            low, high = s.earliest[i], s.latest[i]
            if kind < 6:
                for x in range(s.before_from[i], s.before_from[i + 1]):
                    low = max(low, starts[s.before[x]] + s.duration[s.before[x]])
                for x in range(s.after_from[i], s.after_from[i + 1]):
                    high = min(high, starts[s.after[x]] - s.duration[i])
            if low >= high:
                continue
            start = low + (draw >> 8) % (high - low + 1)
            if kind < 7:
                work[0] += usage.shape[0] * (high - low + s.duration[i])
                put(s, i, starts[i], -1, usage)
                start = cheapest(s, i, low, high, starts[i], usage, target, prices, draw)
                put(s, i, starts[i], 1, usage)
            change = push(s, i, start, starts, usage, target, kept)
        chance = (mixed(seed, 4 * step + 3) + 1) / 4294967297.0
        if change <= -np.log(chance) * heat * (steps - step) / steps:
            total += change
        else:
            take_back(s, p, starts, usage, kept)
    return total
