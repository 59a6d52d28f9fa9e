"""One run: the core against a workload in simulated time.

At each instant, in this order: jobs end, jobs arrive, running jobs report progress; then one cycle; then its plan is
carried out. What happens at the same instant is seen by the same cycle.
"""

from __future__ import annotations

import resource
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from kant import __version__
from kant.cluster import columns as c
from kant.cluster.journal import Footer, Header, Journal
from kant.cluster.state import ClusterState
from kant.metrics.ledger import Ledger, wait_by_cause
from kant.metrics.recorder import Recorder
from kant.metrics.result import RunResult
from kant.metrics.summary import job_table, summarise
from kant.model.decision import (
    Demote,
    Expire,
    Hold,
    Plan,
    Preempt,
    Reject,
    Release,
    Reorder,
    Reserve,
    Start,
    sentence,
)
from kant.model.event import (
    Event,
    JobCancelled,
    JobDemoted,
    JobFailed,
    JobFinished,
    JobPreempted,
    JobProgressed,
    JobRejected,
    JobReleased,
    JobReserved,
    JobStarted,
    JobSubmitted,
    MixObserved,
    QueueOrdered,
    QueuesChanged,
)
from kant.model.node import ClusterSpec
from kant.model.tenant import Tenancy
from kant.model.units import FOREVER, GPU, SECOND
from kant.scheduler.cycle import Scheduler
from kant.scheduler.inquiry import Inquiry
from kant.scheduler.profile import Profile
from kant.sim.jobs import Gangs, arrivals, typical_pods
from kant.sim.options import SimOptions, read_options
from kant.sim.speed import Endless, IntervalOverhead, ResumeCost, Speed, Steady
from kant.sim.static import PackingCurve, static_arrivals
from kant.sim.tenants import check_profile
from kant.workload.workload import Workload

REPORT_EVERY = 1024
"""Instants between two calls of `progress` and two looks at `stop`."""

CHECK_EVERY = 1 << 15
"""Instants between two checks of every invariant; there is always one at the end."""


@dataclass(slots=True)
class RunHooks:
    """What a caller may want of a run: a place for the journal, its progress, and a way to stop it.

    With `ledger` every wait is split by its causes (metrics/ledger.py).
    """

    journal: Callable[[bytes], object] | None = None
    progress: Callable[[int, int], object] = lambda done, total: None
    stop: Callable[[], bool] = lambda: False
    keep_intervals: bool = False
    ledger: bool = False


def simulate(
    workload: Workload,
    cluster: ClusterSpec,
    profile: Profile,
    *,
    seed: int = 0,
    until: int = FOREVER,
    hooks: RunHooks | None = None,
    tenancy: Tenancy | None = None,
) -> RunResult:
    """Run `workload` on `cluster` under `profile`, up to `until` microseconds after time zero.

    `tenancy` has the queues and their quotas; without it nothing is limited. Raises InputError for options of the
    profile that cannot be used, and for queues or bursts that its discipline does not heed.
    """
    options = read_options(profile.simulation, f"profile {profile.name}")
    check_profile(profile, tenancy, bursts=bool((workload.core >= 0).any()) and not options.static)
    if options.static:
        workload = static_arrivals(workload, cluster, options.inflate, seed)
    gangs = Gangs(cluster, options.shape == "gpu")
    run = Run(workload.name, cluster, profile, options, seed, until, hooks or RunHooks(), tenancy)
    run.observe_mix(typical_pods(workload, gangs, options.typical_share, run.state.shapes.pools_admitting))
    return run.result(arrivals(workload, gangs, options, seed), len(workload))


class Run:
    """The driver of one simulated run."""

    def __init__(
        self,
        workload: str,
        cluster: ClusterSpec,
        profile: Profile,
        options: SimOptions,
        seed: int,
        until: int,
        hooks: RunHooks,
        tenancy: Tenancy | None = None,
    ) -> None:
        self.workload = workload
        self.cluster = cluster
        self.profile = profile
        self.options = options
        self.seed = seed
        self.until = until
        self.hooks = hooks
        self.state = ClusterState(cluster, learn=profile.estimates.learns)
        self.scheduler = Scheduler(self.state, profile, seed)
        self.journal = Journal(hooks.journal)
        self.recorder = Recorder(self.state, hooks.keep_intervals)
        self.curve = PackingCurve(self.state) if options.static else None
        self.ledger = Ledger(self.scheduler) if hooks.ledger else None
        self.speed = speed_of(options)
        self.interrupted = False
        self.rejected: Counter[str] = Counter()  # by reason
        self._wake = FOREVER  # when to cycle although nothing happens
        self._began = time.process_time()
        self.journal.write(Header(__version__, workload, profile.text or profile.name, seed, cluster))
        if tenancy is not None and tenancy.queues:
            self._happen(QueuesChanged(0, tenancy))

    def observe_mix(self, rows: np.ndarray) -> None:
        """Say what the typical pods are, before anything arrives."""
        self._happen(MixObserved(0, rows))

    def result(self, coming: Iterator[JobSubmitted], total: int) -> RunResult:
        """Run the `total` submissions, which come in order of time, to the end and sum up."""
        self.recorder.observe(0)
        if self.curve is not None:
            self.curve.observe(0)
        end = self._loop(coming, total)
        self.journal.write(Footer(end, self.interrupted or end == self.until, self.interrupted))
        self.state.check()
        for row, allocation in self.state.running.items():
            self.recorder.ended(row, allocation, int(self.state.jobs[row, c.J_STARTED]), end)
        table = job_table(self.state, end)
        summary = summarise(self.state, self.recorder, table, end, self.options.quantile)
        summary |= self._account(time.process_time() - self._began)
        if self.curve is not None:
            summary |= self.curve.curves()
        causes = self.ledger.columns(end) if self.ledger is not None else None
        if causes is not None:
            summary["wait_by_cause"] = wait_by_cause(causes, table, tuple(self.state.queues))
        return RunResult(
            profile=self.profile.name,
            workload=self.workload,
            cluster=self.cluster,
            summary=summary,
            series=self.recorder.series(),
            jobs=table,
            queues=tuple(self.state.queues),
            end=end,
            interrupted=self.interrupted,
            intervals=self.recorder.intervals(),
            wait_by_cause=causes,
        )

    def _account(self, cpu_s: float) -> dict[str, Any]:
        jobs = len(self.state.ids)
        return {
            "profile": self.profile.name,
            "workload": self.workload,
            "cluster": self.cluster.name,
            "seed": self.seed,
            "interrupted": self.interrupted,
            "rejected_because": dict(self.rejected.most_common()),
            "waiting_because": self._waiting_because(),
            "decisions": self.journal.decisions,
            "digest": self.journal.digest,
            "cpu_s": cpu_s,
            "jobs_per_cpu_s": jobs / cpu_s if cpu_s > 0 else None,
            "peak_rss_mib": peak_rss_mib(),
        }

    def _loop(self, coming: Iterator[JobSubmitted], total: int) -> int:
        """Run until nothing is left, or until it is time, or until somebody asks; returns when that was."""
        hooks, state, speed = self.hooks, self.state, self.speed
        instants = 0
        arrival = next(coming, None)
        while True:
            arrives = arrival.time if arrival is not None else FOREVER
            now = min(arrives, speed.next_end(), self._wake)
            if now == FOREVER or now > self.until:
                break
            self._wake = FOREVER

            changed = False
            for row in self._ended(now):
                self._end(row, now)
                changed = True
            while arrival is not None and arrival.time == now:
                self._arrive(arrival)
                arrival = next(coming, None)
                changed = True
            for row, left in speed.progress(now):
                self._happen(JobProgressed(now, state.ids[row], left))

            plan = self.scheduler.cycle(now)
            self.journal.plan(plan)
            if plan.decisions:
                self._carry_out(plan)
            self._set_wake(plan, now, changed)
            self.recorder.observe(now)
            if self.ledger is not None:
                self.ledger.observe(now)
            if self.curve is not None:
                self.curve.observe(int(state.jobs[len(state.ids) - 1, c.J_MILLI]))

            instants += 1
            if instants % CHECK_EVERY == 0:
                state.check()
            if instants % REPORT_EVERY == 0:
                hooks.progress(len(state.ids) - len(state.live), total)
                if hooks.stop():
                    self.interrupted = True
                    break
        hooks.progress(len(state.ids) - len(state.live), total)
        if self.interrupted or not (state.live or arrival) or self.until == FOREVER:
            return state.now
        self.recorder.observe(self.until)
        return self.until

    def _set_wake(self, plan: Plan, now: int, changed: bool) -> None:
        if plan.review_at > now:
            self._wake = plan.review_at
        if self.options.recheck_s and self.state.pending and (changed or plan.decisions):
            self._wake = min(self._wake, now + self.options.recheck_s * SECOND)
        if self.options.enforce_limits:  # a start is seen by the next cycle, and that must come before the limit
            started = [self.state.rows[decision.job] for decision in plan.decisions if isinstance(decision, Start)]
            limits = (int(self.state.jobs[row, c.J_LIMIT]) for row in started)
            self._wake = min([self._wake, *(now + limit for limit in limits if limit > 0)])
        if any(isinstance(decision, Expire) for decision in plan.decisions):
            self._wake = now  # who has reached a limit waits again, and is tried again or given back

    def _waiting_because(self) -> dict[str, int]:
        """How many jobs still wait for each kind of reason."""
        inquiry = Inquiry(self.scheduler)
        reasons = (inquiry.why(row) for row in list(self.state.pending))
        return dict(Counter("ready" if reason is None else str(reason.__struct_config__.tag) for reason in reasons))

    def _happen(self, event: Event) -> None:
        if self.journal.sink is not None:
            self.journal.write(event)
        self.state.apply(event)

    def _arrive(self, event: JobSubmitted) -> None:
        """A job comes. A burst whose core has left already is withdrawn at once."""
        state, core = self.state, event.job.core
        if core and state.rows.get(core) not in state.live:
            alone = msgspec.structs.replace(event.job, core="")
            self._happen(JobSubmitted(event.time, alone, event.runtime, event.overhead))
            self._happen(JobCancelled(event.time, event.job.id))
            return
        self._happen(event)
        self.speed.submitted(len(state.ids) - 1, event.runtime, event.overhead)

    def _ended(self, now: int) -> list[int]:
        """Who ends now: the jobs whose work is done, and the running bursts of those among them that are cores."""
        ended = self.speed.take_ended(now)
        for core in ended if self.state.bursts else ():
            for burst in self.state.bursts.get(core, ()):
                if burst in self.state.running and burst not in ended:
                    self.speed.dropped(burst)
                    ended.append(burst)
        return ended

    def _end(self, row: int, now: int) -> None:
        self._leave(row, now)
        self._happen(JobFinished(now, self.state.ids[row]))
        self._withdraw_bursts(row, now)

    def _withdraw_bursts(self, core: int, now: int) -> None:
        """A core has left: nobody needs the bursts of it that wait."""
        for burst in list(self.state.bursts.get(core, ())):
            if burst in self.state.pending:
                self._happen(JobCancelled(now, self.state.ids[burst]))

    def _stop(self, row: int, now: int) -> int:
        """A running job is stopped; returns the extra work that this costs it."""
        self._leave(row, now)
        cost = self.speed.stopped(row, -(-int(self.state.jobs[row, c.J_MILLI]) // GPU), now)
        self.recorder.lost(row, cost)
        return cost

    def _leave(self, row: int, now: int) -> None:
        if self.hooks.keep_intervals:
            self.recorder.ended(row, self.state.running[row], int(self.state.jobs[row, c.J_STARTED]), now)

    def _carry_out(self, plan: Plan) -> None:
        """Do what the plan says; in simulated time everything succeeds at once."""
        state, now, gone = self.state, plan.time, list[int]()
        for decision in plan.decisions:
            match decision:
                case Start(job=job, allocation=allocation):
                    row = state.rows[job]
                    self._happen(JobStarted(now, job, allocation))
                    self.recorder.started(row, allocation)
                    self.speed.started(row, now)
                case Hold():
                    pass
                case Reject(job=job, reason=reason):
                    self.rejected[sentence(reason)] += 1
                    self._happen(JobRejected(now, job, sentence(reason)))
                    gone.append(state.rows[job])
                case Preempt(job=job, moved=moved, by=by):
                    self._happen(JobPreempted(now, job, self._stop(state.rows[job], now), moved, by))
                case Expire(job=job):
                    self._happen(JobFailed(now, job, "limit", self._stop(state.rows[job], now)))
                case Reserve(job=job, start=start, end=end, allocation=allocation):
                    self._happen(JobReserved(now, job, start, end, allocation))
                case Release(job=job):
                    self._happen(JobReleased(now, job))
                case Demote(job=job, level=level):
                    self._happen(JobDemoted(now, job, level))
                case Reorder(jobs=jobs):
                    self._happen(QueueOrdered(now, jobs))
        for row in gone:
            self._withdraw_bursts(row, now)


def speed_of(options: SimOptions) -> Speed:
    """The model of how jobs run that the options ask for."""
    if options.static:
        return Endless()
    if options.speed == "interval-overhead":
        return IntervalOverhead(options.merge_ends)
    saves = options.checkpoint_s
    return Steady(ResumeCost(options.resume_cost), None if saves is None else max(saves, 0) * SECOND)


def peak_rss_mib() -> float:
    """The most memory that this process has had, MiB. What `getrusage` says may be that of its parent."""
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) / 1024
    except (OSError, StopIteration):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
