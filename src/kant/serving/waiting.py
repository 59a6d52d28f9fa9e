"""The waiting requests of an engine: a heap, by (priority,) arrival."""

from __future__ import annotations

from kant.compiled import inlined
from kant.serving.columns import ARRIVAL, BY_PRIORITY, CONNECTED, PRIORITY, STATE, TIE, WAITING, WAITS, Table, Times


@inlined
def before(requests: Table, times: Times, limits: Table, a: int, b: int) -> bool:
    """Whether request `a` is admitted before request `b`."""
    if (limits[BY_PRIORITY] == 1 or limits[CONNECTED] == 1) and times[a, PRIORITY] != times[b, PRIORITY]:
        return bool(times[a, PRIORITY] < times[b, PRIORITY])
    if times[a, ARRIVAL] != times[b, ARRIVAL]:
        return bool(times[a, ARRIVAL] < times[b, ARRIVAL])
    return bool(requests[a, TIE] < requests[b, TIE])


@inlined
def wait(requests: Table, times: Times, limits: Table, state: Table, waiting: Table, r: int) -> None:
    """Add request `r` to the heap of waiting requests."""
    i = state[WAITS]
    state[WAITS] += 1
    while i > 0 and before(requests, times, limits, r, waiting[(i - 1) >> 1]):
        waiting[i] = waiting[(i - 1) >> 1]
        i = (i - 1) >> 1
    waiting[i] = r
    requests[r, STATE] = WAITING


@inlined
def sink(requests: Table, times: Times, limits: Table, state: Table, waiting: Table, r: int, i: int) -> None:
    """Put request `r` at position `i` of the heap, or below."""
    size = state[WAITS]
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
    state[WAITS] -= 1
    if state[WAITS] > 0:
        sink(requests, times, limits, state, waiting, waiting[state[WAITS]], 0)
    return int(r)


@inlined
def leave(requests: Table, times: Times, limits: Table, state: Table, waiting: Table, r: int) -> None:
    """Remove request `r` from the heap of waiting requests."""
    i = 0
    while waiting[i] != r:
        i += 1
    state[WAITS] -= 1
    waiting[i] = waiting[state[WAITS]]
    for k in range(state[WAITS] // 2 - 1, -1, -1):
        sink(requests, times, limits, state, waiting, waiting[k], k)
