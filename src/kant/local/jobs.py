"""The jobs of this machine that have not ended: their records, their ids in the core, and their dependencies.

A changed record is `dirty` until the driver has written it. This module makes all changes to jobs, so that the core,
the launcher and the record agree.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from itertools import takewhile

from kant.cluster.columns import J_STARTED, J_SUBMIT
from kant.live.core import Core
from kant.local.clock import SteadyClock
from kant.local.dependencies import circle
from kant.local.launch import Launcher
from kant.local.processes import since_boot
from kant.local.record import OVER, JobPhase, JobRecord, RecordStore
from kant.local.slots import given_to, withdraw
from kant.local.submission import job_of
from kant.model.errors import InputError
from kant.model.event import JobCancelled, JobLimited, JobSubmitted
from kant.model.node import Node
from kant.model.submission import Submission
from kant.model.units import SECOND


class LocalJobs:
    """The jobs: `records` has them by id, in order of submission. `notes` has the last reason why each job waits.

    `core` is the present core; `ready` says whether there is a core. `wake` is called when a job enters the core.
    `nodes` are the nodes of the cluster.
    """

    core: Core

    def __init__(
        self, book: RecordStore, clock: SteadyClock, launcher: Launcher, nodes: Sequence[Node], wake: Callable[[], None]
    ) -> None:
        self.book = book
        self.clock = clock
        self.launcher = launcher
        self.nodes = nodes
        self.shared_power = -1
        self.wake = wake
        self.records: dict[str, JobRecord] = {}
        self.by_core: dict[str, JobRecord] = {}
        self.core_id: dict[str, str] = {}
        self.notes: dict[str, str] = {}
        self.dirty: dict[str, JobRecord] = {}
        self.waits_for: dict[str, dict[str, None]] = {}
        self.ready = False
        self.later: dict[str, int] = {}  # by job that may not start yet: the time from which on it may start
        self.inside: dict[int, set[str]] = {}  # by array with a limit: its jobs in the core
        self.throttled: dict[int, dict[str, None]] = {}  # by array: the jobs that wait until one in `inside` ends
        self._alike: tuple[tuple[str, str, int], str | None] | None = None  # the last result of `_like`
        self.refusals: dict[str, int] = {}  # how often each job's run could not begin

    def follow(self, core: Core) -> None:
        """Use a new core, which has no jobs yet."""
        self.core = core
        self.ready = True
        self.by_core.clear()
        self.core_id.clear()
        self.inside.clear()
        self.throttled.clear()

    def enter(self, record: JobRecord, moment: int, came: int = -1) -> None:
        """Submit a job to the core at `moment`; `came` is its submission time, if that is earlier (-1: it is not)."""
        if record.submission.array_most:
            self.inside.setdefault(record.array, set()).add(record.id)
        name = self.core.fresh_id(record.id)
        self.by_core[name], self.core_id[record.id] = record, name
        job = job_of(record, name, came if came >= 0 else moment, self.nodes, self.shared_power)
        self.core.happen(JobSubmitted(moment, job))

    def change(self, record: JobRecord, new: JobRecord) -> None:
        """Change the request and the dependencies of a waiting job. The job keeps its age unless it must wait for a
        dependency.
        """
        name = self.core_id.get(record.id)
        came = int(self.core.state.jobs[self.core.state.rows[name], J_SUBMIT]) if name is not None else -1
        self.withdraw(record)
        record.submission, record.digest = new.submission, new.digest
        self._alike = None
        record.after, record.after_ok, record.after_not_ok = new.after, new.after_ok, new.after_not_ok
        record.after_started = new.after_started
        self.touch(record)
        if name is None or new.submission.array_most or came < 0 or self._pending(record) is not None:
            self.block(record)
        else:
            self.enter(record, self.core.now, came)
            self.wake()
        self.wake_after(record)  # a singleton may have waited because of its old name

    def check_dependencies(self, changed: Mapping[str, JobRecord]) -> None:
        """Raise InputError if the jobs in `changed` would never start."""
        job, through = circle(self.records, changed)
        if job:
            raise InputError("dependencies", f"jobs that do not depend on job {job} themselves", f"job {through}")
        distinct = {(tuple(_named(new)), new.submission.after_one): new for new in changed.values()}
        for (ahead, one), new in distinct.items():
            states = [self._state_of(new, other, when) for other, when in ahead]
            never = [state for state in states if state not in ("met", "pending")]
            if never and (len(never) == len(states) or not one):
                raise InputError("dependencies", f"conditions that can still be met ({never[0]})")

    def limit(self, record: JobRecord, submission: Submission, digest: bytes) -> None:
        """Change the time limit of a running job."""
        record.submission, record.digest = submission, digest
        self.touch(record)
        limit = round((submission.time_s or 0) * SECOND)
        self.core.happen(JobLimited(self.core.now, self.core_id[record.id], limit))

    def fill(self, record: JobRecord, closes: bool = False) -> bool:
        """Record the job that a slot got; with `closes`, prevent the slot from getting a job. Return False if the slot
        has no job. Raises OSError.
        """
        folder = self.launcher.folder(record)
        if closes:
            with suppress(FileNotFoundError):  # its run has not begun and never will
                withdraw(folder)
        given = given_to(folder)
        if given is None:
            return False
        record.submission, record.digest = given.job, given.digest
        self._alike = None
        record.submitted = record.started = self.clock.micros() - (since_boot() - given.time)
        self.touch(record)
        name = self.core_id.get(record.id)
        if name is not None and (row := self.core.state.rows[name]) in self.core.state.running:
            held = self.core.now - self.core.state.jobs.item(row, J_STARTED)
            self.core.happen(JobLimited(self.core.now, name, held + round((given.job.time_s or 0) * SECOND)))
        return True

    def leave(self, record: JobRecord) -> None:
        """Forget the core's id of a job that has left the core."""
        self.by_core.pop(self.core_id.pop(record.id, ""), None)
        self.notes.pop(record.id, None)

    def withdraw(self, record: JobRecord) -> None:
        """Remove a job from the core."""
        name = self.core_id.get(record.id)
        if name is not None:
            self.launcher.cancel_plan(record)
            self.core.happen(JobCancelled(self.core.now, name))
            self.leave(record)
            if record.phase is not JobPhase.RUNNING:
                self._make_room(record)

    def touch(self, record: JobRecord) -> None:
        """Mark a record as changed: the driver writes it at the end of its turn."""
        self.dirty[record.id] = record

    def block(self, record: JobRecord) -> None:
        """Let a job wait for its dependencies or, if none is pending, submit it to the core."""
        if record.phase not in (JobPhase.BLOCKED, JobPhase.WAITING) or record.id in self.core_id:
            return
        if (pending := self._pending(record)) is not None:
            for other in pending:
                self.waits_for.setdefault(other, {})[record.id] = None
            if record.phase is JobPhase.WAITING:
                record.phase = JobPhase.BLOCKED
                self.touch(record)
            return
        if (why := self._postponed(record)) is not None:
            self.notes[record.id] = why
            if record.phase is not JobPhase.BLOCKED:
                record.phase = JobPhase.BLOCKED
                self.touch(record)
            return
        record.phase = JobPhase.WAITING
        self.notes.pop(record.id, None)
        self.touch(record)
        self.enter(record, self.core.now)
        self.wake()

    def wake_after(self, record: JobRecord) -> None:
        """Check the jobs that depend on a job which has started or ended."""
        for other in self.waits_for.pop(record.id, {}):
            if other in self.records:
                self.block(self.records[other])

    def _pending(self, record: JobRecord) -> list[str] | None:
        """Return the jobs that a job must wait for; None if it may proceed. If a dependency can never be met, end it
        and return [].
        """
        one, pending, refused = record.submission.after_one, list[str](), ""
        for other, when in self._ahead(record):
            state = self._state_of(record, other, when)
            if state == "met" and one:
                return None
            if state == "met":
                continue
            if state != "pending":
                refused = refused or state
            else:
                pending.append(other.partition("+")[0])
                what = "started, or not long enough ago" if when == "started" else "ended"
                self.notes[record.id] = f"it depends on job {pending[0]}, which has not {what}"
            if not one:
                break
        if pending:
            return pending
        if refused:
            self.finish(record, JobPhase.CANCELLED, refused)
            return []
        return None

    def _state_of(self, record: JobRecord, other: str, when: str) -> str:
        """Return `met` or `pending` for a dependency, or a sentence that says why it can never be met."""
        name, _, delay = other.partition("+")
        ahead = self.records.get(name)
        phase = ahead.phase if ahead is not None else self.book.phase_of(name)
        is_over = phase is None or phase in OVER
        if when == "started" and ahead is not None and not is_over:
            if not ahead.attempt:
                return "pending"
            begin = ahead.started + int(delay or 0) * 1_000_000 if ahead.started >= 0 else -1
            if begin > self.clock.micros():
                self.later[record.id] = begin
                self.wake()  # so that the driver's next turn comes at that time at the latest
                return "pending"
            return "met"
        if not is_over:
            return "pending"
        if when in ("well", "not well") and phase is not None and (when == "well") is not (phase is JobPhase.FINISHED):
            what = ("success", "did not succeed") if when == "well" else ("failure", "succeeded")
            return f"it depends on the {what[0]} of job {other}, which {what[1]}"
        return "met"

    def _ahead(self, record: JobRecord) -> list[tuple[str, str]]:
        """Return the dependencies of a job, each with its condition: ended in any way, succeeded, not succeeded, or
        started.
        """
        if record.submission.singleton and (one := self._like(record)):
            return [(one, "ended")]
        return _named(record)

    def _like(self, record: JobRecord) -> str | None:
        """Return the first earlier job with the same user and name that has not ended, outside its array; or None."""
        own = (record.user, record.submission.name, record.array if record.array >= 0 else record.seq)
        if self._alike is not None and self._alike[0] == own:  # the jobs of an array check one after the other
            found = self._alike[1]
            if found is None or self._is_like(self.records.get(found), own):
                return found
        earlier = takewhile(lambda other: other.seq < own[2], self.records.values())  # in order of submission
        found = next((other.id for other in earlier if self._is_like(other, own)), None)
        self._alike = own, found
        return found

    def _is_like(self, other: JobRecord | None, own: tuple[str, str, int]) -> bool:
        return other is not None and (other.user, other.submission.name) == own[:2] and not other.is_over

    def _postponed(self, record: JobRecord) -> str | None:
        """Return why a job without pending dependencies may not start yet, or None. `block` is called again later."""
        submission = record.submission
        begin = round(submission.begin * 1e6)
        if begin > self.clock.micros():
            self.later[record.id] = begin
            return f"it may not start before {datetime.fromtimestamp(submission.begin).isoformat(' ', 'seconds')}"
        if submission.array_most and len(self.inside.get(record.array, ())) >= submission.array_most:
            self.throttled.setdefault(record.array, {})[record.id] = None
            return f"its array has reached its limit of {submission.array_most} jobs at once"
        return None

    def _make_room(self, record: JobRecord) -> None:
        """Admit jobs that waited because of their array's limit, in order, after a job of the array has left."""
        inside = self.inside.get(record.array)
        if inside is None or record.id not in inside:
            return
        inside.remove(record.id)
        others = self.throttled.get(record.array, {})
        while others and len(inside) < record.submission.array_most:
            other = self.records.get(next(iter(others)))
            del others[next(iter(others))]
            if other is not None:
                self.block(other)

    def let_begin(self) -> int:
        """Admit jobs whose begin time has come. Return the microseconds until the next begin time, -1 if none."""
        now = self.clock.micros()
        for job in [job for job, begin in self.later.items() if begin <= now]:
            del self.later[job]
            if job in self.records:
                self.block(self.records[job])
        return min(self.later.values(), default=now - 1) - now

    def finish(self, record: JobRecord, phase: JobPhase, reason: str) -> None:
        """Record the end of a job in this phase, and the reason."""
        record.phase, record.reason, record.ended = phase, reason, self.clock.micros()
        record.place = []
        self.notes.pop(record.id, None)
        self.refusals.pop(record.id, None)
        self.later.pop(record.id, None)
        self.touch(record)
        self._make_room(record)


def _named(record: JobRecord) -> list[tuple[str, str]]:
    """Return the dependencies that a job names, each with its condition."""
    parts = (
        (record.after, "ended"), (record.after_ok, "well"), (record.after_not_ok, "not well"),
        (record.after_started, "started"),
    )  # fmt: skip
    return [(job, when) for jobs, when in parts for job in jobs]
