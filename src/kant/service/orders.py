"""What can be ordered of this machine's Kant, apart from how the order travels."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from kant.local.record import JobPhase, JobRecord, Submission
from kant.local.submission import checked
from kant.model.errors import InputError
from kant.service.questions import LocalQuestions
from kant.service.roles import Caller, check_own
from kant.service.store import digest_of
from kant.service.views import JobIds

FITS = {
    "hold": (JobPhase.WAITING, JobPhase.BLOCKED),
    "release": (JobPhase.HELD,),
    "requeue": (JobPhase.RUNNING,),
}
"""The phases in which jobs of an array are meant by an order."""
MOST_WAITING = 100_000
"""Jobs that may be there at once."""


class Orders:
    """Submits, cancels, holds and releases jobs. Each order returns when it is safe on disk.

    `who` is the caller: what a role may order is in `roles`. Raises ForbiddenError for the rest.
    """

    def __init__(self, questions: LocalQuestions) -> None:
        self.questions = questions
        self.driver = questions.driver
        self.store = questions.store
        self._next = self.store.last()[0] + 1

    async def submit(self, wish: Submission, who: Caller) -> JobIds:
        """Queue a command, once for each index of its array. Raises InputError."""
        driver = self.driver
        driver.check_writing()
        checked(wish, tuple(queue.name for queue in driver.settings.queue_config.queues))
        check_own(who, "submit", self.questions.lineage(wish.queue))
        if len(driver.jobs.records) + max(len(wish.array), 1) > MOST_WAITING:
            raise InputError("the queue", f"at most {MOST_WAITING:,} jobs at once", len(driver.jobs.records))
        after = tuple(each for job in wish.after for each in self.questions.named(job))
        after_ok = tuple(each for job in wish.after_ok for each in self.questions.named(job))
        after_not_ok = tuple(each for job in wish.after_not_ok for each in self.questions.named(job))
        digest, now = digest_of(msgspec.json.encode(wish)), driver.clock.micros()
        phase = JobPhase.HELD if wish.hold else JobPhase.BLOCKED
        first, count = self._next, max(len(wish.array), 1)
        self._next += count
        records = []
        for seq, index in enumerate(wish.array or (-1,), start=first):
            name = f"{first}_{index}" if index >= 0 else str(seq)
            array = first if index >= 0 else -1
            record = JobRecord(seq, name, wish, digest, who.user, now, phase, array, index, after, after_ok)
            record.after_not_ok = after_not_ok
            records.append(record)
        driver.submit(records)
        self.store.note(now, who, "submit", records[0].id if count == 1 else f"{first} ({count} jobs)")
        await driver.committed()
        return JobIds([record.id for record in records])

    async def cancel(self, job: str, who: Caller) -> JobIds:
        """Withdraw a job, or all of an array that are not over. While nothing can be written it is written later."""
        return await self._order(job, who, "cancel", self.driver.cancel)

    async def hold(self, job: str, who: Caller) -> JobIds:
        """Keep a waiting job from starting."""
        return await self._order(job, who, "hold", self.driver.hold)

    async def release(self, job: str, who: Caller) -> JobIds:
        """Let a held job start."""
        return await self._order(job, who, "release", self.driver.release)

    async def requeue(self, job: str, who: Caller) -> JobIds:
        """Stop the run of a job, which then waits again."""
        return await self._order(job, who, "requeue", self.driver.requeue)

    async def _order(self, job: str, who: Caller, verb: str, act: Callable[[JobRecord], None]) -> JobIds:
        if verb != "cancel":  # a job may be what fills the disk
            self.driver.check_writing()
        names = self.questions.named(job)
        first = self.questions.find(names[0])  # an array lies in one queue
        check_own(who, verb, self.questions.lineage(first.submission.queue))
        alive = self.driver.jobs.records
        records = [alive[name] for name in names if name in alive]
        if not records and verb != "cancel":
            what = "a job that runs" if verb == "requeue" else "a job that waits"
            raise InputError(f"job {job}", what, str(first.phase))
        if len(names) > 1 and verb != "cancel":  # of an array those that it can be said of
            records = [record for record in records if record.phase in FITS[verb]]
        for record in records:
            act(record)
            self.questions.recorded.note(record.id, verb, f"{who.user} asked to {verb} it")
        self.store.note(self.driver.clock.micros(), who, verb, job)
        if records and not self.driver.trouble:
            await self.driver.committed()
        return JobIds([record.id for record in records])
