"""One cycle of the reference scheduler: every waiting job is tried, in order."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from functools import partial

from tests.core.reference.allocator import OwnPlaces
from tests.core.reference.holds import holders_of, start_beside
from tests.core.reference.late_heads import serve_late_heads
from tests.core.reference.ledger import Amounts, ReferenceLedger
from tests.core.reference.order import rank
from tests.core.reference.rights import ReferenceRights, Victim, best, preference
from tests.core.reference.rules import without_preferences
from tests.core.reference.world import LiveJob, Pieces, ReferenceWorld

from kant.model.units import SECOND
from kant.queueing.disciplines.backfill import Backfill
from kant.queueing.disciplines.strict import Strict
from kant.queueing.preemption.policy import Preemption
from kant.scheduler.profile import Profile

Said = tuple[str, str, object]
"""A decision as (what, job, details): for a start the pods by node, for an eviction whether the job moves."""

NO_PREEMPTION = Preemption(priority=False, reclaim="off", min_run_s=0)


class ReferencePlan:
    """One cycle. Everything is recounted for every question."""

    def __init__(self, world: ReferenceWorld, profile: Profile, now: int, places: OwnPlaces) -> None:
        self.world, self.profile, self.now, self.places = world, profile, now, places
        self.rules = profile.preemption or NO_PREEMPTION
        discipline = profile.discipline
        self.keeps_priority = isinstance(discipline, Backfill) and discipline.keeps_priority
        self.rooms = world.rooms()
        self.ledger = ReferenceLedger(world, self.rules.reclaim == "fair-share")
        self.ledger.entitle([live.job for live in (*world.waiting.values(), *world.running.values())])
        self.stopped: set[str] = set()
        self.gone: set[str] = set()  # rejected or started
        self.started: dict[str, Pieces] = {}
        self.victims: list[LiveJob] = []
        self.said: list[Said] = []
        self.rights = ReferenceRights(
            world, self.ledger, self.rules, self.stopped, now, self.keeps_priority, profile.order.shares
        )

    def make(self) -> None:
        """Stop, reject, start in order, serve late heads, relocate victims."""
        self._stop_what_may_not_run_on()
        self._reject_impossible()
        self._walk()
        if isinstance(self.profile.discipline, Backfill):
            serve_late_heads(self, self.profile.discipline)
        if self.profile.preemption is None or self.profile.preemption.move_victims:
            self._move_victims()

    # --- jobs that may not run on, and jobs that never start ------------------------------------------------------

    def _stop_what_may_not_run_on(self) -> None:
        limited = [live for live in self.world.running.values() if live.job.limit >= 0]
        for live in sorted(limited, key=lambda live: (live.started + live.job.limit, live.number)):
            if live.started + live.job.limit <= self.now:
                self._give_back(live)
                self.said.append(("expire", live.job.id, ""))
        for live in list(self.world.running.values()):
            if live.job.id not in self.stopped and "stop" in self.world.queue_states(live.job.queue):
                self._give_back(live)
                self.said.append(("preempt", live.job.id, False))

    def _reject_impossible(self) -> None:
        for live in sorted(self.world.waiting.values(), key=lambda live: live.number):
            job, empty = live.job, self.world.empty()
            possible = any(
                self.ledger.could_ever_fit(job, self.ledger.asked(job, model))
                and self.places.fits(empty, without_preferences(job), model, prefers=False)
                for model in self.ledger.options(job)
            )
            if live.failures > job.retries or live.unwanted or not possible:
                self.gone.add(job.id)
                self.said.append(("reject", job.id, ""))

    # --- order of jobs --------------------------------------------------------------------------------------------

    def in_order(self) -> list[LiveJob]:
        """The waiting jobs that may be tried now, best first."""
        waiting = [live for live in self.world.waiting.values() if live.job.id not in self.gone]
        jobs = [job for job, _ in self.ledger.held.values()]
        tried = (live for live in waiting if not self._backs_off(live))
        return sorted(tried, key=lambda live: rank(self.world, self.profile.order, live, jobs))

    def _backs_off(self, live: LiveJob) -> bool:
        requeue = self.profile.requeue
        if not live.returns or not requeue.base_s:
            return False
        wait = min(requeue.base_s << min(live.returns - 1, 30), max(requeue.max_s, requeue.base_s))
        return live.since + wait * SECOND > self.now

    def equals(self, live: LiveJob) -> tuple[object, ...]:
        """The bucket of a job: once one job of a bucket does not start, the others are skipped."""
        if isinstance(self.profile.discipline, Strict):
            return (live.job.queue,)
        job = live.job
        queues = self.world.queues.queues
        by_user = any(quota.user_limit >= 0 for queue in queues for quota in queue.quotas)
        by_user = by_user or any(queue.budget is not None and queue.budget.limits_users for queue in queues)
        fixed = self.keeps_priority and not self.rights.may_stop(live)  # held for longer than its equals
        pools = frozenset(node.pool for node in self.world.admitting(job))
        says = job.node_set, job.rules, job.preferences
        return job.queue, job.groups, pools, says, job.preempts, job.node_wait, fixed, job.user if by_user else ""

    def _walk(self) -> None:
        """Try each job once, in order. After an eviction the walk restarts from the first job."""
        tried: set[str] = set()
        blocked: set[tuple[object, ...]] = set()
        while True:
            live = next(
                (one for one in self.in_order() if one.job.id not in tried and self.equals(one) not in blocked), None
            )
            if live is None:
                return
            tried.add(live.job.id)
            holders = holders_of(self, live)
            if holders:
                if not start_beside(self, live, holders):
                    blocked.add(self.equals(live))
                continue
            if self.start_now(live):
                continue
            if self._start_by_eviction(live):
                tried.clear()
                blocked.clear()
            else:
                blocked.add(self.equals(live))

    # --- one job --------------------------------------------------------------------------------------------------

    def options(self, live: LiveJob) -> Iterator[tuple[str | None, Amounts]]:
        """The GPU models on which a job is tried, with its amounts there; none if its queue starts nothing."""
        if self.world.is_over_budget(live.job.queue, live.job.user, "hard"):
            return
        if not {"hold", "stop", "unknown"} & self.world.queue_states(live.job.queue):
            for model in self.ledger.options(live.job):
                yield model, self.ledger.asked(live.job, model)

    def start_now(self, live: LiveJob, closed: Collection[str] = ()) -> bool:
        """Start a job if it fits, within its quota, on none of the nodes `closed`; returns whether it started."""
        for model, amounts in self.options(live):
            if self.ledger.fits(live.job, amounts):
                was = [room.open for room in self.rooms]
                for room in self.rooms:
                    room.open = room.open and room.node.name not in closed
                pieces = self.places.place(self.rooms, live.job, model)
                for room, open_ in zip(self.rooms, was, strict=True):
                    room.open = open_
                if pieces is not None:
                    self._start(live, pieces)
                    return True
        return False

    def _start_by_eviction(self, live: LiveJob) -> bool:
        if not (self.profile.preemption or self.keeps_priority) or not live.job.preempts:
            return False
        for model, amounts in self.options(live):
            short = not self.ledger.fits(live.job, amounts)
            if not self.ledger.could_ever_fit(live.job, amounts) or (not short and self.awaits_node(live)):
                continue
            sets: list[list[Victim]] = []
            for level in self.rights.levels(live, model, amounts, short):
                able = self.rights.victims(live, model, amounts, level, short)
                able = [who for who in able if who.passed or self.rights.protected_until(who.live) <= self.now]
                cap = int(self.rules.most * live.job.gpu_milli)
                found = best(able, cap, partial(self._suffices, live, model, amounts, level))
                sets += [found] if found is not None else []
            if sets:
                self.evict_for(live, min(sets, key=preference), model)
                return True
        return False

    def awaits_node(self, live: LiveJob) -> bool:
        """Whether its queue, or the job itself, still waits for an autoscaler's node before it may stop others."""
        waits = [queue.node_wait for queue in self.world.queues.queues if queue.name == live.job.queue]
        return live.node_comes and any(live.since + wait > self.now for wait in [*waits, live.job.node_wait])

    def _suffices(
        self, live: LiveJob, model: str | None, amounts: Amounts, level: int, victims: Sequence[Victim]
    ) -> bool:
        return self.rights.admits(live.job, amounts, level, victims) and self.fits_without(victims, live, model)

    def fits_without(self, victims: Sequence[Victim], live: LiveJob, model: str | None, starts: bool = True) -> bool:
        """Whether the gang has a place after these have left; with `starts` false also without the plan's starts."""
        rooms = [room.copy() for room in self.rooms]
        leaving = [(who.live.job, who.live.pieces or []) for who in victims]
        if not starts:
            leaving += [(self.world.waiting[name].job, pieces) for name, pieces in self.started.items()]
        for job, pieces in leaving:
            for piece in pieces:
                rooms[piece[0]].change(piece, 1, job)
        return self.places.fits(rooms, live.job, model)

    # --- decisions ------------------------------------------------------------------------------------------------

    def _start(self, live: LiveJob, pieces: Pieces) -> None:
        self.gone.add(live.job.id)
        self.started[live.job.id] = pieces
        self.ledger.held[live.job.id] = (live.job, self.ledger.amounts_of(pieces))
        self.said.append(("start", live.job.id, by_node(pieces)))

    def _give_back(self, live: LiveJob) -> None:
        """Stop a running job and free its resources."""
        self.stopped.add(live.job.id)
        del self.ledger.held[live.job.id]
        for piece in live.pieces or ():
            self.rooms[piece[0]].change(piece, 1, live.job)

    def evict_for(self, newcomer: LiveJob, victims: list[Victim], model: str | None) -> None:
        for who in victims:
            self._give_back(who.live)
            self.victims.append(who.live)
            self.said.append(("preempt", who.live.job.id, False))
        pieces = self.places.place(self.rooms, newcomer.job, model)
        assert pieces is not None
        self._start(newcomer, pieces)

    def _move_victims(self) -> None:
        """Start victims elsewhere, if they fit within their quotas: then they are moved."""
        for live in self.victims:
            if self.start_now(live):
                self.said[self.said.index(("preempt", live.job.id, False))] = ("preempt", live.job.id, True)


def by_node(pieces: Pieces) -> tuple[tuple[int, int, int], ...]:
    """(node, pods, devices) of an allocation, in order of the nodes."""
    found: dict[int, tuple[int, int]] = {}
    for piece in pieces:
        pods, devices = found.get(piece[0], (0, 0))
        found[piece[0]] = pods + piece[1], devices + piece[2].bit_count()
    return tuple((node, *found[node]) for node in sorted(found))
