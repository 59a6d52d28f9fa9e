"""A world that is a running Kant: questions and orders go to its API, with the rights of the token's owner."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kant.client.kant import Kant
from kant.local.record import JobUpdate, ReservationRequest
from kant.model.errors import InputError
from kant.model.submission import Submission
from kant.model.units import SECOND, parse_duration
from kant.ops import orders as o
from kant.ops.foresight import foresee
from kant.ops.habits import EndedJob
from kant.ops.orders import Order, kind_of
from kant.ops.rules import FINAL, job_of
from kant.ops.simulated import explained_latest
from kant.ops.view import BookedView, JobView, NodeView, QueueView, WorldView
from kant.ops.world import Done, OrderFutures
from kant.service.roles import Caller, Role
from kant.service.views import JobRow
from kant.sim.past import read_past
from kant.sim.question import Question

ALIVE = "held,blocked,waiting,running,stopping"
PAGE = 1000
TAIL = 64 << 10
"""Maximum number of bytes that are read from the end of a log."""
INSIDE = ("waiting", "running")
"""The phases of jobs that the core knows."""
ENVIRONMENT = ("PATH", "HOME", "LANG", "USER")
"""The environment variables that a submitted job inherits; an assistant's keys and tokens are not passed on."""


class RunningWorld:
    """The Kant in a home folder, or at `url` with a `token`."""

    kind = "running"
    carries = frozenset({"submit", "cancel", "hold", "release", "priority", "preempt", "reserve", "unreserve"})

    def __init__(self, home: Path | None = None, url: str | None = None, token: str | None = None) -> None:
        self.api = Kant(home, url, token).api

    def caller(self) -> Caller:
        found = self.api.whoami()
        return Caller(found.user, Role(found.role), tuple(found.queues), "its token")

    def now(self) -> int:
        return self.api.health().now_us

    # --- questions ------------------------------------------------------------------------------------------------

    def _rows(self, state: str) -> Iterator[JobRow]:
        before = None
        while True:
            page = self.api.jobs(state=state, limit=PAGE, before=before)
            yield from page.jobs
            if (before := page.next) is None:
                return

    def view(self) -> WorldView:
        now = self.now()
        jobs = {}
        for row in self._rows(ALIVE):
            nodes: dict[str, float] = {}
            preemptible, limit = True, -1
            if row.phase in ("running", "stopping"):
                detail = self.api.job(row.id)
                count = sum(_count(indices) for indices in detail.place.values())
                share = row.gpus / count if count else 0.0
                nodes = {node: _count(indices) * share for node, indices in detail.place.items()}
                preemptible = detail.preemptible
                limit = round(detail.time_s * SECOND) if detail.time_s is not None else -1
            started = row.started if nodes else -1
            jobs[row.id] = JobView(
                id=row.id, phase=row.phase, queue=row.queue, user=row.user, name=row.name, priority=row.priority,
                gpus=row.gpus, submitted_us=row.submitted, started_us=started, run=row.attempt,
                preemptible=preemptible, nodes=nodes, limit_us=limit, waits=row.waits,
                lost_gpu_s=row.gpus * max(now - started, 0) / SECOND if started >= 0 else 0.0,
            )  # fmt: skip
        names = QueueView.__struct_fields__
        queues = [QueueView(**{name: row[name] for name in names}) for row in self.api.queues()["queues"]]
        nodes_now = [
            NodeView(node=row["node"], gpus=row["gpus"], free=row["gpus"] - row["gpus_used"])
            for row in self.api.top()["nodes"]
        ]
        booked = [
            BookedView(
                name=one.name, start_us=one.start, end_us=one.end, gpus=one.gpus,
                nodes={node: _count(indices) for node, indices in one.place.items()},
            )
            for one in self.api.reservations().reservations
        ]  # fmt: skip
        return WorldView(now_us=now, jobs=jobs, queues=queues, nodes=nodes_now, booked=booked)

    def job(self, job: str) -> dict[str, Any]:
        found = self.api.job(job)
        row = found.job
        return {
            "job": row.id, "phase": row.phase, "queue": row.queue, "priority": row.priority, "gpus": row.gpus,
            "submitted_us": row.submitted, "started_us": row.started, "ended_us": row.ended, "runs": row.attempt,
            "code": row.code, "signal": row.signal, "limit_s": found.time_s, "after": list(found.after),
            "place": found.place, "reservation": found.reservation, "waits": row.waits, "user": row.user,
            "name": row.name, "command": " ".join(found.command), "reason": row.reason,
        }  # fmt: skip

    def why(self, job: str) -> dict[str, Any]:
        found = self.api.why(job)
        answer = found.answer or {}
        return {"job": found.job, "phase": found.phase} | answer | {"sentence": found.sentence}

    def eta(self, job: str) -> list[dict[str, Any]]:
        found = self.api.eta(job=job or None)
        zero = int(found["zero_us"])
        rows = []
        for row in found["jobs"]:
            own = row["expected_us"]
            moved = {key: own[key] + zero if own[key] is not None else None for key in ("p50", "p90")}
            rows.append(row | {"expected_us": own | moved})
        return rows

    def explain(self, job: str) -> dict[str, Any]:
        path = self._journal()
        if path is None:
            raise InputError("explain", "access to the journal of this Kant, which only its owner has, on its machine")
        return explained_latest(read_past(path), job)

    def usage(self, by: str) -> list[dict[str, Any]]:
        if by not in ("user", "queue"):
            raise InputError("by", "user or queue", by)
        rows = [
            {by: getattr(row, by) or "", "jobs": row.jobs, "gpu_s": row.gpu_s} for row in self.api.usage(by=by).rows
        ]
        return sorted(rows, key=lambda row: (-float(row["gpu_s"]), str(row[by])))

    def events(self, since: int) -> list[dict[str, Any]]:
        found = []
        for row in self._rows(""):
            moments = (("submitted", row.submitted), ("started", row.started), (row.phase, row.ended))
            found += [
                {"time_us": time, "what": what, "job": row.id, "queue": row.queue, "gpus": row.gpus}
                for what, time in moments
                if time > since
            ]
        return sorted(found, key=lambda each: each["time_us"])

    def ended(self) -> list[EndedJob]:
        return [
            EndedJob(
                user=row.user, queue=row.queue, gpus=row.gpus, limit_us=row.limit_us,
                ran_us=max(row.ended - row.started, 0), end=row.phase, failures=row.failures,
                stops=max(row.attempt - 1 - row.failures, 0),
            )
            for row in self._rows("")
            if row.started >= 0 and row.ended >= 0
        ]  # fmt: skip

    def log(self, job: str) -> str:
        return self.api.log(job, offset=-TAIL).decode("utf-8", "replace")

    # --- futures ----------------------------------------------------------------------------------------------------

    def _journal(self) -> Path | None:
        """Return the journal's path if this process can read it (as its owner, on its machine), otherwise None."""
        found = self.api.health().journal
        return Path(found) if found and os.access(found, os.R_OK) else None

    def rights(self, order: Order) -> str | None:
        return None

    def futures(self, orders: tuple[Order, ...]) -> OrderFutures:
        """Compute effects from the journal if it can be read; else by Kant's what-if, which lacks some orders."""
        jobs = {row.id: row for row in self._rows(ALIVE)}
        inside: list[Order] = []
        for order in orders:
            job = jobs.get(job_of(order))
            if isinstance(order, o.Release) and job is not None:
                limit = self.api.job(job.id).time_s or 3600
                inside.append(o.Submit(max(round(job.gpus), 1), f"{max(round(limit), 1)}s", queue=job.queue))
            elif not job_of(order) or (job is not None and job.phase in INSIDE):
                inside.append(order)
        if not inside:
            return OrderFutures(unknown="these jobs are not in the queue yet, so no wait changes")
        return self.foreseen(tuple(inside))

    def foreseen(self, orders: tuple[Order, ...]) -> OrderFutures:
        """Return the effect of orders about jobs that the core knows."""
        path = self._journal()
        if path is not None:
            return foresee(read_past(path, today=self.now()), orders, {})
        return self._asked(orders)

    def _asked(self, orders: tuple[Order, ...]) -> OrderFutures:
        submit, cancel, drain, quota, left = [], [], [], [], []
        for order in orders:
            match order:
                case o.Submit():
                    submit.append(f"gpus={order.gpus},pods={order.pods},time={order.time},queue={order.queue}")
                case o.Cancel() | o.Hold():
                    cancel.append(order.job)
                case o.Drain():
                    drain.append(order.node)
                case o.Quota():
                    quota.append(f"{order.queue}:gpu" + f":{order.model}" * bool(order.model) + f"={order.gpus:g}")
                case _:
                    left.append(kind_of(order))
        unknown = f"the effects of {', '.join(sorted(set(left)))} cannot be simulated by this client" if left else ""
        if not (submit or cancel or drain or quota):
            return OrderFutures(unknown=unknown)
        evict = any(isinstance(order, o.Drain) and order.evict for order in orders)
        try:
            found = self.api.whatif(
                Question(
                    submit=tuple(submit), cancel=tuple(cancel), drain=tuple(drain), quota=tuple(quota), evict=evict
                )
            )
        except InputError as error:
            return OrderFutures(complaint=str(error))
        answer = {"waits": found.waits, "helped": found.helped, "harmed": found.harmed, "run_times": found.run_times}
        return OrderFutures(answer=answer, unknown=unknown)

    # --- orders -----------------------------------------------------------------------------------------------------

    def carry_out(self, order: Order, who: Caller) -> Done:
        cannot = FINAL.get(kind_of(order), "")
        match order:
            case o.Submit():
                job = self.api.submit(_submission(order)).jobs[0]
                return Done(order, job, (o.Cancel(job),))
            case o.Cancel():
                self.api.cancel(order.job)
            case o.Hold():
                self.api.hold(order.job)
                return Done(order, order.job, (o.Release(order.job),))
            case o.Release():
                self.api.release(order.job)
                return Done(order, order.job, (o.Hold(order.job),))
            case o.Priority():
                before = self.api.job(order.job).job.priority
                self.api.update(order.job, JobUpdate(priority=order.value))
                return Done(order, order.job, (o.Priority(order.job, before),))
            case o.Preempt():
                self.api.requeue(order.job)
            case o.Reserve():
                self.api.reserve(_request(order, self.now()))
                return Done(order, undo=(o.Unreserve(order.name),))
            case o.Unreserve():
                return self._unreserved(order)
            case _:
                raise InputError(kind_of(order), f"one of {', '.join(sorted(self.carries))} on a running Kant")
        return Done(order, job_of(order), cannot=cannot)

    def settle(self) -> None:
        """Do nothing: a running Kant schedules on its own, even between two orders."""

    def _unreserved(self, order: o.Unreserve) -> Done:
        (before,) = self.api.unreserve(order.name).reservations
        now = self.now()
        if before.queues or before.model:
            return Done(order, cannot=f"{before.name} was for some queues or GPUs: create it again")
        start = max(before.start - now, 0) // SECOND
        length = max((before.end - max(before.start, now)) // SECOND, 1)
        within: Any = before.within
        return Done(order, undo=(o.Reserve(before.name, before.gpus, f"{length}s", f"{start}s", within),))


def _count(indices: str) -> int:
    """Return how many GPUs a text such as `0,1` or `0-3` names."""
    count = 0
    for part in indices.split(",") if indices else ():
        first, dash, last = part.partition("-")
        count += int(last) - int(first) + 1 if dash else 1
    return count


def _submission(order: o.Submit) -> Submission:
    if not order.command:
        raise InputError("submit, command", "a command for the job to run")
    if order.within:
        raise InputError("submit, within", "nothing: this Kant places jobs without levels of the fabric", order.within)
    env = {name: os.environ[name] for name in ENVIRONMENT if name in os.environ}
    return Submission(
        command=order.command, workdir=str(Path.cwd()), env=env, name=order.name, queue=order.queue,
        priority=order.priority, gpus=order.gpus * order.pods, time_s=parse_duration(order.time, "time") / SECOND,
        preemptible=order.preemptible,
    )  # fmt: skip


def _request(order: o.Reserve, now: int) -> ReservationRequest:
    ahead = parse_duration(order.start, "start")
    within: Any = order.within
    return ReservationRequest(
        name=order.name, gpus=order.gpus, duration_s=parse_duration(order.time, "time") / SECOND,
        start=(now + ahead) / SECOND if ahead else 0.0, within=within,
    )  # fmt: skip
