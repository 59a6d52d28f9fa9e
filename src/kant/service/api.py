"""What can be asked of a Kant that runs, apart from how the question travels."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

from kant import __version__
from kant.live.answers import as_json, expecting_rows, job_rows, known, pool_rows, queue_rows
from kant.live.calm import Calm, in_slices
from kant.live.core import Core
from kant.live.sentences import public, said
from kant.local.driver import Driver
from kant.local.output import Output, read_output
from kant.local.record import Phase, Record, Submission
from kant.local.wishes import checked, devices, indices
from kant.model.errors import InputError, Violation
from kant.model.units import GPU, count_from
from kant.scheduler.explain import explaining
from kant.scheduler.steps import Steps
from kant.service.recorded import Recorded
from kant.service.roles import Caller, check_own, owns
from kant.service.store import Store, digest_of, shown
from kant.service.views import Deed, Deeds, Detail, Health, Ids, Job, Page, Why

MOST_WAITING = 100_000
"""Jobs that may be there at once."""
MOST_NODES = 64
"""Nodes that an answer lists one by one."""


class Unknown(InputError):  # noqa: N818 - the word of the answer
    """There is no such job."""


class Api:
    """The questions and orders. `who` is the caller: what a role has is in `roles`. Raises Forbidden for the rest."""

    def __init__(self, driver: Driver, store: Store, recorded: Recorded) -> None:
        self.driver = driver
        self.store = store
        self.complaint: Callable[[], str] = lambda: ""
        self.recorded = recorded
        self._next = store.last()[0] + 1
        self._starts: Calm[dict[str, Any]] = Calm()

    # --- orders ---------------------------------------------------------------------------------------------------

    async def submit(self, wish: Submission, who: Caller) -> Ids:
        """Queue a command, once for each index of its array. Returns when it is safe. Raises InputError."""
        driver = self.driver
        driver.check_writing()
        checked(wish, tuple(queue.name for queue in driver.settings.tenancy.queues))
        check_own(who, "submit", self.lineage(wish.queue))
        if len(driver.records) + max(len(wish.array), 1) > MOST_WAITING:
            raise InputError("the queue", f"at most {MOST_WAITING:,} jobs at once", len(driver.records))
        after = tuple(each for job in wish.after for each in self.named(job))
        after_ok = tuple(each for job in wish.after_ok for each in self.named(job))
        digest, now = digest_of(msgspec.json.encode(wish)), driver.clock.micros()
        phase = Phase.HELD if wish.hold else Phase.BLOCKED
        first, count = self._next, max(len(wish.array), 1)
        self._next += count
        records = []
        for seq, index in enumerate(wish.array or (-1,), start=first):
            name = f"{first}_{index}" if index >= 0 else str(seq)
            array = first if index >= 0 else -1
            records.append(Record(seq, name, wish, digest, who.user, now, phase, array, index, after, after_ok))
        driver.submit(records)
        self.store.note(now, who, "submit", records[0].id if count == 1 else f"{first} ({count} jobs)")
        await driver.committed()
        return Ids([record.id for record in records])

    async def cancel(self, job: str, who: Caller) -> Ids:
        """Withdraw a job, or all of an array that are not over."""
        return await self._order(job, who, "cancel", self.driver.cancel)

    async def hold(self, job: str, who: Caller) -> Ids:
        """Keep a waiting job from starting."""
        return await self._order(job, who, "hold", self.driver.hold)

    async def release(self, job: str, who: Caller) -> Ids:
        """Let a held job start."""
        return await self._order(job, who, "release", self.driver.release)

    async def _order(self, job: str, who: Caller, verb: str, act: Callable[[Record], None]) -> Ids:
        self.driver.check_writing()
        names = self.named(job)
        check_own(who, verb, self.lineage(self.record(names[0]).submission.queue))  # an array lies in one queue
        records = [self.driver.records[name] for name in names if name in self.driver.records]
        if not records and verb != "cancel":
            raise InputError(f"job {job}", "a job that waits", str(self.store.phase_of(names[0])))
        if len(names) > 1 and verb != "cancel":  # of an array those that it can be said of
            fits = (Phase.HELD,) if verb == "release" else (Phase.WAITING, Phase.BLOCKED)
            records = [record for record in records if record.phase in fits]
        for record in records:
            act(record)
            self.recorded.note(record.id, verb, f"{who.user} asked to {verb} it")
        self.store.note(self.driver.clock.micros(), who, verb, job)
        if records:
            await self.driver.committed()
        return Ids([record.id for record in records])

    def named(self, job: str) -> list[str]:
        """The ids of a job, or of the jobs of an array. Raises Unknown."""
        if job in self.driver.records or self.store.phase_of(job) is not None:
            return [job]
        if job.isascii() and job.isdigit() and len(job) < 19:
            elements = self.store.elements(int(job))
            if elements:
                return elements
        raise Unknown("JOB", "the id of a job", job)

    def lineage(self, queue: str) -> tuple[str, ...]:
        """The queue and those above it: who has one of them has it too."""
        above = {each.name: each.parent for each in self.driver.settings.tenancy.queues}
        path = [queue]
        while above.get(path[-1]):
            path.append(above[path[-1]])
        return tuple(path)

    # --- questions ------------------------------------------------------------------------------------------------

    def record(self, job: str) -> Record:
        """Any job that ever was. Raises Unknown."""
        found = self.driver.records.get(job) or self.store.record(job)
        if found is None:
            raise Unknown("JOB", "the id of a job", job)
        return found

    def page(self, phases: tuple[str, ...], queue: str, user: str, before: int | None, limit: int) -> Page:
        """Jobs, the latest first."""
        for phase in phases:
            if phase not in Phase.__members__.values():
                raise InputError("state", f"one of {', '.join(Phase)}", phase)
        rows = self.store.page(phases=phases, queue=queue, user=user, before=before, most=limit)
        notes = self.driver.notes
        jobs = [msgspec.convert(row | {"waits": notes.get(row["id"], "")}, Job) for row in rows]
        return Page(jobs, jobs[-1].seq if len(jobs) == limit else None)

    def job(self, job: str, who: Caller) -> Detail:
        """One job, whole; of other people's jobs what they run is left out."""
        record = self.record(job)
        wish, nodes = record.submission, self.driver.settings.cluster.nodes
        place = {
            nodes[node].name if node < len(nodes) else str(node): indices(mask)
            for node, mask in devices(record.place).items()
        }
        view = msgspec.convert(shown(record) | {"waits": self.driver.notes.get(job, "")}, Job)
        if not owns(who, self.lineage(wish.queue)):
            waits = (record.after, record.after_ok, record.stopping, place)
            return Detail(view, (), "", (), wish.time_s, wish.retries, *waits, "", hidden=True)
        return Detail(
            view, wish.command, wish.workdir, tuple(sorted(wish.env)), wish.time_s, wish.retries, record.after,
            record.after_ok, record.stopping, place, str(self.driver.launcher.folder(record)),
        )  # fmt: skip

    def log(self, job: str, offset: int, limit: int, who: Caller) -> Output:
        """What the last run of a job has written."""
        record = self.record(job)
        check_own(who, "log", self.lineage(record.submission.queue))
        return read_output(self.driver.launcher.folder(record), offset, limit)

    def audit(self, user: str, refused: bool, before: int | None, limit: int) -> Deeds:
        """Who did what, the latest first."""
        rows = self.store.audited(user=user, refused=refused, before=before, most=limit)
        deeds = [msgspec.convert(row, Deed) for row in rows]
        return Deeds(deeds, deeds[-1].seq if len(deeds) == limit else None)

    async def why(self, job: str) -> Why:
        """Why a job waits; of another, where it stands."""
        while True:
            record = self.record(job)
            name, core = self.driver.core_id.get(record.id), self.driver.core
            waited = self.recorded.waited(record.id) or record.waited or None
            if record.phase is not Phase.WAITING or name is None or core.state.rows[name] not in core.state.pending:
                return self._stands(record, waited)
            count_from(core.zero)
            now = core.now
            explain = partial(explaining, core.scheduler, name, now, core.answers)
            try:
                found, _ = await in_slices(explain)
            except Violation:
                continue  # it has started, or left, meanwhile
            answer = {"time_us": now, "zero_us": core.zero, "since_us": found.since} | as_json(known(found))
            return Why(job, str(record.phase), answer["sentence"] or "nothing keeps it", answer, waited)

    def _stands(self, record: Record, waited: dict[str, int] | None) -> Why:
        job = record.id
        sentence = {
            Phase.HELD: f"it is held (kant release {job})",
            Phase.BLOCKED: self.driver.notes.get(job, ""),
            Phase.WAITING: "its place is being emptied for it",
            Phase.STOPPING: f"it is being stopped: {record.stopping}",
        }.get(record.phase, record.reason)
        return Why(job, str(record.phase), sentence, None, waited)

    def history(self, job: str) -> dict[str, Any]:
        """What happened to a job, and what was decided about it."""
        return self.recorded.history(self.record(job))

    async def eta(self, job: str = "") -> dict[str, Any]:
        """When the waiting jobs (or one, or those of one array) are expected to start. Raises InputError."""
        if not job:
            return await self._starts.told(self._expecting)
        pending, core_id = self.driver.core.state.pending, self.driver.core_id
        named = [core_id[name] for name in self.named(job) if name in core_id]
        waiting = [own for own in named if self.driver.core.state.rows[own] in pending]
        if not waiting:
            raise InputError("JOB", f"a job that waits (`kant why {job}` says where it stands)", job)
        only, wanted = (waiting[0] if len(waiting) == 1 else None), {public(own) for own in waiting}
        found, _ = await in_slices(partial(self._expecting, only, self.driver.core))
        return found | {"jobs": [row for row in found["jobs"] if row["job"] in wanted]}

    def _expecting(self, only: str | None = None, core: Core | None = None) -> Steps[dict[str, Any]]:
        """`only` is a job of `core` (None: the one that is)."""
        core = core or self.driver.core
        count_from(core.zero)
        now = core.now
        rows = yield from expecting_rows(core.scheduler, now, only, core.answers, said)
        return {"time_us": now, "zero_us": core.zero, "jobs": [row | {"job": public(row["job"])} for row in rows]}

    def queue(self) -> dict[str, Any]:
        """The queues, with their quotas and what they use."""
        core = self.driver.core
        return {"time_us": core.now, "zero_us": core.zero, "queues": queue_rows(core.state)}

    def top(self) -> dict[str, Any]:
        """What the pools and nodes hold, and the largest jobs that run."""
        from kant.cluster import columns as c

        core, nodes = self.driver.core, []
        for node, row in zip(core.state.spec.nodes[:MOST_NODES], core.state.table.tolist(), strict=False):
            limited = node.cpu < 1 << 60
            nodes.append(
                {
                    "node": node.name,
                    "gpus": node.gpus,
                    "gpus_used": node.gpus - row[c.FREE] / GPU,
                    "cores": node.cpu / 1000 if limited else None,
                    "cores_used": (node.cpu - row[c.CPU_FREE]) / 1000,
                    "memory_mib": node.memory if node.memory < 1 << 60 else None,
                    "memory_used_mib": node.memory - row[c.MEMORY_FREE],
                }
            )
        jobs = [row | {"job": self.driver.by_core[row["job"]].id} for row in job_rows(core.state, core.now)[:100]]
        stands = {"pools": pool_rows(core.state), "nodes": nodes, "jobs": jobs}
        return {"time_us": core.now, "zero_us": core.zero} | stands

    def health(self) -> Health:
        """Whether all is well, and what there is."""
        settings, state = self.driver.settings, self.driver.core.state
        journal = settings.journals.path if settings.journals is not None else None
        return Health(
            __version__, os.getpid(), settings.profile.name, settings.cluster.name, len(settings.cluster.nodes),
            settings.cluster.gpus, len(self.driver.records), len(state.running), self.driver.clock.micros(),
            self.driver.trouble, str(journal or ""), self.complaint(),
        )  # fmt: skip
