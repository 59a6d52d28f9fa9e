"""An engine as its router sees it: exactly, in the simulator; or observed, by the requests sent to it and the tokens
received from it.

A router of real engines knows neither their queues nor their blocks. It knows which requests it has sent, and which
tokens it has received: this is `ObservedSite`. The simulator has both views, so it can simulate a proxy's decisions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, cast

import numpy as np

from kant.serving import columns as c
from kant.serving import waiting
from kant.serving.columns import Table, Times
from kant.serving.engine import Engine, EngineSettings
from kant.serving.first_token import (
    ASKED_WIDTH,
    DONE,
    ENGINE,
    LOADS_WIDTH,
    ORDER,
    PENDING,
    PREDICTED,
    PROMPT,
    REQUESTS,
    ROOM,
    SENT,
    SUMS_WIDTH,
    TOKENS,
    sum_up,
)


@dataclass(slots=True)
class Sent:
    """A request on an engine: its prompt tokens, its output tokens so far, and its predicted output.

    `cached`: how many of its prompt tokens are assumed to be in the engine's prefix cache.
    """

    prompt: int
    predicted: float
    done: int = 0
    cached: int = 0
    place: int = -1
    """The row of the request in `LoadTable.asked`."""

    @property
    def tokens(self) -> int:
        return self.prompt + self.done


class Site(Protocol):
    """The state of an engine that a router may use."""

    @property
    def number(self) -> int:
        """The number of the engine among all engines."""
        ...

    @property
    def settings(self) -> EngineSettings:
        """The settings of the engine."""
        ...

    @property
    def requests(self) -> int:
        """The running and waiting requests."""
        ...

    def tokens(self) -> int:
        """Return the tokens of the engine's requests, prompts and outputs so far."""
        ...

    def pending_prefill(self) -> int:
        """Return how many tokens must still be computed before all requests decode."""
        ...

    def under_way_ms(self, now: float) -> float:
        """Return the milliseconds until the current step ends; 0 if unknown. The step's tokens are not pending."""
        ...

    def freeness(self) -> float:
        """Return Llumnix's freeness, larger for less load: free KV minus waiting prompts, per running request."""
        ...

    def loads(self) -> tuple[Table, Table, Times]:
        """Return for each request of the engine: prompt tokens, output tokens so far, and predicted output."""
        ...

    def twin(self, now: float) -> tuple[Engine, float]:
        """Return a copy of the engine in which requests end as predicted, and the present time on the copy's clock."""
        ...


@dataclass(frozen=True, slots=True)
class EngineSite:
    """A simulated engine, with the predicted outputs of its requests.

    `cached` returns how many prompt tokens of each request were assumed to be in the prefix cache.
    """

    engine: Engine
    predicted: Callable[[], Times]
    number: int = 0
    cached: Callable[[], Table] | None = None

    @property
    def settings(self) -> EngineSettings:
        return self.engine.settings

    @property
    def requests(self) -> int:
        return int(self.engine.state[[c.RUNS, c.WAITS, c.LOADS]].sum())

    def _rows(self) -> tuple[Table, Table]:
        engine = self.engine
        rows, runs = engine.requests[engine.live()], engine.state[c.RUNS]
        return rows[:runs], rows[runs:]

    def tokens(self) -> int:
        runs, waits = self._rows()
        return int(sum(rows[:, c.PROMPT].sum() + rows[:, c.DONE].sum() for rows in (runs, waits)))

    def pending_prefill(self) -> int:
        left = 0
        for rows in self._rows():
            left += int((rows[:, c.PROMPT] + rows[:, c.DONE] - rows[:, c.COMPUTED]).sum())
        if self.cached is not None:
            engine = self.engine
            left -= int(self.cached()[engine.waiting[: engine.state[c.WAITS]]].sum())
        come = self._rows()[1][self.engine.state[c.WAITS] :, c.SWAPPED]
        return left - int(come.sum())

    def under_way_ms(self, now: float) -> float:
        engine = self.engine
        return max(0.0, float(engine.clock[c.END]) - now) * 1e3 if engine.state[c.PLANNED] else 0.0

    def freeness(self) -> float:
        engine = self.engine
        _, waits = self._rows()
        asked = waits[: engine.state[c.WAITS], c.PROMPT]
        free = int(engine.state[c.FREE]) * engine.settings.block_size - int(asked.sum())
        return free / max(1, int(engine.state[c.RUNS]))

    def loads(self) -> tuple[Table, Table, Times]:
        live = self.engine.live()
        rows = self.engine.requests[live]
        return rows[:, c.PROMPT], rows[:, c.DONE], self.predicted()[live]

    def twin(self, now: float) -> tuple[Engine, float]:
        return self.engine.fork(self.predicted())[0], now


class LoadTable:
    """The loads of observed engines and of their requests, so that a router compares all engines in one operation.

    `array` has a row for each engine. The first rows of `asked` have the requests, in no particular order.
    """

    def __init__(self, most: int) -> None:
        self.array: Table = np.zeros((most, LOADS_WIDTH), dtype=np.int64)
        self.cells: tuple[memoryview[int], ...] = tuple(map(memoryview, self.array.T))
        """The columns of `array`; setting one number is several times faster here than in NumPy."""
        self.free = list(range(most))[::-1]
        self.sums: Times = np.zeros((most, SUMS_WIDTH))
        self.sent: list[Sent] = []
        """The request of each row of `asked`."""
        self.count = 0
        """The number of requests added so far."""
        self._grow(np.zeros((0, ASKED_WIDTH)))

    def _grow(self, before: Times) -> None:
        self.asked: Times = np.zeros((max(64, 2 * len(before)), ASKED_WIDTH))
        self.asked[: len(before)] = before
        self._cells = cast("memoryview[float]", self.asked.data)

    def add(self, row: int, sent: Sent) -> None:
        """Add a request of the engine whose row of `array` is `row`."""
        place = sent.place = len(self.sent)
        if place == len(self.asked):
            self._grow(self.asked)
        self.sent.append(sent)
        self.count += 1
        cells = self._cells
        cells[place, ORDER] = self.count
        cells[place, ENGINE], cells[place, PROMPT] = row, sent.prompt
        cells[place, DONE], cells[place, PREDICTED] = sent.done, sent.predicted

    def said(self, sent: Sent) -> None:
        """Record the output tokens that a request has now."""
        self._cells[sent.place, DONE] = sent.done

    def remove(self, sent: Sent) -> None:
        """Remove a request. The request in the last row moves to its row."""
        last = self.sent.pop()
        if last is not sent:
            self.asked[sent.place] = self.asked[last.place]
            self.sent[sent.place] = last
            last.place = sent.place


class Sites(Sequence[Site]):
    """Engines to choose from, and their loads as arrays.

    The loads of observed engines are rows of a `LoadTable`. Other engines are asked once for each array.
    """

    def __init__(self, sites: Sequence[Site], loads: LoadTable | None = None, rows: Table | None = None) -> None:
        self.sites, self._rows, self._of = sites, rows, loads
        self._table = None if loads is None else loads.array
        self._late = None if rows is None else np.zeros(len(rows))

    def __len__(self) -> int:
        return len(self.sites)

    def __getitem__(self, k: int) -> Site:  # type: ignore[override]
        return self.sites[k]

    def __iter__(self) -> Iterator[Site]:
        return iter(self.sites)

    def loads(self) -> tuple[Table, Table]:
        """Return a table of loads, and the row of each engine."""
        if self._table is None or self._rows is None:
            said = [(s.number, 0, s.requests, s.tokens(), s.pending_prefill(), s.settings.tokens) for s in self.sites]
            self._table, self._rows = np.array(said, dtype=np.int64), np.arange(len(said))
        return self._table, self._rows

    @property
    def requests(self) -> Table:
        """The running and waiting requests of each engine."""
        return self._column(REQUESTS, lambda site: site.requests)

    @property
    def room(self) -> Table:
        """The number of tokens that each engine's KV cache holds."""
        return self._column(ROOM, lambda site: site.settings.tokens)

    @property
    def tokens(self) -> Table:
        """The tokens of each engine's requests, prompts and outputs so far."""
        return self._column(TOKENS, lambda site: site.tokens())

    @property
    def pending(self) -> Table:
        """The tokens that each engine must compute before all its requests decode."""
        return self._column(PENDING, lambda site: site.pending_prefill())

    def sums(self, heavy: float) -> Times:
        """Return a row of sums over the requests of each engine, in the columns of
        `kant.serving.first_token.sum_up`.
        """
        if self._of is not None and self._rows is not None:
            found = self._of.sums
            sum_up(self._of.asked, len(self._of.sent), self._rows, heavy, found)
            return found[self._rows]
        rows, each = np.arange(len(self.sites)), [site.loads() for site in self.sites]
        parts = [np.column_stack([np.full(len(said[0]), k), *said]) for k, said in enumerate(each)]
        asked, found = np.concatenate(parts, dtype=np.float64), np.zeros((len(rows), SUMS_WIDTH))
        sum_up(asked, len(asked), rows, heavy, found)
        return found

    def _column(self, which: int, ask: Callable[[Site], int]) -> Table:
        if self._table is None or self._rows is None:
            return np.array([ask(site) for site in self.sites])
        found: Table = self._table[self._rows, which]
        return found

    def under_way_ms(self, now: float) -> Times:
        """Return the milliseconds until the current step of each engine ends; 0 if not known."""
        return np.array([site.under_way_ms(now) for site in self.sites]) if self._late is None else self._late


@dataclass(slots=True)
class ObservedSite:
    """An engine seen from outside: the requests sent to it, by keys of the caller, and the tokens received.

    Requests with a token are assumed to run, in the order in which they were sent; those without are assumed to wait.
    `other_requests` and `other_tokens` are the load of other senders, and `other_pending` its tokens to prefill.
    """

    settings: EngineSettings
    number: int = 0
    table: LoadTable = field(default_factory=lambda: LoadTable(1))
    """The table that has a row for this engine until `leave` is called."""
    live: dict[int, Sent] = field(default_factory=dict)
    other_requests: int = 0
    other_tokens: int = 0
    other_pending: int = 0
    row: int = field(init=False)
    _begun: int = 0
    _blocks: int = 0

    def __post_init__(self) -> None:
        self.row = self.table.free.pop()
        self.table.array[self.row] = self.number, 0, 0, 0, 0, 0
        self.resize(self.settings)

    def leave(self) -> None:
        """Free the engine's row of the table."""
        self.table.free.append(self.row)

    def resize(self, settings: EngineSettings) -> None:
        """Use other settings, such as the size of the KV that the engine reports."""
        self.settings = settings
        self.table.cells[ROOM][self.row] = settings.tokens

    def beside(self, requests: int, tokens: int, pending: int = 0) -> None:
        """Set the load of other senders: requests, their tokens, and their tokens still to prefill, if known."""
        self._add(0, requests - self.other_requests, tokens - self.other_tokens, pending - self.other_pending)
        self.other_requests, self.other_tokens, self.other_pending = requests, tokens, pending

    def _add(self, own: int, requests: int, tokens: int, pending: int) -> None:
        """Change the numbers in the engine's row by these amounts."""
        cells, k = self.table.cells, self.row
        cells[SENT][k] += own
        cells[REQUESTS][k] += requests
        cells[TOKENS][k] += tokens
        cells[PENDING][k] += pending

    @property
    def requests(self) -> int:
        return self.table.cells[REQUESTS][self.row]

    def tokens(self) -> int:
        return self.table.cells[TOKENS][self.row]

    def pending_prefill(self) -> int:
        return self.table.cells[PENDING][self.row]

    def under_way_ms(self, now: float) -> float:
        return 0.0  # a request counts as pending here until its first token is seen

    def freeness(self) -> float:
        pending = self.pending_prefill() - self.other_pending  # other_pending is part of other_tokens
        free = self.settings.tokens - self._blocks * self.settings.block_size - pending - self.other_tokens
        return free / max(1, self._begun + self.other_requests)

    def loads(self) -> tuple[Table, Table, Times]:
        sent = self.live.values()
        prompt, done = [s.prompt for s in sent], [s.done for s in sent]
        predicted = np.array([s.predicted for s in sent], dtype=np.float64)
        return np.array(prompt, dtype=np.int64), np.array(done, dtype=np.int64), predicted

    def send(self, key: int, prompt: int, predicted: float, cached: int = 0) -> None:
        """Add a sent request."""
        sent = self.live[key] = Sent(prompt, predicted, cached=cached)
        self.table.add(self.row, sent)
        self._add(1, 1, prompt, prompt - cached)

    def said(self, key: int, done: int) -> None:
        """Set the output tokens of a request so far. A number lower than before is ignored."""
        sent = self.live[key]
        if done <= sent.done:
            return
        cells, k = self.table.cells, self.row
        if sent.done == 0:
            cells[PENDING][k] -= sent.prompt - sent.cached
            self._begun += 1
        else:
            self._blocks -= self._held(sent)
        cells[TOKENS][k] += done - sent.done
        sent.done = done
        self.table.said(sent)
        self._blocks += self._held(sent)

    def end(self, key: int) -> Sent:
        """Remove a request that has ended or was withdrawn."""
        sent = self.live.pop(key)
        self.table.remove(sent)
        self._add(-1, -1, -sent.tokens, 0 if sent.done else sent.cached - sent.prompt)
        if sent.done:
            self._begun -= 1
            self._blocks -= self._held(sent)
        return sent

    def _held(self, sent: Sent) -> int:
        """Return the blocks of a request that has a token. The KV of its latest token is not computed yet."""
        return -(-(sent.tokens - 1) // self.settings.block_size)

    def twin(self, now: float) -> tuple[Engine, float]:
        """Return a copy whose clock is 0, so that decisions depend on no clock. Requests that do not fit wait."""
        settings = replace(self.settings, prefix_cache=False, policy="fcfs", preemptive=False)
        engine = Engine(settings, len(self.live) + 1)
        begun = [sent for sent in self.live.values() if sent.done]
        others = [sent for sent in self.live.values() if not sent.done]
        for sent in [*begun, *others]:
            most = max(settings.tokens + 1 - sent.prompt, sent.done + 1)
            said = round(sent.predicted)
            said = min(said if said > sent.done else sent.done + 10, most)  # ten tokens more, as in Block
            engine.add(0.0, min(sent.prompt, settings.tokens), max(min(said, most), 1))
        for r, sent in enumerate(begun):
            if engine.state[c.RUNS] == settings.max_num_seqs or self._held(sent) > engine.state[c.FREE]:
                break
            _start(engine, sent.done, self._held(sent))
            engine.requests[r, c.COMPUTED] = sent.tokens - 1
        return engine, 0.0


def _start(engine: Engine, done: int, blocks: int) -> None:
    """Start the first waiting request as one with `done` output tokens and these blocks."""
    state = engine.state
    r = waiting.pop(engine.requests, engine.times, engine.limits, state, engine.waiting)
    row = engine.requests[r]
    row[c.DONE], row[c.HELD], row[c.STATE] = done, blocks, c.RUNNING
    row[c.BLOCK_ROW] = engine.free_rows[engine.limits[c.MAX_SEQS] - 1 - state[c.RUNS]]
    engine.running[state[c.RUNS]] = r
    state[c.RUNS] += 1
    state[c.FREE] -= blocks
    engine.times[r, c.FIRST] = engine.times[r, c.LAST] = np.nan
