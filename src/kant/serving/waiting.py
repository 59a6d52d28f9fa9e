"""The waiting requests of an engine, as a heap: by arrival, or by priority and then arrival."""

from __future__ import annotations

from kant.compiled import inlined
from kant.serving import columns as c
from kant.serving.columns import Table, Times


@inlined
def before(requests: Table, times: Times, limits: Table, a: int, b: int) -> bool:
    """Whether request `a` is admitted before request `b`."""
    if (limits[c.BY_PRIORITY] == 1 or limits[c.CONNECTED] == 1) and times[a, c.PRIORITY] != times[b, c.PRIORITY]:
        return bool(times[a, c.PRIORITY] < times[b, c.PRIORITY])
    if times[a, c.ARRIVAL] != times[b, c.ARRIVAL]:
        return bool(times[a, c.ARRIVAL] < times[b, c.ARRIVAL])
    return bool(requests[a, c.TIE] < requests[b, c.TIE])


@inlined
def wait(requests: Table, times: Times, limits: Table, state: Table, waiting: Table, r: int) -> None:
    """Add request `r` to the heap of waiting requests."""
    i = state[c.WAITS]
    state[c.WAITS] += 1
    while i > 0 and before(requests, times, limits, r, waiting[(i - 1) >> 1]):
        waiting[i] = waiting[(i - 1) >> 1]
        i = (i - 1) >> 1
    waiting[i] = r
    requests[r, c.STATE] = c.WAITING


@inlined
def sink(requests: Table, times: Times, limits: Table, state: Table, waiting: Table, r: int, i: int) -> None:
    """Put request `r` at position `i` of the heap, or further down."""
    size = state[c.WAITS]
    while 2 * i + 1 < size:
        child = 2 * i + 1
        if child + 1 < size and before(requests, times, limits, waiting[child + 1], waiting[child]):
            child += 1
        if before(requests, times, limits, r, waiting[child]):
            break
        waiting[i] = waiting[child]
        i = child
    waiting[i] = r


@inlined
def pop(requests: Table, times: Times, limits: Table, state: Table, waiting: Table) -> int:
    """Remove and return the first waiting request."""
    r = waiting[0]
    state[c.WAITS] -= 1
    if state[c.WAITS] > 0:
        sink(requests, times, limits, state, waiting, waiting[state[c.WAITS]], 0)
    return int(r)


@inlined
def leave(requests: Table, times: Times, limits: Table, state: Table, waiting: Table, r: int) -> None:
    """Remove request `r` from the heap of waiting requests."""
    i = 0
    while waiting[i] != r:
        i += 1
    state[c.WAITS] -= 1
    waiting[i] = waiting[state[c.WAITS]]
    for k in range(state[c.WAITS] // 2 - 1, -1, -1):
        sink(requests, times, limits, state, waiting, waiting[k], k)
