"""Advancer: advances a simulated run in compiled code (`advance.py`), and updates the state that only Python keeps.

The compiled call returns its events as an array. A job that arrives and ends within one call never becomes a `Job`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kant.cluster import columns as c
from kant.cluster import transitions as to
from kant.cluster.quota_columns import NO_QUOTAS
from kant.cluster.quota_tree import QuotaTree
from kant.model.decision import NoFit, Outranked, Reason, Reserved
from kant.model.event import JobSubmitted
from kant.model.units import FOREVER, SECOND
from kant.placement.group_kernel import G_PODS, GROUP_WIDTH, Domains
from kant.queueing.admission import over_quota
from kant.queueing.discipline import Discipline
from kant.queueing.disciplines.backfill import Backfill
from kant.queueing.preemption.policy import Preemption
from kant.queueing.rejection import never_starts
from kant.queueing.waiting import AWAKE, P_ENTRY, V_SHAPE, V_STATE, as_integers
from kant.scheduler.parts import is_idle
from kant.sim import advance as a
from kant.sim import happened as h
from kant.sim import tables as t
from kant.sim.advance_columns import Names, kept, last_of, node_policies, room_for_running
from kant.sim.advance_journal import pieces_of, write_events
from kant.sim.blocked import HOME_MIN_RUN, HOME_WIDTH, S_ALONE, S_FIRST, S_MILLI, S_PODS, SHAPE_WIDTH, Quotas, Rights
from kant.sim.eviction_columns import EvictionColumns, may_evict
from kant.sim.jobs import Arrivals
from kant.sim.reserve import NO_ROOM, NO_SLOTS
from kant.sim.reserve_columns import NO_STORE, Line, is_simple, may_reserve
from kant.sim.serve_heads import KNOWN, KNOWN_WIDTH, Rules
from kant.sim.speed import Steady
from kant.sim.tables import Tables

if TYPE_CHECKING:
    from kant.sim.run import Run

MOST = 1 << 14
"""Maximum number of submissions in one call; after each call the run checks whether to stop."""

STALE = 1 << 14
"""The table of pieces is compacted once it has this many more than twice the pieces of the running jobs."""

PIECES = 1 << 10
"""A call begins with room for this many additional pieces of reservations and ends of jobs."""


class Advancer:
    """Advances a run of simple jobs in compiled code. `may_advance` says whether a run qualifies."""

    def __init__(self, run: Run, coming: Arrivals) -> None:
        self.run = run
        self.state = run.state
        self.coming = coming
        self._kind_of, self._simple = coming.kinds()
        self._queues, self._users = Names(coming.workload.queues), Names(coming.workload.users)
        self._shape_of = np.full(len(self._simple), t.PYTHON, dtype=np.int64)
        self._asks = dict[int, int]()  # the shape of each kind of job that has arrived
        self._policies = node_policies(run.profile.placement)[:2]
        profile = run.profile
        self._line = Line(run) if may_reserve(profile) else None
        self._looks_again = (  # time alone may require a cycle
            isinstance(profile.discipline, Backfill) or profile.preemption is not None or self._line is not None
        )
        self._late = np.full((KNOWN, KNOWN_WIDTH), -1, dtype=np.int64)  # heads that could not be served
        self._quotas: tuple[QuotaTree | None, bool] = (None, True)  # whether all limits of the tree are in columns
        self._priorities = len(np.unique(coming.workload.priority))
        self._amounts = NO_QUOTAS
        self._kinds: tuple[int, np.ndarray] = (-1, NO_QUOTAS)  # version of the nodes, one node of each kind
        self._room = self._held = 0  # pieces that a call lacks room for; pieces of running jobs, last compacted
        self._in_the_way = -1  # a waiting job that Python decides
        self._queues_in_order = self._queues.in_order(coming.workload.queue)
        self._ready_for: tuple[object, ...] = ()
        assert isinstance(run.execution.speed, Steady)
        self._speed = run.execution.speed
        self._happened = np.zeros((0, h.EVENT_WIDTH), dtype=np.int64)
        kinds, first = np.unique(self._kind_of, return_index=True)
        self._evictions = EvictionColumns(run) if may_evict(profile) else None
        self._first_of = sorted(zip(first.tolist(), kinds.tolist(), strict=True))
        self._forget_shapes()
        self._work = np.zeros(len(run.state.jobs), dtype=np.int64)  # the job table has room for all arrivals

    @staticmethod
    def may_advance(run: Run) -> bool:
        """Return whether compiled code can decide as the policies of this run do, and keep all that the run tracks."""
        profile, state, options = run.profile, run.state, run.options
        followed = (
            run.dependencies or run.services or run.rounds or run.curve or run.ledger or run.observe or run.faults.any
        )
        reserves = may_reserve(profile)
        return (
            (type(profile.discipline).run is Discipline.run or type(profile.discipline) is Backfill or reserves)
            and not ((profile.looks_at_running and not reserves) or profile.order.shares or profile.strategies)
            and not (profile.order.outgrown and type(profile.discipline) is Backfill)
            and not (followed or options.recheck_s or run.execution.placed or state.history or state.followers)
            and isinstance(run.execution.speed, Steady)
            and not profile.placement.spreads
            and not any(one.fresh for one in node_policies(profile.placement))
        )

    def _may_now(self) -> bool:
        """Return whether the tables of a compiled call cover the present state."""
        run, state = self.run, self.state
        return (
            (run.wake == FOREVER or self._looks_again)
            and not run.vain
            and self._has_columns(state.quota_usage.tree)
            and (self._line is None or state.quota_usage.tree is None)
            and self._in_the_way not in state.pending
            and is_idle(state)
            and not (state.books or state.fleet_version or state.shapes.counts or state.health.bad)
            and not state.affinity_members
        )

    def _has_columns(self, tree: QuotaTree | None) -> bool:
        """Return whether the tables of compiled code can hold all limits that a tree of queues sets for this run."""
        if tree is not self._quotas[0]:
            usage, by = self.state.quota_usage, self.run.profile.preemption
            named = {*self.coming.workload.queues, *self.state.queues}
            self._amounts = NO_QUOTAS
            self._quotas = (
                tree,
                tree is None
                or not (
                    (tree.budgets or tree.max_times or tree.node_waits or usage.limits_users or usage.shared)
                    or not all((*tree.starts, *tree.accepts, *tree.runs))
                    or (usage.queue_config.prices or any(model for model, _ in tree.keys))
                    or not named <= tree.index.keys()
                    or (by is not None and by.reclaim == "fair-share")
                ),
            )
        return self._quotas[1]

    def _meet_waiting(self) -> bool:
        """Update the waiting jobs and find how they are placed; return False if Python must decide one of them."""
        state, scheduler = self.state, self.run.scheduler
        cycle = scheduler.begin(state.now)
        pending, rows = scheduler.pending, np.fromiter(state.pending, np.int64, len(state.pending))
        if pending.arrived and not any(never_starts(cycle, row) for row in pending.arrived):  # evicted jobs
            pending.arrived.clear()
        if pending.arrived or pending.released or pending.back_offs.ends:
            return False
        known = pending.verdicts[1 : 1 + pending.verdicts.item(0, V_STATE)]
        asked = [*set(known[known[:, V_STATE] != AWAKE, V_SHAPE].tolist())]
        shapes = state.jobs[rows, c.J_SHAPE]
        running = self._evictions.shapes_of_running() if self._evictions is not None else ()
        for shape in {*asked, *np.unique(shapes).tolist(), *running} - self._met_shapes:
            self._meet_shape(shape)
        apart = self._shapes[shapes]
        stop = (apart[:, S_FIRST] == t.PYTHON) | (apart[:, S_ALONE] == 1)
        if self._line is None:
            stop |= pending.places[rows, P_ENTRY] == 0
        if stop.any():
            self._in_the_way = rows.item(int(stop.argmax()))
            return False
        return not (self._shapes[asked, S_FIRST] == t.PYTHON).any()

    def go(self, arrival: JobSubmitted | None, until: int) -> tuple[int, JobSubmitted | None]:
        """Advance to `until` at most, stopping before the next instant that Python decides.

        `arrival` is the next submission. Returns the number of instants passed, and the submission that is next now.
        """
        if not self._may_now():
            return 0, arrival
        self.coming.at -= arrival is not None
        instants = 0
        while self._may_now():
            self._meet_kinds()
            at = self.coming.at
            submit = self.coming.workload.submit
            comes = at < len(submit) and submit.item(at) <= self._speed.next_end
            if comes and self._shape_of.item(self._kind_of.item(at)) == t.PYTHON:
                break
            if not self._meet_waiting():
                break
            code, room, passed = self._call(until)
            instants += passed
            if code == NO_SLOTS:
                self.run.scheduler.placer.calendar.make_slots()
            elif code == NO_ROOM:
                self._room = room
                self.state.lay_out_pieces(max(room, MOST))
            else:
                break
        return instants, next(self.coming, None)

    def _prepare(self) -> np.ndarray:
        """Return the next submissions, each with its bucket, scheduling key and sort key."""
        state, pending, first = self.state, self.run.scheduler.pending, self.coming.at
        begin = first - first % MOST
        numbers, more = self._queues.numbers.copy(), len(state.queues)
        for code in self._queues_in_order:
            if numbers[code] < 0:
                numbers[code], more = more, more + 1
        made_for = begin, self._shape_of.tobytes(), pending.numbered, numbers.tobytes()
        if made_for != self._ready_for:
            self._ready_for = made_for
            part = self.coming.columns(slice(begin, begin + MOST), self._kind_of)
            self._arrivals = np.zeros((len(part), t.ARRIVAL_WIDTH), dtype=np.int64)
            self._arrivals[:, : part.shape[1]] = part
            jobs, shapes = np.zeros((len(part), c.JOB_WIDTH), dtype=np.int64), self._shape_of[part[:, t.A_KIND]]
            for to_column, column in (
                (c.J_SUBMIT, t.A_TIME), (c.J_SINCE, t.A_TIME), (c.J_ESTIMATE, t.A_ESTIMATE),
                (c.J_REMAINING, t.A_ESTIMATE), (c.J_PRIORITY, t.A_PRIORITY), (c.J_PREEMPTIBLE, t.A_PREEMPTIBLE),
                (c.J_DUE, t.A_DUE),
            ):  # fmt: skip
                jobs[:, to_column] = part[:, column]
            jobs[:, c.J_QUEUE], jobs[:, c.J_SHAPE] = numbers[part[:, t.A_QUEUE]], shapes
            jobs[:, [c.J_MILLI, c.J_PODS]] = self._shapes[shapes][:, [S_MILLI, S_PODS]]
            keys = self.run.profile.order.keys(jobs, np.arange(len(part)), state.now)
            self._arrivals[:, t.A_KEY] = as_integers(keys)
            levels, level = np.unique(part[:, t.A_PRIORITY], return_inverse=True)
            alike = ((shapes + 1) * len(numbers) + part[:, t.A_QUEUE]) * 2 + part[:, t.A_PREEMPTIBLE]
            _, firsts, inverse = np.unique(alike * len(levels) + level, return_index=True, return_inverse=True)
            asked = jobs[firsts][:, [c.J_QUEUE, c.J_SHAPE, c.J_PRIORITY, c.J_PREEMPTIBLE]].tolist()
            found = [
                (0, 0)
                if shape == t.PYTHON or self._line is not None
                else pending.numbers(queue, shape, -1, priority, -1, preemptible, -1)
                for queue, shape, priority, preemptible in asked
            ]
            self._arrivals[:, [t.A_BUCKET, t.A_KNOWN]] = np.array(found)[inverse]
        return self._arrivals[first - begin :]

    def _call(self, until: int) -> tuple[int, int, int]:
        """Make one compiled call; return its code, the room that it lacks (NO_ROOM), and how many instants passed."""
        run, state, coming = self.run, self.state, self.coming
        snapshot, recorder, speed, pending = run.scheduler.snapshot, run.recorder, self._speed, run.scheduler.pending
        begin, first = len(state.ids), coming.at
        self._queues.meet(state.queues)
        self._users.meet(state.users)
        arrivals = self._prepare()
        if run.profile.placement.reads_typical_pods and state.given_pods is None:
            arrivals = arrivals[: state.typical.steady_for(begin)]
        if pending.keeps_priority and not pending.mixed:
            arrivals = arrivals[: pending.of_one_priority(arrivals[:, t.A_PRIORITY])]
        if first + len(arrivals) < len(self._kind_of):
            until = min(until, coming.workload.submit.item(first + len(arrivals)) - 1)
        if state.pieces_used > 2 * self._held + STALE:  # compact rarely: it writes the table
            self._held = state.lay_out_pieces(0)
        waiting = np.fromiter(state.pending, np.int64, len(state.pending))
        most, runs, more = len(self._work), len(state.running), len(arrivals) + len(waiting)
        recorder.make_room(runs + 2 * more + a.MOST_WAKES + 1)  # a sample for each end, arrival and wake
        ends = len(waiting) + MOST + 2 * speed.heap.item(0, 0) + PIECES  # a running job may wait again, and start again
        speed.reserve(most, ends)
        pending.reserve(most, ends)
        self._work[waiting] = speed.left_of_all(state.pending)
        one, other = self._scores[0], self._scores[-1]
        stands, instant = np.zeros(t.STANDS, dtype=np.int64), np.zeros(t.INSTANT, dtype=np.int64)
        stands[[t.TAKEN, t.SEEN, t.TRIED]] = state.pieces_used, snapshot.seen, snapshot.tried
        stands[[t.SAMPLES, t.STAMP]] = recorder.used, recorder.model.stamp
        stands[[t.QUEUES, t.USERS, t.RANK]] = len(state.queues), len(state.users), state.arrivals
        stands[[t.NOW, t.WAITING, t.MILLI]] = state.now, len(waiting), state.waiting_milli
        stands[t.PODS] = state.jobs[waiting, c.J_PODS].sum()
        stands[[t.MAY_TRY, t.DOUBTS]] = pending.may_try, pending.doubts
        stands[[t.WAKES_ON, t.LOG]] = pending.wakes_on, pending.watch.log
        stands[[t.WAKE, t.RETRY]] = run.wake, pending.retry_until
        stands[[t.LOWEST, t.BEYOND]] = pending.watch.bounds()
        events = 2 * runs + 8 * (MOST + len(waiting)) + a.MOST_WAKES + 1 + 4 * speed.heap.item(0, 0)
        if events > len(self._happened):
            self._happened = np.zeros((events + events // 2, h.EVENT_WIDTH), dtype=np.int64)
        domains, capacity = None, self._capacity
        if capacity is not None:
            domains = Domains(capacity.fabric, capacity.rows, capacity.cursors, capacity.closed)
        rules = None
        if isinstance(run.profile.discipline, Backfill):
            discipline = run.profile.discipline
            rules = Rules(
                discipline.timeout_s, discipline.small_timeout_s, discipline.large_gpus, state.shapes.pools, self._late,
            )  # fmt: skip
        quotas, evictions = self._quotas_in_columns(), None
        limited = state.quota_usage.tree is not None or self._priorities > 1
        if self._evictions is not None and (limited or rules is not None):
            evictions = self._evictions.of_call(most, self._work)
        assert state.preemptible is not None
        reservations, store = None, NO_STORE
        if self._line is not None:
            reservations, store = self._line.tables(
                most, more + max(self._room, PIECES), self._shapes, self._groups, (kept(one), kept(other)), domains
            )
        tables = Tables(
            until=until, checkpoint=coming.checkpoint, outgrown=run.profile.order.outgrown,
            by_priority=run.profile.order.by_priority, begin=begin, stands=stands, instant=instant,
            happened=self._happened, arrivals=arrivals, shape_of=self._shape_of, shapes=self._shapes,
            groups=self._groups, queues=self._queues.numbers, users=self._users.numbers, jobs=state.jobs,
            work=self._work, table=state.table, log=state.log, pools=state.pools, demands=state.shapes.demands,
            held=state.pieces, trial=snapshot.table, trial_log=snapshot.log, typical=one.typical_pods, scores=kept(one),
            others=kept(other), domains=domains, heap=speed.heap, ends=speed.ends, samples=recorder.samples,
            integrals=recorder.integrals, sampled=recorder.held, spans=recorder.spans, seen=recorder.model.seen,
            entries=pending.entries, places=pending.places, buckets=pending.buckets, verdicts=pending.verdicts,
            ready=pending.ready, stirred=pending.sorting, watched=pending.watch.freed, rules=rules,
            rights=self._rights(), quotas=quotas, counts=state.preemptible.table,
            running=room_for_running(quotas, runs + more), reservations=reservations, evictions=evictions,
        )  # fmt: skip
        by = type(one.policy), type(other.policy), capacity is not None, rules is not None, reservations is not None
        evicts = evictions is not None
        pays, evicting = self._evictions, a.advance_kernel(*by, True, evicts)
        if pays is not None and evicts and not pays.pay(evicting, tables, store):
            tables, evicts = tables._replace(evictions=None), False
        if not (limited or evicts):
            tables = tables._replace(quotas=None, running=None)
        store = a.advance_kernel(*by, limited or evicts, evicts)(tables, store)
        speed.moved()
        snapshot.seen, snapshot.tried = stands[[t.SEEN, t.TRIED]].tolist()
        recorder.used, recorder.model.stamp = stands[[t.SAMPLES, t.STAMP]].tolist()
        state.pieces_used, state.arrivals, state.now = stands[[t.TAKEN, t.RANK, t.NOW]].tolist()
        state.waiting_milli, run.wake = stands[[t.MILLI, t.WAKE]].tolist()
        came, happened = stands.item(t.AT), self._happened[: instant[t.SAID]]
        broken_off = len(happened) > 0 and happened.item(-1, h.H_INSTANT) == instant[t.INSTANTS]
        self._take_in(happened, begin, first, came, broken_off)
        if self._line is not None:
            self._line.follow(happened, store)
        what = happened[stands[t.FOLLOWED] :, h.H_WHAT]
        run.scheduler.seen = state.job_changes.end - int((what <= h.STARTED).sum())
        now, may_try, doubts, wakes_on, log = stands[[t.NOW, t.MAY_TRY, t.DOUBTS, t.WAKES_ON, t.LOG]].tolist()
        retry = stands.item(t.RETRY)
        pending.advanced(now, may_try, doubts, wakes_on, retry, state.quota_usage.tree is not None)
        quota = state.quota_usage.quota_version - int(((what == h.ENDED) | (what == h.EVICTED)).sum())
        pending.watch.advanced(log, stands.item(t.LOWEST), stands.item(t.BEYOND), quota)
        coming.at += came
        return instant.item(t.CODE), instant.item(t.ROOM), instant.item(t.INSTANTS)

    # --- what only Python keeps ------------------------------------------------------------------------------

    def _take_in(self, happened: np.ndarray, begin: int, first: int, came: int, broken_off: bool) -> None:
        """Bring names, live jobs, quota usage and journal up to date with the events of a call.

        If the last instant is `broken_off`, only its job ends have happened; Python decides the rest of it.
        """
        state, workload, run = self.state, self.coming.workload, self.run
        for name in self._queues.new(state.queues):
            state.quota_usage.queue_added(name)
        self._users.new(state.users)
        state.ids += workload.ids[first : first + came]
        what, rows = happened[:, h.H_WHAT], happened[:, h.H_ROW]
        write_events(run, happened, lambda row: self.coming.event(first + row - begin), self._lack, broken_off)
        ended = rows[what == h.ENDED]
        for row in ended[ended < begin].tolist():
            del state.live[row]
            if state.running.pop(row, None) is None:
                del state.pending[row]
            else:
                state.quota_usage.stopped(row, state.now, refunds=False)
            self._speed.forget(row)
        status, evicted = state.jobs[begin : begin + came, c.J_STATUS], rows[:0]
        for row in (begin + np.flatnonzero((status == to.PENDING) | (status == to.RUNNING))).tolist():
            event = self.coming.event(first + row - begin)
            state.live[row], state.rows[event.job.id] = event.job, row
            self._speed.submitted(row, event.runtime, event.overhead)
        started, waits = rows[what == h.STARTED], rows[what == h.CAME]
        if self._evictions is not None and len(evicted := rows[what == h.EVICTED]):
            self._evictions.follow(happened[what == h.EVICTED], self._work)
            started, waits = last_of(started), last_of(rows[(what == h.CAME) | (what == h.EVICTED)])
        for row in waits[state.jobs[waits, c.J_STATUS] == to.PENDING].tolist():
            state.pending.pop(row, None)
            state.pending[row] = None
        started = started[state.jobs[started, c.J_STATUS] == to.RUNNING]
        for row, pieces in zip(started.tolist(), pieces_of(state, started), strict=True):
            state.pending.pop(row, None)
            state.running[row] = pieces
            job = state.jobs[row].tolist()
            shape, now = state.shapes.shapes[job[c.J_SHAPE]], job[c.J_STARTED]
            state.quota_usage.started(row, job[c.J_QUEUE], job[c.J_USER], shape, pieces, now, charges=False)
            self._speed.follow(row, now)
        if len(state.rows) > 2 * len(state.live) + MOST:
            state.rows = {state.ids[row]: row for row in state.live}
        state.capacity_version += len(ended) + len(evicted)
        if state.quota_usage.tree is not None:
            state.quota_usage.quota_version += len(ended) + len(evicted)
        state.job_changes.frombytes(rows[what <= h.STARTED].astype(np.int32).tobytes())
        if len(happened):
            run.last = state.now

    def _lack(self, event: int, row: int, value: int, other: int) -> Reason:
        """Return why a job waits, from an event that states it."""
        if event == h.OUTRANKED:
            return Outranked(self.state.ids[other], value)
        if event == h.BEHIND:
            return Reserved(self.state.ids[other], value)
        shape, tree = self.state.jobs.item(row, c.J_SHAPE), self.state.quota_usage.tree
        if event == h.SHORT and tree is not None:
            asked = self._amounts.item(shape, other % len(tree.keys))
            return over_quota(tree, tree.short(asked, value, other), ever=False)
        return NoFit(0, self._groups.item(self._shapes.item(shape, S_FIRST), G_PODS), value)

    # --- quotas and rights -----------------------------------------------------------------------------------

    def _quotas_in_columns(self) -> Quotas:
        """Return the quotas as the compiled call needs them."""
        state, usage, tree = self.state, self.state.quota_usage, self.state.quota_usage.tree
        state.lowest_preemptible()
        assert state.preemptible is not None
        state.preemptible.reserve(self._priorities)
        shapes, names = state.shapes.shapes, self.coming.workload.queues
        known, width = len(self._amounts), len(tree.keys) if tree is not None else 0
        if known < len(shapes):
            more = np.zeros((len(shapes), width), dtype=np.int64)
            more[:known] = self._amounts.reshape(known, width)
            for index in range(known, len(shapes) if width else 0):
                more[index] = usage.amounts(shapes[index])
            self._amounts = more
        new = [names[code] for code in self._queues_in_order if self._queues.numbers[code] < 0]
        homes = np.full((len(state.queues) + len(new) + 1, HOME_WIDTH), -1, dtype=np.int64)
        homes[:, HOME_MIN_RUN] = 0
        if tree is None:
            return Quotas(NO_QUOTAS, NO_QUOTAS, homes, self._amounts)
        for number, node in enumerate([*usage.node_of, *(tree.index[name] for name in new)]):
            homes[number] = node * width, tree.own_min_runs.get(node, 0)
        homes[-1] = homes[0]
        return Quotas(tree.limits, tree.used, homes, self._amounts)

    def _rights(self) -> Rights:
        """Return what jobs that do not fit may do in this run."""
        run, state, pending = self.run, self.state, self.run.scheduler.pending
        by, discipline, tree = run.profile.evictors[pending.mixed], run.profile.discipline, state.quota_usage.tree
        hold, fixed = 0, 0
        if isinstance(discipline, Backfill):
            hold = discipline.hold_s * SECOND
            fixed = max(hold, discipline.hold_fixed_s * SECOND)
        if self._kinds[0] != state.node_version:
            places = [c.STATUS, c.POOL, c.GPUS, c.CPU_FREE, c.MEMORY_FREE]
            _, first = np.unique(state.empty[:, places], axis=0, return_index=True)
            self._kinds = state.node_version, state.empty[first]
        own = by if isinstance(by, Preemption) else None
        return Rights(
            own is not None, own is not None and own.priority,
            own is not None and own.reclaim != "off" and tree is not None and len(tree.keys) > 0,
            own.min_run_s * SECOND if own is not None else 0, own.most if own is not None else 0.0,
            own.exact if own is not None else 0, pending.mixed, hold, fixed, pending.sees, self._kinds[1],
            pending.sorted,
        )  # fmt: skip

    # --- how jobs are placed ---------------------------------------------------------------------------------

    def _token(self) -> tuple[object, ...]:
        """Return what the table of shapes depends on; the table is rebuilt when this changes."""
        scores, capacity = self.run.scheduler.placer.kept(self._policies)
        given_up = [one.given_up for one in (*scores, capacity) if one is not None]
        return (*map(id, scores), id(capacity), sum(given_up))

    def _forget_shapes(self) -> None:
        self._shape_of[:] = t.PYTHON
        self._met, self._met_shapes = 0, set[int]()
        self._shapes = np.full((1, SHAPE_WIDTH), t.PYTHON, dtype=np.int64)
        if self._evictions is not None:
            self._evictions.forget_shapes()
        self._groups = np.zeros((0, GROUP_WIDTH), dtype=np.int64)
        self._made_with = self._token()
        self._scores, self._capacity = self.run.scheduler.placer.kept(self._policies)

    def _meet_kinds(self) -> None:
        """Find how jobs are placed, for the kinds that arrive soon."""
        end = self.coming.at - self.coming.at % MOST + MOST
        if self._made_with != self._token():
            self._forget_shapes()
        while self._met < len(self._first_of) and self._first_of[self._met][0] < end:
            at, kind = self._first_of[self._met]
            self._met += 1
            if self._simple[kind]:
                if kind not in self._asks:
                    self._asks[kind] = self.state.shapes.of(self.coming.event(at).job).index
                self._meet_shape(self._asks[kind])
                if self._shapes.item(self._asks[kind], S_FIRST) != t.PYTHON:
                    self._shape_of[kind] = self._asks[kind]

    def _meet_shape(self, index: int) -> None:
        """Find how jobs of a shape are placed."""
        if index in self._met_shapes:
            return
        self._met_shapes.add(index)
        placer, shape = self.run.scheduler.placer, self.state.shapes.shapes[index]
        if index >= len(self._shapes):
            known, self._shapes = len(self._shapes), c.longer(self._shapes, index + 1)
            self._shapes[known:, S_FIRST] = t.PYTHON
        facts = shape.gpu_milli, shape.pods, shape.pool_bits, shape.order_dependent, shape.ask.preempts
        self._shapes[index] = t.PYTHON, 0, *facts, -1
        pending = self.run.scheduler.pending
        if (
            (self._line is not None and not is_simple(shape))
            or shape.ceiling
            or placer.never_fits(shape) is not None
            or (pending.keeps_priority and shape.ask.node_sets)
        ):
            return
        rows = placer.kernel_groups(shape, self._scores)
        if rows is None:
            return
        counted = self._evictions.domains_of(shape) if self._evictions is not None else -1
        self._shapes[index] = len(self._groups), len(rows), *facts, counted
        self._groups = np.concatenate([self._groups, np.array(rows, dtype=np.int64)])
