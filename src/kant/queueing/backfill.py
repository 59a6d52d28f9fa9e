"""Backfilling with reservations: who waits is promised a place in time, and nobody who starts may delay a promise.

Sources: D. A. Lifka, The ANL/IBM SP scheduling system, JSSPP 1995 (EASY: the head alone is promised a place);
A. W. Mu'alem and D. G. Feitelson, IEEE TPDS 12(6), 2001 (conservative: everyone is). Here promises are real devices on
real nodes, so a job with part of a node leaves the rest of it to others.
"""

from __future__ import annotations

import numpy as np

from kant.cluster.columns import J_PRIORITY, J_SINCE
from kant.cluster.shapes import Shape
from kant.model.decision import NoFit, Reason, Reserved
from kant.model.placement import Allocation, Reservation
from kant.model.units import FOREVER
from kant.queueing.overtaken import stop_overtakers
from kant.queueing.turn import Turn


class Backfill:
    """One cycle. `depth` is how many jobs may hold a promise (0: all). Where nobody knows when others end, none can be
    given; a head that has waited for `timeout` then stops those that overtook it.

    A promise that still holds is kept, and bettered where something came free sooner than planned; then the whole
    queue is looked at anew. Otherwise only jobs that are new, or due, can start, and only these are looked at.
    """

    def __init__(self, turn: Turn, depth: int, timeout: int) -> None:
        assert turn.forecast is not None
        self.turn = turn
        self.state = turn.state
        self.forecast = turn.forecast
        self.timeline = turn.forecast.timeline
        self.most = depth or FOREVER
        self.timeout = timeout
        self.lifted: dict[int, Reservation] = {}  # promises that are off while somebody else is looked at
        self.vacated = False  # somebody is promised, or has, another place than he was promised
        self.failed: dict[int, int] = {}  # shape -> the shortest run time for which there is no room now
        self.hopeless: set[int] = set()  # pools whose head could not be promised anything

    def run(self) -> None:
        """Go through the queue in order: start, promise, or hold."""
        turn, state, forecast = self.turn, self.state, self.forecast
        rows = turn.waiting.ranked(turn)
        some_without = forecast.freed and any(row not in state.reserved for row in forecast.tried)
        insists = any(until <= turn.now for until in forecast.insists.values())
        broken, overtaken = self._broken(), self._overtaken(rows)  # both: what they lift is in nobody's way
        anew = broken or overtaken or forecast.loosened or some_without or insists
        forecast.loosened = forecast.freed = False
        if anew:
            forecast.tried.clear()
            forecast.insists.clear()
        for row in rows:
            promise = state.reserved.get(row)
            looked_at = anew or (promise.start <= turn.now if promise is not None else row not in forecast.tried)
            if looked_at and not (promise is not None and self._reconsider(row, promise)):
                self._serve(row)
        turn.review(min((start for _, start in self._promised_starts()), default=-1))
        for until in forecast.insists.values():
            turn.review(until)
        for row in state.reserved:
            if row not in self.timeline and row not in turn.waiting.leaving and row not in turn.unpromised:
                self.vacated = True
                turn.release(row)
        forecast.loosened |= self.vacated  # who had his turn before may use it
        if self._promises() < self.most < FOREVER and any(row not in self.timeline for row in forecast.tried):
            forecast.loosened = True  # somebody started who held a promise: the next in line gets one

    def _promises(self) -> int:
        """How many jobs hold a promise as the plan stands, those apart that are off."""
        turn = self.turn
        return len(self.state.reserved) + turn.promised_anew - len(turn.unpromised) - len(self.lifted)

    # --- what makes the whole queue worth a look ---------------------------------------------------------------

    def _broken(self) -> bool:
        """Whether a promise can no longer be kept: a job outlived its estimate, or a node left."""
        reserved = self.state.reserved
        broken = {row for row, promise in reserved.items() if promise.start < self.turn.now}
        if self.forecast.tightened:
            self.forecast.tightened = False
            broken |= {row for row in reserved if row not in broken and not self.timeline.holds(row)}
        for row in sorted(broken):
            self._lift(row)
        return bool(broken)

    def _overtaken(self, rows: list[int]) -> bool:
        """Whether jobs of higher priority have come: promises of lower priority then give way to them."""
        state, jobs = self.state, self.state.jobs
        if not state.reserved:
            return False
        new = [row for row in rows if row not in self.forecast.tried and row not in state.reserved]
        highest = max((int(jobs[row, J_PRIORITY]) for row in new), default=-FOREVER)
        below = [row for row in state.reserved if jobs[row, J_PRIORITY] < highest]
        for row in below:
            self._lift(row)
        return bool(below)

    def _lift(self, row: int) -> None:
        """Take a promise off the timeline; its holder may get it back when its turn comes."""
        if row in self.state.reserved and row in self.timeline:
            self.lifted[row] = self.state.reserved[row]
            self.forecast.stops(row)

    # --- one job -----------------------------------------------------------------------------------------------

    def _reconsider(self, row: int, promise: Reservation) -> bool:
        """Keep a promise or better it, without lifting it first; False where the job must be served like others.

        What it decides is what `_serve` decides. Most promises are kept: that costs one question, and nothing moves.
        """
        turn, shape = self.turn, self.state.shape_of(row)
        if (
            len(shape.parts) > 1
            or shape.required
            or turn.evictor is not None
            or promise.start <= turn.now
            or row not in self.timeline
        ):
            return False
        duration = self.forecast.estimates.duration(self.state, row)
        if promise.end != min(promise.start + duration, FOREVER) or turn.admission.closed(row) is not None:
            return False
        options = turn.admission.options(row, shape)
        if len(options) > 1 or turn.admission.shortage(row, options[0]) is not None:
            return False
        found = self.timeline.sooner(row, options[0], duration, turn.now)
        if found is None:
            if not self.timeline.holds(row):
                return False
        elif found[0] > turn.now:
            self.vacated = True
            turn.promise(row, found[1], found[0], min(found[0] + duration, FOREVER))
        else:
            self._lift(row)
            self._start(row, self._placed(row, options[0], found[1], min(turn.now + duration, FOREVER)))
            return True
        self._tried(row, shape, None)
        return True

    def _serve(self, row: int) -> None:
        turn = self.turn
        self._lift(row)
        shape = self.state.shape_of(row)
        reason: Reason | None = turn.admission.closed(row)
        best: tuple[int, Allocation] | None = None
        duration = self.forecast.estimates.duration(self.state, row)
        until = min(turn.now + duration, FOREVER)
        options = turn.admission.options(row, shape) if reason is None else []
        for option in options:
            short = turn.admission.shortage(row, option)
            if short is not None:
                reason = reason or short
                continue
            if self._promises() >= self.most or not option.promisable:
                allocation = self._now(row, option, duration, until)
                found = None if allocation is None else (turn.now, allocation)
            else:
                found = self._earliest(row, option, duration, until)
            if found is not None and found[0] == turn.now:
                self._start(row, found[1])
                return
            if found is not None and (best is None or found[0] < best[0]):
                best = found
        if options and turn.evictor is not None:
            for option in options:
                made = self._make_room(row, option, until)
                if made is not None:
                    self._start(row, made)
                    return
        unpromised = not shape.promisable or not self.failed.get(shape.index)
        if best is None and reason is None and unpromised:
            made = self._insist(row, shape)
            if made is not None:
                self._start(row, made)
                return
        self._wait(row, shape, reason, best, duration)

    def _insist(self, row: int, shape: Shape) -> Allocation | None:
        """Without estimates: the first head of its pools has its way once it has waited for long enough."""
        if shape.pool_bits in self.hopeless:
            return None
        self.hopeless.add(shape.pool_bits)
        until = int(self.state.jobs[row, J_SINCE]) + self.timeout
        self.forecast.insists[row] = until
        return None if until > self.turn.now else stop_overtakers(self.turn, row, shape)

    def _start(self, row: int, allocation: Allocation) -> None:
        self.lifted.pop(row, None)
        promise = self.state.reserved.get(row)
        if promise is not None and (
            promise.start > self.turn.now or not np.array_equal(promise.allocation, allocation)
        ):
            self.vacated = True
        self.turn.start(row, allocation)

    def _wait(
        self, row: int, shape: Shape, reason: Reason | None, best: tuple[int, Allocation] | None, duration: int
    ) -> None:
        """Keep the old promise, give a new one, or none; and say why the job waits."""
        turn, may_hold = self.turn, self._promises() < self.most
        old = self.lifted.pop(row, None)
        better = best is not None and old is not None and best[0] < old.start
        if may_hold and old is not None and reason is None and not better and self._still_free(row, old):
            self.forecast.promises(row, old.allocation, old.start, old.end)
        elif may_hold and best is not None:
            self.vacated |= old is not None
            turn.promise(row, best[1], best[0], min(best[0] + duration, FOREVER))
        elif old is not None:
            self.vacated = True
            turn.release(row)
        self._tried(row, shape, reason)

    def _tried(self, row: int, shape: Shape, reason: Reason | None) -> None:
        """Say why the job waits, if that has not been said."""
        self.forecast.tried.add(row)
        if row not in self.turn.waiting.held:
            self.turn.hold(row, reason or self._what_is_missing(row, shape))

    def _still_free(self, row: int, promise: Reservation) -> bool:
        if promise.start < self.turn.now:
            return False
        self.timeline.add(row, promise.allocation, promise.start, promise.end)
        holds = self.timeline.holds(row)
        self.timeline.remove(row)
        return holds

    def _earliest(self, row: int, shape: Shape, duration: int, until: int) -> tuple[int, Allocation] | None:
        """The earliest start; if that is now, with the place that the profile's placement chooses."""
        found = self.timeline.earliest(shape, duration, self.turn.now)
        if found is None or found[0] > self.turn.now:
            return found
        return found[0], self._placed(row, shape, found[1], until)

    def _placed(self, row: int, shape: Shape, proven: Allocation, until: int) -> Allocation:
        """Where the profile's placement puts a gang for which there is a place now."""
        result = self.turn.place_beside(row, shape, until)
        if isinstance(result, NoFit):  # several groups: the two searches may differ, and this one is proven too
            self.turn.placer.trial.restore(proven, shape.company.group if shape.company is not None else "")
            return proven
        return result

    def _now(self, row: int, shape: Shape, duration: int, until: int) -> Allocation | None:
        """A place clear of all promises for a job that gets none itself."""
        if self.failed.get(shape.index, FOREVER + 1) <= duration:
            return None
        result = self.turn.place_beside(row, shape, until)
        if isinstance(result, NoFit):
            self.failed[shape.index] = duration
            return None
        return result

    def _make_room(self, row: int, shape: Shape, until: int) -> Allocation | None:
        """What preemption can do without touching what is promised."""
        turn = self.turn
        assert turn.evictor is not None
        blocked = turn.kept_clear(until)
        if len(blocked) == 0:
            return turn.evictor.make_room(turn, row, shape)
        turn.placer.trial.restore(blocked)
        made = turn.evictor.make_room(turn, row, shape)
        turn.placer.trial.evict(blocked)
        return made

    def _what_is_missing(self, row: int, shape: Shape) -> Reason:
        """Whether the job would fit if nothing were promised."""
        trial = self.turn.placer.trial
        mark = trial.checkpoint()
        result = self.turn.placer.place(shape, row)
        trial.rollback(mark)
        if isinstance(result, NoFit):
            return result
        names = self.state.ids
        first = min(
            ((start, other) for other, start in self._promised_starts() if other != row), default=(self.turn.now, row)
        )
        return Reserved(names[first[1]], first[0])

    def _promised_starts(self) -> list[tuple[int, int]]:
        rows = self.state.reserved.keys() | self.turn.promised
        return [(row, self.timeline.start_of(row)) for row in sorted(rows) if row in self.timeline]
