"""vLLM's scheduler in plain objects: lists, dictionaries and nothing clever. An opinion independent of the kernel.

It follows the text of vllm/v1/core (0.32) name by name, without what the recorded runs do not use.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from kant.serving.engine import EngineSettings


@dataclass
class Block:
    number: int
    users: int = 0
    content: object = None


@dataclass(eq=False)
class Request:
    id: int
    arrival: float
    prompt: int
    output: int
    priority: float
    contents: list[int]
    most: int = 0
    done: int = 0
    computed: int = 0
    placeholders: int = 0
    in_flight: int = 0
    stale: int = 0
    tables: list[list[Block | None]] = field(default_factory=list)
    hashed: int = 0
    first: float | None = None
    finish: float | None = None
    preempted: int = 0
    cached: int | None = None

    @property
    def tokens(self) -> int:
        return self.prompt + self.done

    def content(self, group: int, k: int) -> object:
        return (group, "shared", self.contents[k]) if k < len(self.contents) else (group, self.id, k)

    @property
    def held(self) -> int:
        return len(self.tables[0])


@dataclass
class Batch:
    plan: dict[Request, int]
    samples: set[Request]
    end: float


class Pool:
    def __init__(self, count: int, caching: bool) -> None:
        self.free = deque(Block(i) for i in range(count))
        self.caching = caching
        self.known: dict[object, list[Block]] = {}

    def take(self, count: int) -> list[Block]:
        taken = [self.free.popleft() for _ in range(count)]
        for block in taken:
            if block.content is not None:
                self.known[block.content].remove(block)
                if not self.known[block.content]:
                    del self.known[block.content]
                block.content = None
            assert block.users == 0
            block.users = 1
        return taken

    def give_back(self, blocks: list[Block | None]) -> None:
        soon, late = [], []
        for block in reversed(blocks):
            if block is None:
                continue
            block.users -= 1
            if block.users == 0:
                (late if self.caching and block.content is not None else soon).append(block)
        self.free.extendleft(reversed(soon))
        self.free.extend(late)


class NaiveEngine:
    def __init__(self, settings: EngineSettings) -> None:
        self.s = settings
        self.pool = Pool(settings.num_blocks - 1, settings.prefix_cache)
        self.waiting: list[Request] = []
        self.running: list[Request] = []
        self.steps = self.preemptions = 0
        self.free_at = 0.0

    def order(self, request: Request) -> tuple[float, float, int]:
        return (request.priority if self.s.policy == "priority" else 0.0, request.arrival, request.id)

    def needed(self, tokens: int) -> int:
        return -(-tokens // self.s.block_size)

    def hits(self, request: Request) -> tuple[int, list[list[Block | None]]]:
        """The longest prefix of which every group has what the next token attends to: whatever is tried, the longest
        first."""
        count = (request.tokens - 1) // self.s.block_size if self.pool.caching else 0
        while True:
            tables: list[list[Block | None]] = []
            for group, window in enumerate(self.s.sliding_windows):
                gone = max(count * self.s.block_size - window + 1, 0) // self.s.block_size if window else 0
                same = [self.pool.known.get(request.content(group, k)) for k in range(gone, count)]
                tables.append([None] * gone + [blocks[0] if blocks else None for blocks in same])
                if not all(same):
                    break
            else:
                return count, tables
            count -= 1

    def slide(self, request: Request, computed: int) -> None:
        for table, window in zip(request.tables, self.s.sliding_windows, strict=True):
            gone = min((computed - window + 1) // self.s.block_size, len(table)) if window else 0
            self.pool.give_back(table[: max(gone, 0)])
            table[: max(gone, 0)] = [None] * max(gone, 0)

    def cap(self, window: int) -> int:
        flying = (2 if self.s.async_scheduling else 1) * self.s.max_num_batched_tokens
        return self.needed(window - 1 + flying) + 1 if window else self.s.num_blocks

    def grow(self, request: Request, tokens: int) -> None:
        for table in request.tables:
            table += self.pool.take(max(self.needed(tokens) - len(table), 0))
        self.know(request, min(tokens, request.tokens))

    def know(self, request: Request, tokens: int) -> None:
        if self.pool.caching:
            for group, table in enumerate(request.tables):
                for k in range(request.hashed, tokens // self.s.block_size):
                    if (block := table[k]) is not None:
                        block.content = request.content(group, k)
                        self.pool.known.setdefault(block.content, []).append(block)
            request.hashed = max(request.hashed, tokens // self.s.block_size)

    def free(self, request: Request) -> None:
        for table in request.tables:
            self.pool.give_back(table)
        request.tables = []

    def preempt(self, request: Request) -> None:
        self.free(request)
        request.hashed = request.computed = 0
        request.placeholders, request.stale = 0, request.in_flight
        request.preempted += 1
        self.preemptions += 1
        self.waiting.append(request)

    def schedule(self) -> dict[Request, int]:
        plan: dict[Request, int] = {}
        budget = self.s.max_num_batched_tokens
        at, preempted = 0, False
        while at < len(self.running) and budget > 0:
            request = self.running[at]
            if request.placeholders and request.computed + 2 - request.placeholders >= request.prompt + request.most:
                at += 1
                continue
            count = min(request.tokens + request.placeholders - request.computed, budget)
            lost = False
            self.slide(request, request.computed - request.in_flight)
            wanted = (self.needed(request.computed + count) - request.held) * len(self.s.sliding_windows)
            while wanted > len(self.pool.free):
                if self.s.policy == "priority":
                    loser = max(self.running, key=lambda r: (r.priority, r.arrival))
                else:
                    loser = self.running[-1]
                place = self.running.index(loser)
                del self.running[place]
                at -= place < at
                budget += plan.pop(loser, 0)
                self.preempt(loser)
                preempted = True
                if loser is request:
                    lost = True
                    break
            if lost:
                break
            self.grow(request, request.computed + count)
            plan[request] = count
            budget -= count
            at += 1
        self.waiting.sort(key=self.order)
        while not preempted and budget > 0 and self.waiting and len(self.running) < self.s.max_num_seqs:
            request = self.waiting[0]
            assert not request.stale
            hits, tables = self.hits(request)
            found = [block for table in tables for block in table if block is not None]
            idle = sum(block.users == 0 for block in found)
            count = min(request.tokens - hits * self.s.block_size, budget)
            now = (self.needed(hits * self.s.block_size + count) - hits) * len(tables)
            whole = sum(
                max(min(self.needed(request.tokens), self.cap(window)) - hits, 0) for window in self.s.sliding_windows
            )
            if max(now, whole) + idle > len(self.pool.free):
                break
            self.waiting.pop(0)
            self.running.append(request)
            for block in found:
                if block.users == 0:
                    self.pool.free.remove(block)
                block.users += 1
            request.tables, request.hashed = tables, hits
            request.computed = hits * self.s.block_size
            if request.cached is None:
                request.cached = request.computed
            self.grow(request, request.computed + count)
            plan[request] = count
            budget -= count
        return plan

    def begin(self, now: float) -> Batch:
        """Plan a step; it is computed from `now` on, or once those before it are."""
        plan = self.schedule()
        decode, chunks, samples = 0, 0.0, set()
        for request, count in plan.items():
            if count == 1 and request.done + request.placeholders > 0:
                decode += request.computed + 1
            else:
                chunks += count * (request.computed + count / 2)
            request.computed += count
            request.in_flight += count
            if request.computed == request.tokens + request.placeholders:
                samples.add(request)
                request.placeholders += self.s.async_scheduling
        if plan:
            self.free_at = max(self.free_at, now)
            self.free_at += self.s.latency.step_ms(sum(plan.values()), decode, chunks) / 1e3
            self.steps += 1
        return Batch(plan, samples, self.free_at if plan else now)

    def end(self, batch: Batch) -> None:
        """Learn what a step has output."""
        for request, count in batch.plan.items():
            request.in_flight -= count
            stale = request.stale > 0
            request.stale -= count if stale else 0
            if request.finish is not None or request not in batch.samples:
                continue
            request.done += 1
            request.first = batch.end if request.first is None else request.first
            if not stale:
                request.placeholders -= self.s.async_scheduling
                self.know(request, request.computed - request.placeholders)
            if request.done == request.output:
                request.finish = batch.end
                self.free(request)
                (self.waiting if stale else self.running).remove(request)


def run_naively(settings: EngineSettings, requests: list[Request]) -> NaiveEngine:
    """All requests to their end, in order of arrival; batches wait in a queue as in vLLM's engine core."""
    engine = NaiveEngine(settings)
    now, coming = 0.0, deque(sorted(requests, key=lambda r: (r.arrival, r.id)))
    most, queue = 2 if settings.async_scheduling else 1, deque[Batch]()
    while coming or engine.waiting or engine.running or queue:
        if not engine.waiting and not engine.running and not queue:
            now = max(now, coming[0].arrival)
        while coming and coming[0].arrival <= now:
            engine.waiting.append(coming.popleft())
        if engine.waiting or engine.running:
            queue.append(engine.begin(now))
            if len(queue) < most:
                continue
        batch = queue.popleft()
        now = max(now, batch.end)
        engine.end(batch)
    return engine
