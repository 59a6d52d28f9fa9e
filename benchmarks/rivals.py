"""The rivals: what a good programmer writes in an afternoon, in plain Python or NumPy, for the same job.

They know one thing each and keep no journal, no metrics, no invariants; Kant does all of it in the same time.
"""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush
from operator import itemgetter

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


def strict_fifo_pool(submit: list[int], runtime: list[int], gpus: list[int], queue: list[int], capacity: int) -> int:
    """Strict FIFO by queue over one pool of GPUs without nodes, event by event; returns the sum of waits."""
    ends: list[tuple[int, int]] = []
    queues = [deque[int]() for _ in range(max(queue) + 1)]
    free, waited, i, n = capacity, 0, 0, len(submit)
    while i < n or ends:
        now = min(submit[i] if i < n else 1 << 62, ends[0][0] if ends else 1 << 62)
        while ends and ends[0][0] == now:
            free += heappop(ends)[1]
        while i < n and submit[i] == now:
            queues[queue[i]].append(i)
            i += 1
        heads = [(own[0], own) for own in queues if own]
        while heads:
            job, own = min(heads, key=itemgetter(0))
            heads.remove((job, own))
            if gpus[job] <= free:
                own.popleft()
                free -= gpus[job]
                waited += now - submit[job]
                heappush(ends, (now + runtime[job], gpus[job]))
                if own:
                    heads.append((own[0], own))
    return waited


def consolidated(free: list[int], need: int) -> list[tuple[int, int]] | None:
    """Where `need` GPUs go on 8-GPU nodes: best fit, or whole idle nodes and a remainder on the emptiest other."""
    if sum(free) < need:
        return None
    if need <= 8:
        fitting = [(have, node) for node, have in enumerate(free) if have >= need]
        return [(min(fitting)[1], need)] if fitting else None
    idle = [node for node, have in enumerate(free) if have == 8][: need // 8]
    if len(idle) < need // 8:
        return None
    chosen = [(node, 8) for node in idle]
    if need % 8:
        rest = [(-have, node) for node, have in enumerate(free) if node not in set(idle)]
        if not rest or -min(rest)[0] < need % 8:
            return None
        chosen.append((min(rest)[1], need % 8))
    return chosen


def strict_nodes(order: list[int], submit: list[int], runtime: list[int], gpus: list[int], nodes: int) -> int:
    """Strict head of line on 8-GPU nodes with best fit, the queue sorted by `order`; returns the sum of waits."""
    free = [8] * nodes
    ends: list[tuple[int, int, list[tuple[int, int]]]] = []
    queue: list[tuple[int, int]] = []
    waited, i, n = 0, 0, len(submit)
    while i < n or ends:
        now = min(submit[i] if i < n else 1 << 62, ends[0][0] if ends else 1 << 62)
        while ends and ends[0][0] == now:
            for node, count in heappop(ends)[2]:
                free[node] += count
        while i < n and submit[i] == now:
            heappush(queue, (order[i], i))
            i += 1
        while queue:
            job = queue[0][1]
            chosen = consolidated(free, gpus[job])
            if chosen is None:
                break
            heappop(queue)
            for node, count in chosen:
                free[node] -= count
            waited += now - submit[job]
            heappush(ends, (now + runtime[job], job, chosen))
    return waited


def best_effort_nodes(submit: list[int], runtime: list[int], gpus: list[int], nodes: int) -> int:
    """Best-effort FIFO on 8-GPU nodes: whoever fits starts, and a size that did not fit is not tried again until a job
    has ended. Returns the sum of waits."""
    free = [8] * nodes
    ends: list[tuple[int, int, list[tuple[int, int]]]] = []
    queue: list[int] = []
    full: set[int] = set()
    waited, i, n = 0, 0, len(submit)
    while i < n or ends:
        now = min(submit[i] if i < n else 1 << 62, ends[0][0] if ends else 1 << 62)
        while ends and ends[0][0] == now:
            for node, count in heappop(ends)[2]:
                free[node] += count
            full.clear()
        while i < n and submit[i] == now:
            queue.append(i)
            i += 1
        left = []
        for job in queue:
            chosen = None if gpus[job] in full else consolidated(free, gpus[job])
            if chosen is None:
                full.add(gpus[job])
                left.append(job)
                continue
            for node, count in chosen:
                free[node] -= count
            waited += now - submit[job]
            heappush(ends, (now + runtime[job], job, chosen))
        queue = left
    return waited


def quota_nodes(
    submit: list[int],
    runtime: list[int],
    gpus: list[int],
    priority: list[int],
    queue: list[int],
    quota: list[int],
    nodes: int,
) -> int:
    """Best effort by priority in queues that lend what they do not use; returns the sum of waits.

    A job that does not fit stops others if that makes room: of lower priority in its own queue, or, while its queue
    stays within its quota, of queues beyond theirs, the youngest first. Who is stopped starts from the beginning.
    """
    free, used = [8] * nodes, [0] * len(quota)
    ends: list[tuple[int, int, int]] = []
    running: dict[int, tuple[int, list[tuple[int, int]]]] = {}
    since = list(submit)
    pending: list[int] = []
    waited, i, n = 0, 0, len(submit)

    def give_back(job: int) -> None:
        used[queue[job]] -= gpus[job]
        for node, count in running.pop(job)[1]:
            free[node] += count

    def make_room(job: int) -> list[int]:
        within = used[queue[job]] + gpus[job] <= quota[queue[job]]
        trial, held, stopped = list(free), list(used), []
        for other in reversed(running):
            own = queue[other] == queue[job]
            if (own and priority[other] < priority[job]) or (
                not own and within and held[queue[other]] > quota[queue[other]]
            ):
                held[queue[other]] -= gpus[other]
                stopped.append(other)
                for node, count in running[other][1]:
                    trial[node] += count
                if consolidated(trial, gpus[job]):
                    return stopped
        return []

    while i < n or ends:
        now = min(submit[i] if i < n else 1 << 62, ends[0][0] if ends else 1 << 62)
        while ends and ends[0][0] == now:
            _, job, began = heappop(ends)
            if job in running and running[job][0] == began:
                give_back(job)
        while i < n and submit[i] == now:
            pending.append(i)
            i += 1
        pending.sort(key=lambda job: (-priority[job], submit[job], job))
        left: list[int] = []
        full: set[int] = set()
        for job in pending:
            chosen = None if gpus[job] in full else consolidated(free, gpus[job])
            if chosen is None:
                for other in make_room(job):
                    give_back(other)
                    since[other] = now
                    left.append(other)
                    full.clear()
                chosen = consolidated(free, gpus[job])
            if chosen is None:
                full.add(gpus[job])
                left.append(job)
                continue
            for node, count in chosen:
                free[node] -= count
            used[queue[job]] += gpus[job]
            running[job] = (now, chosen)
            waited += now - since[job]
            heappush(ends, (now + runtime[job], job, now))
        pending = left
    return waited


def stepped_srtf(submit: list[int], runtime: list[int], gpus: list[int], nodes: int) -> int:
    """Preemptive SRTF second by second, as published simulators do it; times in seconds; the sum of waits.

    Seconds in which nothing can change are skipped, which the published one does not do.
    """
    free, total = [8] * nodes, 8 * nodes
    left = list(runtime)
    since = list(submit)
    place: dict[int, list[tuple[int, int]]] = {}
    pending: list[int] = []
    running: list[int] = []
    waited, i, n, now = 0, 0, len(submit), submit[0] if submit else 0
    while i < n or pending or running:
        changed = False
        for job in list(running):
            if left[job] == 0:
                running.remove(job)
                for node, count in place.pop(job):
                    free[node] += count
                changed = True
            else:
                left[job] -= 1
        while i < n and submit[i] == now:
            pending.append(i)
            i += 1
            changed = True
        if pending:
            budget, chosen = total, []
            for job in sorted(pending + running, key=left.__getitem__):
                if gpus[job] <= budget:
                    budget -= gpus[job]
                    chosen.append(job)
            keep = set(chosen)
            for job in [job for job in running if job not in keep]:
                running.remove(job)
                for node, count in place.pop(job):
                    free[node] += count
                left[job] += 7 if gpus[job] == 1 else 30 if gpus[job] <= 8 else 60
                since[job] = now
                pending.append(job)
                changed = True
            waits = set(pending)
            for job in chosen:
                spot = consolidated(free, gpus[job]) if job in waits else None
                if spot is not None:
                    for node, count in spot:
                        free[node] -= count
                    waited += now - since[job]
                    place[job] = spot
                    pending.remove(job)
                    running.append(job)
                    changed = True
        step = 1
        if not (changed and pending):
            ends = min((left[job] + 1 for job in running), default=1 << 62)
            step = max(min(ends, submit[i] - now if i < n else 1 << 62), 1)
            if step >= 1 << 62:
                break
            for job in running:
                left[job] -= step - 1
        now += step
    return waited


def best_fit(free: Ints, need: int) -> int:
    """The fullest node with `need` GPUs free, by NumPy over all nodes; -1 where there is none."""
    fits = np.flatnonzero(free >= need)
    return int(fits[np.argmin(free[fits])]) if len(fits) else -1


class NumpyFgd:
    """FGD over all nodes at once: the fragmentation of every node after every choice, as arrays."""

    def __init__(self, cpu: Ints, gpus: Ints, mix: Ints) -> None:
        slots = int(gpus.max())
        self.cpu = cpu.astype(np.float64)
        self.free = np.where(np.arange(slots) < gpus[:, None], 1000.0, 0.0)
        self.mix = mix
        self.weight = mix[:, 4] / mix[:, 4].sum()

    def fragments(self, cpu: NDArray[np.float64], free: NDArray[np.float64]) -> NDArray[np.float64]:
        total = np.zeros(len(cpu))
        idle = free.sum(axis=1)
        for (need, count, milli, _, _), weight in zip(self.mix.tolist(), self.weight, strict=True):
            if count == 0:
                total += weight * idle
                continue
            fits = (free >= milli).sum(axis=1)
            small = np.where(free < milli, free, 0.0).sum(axis=1)
            total += weight * np.where((fits >= count) & (cpu >= need), small, idle)
        return total

    def place(self, cpu: int, gpus: int, milli: int) -> bool:
        """Place one pod where fragmentation grows least; whether it fitted."""
        rows = np.flatnonzero(((self.free >= milli).sum(axis=1) >= gpus) & (self.cpu >= cpu))
        if len(rows) == 0:
            return False
        before = self.fragments(self.cpu[rows], self.free[rows])
        best, choice = -np.inf, (-1, np.zeros(0, dtype=np.int64))
        for device in range(self.free.shape[1]) if gpus == 1 and milli < 1000 else (-1,):
            after = self.free[rows].copy()
            if device >= 0:
                usable = after[:, device] >= milli
                after[:, device] -= milli
                chosen = np.full((len(rows), 1), device)
            else:
                usable = np.ones(len(rows), dtype=np.bool_)
                chosen = np.argsort(after < 1000, axis=1, kind="stable")[:, :gpus]
                np.put_along_axis(after, chosen, 0.0, axis=1)
            gain = np.where(usable, before - self.fragments(self.cpu[rows] - cpu, after), -np.inf)
            node = int(np.argmax(gain))
            if gain[node] > best:
                best, choice = float(gain[node]), (int(rows[node]), chosen[node])
        node, devices = choice
        self.cpu[node] -= cpu
        if gpus:
            self.free[node, devices] -= milli
        return True
