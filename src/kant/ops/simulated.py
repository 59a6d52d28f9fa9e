"""Worlds from simulated runs: a cluster that is stepped in virtual time, or the read-only state of a journal."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from kant import __version__
from kant.cluster.journal import Header
from kant.cluster.state import ClusterState
from kant.insight.explanation import explain
from kant.insight.moment import moment_of
from kant.insight.past_jobs import PastJobs
from kant.insight.start_explanation import explain_start
from kant.live.answers import expectations, job_facts
from kant.live.explained import as_json, known
from kant.live.sentences import public_id, public_sentence
from kant.model.errors import InputError
from kant.model.event import (
    Event,
    JobCancelled,
    JobEvicted,
    JobFailed,
    JobFinished,
    JobPreempted,
    JobStarted,
    JobSubmitted,
    NodeChanged,
)
from kant.model.job import Job
from kant.model.node import ClusterSpec
from kant.model.placement import NODE, PODS
from kant.model.status import NodeStatus
from kant.model.tenant import QueueConfig
from kant.model.units import GPU, SECOND
from kant.ops.foresight import foresee
from kant.ops.habits import EndedJob
from kant.ops.on_run import HeldJob, RunOrders
from kant.ops.orders import KINDS, Order
from kant.ops.state_view import job_view, view_of
from kant.ops.view import WorldView
from kant.ops.world import Done, OrderFutures
from kant.scheduler.profile import Profile
from kant.service.roles import Caller
from kant.sim.forecast_starts import forecast_starts
from kant.sim.fork import fork
from kant.sim.options import read_options
from kant.sim.past import Past, read_past
from kant.sim.run import Run, RunHooks
from kant.sim.state_at import find_start, scheduler_before

ENDS = (JobFinished, JobPreempted, JobEvicted, JobFailed, JobCancelled)
"""The events that end a run of a job."""


class SimulatedWorld:
    """A cluster in simulated time. Only `step` advances the time.

    `logs` holds the output of jobs. A world created from a journal (`of_journal`) carries out no orders.
    """

    kind = "simulated"

    def __init__(
        self,
        cluster: ClusterSpec,
        profile: Profile,
        queues: QueueConfig | None = None,
        coming: Iterable[JobSubmitted] = (),
        logs: dict[str, str] | None = None,
        seed: int = 0,
    ) -> None:
        options = read_options(profile.simulation, f"profile {profile.name}")
        self._lines: list[bytes] = []
        self.events_so_far: list[Event] = []
        hooks = RunHooks(journal=self._lines.append)
        run = Run(cluster.name, cluster, profile, options, seed, 0, hooks, queues)
        self.header = Header(__version__, cluster.name, profile.text or profile.name, seed, cluster)
        self._begin(run, [*coming], 0)
        if queues is not None and queues.queues:
            from kant.model.event import QueuesChanged

            self.events_so_far.append(QueuesChanged(0, queues))
        self.carries = frozenset(KINDS)
        self.logs = logs or {}
        self.step(0)

    @classmethod
    def of_journal(cls, path: Path, at: int | None = None) -> SimulatedWorld:
        """Return the state of a journal at a time (None: its end) as a read-only world, for questions and plans."""
        past = read_past(path, at)
        world = cls.__new__(cls)
        world.kind = "journal"
        world.header = past.header
        world._lines = [path.read_bytes()]
        world.events_so_far = list(past.events)
        world._begin(fork(past, arrivals=False).run, [], past.now)
        world.carries = frozenset()
        world.logs = {}
        return world

    def _begin(self, run: Run, coming: list[JobSubmitted], now: int) -> None:
        self.run = run
        self._now = now
        self._coming = sorted(coming, key=lambda event: event.time)
        self.held: dict[str, HeldJob] = {}
        happen = run.execution.happen

        def noted(event: Event) -> None:
            happen(event)
            self.events_so_far.append(event)

        run.execution.happen = noted

    # --- time -----------------------------------------------------------------------------------------------------

    def step(self, until: int) -> None:
        """Advance time to `until`, microseconds on the world's clock."""
        if until < self._now:
            raise InputError("the time", "a time that has not passed", until)
        due = [event for event in self._coming if event.time <= until]
        self._coming = self._coming[len(due) :]
        self._now = until
        self.run.advance(until, due)

    def now(self) -> int:
        return self._now

    # --- questions ------------------------------------------------------------------------------------------------

    @property
    def state(self) -> ClusterState:
        return self.run.state

    def caller(self) -> Caller | None:
        return None

    def past(self) -> Past:
        """Return the history so far, without later arrivals, for simulations of changes."""
        run = self.run
        return Past(
            Path(self.header.workload), self.header, run.profile, run.options, self._now,
            min(max(run.last, run.state.now), self._now), list(self.events_so_far), [],
        )  # fmt: skip

    def view(self) -> WorldView:
        found = view_of(self.run.scheduler, self._now, self._runs())
        held = {
            name: replace(job_view(held.job, self._runs().get(name, 0)), phase="held", waits="a user holds it")
            for name, held in self.held.items()
        }
        return replace(found, zero_us=self.header.zero, jobs=dict(sorted((found.jobs | held).items())))

    def _runs(self) -> dict[str, int]:
        """Return how often each job has started so far, by public id."""
        counts: dict[str, int] = {}
        for event in self.events_so_far:
            if isinstance(event, JobStarted):
                counts[public_id(event.job)] = counts.get(public_id(event.job), 0) + 1
        return counts

    def _id(self, job: str) -> str:
        """Return the latest core id of a job that has arrived. Raises InputError."""
        found = [name for name in self.state.rows if job in (name, public_id(name))]
        if not found:
            raise InputError("job", f"a job of {self.header.workload}", job)
        return found[-1]

    def job(self, job: str) -> dict[str, Any]:
        name = self._id(job)
        facts = job_facts(self.state, name, self._now) | {"job": public_id(name)}
        if public_id(name) in self.held:
            facts["status"] = "held"
        submitted = next(e for e in self.events_so_far if isinstance(e, JobSubmitted) and e.job.id == name)
        return facts | {"user": submitted.job.user, "name": submitted.job.name, "within": submitted.job.within}

    def why(self, job: str) -> dict[str, Any]:
        name = self._id(job)
        facts = self.job(job)
        if facts["status"] != "pending":
            return {"job": public_id(name), "phase": facts["status"], "sentence": f"it is {facts['status']}"}
        forecast = forecast_starts(moment_of(self.run.scheduler, PastJobs(), self._now), name)
        found = explain(self.run.scheduler, name, self._now, forecast.jobs.get(name), forecast.now)
        answer: dict[str, Any] = msgspec.to_builtins(as_json(known(found)))
        return {"job": public_id(name), "phase": "waiting"} | answer

    def eta(self, job: str) -> list[dict[str, Any]]:
        name = self._id(job) if job else ""
        if name and self.state.rows[name] not in self.state.pending:
            raise InputError("job", "a job that waits", job)
        forecast = forecast_starts(moment_of(self.run.scheduler, PastJobs(), self._now), name)
        rows = expectations(forecast, public_sentence)
        return [row | {"job": public_id(row["job"])} for row in rows]

    def explain(self, job: str) -> dict[str, Any]:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "journal.jsonl"
            path.write_bytes(b"".join(self._lines))
            return explained(path, self._id(job))

    def usage(self, by: str) -> list[dict[str, Any]]:
        return usage_of(self.events_so_far, by, self._now)

    def events(self, since: int) -> list[dict[str, Any]]:
        return [shown(event) for event in self.events_so_far if event.time > since]

    def ended(self) -> list[EndedJob]:
        return ended_of(self.events_so_far)

    def log(self, job: str) -> str:
        return self.logs.get(public_id(self._id(job)), "")

    # --- orders ---------------------------------------------------------------------------------------------------

    def rights(self, order: Order) -> str | None:
        return None

    def futures(self, orders: tuple[Order, ...]) -> OrderFutures:
        return foresee(self.past(), orders, self.held)

    def carry_out(self, order: Order, who: Caller) -> Done:
        if not self.carries:
            raise InputError("the world", "a running Kant or a scenario: a journal can only be read")
        return RunOrders(self.run, self.held).carry_out(order, self._now, who.user)

    def settle(self) -> None:
        if self.carries:
            self.run.advance(self._now)


def explained(path: Path, job: str) -> dict[str, Any]:
    """Why a job of a journal got its latest place. Raises InputError if it has not started."""
    decided = find_start(path, job)
    found = explain_start(scheduler_before(path, decided), job, decided.time, decided.place)
    header = read_past(path).header
    names = header.cluster.nodes
    place: dict[str, int] = {}
    for piece in found.place.tolist():
        place[names[piece[NODE]].name] = place.get(names[piece[NODE]].name, 0) + piece[PODS]
    effect: dict[str, Any] = msgspec.to_builtins(found.effect)
    return {
        "job": public_id(job), "started_us": header.zero + decided.time, "start": decided.number, "starts": decided.of,
        "pods_on": place, "how": found.how, "stopped": [public_id(each) for each in found.stopped],
        "within": found.within, "required": found.required, "agrees": found.agrees, "effect": effect,
    }  # fmt: skip


def explained_latest(past: Past, job: str) -> dict[str, Any]:
    """Why a job of a journal got the place of its latest start. Raises InputError if it has not started."""
    started = [e.job for e in past.events if isinstance(e, JobStarted) and public_id(e.job) == job]
    if not started:
        raise InputError("job", f"a job that has started since {past.path.name} began", job)
    return explained(past.path, started[-1])


def shown(event: Event) -> dict[str, Any]:
    """Return an event as a small JSON-like object, without the devices."""
    found: dict[str, Any] = {"time_us": event.time, "what": str(event.__struct_config__.tag)}
    if isinstance(event, JobSubmitted):
        return found | {"job": public_id(event.job.id), "queue": event.job.queue, "gpus": event.job.gpu_milli / GPU}
    if isinstance(event, NodeChanged):
        status = NodeStatus(event.status).name.lower().replace("_", " ")
        return found | {"node": event.node, "status": status}
    for name in ("job", "by", "reason", "node", "reservation", "start", "end"):
        value = getattr(event, name, "")
        if value not in ("", None):
            found[name] = public_id(value) if name in ("job", "by") else value
    return found


def usage_of(events: Iterable[Event], by: str, now: int) -> list[dict[str, Any]]:
    """Return the GPU-seconds that jobs have held so far, by submitting user or queue, the largest first."""
    if by not in ("user", "queue"):
        raise InputError("by", "user or queue", by)
    whose: dict[str, str] = {}
    gpus: dict[str, float] = {}
    began: dict[str, int] = {}
    held: dict[str, float] = {}
    jobs: dict[str, set[str]] = {}

    def ended(job: str, time: int) -> None:
        if job in began:
            held[whose[job]] = held.get(whose[job], 0.0) + gpus[job] * (time - began.pop(job)) / SECOND

    for event in events:
        if isinstance(event, JobSubmitted):
            whose[event.job.id] = str(getattr(event.job, by))
            gpus[event.job.id] = event.job.gpu_milli / GPU
            jobs.setdefault(whose[event.job.id], set()).add(public_id(event.job.id))
        elif isinstance(event, JobStarted):
            began[event.job] = event.time
        elif isinstance(event, ENDS):
            ended(event.job, event.time)
    for job in list(began):
        ended(job, now)
    rows = [{by: name, "jobs": len(own), "gpu_s": round(held.get(name, 0.0), 3)} for name, own in jobs.items()]
    return sorted(rows, key=lambda row: (-row["gpu_s"], row[by]))


def ended_of(events: Iterable[Event]) -> list[EndedJob]:
    """Return the jobs that have run and ended, according to the events."""
    jobs: dict[str, Job] = {}
    began: dict[str, int] = {}
    ran: Counter[str] = Counter()
    stops: Counter[str] = Counter()
    failures: Counter[str] = Counter()
    found = []
    for event in events:
        if isinstance(event, JobSubmitted):
            jobs[event.job.id] = event.job
        elif isinstance(event, JobStarted):
            began[event.job] = event.time
        elif isinstance(event, ENDS):
            ran[event.job] += event.time - began.pop(event.job, event.time)
            stops[event.job] += isinstance(event, JobPreempted | JobEvicted)
            failures[event.job] += isinstance(event, JobFailed)
            over = isinstance(event, JobFinished | JobCancelled)
            if over and ran[event.job] and (job := jobs.pop(event.job, None)) is not None:
                found.append(
                    EndedJob(
                        user=job.user, queue=job.queue, gpus=job.gpu_milli / GPU, limit_us=job.limit,
                        ran_us=ran[event.job], end="finished" if isinstance(event, JobFinished) else "cancelled",
                        stops=stops[event.job], failures=failures[event.job],
                    )
                )  # fmt: skip
    return found
