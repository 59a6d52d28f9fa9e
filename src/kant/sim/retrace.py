"""Retrace: a journal's cluster and queue as they stood at a time, with a scheduler that can be asked about them."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from kant.cluster.columns import can_take
from kant.cluster.journal import Footer, Header
from kant.cluster.state import ClusterState
from kant.metrics.ledger import Ledger
from kant.model.decision import Plan, Start
from kant.model.errors import InputError, Violation
from kant.model.event import JobRejected, JobSubmitted
from kant.model.placement import Allocation
from kant.model.units import DAY, FOREVER, clock, count_from
from kant.scheduler.answers import Answers
from kant.scheduler.cycle import Scheduler
from kant.scheduler.mend import decide
from kant.sim.replay import end_of, read_journal, scheduler_of

LOOK_BACK = 14 * DAY
"""Answers are compared with what happened over so long before the time that is asked about."""


@dataclass(slots=True)
class Standing:
    """How things stood at `now` (microseconds on the run's clock), when all that happened by then had happened.

    `rejected` has the reasons of jobs that were given back, `coming` the jobs that were submitted later, with their
    times. What the scheduler decides does not depend on cycles that it has not run, so none were run.
    """

    header: Header
    scheduler: Scheduler
    now: int
    ledger: Ledger | None = None
    answers: Answers | None = None
    rejected: dict[str, str] = field(default_factory=dict)
    coming: dict[str, int] = field(default_factory=dict)

    @property
    def state(self) -> ClusterState:
        return self.scheduler.state

    def observe(self, now: int) -> None:
        """All that happened at an instant has happened."""
        if self.ledger is not None:
            self.ledger.observe(now)
        if self.answers is not None:
            self.answers.observe(now)


def stand_at(path: Path, time: int | None = None, *, keep_ledger: bool = False, keep_answers: bool = False) -> Standing:
    """Take the events of a journal in up to `time` (None: its end). With `keep_ledger` waits are split by cause.

    With `keep_answers` expected starts are asked for on the way, from LOOK_BACK before, and compared with the starts.

    Raises InputError for a broken journal, and for a time at which it says nothing.
    """
    header, lines = read_journal(path)
    count_from(header.zero)
    scheduler = scheduler_of(header, path)
    state = scheduler.state
    standing = Standing(header, scheduler, 0, Ledger(scheduler) if keep_ledger else None)
    last = 0
    learn_from = (end_of(path) if time is None else time) - LOOK_BACK if keep_answers else FOREVER
    if learn_from <= 0:
        standing.answers = Answers(scheduler)
    for number, line in enumerate(lines, start=2):
        if line.time < last:
            raise InputError(f"{path}:{number}", f"a time that is not before {last}", line.time)
        if line.time > last and (time is None or last <= time):
            standing.observe(last)
            if standing.answers is None and line.time >= learn_from:
                standing.answers = Answers(scheduler)
        last = line.time
        if time is not None and line.time > time:
            if isinstance(line, JobSubmitted):
                standing.coming[line.job.id] = line.time
        elif not isinstance(line, Plan | Footer):
            try:
                state.apply(line)
            except (Violation, OverflowError) as violation:
                raise InputError(f"{path}:{number}", f"an event that fits the state: {violation}") from None
            if isinstance(line, JobRejected):
                standing.rejected[line.job] = line.reason
    if time is not None and time > last:
        raise InputError("--at", f"a time in the journal, which ends at {clock(last)}", clock(time))
    standing.now = last if time is None else time
    standing.observe(standing.now)
    return standing


@dataclass(frozen=True, slots=True)
class Decided:
    """The decision, on line `line` of a journal, to start `job` on `place`: number `number` of its `of` starts."""

    job: str
    line: int
    time: int
    place: Allocation
    number: int
    of: int


def find_start(path: Path, job: str, number: int | None = None, time: int | None = None) -> Decided:
    """The decision to start a job: number `number` from 1 on, or the last one up to `time` (None: of all).

    Raises InputError for a broken journal, a job that it does not know, and one that did not start.
    """
    found: list[tuple[int, int, Allocation]] = []
    submitted, last = -1, 0
    header, lines = read_journal(path)
    count_from(header.zero)
    for at, line in enumerate(lines, start=2):
        if line.time < last:
            raise InputError(f"{path}:{at}", f"a time that is not before {last}", line.time)
        last = line.time
        if isinstance(line, JobSubmitted) and line.job.id == job:
            submitted = line.time
        elif isinstance(line, Plan):
            found += [(at, last, d.allocation) for d in line.decisions if isinstance(d, Start) and d.job == job]
    if submitted < 0:
        raise InputError("JOB", f"a job of {path}", job)
    if time is not None and time > last:
        raise InputError("--at", f"a time in the journal, which ends at {clock(last)}", clock(time))
    by_then = [start for start in found if time is None or start[1] <= time]
    if not by_then:
        by = f" by {clock(time)}" if time is not None else ""
        raise InputError("JOB", f"a job that has started{by} (why it waits: `kant why`)", job)
    if number is not None and not 1 <= number <= len(found):
        raise InputError("--start", f"a number from 1 to {len(found)}: so often did job {job} start", number)
    number = len(by_then) if number is None else number
    return Decided(job, *found[number - 1], number, len(found))


def stand_before(path: Path, decided: Decided, *, cycles: bool = False) -> Scheduler:
    """A scheduler before the cycle that decided this, as things stood then.

    A scheduler that has lived through no cycle decides like one that has; but with `[preemption]`, and with promises
    among tenants, it may be a cycle behind. With `cycles` every cycle before is run.
    """
    header, lines = read_journal(path)
    scheduler = scheduler_of(header, path)
    for number, line in enumerate(lines, start=2):
        if number == decided.line:
            break
        if isinstance(line, Plan | Footer):
            if cycles and isinstance(line, Plan):
                decide(scheduler, line)
            continue
        try:
            scheduler.state.apply(line)
        except (Violation, OverflowError) as violation:
            raise InputError(f"{path}:{number}", f"an event that fits the state: {violation}") from None
    state, where = scheduler.state, f"{path}:{decided.line}"
    if decided.job not in state.rows:
        raise InputError(where, f"a plan for jobs that have come, and {decided.job} has not")
    if len(decided.place) == 0 or not all(can_take(state.empty, piece) for piece in decided.place):
        raise InputError(where, f"a place for job {decided.job} that the nodes of the cluster have")
    return scheduler
