"""StateAt: a journal's cluster and queue as they were at a time, with a scheduler that answers questions about them."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from kant.cluster.columns import can_take
from kant.cluster.journal import Header
from kant.cluster.state import ClusterState
from kant.insight.eta_calibrator import EtaCalibrator
from kant.insight.expected_start import StartForecast
from kant.insight.moment import Moment, moment_of
from kant.insight.past_jobs import PastJobs
from kant.live.journal_walk import end_of, read_journal
from kant.metrics.wait_ledger import WaitLedger
from kant.model.decision import Plan, Start
from kant.model.errors import InputError
from kant.model.event import JobRejected, JobSubmitted, PlanProposed
from kant.model.placement import Allocation
from kant.model.units import DAY, FOREVER, clock, count_from
from kant.scheduler.cycle import Scheduler
from kant.scheduler.partial_gangs import decide_again
from kant.sim.forecast_starts import forecast_starts

LOOK_BACK = 14 * DAY
"""Answers are compared with actual starts over this period before the time of the question."""

SAMPLE_FUTURES = 5
"""Number of futures in a forecast that is made only for comparison with what happened."""

SAMPLES = 48
"""Number of such forecasts per journal."""


@dataclass(slots=True)
class StateAt:
    """The state at `now` (microseconds on the run's clock), after everything that happened by then.

    `rejected` has the reasons of rejected jobs, `coming` the jobs submitted later, with their times. The scheduler has
    run no cycles; its decisions do not depend on earlier cycles.
    """

    header: Header
    scheduler: Scheduler
    now: int
    ledger: WaitLedger | None = None
    answers: EtaCalibrator | None = None
    past: PastJobs = field(default_factory=PastJobs)
    rejected: dict[str, str] = field(default_factory=dict)
    coming: dict[str, int] = field(default_factory=dict)

    @property
    def state(self) -> ClusterState:
        return self.scheduler.state

    def observe(self, now: int) -> None:
        """Update ledger, past jobs and answers at the end of an instant."""
        if self.ledger is not None:
            self.ledger.observe(now)
        self.past.observe(self.state)
        if self.answers is not None:
            self.answers.observe(now)
            if self.answers.wants(now):
                self.answers.keep(forecast_starts(self._moment(now), futures=SAMPLE_FUTURES, bare=True))

    def forecast(self, job: str = "") -> StartForecast:
        """Forecast when the waiting jobs start, or `job` alone, from the information at `now`."""
        found = forecast_starts(self._moment(self.now), job)
        return found if self.answers is None else self.answers.calibration().corrected(found)

    def _moment(self, now: int) -> Moment:
        return moment_of(self.scheduler, self.past, now, self.header.zero)


def state_at(path: Path, time: int | None = None, *, keep_ledger: bool = False, keep_answers: bool = False) -> StateAt:
    """Apply the events of a journal up to `time` (None: its end). With `keep_ledger` waits are split by cause.

    With `keep_answers`, starts are also forecast at times in the last LOOK_BACK, and compared with the actual starts.

    Raises InputError for a broken journal, and for a time after its end.
    """
    walk = read_journal(path)
    header = walk.header
    count_from(header.zero)
    scheduler = walk.new_scheduler()
    rebuilt = StateAt(header, scheduler, 0, WaitLedger(scheduler) if keep_ledger else None)
    learn_from = (end_of(path) if time is None else time) - LOOK_BACK if keep_answers else FOREVER
    every = (LOOK_BACK + min(learn_from, 0)) // SAMPLES
    if learn_from <= 0:
        rebuilt.answers = EtaCalibrator(scheduler.state, every)
    end = FOREVER if time is None else time
    walk.observe = lambda now: rebuilt.observe(now) if now <= end else None
    for line in walk:
        if line.time > end:
            if isinstance(line, JobSubmitted):
                rebuilt.coming[line.job.id] = line.time
            continue
        if rebuilt.answers is None and line.time >= learn_from:
            rebuilt.answers = EtaCalibrator(scheduler.state, every)
        if not isinstance(line, Plan):
            walk.apply(scheduler.state, line)
            if isinstance(line, JobRejected):
                rebuilt.rejected[line.job] = line.reason
    if time is not None and time > walk.time:
        raise InputError("--at", f"a time in the journal, which ends at {clock(walk.time)}", clock(time))
    rebuilt.now = walk.time if time is None else time
    rebuilt.observe(rebuilt.now)
    return rebuilt


@dataclass(frozen=True, slots=True)
class Decided:
    """The decision, on line `line` of a journal, to start `job` on the devices `place`: its start `number` of `of`.

    `proposed`: the part of the profile whose solver proposed it; "" if the scheduler decided by itself.
    """

    job: str
    line: int
    time: int
    place: Allocation
    number: int
    of: int
    proposed: str = ""


def find_start(path: Path, job: str, number: int | None = None, time: int | None = None) -> Decided:
    """Find the decision to start a job: number `number` from 1 on, or the last one up to `time` (None: of all).

    Raises InputError for a broken journal, an unknown job, and one that did not start.
    """
    found: list[tuple[int, int, Allocation]] = []
    proposed, by = dict[int, str](), ""  # line number -> what proposed the plan
    submitted, walk = False, read_journal(path)
    count_from(walk.header.zero)
    for line in walk:
        if isinstance(line, JobSubmitted):
            submitted = submitted or line.job.id == job
        elif isinstance(line, Plan):
            starts = (d for d in line.decisions if isinstance(d, Start) and d.job == job)
            found += [(walk.number, line.time, start.allocation) for start in starts]
            if line.proposed:
                proposed[walk.number] = by
        elif isinstance(line, PlanProposed):
            by = line.by
    if not submitted:
        raise InputError("JOB", f"a job of {path}", job)
    if time is not None and time > walk.time:
        raise InputError("--at", f"a time in the journal, which ends at {clock(walk.time)}", clock(time))
    by_then = [start for start in found if time is None or start[1] <= time]
    if not by_then:
        by = f" by {clock(time)}" if time is not None else ""
        raise InputError("JOB", f"a job that has started{by} (why it waits: `kant why`)", job)
    if number is not None and not 1 <= number <= len(found):
        raise InputError("--start", f"a number from 1 to {len(found)}: job {job} started that many times", number)
    number = len(by_then) if number is None else number
    chosen = found[number - 1]
    return Decided(job, *chosen, number, len(found), proposed.get(chosen[0], ""))


def scheduler_before(path: Path, decided: Decided, *, cycles: bool = False) -> Scheduler:
    """Build the scheduler and its state just before the cycle that made this decision.

    A scheduler that has run no cycle decides like one that has. But with `[preemption]`, and with reservations between
    tenants, it may be a cycle behind. With `cycles` every earlier cycle is run.
    """
    walk = read_journal(path)
    scheduler = walk.new_scheduler()
    if cycles:
        walk.cycled = scheduler.cycle
    for line in walk:
        if walk.number == decided.line:
            break
        if not isinstance(line, Plan):
            walk.apply(scheduler.state, line)
        elif cycles:
            decide_again(scheduler, line)
    state, where = scheduler.state, f"{path}:{decided.line}"
    if decided.job not in state.rows:
        raise InputError(where, f"a plan for jobs that have arrived, but {decided.job} has not")
    if len(decided.place) == 0 or not all(can_take(state.empty, piece) for piece in decided.place):
        raise InputError(where, f"a placement of job {decided.job} that fits the cluster")
    return scheduler
