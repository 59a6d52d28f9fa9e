"""The orders to Kant on this machine, independent of the transport."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec

from kant.live.questions import TRIAL, trial_answer
from kant.local.accounts import account_of
from kant.local.containers import check_image, runtime
from kant.local.driver import ALL
from kant.local.record import (
    Batch,
    Dependencies,
    JobPhase,
    JobRecord,
    JobSignal,
    JobUpdate,
    MachineLeaves,
    QueueNames,
    ReservationRequest,
    WorkflowSubmission,
)
from kant.local.submission import check_room, checked, counted, job_of, limited
from kant.model.errors import InputError
from kant.model.placement import NODE
from kant.model.submission import Submission
from kant.model.tenant import Queue, QueueConfig
from kant.model.units import SECOND, show_duration
from kant.service.questions import LocalQuestions
from kant.service.reload import check_quotas
from kant.service.roles import Caller, ForbiddenError, Role, check_own, check_queue
from kant.service.store import digest_of
from kant.service.views import JobIds, MachineJobs, PausedQueues, ReservationMade, Reservations

FITS = {
    "hold": (JobPhase.WAITING, JobPhase.BLOCKED),
    "release": (JobPhase.HELD,),
    "requeue": (JobPhase.RUNNING,),
    "signal": (JobPhase.RUNNING,),
    "update": (JobPhase.HELD, JobPhase.BLOCKED, JobPhase.WAITING),
}
"""For each order, the phases in which it affects the jobs of an array."""
Ids = tuple[str, ...]
Ahead = tuple[Ids, Ids, Ids, Ids]
MOST_WAITING = 100_000
"""Maximum number of jobs that have not ended."""


class LocalOrders:
    """Carries out the orders of callers about jobs, queues, reservations and machines. Each returns once it is on disk.

    `who` is the caller; `service/roles.py` defines which orders a role may give. Others raise ForbiddenError.
    """

    def __init__(self, questions: LocalQuestions) -> None:
        self.questions = questions
        self.driver = questions.driver
        self.store = questions.store
        self._next = self.store.last()[0] + 1

    async def submit(self, submission: Submission, who: Caller) -> JobIds:
        """Queue a command, once for each index of its array. Raises InputError."""
        self.driver.check_writing()
        self._check(submission, who, "submit")
        self._check_count(max(len(submission.array), 1))
        records = self._records(submission, who, self.driver.clock.micros())
        return await self._take_in(records, who, "submit")

    async def trial(self, submission: Submission, who: Caller) -> dict[str, Any]:
        """Return when the job would start if it were submitted now. The job is validated as in a submission. Raises
        InputError.

        Conditions other than free resources (dependencies, a begin time, a hold) are ignored.
        """
        self._check(submission, who, "submit")
        settings = self.driver.settings
        if submission.array:
            raise InputError("array", "one job, such as the first index of the array", len(submission.array))
        submission = counted(limited(submission, settings.queue_config), settings.cluster.nodes)
        core, _ = self.questions.present()
        record = JobRecord(self._next, TRIAL, submission, b"", who.user, core.now, JobPhase.BLOCKED)
        jobs = self.driver.jobs
        job = job_of(record, TRIAL, core.now, jobs.nodes, jobs.shared_power)
        return await trial_answer(core, self.questions.forecasts.forecaster, job)

    async def workflow(self, asked: WorkflowSubmission, who: Caller) -> JobIds:
        """Queue all stages of a workflow, or none: all are validated first, and then written in one transaction. Raises
        InputError, which names the stage."""
        self.driver.check_writing()
        now = self.driver.clock.micros()
        submissions = []
        for place, stage in enumerate(asked.stages):
            where = f"stage {stage.job.stage.stage if stage.job.stage is not None else place}"
            submission = self._one_of_many(stage.job, asked.env, who, "workflow", where)
            if submission.array:
                raise InputError(f"{where}, array", "no array in a workflow")
            if not all(other < place for other in (*stage.after, *stage.after_ok)):
                raise InputError(f"{where}, after", "indices of earlier stages", [*stage.after, *stage.after_ok])
            submissions.append(submission)
        self._check_count(len(submissions))
        records: list[JobRecord] = []
        for stage, submission in zip(asked.stages, submissions, strict=True):
            (record,) = self._records(submission, who, now)
            record.after += tuple(records[other].id for other in stage.after)
            record.after_ok += tuple(records[other].id for other in stage.after_ok)
            records.append(record)
        return await self._take_in(records, who, "workflow")

    async def batch(self, batch: Batch, who: Caller) -> JobIds:
        """Queue all submissions of a batch, or none: all are validated first. Raises InputError that names the line."""
        self.driver.check_writing()
        now = self.driver.clock.micros()
        submissions = [
            self._one_of_many(line.job, batch.env, who, "batch", f"line {line.line}") for line in batch.lines
        ]
        self._check_count(sum(max(len(submission.array), 1) for submission in submissions))
        return await self._take_in(
            [each for submission in submissions for each in self._records(submission, who, now)], who, "batch"
        )

    def _one_of_many(self, job: Submission, env: dict[str, str], who: Caller, route: str, where: str) -> Submission:
        """Return one of several submissions, with the common environment. Raises InputError that names `where`."""
        submission = msgspec.structs.replace(job, env=env | job.env)
        try:
            self._check(submission, who, route)
        except ForbiddenError:
            raise
        except InputError as error:
            raise InputError(f"{where}, {error.where}", error.expected, error.got) from None
        return submission

    def take_slots(self, slot: Submission, count: int, who: Caller) -> list[JobRecord]:
        """Queue `count` slots without a job, as new jobs of the core (local/slots.py). Raises InputError."""
        self.driver.check_writing()
        self._check(msgspec.structs.replace(slot, command=("a short job",)), who, "submit")
        self._check_count(count)
        now = self.driver.clock.micros()
        records = [record for _ in range(count) for record in self._records(slot, who, now)]
        self.driver.submit(records)
        return records

    def _check(self, submission: Submission, who: Caller, route: str) -> None:
        """Raise InputError for a submission that is invalid, or that the caller may not make."""
        queue_config = self.driver.settings.queue_config
        limited(checked(submission, tuple(queue.name for queue in queue_config.queues)), queue_config)
        check_room(submission, self.driver.settings)
        if submission.contract is not None and self.driver.settings.as_users:
            raise InputError("contract", "none with `kant up --users`, since users cannot read Kant's folders")
        if submission.contract is not None and self.driver.machines.present:
            raise InputError("contract", "none while other machines have joined, which cannot read Kant's folders")
        if submission.image:
            wanted = (submission.image, submission.mounts, submission.workdir)
            check_image(*wanted, runtime(), "this machine")
            for machine in self.driver.machines.present:
                check_image(*wanted, machine.known.runtime, f"machine {machine.name}")
        elif submission.mounts:
            raise InputError("mounts", "none without an image")
        check_queue(who, route, self.questions.lineage(submission.queue))
        if self.driver.settings.as_users:
            account_of(who.user)
        self._ahead(submission)
        if submission.reservation:
            self._check_inside(submission)

    def _check_inside(self, submission: Submission) -> None:
        """Raise InputError for a job that cannot run in the reservation that it names."""
        asked = self.driver.reservations.find(submission.reservation).request
        if submission.gpus > asked.gpus:
            raise InputError(
                "gpus", f"at most {asked.gpus:,}, as many as reservation {asked.name} has", submission.gpus
            )
        if asked.queues and set(self.questions.lineage(submission.queue)).isdisjoint(asked.queues):
            raise InputError(
                "queue", f"one of reservation {asked.name} or one below: {', '.join(asked.queues)}", submission.queue
            )

    def _check_count(self, count: int) -> None:
        if len(self.driver.jobs.records) + count > MOST_WAITING:
            raise InputError("the queue", f"at most {MOST_WAITING:,} unfinished jobs", len(self.driver.jobs.records))

    def _records(self, submission: Submission, who: Caller, now: int) -> list[JobRecord]:
        """Return the new jobs of a valid submission, with new ids."""
        submission = counted(limited(submission, self.driver.settings.queue_config), self.driver.settings.cluster.nodes)
        if submission.notices:
            free = who.role is Role.OPERATOR
            notices = tuple(msgspec.structs.replace(each, anywhere=free) for each in submission.notices)
            submission = msgspec.structs.replace(submission, notices=notices)
        ahead = self._ahead(submission)
        digest = digest_of(msgspec.json.encode(submission))
        phase = JobPhase.HELD if submission.hold else JobPhase.BLOCKED
        first = self._next
        self._next += max(len(submission.array), 1)
        records = []
        for seq, index in enumerate(submission.array or (-1,), start=first):
            name = f"{first}_{index}" if index >= 0 else str(seq)
            array = first if index >= 0 else -1
            records.append(JobRecord(seq, name, submission, digest, who.user, now, phase, array, index, *ahead(index)))
        return records

    def _ahead(self, submission: Submission | Dependencies) -> Callable[[int], Ahead]:
        """Return a function that maps an array index to the ids of the jobs that must first end, succeed, fail, or
        start. Raises UnknownJobError."""
        named = self.questions.named
        after, after_ok, after_not_ok = (
            tuple(each for job in getattr(submission, field) for each in named(job, field))
            for field in ("after", "after_ok", "after_not_ok")
        )
        started = [job.partition("+") for job in submission.after_started]
        after_started = tuple(
            f"{each}{plus}{delay}" for job, plus, delay in started for each in named(job, "after_started")
        )
        each_of = [named(job, "after_each") for job in submission.after_each]

        def of(index: int) -> Ahead:
            own = (job for jobs in each_of for job in jobs if len(jobs) == 1 or job.endswith(f"_{index}"))
            return after, (*after_ok, *own), after_not_ok, after_started

        return of

    async def _take_in(self, records: list[JobRecord], who: Caller, verb: str) -> JobIds:
        """Pass new jobs to the driver, and wait until they are on disk."""
        self.driver.submit(records)
        first = records[0]
        what = first.id if len(records) == 1 else f"{first.seq} ({len(records)} jobs)"
        self.store.note(first.submitted, who, verb, what)
        await self.driver.committed()
        return JobIds([record.id for record in records])

    def reserve(self, asked: ReservationRequest, who: Caller) -> ReservationMade:
        """Reserve GPUs for a time window. Raises InputError, which names the jobs and reservations in the way."""
        driver = self.driver
        driver.check_writing()
        known = tuple(queue.name for queue in driver.settings.queue_config.queues)
        for queue in asked.queues:
            if known and queue not in known:
                raise InputError("queues", f"some of {', '.join(known)}", queue)
        core, _ = self.questions.present()
        moved = driver.reservations.make(core, asked, who.user)
        self.store.note(driver.clock.micros(), who, "reserve", asked.name)
        driver.wake()
        return ReservationMade(self.questions.reservation(asked.name), moved)

    def unreserve(self, name: str, who: Caller) -> Reservations:
        """Cancel a reservation. Waiting jobs that name it are rejected. Raises InputError if jobs run in it."""
        self.driver.check_writing()
        core, _ = self.questions.present()
        found = self.questions.reservation(self.driver.reservations.find(name).request.name)
        self.driver.reservations.cancel(core, name)
        self.store.note(self.driver.clock.micros(), who, "unreserve", name)
        self.driver.wake()
        return Reservations([found])

    def pause(self, asked: QueueNames, who: Caller) -> PausedQueues:
        """Pause some queues, or all: no job starts in them. Raises InputError."""
        settings = self.driver.settings
        found = settings.queue_config.queues or tuple(map(Queue, asked.queues))
        known = {queue.name: queue for queue in found}
        check_quotas(settings.profile, QueueConfig(found or (Queue("default"),)))
        for name in asked.queues or known:
            if name not in known:
                raise InputError("queues", f"some of {', '.join(known)}", name)
            if known[name].state != "open":
                raise InputError(f"queue {name}", "the state open in the file of queues", known[name].state)
        return self._pause(self.driver.paused | set(asked.queues or (ALL,)), who, "pause", asked)

    def resume(self, asked: QueueNames, who: Caller) -> PausedQueues:
        """Resume some queues, or all. Raises InputError for a queue that is not paused."""
        paused = self.driver.paused
        for name in asked.queues:
            if name not in paused:
                what = "--all, since all queues are paused" if ALL in paused else "the name of a paused queue"
                raise InputError("queues", what, name)
        return self._pause(paused - set(asked.queues) if asked.queues else frozenset(), who, "resume", asked)

    def _pause(self, paused: frozenset[str], who: Caller, verb: str, asked: QueueNames) -> PausedQueues:
        self.driver.check_writing()
        self.store.note(self.driver.clock.micros(), who, verb, ", ".join(asked.queues) or "all queues")
        try:
            self.driver.pause(paused)
        except OSError as error:
            raise InputError("the store", f"a disk that can be written ({error})") from None
        return PausedQueues(sorted(paused - {ALL}), ALL in paused)

    def leave(self, name: str, asked: MachineLeaves, who: Caller) -> MachineJobs:
        """Let a machine that has joined leave once nothing runs on it, or let it stay. Raises InputError."""
        driver = self.driver
        driver.check_writing()
        machine = driver.machines.find(name)
        booked = [one.request.name for one in driver.reservations.known.values() if name in one.held]
        if booked and not asked.stays:
            raise InputError("machine", f"no reservations on it; cancel these first: {', '.join(booked)}", name)
        now, within = driver.clock.micros(), asked.within_s
        until = None if asked.stays else -1 if within is None else now + round(within * SECOND)
        self.store.note(now, who, "stay" if asked.stays else "leave", name)
        try:
            driver.machines.leave(machine, until)
        except OSError as error:
            raise InputError("the store", f"a disk that can be written ({error})") from None
        running = [one for one in driver.jobs.records.values() if one.phase in (JobPhase.RUNNING, JobPhase.STOPPING)]
        at = driver.machines.at
        return MachineJobs(name, [one.id for one in running if any(at(piece[NODE]) is machine for piece in one.place)])

    async def cancel(self, job: str, who: Caller) -> JobIds:
        """Cancel a job, or the jobs of an array that have not ended. If the disk is full, this is written later."""
        return await self._order(job, who, "cancel", self.driver.cancel)

    async def hold(self, job: str, who: Caller) -> JobIds:
        """Keep a waiting job from starting."""
        return await self._order(job, who, "hold", self.driver.hold)

    async def release(self, job: str, who: Caller) -> JobIds:
        """Let a held job start."""
        return await self._order(job, who, "release", self.driver.release)

    async def requeue(self, job: str, who: Caller) -> JobIds:
        """Stop the run of a job and put the job back in its queue."""
        return await self._order(job, who, "requeue", self.driver.requeue)

    async def update(self, job: str, asked: JobUpdate, who: Caller) -> JobIds:
        """Change the request of a waiting job, or the time limit of a running job (only an operator may raise it).
        Raises InputError, also if no change is given; then nothing changes."""
        new = {name: value for name, value in msgspec.structs.asdict(asked).items() if value is not None}
        if not new:
            raise InputError("the update", "at least one of priority, time_s, queue, name and dependencies")
        limit = asked.time_s if len(new) == 1 else None
        dependencies, ahead = new.pop("dependencies", None), None
        if dependencies is not None:
            new |= msgspec.structs.asdict(dependencies)
            ahead = self._ahead(dependencies)
        queue_config, changed = self.driver.settings.queue_config, dict[str, JobRecord]()

        def check(records: list[JobRecord]) -> None:
            for record in records:
                submission = msgspec.structs.replace(record.submission, **new)
                if record.phase is JobPhase.RUNNING:
                    self._check_limit(record, limit, who)
                else:
                    submission = limited(submission, queue_config)
                checked(submission, tuple(queue.name for queue in queue_config.queues))
                check_queue(who, "update", self.questions.lineage(submission.queue))
                digest = digest_of(msgspec.json.encode(submission))
                changed[record.id] = found = replace(record, submission=submission, digest=digest)
                if ahead is not None:
                    found.after, found.after_ok, found.after_not_ok, found.after_started = ahead(record.index)
            if dependencies is not None or asked.name is not None:
                self.driver.jobs.check_dependencies(changed)

        def act(record: JobRecord) -> None:
            self.driver.update(record, changed[record.id])

        fits = FITS["update"] if limit is None else (*FITS["update"], JobPhase.RUNNING)
        return await self._order(job, who, "update", act, check, fits)

    def _check_limit(self, record: JobRecord, limit: float | None, who: Caller) -> None:
        """Raise InputError if a running job may not have this limit in seconds (None: another field is changed)."""
        if limit is None:
            raise InputError(f"job {record.id}", "a waiting job, or only a new time_s", str(record.phase))
        before, ran = record.submission.time_s, self.driver.clock.micros() - record.started
        if who.role is not Role.OPERATOR and before is not None and limit > before:
            least = f"at most {show_duration(before * SECOND)}: only an operator may raise the limit of a running job"
            raise ForbiddenError("time_s", least, show_duration(limit * SECOND))
        if limit * SECOND <= ran:
            raise InputError("time_s", f"more than {show_duration(ran)}, which job {record.id} has already run", limit)

    async def signal(self, job: str, asked: JobSignal, who: Caller) -> JobIds:
        """Send a signal to the processes of a running job. Raises InputError if none of them receives it."""
        return await self._order(job, who, "signal", lambda record: self.driver.signal(record, asked.signal))

    async def _order(
        self,
        job: str,
        who: Caller,
        verb: str,
        act: Callable[[JobRecord], None],
        check: Callable[[list[JobRecord]], None] = lambda records: None,
        fits: tuple[JobPhase, ...] = (),
    ) -> JobIds:
        """Apply the order `verb` to a job, or to an array's jobs in a fitting phase, if all of them pass `check`."""
        if verb != "cancel":  # cancelling must work on a full disk: the job may be what fills it
            self.driver.check_writing()
        names = self.questions.named(job)
        first = self.questions.find(names[0])  # all jobs of an array are in one queue
        check_own(who, verb, self.questions.lineage(first.submission.queue), first.user)
        alive = self.driver.jobs.records
        records = [alive[name] for name in names if name in alive]
        if not records and verb != "cancel":
            what = "a running job" if verb in ("requeue", "signal") else "a waiting job"
            raise InputError(f"job {job}", what, str(first.phase))
        if len(names) > 1 and verb != "cancel":  # an array: take the jobs in an affected phase
            records = [record for record in records if record.phase in (fits or FITS[verb])]
        check(records)
        for record in records:
            act(record)
            self.questions.recorded.note(record.id, verb, f"{who.user} asked to {verb} it")
        self.store.note(self.driver.clock.micros(), who, verb, job)
        if records and not self.driver.trouble:
            await self.driver.committed()
        return JobIds([record.id for record in records])
