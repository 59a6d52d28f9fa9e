"""Least attained service of a call, in queues (MLFQ).

Autellix (arXiv 2502.13965) knows neither the length of a program nor of a call. It sorts calls into queues by attained
service; a call that uses up the quantum of its queue moves one queue down. A call that has waited `beta` times its
service time returns to the first queue. Edges and quanta are not in the paper: here, powers of two from 64 tokens.
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
class Call:
    """A call: its program, queue and remaining quantum, and the seconds waited and served since it entered queue 0."""

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
    calls: dict[tuple[int, int], Call] = field(default_factory=dict, init=False)
    service: dict[int, int] = field(default_factory=lambda: defaultdict(int), init=False)
    waits: dict[int, float] = field(default_factory=lambda: defaultdict(float), init=False)
    times: dict[int, float] = field(default_factory=lambda: defaultdict(float), init=False)

    preemptive = True
    by_priority = True
    by_step = True

    def inherit(self, program: int) -> int:
        """Return the attained service (tokens) with which a new call of a program starts."""
        return 0

    def quantum(self, queue: int) -> int:
        return self.edges[min(queue, len(self.edges) - 1)]

    def arrived(self, engine: Engine, job: Job, number: int) -> float:
        had = self.inherit(job.program)
        queue = bisect_right(self.edges, had)
        self.calls[id(engine), number] = Call(job.program, queue, self.quantum(queue), had)
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

    def account(self, call: Call, tokens: int) -> None:
        """Add the service of a finished call to its program."""

    def forget(self, program: int) -> None:
        for table in (self.service, self.waits, self.times):
            table.pop(program, None)
