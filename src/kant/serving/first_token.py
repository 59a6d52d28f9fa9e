"""Compiled functions for the expected time until the first token of a prompt on each of many engines. Every decision of
a router needs it.

`loads` has a row for each engine (`kant.serving.site.LoadTable`). `rows` selects engines, and `out` gets a number for
each of them. `late` has the milliseconds until the current step of each engine ends.
"""

from __future__ import annotations

import math

import numpy as np

from kant.compiled import compiled, compiling_ahead, inlined
from kant.serving.columns import CONTEXT, EXPERTS, FIXED, FLOOR, KV, MISSED, OVERHEAD, SLOPE, Table, Times

NUMBER, SENT, REQUESTS, TOKENS, PENDING, ROOM, LOADS_WIDTH = range(7)
"""Columns of the loads: the engine's number, the requests that this router sent, all requests, their tokens, their
tokens still to prefill, and the number of tokens that its KV cache holds."""

ENGINE, PROMPT, DONE, PREDICTED, ORDER, ASKED_WIDTH = range(6)
"""Columns of the requests: the row of their engine in the loads, prompt and output tokens, predicted output, and the
order in which they were sent."""

COUNT, HEAVY, HAVE, REST, SOONEST, SUMS_WIDTH = range(6)
"""Columns of sums over an engine's requests: their number, the number with a long output, their tokens, the tokens that
they will still get, and the smallest number of these for one request (infinite without requests)."""

LEAST_REST = 10.0
"""The minimum number of output tokens that a request is expected to have left, as in Block (arXiv 2508.03611)."""


@inlined
def first_ms(load: Table, late: float, new: float, latency: Times, budget: int, prompt: int) -> float:
    """Return the milliseconds to the first token of a prompt, of which `new` tokens must be computed.

    This is the rest of the current step, plus as many steps of `budget` tokens as the pending tokens and this prompt
    need. Each of these steps also reads the KV of the decoding requests.
    """
    tokens = load[PENDING] + new
    steps = max(float(math.ceil(tokens / max(budget - load[REQUESTS], 1))), 1.0)
    floor = latency[FLOOR] + latency[EXPERTS]
    computing = max(floor * steps, latency[SLOPE] * tokens + latency[FIXED] * steps)
    step = latency[OVERHEAD] + latency[KV] * load[TOKENS]
    return float(late + computing + step * steps + latency[CONTEXT] * new * (prompt - new / 2))


@compiled
def first_tokens(
    loads: Table, rows: Table, late: Times, new: float, latency: Times, budget: int, prompt: int, out: Times
) -> None:
    """Write the milliseconds to the first token on each engine."""
    for i in range(len(rows)):
        out[i] = first_ms(loads[rows[i]], late[i], new, latency, budget, prompt)


@compiled
def with_room(
    loads: Table, rows: Table, in_flight: int, most_ms: float, latency: Times, budget: int, prompt: int, out: Table
) -> int:
    """Write the positions in `rows` of the engines that may get a prompt. Returns their number.

    Each of them has fewer than `in_flight` requests; the prompt fits into its KV cache and is expected to have its
    first token within `most_ms`, unless the engine has no requests.
    """
    count = 0
    for i in range(len(rows)):
        load = loads[rows[i]]
        if load[SENT] >= in_flight:
            continue
        if load[SENT] > 0 and most_ms < math.inf:
            late = first_ms(load, 0.0, float(prompt), latency, budget, prompt) > most_ms
            if late or load[TOKENS] + prompt > load[ROOM]:
                continue
        out[count] = i
        count += 1
    return count


@compiled
def prefix_costs(
    loads: Table, rows: Table, late: Times, had: Table, block_tokens: float, adapter: int, adapter_ms: float, few: int,
    latency: Times, budget: int, prompt: int, out: Times,
) -> None:  # fmt: skip
    """Write the cost of `routers.prefix.PrefixAware` on each engine. `had` has its cached blocks of the prompt."""
    for i in range(len(rows)):
        load = loads[rows[i]]
        cached = min(int((had[i] - adapter) * block_tokens), prompt - 1) if had[i] > adapter else 0
        new = float(prompt - cached)
        ms = first_ms(load, late[i], new, latency, budget, prompt) + latency[SLOPE] * new
        if adapter and not had[i]:
            ms += adapter_ms
        out[i] = ms * (load[REQUESTS] + few)


@compiled
def sum_up(asked: Times, count: int, rows: Table, heavy: float, out: Times) -> None:
    """Sum up the first `count` requests by engine. `out` has a row for each row of the loads; the rows `rows` are set.

    An output of `heavy` tokens or more is long.
    """
    for i in range(len(rows)):
        out[rows[i]] = 0.0
        out[rows[i], SOONEST] = math.inf
    for i in range(count):
        one = asked[i]
        own = out[int(one[ENGINE])]
        rest = max(one[PREDICTED] - one[DONE], LEAST_REST)
        own[COUNT] += 1.0
        if one[PREDICTED] >= heavy:
            own[HEAVY] += 1.0
        own[HAVE] += one[PROMPT] + one[DONE]
        own[REST] += rest
        own[SOONEST] = min(own[SOONEST], rest)


@compiling_ahead()
def warm_up() -> None:
    """Load or compile these functions in advance, so that no request has to wait for it."""
    table, none, times = np.zeros((1, LOADS_WIDTH), dtype=np.int64), np.zeros(0, dtype=np.int64), np.zeros(0)
    latency = np.zeros(MISSED + 1)
    first_tokens(table, none, times, 0.0, latency, 1, 1, times)
    with_room(table, none, 1, 0.0, latency, 1, 1, none)
    prefix_costs(table, none, times, none, 0.0, 0, 0.0, 1, latency, 1, 1, times)
    sum_up(np.zeros((1, ASKED_WIDTH)), 0, none, 1.0, np.zeros((1, SUMS_WIDTH)))
