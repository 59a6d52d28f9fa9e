"""Repair: a gang that has lost a node gets another in its place, before anybody else may take what it held.

The driver has evicted the gang whole, so it is never bound in part: it starts again from its checkpoint, in one
decision, on the devices that it has left and on those that replace the lost ones. Where that cannot be it holds
nothing, and waits at its place in the queue like any other.

Source: replacement of a failed node as in Kueue's topology-aware scheduling (KEP-2724). That it is one start and no
partial state, and for how long the claim holds, is ours.
"""

from __future__ import annotations

from kant.cluster.columns import J_SINCE
from kant.model.placement import PODS, Allocation
from kant.model.units import FOREVER, SECOND
from kant.queueing.turn import Mended, Turn


def repair(turn: Turn, in_place: bool = True) -> None:
    """Seat the gangs that have just lost a node, in the order in which they did; and those that this plan drains away.

    Where the latter cannot stay near, or not `in_place`, they move like victims of a preemption, if they fit elsewhere.
    """
    state, waiting = turn.state, turn.waiting
    window = waiting.requeue.in_place_s if in_place else -1
    for row in turn.drained:
        made = _mended(turn, row, state.running[row]) if window >= 0 else None
        if made is not None:
            turn.move(row, made.allocation, made.kept)
        else:
            turn.victims.append(row)
    for row, held in state.health.broken.items() if window >= 0 else ():
        late = turn.now - int(state.jobs[row, J_SINCE]) > window * SECOND
        if late or row in waiting.leaving or row in state.reserved:  # a promise is as good
            continue
        made = _mended(turn, row, held)
        if made is not None:
            turn.start(row, made.allocation, made.kept)
            waiting.leave(row)


def complete(turn: Turn) -> None:
    """Seat the gangs that were found bound in part: all that they hold stays, and what is missing comes near it.

    What one of them holds no other gets, be it made whole or not.
    """
    trial, broken = turn.placer.trial, turn.state.health.broken
    taken: set[int] = set()
    for row, held in broken.items():
        if trial.is_free(held):
            trial.restore(held)
            taken.add(row)
    for row, held in broken.items():
        if row in taken:
            trial.evict(held)
        made = _mended(turn, row, held, bound=True)
        if made is not None and made.kept == int(held[:, PODS].sum()):
            turn.start(row, made.allocation, made.kept)
            continue
        if made is not None:
            trial.evict(made.allocation)
        if row in taken:
            trial.restore(held)


def _mended(turn: Turn, row: int, held: Allocation, bound: bool = False) -> Mended | None:
    """A place for a gang of which `held` is left in part: that, and near it what is missing, within its quota.

    What is `bound` stays also where nothing new may come.

    Like any place it stays clear of what is promised.
    """
    trial, admission, forecast = turn.placer.trial, turn.admission, turn.forecast
    if admission.closed(row) is not None:
        return None
    blocked = None
    if forecast is not None:
        blocked = turn.kept_clear(min(turn.now + forecast.estimates.duration(turn.state, row), FOREVER))
        trial.restore(blocked)
    made = None
    for option in admission.options(row, turn.state.shape_of(row)):
        if made is None and admission.shortage(row, option) is None:
            made = turn.placer.mend(option, held, turn.bad_nodes(row), row, bound)
    if blocked is not None:
        trial.evict(blocked)
    return made
