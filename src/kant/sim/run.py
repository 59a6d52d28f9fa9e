"""One run: the core against a workload in simulated time.

At each instant, in this order: jobs end, nodes fail or return, jobs arrive, running jobs report progress, one cycle
runs, and its plan is carried out. Everything that happens at the same instant is seen by the same cycle.
"""

from __future__ import annotations

import resource
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kant import __version__
from kant.cluster import columns as c
from kant.cluster.journal import Footer, Header, Journal
from kant.compiled import work
from kant.insight.diagnosis import Diagnosis
from kant.metrics.recorder import Recorder, began
from kant.metrics.result import RunResult
from kant.metrics.summary import job_table, summarise
from kant.metrics.wait_ledger import WaitLedger, wait_by_cause
from kant.model.decision import Plan
from kant.model.event import Event, GpusBooked, JobSubmitted, PolicyRouted, QueuesChanged, TypicalPodsGiven
from kant.model.node import ClusterSpec
from kant.model.tenant import QueueConfig
from kant.model.units import FOREVER, SECOND
from kant.scheduler.cycle import Scheduler
from kant.scheduler.profile import Profile
from kant.scheduler.proposals import carry_out_proposal
from kant.sim.advancer import Advancer
from kant.sim.checks import check_faults, check_profile
from kant.sim.dependencies import DependentArrivals
from kant.sim.execution import Execution, speed_of
from kant.sim.faults import faults_of
from kant.sim.jobs import Arrivals, Gangs, typical_pods
from kant.sim.options import SimOptions, read_options
from kant.sim.static_packing import PackingCurve, static_arrivals
from kant.workload.faults_file import NodeHealth
from kant.workload.workload import Workload

if TYPE_CHECKING:
    from kant.serving.services_file import Declared
    from kant.sim.rounds import SimulatedRounds
    from kant.sim.services import ServiceReplicas

REPORT_EVERY = 1024
"""Instants between two calls of `progress` and of `stop`."""

CHECK_EVERY = 32 * REPORT_EVERY
"""Instants between two checks of every invariant; there is always one at the end."""


@dataclass(slots=True)
class RunHooks:
    """What a caller may want from a run: a journal, its progress, and a way to stop it.

    `progress` receives the number of finished jobs, of all jobs, and the simulated time. With `ledger` every wait is
    split by its causes (metrics/wait_ledger.py). `observer` gets the scheduler and returns a function that is
    called at the end of every instant with its time (µs).
    """

    journal: Callable[[bytes], object] | None = None
    progress: Callable[[int, int, int], object] = lambda done, total, now: None
    stop: Callable[[], bool] = lambda: False
    keep_intervals: bool = False
    ledger: bool = False
    observer: Callable[[Scheduler], Callable[[int], object]] | None = None


def simulate(
    workload: Workload,
    cluster: ClusterSpec,
    profile: Profile,
    *,
    seed: int = 0,
    until: int = FOREVER,
    hooks: RunHooks | None = None,
    queue_config: QueueConfig | None = None,
    faults: Sequence[NodeHealth] = (),
    services: Sequence[Declared] = (),
    reservations: Sequence[GpusBooked] = (),
) -> RunResult:
    """Run `workload` on `cluster` under `profile`, up to `until` microseconds after time zero.

    `queue_config` has the queues and their quotas; without it nothing is limited. `faults` are node faults in order of
    time, instead of those that the profile's options would draw. `services` get the replicas that their autoscalers
    want (sim/services.py). The summary then says how many replicas each had, and when it met its objectives.
    `reservations` are booked from the start. Raises InputError for options of the profile that cannot be used, and for
    queues or burst replicas that its discipline does not honour.
    """
    options = read_options(profile.simulation, f"profile {profile.name}")
    replicas = bool(services) or (bool((workload.base_job >= 0).any()) and not options.static)
    check_profile(profile, queue_config, burst_replicas=replicas)
    check_faults(profile, options, bool(faults))
    if options.static:
        workload = static_arrivals(workload, cluster, options.inflate, seed)
    gangs = Gangs(cluster, options.shape == "gpu")
    run = Run(workload.name, cluster, profile, options, seed, until, hooks or RunHooks(), queue_config, faults)
    if len(workload.after):
        run.dependencies = DependentArrivals(workload, run.execution)
    if services:
        from kant.sim.services import ServiceReplicas, check_services  # loads the engines of `serving` as well

        check_services(services, workload, profile, options, queue_config)
        run.services = ServiceReplicas(services, run.execution)
    run.external = deque(reservations)
    run.typical(typical_pods(workload, gangs, options.typical_share, run.state.shapes.pools_admitting))
    result = run.result(Arrivals(workload, gangs, options, seed), len(workload))
    if run.services is not None:
        result.summary["services"] = run.services.summary(result.end, seed)
    return result


class Run:
    """The driver of one simulated run. `zero` and `begins` are for the header of its journal (cluster/journal.py)."""

    def __init__(
        self,
        workload: str,
        cluster: ClusterSpec,
        profile: Profile,
        options: SimOptions,
        seed: int,
        until: int,
        hooks: RunHooks,
        queue_config: QueueConfig | None = None,
        faults: Sequence[NodeHealth] = (),
        zero: int = 0,
        begins: int = 0,
    ) -> None:
        self.workload = workload
        self.cluster = cluster
        self.profile = profile
        self.options = options
        self.seed = seed
        self.until = until
        self.hooks = hooks
        self.state = profile.new_state(cluster)
        self.scheduler = Scheduler(self.state, profile, seed)
        self.journal = Journal(hooks.journal)
        self.recorder = Recorder(self.state, hooks.keep_intervals)
        self.curve = PackingCurve(self.state) if options.static else None
        self.ledger = WaitLedger(self.scheduler) if hooks.ledger else None
        self.observe = hooks.observer(self.scheduler) if hooks.observer is not None else None
        placed = options.speed == "placed"
        self.execution = Execution(self.state, self.journal, self.recorder, speed_of(options), placed)
        self.faults = faults_of(cluster, options, seed, faults)
        self.interrupted = False
        self.begin = 0  # a run that continues an existing state begins later (sim/fork.py)
        self.gone = np.zeros(0, dtype=np.int64)  # rows of jobs that had left before `begin`
        self.dependencies: DependentArrivals | None = None
        self.services: ServiceReplicas | None = None
        self.rounds: SimulatedRounds | None = None
        if profile.asks:
            from kant.sim.rounds import SimulatedRounds

            self.rounds = SimulatedRounds(self.scheduler)
        self.external: deque[Event] = deque()  # later external events: quota changes, withdrawals
        self.wake = FOREVER  # when to cycle if no event comes first, µs
        self.vain: list[Plan] = []  # plans without decisions, in a run with faults, since the last event
        self.last = 0  # the last instant with an event or a decision
        self._began = time.process_time() - work.cpu_s
        text = profile.text or profile.name
        self.journal.write(Header(__version__, workload, text, seed, cluster, zero=zero, begins=begins))
        if queue_config is not None and queue_config.queues:
            self.execution.happen(QueuesChanged(0, queue_config))

    def typical(self, rows: np.ndarray) -> None:
        """Set the typical pods before any arrival, unless the policy has to learn them."""
        if self.curve is not None:
            self.curve.typical_pods = rows
        if self.options.typical_given and (self.options.static or not self.profile.placement.learns):
            self.execution.happen(TypicalPodsGiven(0, rows))

    def result(self, coming: Iterator[JobSubmitted], total: int) -> RunResult:
        """Run the `total` submissions, given in order of time, to the end, and return the summary."""
        self.recorder.observe(self.begin)
        if self.curve is not None:
            self.curve.observe(0)
        end = self._loop(coming, total)
        del coming  # free the arrivals, whose columns are large
        self.journal.write(Footer(end, self.interrupted or end == self.until, self.interrupted))
        self.state.check()
        for row, allocation in self.state.running.items():
            self.recorder.ended(row, allocation, began(self.state, row), end)
        because = self._waiting_because()
        self.recorder.make_room(0)
        # Free what only the run needed, before the job table and the summary take memory.
        del self.scheduler, self.execution.speed, self.state.job_changes[:]
        self.state.pieces = self.state.pieces[:0].copy()
        table = job_table(self.state, end, self.recorder)
        summary = summarise(self.state, self.recorder, table, end, self.options.quantile, self.gone)
        summary |= self._account(time.process_time() - work.cpu_s - self._began, because)
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
            service=self.recorder.service(),
            wait_by_cause=causes,
        )

    def advance(self, until: int, coming: Iterable[JobSubmitted] = ()) -> None:
        """Continue up to `until` (µs) with the submissions that arrive by then, in order. May be called again."""
        self.until = until
        self._loop(iter(coming), 0)
        self._take_vain()

    def _account(self, cpu_s: float, because: dict[str, int]) -> dict[str, Any]:
        jobs = len(self.state.ids)
        return {
            "profile": self.profile.name,
            "workload": self.workload,
            "cluster": self.cluster.name,
            "seed": self.seed,
            "interrupted": self.interrupted,
            "rejected_because": dict(self.execution.rejected.most_common()),
            "waiting_because": because,
            "decisions": self.journal.decisions,
            "digest": self.journal.digest,
            "cpu_s": cpu_s,
            "jobs_per_cpu_s": jobs / cpu_s if cpu_s > 0 else None,
            "peak_rss_mib": peak_rss_mib(),
        }

    def _loop(self, coming: Iterator[JobSubmitted], total: int) -> int:
        """Run until nothing is left, `until` is reached, or a stop is requested; return the last time."""
        hooks, state, execution, speed = self.hooks, self.state, self.execution, self.execution.speed
        dependencies, services, arrive = self.dependencies, self.services, execution.arrive
        if dependencies is not None:
            arrive = dependencies.arrive
        instants, always = 0, self.faults.any
        if isinstance(coming, Arrivals) and (rows := len(state.ids) + len(coming.workload)) > len(state.jobs):
            # Room for all at once: while a table grows, it exists twice.
            state.jobs, self.recorder.spans = c.longer(state.jobs, rows), c.longer(self.recorder.spans, rows)
        arrival = next(coming, None)
        may_advance = isinstance(coming, Arrivals) and Advancer.may_advance(self)
        advancer = Advancer(self, coming) if isinstance(coming, Arrivals) and may_advance else None
        while True:
            if advancer is not None:
                until = min(self.until, self.external[0].time - 1 if self.external else FOREVER)
                passed, arrival = advancer.go(arrival, until)
                if passed and not self._goes_on(instants, instants + passed, total):
                    break
                instants += passed
            arrives = arrival.time if arrival is not None else FOREVER
            ends = speed.next_end
            now = min(arrives, ends, services.due if services is not None else FOREVER)
            if now == self.wake == FOREVER and not self._may_yet_start():
                break
            now = min(now, self.faults.due, self.external[0].time if self.external else FOREVER)
            if self.rounds is not None:
                now = min(now, self.rounds.due)
            idle = self.wake < now and not speed.reports
            now = min(now, self.wake)
            if now == FOREVER or now > self.until:
                break
            if self.vain and not idle:
                self._take_vain()

            if ends == now:
                execution.end_jobs(now)
            changed = ends == now or arrives == now
            if self.faults.due == now:
                for health in self.faults.take(now):
                    execution.change_node(health, now)
                changed = True
            while self.external and self.external[0].time == now:
                execution.external_event(self.external.popleft())
                changed = True
            if services is not None and services.due == now:
                services.step(now)
                changed = True
            while arrival is not None and arrival.time == now:
                arrive(arrival)
                arrival = next(coming, None)
            if dependencies is not None:
                dependencies.release(now)
            if speed.reports:
                execution.report_progress(now)

            if self.rounds is not None:
                self._carry_out_proposals(now)
            plan = self.scheduler.cycle(now)
            vain = idle and not plan.decisions
            if vain and always:
                self.vain.append(plan)
            else:
                if self.vain:
                    self._take_vain()
                if plan.decisions or always or self.journal.sink is not None:
                    self.journal.plan(plan, always)
            self.wake = plan.review_at if plan.review_at > now else FOREVER
            again = bool(plan.decisions) and execution.carry_out(plan)
            if again or (dependencies is not None and dependencies.release(now)):
                self.wake = now
            elif self.options.recheck_s and state.pending and (changed or plan.decisions):
                self.wake = min(self.wake, now + self.options.recheck_s * SECOND)
            if self.rounds is not None:
                self.rounds.begin(now)
            if not vain:
                self.recorder.observe(now)
                self.last = now
            if services is not None:
                services.observe(now)
            if self.ledger is not None:
                self.ledger.observe(now)
            if self.observe is not None:
                self.observe(now)
            if self.curve is not None:
                self.curve.observe(int(state.jobs[len(state.ids) - 1, c.J_MILLI]))

            instants += 1
            if instants % REPORT_EVERY == 0 and not self._goes_on(instants - 1, instants, total):
                break
        if dependencies is not None:
            dependencies.give_up(state.now)
        hooks.progress(len(state.ids) - len(state.live), total, state.now)
        if self.interrupted or not (state.live or arrival) or self.until == FOREVER:
            return max(state.now, self.last)
        self._take_vain()
        self.recorder.observe(self.until)
        return self.until

    def _goes_on(self, before: int, after: int, total: int) -> bool:
        """Return whether the run should continue, after the checks and reports due between `before` and `after`."""
        state, hooks = self.state, self.hooks
        if before // CHECK_EVERY != after // CHECK_EVERY:
            state.check()
        if before // REPORT_EVERY != after // REPORT_EVERY:
            hooks.progress(len(state.ids) - len(state.live), total, state.now)
            self.interrupted = bool(hooks.stop())
        return not self.interrupted

    def _take_vain(self) -> None:
        """Journal the plans of cycles without events, since an event now follows them."""
        for plan in self.vain:
            self.journal.plan(plan, always=True)
        self.vain.clear()

    def _carry_out_proposals(self, now: int) -> None:
        """Record the solvers' proposals, and carry out those that still hold."""
        assert self.rounds is not None
        for proposal in self.rounds.take(now):
            self.execution.happen(proposal)
            if isinstance(proposal, PolicyRouted):
                continue  # the cycle of this instant uses the new policy
            plan = carry_out_proposal(self.scheduler, now)
            self.journal.plan(plan, always=True)
            self.execution.carry_out(plan)

    def _may_yet_start(self) -> bool:
        """Return whether waiting jobs may start once a node returns, when no other event is left."""
        return bool(self.state.pending) and bool(self.faults.unhealthy)

    def _waiting_because(self) -> dict[str, int]:
        """Return the number of waiting jobs for each kind of reason."""
        diagnosis = Diagnosis(self.scheduler)
        reasons = (diagnosis.why(row) for row in list(self.state.pending))
        return dict(Counter("ready" if reason is None else str(reason.__struct_config__.tag) for reason in reasons))


def peak_rss_mib() -> float:
    """Return the peak memory of this process, MiB. The value of `getrusage` may be that of its parent."""
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) / 1024
    except (OSError, StopIteration):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
