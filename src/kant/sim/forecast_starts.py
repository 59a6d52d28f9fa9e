"""Forecast when waiting jobs start: run the real policy forward from a state in several futures.

In each future every job's run time is drawn from the run times of its kind (`insight/past_jobs.py`), and arrivals are
those of an earlier day. The scheduler is the production one, so a future has all that a profile does: reclaim,
preemption, timeouts, back-offs, elastic gangs. P50 and P90 are quantiles of the start over the futures. If there is
nothing to draw, one future is run.

A job's draws are stratified: each future draws from a different equal part of the distribution. In a random half of the
futures the jobs of one kind get the same draw: jobs of a burst resemble each other, so a queue that is long because its
jobs run long does not average out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from kant.cluster import columns as c
from kant.cluster.budgets import ScopeUse
from kant.cluster.journal import Journal
from kant.cluster.over_budget import ALL_USERS, Scope, first_of
from kant.cluster.state import ClusterState
from kant.insight.diagnosis import Diagnosis
from kant.insight.domain_choice import domain_choices
from kant.insight.expected_start import (
    Basis,
    BudgetForecast,
    ExpectedStart,
    How,
    StartForecast,
    WaitingJob,
    WaitOrPlace,
)
from kant.insight.moment import Moment
from kant.metrics.recorder import Recorder
from kant.model.decision import Closed, Plan, Preempt, Shrink, Start
from kant.model.event import JobSubmitted
from kant.model.job import Job
from kant.model.placement import NODE, Allocation
from kant.model.units import FOREVER, SECOND
from kant.queueing.rejection import never_starts
from kant.scheduler.cycle import Scheduler
from kant.sim.execution import Execution, speed_of
from kant.sim.options import read_options

FUTURES = ((100, 21), (400, 13), (FOREVER, 9))
"""(maximum waiting jobs, number of futures). The number is odd, so that one of the futures is the median."""

MOST_NAMED = 3
"""Maximum number of jobs that one basis names."""

COMING = 1
"""A future has at most COMING arrivals for each live job, plus MORE_COMING."""

MORE_COMING = 100

Draws = NDArray[np.int64]

Limit = Literal["hard", "soft"]

BudgetScope = tuple[Scope, Limit]
"""The scope of a budget, and which of its limits."""


def forecast_starts(moment: Moment, only: str = "", futures: int = 0, bare: bool = False) -> StartForecast:
    """Forecast when the waiting jobs start, or the job `only`, over `futures` (0: as many as the queue length allows).

    A start is None if the job starts in no future. With `bare` only the starts are computed. The same moment gives the
    same answer.
    """
    first = Future(moment)
    state = first.state
    ranked = first.in_order()
    asked = [row for row in ranked if not only or state.ids[row] == only]
    diagnosis = Diagnosis(first.scheduler, moment.now)
    reasons = {row: None if bare else diagnosis.why(row) for row in asked}
    wanted = {row for row in asked if not _is_hopeless(diagnosis, row)}
    choices = {} if bare else domain_choices(first.scheduler, moment.now, only)
    columns = state.jobs[asked][:, [c.J_QUEUE, c.J_MILLI, c.J_SINCE]].tolist()
    work, certain = draw(state, moment, futures or enough(len(ranked)), first.execution.speed.reports)
    comes = moment.past.days(moment.now) > 0
    count = 1 if certain and not comes else futures or enough(len(ranked))
    spends = not (only or bare) and bool(first.left_of_budgets())
    found, dry = [], list[dict[BudgetScope, int]]()
    for number in range(count if wanted or spends else 0):
        future = first if number == 0 else Future(moment)
        rows = {row: int(left[number]) for row, left in work.items()}
        future.begin(rows, _coming(moment, number, len(rows)) if comes else iter(()))
        found.append(future.run(wanted, spends))
        dry.append(future.dry)
    jobs: dict[str, WaitingJob] = {}
    places = {row: place for place, row in enumerate(ranked, start=1)}
    for row, (queue, gpus, since) in zip(asked, columns, strict=True):
        job, choice = state.ids[row], choices.get(state.ids[row])
        start = _expected([future.get(row) for future in found]) if row in wanted else ExpectedStart()
        advice = None if choice is None else WaitOrPlace(choice.wait, str(choice))
        jobs[job] = WaitingJob(_queue(state, queue), gpus, since, places[row], reasons[row], start, advice)
    budgets = _budgets(first, dry, found, wanted) if spends else ()
    return StartForecast(moment.now, len(found), len(ranked), jobs, budgets)


def _budgets(
    first: Future, dry: list[dict[BudgetScope, int]], found: list[dict[int, Basis]], wanted: set[int]
) -> tuple[BudgetForecast, ...]:
    """Return when budgets are used up, over the futures, and which of the `wanted` jobs wait for the month to end."""
    state, until, forecasts = first.state, first.month_ends, list[BudgetForecast]()
    usage, users = state.quota_usage, list(state.users)
    assert usage.tree is not None
    for scope, limit in sorted(set().union(*dry)):
        times = sorted(one.get((scope, limit), FOREVER) for one in dry)
        p50, p10 = (None if at >= until else at for at in (quantile(times, 500), quantile(times, 100)))
        late = list[str]()
        for row in sorted(wanted) if limit == "hard" else ():
            queue, user = state.jobs[row, [c.J_QUEUE, c.J_USER]].tolist()
            kept = [
                future.get((scope, limit), FOREVER) < until and (start is None or start.at >= until)
                for future, start in zip(dry, (starts.get(row) for starts in found), strict=True)
            ]
            if 2 * sum(kept) > len(kept) and first_of(frozenset((scope,)), usage.tree, usage.node_of[queue], user):
                late.append(state.ids[row])
        user = "" if scope[1] == ALL_USERS else users[scope[1]]
        if p10 is not None:
            forecasts.append(
                BudgetForecast(usage.tree.queues[scope[0]].name, user, limit, until, p50, p10, tuple(late))
            )
    return tuple(forecasts)


def enough(waiting: int) -> int:
    """Return the number of futures for this many waiting jobs: the more jobs, the fewer, since each takes longer."""
    return next(futures for most, futures in FUTURES if waiting <= most)


def _queue(state: ClusterState, queue: int) -> str:
    return list(state.queues)[queue]


def quantile(starts: list[int], permille: int) -> int:
    """Return a quantile of sorted starts: the one at rank ceil(p (n + 1)), or the last."""
    rank = -(-permille * (len(starts) + 1) // 1000)
    return starts[min(rank, len(starts)) - 1]


def _expected(bases: list[Basis | None]) -> ExpectedStart:
    starts = sorted(FOREVER if basis is None else basis.at for basis in bases)
    p50, p90 = (None if at >= FOREVER else at for at in (quantile(starts, 500), quantile(starts, 900)))
    middle = next((basis for basis in bases if basis is not None and basis.at == p50), None)
    if middle is not None:
        alike = sum(basis is not None and basis.how == middle.how for basis in bases)
        middle = msgspec.structs.replace(middle, futures=alike, of=len(bases))
    return ExpectedStart(p50, p90, middle)


# --- draws ---------------------------------------------------------------------------------------------------------


def _mixed(seed: int, keys: Draws, futures: int) -> NDArray[np.uint64]:
    """Return well-mixed numbers, a row per key and a column per future (splitmix64; Steele et al., OOPSLA 2014)."""
    bits = (keys.astype(np.uint64)[:, None] << np.uint64(20)) + np.arange(futures, dtype=np.uint64)[None, :]
    bits += np.uint64((seed * 0x9E3779B97F4A7C15) & (2**64 - 1))
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        bits = (bits ^ (bits >> np.uint64(shift))) * np.uint64(factor)
    return bits ^ (bits >> np.uint64(31))


def _strata(seed: int, keys: Draws, futures: int) -> Draws:
    """Return for each key a permutation: the part of the distribution from which each future draws."""
    order: Draws = np.argsort(np.argsort(_mixed(seed, keys, futures), axis=1, kind="stable"), axis=1, kind="stable")
    return order


def draw(state: ClusterState, moment: Moment, futures: int, reports: bool) -> tuple[dict[int, Draws], bool]:
    """Draw the remaining run time of each live job in each future; also return whether all these times are certain.

    If jobs report progress, a job that has done so runs as long as it reported.
    """
    rows = list(state.live)
    past = moment.past
    kinds = np.array([past.kind_of(state.live[row]) for row in rows], dtype=np.int64)
    own = _strata(2 * moment.seed, np.array(rows, dtype=np.int64), futures)
    distinct, which = np.unique(kinds, return_inverse=True)
    alike = _strata(2 * moment.seed + 1, distinct, futures)[which]
    together = (_mixed(moment.seed, distinct, futures)[which] & np.uint64(1)).astype(np.bool_)
    parts = np.where(together, alike, own)
    permille = [1000 * (2 * part + 1) // (2 * futures) for part in range(futures)]
    work: dict[int, Draws] = {}
    certain = True
    for at, row in enumerate(rows):
        remaining, attained = state.jobs[row, [c.J_REMAINING, c.J_ATTAINED]].tolist()
        if reports and attained > 0 and remaining > 0 and row not in state.elastic:
            work[row] = np.full(futures, remaining, dtype=np.int64)
            continue
        known = np.array([past.left(state, row, moment.now, each) for each in permille], dtype=np.int64)
        certain = certain and bool((known == known[0]).all())
        work[row] = known[parts[at]]
    return work, certain


def _coming(moment: Moment, number: int, there: int) -> Iterator[JobSubmitted]:
    """Yield the jobs that arrive in a future, with their run times."""
    most = COMING * there + MORE_COMING
    draws = (_mixed(moment.seed + 1 + number, np.arange(most), 1)[:, 0] % np.uint64(999)).tolist()
    for at, (time, job) in zip(range(most), moment.past.coming(moment.now, number), strict=False):
        again: Job = msgspec.structs.replace(job, id=f"{job.id}+{at}", submit=time, due=-1)
        yield JobSubmitted(time, again, moment.past.whole(job, draws[at] + 1))


# --- one future ----------------------------------------------------------------------------------------------------


class Future:
    """One run of the policy from a moment on."""

    def __init__(self, moment: Moment) -> None:
        self.now = moment.now
        self.profile = moment.profile
        self.state: ClusterState = moment.thawed()
        self._seed = moment.seed
        self.scheduler = Scheduler(self.state, self.profile, moment.seed)
        options = read_options(self.profile.simulation, f"profile {self.profile.name}")
        self.recheck = options.recheck_s * SECOND
        speed = speed_of(msgspec.structs.replace(options, static=False))
        self.execution = Execution(self.state, Journal(), Recorder(self.state), speed)
        self.at = self.wake = self.now  # µs: the present, and when to cycle if no event comes first
        self.coming: Iterator[JobSubmitted] = iter(())
        self._arrival: JobSubmitted | None = None
        self._missing: set[int] = set()
        self._first = len(self.state.ids)  # the row of the first job that arrives later
        self.starts: dict[int, Basis] = {}
        budgets = self.state.quota_usage.budgets
        self.month_ends = -1 if budgets is None else budgets.ends_of(self.now)
        self.dry: dict[BudgetScope, int] = {}  # when budgets of this month are used up, as far as known
        self._held: dict[int, Allocation] = {}  # by job: the state drops it when the job ends
        self._gone: list[tuple[int, set[int]]] = []  # jobs that ended at this instant, with their nodes
        self._stopped: list[int] = []  # jobs that were stopped at this instant

    def in_order(self) -> list[int]:
        """The rows of the waiting jobs in the profile's order."""
        if not self.state.pending:
            return []
        cycle = Diagnosis(self.scheduler, self.now).cycle
        rows = cycle.waiting_rows()
        return [int(row) for row in rows[cycle.ranking(rows)]]

    def begin(self, work: Mapping[int, int], coming: Iterator[JobSubmitted]) -> None:
        """Register the remaining work of the live jobs with the speed, and set the arrivals."""
        self.coming, self._arrival = coming, next(coming, None)
        if self.execution.speed.reports:
            self.execution.speed.progress(self.now)  # no job is registered yet: progress counts from now on
        for row in list(self.state.live):
            self.execution.admit(row, min(work[row], FOREVER // 64), 0, self._begun(row))
            if row in self.state.running:
                self.execution.run(row, self.now)
                self._held[row] = self.state.running[row]

    def _begun(self, row: int) -> int:
        """Return the pod-microseconds that an elastic gang has done of its current microsecond of work."""
        progress = self.state.elastic.get(row)
        if progress is None:
            return 0
        said, since = self.state.jobs[row, [c.J_ESTIMATE, c.J_SINCE]].tolist()
        return progress.done(said, self.now - since if row in self.state.running else 0) % progress.ceiling

    def left_of_budgets(self) -> list[tuple[BudgetScope, int]]:
        """Return the budgets of this month that are not yet used up, and when running jobs will have used them up."""
        usage, now = self.state.quota_usage, self.state.now
        if usage.budgets is None or usage.tree is None or now >= self.month_ends:
            return []
        scopes = usage.budgets.scopes(usage.tree, usage.node_of, now)
        return [
            ((scope, limit), use.dry_at(now, limit == "soft"))
            for scope, use in scopes.items()
            for limit, amount in _limits(use)
            if amount >= 0 and self.dry.get((scope, limit), FOREVER) > now
        ]

    def run(self, wanted: set[int], spends: bool = False) -> dict[int, Basis]:
        """Run until the `wanted` jobs have started; with `spends`, to the month's end. Returns why each could start."""
        self._missing = set(wanted)
        left = self.most_instants
        while (self._missing or spends) and left:
            left -= 1
            if spends:
                self.dry.update(self.left_of_budgets())
                spends = self.at < self.month_ends
            if not self.step():
                break
        return self.starts

    def turn(self, policy: str, at: int) -> None:
        """Let a policy of the router act from `at` on, whatever its rules say."""
        self.scheduler = Scheduler(self.state, self.profile.routes[policy], self._seed)
        self.wake = at

    @property
    def most_instants(self) -> int:
        """The number of instants after which a future is abandoned."""
        return 200 + 40 * (len(self.state.live) + 10)

    def step(self, until: int = FOREVER - 1) -> bool:
        """Advance by one instant. Returns False if there is none up to `until`."""
        execution, speed, arrival, now = self.execution, self.execution.speed, self._arrival, self.at
        ends = speed.next_end
        ends = FOREVER if ends >= self.now + FOREVER // 128 else ends  # no end is known
        at = min(arrival.time if arrival is not None else FOREVER, ends, self.wake)
        if at > until:
            return False
        if at > now:
            self._gone, self._stopped = [], []
        now = self.at = max(at, now)
        changed = ends <= now or (arrival is not None and arrival.time <= now)
        if ends <= now:
            self._end(now)
        while arrival is not None and arrival.time <= now:
            execution.arrive(arrival)
            arrival = self._arrival = next(self.coming, None)
        if speed.reports and now > self.now:  # at `self.now` progress was reported before the last cycle
            execution.report_progress(now)
        plan = self.scheduler.cycle(now)
        wake = plan.review_at if plan.review_at > now else FOREVER
        if plan.decisions:
            self._note(plan)
            if execution.carry_out(plan):
                wake = now
            self._missing &= self.state.pending.keys()
        if self.recheck and self.state.pending and wake > now and (changed or plan.decisions):
            wake = min(wake, now + self.recheck)
        self.wake = wake
        return True

    def _end(self, now: int) -> None:
        mark = self.state.job_changes.end
        self.execution.end_jobs(now)
        for row in self.state.job_changes.since(mark):
            if row in self._held and row not in self.state.running:
                self._gone.append((row, set(self._held.pop(row)[:, NODE].tolist())))

    # --- what a start depends on --------------------------------------------------------------------------------------

    def _note(self, plan: Plan) -> None:
        """Record why the missing jobs that this plan starts could start."""
        state = self.state
        rights: dict[str, list[tuple[int, str]]] = {}
        for decision in plan.decisions:
            if isinstance(decision, Preempt | Shrink) and decision.by:
                rights.setdefault(decision.by, []).append((state.rows[decision.job], decision.why))
        for decision in plan.decisions:
            if isinstance(decision, Start):
                row = state.rows[decision.job]
                self._held[row] = decision.allocation
                if row in self._missing and row not in self.starts:
                    nodes = set(decision.allocation[:, NODE].tolist())
                    self.starts[row] = self._basis(row, plan.time, nodes, rights.get(decision.job, []))
        self._stopped += [row for victims in rights.values() for row, _ in victims]

    def _basis(self, row: int, now: int, nodes: set[int], victims: list[tuple[int, str]]) -> Basis:
        if victims:
            return self._by_right(row, now, victims)
        near = [other for other, held in self._gone if not nodes.isdisjoint(held)]
        gone = near or [other for other, _ in self._gone]
        if gone:
            return self._naming("ends", now, gone)
        if self._stopped:
            return self._naming("freed", now, self._stopped)
        return Basis("now" if now == self.now else "time", now)

    def _by_right(self, row: int, now: int, victims: list[tuple[int, str]]) -> Basis:
        rights = [why for _, why in victims]
        how: How = next((how for how in _RIGHTS if how in rights), "core")
        rows = [victim for victim, why in victims if why == how or how == "core"]
        jobs = self.state.jobs
        ran = 0
        if how in ("reclaim", "priority"):
            spans = [(self._protected(victim), jobs.item(victim, c.J_STARTED)) for victim in rows]
            ran = next((span for span, started in spans if span and started + span == now), 0)
        elif how == "backfill":
            ran = now - jobs.item(row, c.J_SINCE)
        return self._naming(how, now, rows, ran)

    def _protected(self, row: int) -> int:
        """Return for how long (µs) after its start a running job may not be stopped."""
        policy, usage = self.profile.preemption, self.state.quota_usage
        home = usage.node_of[self.state.jobs.item(row, c.J_QUEUE)]
        own = usage.tree.own_min_runs.get(home, 0) if usage.tree is not None else 0
        return max(policy.min_run_s * SECOND if policy is not None else 0, own)

    def _naming(self, how: How, now: int, rows: list[int], ran: int = 0) -> Basis:
        state = self.state
        queues = {state.jobs.item(row, c.J_QUEUE) for row in rows}
        queue = list(state.queues)[queues.pop()] if len(queues) == 1 and how != "ends" else ""
        known = [row for row in rows if row < self._first]
        names = tuple(state.ids[row] for row in known[:MOST_NAMED])
        return Basis(how, now, names, len(known) - len(names), queue, ran)


def _limits(use: ScopeUse) -> tuple[tuple[Limit, int], ...]:
    return ("hard", use.hard), ("soft", use.soft)


_RIGHTS: tuple[How, ...] = ("reclaim", "priority", "backfill")


def _is_hopeless(diagnosis: Diagnosis, row: int) -> bool:
    """Return whether a job can never start with the cluster and its queues as they are."""
    return never_starts(diagnosis.cycle, row) is not None or isinstance(diagnosis.gating_reason(row), Closed)
