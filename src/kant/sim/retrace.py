"""Retrace: a journal's cluster and queue as they stood at a time, with a scheduler that can be asked about them."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from kant.cluster.journal import Footer, Header
from kant.cluster.state import ClusterState
from kant.metrics.ledger import Ledger
from kant.model.decision import Plan
from kant.model.errors import InputError, Violation
from kant.model.event import JobRejected, JobSubmitted
from kant.model.units import clock
from kant.scheduler.cycle import Scheduler
from kant.sim.replay import read_journal, scheduler_of


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
    rejected: dict[str, str] = field(default_factory=dict)
    coming: dict[str, int] = field(default_factory=dict)

    @property
    def state(self) -> ClusterState:
        return self.scheduler.state


def stand_at(path: Path, time: int | None = None, *, keep_ledger: bool = False) -> Standing:
    """Take the events of a journal in up to `time` (None: its end). With `keep_ledger` waits are split by cause.

    Raises InputError for a broken journal, and for a time at which it says nothing.
    """
    header, lines = read_journal(path)
    scheduler = scheduler_of(header, path)
    state = scheduler.state
    standing = Standing(header, scheduler, 0, Ledger(scheduler) if keep_ledger else None)
    last = 0
    for number, line in enumerate(lines, start=2):
        if line.time < last:
            raise InputError(f"{path}:{number}", f"a time that is not before {last}", line.time)
        if standing.ledger is not None and line.time > last and (time is None or last <= time):
            standing.ledger.observe(last)
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
    if standing.ledger is not None:
        standing.ledger.observe(standing.now)
    return standing
