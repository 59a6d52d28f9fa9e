"""What can be asked of a Kant that runs, apart from how the question travels."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import msgspec

from kant import __version__
from kant.live.answers import as_json, expectations, job_rows, pool_rows, queue_rows
from kant.local.driver import Driver
from kant.local.output import Output, read_output
from kant.local.record import Phase, Record, Submission
from kant.local.wishes import checked, devices, indices
from kant.model.errors import InputError
from kant.model.units import GPU, count_from
from kant.scheduler.explain import explanation
from kant.service.store import Store, digest_of, shown
from kant.service.views import Detail, Health, Ids, Job, Page, Why

MOST_WAITING = 100_000
"""Jobs that may be there at once."""
MOST_NODES = 64
"""Nodes that an answer lists one by one."""


class Unknown(InputError):  # noqa: N818 - the word of the answer
    """There is no such job."""


class Api:
    """The questions and orders. `who` is the caller, for the audit log."""

    def __init__(self, driver: Driver, store: Store) -> None:
        self.driver = driver
        self.store = store
        self.queues = tuple(queue.name for queue in driver.settings.tenancy.queues)
        self._next = store.last()[0] + 1

    # --- orders ---------------------------------------------------------------------------------------------------

    async def submit(self, wish: Submission, who: str) -> Ids:
        """Queue a command, once for each index of its array. Returns when it is safe. Raises InputError."""
        driver = self.driver
        driver.check_writing()
        checked(wish, self.queues)
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
            user = who.partition(" ")[0]
            records.append(Record(seq, name, wish, digest, user, now, phase, array, index, after, after_ok))
        driver.submit(records)
        self.store.note(now, who, "submit", records[0].id if count == 1 else f"{first} ({count} jobs)")
        await driver.committed()
        return Ids([record.id for record in records])

    async def cancel(self, job: str, who: str) -> Ids:
        """Withdraw a job, or all of an array that are not over."""
        return await self._order(job, who, "cancel", self.driver.cancel)

    async def hold(self, job: str, who: str) -> Ids:
        """Keep a waiting job from starting."""
        return await self._order(job, who, "hold", self.driver.hold)

    async def release(self, job: str, who: str) -> Ids:
        """Let a held job start."""
        return await self._order(job, who, "release", self.driver.release)

    async def _order(self, job: str, who: str, verb: str, act: Callable[[Record], None]) -> Ids:
        self.driver.check_writing()
        names = self.named(job)
        records = [self.driver.records[name] for name in names if name in self.driver.records]
        if not records and verb != "cancel":
            raise InputError(f"job {job}", "a job that waits", str(self.store.phase_of(names[0])))
        if len(names) > 1 and verb != "cancel":  # of an array those that it can be said of
            fits = (Phase.HELD,) if verb == "release" else (Phase.WAITING, Phase.BLOCKED)
            records = [record for record in records if record.phase in fits]
        for record in records:
            act(record)
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

    def job(self, job: str) -> Detail:
        """One job, whole."""
        record = self.record(job)
        wish, nodes = record.submission, self.driver.settings.cluster.nodes
        place = {
            nodes[node].name if node < len(nodes) else str(node): indices(mask)
            for node, mask in devices(record.place).items()
        }
        view = msgspec.convert(shown(record) | {"waits": self.driver.notes.get(job, "")}, Job)
        return Detail(
            view, wish.command, wish.workdir, tuple(sorted(wish.env)), wish.time_s, wish.retries, record.after,
            record.after_ok, record.stopping, place, str(self.driver.launcher.folder(record)),
        )  # fmt: skip

    def log(self, job: str, offset: int, limit: int) -> Output:
        """What the last run of a job has written."""
        return read_output(self.driver.launcher.folder(self.record(job)), offset, limit)

    def why(self, job: str) -> Why:
        """Why a job waits; of another, where it stands."""
        record = self.record(job)
        name = self.driver.core_id.get(record.id)
        core = self.driver.core
        if record.phase is Phase.WAITING and name is not None and core.state.rows[name] in core.state.pending:
            count_from(core.zero)
            found = explanation(core.scheduler, name, core.now)
            answer = {"time_us": core.now, "zero_us": core.zero, "since_us": found.since} | as_json(found)
            return Why(job, str(record.phase), answer["sentence"] or "nothing keeps it", answer)
        sentence = {
            Phase.HELD: f"it is held (kant release {job})",
            Phase.BLOCKED: self.driver.notes.get(job, ""),
            Phase.WAITING: "its place is being emptied for it",
            Phase.STOPPING: f"it is being stopped: {record.stopping}",
        }.get(record.phase, record.reason)
        return Why(job, str(record.phase), sentence, None)

    def eta(self) -> dict[str, Any]:
        """When the waiting jobs are expected to start."""
        core = self.driver.core
        count_from(core.zero)
        rows = expectations(core.scheduler, core.now)
        by_core = self.driver.by_core
        return {
            "time_us": core.now,
            "zero_us": core.zero,
            "jobs": [row | {"job": by_core[row["job"]].id} for row in rows],
        }

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
        return Health(
            __version__, os.getpid(), settings.profile.name, settings.cluster.name, len(settings.cluster.nodes),
            settings.cluster.gpus, len(self.driver.records), len(state.running), self.driver.clock.micros(),
            self.driver.trouble,
        )  # fmt: skip
