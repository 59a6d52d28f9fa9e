"""Shrinking: an elastic gang gives back pods above its floor, where that suffices, instead of being stopped.

A job that may stop a gang may also shrink it. A job may shrink a gang that it may not stop in one case: the surplus
above a floor counts after all floors of its queue (`Entitlements.surplus`), so it may borrow while these do not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from kant.cluster.columns import J_BASE, J_CHECKPOINT, J_MILLI, J_PRIORITY, J_STARTED, Table
from kant.cluster.elastic import above_floor, held_by, pod_by_pod, without
from kant.cluster.shapes import Shape
from kant.model.units import SECOND
from kant.queueing.cycle_plan import CyclePlan
from kant.queueing.evictable import PASSED, RECLAIMED
from kant.queueing.preemption.candidate import Admits, Candidate, Pool
from kant.queueing.preemption.search import Chosen, choose, search


def lost_work(cycle: CyclePlan, row: int) -> int:
    """Return the milli-GPU-seconds of work lost by stopping or shrinking a running job now, or its price, if set."""
    if (price := cycle.state.prices.get(row, -1)) >= 0:
        return price
    milli, started, checkpoint = cycle.state.jobs[row, [J_MILLI, J_STARTED, J_CHECKPOINT]].tolist()
    if cycle.state.elastic and row in cycle.state.elastic:
        started = cycle.state.elastic[row].resized  # a resize saves the work or loses it
    ran = cycle.now - started
    return int(milli * ((ran % checkpoint if checkpoint > 0 else ran) // SECOND))


def lost_works(cycle: CyclePlan, rows: Table) -> Table:
    """Return `lost_work` of each of these running jobs."""
    state, jobs = cycle.state, cycle.state.jobs.take(rows, axis=0)
    ran, checkpoint = cycle.now - jobs[:, J_STARTED], jobs[:, J_CHECKPOINT]
    lost: Table = np.where(checkpoint > 0, ran % np.maximum(checkpoint, 1), ran) // SECOND * jobs[:, J_MILLI]
    if state.prices or state.elastic:
        for place, row in enumerate(rows.tolist()):
            if row in state.prices or row in state.elastic:
                lost[place] = lost_work(cycle, row)
    return lost


def surplus_candidate(cycle: CyclePlan, row: int, shape: Shape, marks: int = 0) -> Candidate:
    """Return the surplus of an elastic gang above its floor, with its marks, as a possible victim for a `shape`.

    The gang restarts, so the cost is all of its unsaved work. The gang gives back only what is needed, so it counts
    as holding at most what the newcomer asks for.
    """
    state = cycle.state
    pieces = above_floor(state.shape_of(row), state.running[row])
    priority, base = state.jobs[row, [J_PRIORITY, J_BASE]].tolist()
    milli = min(held_by(pieces)[0], shape.gpu_milli)
    rank, passed = (int(base < 0), int(marks & RECLAIMED == 0), priority), marks & PASSED != 0
    return Candidate(row, pieces, milli, lost_work(cycle, row), rank, surplus=True, passed=passed)


def choose_shrinking_first(
    cycle: CyclePlan,
    row: int,
    shape: Shape,
    pool: Pool,
    surplus: Sequence[Candidate],
    cap_milli: int,
    admits: Admits | None,
) -> tuple[Chosen | None, bool]:
    """Return the best victims among jobs that may be stopped (`pool`) and gangs that may be shrunk (`surplus`), and
    whether the search was exact, so that None proves that there are none.

    First the search stops no gang that it could shrink. If that does not suffice, it may stop such gangs; a gang whose
    floor is still free and within quota runs on with its floor. No gang gives back a pod that is not in the way.
    """
    if cycle.state.books:  # the job may not use devices that are booked for others
        pool = pool.take(
            np.array([cycle.booked.gives_room(row, held) for held in pool.held], dtype=np.bool_).nonzero()[0]
        )
        surplus = [who for who in surplus if cycle.booked.gives_room(row, who.allocation)]
    placer, wide = cycle.placer, {who.row: who for who in surplus}
    exact, trials = cycle.exact, cycle.trials
    if not wide:
        if not pool.held:
            return None, True
        return search(placer, shape, row, pool, cap_milli, admits, exact=exact, trials=trials)
    whole, find = list(pool), partial(choose, exact=exact, trials=trials)
    gentle = [who for who in whole if who.row not in wide] + list(surplus)
    mark = placer.trial.checkpoint()
    chosen = find(placer, shape, row, gentle, cap_milli, admits)
    if chosen is not None:

        def with_these(victims: Sequence[Candidate]) -> Chosen | None:
            placer.trial.rollback(mark)
            return find(placer, shape, row, victims, cap_milli, admits)

        chosen = _with_fewer_pods(chosen, with_these)
    elif any(who.row in wide for who in whole):
        stopping = {who.row for who in whole}
        all_victims = [*whole, *(who for who in surplus if who.row not in stopping)]
        chosen = find(placer, shape, row, all_victims, cap_milli, admits)
    few = len(whole) + len(surplus) <= exact
    if chosen is None:
        return None, few
    victims, allocation = chosen
    victims = _with_floors(cycle, victims, wide, admits)
    for who in [who for who in victims if who.surplus]:
        victims = _with_more(cycle, victims, who, admits)
    return (victims, allocation), few


def _with_fewer_pods(chosen: Chosen, with_these: Callable[[Sequence[Candidate]], Chosen | None]) -> Chosen:
    """Return the chosen victims with as few pods of each gang as suffice; the pods that a gang got last go first.

    `with_these` repeats the search among these victims alone.
    """
    for row in [who.row for who in chosen[0] if who.surplus]:
        who = next((who for who in chosen[0] if who.row == row), None)
        if who is None:
            continue
        pods, best = pod_by_pod(who.allocation), chosen[0]
        low, high = 0, len(pods)
        while low + 1 < high:
            count = (low + high) // 2
            fewer = replace(who, allocation=pods[:count], milli=min(who.milli, held_by(pods[:count])[0]))
            found = with_these([fewer if one is who else one for one in chosen[0]])
            if found is None:
                low = count
            else:
                high, best = count, found[0]
        if len(pods) > 1:
            again = with_these(best)
            assert again is not None, "the same victims gave another answer"
            chosen = again
    return chosen


def _with_floors(
    cycle: CyclePlan, victims: list[Candidate], wide: dict[int, Candidate], admits: Admits | None
) -> list[Candidate]:
    """Return the victims; gangs whose floor is still free take it, and are shrunk instead of stopped."""
    for place, who in enumerate(victims):
        if who.surplus or who.row not in wide:
            continue
        milder = [*victims[:place], wide[who.row], *victims[place + 1 :]]
        floor = without(cycle.state.running[who.row], wide[who.row].allocation)
        if cycle.placer.trial.is_free(floor) and (admits is None or admits(milder)):
            cycle.placer.trial.restore(floor)
            victims = milder
    return victims


def _with_more(cycle: CyclePlan, victims: list[Candidate], who: Candidate, admits: Admits | None) -> list[Candidate]:
    """Return the victims; this gang keeps its pods whose devices are still free, as far as the quota admits.

    Pods of the first ranks are kept first. A gang that keeps all its pods is no victim.
    """
    trial, place = cycle.placer.trial, victims.index(who)
    pods = pod_by_pod(who.allocation)[::-1]
    free: list[int] = []
    for pod in range(len(pods)):
        if trial.is_free(pods[pod : pod + 1]):
            trial.restore(pods[pod : pod + 1])
            free.append(pod)

    def keeping(count: int) -> list[Candidate]:
        given = np.delete(pods, free[:count], axis=0)[::-1]
        own = [replace(who, allocation=given, milli=held_by(given)[0])] if len(given) else []
        return [*victims[:place], *own, *victims[place + 1 :]]

    low, high = 0, len(free) + 1
    while low + 1 < high:
        count = len(free) if high > len(free) else (low + high) // 2
        if admits is None or admits(keeping(count)):
            low = count
        else:
            high = count
    if low < len(free):
        trial.evict(pods[free[low:]])
    return keeping(low)
