"""A CyclePlan: the state that a discipline may read in one cycle, and the decisions that it may make.

Placements and evictions are first tried on the *trial* (`CyclePlan.placer.trial`), the cycle's copy of the nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Protocol
from weakref import proxy

import msgspec
import numpy as np

from kant.cluster.columns import J_BASE, J_LEVEL, J_PREEMPTIBLE, J_PRIORITY, J_QUEUE, J_RANK, J_RETURNS, Table
from kant.cluster.quota_usage import Held
from kant.cluster.shapes import Shape
from kant.cluster.snapshot import Snapshot
from kant.model.decision import (
    Booked,
    Demote,
    Expire,
    Grow,
    Hold,
    NoFit,
    Plan,
    Preempt,
    Reason,
    Reject,
    Release,
    Reorder,
    Reserve,
    Shrink,
    Start,
)
from kant.model.placement import MASK, NODE, WIDTH, Allocation
from kant.model.units import FOREVER
from kant.queueing.admission import Admission
from kant.queueing.estimates import Estimates
from kant.queueing.order import Order
from kant.queueing.pending import PendingQueue
from kant.queueing.ports import NotNow, Placer
from kant.queueing.preemption.entitlement import Entitlements
from kant.queueing.preemption.search import EXACT, TRIALS
from kant.queueing.rejection import await_rejection
from kant.queueing.shares import Shares
from kant.queueing.tries import find_place, nominate
from kant.queueing.waiting import P_RECORDED
from kant.queueing.watch import ANY_START

if TYPE_CHECKING:
    from kant.queueing.booked_space import BookedSpace
    from kant.queueing.forecast import Forecast

NOTHING: Allocation = np.zeros((0, WIDTH), dtype=np.int64)


class Evictor(Protocol):
    """Frees capacity for a job that does not fit. `queueing/preemption/policy.py` implements it.

    `exact` and `trials` bound its search for victims.
    """

    @property
    def exact(self) -> int: ...
    @property
    def trials(self) -> int: ...
    @property
    def min_run_s(self) -> int: ...

    def free_capacity(self, cycle: CyclePlan, row: int, shape: Shape) -> Allocation | NotNow: ...
    def entitlements(self, cycle: CyclePlan) -> Entitlements: ...
    def await_starts(self, cycle: CyclePlan) -> None: ...


class CyclePlan:
    """One cycle's state, order, queue and placer, and the current plan. A discipline changes only the plan."""

    def __init__(
        self,
        snapshot: Snapshot,
        order: Order,
        pending: PendingQueue,
        placer: Placer,
        evictor: Evictor | None = None,
        forecast: Forecast | None = None,
    ) -> None:
        self.state = snapshot.state
        self.weak: CyclePlan = proxy(self)
        """A weak reference for objects that this plan owns, so that no reference cycle delays its deletion."""
        self.order = order
        self.pending = pending
        self.placer = placer
        self.evictor = evictor
        self.exact, self.trials = (EXACT, TRIALS) if evictor is None else (evictor.exact, evictor.trials)
        self.forecast = forecast
        self.preempts_passing = pending.mixed
        """Whether a job may preempt jobs of lower priority that have passed it, before their minimum run time."""
        self.growth_held_until: Callable[[int, Shape], int] | None = None
        """Returns until when (µs) jobs of higher priority keep a gang from growing (-1: it may). None: all may grow."""
        self.by_share = order.shares
        """Whether the order ranks queues by their shares before it ranks jobs by priority."""
        self.now = snapshot.now
        self.previous = snapshot.previous
        self.plan = Plan(snapshot.now, [])
        tree = snapshot.state.quota_usage.tree
        self.limited = tree is not None or bool(snapshot.state.burst_replicas) or snapshot.state.books
        """Whether quotas, base jobs or bookings may keep a job from starting. If not, `admission` is not called."""
        self.node_waits = tree is not None and len(tree.node_waits) > 0
        """Whether some queue waits for an autoscaler's node before its jobs preempt others."""
        self.entitlements: Entitlements | None = None  # of the running jobs; made on first use
        self.stopped: dict[int, None] = {}  # jobs that the plan stops
        self.shrunk: dict[int, None] = {}  # gangs that the plan takes pods from
        self.bases = {-1}  # base jobs of replicas that the plan starts; the plan may not stop these base jobs
        self.lowest_running: int | None = None  # lowest priority of the preemptible jobs that run; found on first use
        self.lowest = FOREVER  # lowest priority of the preemptible jobs that the plan starts or shrinks, or FOREVER
        self.reserved: set[int] = set()  # jobs for which the plan makes or changes a reservation
        self.newly_reserved = 0  # how many jobs of `reserved` had no reservation before
        self.unreserved: set[int] = set()  # jobs that start or whose reservation is released
        self.victims: list[int] = []  # jobs that the plan evicts for others
        self.drained: list[int] = []  # jobs evicted from draining nodes, or because their base job stops

    @cached_property
    def admission(self) -> Admission:
        """The admission checks, with the usage of the quotas as the plan leaves it."""
        return Admission(self.state, self.now)

    @cached_property
    def booked(self) -> BookedSpace:
        """The booked GPUs. The module is imported on first use, since most clusters have no bookings."""
        from kant.queueing.booked_space import BookedSpace

        return BookedSpace(self.state, self.now, self.pending.always_preempts)

    @cached_property
    def shares(self) -> Shares:
        return Shares(self.state, self.now, self.admission)

    def share(self, queue: int) -> tuple[float, ...]:
        """Return the share that a queue uses under this plan, as a sort key: a queue over its soft budget is last."""
        if not self.order.shares:
            return ()
        had = self.order.share(self.shares, queue)
        return (float(self.pending.is_lowered(queue)), *had) if self.pending.lowers else had

    # --- whether and where -----------------------------------------------------------------------------------

    def place(self, row: int, shape: Shape) -> Allocation | NoFit:
        """Place a job's whole gang on `placer.trial`, clear of all reservations."""
        if self.forecast is None:
            return self._place(row, shape)
        until = self.forecast.estimates.end_if_started(self.state, row, self.now, shape.pods)
        return self.place_beside(row, shape, until)

    def place_beside(self, row: int, shape: Shape, until: int, held: Allocation | None = None) -> Allocation | NoFit:
        """Place a gang that runs until the time `until` (µs), clear of every reservation.

        With `held`, the allocation of an elastic gang, place only its additional pods.
        """
        trial = self.placer.trial
        plans = self.forecast is not None and not shape.ask.reservation  # its booking is reserved for no other job
        blocked = self.reserved_space(until) if plans else NOTHING
        if len(blocked):
            trial.restore(blocked)
        result = self._place(row, shape, held)
        if len(blocked):
            trial.evict(blocked)
        return result

    @contextmanager
    def beside_bookings(self, row: int) -> Iterator[None]:
        """Mark free capacity that is booked for other jobs as in use on the trial while the context lasts."""
        trial = self.placer.trial
        closed = self.booked.pieces(row, trial.table) if self.state.books and self.booked.has_begun(row) else NOTHING
        if len(closed):
            trial.restore(closed)
        yield
        if len(closed):
            trial.evict(closed)

    def _place(self, row: int, shape: Shape, held: Allocation | None = None, beside: bool = True) -> Allocation | NoFit:
        """Place a gang, away from nodes where the job failed if others suffice. A NoFit is for all jobs of the shape.

        The placement is clear of what other jobs have booked, unless `beside` is False.
        """
        if self.state.books and beside:
            if not self.booked.has_begun(row):
                return NoFit(0, shape.groups[0].count, 0)
            with self.beside_bookings(row):
                mark = self.placer.trial.checkpoint()
                result = self._place(row, shape, held, False)
                if isinstance(result, NoFit) or held is not None:
                    return result
                return self._clear_of_bookings(row, shape, result, mark)
        placer, bad = self.placer, self.bad_nodes(row)
        if bad:
            with placer.trial.without(bad):
                result = placer.place(shape, row) if held is None else placer.extend(shape, held, row)
            if not isinstance(result, NoFit):
                return result
        return placer.place(shape, row) if held is None else placer.extend(shape, held, row)

    def _clear_of_bookings(self, row: int, shape: Shape, placed: Allocation, mark: int) -> Allocation:
        """Return `placed`, or if possible equal devices that are not booked while the job is expected to run."""
        if shape.has_affinity or self.booked.own(row):
            return placed
        estimates = Estimates() if self.forecast is None else self.forecast.estimates
        booked = self.booked.begins_within(estimates.duration(self.state, row, shape.pods))
        if not any(mask & booked.get(node, 0) for node, mask in placed[:, [NODE, MASK]].tolist()):
            return placed
        self.placer.trial.rollback(mark)
        clear = self.placer.clear_of_bookings(shape, placed, booked, self.bad_nodes(row))
        self.placer.trial.restore(clear)
        return clear

    def bad_nodes(self, row: int) -> tuple[int, ...]:
        """Return the nodes on which the job has failed: it avoids them while other nodes suffice."""
        return self.state.health.bad.get(row, ()) if self.pending.requeue.avoid_bad_nodes else ()

    @cached_property
    def due(self) -> list[int]:
        """The jobs whose reservation has begun."""
        return [row for row, reservation in self.state.reserved.items() if reservation.start <= self.now]

    def reserved_space(self, until: int) -> Allocation:
        """Return the free capacity that is reserved before `until` (µs), or for `due` jobs that have not started."""
        assert self.forecast is not None
        calendar, trial = self.forecast.calendar, self.placer.trial
        waits = [row for row in self.due if row in calendar and row not in self.unreserved]
        places = [place for place in map(calendar.allocation_of, waits) if trial.is_free(place)]
        return np.concatenate([*places, calendar.blocked(self.now, until)])

    def nominate(self, row: int, shape: Shape) -> Allocation | Reason:
        """Place the whole gang, within its quota, on the first GPU model where it fits; or return why it cannot start.

        If it does not fit on free capacity, the profile's preemption may free capacity for it.
        """
        return nominate(self, row, shape)

    def kept_by_booking(self, row: int, options: list[Shape]) -> Booked | None:
        """Return the booking that keeps a job from free GPUs; None if it would not fit even without bookings."""
        reason = self.booked.reason(row) if not self.booked.own(row) else None
        if reason is None:
            return None
        trial = self.placer.trial
        mark = trial.checkpoint()
        fits = any(not isinstance(self._place(row, option, beside=False), NoFit) for option in options)
        trial.rollback(mark)
        return reason if fits else None

    # --- decisions -------------------------------------------------------------------------------------------

    def start(self, row: int, allocation: Allocation, kept: int = 0) -> None:
        """Start a waiting job; `kept` of its pods stay where they ran."""
        self.plan.decisions.append(Start(self.state.ids[row], allocation, kept))
        if self.limited:
            self.admission.starts(row, allocation)
        job = self.state.jobs[row].tolist()
        if job[J_BASE] >= 0:
            self.bases.add(job[J_BASE])
        if job[J_PREEMPTIBLE] and job[J_PRIORITY] < self.lowest:
            self.lowest = job[J_PRIORITY]
        if (limit := self.state.live[row].limit) >= 0:
            self.wake_at(self.now + limit)
        if self.order.shares:
            shape = self.state.shape_of(row)
            self.share_out(row, (shape.charged_milli, shape.cpu, shape.memory), 1)
        if self.forecast is not None:
            end = self.forecast.estimates.end_if_started(self.state, row, self.now, self.state.shape_of(row).pods)
            self.forecast.starts(row, allocation, self.now, end)
            if row in self.state.reserved or row in self.reserved:
                self.unreserved.add(row)
        if self.state.books and self.booked.opens(allocation):
            self.frees(allocation)
        if self.pending.wakes_on & ANY_START or self.state.burst_replicas:
            self.pending.starts(row)

    def hold(self, row: int, reason: Reason) -> None:
        """Record why a job that was tried keeps waiting: once for each wait, not in every cycle."""
        if not self.pending.places.item(row, P_RECORDED):
            self.pending.places[row, P_RECORDED] = 1
            self.plan.decisions.append(Hold(self.state.ids[row], reason))

    def reserve(self, row: int, allocation: Allocation, start: int, end: int) -> None:
        """Reserve devices for a waiting job from `start` to `end` (µs), instead of any that this plan has reserved."""
        assert self.forecast is not None
        decision, decisions = Reserve(self.state.ids[row], start, end, allocation), self.plan.decisions
        if row in self.reserved:
            at = next(i for i, d in enumerate(decisions) if isinstance(d, Reserve) and d.job == decision.job)
            decisions[at] = decision
        else:
            decisions.append(decision)
        self.forecast.reserves(row, allocation, start, end)
        self.forecast.opened += row in self.state.reserved  # the job's former reservation becomes free
        if row not in self.reserved:
            self.reserved.add(row)
            self.newly_reserved += row not in self.state.reserved

    def release(self, row: int) -> None:
        """Withdraw the reservation of a waiting job."""
        assert self.forecast is not None
        self.plan.decisions.append(Release(self.state.ids[row]))
        self.forecast.stops(row)
        self.unreserved.add(row)

    def reject(self, row: int, reason: Reason) -> None:
        self.plan.decisions.append(Reject(self.state.ids[row], reason))
        if self.forecast is not None and row in self.state.reserved:
            self.forecast.stops(row)
            self.unreserved.add(row)
        if self.pending.fair or row in self.state.burst_replicas:  # others' fair shares grow; the job's replicas end
            self.wake_at(self.now + 1)

    def preempt(self, row: int, moved: bool = False, by: str = "", why: str = "") -> None:
        """Stop a running job. The caller must free the job's devices on the trial."""
        self.plan.decisions.append(Preempt(self.state.ids[row], moved, by, why))
        self._stops(row)

    def move(self, row: int, allocation: Allocation, kept: int = 0) -> None:
        """Restart on `allocation` a job that this plan has stopped, and record this as a move."""
        decisions, job = self.plan.decisions, self.state.ids[row]
        at = next(i for i, d in enumerate(decisions) if isinstance(d, Preempt) and d.job == job)
        decisions[at] = msgspec.structs.replace(decisions[at], moved=True)
        self.start(row, allocation, kept)

    def _stops(self, row: int) -> None:
        await_rejection(self, row)
        self.stopped[row] = None
        self.pending.stops(row)
        self.admission.stops(row)
        self.share_out(row, self.state.quota_usage.charged[row][2], -1)
        if self.forecast is not None:
            self.forecast.stops(row)

    def frees(self, pieces: Allocation) -> None:
        """Ask for a cycle right after this plan if jobs wait that may use what comes free where these pieces are."""
        if len(self.state.pending) > sum(isinstance(each, Start) for each in self.plan.decisions):
            self.pending.frees(pieces)
            self.wake_at(self.now + 1)

    def shrinks(self, row: int, pieces: Allocation) -> None:
        """Record that the plan takes pods from a running gang. The plan may not stop this gang, nor shrink it again."""
        self.shrunk[row] = None
        self.lowest = min(self.lowest, int(self.state.jobs[row, J_PRIORITY]))
        self.pending.frees(pieces)

    def evict(self, row: int, by: str = "", why: str = "") -> None:
        """Stop a running job, and free its devices on the trial."""
        self.preempt(row, False, by, why)
        self.placer.trial.evict(self.state.running[row])

    def expire(self, row: int) -> None:
        """Stop a running job that has reached its limit, and free its devices on the trial."""
        self.wake_at(self.now + 1)  # to retry the job, or to reject it
        self.plan.decisions.append(Expire(self.state.ids[row]))
        self._stops(row)
        self.placer.trial.evict(self.state.running[row])

    def share_out(self, row: int, held: Held, sign: int) -> None:
        """Update the shares of the queues by what the plan gives a job (`sign` 1) or takes from it (-1)."""
        if self.order.shares:
            self.shares.add(int(self.state.jobs[row, J_QUEUE]), held, sign)

    def demote(self) -> None:
        """Record which running jobs the order moves to a lower level."""
        for row, level in self.order.demotions(self.state.jobs, self.running(), self.now):
            self.plan.decisions.append(Demote(self.state.ids[row], level))

    def relocate_victims(self) -> None:
        """Move victims that fit elsewhere, within their quotas, in the same plan.

        Base jobs come before burst replicas, which run only while their base job does.
        """
        victims, base = self.victims, self.state.jobs[:, J_BASE]
        if self.state.burst_replicas:
            victims = sorted(victims, key=lambda row: base.item(row) >= 0)
        for row in victims:
            place = find_place(self, row, self.state.shape_of(row))
            if place is not None:
                self.move(row, place)

    # --- jobs in order ------------------------------------------------------------------------------

    def running(self) -> Table:
        """Return the rows of the running jobs, in the order in which they started."""
        return np.fromiter(self.state.running, dtype=np.int64, count=len(self.state.running))

    def going_on(self) -> Table:
        """Return the rows of the running jobs that this plan has not stopped so far."""
        rows = self.running()
        return rows[[row not in self.stopped for row in rows.tolist()]] if self.stopped else rows

    def waiting_rows(self) -> Table:
        """Return the rows of the waiting jobs, in the order in which their wait began."""
        return np.array(list(self.staying(self.state.pending)), dtype=np.int64)

    def staying(self, rows: dict[int, None]) -> dict[int, None]:
        """Return `rows` without the jobs that this plan rejects, or has already restarted after the loss of a node."""
        leaving = self.pending.leaving
        return {row: None for row in rows if row not in leaving} if leaving else rows

    def ranked(self) -> Iterator[int]:
        """Yield all waiting rows that may be tried now, best first, for disciplines without buckets.

        When the plan starts a base job meanwhile, its burst replicas are ranked among the jobs not yet yielded.
        """
        pending = self.pending
        pending.released.clear()
        state, rest = self.state, list(self.state.pending)
        if pending.leaving or state.burst_replicas or state.jobs[rest, J_RETURNS].any():
            rest = [row for row in rest if row not in pending.leaving and pending.may_be_tried(row)]
        return iter(self._best_first(rest)) if not state.burst_replicas else self._with_replicas(rest)

    def _best_first(self, rows: list[int]) -> list[int]:
        table = np.sort(np.array(rows, dtype=np.int64))  # jobs with equal keys stay in order of arrival
        ranked: list[int] = table[self.ranking(table)].tolist()
        return ranked

    def _with_replicas(self, rest: list[int]) -> Iterator[int]:
        pending = self.pending
        while rest:
            ranked, rest = self._best_first(rest), []
            for at, row in enumerate(ranked, 1):
                yield row
                if pending.released:
                    rest = ranked[at:] + pending.take_released()
                    break

    def ranking(self, rows: Table, order: Order | None = None) -> Table:
        """Return the indices that sort `rows` by the profile's order, or by `order`; best first.

        Jobs rank by the share of their queue (if `order.shares`), priority, the order's key and position in `rows`.
        """
        jobs, order = self.state.jobs, order or self.order
        keys = order.keys(jobs, rows, self.now)
        columns = [keys]
        if self.pending.lowers:
            columns.append(np.array([-self.pending.priority(row, order.by_priority) for row in rows.tolist()]))
        elif order.by_priority and jobs[rows, J_PRIORITY].any():
            columns.append(-jobs[rows, J_PRIORITY])
        if order.shares:
            queues = np.unique(jobs[rows, J_QUEUE]).tolist()
            ranked = sorted(queues, key=lambda queue: (self.share(queue), queue))
            rank = np.zeros(max(queues, default=0) + 1, dtype=np.int64)
            rank[ranked] = np.arange(len(ranked))
            columns.append(rank[jobs[rows, J_QUEUE]])
        return np.lexsort(columns) if len(columns) > 1 else np.argsort(keys, kind="stable")

    def remember(self, ranked: Table, runs: set[int]) -> None:
        """If `order.remembers`, keep the ranking for the next cycle, and ask for a cycle when time alone changes it.

        `runs` are the rows that run after this plan; within a level they come before the waiting ones.
        """
        if not self.order.remembers:
            return
        jobs = self.state.jobs
        level = jobs[ranked, J_LEVEL]
        for row, new in self.order.demotions(jobs, self.running(), self.now):
            level[ranked == row] = new
        waits = np.array([row not in runs for row in ranked.tolist()], dtype=np.bool_)
        order = np.lexsort([np.arange(len(ranked)), waits, level])
        same_level = np.diff(level[order]) == 0
        if np.any(same_level & (np.diff(jobs[ranked[order], J_RANK]) < 0)):
            self.plan.decisions.append(Reorder(tuple(self.state.ids[row] for row in ranked[order].tolist())))
        self.wake_at(self.order.review_at(jobs, np.sort(ranked[~waits]), self.now))

    def await_changes(self) -> None:
        """If a waiting job may later evict a job that this plan starts, ask for a cycle at that time. If a blocked job
        waits for pods that this plan starts, ask for a cycle at once.
        """
        if self.evictor is not None and self.lowest < FOREVER:
            self.evictor.await_starts(self)
        if self.state.shapes.rules.width:
            from kant.queueing.blocked import await_pods  # loaded with the first affinity or spread rules

            await_pods(self)

    def look_again(self) -> None:
        """Ask for a cycle when the next back-off ends, and, if jobs wait, when running jobs will have used up a budget.
        If burst replicas were released but not tried, ask for a cycle at once.

        A plan that starts, stops or resizes jobs changes how fast budgets are used, so a cycle follows at once.
        """
        usage = self.state.quota_usage
        if usage.budgets is not None and usage.tree is not None and self.state.pending:
            changes = any(isinstance(each, (Start, Preempt, Expire, Grow, Shrink)) for each in self.plan.decisions)
            next_change = usage.budgets.next_change(usage.tree, usage.node_of, self.now)
            self.wake_at(self.now + 1 if changes else next_change)
        if self.pending.back_offs.ends:
            self.wake_at(self.pending.back_offs.next_end())
        if self.pending.released:
            self.wake_at(self.now + 1)

    def wake_at(self, time: int) -> None:
        """Ask for a cycle at `time`, if that is in the future, even if no event happens until then."""
        if time > self.now:
            self.plan.review_at = time if self.plan.review_at < 0 else min(self.plan.review_at, time)
