"""Orders on a simulated run: a simulated world carries them out, and each plan tries them on a copy of the run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from msgspec.structs import replace

from kant.cluster import columns as c
from kant.cluster.state import ClusterState
from kant.live.sentences import public_id
from kant.model.errors import InputError, StateError
from kant.model.event import (
    BookingEnded,
    GpusBooked,
    JobCancelled,
    JobSubmitted,
    PlanProposed,
    ProposedPlace,
    QueuesChanged,
)
from kant.model.job import Job
from kant.model.status import NodeStatus
from kant.model.units import GPU, SECOND, parse_duration, show_duration
from kant.ops import orders as o
from kant.ops.orders import Order, kind_of
from kant.ops.world import Done
from kant.sim.jobs import Arrivals, Gangs
from kant.sim.run import Run
from kant.sim.whatif_changes import QuotaChange, with_quotas
from kant.workload.faults_file import NodeHealth
from kant.workload.job_text import parse_jobs


@dataclass(frozen=True, slots=True)
class HeldJob:
    """A job that a person keeps from starting; `left` is its remaining work in microseconds."""

    job: Job
    left: int


def submission(run: Run, order: o.Submit, now: int, id: str, user: str = "") -> JobSubmitted:
    """Return the event that submits the job of an order, with this id. Raises InputError."""
    words = f"id=x,gpus={order.gpus},pods={order.pods},time={order.time}"
    words += f",within={order.within}" * bool(order.within)
    gangs = Gangs(run.cluster, run.options.shape == "gpu")
    (event,) = Arrivals(parse_jobs([words], now, "submit"), gangs, run.options, run.seed)
    job = replace(
        event.job, id=id, queue=order.queue, user=user, name=order.name,
        priority=order.priority, preemptible=order.preemptible,
    )  # fmt: skip
    return replace(event, job=job)


class RunOrders:
    """Carries out orders on one run. `held` contains the held jobs, which the run does not have.

    `renamed` maps former core ids of jobs to new ids; `moves` says which jobs have moved and where.
    """

    def __init__(self, run: Run, held: dict[str, HeldJob]) -> None:
        self.run = run
        self.held = held
        self.renamed: dict[str, str] = {}
        self.moves: tuple[str, ...] = ()

    @property
    def state(self) -> ClusterState:
        return self.run.state

    def row(self, job: str) -> int:
        """Return the row of a waiting or running job; -1 if the run has no such job."""
        state = self.state
        return next((row for row in state.live if job in (state.ids[row], public_id(state.ids[row]))), -1)

    def carry_out(self, order: Order, now: int, user: str) -> Done:
        """Carry out an order at `now`. Raises InputError, with nothing done, if the state does not allow it."""
        acts: dict[type, Callable[..., Done]] = {
            o.Submit: self._submit, o.Cancel: self._cancel, o.Hold: self._hold, o.Release: self._release,
            o.Priority: self._priority, o.Preempt: self._preempt, o.Quota: self._quota, o.Drain: self._drain,
            o.Resume: self._resume, o.Reserve: self._reserve, o.Unreserve: self._unreserve,
            o.Defragment: self._defragment,
        }  # fmt: skip
        try:
            done = acts[type(order)](order, now, user)
        except StateError as violation:
            raise InputError(kind_of(order), f"an order that is possible now: {violation}") from None
        self.run.wake = now
        return done

    # --- jobs -----------------------------------------------------------------------------------------------------

    def _fresh(self, job: str) -> str:
        """Return an id that no job of the run has had: `job`, or `job` with a numeric suffix."""
        name, count = job, 1
        while name in self.state.rows:
            count += 1
            name = f"{job}~{count}"
        return name

    def _submit(self, order: o.Submit, now: int, user: str) -> Done:
        self._known_queue(order.queue)
        number = sum(1 for name in self.state.rows if name.startswith("ops-")) + 1
        while f"ops-{number}" in self.state.rows:
            number += 1
        event = submission(self.run, order, now, f"ops-{number}", user)
        self.run.execution.arrive(event)
        return Done(order, event.job.id, (o.Cancel(event.job.id),))

    def _cancel(self, order: o.Cancel, now: int, user: str) -> Done:
        job = public_id(order.job)
        if self.held.pop(job, None) is not None:
            return Done(order, job, cannot="a cancelled job cannot be restored; its owner may submit it again")
        row = self._of(order.job, "waits or runs")
        self.run.execution.external_event(JobCancelled(now, self.state.ids[row]))
        return Done(order, job, cannot="a cancelled job cannot be restored; its owner may submit it again")

    def _hold(self, order: o.Hold, now: int, user: str) -> Done:
        row = self._waiting(order.job)
        job = self.state.live[row]
        self.held[public_id(job.id)] = HeldJob(job, self.run.execution.withdraw(row, now))
        return Done(order, public_id(job.id), (o.Release(public_id(job.id)),))

    def _release(self, order: o.Release, now: int, user: str) -> Done:
        name = public_id(order.job)
        if name not in self.held:
            raise InputError("job", "a held job", order.job)
        held = self.held.pop(name)
        self._again(held.job, held.left, now)
        return Done(order, name, (o.Hold(name),))

    def _priority(self, order: o.Priority, now: int, user: str) -> Done:
        name = public_id(order.job)
        if name in self.held:
            before = self.held[name]
            self.held[name] = HeldJob(replace(before.job, priority=order.value), before.left)
            return Done(order, name, (o.Priority(name, before.job.priority),))
        row = self._waiting(order.job)
        job = self.state.live[row]
        left = self.run.execution.withdraw(row, now)
        self._again(replace(job, priority=order.value), left, now)
        return Done(order, name, (o.Priority(name, job.priority),))

    def _preempt(self, order: o.Preempt, now: int, user: str) -> Done:
        row = self._of(order.job, "runs")
        if row not in self.state.running:
            raise InputError("job", "a job that runs", order.job)
        self.run.execution.preempt(row, now)
        return Done(order, public_id(order.job), cannot="a stopped run cannot continue; the job waits again")

    def _again(self, job: Job, left: int, now: int) -> None:
        """Resubmit a job under a new id with `left` microseconds of work; it keeps its submission time."""
        name = self._fresh(public_id(job.id))
        self.renamed[job.id] = name
        self.run.execution.arrive(JobSubmitted(now, replace(job, id=name), left))

    def _of(self, job: str, what: str) -> int:
        row = self.row(job)
        if row < 0:
            raise InputError("job", f"a job that {what}", job)
        return row

    def _waiting(self, job: str) -> int:
        row = self._of(job, "waits")
        if row not in self.state.pending:
            raise InputError("job", "a waiting job, not a running one", job)
        return row

    # --- queues, nodes, reservations ---------------------------------------------------------------------------------

    def _known_queue(self, queue: str) -> None:
        known = [each.name for each in self.state.quota_usage.queue_config.queues]
        if known and queue not in known:
            raise InputError("queue", f"one of the queues {', '.join(known)}", queue)

    def _quota(self, order: o.Quota, now: int, user: str) -> Done:
        before = self.state.quota_usage.queue_config
        change = QuotaChange(order.queue, "gpu", order.model, round(order.gpus * GPU), False)
        after = with_quotas(before, [change])
        old = next(
            quota.nominal
            for queue in before.queues
            if queue.name == order.queue
            for quota in queue.quotas
            if (quota.resource, quota.model) == ("gpu", order.model)
        )
        self.run.execution.happen(QueuesChanged(now, after))
        return Done(order, undo=(o.Quota(order.queue, old / GPU, order.model),))

    def _node(self, name: str) -> int:
        if name not in self.state.node_index:
            raise InputError("node", f"a node of {self.run.cluster.name}", name)
        return int(self.state.node_index[name])

    def _drain(self, order: o.Drain, now: int, user: str) -> Done:
        node = self._node(order.node)
        if int(self.state.table[node, c.STATUS]) != NodeStatus.IN_SERVICE:
            raise InputError("node", "a node that accepts jobs", order.node)
        lost = self.state.health.lost.get(node, 0)
        health = NodeHealth(now, node, NodeStatus.DRAINING, lost, now if order.evict else -1)
        self.run.execution.change_node(health, now)
        return Done(order, undo=(o.Resume(order.node),))

    def _resume(self, order: o.Resume, now: int, user: str) -> Done:
        node = self._node(order.node)
        if int(self.state.table[node, c.STATUS]) not in (NodeStatus.DRAINING, NodeStatus.CORDONED):
            raise InputError("node", "a node that is drained", order.node)
        lost = self.state.health.lost.get(node, 0)
        self.run.execution.change_node(NodeHealth(now, node, NodeStatus.IN_SERVICE, lost, -1), now)
        return Done(order, undo=(o.Drain(order.node),))

    def _reserve(self, order: o.Reserve, now: int, user: str) -> Done:
        from kant.optimize.calendar.choose import PlaceRequest, Taken, choose
        from kant.optimize.calendar.occupied import occupied

        state = self.state
        if order.name in state.bookings:
            raise InputError("name", "a name that no other reservation has", order.name)
        start = now + parse_duration(order.start, "start")
        end = start + parse_duration(order.time, "time")
        if end <= start:
            raise InputError("time", "a duration that is longer than 0", order.time)
        taken = occupied(state, now, self.run.profile.preemption is not None)
        taken += [Taken(name, own.start, own.end, dict(own.devices())) for name, own in state.bookings.items()]
        found = choose(self.run.cluster, PlaceRequest(order.name, order.gpus, start, end, order.within), taken, now)
        if not found.held:
            way = f" (taken by {', '.join(found.collide[:5])})" if found.collide else ""
            later = f"; they are free in {show_duration(found.later - now)}" if found.later >= 0 else ""
            raise InputError("reserve", f"{order.gpus} free GPUs side by side{way}{later}")
        rows = [[node, 1, bits, GPU, 0, 0, bits.bit_count()] for node, bits in found.held.items()]
        pieces = np.array(rows, dtype=np.int64)
        self.run.execution.happen(GpusBooked(now, order.name, start, end, pieces, user))
        return Done(order, undo=(o.Unreserve(order.name),))

    def _unreserve(self, order: o.Unreserve, now: int, user: str) -> Done:
        found = self.state.bookings.get(order.name)
        if found is None:
            raise InputError("name", "an existing reservation that has not ended", order.name)
        gpus = sum(bits.bit_count() for bits in found.devices().values())
        start, length = max(found.start - now, 0), found.end - max(found.start, now)
        again = o.Reserve(order.name, gpus, f"{length // SECOND}s", f"{start // SECOND}s")
        self.run.execution.happen(BookingEnded(now, order.name))
        return Done(order, undo=(again,))

    def _defragment(self, order: o.Defragment, now: int, user: str) -> Done:
        from kant.optimize.answers import DefragmentOrder
        from kant.optimize.defragment_round import defragment_round
        from kant.scheduler.proposals import carry_out_proposal
        from kant.scheduler.solvers import Defragment as Settings

        settings = Settings(moves=order.moves, gain=1.0, leaves=False)
        found = defragment_round(self.run.scheduler, now, DefragmentOrder(settings))
        places = tuple(ProposedPlace(move.job, {move.target: move.pods}) for step in found.steps for move in step)
        if not places:
            raise InputError("defragment", "running jobs that are worth moving to other nodes; there are none now")
        self.run.execution.happen(PlanProposed(now, "defragment", places))
        plan = carry_out_proposal(self.run.scheduler, now)
        if not plan.decisions:
            raise InputError("defragment", "moves that can be carried out now")
        self.run.journal.plan(plan, always=True)
        self.run.execution.carry_out(plan)
        self.moves += tuple(f"{public_id(move.job)} to {move.target}" for step in found.steps for move in step)
        return Done(order, cannot="moved jobs stay where they are")
