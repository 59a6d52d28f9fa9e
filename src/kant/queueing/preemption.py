"""Preemption: room is made for a waiting job where it has the right to it (`queueing/rights.py`).

Sources: Kueue (reclaimWithinCohort, with a hierarchical advantage), KAI-Scheduler (reclaim to fair share),
Kant (arXiv 2510.01256).
"""

from __future__ import annotations

from functools import partial
from typing import Annotated

import numpy as np
from msgspec import Meta, Struct

from kant.cluster.columns import J_CHECKPOINT, J_CORE, J_MILLI, J_PRIORITY, J_QUEUE, J_STARTED
from kant.cluster.shapes import Shape
from kant.model.decision import NoFit
from kant.model.placement import Allocation
from kant.model.units import SECOND
from kant.queueing.promises import keeps_promises
from kant.queueing.rights import Rights
from kant.queueing.standing import BEYOND, Mask, Reclaim, Standing
from kant.queueing.turn import Turn
from kant.queueing.victims import EXACT, Candidate, choose


class Preemption(Struct, frozen=True, forbid_unknown_fields=True):
    """Who may be stopped for whom.

    `priority`: for a job of higher priority. `reclaim`: for a job whose queue stays within its `nominal` quota, or
    within its `fair-share` of the whole, a job of a queue that is beyond its own. Never a job that is not
    preemptible, nor one that has run for less than `min_run_s` (or its queue's own minimum) since it last started.
    The victims hold at most `most` times the GPUs of the newcomer.
    """

    priority: bool = True
    reclaim: Reclaim = "nominal"
    min_run_s: Annotated[int, Meta(ge=0, le=10**9)] = 300
    most: Annotated[float, Meta(ge=0, le=10**6)] = 4.0

    def make_room(self, turn: Turn, row: int, shape: Shape) -> Allocation | None:
        """Stop as few as it takes, at the least price, if that is proven to seat `row` as `shape`; else None.

        On success the plan has the victims stopped, and the place is taken on the trial. Otherwise nothing is
        changed, but `turn.retry_at` may say when a running job comes of age without whom it would fit, and
        `turn.lasts` is False where there may be victims that the search has not found.
        """
        standing = self.standing(turn)
        turn.lasts &= int(turn.state.jobs[row, J_PRIORITY]) <= turn.lowest  # it may stop those once they run
        if self._is_in_vain(standing, row, shape):
            return None
        rights = Rights(standing, row, shape, self.reclaim != "off", self.priority)
        surely = rights.node < 0 and not shape.fickle  # more room never makes it fit less
        if rights.node >= 0 and not turn.admission.books.could_ever(rights.node, rights.amounts):
            return None
        for claim in rights.claims():
            allowed = rights.victims(claim)
            young = allowed & (standing.of_age_at > turn.now)
            if young.any():
                if surely and not fits_without(standing, allowed, row, shape):
                    continue
                turn.retry_at = _sooner(turn.retry_at, int(standing.of_age_at[young].min()))
            found = allowed & ~young
            if not found.any():
                continue
            lent = rights.reclaims(claim)
            candidates = [candidate(turn, int(standing.rows[i]), bool(lent[i])) for i in np.flatnonzero(found)]
            admits = partial(rights.admits, claim=claim) if rights.node >= 0 else None
            mark = turn.placer.trial.checkpoint()
            chosen = choose(turn.placer, shape, row, candidates, int(self.most * shape.gpu_milli), admits)
            if chosen is None:
                # The search may choose other victims as their prices grow; where it was exact, or in vain, it may not.
                turn.lasts &= len(candidates) <= EXACT or (surely and not fits_without(standing, found, row, shape))
                continue
            victims, allocation = chosen
            if not keeps_promises(turn, row, [who.row for who in victims], allocation):
                turn.placer.trial.rollback(mark)
                continue
            reclaimed = set(standing.rows[lent].tolist())
            for who in victims:
                stop(turn, who.row, row, "reclaim" if who.row in reclaimed else "priority")
            return allocation
        return None

    def standing(self, turn: Turn) -> Standing:
        """Where the running jobs stand, as the plan is now. Made once a cycle."""
        if turn.standing is None:
            turn.standing = Standing(turn, self.reclaim, self.min_run_s * SECOND)
        turn.standing.follow()
        return turn.standing

    def _is_in_vain(self, standing: Standing, row: int, shape: Shape) -> bool:
        """Whether it is plain at once that the job may stop nobody: nobody who runs is of lower priority, and either
        nobody is beyond his queue's entitlement, or the job would be beyond its own.
        """
        state = standing.state
        if self.priority and int(state.jobs[row, J_PRIORITY]) > standing.lowest:
            return False
        if self.reclaim == "off" or not standing.lends:
            return True
        node, amounts = state.holdings.node_of[int(state.jobs[row, J_QUEUE])], state.holdings.amounts(shape)
        return node < 0 or not any(amounts) or standing.reach(node, amounts) == BEYOND


def _sooner(time: int, other: int) -> int:
    return other if time < 0 else min(time, other)


def fits_without(standing: Standing, gone: Mask, row: int, shape: Shape) -> bool:
    """Whether the job would fit if these stopped."""
    placer, running = standing.turn.placer, standing.state.running
    mark = placer.trial.checkpoint()
    if gone.any():
        leaving = [running[other] for other in standing.rows[gone].tolist()]
        for allocation in leaving if shape.picky else [np.concatenate(leaving)]:
            placer.trial.evict(allocation)
    result = placer.place(shape, row)
    placer.trial.rollback(mark)
    return not isinstance(result, NoFit)


def candidate(turn: Turn, row: int, lent: bool = False) -> Candidate:
    """A running job as a possible victim, priced by the GPU time that its last checkpoint does not save.

    Bursts go first, since whoever stops a core stops its bursts (so their price is its own too; they give back more
    than is counted on); then what is `lent`; then low priority.
    """
    state = turn.state
    price = sum(lost(turn, unit) for unit in (row, *_running_bursts(turn, row)))
    milli, priority, core = state.jobs[row, [J_MILLI, J_PRIORITY, J_CORE]].tolist()
    return Candidate(row, state.running[row], milli, price, (int(core < 0), int(not lent), priority))


def lost(turn: Turn, row: int) -> int:
    """Milli-GPU-seconds of work that stopping a running job now throws away."""
    milli, started, checkpoint = turn.state.jobs[row, [J_MILLI, J_STARTED, J_CHECKPOINT]].tolist()
    ran = turn.now - started
    return int(milli * ((ran % checkpoint if checkpoint > 0 else ran) // SECOND))


def _running_bursts(turn: Turn, core: int) -> list[int]:
    state = turn.state
    return [b for b in state.bursts.get(core, ()) if b in state.running and b not in turn.stopped]


def stop(turn: Turn, victim: int, newcomer: int, why: str) -> None:
    """Write the eviction of a victim, already given back on the trial, and of its bursts."""
    by = turn.state.ids[newcomer]
    turn.preempt(victim, by=by, why=why)
    turn.victims.append(victim)
    turn.review(turn.now + 1)  # who else fits where the victims leave more than the newcomer takes
    for burst in _running_bursts(turn, victim):
        turn.evict(burst, by, "core")
