"""The driver of one machine: passes requests and process events to the core, and executes its plans.

The driver is one loop in one thread. A turn of the loop processes events, decides, writes all changes to the record
store in one transaction, and only then starts and stops processes and answers requests. The store and the folders of
the runs are authoritative: after a restart the state is rebuilt from them.

Long: a turn, and everything that may happen between two turns, can be read in one place, in the order of the writes.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from msgspec import structs

from kant.cluster.columns import can_take
from kant.live.core import Core
from kant.live.learned import SavedCalibration, restore_calibration
from kant.live.logs import log_decisions, log_event
from kant.live.rounds import LiveRounds
from kant.live.waits import Split
from kant.local.clock import SteadyClock
from kant.local.completion import CANCELLED, Completion
from kant.local.elastic_runs import SOON, ElasticRuns
from kant.local.executor import LocalExecutor
from kant.local.gpu_health import GpuHealth
from kant.local.gpu_use import GpuUse
from kant.local.jobs import LocalJobs
from kant.local.launch import Launcher
from kant.local.nvml import Use
from kant.local.record import JobPhase, JobRecord, RecordStore
from kant.local.reservations import LocalReservations
from kant.local.runs import Exit
from kant.local.settings import LocalSettings
from kant.local.slots import is_slot
from kant.local.submission import job_of
from kant.model.decision import Plan
from kant.model.errors import InputError
from kant.model.event import (
    JobEvicted,
    JobPreempted,
    JobProtected,
    JobStarted,
    QueuesChanged,
)
from kant.model.job_request import SignalName
from kant.model.tenant import Queue, QueueConfig
from kant.model.units import count_from
from kant.scheduler.profile import Profile

if TYPE_CHECKING:
    from kant.local.joined.machines import Machines
    from kant.local.telemetry import LocalTelemetry

log = logging.getLogger("kant.local")
PACE = 0.005  # minimum seconds between two turns; the pause is also not shorter than the last turn
ALL = ""  # means all queues
IDLE = 1.0  # seconds after which a turn runs without an event
BURST = 5_000  # maximum number of submissions, and of ends of runs, in one turn
LEAST = 50  # the lower bound of that number, which adapts to the length of turns
TURN = 0.05  # target seconds of a turn: requests are answered between turns


class LocalDriver:
    """The driver of one Kant. `jobs` has the jobs that have not ended; `core` schedules them."""

    def __init__(
        self, settings: LocalSettings, book: RecordStore, clock: SteadyClock, machines: Machines | None = None
    ) -> None:
        self.settings = settings
        self.book = book
        self.clock = clock
        self.trouble = ""  # why nothing can be written, in one sentence
        self.on_change: Callable[[JobRecord], None] = lambda record: None
        self.telemetry: LocalTelemetry | None = None
        self.health: GpuHealth | None = None
        self.gpu_use = GpuUse(())
        self.on_build: Callable[[Core], None] = lambda core: None
        self.on_built: Callable[[], None] = lambda: None  # all earlier jobs are in the state
        self.launcher = Launcher(settings, self._over, machines=machines)
        self.machines = self.launcher.machines
        self.machines.changed = self.wake
        self.jobs = LocalJobs(book, clock, self.launcher, settings.cluster.nodes, self.wake)
        self.jobs.shared_power = settings.shared_power
        self.completion = Completion(self.jobs)
        self.elastic = ElasticRuns(self.launcher, clock.micros)
        self.executor = LocalExecutor(self.jobs, self._evicted)
        self.reservations = LocalReservations(settings.cluster)
        self._burst = LEAST
        self._new: list[JobRecord] = []
        self._ended: list[tuple[JobRecord, Exit]] = []
        self._answers: list[asyncio.Future[None]] = []
        self._awake = asyncio.Event()
        self._resizes = False  # whether an elastic run must be sent its size, or has yet to follow it
        self._anew = False  # whether the state has to be rebuilt
        self.finished: Callable[[], list[JobRecord]] = list  # the latest finished jobs
        self.learned: SavedCalibration | None = None  # start-forecast calibration of the previous process
        self.rounds: LiveRounds | None = None  # asks a solver, if the profile uses one
        self.paused: frozenset[str] = frozenset()  # queues in which nothing starts; with ALL, all queues
        self.keep_paused: Callable[[frozenset[str]], None] = lambda queues: None
        self.waited: Mapping[str, Split] = {}  # waits by cause, from the previous process
        self.waited_by: Callable[[str], dict[str, int] | None] = lambda job: None  # by cause, for a job that has ended
        self.core: Core

    # --- the state, from the store and the folders ----------------------------------------------------

    def adopt(self, records: list[JobRecord]) -> None:
        """Adopt the jobs of the previous process of Kant, and find out the state of their runs. Then call `build`."""
        for record in sorted(records, key=lambda record: record.seq):
            self.jobs.records[record.id] = record
        for record in list(self.jobs.records.values()):
            if is_slot(record):
                self.jobs.fill(record, closes=True)
            if record.phase in (JobPhase.RUNNING, JobPhase.STOPPING):
                found = self.launcher.find(record)
                if isinstance(found, Exit):
                    self._ended.append((record, found))
                elif found is None:  # the run never began and never will: undo the start
                    record.phase, record.started, record.place = JobPhase.WAITING, -1, []
                    self.jobs.touch(record)
            if is_slot(record):
                self._take_back(record)
        self.launcher.sweep()
        for record in self.jobs.records.values():
            if record.phase is JobPhase.STOPPING:
                self.launcher.stop(record)

    def _take_back(self, record: JobRecord) -> None:
        """End a slot (a run without a job) of the previous process of Kant."""
        if record.phase in (JobPhase.RUNNING, JobPhase.STOPPING):
            record.phase, record.stopping = JobPhase.STOPPING, CANCELLED
            self.jobs.touch(record)
        else:
            self.jobs.finish(record, JobPhase.CANCELLED, "")

    def build(self) -> None:
        """Build the state from all waiting and running jobs, with the times of their submission and start."""
        settings = self.settings
        ended = {record.id for record, _ in self._ended}
        inside = [record for record in self.jobs.records.values() if record.id not in ended and _is_inside(record)]
        inside.sort(key=lambda record: record.seq)
        now = self.clock.micros()
        zero = min([now, *(record.submitted for record in inside)])
        count_from(zero)
        sink = settings.journals.open() if settings.journals is not None else None
        waited = self.core.waits.kept(self.core.now) if self.jobs.ready else self.waited
        before = self.core if self.jobs.ready else None
        self.core = Core(settings.cluster, settings.profile, sink, zero, self.clock, settings.seed, waited)
        self.on_build(self.core)
        self.core.settled()
        core = self.core
        self.jobs.follow(core)
        self.reservations.enter(core)
        if (queues := self._queues()).queues:
            core.happen(QueuesChanged(0, queues))
        moments: list[tuple[int, int, JobRecord, bool]] = []
        for record in inside:
            came = record.submitted - zero
            moments.append((came, record.seq, record, False))
            if record.phase is JobPhase.RUNNING:
                moments.append((max(record.started - zero, came), record.seq, record, True))
        for moment, _, record, starts in sorted(moments, key=lambda each: (each[0], each[3], each[1])):
            if not starts:
                self.jobs.enter(record, moment)
                continue
            place = np.array(record.place, dtype=np.int64)
            if not all(piece[0] < len(core.state.table) and can_take(core.state.table, piece) for piece in place):
                raise InputError("--cluster", f"the same nodes and GPUs as before while job {record.id} runs")
            core.happen(JobStarted(moment, self.jobs.core_id[record.id], place))
        for record in filter(self.elastic.is_ending, inside):
            core.happen(JobProtected(core.now, self.jobs.core_id[record.id], "its tail"))
        if before is None:
            restore_calibration(self.core, self.learned)
        else:
            self.core.inherit(before)
        for record in self.finished() if before is None else ():
            self.core.past.remember(job_of(record, record.id, 0, self.jobs.nodes), record.ended - record.started)
        self.on_built()
        for record in self.jobs.records.values():
            self.jobs.block(record)
        if self.telemetry is not None:
            self.telemetry.follow(self.core.state, self.core.now)
        self._awake.set()
        log_event(log, "state built", jobs=len(self.jobs.records), inside=len(inside))

    def set_queues(self, queue_config: QueueConfig) -> None:
        """Replace queues and quotas. The new queues must include those of all current jobs."""
        self.settings = replace(self.settings, queue_config=queue_config)
        self._tell_queues()

    def pause(self, queues: frozenset[str]) -> None:
        """Pause these queues (all, if ALL is among them), and resume all others.

        Running jobs continue. The pause lasts until it is withdrawn, even across a restart. Raises OSError, with
        nothing changed.
        """
        self.keep_paused(queues)
        self.paused = queues
        self._tell_queues()

    def _queues(self) -> QueueConfig:
        """Return the queues for the core, of which the paused queues are on hold."""
        found = self.settings.queue_config
        if not self.paused:
            return found
        names = {record.submission.queue for record in self.alive()} | self.paused - {ALL}
        queues = found.queues or tuple(map(Queue, sorted(names or {"default"})))
        paused = [not self.paused.isdisjoint((queue.name, ALL)) for queue in queues]
        held = [structs.replace(one, state="hold") if stop else one for one, stop in zip(queues, paused, strict=True)]
        return structs.replace(found, queues=tuple(held))

    def _tell_queues(self) -> None:
        queues = self._queues()
        if queues != self.core.state.quota_usage.declared:
            self.core.happen(QueuesChanged(self.core.now, queues))
        self._awake.set()

    def _grow(self) -> None:
        """Update every component that counts nodes, after machines have joined or changed."""
        cluster = self.machines.added_to(self.settings.cluster)
        self.settings = replace(self.settings, cluster=cluster)
        self.launcher.settings = replace(self.launcher.settings, cluster=cluster)
        self.jobs.nodes = cluster.nodes
        self.reservations.set_cluster(cluster)

    def set_profile(self, profile: Profile) -> None:
        """Use another profile. The state is rebuilt after the next turn without pending starts."""
        self.settings = replace(self.settings, profile=profile)
        self._anew = True
        self._awake.set()

    # --- requests of users; answered by `committed` ---------------------------------------------------------------

    def submit(self, records: list[JobRecord]) -> None:
        """Accept new jobs. Raises InputError while nothing can be written."""
        self.check_writing()
        self._new += records
        self._awake.set()

    def check_writing(self) -> None:
        """Raise InputError while the store cannot be written."""
        if self.trouble:
            raise InputError("the store", f"a disk that can be written ({self.trouble}); running jobs continue")

    def cancel(self, record: JobRecord, why: str = "") -> None:
        """Cancel a waiting or running job; `why`: the reason if no user asked for it."""
        if not why and self._end(record):
            return
        if record.phase in (JobPhase.RUNNING, JobPhase.STOPPING) and not self.launcher.cancel_start(record):
            self.jobs.withdraw(record)
            record.phase, record.stopping = JobPhase.STOPPING, f"{CANCELLED}: {why}" if why else CANCELLED
            self.jobs.touch(record)
            self.launcher.to_stop.append(record)
        elif not record.is_over:
            self.jobs.withdraw(record)
            self.jobs.finish(record, JobPhase.CANCELLED, why)
        self._awake.set()

    def _end(self, record: JobRecord) -> bool:
        """Start the tail (last phase, not preemptible) of an elastic run. Return False if there is none to start."""
        if record.submission.contract is None or record.id not in self.jobs.core_id:
            return False
        try:
            ends = self.elastic.end(record)
        except OSError as error:
            raise InputError(f"job {record.id}", f"a disk that can be written ({error.strerror})") from None
        if ends:
            self.core.happen(JobProtected(self.core.now, self.jobs.core_id[record.id], "its tail"))
            self._awake.set()
        return ends

    def _follow_contracts(self) -> float:
        """Start the tails of elastic runs that are due, and stop runs that did not give back GPUs in time. Return the
        seconds until the next check.
        """
        wait = IDLE
        for record, seconds in self.elastic.due():
            if seconds:
                wait = min(wait, max(seconds, SOON))
            else:
                self._end(record)
        for record in self.elastic.overdue():
            self.core.happen(JobPreempted(self.core.now, self.jobs.core_id[record.id]))
            self.executor.stop(record, "it did not release GPUs in time")
        return wait

    def hold(self, record: JobRecord) -> None:
        """Hold a waiting job. Raises InputError for a job that does not wait."""
        if record.phase is JobPhase.HELD:
            return
        if record.phase not in (JobPhase.WAITING, JobPhase.BLOCKED):
            raise InputError(f"job {record.id}", "a waiting job", str(record.phase))
        self.jobs.withdraw(record)
        record.phase = JobPhase.HELD
        self.jobs.touch(record)
        self._awake.set()

    def release(self, record: JobRecord) -> None:
        """Release a held job. Raises InputError for a job that is not held."""
        if record.phase is not JobPhase.HELD:
            raise InputError(f"job {record.id}", "a held job", str(record.phase))
        record.phase = JobPhase.BLOCKED
        self.jobs.touch(record)
        self.jobs.block(record)
        self._awake.set()

    def update(self, record: JobRecord, new: JobRecord) -> None:
        """Change a waiting job to `new`, or give a running job the time limit of `new`. Raises InputError."""
        if record.phase is JobPhase.RUNNING and record.id in self.jobs.core_id:
            try:
                self.launcher.limit(record, new.submission.time_s)
            except OSError as error:
                raise InputError(f"job {record.id}", f"a disk that can be written ({error.strerror})") from None
            self.jobs.limit(record, new.submission, new.digest)
            self._awake.set()
            return
        if record.phase not in (JobPhase.HELD, JobPhase.BLOCKED, JobPhase.WAITING):
            raise InputError(f"job {record.id}", "a waiting or held job", str(record.phase))
        self.jobs.change(record, new)
        if self.paused:
            self._tell_queues()
        self._awake.set()

    def signal(self, record: JobRecord, name: SignalName) -> None:
        """Send a signal to the processes of a running job. Raises InputError if none of them receives it."""
        if record.phase is not JobPhase.RUNNING or record.id not in self.launcher.runs:
            raise InputError(f"job {record.id}", "a running job", str(record.phase))
        if not self.launcher.signal(record, name):
            raise InputError(f"job {record.id}", f"a process of the job that handles SIG{name}")

    def requeue(self, record: JobRecord) -> None:
        """Stop the run of a job and requeue it. Raises InputError if it does not run."""
        if record.phase is not JobPhase.RUNNING or record.id not in self.jobs.core_id:
            raise InputError(f"job {record.id}", "a running job", str(record.phase))
        self.core.happen(JobEvicted(self.core.now, self.jobs.core_id[record.id], "it was requeued"))
        self.executor.stop(record, "requeued")
        self._awake.set()

    def gpus_used(self, gpus: Mapping[int, Use]) -> None:
        """Record the use of GPUs, and stop interactive jobs whose GPUs are idle for too long."""
        for record in self.gpu_use.look(gpus, list(self.jobs.records.values()), self.clock.micros()):
            log_event(log, "GPUs are taken from a job", logging.WARNING, job=record.id, error=self.gpu_use.reason)
            self.cancel(record, self.gpu_use.reason)

    def wake(self) -> None:
        """Run a turn soon, since reservations have changed or a solver has answered."""
        self._awake.set()

    @property
    def disk_complaint(self) -> str:
        """Return why no new job is accepted; "" if the store can be written."""
        return f"no new job is accepted: {self.trouble}" if self.trouble else ""

    @property
    def gpu_complaint(self) -> str:
        """Return which GPUs and machines accept no new job, and why; "" if all accept jobs."""
        gpus = self.health.complaint if self.health is not None else ""
        return "; ".join(filter(None, (gpus, self.machines.complaint)))

    async def committed(self) -> None:
        """Wait until everything requested so far is on disk. Raises InputError if it cannot be written."""
        answer = asyncio.get_running_loop().create_future()
        self._answers.append(answer)
        self._awake.set()
        await answer

    # --- the loop -----------------------------------------------------------------------------------------------

    async def run(self, stop: asyncio.Event) -> None:
        """Run turns until `stop` is set. Running jobs then continue."""
        ending = asyncio.create_task(stop.wait())
        try:
            while not stop.is_set():
                began = time.monotonic()
                wait = self.turn()
                await asyncio.sleep(max(PACE, time.monotonic() - began))
                waking = asyncio.create_task(self._awake.wait())
                await asyncio.wait({waking, ending}, timeout=wait, return_when=asyncio.FIRST_COMPLETED)
                waking.cancel()
                self._awake.clear()
            self.turn(last=True)
        finally:
            ending.cancel()
            self.launcher.forget()
            self.core.end()
            if self.settings.journals is not None:
                self.settings.journals.close()

    def turn(self, last: bool = False) -> float:
        """Process events, decide, write and execute. Return the seconds until the next turn if no event comes."""
        began = time.monotonic()
        came, self._new = self._new[: self._burst], self._new[self._burst :]
        for record in came:
            self.jobs.records[record.id] = record
            self.jobs.touch(record)
            if record.phase is not JobPhase.HELD:
                self.jobs.block(record)
        if came and self.paused:
            self._tell_queues()  # a job may name a new queue
        wait = IDLE
        ended, self._ended = self._ended[: self._burst], self._ended[self._burst :]
        for record, exit in ended:
            if is_slot(record):
                self.jobs.fill(record)
            self.completion.settle(record, exit)
        if self.jobs.later:
            until = self.jobs.let_begin()
            wait = min(wait, until / 1e6) if until >= 0 else wait
        wait = min(wait, self._follow_contracts())
        if self.health is not None:
            self.health.settle(self.core)
        if self.machines.settle(self.core):
            self._grow()
        if self.reservations.known and not self.trouble:
            self.reservations.settle(self.core)
        if not last:
            if self.rounds is not None and not self.launcher.is_busy:
                proposal = self.rounds.turn(self.core)
                if proposal is not None:
                    self._carry_out(self.core.propose(proposal))
            asked = time.monotonic()
            plan = self.core.cycle()
            if self.telemetry is not None:
                self.telemetry.cycle(time.monotonic() - asked, plan)
            self._carry_out(plan)
            for record in self.launcher.ready():
                record.attempt += 1
                record.phase, record.started, record.ended = JobPhase.RUNNING, self.clock.micros(), -1
                record.code = record.signal = None
                record.reason = record.stopping = ""
                self.jobs.touch(record)
                self.jobs.wake_after(record)
                if self.telemetry is not None:
                    self.telemetry.started(record)
            self.core.observe()
            self.core.attribute()
            if plan.review_at >= 0:
                wait = min(wait, max((plan.review_at - self.core.now) / 1e6, 0.0))
        if time.monotonic() - began > TURN:
            self._burst = max(self._burst // 2, LEAST)
        elif max(len(came), len(ended)) == self._burst:
            self._burst = min(self._burst * 2, BURST)
        if self._commit(came):
            for record, why in self.launcher.go():
                self.completion.not_begun(record, why)
            self._tell_sizes()
        else:
            self.launcher.stop_all()
        if self.settings.journals is not None:
            self.settings.journals.flush()
        if (self.core.is_overgrown or self._anew) and not last and not self.launcher.is_busy:
            self._anew = False
            self.build()
        writes = (self.jobs.dirty or self.launcher.begins_more) and not self.trouble
        return 0.0 if self._new or self._ended or writes else min(wait, SOON) if self._resizes else wait

    def _tell_sizes(self) -> None:
        """Send elastic runs their new sizes, which are already on disk."""
        try:
            self._resizes = self.elastic.tell()
        except OSError as error:  # retried in the next turn
            log_event(log, "cannot send an elastic run its size", logging.ERROR, error=str(error))
            self._resizes = True

    def _carry_out(self, plan: Plan) -> None:
        log_decisions(log, plan, [node.name for node in self.settings.cluster.nodes])
        self.executor.execute(plan)

    def alive(self) -> list[JobRecord]:
        """Return all jobs that have not ended, including new jobs that no turn has processed yet."""
        return [*self.jobs.records.values(), *self._new]

    def _commit(self, came: list[JobRecord]) -> bool:
        """Write changed records, and answer requests. Return False if the write fails; then nothing may start."""
        changed, answers = list(self.jobs.dirty.values()), self._answers
        for record in changed:
            if record.is_over:
                record.waited = self.waited_by(record.id) or record.waited
        try:
            if changed or self.trouble:  # trouble lasts until a write succeeds
                self.book.write(changed)
        except OSError as error:
            if not self.trouble:
                log_event(log, "the store cannot be written", logging.ERROR, error=str(error))
            self.trouble = str(error)
            for record in came:  # these jobs have not been confirmed
                self.launcher.cancel_start(record)
                self.jobs.withdraw(record)
                self.jobs.records.pop(record.id, None)
                self.jobs.dirty.pop(record.id, None)
            self._answers = []
            for answer in answers:
                if not answer.done():
                    answer.set_exception(InputError("the store", f"a disk that can be written ({self.trouble})"))
            return False
        self.trouble = ""
        self.jobs.dirty.clear()
        if self._new:  # a burst over several turns is confirmed once all of its jobs are on disk
            answers = []
        else:
            self._answers = []
        for answer in answers:
            if not answer.done():
                answer.set_result(None)
        for record in changed:
            self.on_change(record)
            if record.is_over:
                self.jobs.records.pop(record.id, None)
                self.jobs.wake_after(record)
        return True

    def _over(self, record: JobRecord, exit: Exit) -> None:
        self._ended.append((record, exit))
        self._awake.set()

    def _evicted(self, why: str) -> None:
        if self.telemetry is not None:
            self.telemetry.evicted(why)


def _is_inside(record: JobRecord) -> bool:
    """Return whether the core has a job: it waits, runs, or will wait again once its run has stopped."""
    if record.phase is not JobPhase.STOPPING:
        return record.phase in (JobPhase.WAITING, JobPhase.RUNNING)
    if record.stopping == "limit":
        return record.failures <= record.submission.retries
    return not record.stopping.startswith(CANCELLED)
