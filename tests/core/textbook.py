"""Textbook disciplines: rigid jobs on identical processors, counted and nothing else. An oracle for Kant's disciplines.

A job requests a number of processors, and may have any of them. So no placement, no topology and no device matters, and
the literature on a discipline determines every start. A cluster of N nodes with one GPU each is that machine.

At one instant jobs end, then jobs arrive, then the discipline makes one pass. A job that ends in the instant in which
it starts causes another pass at this instant.

Sources: D. A. Lifka, "The ANL/IBM SP scheduling system", JSSPP 1995 (EASY); A. W. Mu'alem and D. G. Feitelson,
"Utilization, predictability, workloads, and user runtime estimates in scheduling the IBM SP2 with backfilling", IEEE
TPDS 12(6), 2001 (EASY and conservative backfilling as algorithms, and the compression of a schedule); D. Tsafrir, Y.
Etsion and D. G. Feitelson, "Backfilling using system-generated predictions rather than user runtime estimates", IEEE
TPDS 18(6), 2007 (the candidates of EASY in an order of their own: EASY-SJBF).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Pass = Literal["fcfs", "best-effort", "easy", "conservative", "replanned"]


@dataclass(frozen=True, slots=True)
class RigidJob:
    """A job of `size` processors. Times are integers of any unit; an `estimate` of 0 counts as one such unit."""

    submit: int
    run: int
    size: int
    estimate: int

    @property
    def planned(self) -> int:
        return max(self.estimate, 1)


Rank = Callable[[RigidJob], Any]
"""The sort key of a job, smallest first. Ties go by submission, then by position."""


def by_submission(job: RigidJob) -> int:
    """First come, first served."""
    return job.submit


def by_estimate(job: RigidJob) -> int:
    """Shortest estimate first."""
    return job.estimate


def starts_of(
    jobs: Sequence[RigidJob],
    processors: int,
    discipline: Pass,
    order: Rank = by_submission,
    backfill_order: Rank | None = None,
    killed: bool = True,
) -> list[int]:
    """When each job starts on `processors` processors; -1 for a job that is too large.

    `fcfs`: no job passes the first one in the order. `best-effort`: every job that fits starts, in order. `easy`: the
    first job that does not fit starts when enough of the running jobs have reached their estimates (the shadow time); a
    later one starts now if it ends by then, or only needs processors that the first one leaves free then. With
    `backfill_order` the later ones are tried in that order. `conservative`: each job has a reservation from its arrival
    on; in every pass each of them, in order, moves to the earliest place next to all others, which is never later.
    `replanned`: in every pass all reservations are cancelled and made again, in order.

    `killed`: a job that reaches its estimate is stopped. Otherwise it runs on, and whenever it exceeds its expected run
    time, that is doubled; there is a pass, too, when a reservation falls due.
    """
    machine = _Machine(jobs, processors, killed)
    arrivals = sorted(range(len(jobs)), key=lambda i: (jobs[i].submit, i))
    rank = machine.ranked_by(order)
    second = machine.ranked_by(backfill_order) if backfill_order is not None else rank
    reserved: dict[int, int] = {}
    while arrivals or machine.ends:
        machine.now = min([jobs[i].submit for i in arrivals[:1]] + [*machine.ends.values(), *reserved.values()])
        machine.end_jobs()
        while arrivals and jobs[arrivals[0]].submit <= machine.now:
            job = arrivals.pop(0)
            if jobs[job].size <= processors:
                machine.waiting.append(job)
        machine.waiting.sort(key=rank)
        match discipline:
            case "fcfs" | "best-effort":
                _first_fit(machine, discipline == "fcfs")
            case "easy":
                _easy(machine, second, reserved)
            case "conservative" | "replanned":
                _with_reservations(machine, reserved, discipline == "conservative")
    return machine.starts


@dataclass(slots=True)
class _Machine:
    jobs: Sequence[RigidJob]
    processors: int
    killed: bool
    now: int = 0
    free: int = 0
    starts: list[int] = field(default_factory=list)
    waiting: list[int] = field(default_factory=list)
    ends: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.free, self.starts = self.processors, [-1] * len(self.jobs)

    def ranked_by(self, order: Rank) -> Callable[[int], Any]:
        return lambda i: (order(self.jobs[i]), self.jobs[i].submit, i)

    def fits(self, job: int) -> bool:
        return self.jobs[job].size <= self.free

    def start(self, job: int) -> None:
        spec = self.jobs[job]
        self.waiting.remove(job)
        self.starts[job] = self.now
        self.free -= spec.size
        assert self.free >= 0
        self.ends[job] = self.now + (min(spec.run, spec.estimate) if self.killed else spec.run)

    def end_jobs(self) -> None:
        for job in [job for job, end in self.ends.items() if end == self.now]:
            self.free += self.jobs[job].size
            del self.ends[job]

    def expected_end(self, job: int) -> int:
        span = self.jobs[job].planned
        end = self.starts[job] + span
        while end <= self.now:
            end += span
            span *= 2
        return end


def _first_fit(machine: _Machine, blocks: bool) -> None:
    for job in list(machine.waiting):
        if machine.fits(job):
            machine.start(job)
        elif blocks:
            return


def _easy(machine: _Machine, rank: Callable[[int], Any], reserved: dict[int, int]) -> None:
    reserved.clear()
    while machine.waiting and machine.fits(machine.waiting[0]):
        machine.start(machine.waiting[0])
    if not machine.waiting:
        return
    head, *others = machine.waiting
    shadow, extra = machine.now, machine.free - machine.jobs[head].size
    for end, size in sorted((machine.expected_end(job), machine.jobs[job].size) for job in machine.ends):
        if extra >= 0 and end > shadow:
            break
        shadow, extra = end, extra + size
    reserved[head] = shadow
    for job in sorted(others, key=rank):
        spec = machine.jobs[job]
        if not machine.fits(job):
            continue
        if machine.now + spec.planned <= shadow:
            machine.start(job)
        elif spec.size <= extra:
            extra -= spec.size
            machine.start(job)


def _with_reservations(machine: _Machine, reserved: dict[int, int], kept: bool) -> None:
    if not kept:
        reserved.clear()
    for job in list(machine.waiting):
        reserved.pop(job, None)
        spans = [(machine.now, machine.expected_end(other), machine.jobs[other].size) for other in machine.ends]
        spans += [(at, at + machine.jobs[other].planned, machine.jobs[other].size) for other, at in reserved.items()]
        start = _earliest(machine, spans, machine.jobs[job])
        if start == machine.now:
            machine.start(job)
        else:
            reserved[job] = start


def _earliest(machine: _Machine, spans: list[tuple[int, int, int]], job: RigidJob) -> int:
    """The earliest start at which the job has its processors for its planned time, next to these spans."""
    changes: dict[int, int] = {machine.now: 0}
    for start, end, size in spans:
        changes[start] = changes.get(start, 0) - size
        changes[end] = changes.get(end, 0) + size
    free, since = machine.processors, machine.now
    fitting = False
    for time in sorted(changes):
        if fitting and time >= since + job.planned:
            return since
        free += changes[time]
        if free < job.size:
            fitting = False
        elif not fitting:
            fitting, since = True, time
    assert fitting, "in the end all is free"
    return since
