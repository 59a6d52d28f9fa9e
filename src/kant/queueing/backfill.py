"""Backfilling with reservations: who waits is promised a place in time, and nobody who starts may delay a promise.

Sources: D. A. Lifka, The ANL/IBM SP scheduling system, JSSPP 1995 (EASY: the head alone is promised a place);
A. W. Mu'alem and D. G. Feitelson, IEEE TPDS 12(6), 2001 (conservative: everyone is). Here promises are real devices on
real nodes, so a job with part of a node leaves the rest of it to others.
"""

from __future__ import annotations

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

    The whole queue is gone through in order. A promise that still holds is kept, and bettered where something came free
    sooner than planned. It gives way only to jobs before it of higher priority that have none.
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
        self.failed: dict[int, int] = {}  # shape -> the shortest run time for which there is no room now
        self.hopeless: set[int] = set()  # pools whose head could not be promised anything
        priorities = self.state.jobs[list(self.state.reserved), J_PRIORITY].tolist()
        self.behind = dict(zip(self.state.reserved, priorities, strict=True))  # promises not yet looked at
        self.lowest = min(priorities, default=FOREVER)
        admission, waiting = turn.admission, turn.waiting
        self.plain = turn.evictor is None and admission.holdings.tree is None and not admission.bursts
        self.held = waiting.held

    def run(self) -> None:
        """Go through the queue in order: start, promise, or hold."""
        turn, state = self.turn, self.state
        for row in self._broken():
            self._lift(row)
            del self.behind[row]
            self.forecast.opened += 1
        for row in turn.waiting.ranked(turn):
            promise = state.reserved.get(row)
            if promise is None:
                if not self._fails_still(row):
                    self._give_way(int(state.jobs[row, J_PRIORITY]))
                    self._serve(row)
                continue
            self.behind.pop(row, None)
            self._put_back()
            if not self._reconsider(row, promise):
                self._serve(row)
        self._put_back()
        turn.review(min((start for _, start in self._promised_starts()), default=-1))
        for row in state.reserved:
            if row not in self.timeline and row not in turn.waiting.leaving and row not in turn.unpromised:
                turn.release(row)

    def _promises(self) -> int:
        """How many jobs hold a promise as the plan stands, those apart that are off."""
        turn = self.turn
        return len(self.state.reserved) + turn.promised_anew - len(turn.unpromised) - len(self.lifted)

    # --- promises that give way --------------------------------------------------------------------------------

    def _broken(self) -> list[int]:
        """Promises that can no longer be kept: a job outlived its estimate, or a node left."""
        reserved, tightened = self.state.reserved, self.forecast.tightened
        self.forecast.tightened = False
        late = {row for row, promise in reserved.items() if promise.start < self.turn.now}
        return sorted(row for row in reserved if row in late or (tightened and not self.timeline.holds(row)))

    def _give_way(self, priority: int) -> None:
        """Take off the promises of lower priority that come later in the order; those of no lower one are back."""
        self._put_back(priority)
        if self.lowest < priority:
            for row in [row for row, own in self.behind.items() if own < priority and row in self.timeline]:
                self._lift(row)
                self.failed.clear()

    def _put_back(self, least: int = -FOREVER) -> None:
        """Promises that gave way, of at least this priority, hold again; who cannot have it back waits for its turn."""
        for row, old in list(self.lifted.items()):
            if self.behind.get(row, -FOREVER - 1) < least:
                continue
            if self._promises() < self.most and self._still_free(row, old):
                del self.lifted[row]
                self.forecast.promises(row, old.allocation, old.start, old.end)
            else:
                del self.behind[row]
                self.forecast.opened += 1  # what is left of it may serve others

    def _lift(self, row: int) -> None:
        """Take a promise off the timeline; its holder may get it back when its turn comes."""
        if row in self.state.reserved and row in self.timeline:
            self.lifted[row] = self.state.reserved[row]
            self.forecast.lifts(row)

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
        if self.forecast.settled.get(row) == self.forecast.opened:  # nothing has opened since it was asked in vain
            return True
        found = self.timeline.sooner(row, options[0], duration, turn.now)
        if found is None:
            if not self.timeline.holds(row):
                return False
            self.forecast.settled[row] = self.forecast.opened
        elif found[0] > turn.now:
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
        may_hold = self._promises() < self.most
        duration = self.forecast.estimates.duration(self.state, row)
        until = min(turn.now + duration, FOREVER)
        options = turn.admission.options(row, shape) if reason is None else []
        for option in options:
            short = turn.admission.shortage(row, option)
            if short is not None:
                reason = reason or short
                continue
            if not may_hold or not option.promisable:
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
                    self.forecast.tightened = True  # promises of lower priority may be broken
                    self._start(row, made)
                    return
        if best is None and reason is None and (may_hold or not shape.promisable):
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
        self.turn.review(until)
        if until > self.turn.now:
            return None
        made = stop_overtakers(self.turn, row, shape)
        self.forecast.tightened |= made is not None  # it asked nobody who holds a promise
        return made

    def _start(self, row: int, allocation: Allocation) -> None:
        self.lifted.pop(row, None)
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
            turn.promise(row, best[1], best[0], min(best[0] + duration, FOREVER))
        elif old is not None:
            turn.release(row)
        self._tried(row, shape, reason)

    def _tried(self, row: int, shape: Shape, reason: Reason | None) -> None:
        """Say why the job waits, if that has not been said."""
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
        if self._known_to_fail(shape, duration):
            return None
        result = self.turn.place_beside(row, shape, until)
        if isinstance(result, NoFit):
            self.failed[shape.index] = duration
            if not shape.fickle and not self.lifted:
                self.forecast.failed[shape.index] = duration, self._stamp()
            return None
        return result

    def _known_to_fail(self, shape: Shape, duration: int) -> bool:
        """Whether there was no room for so long a run, and nothing has opened since; time only brings promises near."""
        if self.failed.get(shape.index, FOREVER + 1) <= duration:
            return True
        known = self.forecast.failed.get(shape.index)
        return known is not None and known[0] <= duration and known[1] == self._stamp() and not self.lifted

    def _stamp(self) -> int:
        """Counts what may let a job start that holds no promise."""
        return self.state.openings + self.state.services + self.forecast.opened

    def _fails_still(self, row: int) -> bool:
        """Whether it is plain that serving a job without a promise would change nothing."""
        if not self.plain or row not in self.held or self._promises() < self.most:
            return False
        if self.lifted or self.state.jobs[row, J_PRIORITY] > self.lowest:
            return False
        shape = self.state.shape_of(row)  # who can be promised nothing may insist
        return shape.promisable and self._known_to_fail(shape, self.forecast.estimates.duration(self.state, row))

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
