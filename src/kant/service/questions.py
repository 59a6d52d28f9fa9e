"""The questions to Kant on this machine, independent of the transport."""

from __future__ import annotations

import os
from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import Any

import msgspec

from kant import __version__
from kant.cluster import columns as c
from kant.insight.diagnosis import waiting_order, waiting_reasons
from kant.live.core import Core
from kant.live.optimality import OptimalityLooks
from kant.live.questions import Questions, UnknownJobError
from kant.live.record import RunRecord
from kant.live.sentences import public_sentence
from kant.live.solver import Solver
from kant.live.start_forecasts import Forecaster, StartForecasts
from kant.local.driver import LocalDriver
from kant.local.output import Output, read_output
from kant.local.power import powered
from kant.local.record import OVER, JobPhase, JobRecord
from kant.local.runs import read_exit
from kant.local.submission import devices, indices
from kant.model.errors import InputError
from kant.model.status import NodeStatus
from kant.model.units import GPU, SECOND
from kant.service.forecaster import ForecastProcess
from kant.service.recorded import Recorded
from kant.service.roles import Caller, check_own, owns
from kant.service.solver_process import SolverProcess
from kant.service.store import JobStore, shown
from kant.service.usage import STORE_BY
from kant.service.views import (
    Attempt,
    AuditEntry,
    AuditLog,
    GpuUsed,
    JobDetail,
    JobOutcome,
    JobPage,
    JobRow,
    Operations,
    Outcomes,
    ReservationRow,
    Reservations,
    ServiceHealth,
    Usage,
    UsageRow,
    WaitingPage,
    WaitingRow,
)

MOST_REASONS = 100
"""Maximum number of jobs of a list for which a reason is computed on request."""
ABOUT_TO_START = "nothing blocks it: it is about to start"
TAIL = "job {} is in the tail of its training and is not preempted (docs/elastic.md)"
AHEAD = (JobPhase.WAITING, JobPhase.BLOCKED, JobPhase.HELD)
MOST_NODES = 64
MOST_OPERATIONS, OPERATIONS_BYTES = 300, 1 << 20
"""Maximum number of entries of an answer about operations, and of bytes that are read of their audit."""


class LocalQuestions(Questions):
    """Answers questions about this machine's jobs. Raises ForbiddenError for anything that the caller's role may not
    see.

    `complaint` returns why a changed file was not applied, and which GPUs accept no new job; `starting` says whether
    the Numba code is still being compiled.
    """

    kind = "local"

    def __init__(
        self,
        driver: LocalDriver,
        store: JobStore,
        recorded: Recorded,
        forecaster: Forecaster | None = None,
        solver: Solver | None = None,
    ) -> None:
        super().__init__(StartForecasts(forecaster or ForecastProcess()), OptimalityLooks(solver or SolverProcess()))
        self.driver = driver
        self.store = store
        self.recorded = recorded
        self.complaint: Callable[[], str] = lambda: ""
        self.starting = ""
        self.here = ""

    def present(self) -> tuple[Core, RunRecord]:
        assert self.recorded.run is not None, "asked once the state has been built"
        return self.driver.core, self.recorded.run

    # --- jobs -----------------------------------------------------------------------------------------------------

    def find(self, job: str) -> JobRecord:
        """Return a job, ended or not. Raises InputError for an array, and UnknownJobError."""
        found = self.driver.jobs.records.get(job) or self.store.record(job)
        if found is None:
            first = self.named(job)[0]
            raise InputError("JOB", f"a single job of the array, such as {first}", job)
        return found

    def one_of(self, job: str) -> str:
        """Return the id of a job; for an array, that of the job that represents it: the first waiting job, otherwise
        the first that has not ended, otherwise the first.
        """
        names, alive = self.named(job), self.driver.jobs.records
        waits = (name for name in names if name in alive and alive[name].phase is JobPhase.WAITING)
        return next(waits, None) or next((name for name in names if name in alive), names[0])

    def named(self, job: str, where: str = "JOB") -> list[str]:
        """Return the id of a job, or the ids of an array's jobs. Raises UnknownJobError, which names `where`."""
        if job in self.driver.jobs.records or self.store.phase_of(job) is not None:
            return [job]
        if job.isascii() and job.isdigit() and len(job) < 19:
            elements = self.store.elements(int(job))
            if elements:
                return elements
            if (one := self.store.id_of(int(job))) is not None:  # the SLURM_JOB_ID of an array's job
                return [one]
        raise UnknownJobError(where, "the id of a job", job)

    def lineage(self, queue: str) -> tuple[str, ...]:
        """Return a queue and its ancestors: a right to one of them includes the queue."""
        return self.driver.settings.queue_config.lineage(queue)

    def core_ids(self, job: str) -> list[str]:
        ids = self.driver.jobs.core_id
        return [ids[name] for name in self.named(job) if name in ids]

    def phase_of(self, job: str) -> tuple[str, str]:
        record = self.find(job)
        sentence = {
            JobPhase.HELD: f"it is held (kant release {job})",
            JobPhase.BLOCKED: self.driver.jobs.notes.get(job, ""),
            JobPhase.WAITING: "its place is being freed",
            JobPhase.RUNNING: self.driver.elastic.sentence(record) or record.reason,
            JobPhase.STOPPING: f"it is being stopped: {record.stopping}",
        }.get(record.phase, record.reason)
        return str(record.phase), sentence

    def waited(self, job: str) -> dict[str, int] | None:
        return super().waited(job) or self.find(job).waited or None

    # --- answers --------------------------------------------------------------------------------------------------

    async def why(self, job: str) -> dict[str, Any]:
        one = self.one_of(job)
        stage = {"stage": self.find(one).submission.stage}
        found = await super().why(one) | stage
        if found["answer"] is not None:
            tails = [record.id for record in self.driver.jobs.records.values() if self.driver.elastic.is_ending(record)]
            found["answer"]["facts"] += [{"fact": {"tail": job}, "sentence": TAIL.format(job)} for job in tails]
        return found

    def record(self, cursor: str) -> dict[str, Any]:
        self.present()
        self.recorded.resolve_missing()
        return super().record(cursor)

    def reservation(self, name: str) -> ReservationRow:
        """Return a reservation that has not ended. Raises InputError."""
        core, _ = self.present()
        booked = self.driver.reservations
        one = booked.find(name)
        phase = "active" if one.start <= core.zero + core.now else "pending"
        jobs = [
            self.driver.jobs.by_core[job].id for job in booked.jobs_in(core, name) if job in self.driver.jobs.by_core
        ]
        wanted = one.request
        return ReservationRow(
            wanted.name, one.user, phase, wanted.gpus, one.start, one.end, wanted.within, wanted.model, wanted.queues,
            booked.place(one), jobs,
        )  # fmt: skip

    def reservations(self) -> Reservations:
        """Return all reservations that have not ended."""
        found = [self.reservation(name) for name in self.driver.reservations.known]
        return Reservations(sorted(found, key=lambda one: (one.start, one.name)))

    def jobs(
        self, phases: tuple[str, ...], queue: str, user: str, before: int | None, limit: int, name: str = "",
        own: Caller | None = None,
    ) -> JobPage:  # fmt: skip
        """Return a page of jobs, the latest first; with `own`, only the jobs of that caller (`_scope`).

        In `name`, `*` and `?` are wildcards.
        """
        for phase in phases:
            if phase not in JobPhase.__members__.values():
                raise InputError("state", f"one of {', '.join(JobPhase)}", phase)
        scope = None if own is None else self._scope(own)
        rows = self.store.page(phases=phases, queue=queue, user=user, name=name, own=scope, before=before, most=limit)
        notes, dirty = self.driver.jobs.notes, self.driver.jobs.dirty
        present = [shown(dirty[row["id"]]) if row["id"] in dirty else row for row in rows]
        notes = notes | self._missing_notes([row["id"] for row in present if row["id"] not in notes])
        notes |= {row["id"]: self.phase_of(row["id"])[1] for row in present if row["phase"] == JobPhase.HELD}
        jobs = [
            msgspec.convert(row | {"waits": notes.get(row["id"], "")} | self._live_facts(row["id"]), JobRow)
            for row in present
            if not phases or row["phase"] in phases  # the phase may have changed since it was stored
        ]
        return JobPage(jobs, rows[-1]["seq"] if len(rows) == limit else None)

    def _scope(self, who: Caller) -> tuple[str, set[str]]:
        """Return a caller's name, and the queues whose jobs also count as the caller's: the caller's queues, and all
        queues below these.
        """
        queues = {queue.name for queue in self.driver.settings.queue_config.queues} | set(who.queues)
        return who.user, {name for name in queues if not set(self.lineage(name)).isdisjoint(who.queues)}

    def _live_facts(self, job: str) -> dict[str, Any]:
        """Return the nodes of a job and its time limit; {} for a job that has ended."""
        record = self.driver.jobs.records.get(job)
        if record is None or record.phase in OVER:
            return {}
        limit = record.submission.time_s
        return {"nodes": self._nodes(record), "limit_us": -1 if limit is None else round(limit * SECOND)}

    def _nodes(self, record: JobRecord) -> dict[str, str]:
        """Return the nodes of a job, each with the indices of the job's GPUs there."""
        nodes = self.driver.settings.cluster.nodes
        return {
            nodes[node].name if node < len(nodes) else str(node): indices(mask)
            for node, mask in devices(record.place).items()
        }

    def _missing_notes(self, names: list[str]) -> dict[str, str]:
        """Return, by id, why jobs wait that no cycle has tried yet; for at most `MOST_REASONS` of `names`."""
        records = [self.driver.jobs.records[name] for name in names if name in self.driver.jobs.core_id]
        pending = self.driver.core.state.pending if records else {}
        rows = self.driver.core.state.rows if records else {}
        ids = self.driver.jobs.core_id
        return self._reasons([record for record in records if rows[ids[record.id]] in pending][:MOST_REASONS])

    def reason(self, job: str) -> str:
        """Return why a job that has not ended does not run, in one sentence."""
        notes = self.driver.jobs.notes
        return notes.get(job) or self._missing_notes([job]).get(job) or self.phase_of(job)[1]

    def waiting(
        self, queue: str, user: str, after: int, limit: int, name: str = "", own: Caller | None = None
    ) -> WaitingPage:
        """Return a page of waiting jobs in scheduling order, each with its reason; `own` is as in `jobs`."""
        whose, below = ("", set[str]()) if own is None else self._scope(own)
        jobs = self.driver.jobs
        ordered = waiting_order(self.driver.core.scheduler, self.driver.core.now)
        inside = [jobs.by_core[name] for name in ordered]
        known = {record.id for record in inside}
        others = [record for record in jobs.records.values() if record.phase in AHEAD and record.id not in known]
        others.sort(key=lambda record: (AHEAD.index(record.phase), record.seq))
        placed = [(record, place) for place, record in enumerate(inside, start=1)]
        starting = [(record, 0) for record in others if record.phase is JobPhase.WAITING]
        rest = [(record, 0) for record in others if record.phase is not JobPhase.WAITING]
        found = [
            (record, place) for record, place in (*starting, *placed, *rest)
            if queue in ("", record.submission.queue) and user in ("", record.user)
            and fnmatchcase(record.submission.name, name or "*")
            and (whose in ("", record.user) or record.submission.queue in below)
        ]  # fmt: skip
        page = found[after : after + limit]
        reasons = self._reasons([record for record, place in page if place])
        rows = []
        for record, place in page:
            sentence = reasons[record.id] if place else self.phase_of(record.id)[1]
            facts = {"waits": sentence, "place": place} | self._live_facts(record.id)
            rows.append(msgspec.convert(shown(record) | facts, WaitingRow))
        more = after + limit < len(found)
        return WaitingPage(rows, len(found), after + limit if more else None)

    def _reasons(self, records: list[JobRecord]) -> dict[str, str]:
        """Return why waiting jobs wait, by id; the core must have these jobs."""
        core, ids = self.driver.core, self.driver.jobs.core_id
        found = waiting_reasons(core.scheduler, core.now, [ids[record.id] for record in records])
        return {
            record.id: public_sentence(reason) if reason is not None else ABOUT_TO_START
            for record, reason in zip(records, found, strict=True)
        }

    def job(self, job: str, who: Caller) -> JobDetail:
        """Return all details of one job, without its command if the job is not the caller's."""
        record = self.find(job)
        submission, place = record.submission, self._nodes(record)
        view = msgspec.convert(
            shown(record) | {"waits": self.driver.jobs.notes.get(job, "")} | self._live_facts(job), JobRow
        )
        runs = tuple(self._attempt(record, number) for number in range(max(record.attempt - 99, 1), record.attempt + 1))
        found = JobDetail(
            view, submission.command, submission.workdir, tuple(sorted(submission.env)), submission.time_s,
            submission.retries, record.after, record.after_ok, record.stopping, place,
            str(self.driver.launcher.folder(record)), False, submission.cpus, submission.memory_mib, runs,
            submission.stage, submission.terminal, submission.reservation, submission.training, submission.account,
            submission.qos, submission.comment, submission.preemptible, self._gpu_use(record),
        )  # fmt: skip
        if owns(who, self.lineage(submission.queue), record.user):
            return found
        return msgspec.structs.replace(found, command=(), workdir="", env=(), log="", hidden=True, comment="")

    def _gpu_use(self, record: JobRecord) -> GpuUsed | None:
        """Return the GPU use of a running job; None if the use is not measured."""
        use = self.driver.gpu_use
        found = use.jobs.get(record.id)
        if found is None or record.phase is not JobPhase.RUNNING:
            return None
        mean, warning = found.busy_sum / found.looks, use.warning(record, self.driver.clock.micros())
        return GpuUsed(found.busy, mean, found.memory_mib, found.peak_mib, found.total_mib, warning)

    def gpu_warning(self, job: str) -> str:
        """Return a warning that the GPUs of a job are idle, with the consequence; "" if they are in use."""
        use = self._gpu_use(self.find(job))
        return use.warning if use is not None else ""

    def top(self) -> dict[str, Any]:
        """Return capacity and jobs, with how many GPUs the common power cap allows and the measured use of each GPU."""
        use, jobs = self.driver.gpu_use, self.driver.jobs.records
        gpus = [
            {
                "gpu": gpu,
                "model": next(device.model for device in use.places if device.gpu == gpu),
                "busy": found.busy,
                "memory_mib": found.total_mib,
                "memory_used_mib": found.memory_mib,
                "jobs": [name for name in use.jobs if name in jobs and found in use.of(jobs[name])],
            }
            for gpu, found in sorted(use.gpus.items())
        ]
        shared = self.driver.settings.shared_power
        return super().top() | {"gpus": gpus, "gpus_powered": shared / GPU if shared >= 0 else None}

    def _attempt(self, record: JobRecord, number: int) -> Attempt:
        """Return one run of a job, as its supervisor recorded it."""
        found = read_exit(self.driver.launcher.folder(record, number))
        if found is None:
            return Attempt(number)
        ran = found.ended - found.began if found.began >= 0 else -1
        return Attempt(
            number, found.code, found.signal, found.why, ran, found.cpu_us, found.rss_kib, found.dropped
        )  # fmt: skip

    def log(self, job: str, offset: int, limit: int, who: Caller, attempt: int = 0) -> Output:
        """Return the output of a run of a job; `attempt` 0: the last run. Raises InputError for an unknown run."""
        record = self.find(job)
        check_own(who, "log", self.lineage(record.submission.queue), record.user)
        if attempt > record.attempt:
            raise InputError("attempt", f"a run of job {job}, from 1 to {record.attempt}", attempt)
        return read_output(self.driver.launcher.folder(record, attempt or None), offset, limit)

    def dropped(self, job: str, attempt: int = 0) -> int:
        """Return how many bytes of a run's output a full disk has lost; 0 while the run lasts."""
        record = self.find(job)
        found = read_exit(self.driver.launcher.folder(record, attempt or None))
        return found.dropped if found is not None else 0

    def outcome(self, job: str) -> Outcomes:
        """Return how a job, or the jobs of an array, ended. Raises UnknownJobError."""
        names, alive = self.named(job), self.driver.jobs.records
        known = self.store.outcomes([name for name in names if name not in alive])
        jobs = []
        for name in names:
            record = alive.get(name)
            if record is not None:  # a job that has ended, but not yet on disk, is not reported as ended
                over = record.is_over and name not in self.driver.jobs.dirty
                jobs.append(JobOutcome(name, str(record.phase), over, record.code, record.signal, record.reason))
            elif name in known:
                phase, code, signal, reason = known[name]
                jobs.append(JobOutcome(name, phase, JobPhase(phase) in OVER, code, signal, reason))
        return Outcomes(jobs, all(each.over for each in jobs))

    def usage(self, by: tuple[str, ...], since: int, until: int, where: dict[str, str]) -> Usage:
        """Return the usage of jobs that ended from `since` until before `until` (-1: now). Raises InputError."""
        for name in by:
            if name not in STORE_BY or by.count(name) > 1:
                raise InputError("by", f"some of {', '.join(STORE_BY)}, each once", name)
        end = until if until >= 0 else self.driver.clock.micros()
        rows = [msgspec.convert(row, UsageRow) for row in self.store.usage(by, since, end, where)]
        return Usage(since, end, rows)

    def audit(self, user: str, refused: bool, before: int | None, limit: int) -> AuditLog:
        """Return a page of the audit log, the latest entry first."""
        rows = self.store.audited(user=user, refused=refused, before=before, most=limit)
        entries = [msgspec.convert(row, AuditEntry) for row in rows]
        return AuditLog(entries, entries[-1].seq if len(entries) == limit else None)

    def operations(self) -> Operations:
        """Return the last entries of this Kant's `kant ops` audit, the latest first; [] if there is no audit."""
        path = self.store.path.parent / "ops" / "audit.jsonl"
        try:
            with path.open("rb") as file:
                file.seek(max(path.stat().st_size - OPERATIONS_BYTES, 0))
                lines = file.read().split(b"\n")[:-1]
        except FileNotFoundError:
            return Operations([])
        except OSError as error:
            raise InputError(str(path), f"a readable audit log ({error.strerror})") from None
        found = [line for line in lines[-MOST_OPERATIONS:] if line.startswith(b'{"seq"')]  # the first may be cut
        try:
            return Operations([msgspec.json.decode(line) for line in reversed(found)])
        except msgspec.DecodeError as error:
            raise InputError(str(path), f"an audit log of `kant ops` ({error})") from None

    def entries(self, job: str, recorded: list[dict[str, Any]] | None, zero: int) -> list[dict[str, Any]]:
        """Return a job's history: the `recorded` entries, and before them older entries that only the store has."""
        known = _stored(self.find(job), zero)
        if recorded is None:
            return known
        kinds = {each["what"] for each in recorded}
        missing = [each for each in known if each["what"] not in kinds]
        return sorted([*missing, *recorded], key=lambda each: each["time_us"])

    def node_rows(self, core: Core) -> list[dict[str, Any]]:
        """Return the cores, memory and GPUs of the first MOST_NODES nodes."""
        nodes = []
        for node, row in zip(core.state.nodes[:MOST_NODES], core.state.table.tolist(), strict=False):
            if row[c.STATUS] == NodeStatus.RETIRED:  # a row that belongs to no node now
                continue
            limited = node.cpu < 1 << 60
            nodes.append(
                {
                    "node": node.name,
                    "gpus": node.gpus,
                    "gpus_used": node.gpus - row[c.FREE] / GPU,
                    "gpus_powered": milli / GPU if (milli := powered(node)) >= 0 else None,
                    "cores": node.cpu / 1000 if limited else None,
                    "cores_used": (node.cpu - row[c.CPU_FREE]) / 1000,
                    "memory_mib": node.memory if node.memory < 1 << 60 else None,
                    "memory_used_mib": node.memory - row[c.MEMORY_FREE],
                }
            )
        return nodes

    def health(self) -> dict[str, Any]:
        """Return the health of Kant, and the size of what it manages."""
        driver, settings = self.driver, self.driver.settings
        journals, cluster = settings.journals, settings.cluster
        found = ServiceHealth(
            __version__, os.getpid(), settings.profile.name, cluster.name,
            len(cluster.nodes) - sum(each.is_gone for each in driver.machines.known), cluster.gpus,
            len(driver.jobs.records), len(driver.core.state.running), driver.clock.micros(), driver.trouble,
            str(journals.path or "") if journals is not None else "", self.complaint(), self.starting,
            self.here,
        )  # fmt: skip
        return msgspec.to_builtins(found)  # type: ignore[no-any-return]


def _stored(record: JobRecord, zero: int) -> list[dict[str, Any]]:
    """Return the history entries that a job's stored record implies."""
    found = [(record.submitted, "asked", f"{record.user} submitted it")]
    if record.started >= 0:
        found.append((record.started, "started", f"its last run began, the number {record.attempt}"))
    if record.phase in OVER:
        because = f" ({record.reason})" if record.reason else ""
        found.append((record.ended, str(record.phase), f"it has ended: {record.phase}{because}"))
    return [{"time_us": time - zero, "what": what, "sentence": text} for time, what, text in found]
