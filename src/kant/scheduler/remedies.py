"""What would free a waiting job: single changes, each of which was tried before it is named."""

from __future__ import annotations

import msgspec

from kant.cluster.columns import J_QUEUE, J_USER
from kant.cluster.quota_tree import QuotaTree
from kant.cluster.shapes import Shape
from kant.model.decision import (
    BackOff,
    Behind,
    Closed,
    CoreWaits,
    NeverFits,
    NoFit,
    OverQuota,
    Reason,
    Reserved,
    RetriesUsed,
)
from kant.model.tenant import Queue, Quota, Tenancy
from kant.scheduler.evidence import Ends, MoreQuota, Opens, Remedy, Shorter, Starts, Time, known
from kant.scheduler.facts import expected_ends, rivals
from kant.scheduler.inquiry import Inquiry

MOST_ENDS = 4096
"""Running jobs whose ends are tried together, the first to end first."""

MOST_ALONE = 64
"""Running jobs whose ends are each tried alone."""

MOST_NAMED = 5
"""Jobs that one remedy names."""


def remedies_for(inquiry: Inquiry, row: int, reason: Reason | None) -> tuple[Remedy, ...]:
    """What would end the wait for this reason. Nothing where no such change was found, or none is needed."""
    match reason:
        case NoFit():
            return ends(inquiry, row, inquiry.missing(row)[1])
        case OverQuota(ever=True):
            return more_quota(inquiry, row, reason, _queue_shape(inquiry, row, reason))
        case OverQuota():
            option = inquiry.missing(row)[1]
            return (*more_quota(inquiry, row, reason, option), *ends(inquiry, row, option))
        case Reserved():
            return shorter(inquiry, row)
        case Behind(job=job) | CoreWaits(job=job):
            return (Starts(job, inquiry.missing(row)[0]),)
        case Closed(queue=queue, state=state) if state in ("hold", "stop"):
            return (Opens(queue, inquiry.missing(row)[0]),)
        case BackOff(until=until):
            return (Time(until, (inquiry.behind(row) or inquiry.missing(row)[0])),)
        case NeverFits() | RetriesUsed() | Closed() | None:
            return ()


def _queue_shape(inquiry: Inquiry, row: int, reason: OverQuota) -> Shape:
    """The shape in which the job asks for the GPU model of the reason."""
    options = inquiry.admission.options(row, inquiry.state.shape_of(row))
    return next((option for option in options if option.model == reason.model), options[0])


# --- jobs that end ---------------------------------------------------------------------------------------------


def ends(inquiry: Inquiry, row: int, shape: Shape) -> tuple[Ends, ...]:
    """The running jobs after whose expected ends the gang has a place and a quota, none of them dispensable.

    Beside those that come first in time also the first job, if any, whose end alone is enough. Where others are before
    it in the order, they may take the place.
    """
    state = inquiry.state
    reach = rivals(inquiry, shape)
    if inquiry.heeds_quotas and inquiry.admission.shortage(row, shape) is not None:
        reach = list(state.running)
    candidates = [pair for pair in expected_ends(inquiry, reach) if pair[1] in state.running][:MOST_ENDS]
    enough = _fewest(inquiry, row, shape, [victim for _, victim in candidates])
    found: list[Ends] = []
    if enough:
        found.append(_said(inquiry, _without_spared(inquiry, row, shape, enough), {r: e for e, r in candidates}))
    if len(enough) > 1:
        for end, victim in candidates[:MOST_ALONE]:
            if _seats(inquiry, row, shape, [victim]):
                alone = Ends((state.ids[victim],), known(end))
                return (*found, alone) if alone not in found else tuple(found)
    return tuple(found)


def _said(inquiry: Inquiry, rows: list[int], end_of: dict[int, int]) -> Ends:
    names = tuple(inquiry.state.ids[row] for row in rows[-MOST_NAMED:][::-1])
    return Ends(names, known(max(end_of[row] for row in rows)), len(rows) - len(names))


def _seats(inquiry: Inquiry, row: int, shape: Shape, gone: list[int]) -> bool:
    """Whether the gang has a place and a quota once these running jobs have gone. Nothing is left on the trial."""
    with inquiry.trial():
        for victim in gone:
            inquiry.placer.trial.evict(inquiry.state.running[victim])
        return _admits(inquiry, row, shape, gone) and not isinstance(inquiry.placer.place(shape, row), NoFit)


def _admits(inquiry: Inquiry, row: int, shape: Shape, gone: list[int]) -> bool:
    holdings = inquiry.state.holdings
    if not inquiry.heeds_quotas or holdings.tree is None:
        return True
    books = inquiry.admission.books.copy()
    for victim in gone:
        queue, user, _, amounts = holdings.charged[victim]
        if holdings.node_of[queue] >= 0:
            books.refund(holdings.node_of[queue], user, amounts)
    queue, user = inquiry.state.jobs[row, [J_QUEUE, J_USER]].tolist()
    node = holdings.node_of[queue]
    return node < 0 or books.shortage(node, user, holdings.amounts(shape)) is None


def _fewest(inquiry: Inquiry, row: int, shape: Shape, candidates: list[int]) -> list[int]:
    """The shortest start of `candidates` after which the gang is seated, found by doubling and halving; or nothing."""
    high = 1
    while high < len(candidates) and not _seats(inquiry, row, shape, candidates[:high]):
        high *= 2
    high = min(high, len(candidates))
    if high == 0 or not _seats(inquiry, row, shape, candidates[:high]):
        return []
    low = high // 2
    while low + 1 < high:
        middle = (low + high) // 2
        if _seats(inquiry, row, shape, candidates[:middle]):
            high = middle
        else:
            low = middle
    return candidates[:high]


def _without_spared(inquiry: Inquiry, row: int, shape: Shape, gone: list[int]) -> list[int]:
    """Those of `gone` that have to go, the rest left out one by one as long as the gang is seated without it."""
    needed = list(gone)
    if len(gone) <= MOST_ALONE or shape.picky:  # where others may stay is not only what is free
        for victim in reversed(gone[:-1]):
            fewer = [other for other in needed if other != victim]
            if _seats(inquiry, row, shape, fewer):
                needed = fewer
        return needed
    trial, held = inquiry.placer.trial, inquiry.state.running
    with inquiry.trial():
        for victim in gone:
            trial.evict(held[victim])
        inquiry.placer.place(shape, row)
        for victim in reversed(gone[:-1]):
            fewer = [other for other in needed if other != victim]
            if trial.is_free(held[victim]) and _admits(inquiry, row, shape, fewer):
                trial.restore(held[victim])
                needed = fewer
    return needed


# --- more quota, less time -------------------------------------------------------------------------------------


def more_quota(inquiry: Inquiry, row: int, reason: OverQuota, shape: Shape) -> tuple[MoreQuota, ...]:
    """By how much one quota would have to grow, if that alone lets the job pass."""
    state, holdings = inquiry.state, inquiry.state.holdings
    queue, user = state.jobs[row, [J_QUEUE, J_USER]].tolist()
    own = inquiry.admission.books.queues[holdings.node_of[queue]].name
    grows, more = reason.queue if reason.limit == "user" else own, reason.asked - reason.available
    queues = tuple(_grown(queue, reason, more) if queue.name == grows else queue for queue in holdings.tenancy.queues)
    tree = QuotaTree(Tenancy(queues, holdings.tenancy.prices))
    if not reason.ever:
        for charged, who, _, amounts in holdings.charged.values():
            if holdings.node_of[charged] >= 0:
                tree.charge(holdings.node_of[charged], who, amounts)
    if tree.shortage(holdings.node_of[queue], user, holdings.amounts(shape)) is not None:
        return ()
    then: Reason | None = inquiry.room(row, shape)
    return (MoreQuota(grows, reason.model, reason.resource, more, reason.limit, then),)


def _grown(queue: Queue, reason: OverQuota, more: int) -> Queue:
    """The queue with more of the quota: of its nominal amount, or of what one user may hold."""
    quotas = list(queue.quotas)
    at = next((i for i, q in enumerate(quotas) if (q.model, q.resource) == (reason.model, reason.resource)), -1)
    if at < 0:
        quotas.append(Quota(reason.resource, reason.model, more))  # type: ignore[arg-type]
    elif reason.limit == "user":
        quotas[at] = msgspec.structs.replace(quotas[at], user_limit=quotas[at].user_limit + more)
    else:
        quotas[at] = msgspec.structs.replace(quotas[at], nominal=quotas[at].nominal + more)
    return msgspec.structs.replace(queue, quotas=tuple(quotas))


def shorter(inquiry: Inquiry, row: int) -> tuple[Shorter, ...]:
    """For how long the job may run at most to be done before the first promise that keeps it needs its place."""
    state, turn = inquiry.state, inquiry.turn
    shape = inquiry.missing(row)[1]
    best = 0
    with inquiry.without_promise_of(row):
        for start in sorted({p.start for r, p in state.reserved.items() if r != row and p.start > inquiry.now}):
            with inquiry.trial():
                if isinstance(turn.place_beside(row, shape, start), NoFit):
                    break
            best = start - inquiry.now
    return (Shorter(best),) if best else ()
