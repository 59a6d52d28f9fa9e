"""When running jobs end: a heap in a table, used by compiled code and by Python."""

from __future__ import annotations

from kant.cluster.columns import Table
from kant.compiled import compiled, inlined
from kant.model.units import FOREVER

# Columns of the heap. Row 0 holds the number of entries in ENDS; the first entry is row 1.
ENDS, JOB = 0, 1

NOT_RUNNING = -1
"""End of a job that does not run, or ends at no known time. Its entries in the heap are stale."""


@inlined
def goes_before(heap: Table, i: int, end: int, job: int) -> bool:
    return bool(heap[i, ENDS] < end or (heap[i, ENDS] == end and heap[i, JOB] < job))


@inlined
def push_end(heap: Table, ends: Table, job: int, end: int) -> None:
    """Record that a job runs and ends at `end` (µs). The heap must have room for one more entry."""
    ends[job] = end
    heap[0, ENDS] += 1
    i = heap[0, ENDS]
    while i > 1 and not goes_before(heap, i >> 1, end, job):
        heap[i, ENDS], heap[i, JOB] = heap[i >> 1, ENDS], heap[i >> 1, JOB]
        i >>= 1
    heap[i, ENDS], heap[i, JOB] = end, job


@inlined
def pop_end(heap: Table) -> None:
    """Remove the first entry."""
    count = heap[0, ENDS]
    end, job = heap[count, ENDS], heap[count, JOB]
    heap[0, ENDS] = count - 1
    i, child = 1, 2
    while child < count:
        if child + 1 < count and goes_before(heap, child + 1, heap[child, ENDS], heap[child, JOB]):
            child += 1
        if not goes_before(heap, child, end, job):
            break
        heap[i, ENDS], heap[i, JOB] = heap[child, ENDS], heap[child, JOB]
        i, child = child, 2 * child
    heap[i, ENDS], heap[i, JOB] = end, job


@inlined
def first_end(heap: Table, ends: Table) -> int:
    """Return when the first running job ends; FOREVER if none runs. Removes stale entries of stopped runs."""
    while heap[0, ENDS] > 0:
        if ends[heap[1, JOB]] == heap[1, ENDS]:
            return int(heap[1, ENDS])
        pop_end(heap)
    return FOREVER


@inlined
def take_end(heap: Table, ends: Table) -> int:
    """Remove and return the first running job, which ends. There must be one."""
    job = heap[1, JOB]
    ends[job] = NOT_RUNNING
    pop_end(heap)
    return int(job)


@compiled
def add_end(heap: Table, ends: Table, job: int, end: int) -> None:
    push_end(heap, ends, job, end)


@compiled
def next_end(heap: Table, ends: Table) -> int:
    return int(first_end(heap, ends))


@compiled
def take_due(heap: Table, ends: Table, now: int, due: Table) -> int:
    """Remove the jobs that end by `now`; return their number. `due` has them from index 1; `due[0]` is the next end."""
    count = 0
    while first_end(heap, ends) <= now:
        count += 1
        due[count] = take_end(heap, ends)
    due[0] = first_end(heap, ends)
    return count
