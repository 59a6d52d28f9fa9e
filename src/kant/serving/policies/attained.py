"""Least attained service: of a call (MLFQ), or of the program that it belongs to (Autellix, arXiv 2502.13965).

Autellix knows neither how long a program nor a call will be. It sorts calls into queues by what their program has had;
a call that uses up the quantum of its queue goes one queue down. A call that has waited `beta` times as long as it has
been served goes back to the first queue. Edges and quanta are not in the paper: these are powers of two from 64 tokens.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from dataclasses import dataclass, field
from typing import ClassVar

from kant.model.taxonomy import Tags, tagged
from kant.serving import columns as c
from kant.serving.engine import Engine
from kant.serving.policy import Job, Policy

EDGES = (64, 128, 256, 512, 1024, 2048, 4096, 8192)


@dataclass
class _Call:
    """A call: its program, its queue, what is left of the quantum, and its waiting and service since it was raised."""

    program: int
    queue: int
    quantum: int
    inherited: int
    waited: float = 0.0
    served: float = 0.0


@dataclass
class Mlfq(Policy):
    """Multi-level feedback queues of calls, as FastServe has them: every call begins in the first queue."""

    source: ClassVar[str] = "FastServe, Wu et al., arXiv 2305.05920, as in Autellix"
    tags: ClassVar[Tags] = tagged(Policy.tags, objective="latency")

    edges: tuple[int, ...] = EDGES
    beta: float = 8.0
    calls: dict[tuple[int, int], _Call] = field(default_factory=dict, init=False)
    service: dict[int, int] = field(default_factory=lambda: defaultdict(int), init=False)
    waits: dict[int, float] = field(default_factory=lambda: defaultdict(float), init=False)
    times: dict[int, float] = field(default_factory=lambda: defaultdict(float), init=False)

    preemptive = True
    by_priority = True
    by_step = True

    def inherit(self, program: int) -> int:
        """What a new call of a program is taken to have had already, in tokens."""
        return 0

    def quantum(self, queue: int) -> int:
        return self.edges[min(queue, len(self.edges) - 1)]

    def arrived(self, engine: Engine, job: Job, number: int) -> float:
        had = self.inherit(job.program)
        queue = bisect_right(self.edges, had)
        self.calls[id(engine), number] = _Call(job.program, queue, self.quantum(queue), had)
        return float(queue)

    def after_step(self, engine: Engine, took: float) -> None:
        changed = False
        ran = engine.ran()
        for r in ran[engine.requests[ran, c.DONE] > 0].tolist():
            call = self.calls[id(engine), r]
            call.quantum -= 1
            call.served += took
            if call.quantum <= 0 and call.queue < len(self.edges):
                call.queue += 1
                call.quantum = self.quantum(call.queue)
                engine.times[r, c.PRIORITY] = call.queue
        for r in engine.waiting[: engine.state[c.WAITS]].tolist():
            call = self.calls[id(engine), r]
            call.waited += took
            waited, served = self.waits[call.program] + call.waited, self.times[call.program] + call.served
            if call.queue > 0 and waited >= self.beta * max(served, 1e-3):
                call.queue, call.quantum = 0, self.quantum(0)
                call.waited = call.served = 0.0
                engine.times[r, c.PRIORITY] = 0.0
                changed = True
        if changed:
            engine.reorder()

    def finished(self, engine: Engine, number: int) -> None:
        call = self.calls.pop((id(engine), number))
        self.account(call, int(engine.requests[number, c.OUTPUT]))

    def account(self, call: _Call, tokens: int) -> None:
        """Add what a finished call has had to its program."""

    def forget(self, program: int) -> None:
        for table in (self.service, self.waits, self.times):
            table.pop(program, None)


@dataclass
class Plas(Mlfq):
    """Program-level attained service (PLAS): a call inherits the tokens of all finished calls of its program."""

    source: ClassVar[str] = "Autellix, Luo et al., arXiv 2502.13965"
    tags: ClassVar[Tags] = tagged(Mlfq.tags, unit="request dag")

    def inherit(self, program: int) -> int:
        return self.service[program]

    def account(self, call: _Call, tokens: int) -> None:
        self.service[call.program] += tokens
        self.waits[call.program] += call.waited
        self.times[call.program] += call.served


@dataclass
class Atlas(Plas):
    """PLAS for programs that call in parallel: a program has had the longest chain of calls that was seen."""

    def account(self, call: _Call, tokens: int) -> None:
        self.service[call.program] = max(self.service[call.program], call.inherited + tokens)
        self.waits[call.program] += call.waited
        self.times[call.program] += call.served
