"""A simulated engine: its settings, and the tables on which the compiled step loop runs."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kant.model.errors import InputError, StateError
from kant.serving import columns as c
from kant.serving import eviction, kernel, waiting
from kant.serving.columns import FOREVER, Table, Times
from kant.serving.latency import LatencyModel

NO_LIMIT = 1 << 62
MOST = 1 << 24
"""The maximum value of any setting of an engine."""

SPAN = 1 << 20
"""The range of content numbers of one request. It is larger than the number of a request's blocks."""


WITH_HIDDEN_STATES = ("mtp", "eagle", "eagle3")
"""Speculative methods whose drafts come from the model's own states. They need KV of their own, and compute the last
cached block again.
"""

MOST_DRAFTS, MOST_GROUPS = 64, 64

ENGINES = {"vllm": ("fcfs", "priority"), "sglang": ("fcfs", "lof", "lpm", "dfs-weight")}
"""The engines, and for each the orders in which its scheduler can take requests."""

OF_SGLANG = (
    "latency", "num_blocks", "max_num_seqs", "max_num_batched_tokens", "policy", "engine", "async_scheduling",
    "acceptance", "max_model_len",
)  # fmt: skip
"""The settings that have an effect on an engine of SGLang, or that it ignores."""


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """Settings of an engine. Their names are vLLM's.

    `num_blocks` includes the block that vLLM reserves: one less is usable. `policy` is `fcfs` or `priority`. With
    `preemptive`, waiting requests take seats (`max_num_seqs`) and blocks from running ones of worse priority. With
    `swap`, preempted requests move their KV to host memory and back instead of computing it again. vLLM V1 has neither.

    `sliding_windows` has the window of each KV group of the model, in tokens; 0: full attention. Groups have equal
    numbers of layers, and blocks of equal size. `num_blocks` counts the blocks of one group.

    With the `kv_role` `kv_consumer`, the KV of prompts may come from other engines by a connector. If it does not
    arrive, `kv_load_failure_policy` says whether to `recompute` it or to `fail` the request. With `kv_producer`, KV is
    sent to other engines once a request has ended; its blocks are held until then.

    Host memory keeps `host_blocks` blocks, too; with `offload_prompt_only`, only blocks of prompts.

    With the `engine` `sglang` blocks are tokens, `max_num_batched_tokens` is the chunk of prompts, and `policy` is one
    of its schedule policies.
    """

    latency: LatencyModel
    num_blocks: int
    block_size: int = 16
    max_num_seqs: int = 128
    max_num_batched_tokens: int = 2048
    prefix_cache: bool = False
    policy: str = "fcfs"
    preemptive: bool = False
    swap: bool = False
    long_prefill_token_threshold: int = 0
    enable_chunked_prefill: bool = True
    watermark: float = 0.0
    scheduler_reserve_full_isl: bool = True
    async_scheduling: bool = False
    speculative_method: str = "mtp"
    num_speculative_tokens: int = 0
    acceptance: float = 0.7
    sliding_windows: tuple[int, ...] = (0,)
    max_model_len: int = MOST
    kv_role: str = ""
    kv_load_failure_policy: str = "recompute"
    host_blocks: int = 0
    offload_prompt_only: bool = True
    engine: str = "vllm"

    def __post_init__(self) -> None:
        for name, least, most in (
            ("num_blocks", 2, MOST), ("block_size", 1, MOST), ("max_num_seqs", 1, MOST),
            ("max_num_batched_tokens", 1, MOST), ("long_prefill_token_threshold", 0, MOST),
            ("num_speculative_tokens", 0, MOST_DRAFTS), ("host_blocks", 0, MOST),
        ):  # fmt: skip
            if not least <= getattr(self, name) <= most:
                raise InputError(name, f"a whole number from {least} to {most}", getattr(self, name))
        if not 0 <= self.watermark < 1:
            raise InputError("watermark", "a share of the KV from 0 to less than 1", self.watermark)
        if not 0 <= self.acceptance <= 1:
            raise InputError("acceptance", "a share of the drafts from 0 to 1", self.acceptance)
        for name, known in (
            ("engine", tuple(ENGINES)), ("policy", ENGINES.get(self.engine, ())),
            ("speculative_method", (*WITH_HIDDEN_STATES, "ngram")), ("kv_role", ("", "kv_consumer", "kv_producer")),
            ("kv_load_failure_policy", ("recompute", "fail")),
        ):  # fmt: skip
            if getattr(self, name) not in known:
                *others, last = filter(None, known)
                raise InputError(name, f"{', '.join(others)} or {last}", getattr(self, name))
        self._check_windows()
        if self.engine != "vllm":
            for name, field in self.__dataclass_fields__.items():
                wanted = {"block_size": 1, "prefix_cache": True}.get(name, field.default)
                if name not in OF_SGLANG and getattr(self, name) != wanted:
                    raise InputError(name, f"{wanted} with SGLang", getattr(self, name))

    def _check_windows(self) -> None:
        windows = self.sliding_windows
        if not 0 < len(windows) <= MOST_GROUPS or any(w == 1 or not 0 <= w <= MOST for w in windows):
            expected = f"windows of 1 to {MOST_GROUPS} KV groups, each of 2 tokens or more, or 0 for full attention"
            raise InputError("sliding_windows", expected, windows)
        if self.kv_role and (self.swap or windows != (0,)):
            found = "swap" if self.swap else windows
            raise InputError("kv_role", "no swap, and one KV group of full attention", found)
        alone = self.prefix_cache and not (self.kv_role or self.swap or self.preemptive)
        if self.host_blocks and not (alone and windows == (0,)):
            expected = "0, or a prefix cache, one KV group of full attention, and no connector, swap or preemptive"
            raise InputError("host_blocks", expected, self.host_blocks)
        if any(windows) and self.swap:
            raise InputError("sliding_windows", "only 0 with swap", windows)

    @property
    def caps(self) -> tuple[int, ...]:
        """The maximum number of blocks that a request holds at once in each KV group.

        For a window, as in vLLM, this is the number of blocks that it covers, and that the current steps compute.
        """
        flying = (1 + self.async_scheduling) * self.max_num_batched_tokens
        ends = [min(w - 1 + flying, self.max_model_len) if w else 0 for w in self.sliding_windows]
        return tuple(-(-end // self.block_size) + 1 if end else NO_LIMIT for end in ends)

    @property
    def lookahead(self) -> int:
        """The number of KV slots that drafts take beyond the tokens of a step."""
        return self.num_speculative_tokens if self.speculative_method in WITH_HIDDEN_STATES else 0

    @property
    def tokens(self) -> int:
        """The maximum number of tokens that a single request can have so that its KV fits."""
        if not any(self.sliding_windows):
            return (self.num_blocks - 1) // len(self.sliding_windows) * self.block_size
        most, caps = MOST // self.block_size, self.caps
        fits = bisect_right(range(most + 1), self.num_blocks - 1, key=lambda n: sum(min(n, cap) for cap in caps))
        return min(fits - 1, most) * self.block_size

    def check(self, prompt: int, output: int) -> None:
        """Raise InputError if an engine can never finish a request of these lengths."""
        if prompt < 1 or output < 1:
            raise InputError("request", "a prompt and an output of at least one token", (prompt, output))
        spare = 3 * self.num_speculative_tokens  # a step verifies drafts, the next one too, and more are drafted
        if prompt + output - 1 + spare > self.tokens:
            most = self.tokens - spare
            raise InputError("request", f"at most {most} tokens, as many as the KV holds", prompt + output - 1)
        if not self.enable_chunked_prefill and prompt + output - 1 > self.max_num_batched_tokens:
            most = self.max_num_batched_tokens
            raise InputError("request", f"at most {most} tokens, as many as a step computes", prompt + output - 1)


class Engine:
    """A running engine. Requests are added in order of arrival and identified by the number that `add` returns."""

    def __init__(self, settings: EngineSettings, expected: int = 64) -> None:
        self.settings = settings
        by_priority = settings.policy == "priority" or settings.preemptive
        self.limits: Table = np.array(
            [
                settings.max_num_seqs, settings.max_num_batched_tokens, settings.block_size, settings.num_blocks - 1,
                settings.prefix_cache, by_priority, settings.preemptive, settings.swap,
                settings.long_prefill_token_threshold, settings.enable_chunked_prefill,
                int(settings.watermark * settings.num_blocks), settings.scheduler_reserve_full_isl,
                settings.async_scheduling, settings.num_speculative_tokens, settings.lookahead,
                settings.lookahead > 0, math.ceil(settings.acceptance * 65536),
                any(settings.sliding_windows), len(settings.sliding_windows),
                settings.kv_role != "" or settings.host_blocks > 0, settings.host_blocks, settings.offload_prompt_only,
                settings.kv_role == "kv_producer", settings.kv_load_failure_policy == "fail",
                *(limit for pair in zip(settings.sliding_windows, settings.caps, strict=True) for limit in pair),
            ],
            dtype=np.int64,
        )  # fmt: skip
        self.latency: Times = settings.latency.row()
        self.state: Table = np.zeros(2 * c.STATE_WIDTH, dtype=np.int64)
        self.state[c.FREE] = settings.num_blocks - 1
        self.state[c.ADMIT] = -1
        self.clock: Times = np.zeros(c.CLOCK_WIDTH + settings.host_blocks)
        self.count = 0
        lists = settings.host_blocks > 0 or settings.kv_role == "kv_producer"
        width = c.REQUEST_WIDTH + len(settings.sliding_windows) + c.MORE_COLUMNS * lists
        self.requests: Table = np.zeros((expected, width), dtype=np.int64)
        self.times: Times = np.zeros((expected, c.TIMES_WIDTH))
        self.waiting: Table = np.zeros(expected, dtype=np.int64)
        self.ended: Table = np.zeros(expected, dtype=np.int64)
        self.shared: Table = np.zeros(1, dtype=np.int64)
        self.shared_count = 0
        seqs = settings.max_num_seqs
        self.running: Table = np.zeros(seqs, dtype=np.int64)
        self.plans: Table = np.zeros(((1 + settings.async_scheduling) * seqs, c.PLAN_WIDTH), dtype=np.int64)
        self.free_rows: Table = np.arange(seqs, dtype=np.int64)
        self.blocks, self.buckets, self.held = self._kv()
        self.kernel = kernel.run_ahead if settings.async_scheduling else kernel.run
        if settings.num_speculative_tokens or any(settings.sliding_windows) or self.limits[c.CONNECTED]:
            self.kernel = kernel.run_any

    def _kv(self) -> tuple[Table, Table, Table]:
        """Return the blocks, all free in order, their buckets, and the blocks of each seat."""
        if not self.settings.prefix_cache:
            empty = np.zeros((1, c.BLOCK_WIDTH), dtype=np.int64)
            return empty, np.full((1, 2), -1, dtype=np.int64), np.zeros((1, 1), dtype=np.int64)
        count, host = self.settings.num_blocks - 1, self.settings.host_blocks
        blocks = np.zeros((count + 2 * host, c.BLOCK_WIDTH), dtype=np.int64)
        blocks[:, c.CONTENT] = c.NOTHING
        blocks[:, c.BEFORE] = np.arange(-1, len(blocks) - 1)
        blocks[:, c.NEXT] = np.arange(1, len(blocks) + 1)
        blocks[count - 1, c.NEXT] = -1
        self.state[c.HEAD], self.state[c.TAIL] = 0, count - 1
        if host:
            blocks[count, c.BEFORE] = blocks[count + host - 1, c.NEXT] = -1
            own = self.state[c.STATE_WIDTH :]
            own[c.HEAD], own[c.TAIL] = count, count + host - 1
        buckets = np.full((1 << max(count + host - 1, 1).bit_length(), 2), -1, dtype=np.int64)
        rows = self.settings.max_num_seqs * len(self.settings.sliding_windows)
        if self.limits[c.CONNECTED]:  # a request that holds blocks may have no seat; two rows each: see `offload`
            rows = 2 * len(self.requests)
        return blocks, buckets, np.zeros((rows, 64), dtype=np.int64)

    def add(
        self,
        arrival: float,
        prompt: int,
        output: int,
        priority: float = 0.0,
        contents: Sequence[int] | Table = (),
        tie: int | None = None,
        most: int = NO_LIMIT,
        seed: int | None = None,
        remote_s: float | None = None,
        remote_tokens: int = NO_LIMIT,
    ) -> int:
        """Add a waiting request, and return its number. The engine must have run until `arrival`.

        `contents` are non-negative numbers for the contents of its leading full blocks: equal prefixes of numbers mean
        equal tokens. `most` is the request's `max_tokens`. If `output` is less, the request ends at a stop token, which
        asynchronous scheduling learns a step later. `seed` (default: its number) determines which drafts are accepted.
        `remote_s` is how many seconds the KV of the prompt takes to come from another engine, by a KV connector. The
        load of tokens beyond `remote_tokens` fails, which is known at its end; this engine then computes them. For a
        `kv_producer`, `remote_s` is how many seconds it takes to send the KV once the request has ended; FOREVER: until
        `sent` is called. Raises InputError if the request can never fit.
        """
        self.settings.check(prompt, output)
        r = self.count
        if r == len(self.requests):
            self.widen()
        self.count += 1
        row = self.requests[r]
        row[:] = 0
        row[c.PROMPT], row[c.OUTPUT], row[c.BLOCK_ROW], row[c.CACHED] = prompt, output, -1, -1
        row[c.MOST], row[c.SEED] = max(most, output), r if seed is None else seed
        row[c.TIE] = r if tie is None else tie
        row[c.OWN] = -(r + 1) * SPAN
        if self.settings.prefix_cache:
            self._share(row, contents, prompt, output)
        nan = float("nan")
        row[c.REMOTE], row[c.COMES] = (remote_s is not None) * (3 if self.limits[c.SENDS] else 1), remote_tokens
        if self.limits[c.CONNECTED] and not self.limits[c.BY_PRIORITY]:
            priority = 0.0  # the compiled loop puts requests that it has preempted first
        self.times[r] = (arrival, priority, nan, nan, 0.0, nan, remote_s or 0.0)
        if not self.state[c.PLANNED] and arrival > self.clock[c.CLOCK]:
            self.clock[c.CLOCK] = arrival
        self.clock[c.BLOCKED] = 0.0
        waiting.wait(self.requests, self.times, self.limits, self.state, self.waiting, r)
        return r

    def _share(self, row: Table, contents: Sequence[int] | Table, prompt: int, output: int) -> None:
        most = min(len(contents), (prompt + output) // self.settings.block_size)
        end = self.shared_count + most
        if end > len(self.shared):
            self.shared = np.concatenate([self.shared, np.zeros(max(end, len(self.shared)), dtype=np.int64)])
        self.shared[self.shared_count : end] = contents[:most]
        row[c.SHARED_FROM], row[c.SHARED] = self.shared_count, most
        self.shared_count = end
        longest = prompt + output + 1 + 3 * self.settings.num_speculative_tokens
        width = -(-longest // self.settings.block_size)
        if width > self.held.shape[1]:
            wider = np.zeros((len(self.held), max(width, 2 * self.held.shape[1])), dtype=np.int64)
            wider[:, : self.held.shape[1]] = self.held
            self.held = wider

    def widen(self) -> None:
        """Double the capacity for requests."""
        self.requests = np.concatenate([self.requests, np.zeros_like(self.requests)])
        self.times = np.concatenate([self.times, np.zeros_like(self.times)])
        first = len(self.waiting) - self.state[c.LOADS]
        room = np.zeros_like(self.waiting)
        self.waiting = np.concatenate([self.waiting[:first], room, self.waiting[first:]])
        if self.limits[c.CONNECTED] and self.settings.prefix_cache:
            self.held = np.concatenate([self.held, np.zeros_like(self.held)])
        self.ended = np.concatenate([self.ended, np.zeros_like(self.ended)])

    def run(self, until: float = FOREVER, steps: int = NO_LIMIT, stop_at_finish: bool = False) -> int:
        """Run until a time, a number of steps, or a finished request. Returns why it stopped (`columns.REACHED` …)."""
        why = self.kernel(
            self.requests, self.times, self.shared, self.blocks, self.buckets, self.held, self.limits, self.latency,
            self.state, self.clock, self.waiting, self.running, self.free_rows, self.plans, self.ended, until, steps,
            stop_at_finish,
        )  # fmt: skip
        if why == c.STUCK:
            raise StateError("requests wait for an engine that runs nothing")
        return why

    def sent(self, r: int, at: float) -> None:
        """Set the time `at` which the KV of an ended request will have been sent. Its blocks are free from then on."""
        self.times[r, c.LOADED] = at
        self.clock[c.BLOCKED] = min(self.clock[c.BLOCKED], at)

    def take_ended(self) -> list[int]:
        """Return the requests that have finished since the last call, in order."""
        found: list[int] = self.ended[: self.state[c.ENDED]].tolist()
        self.state[c.ENDED] = 0
        return found

    @property
    def now(self) -> float:
        """The time at which the latest step ended."""
        return float(self.clock[c.CLOCK])

    def live(self) -> Table:
        """Return the running requests in order of admission, the waiting ones, and those whose KV is on its way."""
        return np.concatenate([self.running[: self.state[c.RUNS]], *self._waits()])

    def _waits(self) -> tuple[Table, Table]:
        """Return the waiting requests, and those whose KV is on its way."""
        return self.waiting[: self.state[c.WAITS]], self.waiting[len(self.waiting) - self.state[c.LOADS] :]

    @property
    def plan(self) -> Table:
        """The plan of the current step."""
        return self.plans[self.state[c.TURN] :]

    @property
    def may_plan(self) -> bool:
        """Whether a step can be planned now: with asynchronous scheduling also once while another is computed."""
        if self.state[c.PLANNED]:
            return bool(self.limits[c.ASYNC] and not self.state[c.LOOKED])
        return bool(kernel.left_over(self.state, True)) and self.clock[c.BLOCKED] <= self.now

    @property
    def next_event(self) -> float:
        """The end of the current step, or of the event for which the next step waits; the present time if a step can be
        planned at once; infinity if there is nothing to do.
        """
        if self.may_plan:
            return self.now
        if self.state[c.PLANNED]:
            return float(self.clock[c.END])
        return float(self.clock[c.BLOCKED]) if kernel.left_over(self.state, True) else FOREVER

    def ran(self) -> Table:
        """Return the requests of the latest completed step, without those that had ended before it."""
        first = int(self.limits[c.MAX_SEQS] - self.state[c.TURN] if self.limits[c.ASYNC] else 0)
        rows: Table = self.plans[first : first + self.state[c.RAN]]
        return rows[:, c.WHO][rows[:, c.SAMPLES] >= 0]

    def reorder(self) -> None:
        """Reorder waiting requests after their priorities have changed."""
        for i in range(int(self.state[c.WAITS]) // 2 - 1, -1, -1):
            r = int(self.waiting[i])
            waiting.sink(self.requests, self.times, self.limits, self.state, self.waiting, r, i)

    def queue(self) -> list[int]:
        """Return the waiting requests in order of admission."""
        waiting = self.waiting[: self.state[c.WAITS]]
        keys = [self.requests[waiting, c.TIE], self.times[waiting, c.ARRIVAL]]
        if self.limits[c.BY_PRIORITY] or self.limits[c.CONNECTED]:
            keys.append(self.times[waiting, c.PRIORITY])
        order: list[int] = waiting[np.lexsort(keys)].tolist()
        return order

    def withdraw(self, r: int) -> bool:
        """Remove a live request whose client has disconnected. Returns False while the current step computes the
        request, or its KV is coming from another engine.

        With asynchronous scheduling that lasts until the next step is planned; tokens under way are then discarded.
        """
        if self.requests[r, c.STATE] == c.LOADING:
            return False
        if self.requests[r, c.STATE] not in (c.WAITING, c.RUNNING):
            return True
        if r in self.plan[: self.state[c.PLANNED], c.WHO] and not self.may_plan:
            return False
        if self.requests[r, c.STATE] == c.RUNNING:
            at = int(np.flatnonzero(self.running[: self.state[c.RUNS]] == r)[0])
            eviction.preempt(
                self.requests, self.times, self.blocks, self.held, self.limits, self.state, self.waiting, self.running,
                self.free_rows, at,
            )  # fmt: skip
            self.state[c.PREEMPTIONS] -= 1
            self.requests[r, c.PREEMPTED] -= 1
            self.state[c.MOVED] -= self.requests[r, c.SWAPPED]
        waits = int(self.state[c.WAITS])
        at = int(np.flatnonzero(self.waiting[:waits] == r)[0])
        self.waiting[at] = self.waiting[waits - 1]
        self.state[c.WAITS] -= 1
        self.reorder()
        self.requests[r, c.STATE] = c.WITHDRAWN
        return True

    def fork(self, outputs: Times) -> tuple[Engine, Table]:
        """Return a copy with only the live requests. Each ends after as many tokens as `outputs` says.

        Also returns the original number of each request in the copy. A request that already exceeds its prediction is
        assumed to produce ten more tokens (as in Block). The copy has no prefix cache.
        """
        live, (waits, loads) = self.live(), self._waits()
        place = np.zeros(self.count + 1, dtype=np.int64)
        place[live] = np.arange(len(live))
        twin = object.__new__(Engine)
        twin.settings, twin.kernel = self.settings, self.kernel
        twin.limits, twin.latency = self.limits.copy(), self.latency
        twin.limits[c.CACHING] = twin.limits[c.HOST] = 0
        twin.state, twin.clock = self.state.copy(), self.clock.copy()
        twin.state[c.ENDED], twin.state[c.ADMIT] = 0, -1  # nothing limits its admissions now
        twin.state[c.FIRST_LEFT] = 0
        room = np.zeros((1, self.requests.shape[1]), dtype=np.int64)
        twin.requests = np.concatenate([self.requests[live], room])
        twin.times = np.concatenate([self.times[live], np.zeros((1, c.TIMES_WIDTH))])
        done = twin.requests[:-1, c.DONE]
        said = outputs[live].astype(np.int64)
        most = twin.settings.tokens + 1 - twin.requests[:-1, c.PROMPT]
        twin.requests[:-1, c.OUTPUT] = np.minimum(np.where(said > done, said, done + 10), np.maximum(most, done + 1))
        twin.count = len(live)
        twin.waiting = np.zeros(len(live) + 1, dtype=np.int64)
        twin.waiting[: len(waits)] = place[waits]
        twin.waiting[len(live) + 1 - len(loads) :] = place[loads]
        twin.running, twin.plans = place[self.running], self.plans.copy()
        twin.plans[:, c.SAMPLES] *= np.isin(self.plans[:, c.WHO], live)  # the others have ended
        twin.plans[:, c.WHO] = place[self.plans[:, c.WHO]]
        twin.ended, twin.free_rows = np.zeros(len(live) + 1, dtype=np.int64), self.free_rows.copy()
        twin.shared, twin.shared_count = self.shared[:1], 0
        twin.blocks, twin.buckets, twin.held = self.blocks[:1], self.buckets[:1], self.held[:1]
        return twin, live
