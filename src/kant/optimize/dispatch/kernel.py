"""The compiled simulation of a dispatch: tasks arrive, schedulers place them, machines run them, messages take time.

Times are microseconds, cores thousandths and memory MiB, so that sums are exact. A message takes DELAY one way.

- A probe reaches a machine after one delay; the answer arrives after two, and the task after three. Prequal's answers
  are in its pool as soon as a machine gives them.
- A scheduler with a cache decides at once. After FLUSH decisions it sends them to the store. - The store sends all it
  knows: to every scheduler after each BATCH of decisions or, with REPLY, to the scheduler that has just reported. - A
  machine reports its load to the store at each end of a task or, with REPORT, after that many ends.
"""

from __future__ import annotations

import heapq
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kant.compiled import compiled_at_once, inlined
from kant.model import choice

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

anti_affinity, share, second_is_lighter = (
    inlined(choice.anti_affinity),
    inlined(choice.share),
    inlined(choice.second_is_lighter),
)

# The known load of a machine: sums over the tasks that wait or run on it. Work is cores times duration.
CORES, MEMORY, NUMBER, DURATION, WORK = range(5)
FIELDS = 5
# Settings.
VIEW, RULE, CHOICES, OWN, FLUSH, BATCH, REPLY, REPORT, SCHEDULERS, DELAY, FIRST_FIT = range(11)
# Views: no information, probes, a cache, late binding (Sparrow), a pool of probes (Prequal).
BLIND, PROBE, CACHE, LATE, POOL = range(5)
# Rules to choose between two machines: fewer tasks, Dodoor's score, the expected end.
FEWER, SCORE, END = range(3)
# Messages: those that a scheduler sends or receives, without answers; reports of machines; all of them, one way.
SENT, REPORTS, ONE_WAY = range(3)
# Columns of a pool, its size, and Prequal's constants: uses of a probe, its maximum age, the quantile of hot machines.
AT, RIF, LATENCY, STAMP, USED = range(5)
POOL_SIZE, USES, AGE_US, HOT = 16, 2, 1_000_000, 0.84
# Events.
COME, READ, ARRIVE, FINISH, FLUSHED, NEWS, REPORTED, ASKED, STARTED, POOLED = range(10)


@inlined
def push(events: Any, at: int, order: int, kind: int, x: int, y: int) -> int:
    """Schedule an event. Events at the same time are sorted by `order`. Returns the next value of `order`."""
    heapq.heappush(events, (np.int64(at), np.int64(order), np.int64(kind), np.int64(x), np.int64(y)))
    return order + 1


@inlined
def first_is_kept(view: Ints, a: int, b: int, i: int, rule: int, alpha: float, tasks: Ints, times: Ints,
                  kinds: Ints, sizes: Ints) -> bool:  # fmt: skip
    """Whether machine a is at least as good as b for task i."""
    if rule == FEWER:
        return bool(view[a, NUMBER] <= view[b, NUMBER])
    if rule == SCORE:
        ka, kb = kinds[a], kinds[b]
        first = anti_affinity(tasks[i, ka], view[a, CORES], sizes[a, 0]) + anti_affinity(
            tasks[i, -1], view[a, MEMORY], sizes[a, 1]
        )
        second = anti_affinity(tasks[i, kb], view[b, CORES], sizes[b, 0]) + anti_affinity(
            tasks[i, -1], view[b, MEMORY], sizes[b, 1]
        )
        return not second_is_lighter((first, second), (view[a, DURATION], view[b, DURATION]), alpha)
    return end_at(view, a, i, tasks, times, kinds, sizes) <= end_at(view, b, i, tasks, times, kinds, sizes)


@inlined
def end_at(view: Ints, q: int, i: int, tasks: Ints, times: Ints, kinds: Ints, sizes: Ints) -> float:
    """Estimate when task i ends on machine q, in microseconds. It runs at once if what it requests is free, otherwise
    after the present tasks. Cores in use add up to 5%."""
    need = tasks[i, kinds[q]]
    held = view[q]
    own = float(times[i, kinds[q]])
    drain = max(held[DURATION] / sizes[q, 2], held[WORK] / sizes[q, 0])
    room = held[CORES] + need <= sizes[q, 0] and held[MEMORY] + tasks[i, -1] <= sizes[q, 1]
    if room and held[NUMBER] < sizes[q, 2]:
        return float(own * (1.0 + 0.05 * held[CORES] / sizes[q, 0]))
    return float(own + drain)


@inlined
def choose(view: Ints, i: int, picks: Ints, settings: Ints, alpha: float, tasks: Ints, times: Ints, kinds: Ints,
           sizes: Ints) -> int:  # fmt: skip
    """The best of the machines drawn for task i, compared pair by pair."""
    best = picks[i, 0]
    for k in range(1, settings[CHOICES]):
        if not first_is_kept(view, best, picks[i, k], i, settings[RULE], alpha, tasks, times, kinds, sizes):
            best = picks[i, k]
    return int(best)


@inlined
def count_in(of: Ints, i: int, q: int, sign: int, tasks: Ints, times: Ints, kinds: Ints) -> None:
    """Add task i to the load of machine q (`sign` 1), or remove it (-1)."""
    cores, duration = tasks[i, kinds[q]], times[i, kinds[q]]
    of[CORES] += sign * cores
    of[MEMORY] += sign * tasks[i, -1]
    of[NUMBER] += sign
    of[DURATION] += sign * duration
    of[WORK] += sign * cores * duration


@inlined
def from_pool(pool: Ints, size: int, now: int, seen: int) -> tuple[int, int]:
    """Return the machine that Prequal chooses from its pool (-1 if there is none), and the size of the pool afterwards.

    Probes that are too old or used up are dropped first. Among probes whose requests in flight are at most the HOT
    quantile of the pool, the least latency wins. Then the oldest probe or, alternately, the busiest one is dropped.
    """
    kept = 0
    for k in range(size):
        if now - pool[k, STAMP] <= AGE_US and pool[k, USED] < USES:
            pool[kept] = pool[k]
            kept += 1
    if kept == 0:
        return -1, 0
    limit = np.sort(pool[:kept, RIF])[min(kept - 1, int(HOT * kept))]
    best, worst = -1, 0
    for k in range(kept):
        if pool[k, RIF] <= limit and (best < 0 or pool[k, LATENCY] < pool[best, LATENCY]):
            best = k
        if pool[k, RIF] > pool[worst, RIF]:
            worst = k
    taken = pool[best, AT]
    pool[best, USED] += 1
    pool[best, RIF] += 1
    gone = worst if seen % 2 else 0
    for k in range(gone, kept - 1):
        pool[k] = pool[k + 1]
    return taken, kept - 1


@compiled_at_once
def run_tasks(arrivals: Ints, tasks: Ints, times: Ints, kinds: Ints, sizes: Ints, picks: Ints, settings: Ints,
              alpha: float, ends: Ints, places: Ints) -> Ints:  # fmt: skip
    """Run all tasks. Fills their `ends` and `places`, and returns the numbers of messages.

    `tasks` has a row per task: its cores on each kind of machine, then its memory. `times` has its duration on each
    kind. `sizes` has the cores, memory and slots of each machine, `picks` the machines drawn for each task.
    """
    n, machines = len(arrivals), len(kinds)
    schedulers, delay, view_of = settings[SCHEDULERS], settings[DELAY], settings[VIEW]
    flush, batch = settings[FLUSH], settings[BATCH]
    counts = np.zeros(3, np.int64)
    true = np.zeros((machines, FIELDS), np.int64)
    store = np.zeros((machines, FIELDS), np.int64)
    views = np.zeros((schedulers, machines, FIELDS), np.int64)
    free = sizes.copy()
    cached = view_of == CACHE
    looks = n // flush + 2 if cached else 1
    news = np.zeros((looks, machines, FIELDS), np.int64)
    news_known = np.zeros((looks, schedulers), np.int64)
    known = np.zeros(schedulers, np.int64)  # decisions of each scheduler that have reached the store
    made = np.zeros(schedulers, np.int64)
    reports = np.zeros((n + 1 if cached else 1, FIELDS + 1), np.int64)
    unsaid = np.zeros((machines, FIELDS), np.int64)
    received = looked = said = 0
    pool = np.zeros((schedulers, POOL_SIZE, 5), np.int64)
    pooled = np.zeros(schedulers, np.int64)
    # entries in the queues of machines: two per task; the second is Sparrow's other reservation
    after = np.full(2 * n, -1, np.int64)
    where = np.zeros(2 * n, np.int64)
    first = np.full(machines, -1, np.int64)
    last = np.full(machines, -1, np.int64)
    events: Any = [(arrivals[0], np.int64(0), np.int64(COME), np.int64(0), np.int64(0))]
    order = 1
    while len(events) > 0:
        now, _, kind, x, y = heapq.heappop(events)
        q = np.int64(-1)  # the machine that may start something
        if kind == COME:
            s = x % schedulers
            to, wait = picks[x, 0], delay
            if x + 1 < n:
                order = push(events, arrivals[x + 1], order, COME, x + 1, 0)
            if view_of == PROBE:
                counts[SENT] += settings[CHOICES]
                counts[ONE_WAY] += 2 * settings[CHOICES]
                order = push(events, now + delay, order, READ, x, 0)
                continue
            if view_of == LATE:
                for r in range(settings[CHOICES]):
                    where[2 * x + r] = picks[x, r]
                    counts[SENT] += 1
                    counts[ONE_WAY] += 1
                    order = push(events, now + delay, order, ARRIVE, 2 * x + r, 0)
                continue
            if view_of == POOL:
                found, pooled[s] = from_pool(pool[s], pooled[s], now, made[s])
                made[s] += 1
                to = found if found >= 0 else to
                for k in range(settings[CHOICES]):
                    counts[SENT] += 1
                    counts[ONE_WAY] += 2
                    order = push(events, now + delay, order, POOLED, x, k)
            if cached:
                to = choose(views[s], x, picks, settings, alpha, tasks, times, kinds, sizes)
                if settings[OWN]:
                    count_in(views[s, to], x, to, 1, tasks, times, kinds)
                made[s] += 1
                if made[s] % flush == 0:
                    counts[SENT] += 1
                    counts[ONE_WAY] += 1
                    order = push(events, now + delay, order, FLUSHED, s, made[s])
            places[x] = to
            where[2 * x] = to
            counts[SENT] += 1
            counts[ONE_WAY] += 1
            order = push(events, now + wait, order, ARRIVE, 2 * x, 0)
        elif kind == READ:  # the scheduler gets the answers of the probes one delay later
            places[x] = choose(true, x, picks, settings, alpha, tasks, times, kinds, sizes)
            where[2 * x] = places[x]
            counts[SENT] += 1
            counts[ONE_WAY] += 1
            order = push(events, now + 2 * delay, order, ARRIVE, 2 * x, 0)
        elif kind == POOLED:
            s, at = x % schedulers, picks[x, 1 + y]
            if pooled[s] == POOL_SIZE:
                for k in range(POOL_SIZE - 1):
                    pool[s, k] = pool[s, k + 1]
                pooled[s] -= 1
            pool[s, pooled[s], AT], pool[s, pooled[s], STAMP] = at, now
            pool[s, pooled[s], RIF], pool[s, pooled[s], LATENCY] = true[at, NUMBER], true[at, DURATION]
            pool[s, pooled[s], USED] = 0
            pooled[s] += 1
        elif kind == ARRIVE:
            q = where[x]
            count_in(true[q], x // 2, q, 1, tasks, times, kinds)
            if last[q] >= 0:
                after[last[q]] = x
            else:
                first[q] = x
            last[q] = x
        elif kind == ASKED:  # a machine asks a scheduler for the task of its reservation
            task = x // 2
            mine = places[task] < 0
            if mine:
                places[task] = where[x]
            counts[ONE_WAY] += 1
            order = push(events, now + delay, order, STARTED, x, mine)
        elif kind == FINISH or (kind == STARTED and y == 0):
            q = where[x]
            task = x // 2
            count_in(true[q], task, q, -1, tasks, times, kinds)
            free[q, 0] += tasks[task, kinds[q]]
            free[q, 1] += tasks[task, -1]
            free[q, 2] += 1
            if kind == FINISH:
                ends[task] = now
            if cached:
                count_in(unsaid[q], task, q, 1, tasks, times, kinds)
                if unsaid[q, NUMBER] >= settings[REPORT] or true[q, NUMBER] == 0:
                    reports[said, :FIELDS] = unsaid[q] if settings[REPORT] > 0 else true[q]
                    reports[said, FIELDS] = q
                    unsaid[q] = 0
                    counts[REPORTS] += 1
                    counts[ONE_WAY] += 1
                    order = push(events, now + delay, order, REPORTED, said, 0)
                    said += 1
        elif kind == STARTED:
            order = push(events, now + times[x // 2, kinds[where[x]]], order, FINISH, x, 0)
        elif kind == REPORTED:
            at = reports[x, FIELDS]
            for f in range(FIELDS):
                store[at, f] = store[at, f] - reports[x, f] if settings[REPORT] > 0 else reports[x, f]
        elif kind == FLUSHED:
            for k in range(known[x], y):
                task = x + schedulers * k
                count_in(store[places[task]], task, places[task], 1, tasks, times, kinds)
            new = received + y - known[x]
            known[x] = y
            tell = settings[REPLY] > 0 or new // batch > received // batch
            received = new
            if tell:
                news[looked] = store
                news_known[looked] = known
                low, high = (x, x + 1) if settings[REPLY] else (np.int64(0), schedulers)
                for s in range(low, high):
                    counts[SENT] += 0 if settings[REPLY] else 1
                    counts[ONE_WAY] += 1
                    order = push(events, now + delay, order, NEWS, s, looked)
                looked += 1
        else:  # NEWS
            views[x] = news[y]
            if settings[OWN]:
                for k in range(news_known[y, x], made[x]):
                    task = x + schedulers * k
                    count_in(views[x, places[task]], task, places[task], 1, tasks, times, kinds)
        if q < 0:
            continue
        before, entry = np.int64(-1), first[q]
        while entry >= 0 and free[q, 2] > 0:
            task = entry // 2
            need, memory, then = tasks[task, kinds[q]], tasks[task, -1], after[entry]
            if need <= free[q, 0] and memory <= free[q, 1]:
                free[q, 0] -= need
                free[q, 1] -= memory
                free[q, 2] -= 1
                if before >= 0:
                    after[before] = then
                else:
                    first[q] = then
                if then < 0:
                    last[q] = before
                if view_of == LATE:
                    counts[SENT] += 1
                    counts[ONE_WAY] += 1
                    order = push(events, now + delay, order, ASKED, entry, 0)
                else:
                    order = push(events, now + times[task, kinds[q]], order, FINISH, entry, 0)
            elif settings[FIRST_FIT]:
                before = entry
            else:
                break
            entry = then
    return counts
