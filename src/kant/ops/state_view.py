"""The state of a scheduler as the rules see it: jobs, queues, nodes and reservations in one view."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from msgspec.structs import replace

from kant.cluster import columns as c
from kant.insight.diagnosis import Diagnosis
from kant.live.answers import queue_rows
from kant.live.sentences import public_id
from kant.model.job import Job
from kant.model.placement import MASK, MILLI, NODE, PODS
from kant.model.status import NodeStatus
from kant.model.units import GPU
from kant.ops.view import BookedView, JobView, NodeView, QueueView, WorldView
from kant.queueing.preemption.shrinking import lost_work
from kant.scheduler.cycle import Scheduler

if TYPE_CHECKING:
    from kant.kube.serve.questions import LeaderQuestions

MOST_JOBS = 1 << 40


def view_of(scheduler: Scheduler, now: int, runs: Mapping[str, int], ahead: int = 0) -> WorldView:
    """Return the state at `now` (µs on the state's clock) as a view. `ahead` is added to all times in the view.

    `runs` says how often each job has started so far.
    """
    state = scheduler.state
    cycle = Diagnosis(scheduler, now).cycle
    jobs = {}
    for row, job in state.live.items():
        own, name = job_view(job, runs.get(public_id(job.id), 0), ahead), public_id(job.id)
        if row in state.running:
            nodes: dict[str, float] = {}
            for piece in state.running[row].tolist():
                at = state.nodes[piece[NODE]].name
                nodes[at] = nodes.get(at, 0.0) + piece[PODS] * piece[MASK].bit_count() * piece[MILLI] / GPU
            started, lost = int(state.jobs[row][c.J_STARTED]) + ahead, lost_work(cycle, row) / GPU
            own = replace(own, phase="running", started_us=started, nodes=nodes, lost_gpu_s=lost)
        jobs[name] = own
    nodes_now = [
        NodeView(
            node=node.name, gpus=node.gpus, free=row[c.FREE] / GPU, leaf=node.leaf,
            status=NodeStatus(row[c.STATUS]).name.lower().replace("_", " "),
        )
        for node, row in zip(state.nodes, state.table.tolist(), strict=False)
        if row[c.STATUS] != NodeStatus.RETIRED
    ]  # fmt: skip
    booked = [
        BookedView(
            name=name, start_us=one.start + ahead, end_us=one.end + ahead,
            gpus=sum(bits.bit_count() for bits in one.devices().values()),
            nodes={state.nodes[node].name: bits.bit_count() for node, bits in one.devices().items()},
        )
        for name, one in state.bookings.items()
        if one.end > now
    ]  # fmt: skip
    return WorldView(
        now_us=now + ahead, jobs=dict(sorted(jobs.items())), queues=[QueueView(**row) for row in queue_rows(state)],
        nodes=nodes_now, booked=booked,
    )  # fmt: skip


def leader_view(questions: LeaderQuestions) -> WorldView:
    """Return the state of a cluster's leader, including held jobs. Times are microseconds since the Unix epoch."""
    core, _ = questions.present()
    rows = questions.jobs(("waiting", "running", "held"), "", "", None, MOST_JOBS)["jobs"]
    found = view_of(core.scheduler, core.now, {row["id"]: row["attempt"] for row in rows}, core.zero)
    jobs = found.jobs
    for row in rows:
        if row["phase"] == "held":
            jobs[row["id"]] = JobView(
                id=row["id"], phase="held", queue=row["queue"], user=row["user"], name=row["name"], gpus=row["gpus"],
                submitted_us=row["submitted"], run=row["attempt"], waits=row["waits"],
            )  # fmt: skip
        elif row["waits"] and row["id"] in jobs:
            jobs[row["id"]] = replace(jobs[row["id"]], waits=row["waits"])
    return found


def job_view(job: Job, runs: int, ahead: int = 0) -> JobView:
    """Return the view of a waiting job; `runs` says how often it has started, `ahead` is added to its times."""
    return JobView(
        id=public_id(job.id), phase="waiting", queue=job.queue, user=job.user, name=job.name, priority=job.priority,
        gpus=job.gpu_milli / GPU, pods=job.pods, submitted_us=job.submit + ahead, run=runs,
        preemptible=job.preemptible, limit_us=job.limit,
    )  # fmt: skip
