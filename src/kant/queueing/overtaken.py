"""What a head that has waited too long may do: stop jobs that overtook it. Kant's backfill, which needs no estimate."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import repeat

from kant.cluster.columns import J_CORE, J_PRIORITY, J_QUEUE, J_SINCE, J_SUBMIT
from kant.cluster.shapes import Shape
from kant.model.decision import Start
from kant.model.placement import Allocation
from kant.queueing.preemption import candidate, fits_without, make_way
from kant.queueing.rights import given_back
from kant.queueing.shrinking import choose_gently, spare_candidate
from kant.queueing.standing import BEYOND, Mask, Standing
from kant.queueing.turn import Turn
from kant.queueing.victims import Admits, Candidate

UNLIMITED = 1 << 60


def overtakers(standing: Standing, row: int) -> Mask:
    """Preemptible jobs that started while `row` waited and stand behind it by priority and submission.

    This order does not change, so none of them can do the same to it later on (docs/design/0009-no-two-rounds.md).
    """
    jobs = standing.state.jobs
    since, core, *own = jobs[row, [J_SINCE, J_CORE, J_PRIORITY, J_SUBMIT]].tolist()
    rows, priority, submit = standing.rows, standing.priority, jobs[standing.rows, J_SUBMIT]
    later = (submit > own[1]) | ((submit == own[1]) & (rows > row))
    behind: Mask = standing.loose & (standing.started >= since) & (rows != core)
    behind &= (priority < own[0]) | ((priority == own[0]) & later)
    return behind


def within_its_right(standing: Standing, row: int, shape: Shape) -> Iterator[tuple[Mask, Admits | None]]:
    """Sets of overtakers that the head may take the place of, and what must hold once they have left.

    A head that would bring its queue beyond what it is entitled to leaves those alone that are within; those of its
    own queue it may stop if it is within in their place. So does a head that holds nothing that quotas are about.
    """
    state, behind = standing.state, overtakers(standing, row)
    queue = int(state.jobs[row, J_QUEUE])
    node = state.holdings.node_of[queue]
    amounts = state.holdings.amounts(shape)
    if not standing.reclaims:  # nobody takes anything back, so only the order among jobs counts
        yield behind, None
        return
    limited = standing.tree is not None and node >= 0 and any(amounts)
    if limited and standing.reach(node, amounts) != BEYOND:
        yield behind, None
        return

    def is_within(victims: Collection[Candidate]) -> bool:
        given = [given_back(state, who) for who in victims]
        gone = [(user, held) for home, user, held in given if home == queue]
        return standing.reach(node, amounts, gone) != BEYOND

    if limited:
        yield behind & (standing.beyond | (standing.queue == queue)), is_within
    yield behind & standing.beyond, None


def is_hopeless(standing: Standing, above: Standing | None, row: int, shape: Shape) -> bool:
    """Whether the head would not fit if all overtakers stopped, of age or not, and this plan started nothing."""
    trial = standing.turn.placer.trial
    mark = trial.checkpoint()
    for decision in standing.turn.plan.decisions:
        if isinstance(decision, Start):
            trial.evict(decision.allocation)
    near = standing.pools & shape.pool_bits != 0
    grown = above.rows[overtakers(above, row)].tolist() if above is not None else ()
    fits = fits_without(standing, standing.rows[overtakers(standing, row) & near].tolist(), row, shape, grown)
    trial.rollback(mark)
    return not fits


def stop_overtakers(turn: Turn, row: int, shape: Shape) -> Allocation | None:
    """Seat the head in place of as few of those as it takes, if that is proven to be enough; None where it is not."""
    if not shape.ask.preempts:
        return None
    hopeless = turn.waiting.hopeless
    if not turn.stopped and hopeless.holds(row):  # whom this plan has stopped may have left enough
        return None
    hopeless.forget(row)
    standing = turn.evictor.standing(turn) if turn.evictor is not None else Standing(turn, "off", 0)
    above = standing.spare() if turn.state.elastic else None
    by_one = not shape.fickle  # of a gang of several groups less room may fit more
    if by_one and is_hopeless(standing, above, row, shape):
        hopeless.add(row)
        return None
    for option in turn.admission.options(row, shape):
        if turn.admission.shortage(row, option) is not None:
            continue
        rights = within_its_right(standing, row, option)
        to_shrink = within_its_right(above, row, option) if above is not None else repeat(None)
        for (right, admits), grown in zip(rights, to_shrink, strict=False):
            allowed = standing.rows[_of_age(standing, right, option)].tolist()
            wide: list[int] = []
            if above is not None and grown is not None:
                wide = above.rows[_of_age(above, grown[0], option)].tolist()
            if by_one and not fits_without(standing, allowed, row, option, wide):
                continue
            whole = [candidate(turn, victim) for victim in allowed]
            spare = [spare_candidate(turn, victim, option) for victim in wide]
            chosen = choose_gently(turn, row, option, whole, spare, UNLIMITED, admits)
            if chosen is not None:
                victims, allocation = chosen
                make_way(turn, victims, row, "backfill")
                return allocation
    return None


def _of_age(standing: Standing, right: Mask, shape: Shape) -> Mask:
    """Those of `right` who hold something that the shape may use; who is too young is looked at when he is not."""
    turn = standing.turn
    allowed = standing.whole(right) & (standing.pools & shape.pool_bits != 0)
    young = allowed & (standing.of_age_at > turn.now)
    turn.review(int(standing.of_age_at[young].min()) if young.any() else -1)
    of_age: Mask = allowed & ~young
    return of_age
