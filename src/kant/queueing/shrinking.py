"""Shrinking: an elastic gang gives back pods above its floor, where that suffices, instead of being stopped.

Who may stop a gang may shrink it, and nobody else, but for one thing: what a gang has above its floor counts after all
floors of its queue (`Standing.spare`), so a lender may take it back from a queue whose floors are all within.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from kant.cluster.columns import J_CHECKPOINT, J_CORE, J_MILLI, J_PRIORITY, J_STARTED
from kant.cluster.elastic import above_floor, held_by, pod_by_pod, without
from kant.cluster.shapes import Shape
from kant.model.placement import Allocation
from kant.model.units import SECOND
from kant.queueing.turn import Turn
from kant.queueing.victims import Admits, Candidate, choose


def lost(turn: Turn, row: int) -> int:
    """Milli-GPU-seconds of work that stopping a running job, or shrinking it, now throws away."""
    milli, started, checkpoint = turn.state.jobs[row, [J_MILLI, J_STARTED, J_CHECKPOINT]].tolist()
    if turn.state.elastic and row in turn.state.elastic:
        started = turn.state.elastic[row].resized  # it saved then, or lost what it had not saved
    ran = turn.now - started
    return int(milli * ((ran % checkpoint if checkpoint > 0 else ran) // SECOND))


def spare_candidate(turn: Turn, row: int, shape: Shape, lent: bool = False) -> Candidate:
    """What an elastic gang has above its floor as a possible victim for a newcomer of `shape`.

    The gang restarts, so the price is all of its work that is not saved. As it gives back no more than is needed, no
    more than the newcomer asks for counts as held.
    """
    state = turn.state
    pieces = above_floor(state.shape_of(row), state.running[row])
    priority, core = state.jobs[row, [J_PRIORITY, J_CORE]].tolist()
    milli = min(held_by(pieces)[0], shape.gpu_milli)
    return Candidate(row, pieces, milli, lost(turn, row), (int(core < 0), int(not lent), priority), spare=True)


def choose_gently(
    turn: Turn,
    row: int,
    shape: Shape,
    whole: Sequence[Candidate],
    spare: Sequence[Candidate],
    cap_milli: int,
    admits: Admits | None,
) -> tuple[list[Candidate], Allocation] | None:
    """As `choose`, among jobs that may be stopped (`whole`) and gangs that may be shrunk (`spare`).

    At first gangs that may be shrunk are not stopped. Where that is not enough, they may be; and those of the victims
    that then still find their floor free and admitted run on with it. No gang gives back a pod that is in nobody's way.
    """
    placer, wide = turn.placer, {who.row: who for who in spare}
    if not wide:
        return choose(placer, shape, row, whole, cap_milli, admits) if whole else None
    gentle = [who for who in whole if who.row not in wide] + list(spare)
    chosen = choose(placer, shape, row, gentle, cap_milli, admits)
    if chosen is None and any(who.row in wide for who in whole):
        stopping = {who.row for who in whole}
        everybody = [*whole, *(who for who in spare if who.row not in stopping)]
        chosen = choose(placer, shape, row, everybody, cap_milli, admits)
    if chosen is None:
        return None
    victims, allocation = chosen
    victims = _with_floors(turn, victims, wide, admits)
    for who in [who for who in victims if who.spare]:
        victims = _with_more(turn, victims, who, admits)
    return victims, allocation


def _with_floors(
    turn: Turn, victims: list[Candidate], wide: dict[int, Candidate], admits: Admits | None
) -> list[Candidate]:
    """The victims, those shrunk instead of stopped that still find their floor free, which is then taken."""
    for place, who in enumerate(victims):
        if who.spare or who.row not in wide:
            continue
        milder = [*victims[:place], wide[who.row], *victims[place + 1 :]]
        floor = without(turn.state.running[who.row], wide[who.row].allocation)
        if turn.placer.trial.is_free(floor) and (admits is None or admits(milder)):
            turn.placer.trial.restore(floor)
            victims = milder
    return victims


def _with_more(turn: Turn, victims: list[Candidate], who: Candidate, admits: Admits | None) -> list[Candidate]:
    """The victims, where this gang keeps those of its pods that are still free, as far as the quota admits that.

    The first ranks stay first. Whoever keeps all is no victim.
    """
    trial, place = turn.placer.trial, victims.index(who)
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
