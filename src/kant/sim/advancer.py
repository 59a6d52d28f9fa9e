"""Advancer: lets a simulated run advance in compiled code (`advance.py`), and takes into the state what only Python
keeps.

What happened comes back as an array. Who came and left within one call is never a `Job`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from kant.cluster import columns as c
from kant.cluster import transitions as to
from kant.model.decision import Plan, Start
from kant.model.errors import StateError
from kant.model.event import JobFinished, JobStarted, JobSubmitted
from kant.model.job import Job
from kant.model.placement import Allocation
from kant.model.units import FOREVER
from kant.placement.policy import NodePolicy
from kant.scheduler.parts import is_idle
from kant.sim import advance as a
from kant.sim.jobs import Arrivals
from kant.sim.speed import Steady

if TYPE_CHECKING:
    from kant.sim.run import Run

MOST = 1 << 14
"""Submissions in one call at most; then the run is asked whether to stop."""


class Advancer:
    """Advances a run of simple jobs in compiled code. `may_advance` says whether a run is of that sort."""

    def __init__(self, run: Run, coming: Arrivals) -> None:
        self.run = run
        self.state = run.state
        self.coming = coming
        self._table, self._simple = coming.columns()
        self._queues, self._users = _Names(coming.workload.queues), _Names(coming.workload.users)
        self._kinds = np.zeros((len(self._simple), a.KIND_WIDTH), dtype=np.int64)
        assert isinstance(run.execution.speed, Steady)
        self._speed = run.execution.speed
        self._happened = np.empty((0, 4), dtype=np.int64)
        kinds, first = np.unique(self._table[:, a.A_KIND], return_index=True)
        self._first_of = sorted(zip(first.tolist(), kinds.tolist(), strict=True))
        self._forget_kinds()

    @staticmethod
    def may_advance(run: Run) -> bool:
        """Whether all that this run follows is in columns, and who comes alone and fits starts at once."""
        profile, state, options = run.profile, run.state, run.options
        followed = (
            run.dependencies or run.services or run.rounds or run.curve or run.ledger or run.observe or run.faults.any
        )
        return (
            profile.discipline.starts_who_fit
            and not (profile.looks_at_running or profile.keeps_priority or profile.order.shares or profile.strategies)
            and not (followed or options.recheck_s or run.execution.placed or state.history or state.followers)
            and isinstance(run.execution.speed, Steady)
            and not (profile.placement.preferred_level or profile.placement.spreads)
            and not any(one.fresh for one in _node_policies(profile.placement))
            and (state.given_pods is not None or not profile.placement.reads_typical_pods)
        )

    def _may_now(self) -> bool:
        """Whether nobody waits, and nothing is there that has no columns."""
        run, state, scheduler = self.run, self.state, self.run.scheduler
        return (
            run.wake == FOREVER
            and not (state.pending or scheduler.pending.knows() or run.vain)
            and is_idle(state)
            and state.quota_usage.tree is None
            and not (state.books or state.fleet_version or state.shapes.counts or state.health.bad)
            and not state.affinity_members
        )

    def go(self, arrival: JobSubmitted | None, until: int) -> tuple[int, JobSubmitted | None]:
        """Advance up to `until` at most, and to the next instant that Python decides.

        `arrival` is the next to come. Returns how many instants have passed, and the next to come now.
        """
        if not self._may_now():
            return 0, arrival
        self.coming.at -= arrival is not None
        instants, arrivals = 0, self._table
        while self._may_now():
            at = self.coming.at
            self._meet(at + MOST)
            if at < len(arrivals) and arrivals.item(at, a.A_TIME) <= self._speed.next_end:
                kind = self._kinds[arrivals.item(at, a.A_KIND)]
                if kind[a.K_FIRST] == a.PYTHON:
                    break
            code, room, passed = self._call(until)
            instants += passed
            if code == a.FULL:
                self.state.lay_out_pieces(max(room, MOST))
            else:
                break
        return instants, next(self.coming, None)

    def _call(self, until: int) -> tuple[int, int, int]:
        """One call: its code, how much room it lacks for FULL, and the instants that have passed."""
        run, state, coming = self.run, self.state, self.coming
        snapshot, recorder, speed = run.scheduler.snapshot, run.recorder, self._speed
        begin, first = len(state.ids), coming.at
        arrivals = self._table[first : first + MOST]
        if first + MOST < len(self._table):
            until = min(until, self._table.item(first + MOST, a.A_TIME) - 1)
        most, runs = begin + len(arrivals), len(state.running)
        if most > len(state.jobs):
            state.jobs = c.longer(state.jobs, most)
        if most > len(recorder.spans):
            recorder.spans = c.longer(recorder.spans, most)
        samples = recorder.used + runs + 2 * len(arrivals) + 1
        if samples > len(recorder.samples):
            recorder.samples = c.longer(recorder.samples, samples)
        speed.reserve(most, len(arrivals))
        one, other = self._scores[0], self._scores[-1]
        self._queues.meet(state.queues)
        self._users.meet(state.users)
        stands = np.zeros(14, dtype=np.int64)
        stands[[a.HELD, a.SEEN, a.TRIED]] = state.pieces_used, snapshot.seen, snapshot.tried
        stands[[a.SAMPLES, a.STAMP]] = recorder.used, recorder.model.stamp
        stands[[a.QUEUES, a.USERS, a.RANK]] = len(state.queues), len(state.users), state.arrivals
        stands[a.NOW] = state.now
        if runs + 3 * len(arrivals) > len(self._happened):
            self._happened = np.empty((runs + 3 * MOST, 4), dtype=np.int64)
        a.advance_kernel(type(one.policy), type(other.policy))(
            until, run.profile.order.by_arrival, coming.checkpoint, stands, self._happened, arrivals, self._kinds,
            self._groups, self._queues.numbers, self._users.numbers, begin, state.jobs, state.table, state.log,
            state.pools, state.shapes.demands, state.pieces, snapshot.table, snapshot.log, one.typical_pods,
            one.order, one.index, one.marks, one.params, other.order, other.index, other.marks, other.params,
            speed.heap, speed.ends, recorder.samples, recorder.integrals, recorder.held, recorder.spans,
            recorder.model.seen,
        )  # fmt: skip
        speed.moved()
        snapshot.seen, snapshot.tried = stands[[a.SEEN, a.TRIED]].tolist()
        recorder.used, recorder.model.stamp = stands[[a.SAMPLES, a.STAMP]].tolist()
        state.pieces_used, state.arrivals, state.now = stands[[a.HELD, a.RANK, a.NOW]].tolist()
        came, happened = int(stands[a.AT]), self._happened[: stands[a.SAID]]
        broken_off = len(happened) > 0 and happened.item(-1, a.H_INSTANT) == stands[a.INSTANTS]
        self._take_in(happened, begin, first, came, broken_off)
        coming.at += came
        return int(stands[a.CODE]), int(stands[a.ROOM]), int(stands[a.INSTANTS])

    # --- what only Python keeps ------------------------------------------------------------------------------

    def _take_in(self, happened: np.ndarray, begin: int, first: int, came: int, broken_off: bool) -> None:
        """The state's names, live jobs and books, and the journal, as what has happened makes them.

        Where the last instant was `broken_off` only its ends have happened.
        """
        state, workload, run = self.state, self.coming.workload, self.run
        for name in self._queues.new(state.queues):
            state.quota_usage.queue_added(name)
        self._users.new(state.users)
        ids = workload.ids[first : first + came]
        state.ids += ids
        state.rows.update(zip(ids, range(begin, begin + came), strict=True))
        if len(state.rows) != len(state.ids):
            twice = next(name for row, name in enumerate(state.ids) if state.rows[name] != row)
            raise StateError(f"job {twice!r} was submitted twice")
        what, rows = happened[:, a.H_WHAT], happened[:, a.H_ROW]
        self._write(happened, begin, first, broken_off)
        ended = rows[what == a.ENDED]
        for row in ended[ended < begin].tolist():
            del state.live[row], state.running[row]
            state.quota_usage.stopped(row, state.now)
            self._speed.forget(row)
        started = rows[what == a.STARTED]
        stay = state.jobs[started, c.J_STATUS] == to.RUNNING
        started = started[stay]
        for row, pieces in zip(started.tolist(), self._pieces(started), strict=True):
            event = self.coming.event(first + row - begin)
            state.live[row], state.running[row], now = event.job, pieces, event.time
            job = state.jobs[row]
            shape = state.shapes.shapes[job[c.J_SHAPE]]
            state.quota_usage.started(row, int(job[c.J_QUEUE]), int(job[c.J_USER]), shape, pieces, now)
            self._speed.follow(row, now, event.runtime)
        state.capacity_version += len(ended)
        state.preemptible = None
        state.job_changes += rows.tolist()
        if len(happened):
            run.last = state.now

    def _pieces(self, rows: np.ndarray) -> Iterator[Allocation]:
        """What each of these jobs holds, or held until it ended."""
        for at, count in self.state.jobs[rows[:, None], [c.J_PIECE, c.J_PIECES]].tolist():
            yield self.state.pieces[at : at + count].copy()

    def _write(self, happened: np.ndarray, begin: int, first: int, broken_off: bool) -> None:
        """Write what has happened to the journal, and what was decided, which goes into the digest."""
        state, run = self.state, self.run
        journal, recorder = run.journal, run.recorder
        what, rows = happened[:, a.H_WHAT], happened[:, a.H_ROW]
        starts, ended = rows[what == a.STARTED], rows[what == a.ENDED]
        if journal.sink is None and len(starts):
            names, counts = [state.ids[row] for row in starts.tolist()], state.jobs[starts, c.J_PIECES]
            pieces = state.pieces[state.pieces_used - int(counts.sum()) : state.pieces_used]
            journal.starts(happened[what == a.STARTED, a.H_TIME], names, counts, pieces)
        elif journal.sink is not None:
            held = self._pieces(starts)
            cut = np.flatnonzero(np.diff(happened[:, a.H_INSTANT])) + 1
            instants = [part.tolist() for part in np.split(happened, cut)] if len(happened) else []
            for at, instant in enumerate(instants):
                began = list[Start]()
                for now, event, row, _ in instant:
                    if event == a.ENDED:
                        journal.write(JobFinished(now, state.ids[row]))
                    elif event == a.CAME:
                        journal.write(self.coming.event(first + row - begin))
                    else:
                        began.append(Start(state.ids[row], next(held)))
                now = instant[0][a.H_TIME]
                if began or at < len(instants) - 1 or not broken_off:
                    journal.plan(Plan(now, [*began]))
                for start in began:
                    journal.write(JobStarted(now, start.job, start.allocation))
        if recorder.keep_intervals:
            for row, pieces in zip(ended.tolist(), self._pieces(ended), strict=True):
                recorder.ended(row, pieces, state.jobs.item(row, c.J_STARTED), state.jobs.item(row, c.J_END))

    # --- how jobs are placed ---------------------------------------------------------------------------------

    def _token(self) -> tuple[object, ...]:
        """What the table of kinds was made of; where it differs, the table is made anew."""
        placer, state = self.run.scheduler.placer, self.state
        return id(placer), id(state.given_pods), sum(one.given_up for one in self._scores)

    def _forget_kinds(self) -> None:
        placer, policy = self.run.scheduler.placer, self.run.profile.placement
        self._kinds[:, a.K_FIRST] = a.PYTHON
        self._met = 0
        self._groups = np.zeros((0, a.GROUP_WIDTH), dtype=np.int64)
        self._scores = [placer.scores_of(one) for one in _node_policies(policy)[:2]]
        self._made_with = self._token()

    def _meet(self, end: int) -> None:
        """Find out how jobs are placed of the kinds whose first job is before `end`."""
        if self._made_with != self._token():
            self._forget_kinds()
        while self._met < len(self._first_of) and self._first_of[self._met][0] < end:
            at, kind = self._first_of[self._met]
            self._met += 1
            if self._simple[kind]:
                self._meet_kind(kind, self.coming.event(at).job)

    def _meet_kind(self, kind: int, job: Job) -> None:
        placer = self.run.scheduler.placer
        shape = self.state.shapes.of(job)
        groups = None if shape.ceiling or placer.never_fits(shape) is not None else placer.scored_groups(shape)
        if groups is None or any(nodes not in self._scores for _, _, nodes, _ in groups):
            return
        rows = [
            (pods, demand, self._scores.index(nodes), by_node, nodes.slots([demand])[0], number)
            for (pods, demand, nodes, by_node), number in zip(groups, shape.numbers, strict=True)
        ]
        self._kinds[kind] = len(self._groups), len(rows), shape.index, shape.gpu_milli, shape.pods
        self._groups = np.concatenate([self._groups, np.array(rows, dtype=np.int64)])


class _Names:
    """The numbers that the state gives to the names of a workload, by their codes; -1 where it has not met one."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self._names = names
        self._codes = {name: code for code, name in reversed(list(enumerate(names)))}
        self._known = 0
        self.numbers = np.full(len(names), -1, dtype=np.int64)

    def meet(self, state: dict[str, int]) -> None:
        """Follow what the state has met."""
        for name in list(state)[self._known :] if len(state) > self._known else ():
            if name in self._codes:
                self.numbers[self._codes[name]] = state[name]
        self._known = len(state)

    def new(self, state: dict[str, int]) -> list[str]:
        """Tell the state the names that a call has numbered, in order."""
        codes = np.flatnonzero(self.numbers >= len(state))
        names = [self._names[code] for code in codes[np.argsort(self.numbers[codes])].tolist()]
        for name in names:
            state[name] = len(state)
        self._known = len(state)
        return names


def _node_policies(placement: NodePolicy) -> list[NodePolicy]:
    """Who scores nodes for jobs of one pod, for gangs and for what is left over of them."""
    asked = (0, 1, 1), (0, 1, 2), (0, 2, 2), (1, 2, 1)
    return list(dict.fromkeys(placement.policy_for(*one)[0] for one in asked))
