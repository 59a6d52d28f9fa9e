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
    done: int = 0
    computed: int = 0
    blocks: list[Block] = field(default_factory=list)
    hashed: int = 0
    first: float | None = None
    finish: float | None = None
    preempted: int = 0
    cached: int | None = None

    @property
    def tokens(self) -> int:
        return self.prompt + self.done

    def content(self, k: int) -> object:
        return ("shared", self.contents[k]) if k < len(self.contents) else (self.id, k)


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

    def give_back(self, blocks: list[Block]) -> None:
        soon, late = [], []
        for block in reversed(blocks):
            block.users -= 1
            if block.users == 0:
                (late if self.caching and block.content is not None else soon).append(block)
        self.free.extendleft(reversed(soon))
        self.free.extend(late)

    def hits(self, request: Request, block_size: int) -> list[Block]:
        found: list[Block] = []
        for k in range((request.tokens - 1) // block_size if self.caching else 0):
            same = self.known.get(request.content(k))
            if not same:
                break
            found.append(same[0])
        return found


class NaiveEngine:
    def __init__(self, settings: EngineSettings) -> None:
        self.s = settings
        self.pool = Pool(settings.num_blocks - 1, settings.prefix_cache)
        self.waiting: list[Request] = []
        self.running: list[Request] = []
        self.steps = self.preemptions = 0

    def order(self, request: Request) -> tuple[float, float, int]:
        return (request.priority if self.s.policy == "priority" else 0.0, request.arrival, request.id)

    def needed(self, tokens: int) -> int:
        return -(-tokens // self.s.block_size)

    def grow(self, request: Request, tokens: int) -> None:
        request.blocks += self.pool.take(max(self.needed(tokens) - len(request.blocks), 0))
        if self.pool.caching:
            for k in range(request.hashed, tokens // self.s.block_size):
                block = request.blocks[k]
                block.content = request.content(k)
                self.pool.known.setdefault(block.content, []).append(block)
            request.hashed = max(request.hashed, tokens // self.s.block_size)

    def preempt(self, request: Request) -> None:
        self.pool.give_back(request.blocks)
        request.blocks, request.hashed, request.computed = [], 0, 0
        request.preempted += 1
        self.preemptions += 1
        self.waiting.append(request)

    def schedule(self) -> dict[Request, int]:
        plan: dict[Request, int] = {}
        budget = self.s.max_num_batched_tokens
        at, preempted = 0, False
        while at < len(self.running) and budget > 0:
            request = self.running[at]
            count = min(request.tokens - request.computed, budget)
            lost = False
            while self.needed(request.computed + count) - len(request.blocks) > len(self.pool.free):
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
            hits = self.pool.hits(request, self.s.block_size)
            idle = sum(block.users == 0 for block in hits)
            if self.needed(request.tokens) - len(hits) + idle > len(self.pool.free):
                break
            self.waiting.pop(0)
            self.running.append(request)
            for block in hits:
                if block.users == 0:
                    self.pool.free.remove(block)
                block.users += 1
            request.blocks, request.hashed = list(hits), len(hits)
            request.computed = len(hits) * self.s.block_size
            if request.cached is None:
                request.cached = request.computed
            count = min(request.tokens - request.computed, budget)
            self.grow(request, request.computed + count)
            plan[request] = count
            budget -= count
        return plan

    def step(self, now: float) -> float:
        """Plan and end one step that begins `now`; returns when it ends."""
        plan = self.schedule()
        if not plan:
            return now
        decode, chunks = 0, 0.0
        for request, count in plan.items():
            if count == 1 and request.done > 0:
                decode += request.computed + 1
            else:
                chunks += count * (request.computed + count / 2)
            request.computed += count
        now += self.s.latency.step_ms(sum(plan.values()), decode, chunks) / 1e3
        self.steps += 1
        for request in plan:
            if request.computed < request.tokens:
                continue
            request.done += 1
            request.first = now if request.first is None else request.first
            if request.done == request.output:
                request.finish = now
                self.pool.give_back(request.blocks)
                request.blocks = []
                self.running.remove(request)
        return now


def run_naively(settings: EngineSettings, requests: list[Request]) -> NaiveEngine:
    """All requests to their end, in order of arrival."""
    engine = NaiveEngine(settings)
    now, coming = 0.0, deque(sorted(requests, key=lambda r: (r.arrival, r.id)))
    while coming or engine.waiting or engine.running:
        if not engine.waiting and not engine.running:
            now = max(now, coming[0].arrival)
        while coming and coming[0].arrival <= now:
            engine.waiting.append(coming.popleft())
        now = engine.step(now)
    return engine
