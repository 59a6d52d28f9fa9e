""" "Starts now if": the cheapest permitted change after which a waiting job has a quota and a place at once.

Three kinds of change are tried, each on a trial or a copy, so every result has been verified: preemptible running jobs
move or stop, at the price of the GPU time that they lose since their last checkpoint; a quota is raised; or a node that
is out of service returns. If few jobs are running, every set of them is tried in order of price, so the result is the
cheapest. Otherwise it may not be. Then a lower bound says what any other set would cost at least: the stopped jobs must
free the missing GPUs (a fractional knapsack).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from msgspec import Struct
from msgspec.structs import replace

from kant.cluster import columns as c
from kant.cluster.quota_tree import QuotaTree, Shortage
from kant.cluster.shapes import Shape
from kant.insight.diagnosis import Diagnosis
from kant.insight.facts import of_model
from kant.insight.find_facts import competitors
from kant.insight.find_suggestions import admits, grown
from kant.insight.moment import freeze, thaw
from kant.insight.victims_too_large import UNLIMITED
from kant.model.decision import Booked, NoFit, OverQuota, Reserved, amount, sentence
from kant.model.event import NodeChanged
from kant.model.status import NodeStatus
from kant.model.units import GPU, HOUR, SECOND
from kant.queueing.preemption.candidate import Candidate
from kant.queueing.preemption.search import choose
from kant.queueing.preemption.shrinking import lost_work
from kant.queueing.rejection import never_starts
from kant.scheduler.cycle import Scheduler

MOST_TRIED = 8
"""Up to this number of preemptible jobs, all sets of them are tried."""

MOST_NODES = 8
"""Maximum number of nodes whose return is tried."""

PRICE_HOUR = GPU * (HOUR // SECOND)
"""The price of one GPU-hour in milli-GPU-seconds, the unit of prices."""


class Stopped(Struct, frozen=True):
    """A running job that is to stop, at a price in milli-GPU-seconds. `moves`: it restarts elsewhere at once."""

    job: str
    queue: str
    price: int
    moves: bool


class Raise(Struct, frozen=True):
    """The limit of `queue` on a resource of a GPU model ("": all) grows by `more`: `quota`, `borrowing` or `user`."""

    queue: str
    model: str
    resource: str
    more: int
    limit: str


class StartsNow(Struct, frozen=True):
    """One change: all of `stopped`, `quotas` and `nodes` together. The job `yields`, if any, gives up its reservation.

    `price` is that of all stopped jobs together, in milli-GPU-seconds. No set of jobs with the same effect costs less
    than `bound`.
    """

    stopped: tuple[Stopped, ...] = ()
    quotas: tuple[Raise, ...] = ()
    nodes: tuple[str, ...] = ()
    yields: str = ""
    price: int = 0
    bound: int = 0

    @property
    def is_cheapest(self) -> bool:
        """Whether it is proven that no other set of stopped jobs is cheaper."""
        return self.price == self.bound


class NoChange(Struct, frozen=True):
    """Why no change starts the job."""

    why: str


def starts_now(diagnosis: Diagnosis, row: int) -> tuple[StartsNow, ...] | NoChange:
    """Return the changes that start the waiting job: one of each kind, the cheapest first. Empty if none is needed.

    The job is assumed to be next in order.
    """
    never = never_starts(diagnosis.cycle, row) or diagnosis.gating_reason(row)
    if never is not None:
        return NoChange(sentence(never))
    missing, shape = diagnosis.missing(row)
    if missing is None:
        return ()
    found = []
    quotas = raised(diagnosis, row, shape)
    place = diagnosis.missing_place(row, shape)
    if isinstance(place, Reserved):
        yields = _yields(diagnosis, row, shape)
        if isinstance(missing, Reserved):
            return (StartsNow(yields=yields),) if yields else NoChange(sentence(missing))
        found += [StartsNow(quotas=quotas, yields=yields)] if quotas and yields else []
    with diagnosis.without_reservation_of(row):
        fits = not isinstance(place, NoFit)
        if quotas and place is None:
            found.append(StartsNow(quotas=quotas))
        enough = _by_stops(diagnosis, row, shape, partial(admits, diagnosis, row, shape))
        found += enough
        if quotas and not fits:  # no quota has to grow for jobs whose stops are enough
            known = {change.stopped for change in enough}
            beyond = [one for one in _by_stops(diagnosis, row, shape, None) if one.stopped not in known]
            found += [replace(change, quotas=quotas) for change in beyond]
        if not fits and (quotas or not isinstance(missing, OverQuota)):
            found += _by_nodes(diagnosis, row, shape, quotas)
    if not found:
        return NoChange(sentence(missing) if isinstance(missing, Booked) else _proof(diagnosis, row, shape))
    return tuple(sorted(set(found), key=lambda one: (one.price, len(one.stopped), len(one.quotas), one.nodes)))


def _yields(diagnosis: Diagnosis, row: int, shape: Shape) -> str:
    """Return the first job whose reservation alone prevents the placement of the waiting job; "" if there is none."""
    for other in sorted(diagnosis.state.reserved, key=lambda one: (diagnosis.state.reserved[one].start, one)):
        with diagnosis.without_reservation_of(other):
            if other != row and diagnosis.missing_place(row, shape) is None:
                return diagnosis.state.ids[other]
    return ""


# --- jobs that stop -----------------------------------------------------------------------------------------------


def _by_stops(diagnosis: Diagnosis, row: int, shape: Shape, allowed: partial[bool] | None) -> list[StartsNow]:
    """Return the cheapest set of preemptible running jobs whose stop lets the job start; empty if there is none."""
    candidates = _candidates(diagnosis, row, shape, allowed is not None)
    if not candidates:
        return []
    with diagnosis.rolled_back(), diagnosis.cycle.beside_bookings(row):
        found = choose(diagnosis.placer, shape, row, candidates, UNLIMITED, allowed, exact=MOST_TRIED)
        if found is None or not found[0]:
            return []
        victims, price = found[0], sum(who.cost for who in found[0])
        bound = price if len(candidates) <= MOST_TRIED else _bound(diagnosis, shape, candidates)
        moving = _moving(diagnosis, row, shape, victims, allowed is not None)
        names = list(diagnosis.state.queues)
        stopped = tuple(
            Stopped(
                diagnosis.state.ids[who.row],
                names[int(diagnosis.state.jobs[who.row, c.J_QUEUE])],
                who.cost,
                who.row in moving,
            )
            for who in victims
        )
    return [StartsNow(stopped, price=price, bound=min(bound, price))]


def _candidates(diagnosis: Diagnosis, row: int, shape: Shape, by_quota: bool) -> list[Candidate]:
    """Return the running jobs that may be stopped, the cheapest per GPU first. Base jobs with replicas are left out."""
    state, cycle = diagnosis.state, diagnosis.cycle
    reach = competitors(diagnosis, shape)
    if by_quota and diagnosis.uses_quotas and diagnosis.admission.shortage(row, shape) is not None:
        reach = sorted(state.running)
    given = {one: state.running[one] for one in reach}
    if state.books:
        from kant.insight.beside_bookings import open_part  # most clusters have no bookings

        given = {one: open_part(diagnosis, row, held) for one, held in given.items()}
    found = [
        Candidate(one, held, int(state.jobs[one, c.J_MILLI]), lost_work(cycle, one), ())
        for one, held in given.items()
        if state.jobs[one, c.J_PREEMPTIBLE] and not state.burst_replicas.get(one)
    ]
    return sorted(found, key=lambda who: (who.cost / max(who.milli, 1), who.row))


def _bound(diagnosis: Diagnosis, shape: Shape, candidates: Sequence[Candidate]) -> int:
    """Return a lower bound on the price of freeing the missing GPUs: the price if parts of jobs could be stopped."""
    state = diagnosis.state
    free = sum(
        int(capacity - allocated)
        for pool, (_, capacity, allocated, _) in enumerate(state.pools[:, :4].tolist())
        if shape.pool_bits >> pool & 1
    )
    missing, price = shape.gpu_milli - free, 0
    for who in candidates:  # the cheapest per GPU first
        if missing <= 0:
            break
        part = min(who.milli, missing)
        price += who.cost * part // max(who.milli, 1)
        missing -= part
    return price


def _moving(
    diagnosis: Diagnosis, row: int, shape: Shape, victims: Sequence[Candidate], by_quota: bool
) -> frozenset[int]:
    """Return the rows of the stopped `victims` that can restart elsewhere at once, beside `row` placed on the trial.

    With `by_quota` a victim needs free resources and quota. Without it the quotas are raised for `row`, so a victim
    keeps its quota and needs only free resources.
    """
    state, usage = diagnosis.state, diagnosis.state.quota_usage
    tree = diagnosis.admission.quota_tree.copy() if diagnosis.uses_quotas and usage.tree is not None else None
    if tree is not None and by_quota:
        for who in victims:
            charged, user, _, amounts = usage.charged[who.row]
            if usage.node_of[charged] >= 0:
                tree.refund(usage.node_of[charged], user, amounts)
        queue, user = state.jobs[row, [c.J_QUEUE, c.J_USER]].tolist()
        if usage.node_of[queue] >= 0:
            tree.charge(usage.node_of[queue], user, usage.amounts(shape))
    moving = set[int]()
    for who in victims:
        node = -1
        if tree is not None:
            charged, user, _, amounts = usage.charged[who.row]
            node = usage.node_of[charged]
            if diagnosis.admission.closed(who.row) is not None:
                continue
            if by_quota and node >= 0 and tree.shortage(node, user, amounts) is not None:
                continue
        with diagnosis.cycle.beside_bookings(who.row):
            again = diagnosis.placer.place(state.shape_of(who.row), who.row)
        if isinstance(again, NoFit):
            continue
        moving.add(who.row)
        if tree is not None and by_quota and node >= 0:
            tree.charge(node, user, amounts)
    return frozenset(moving)


# --- quotas, nodes, and the proof that nothing helps ----------------------------------------------------------------


def raised(diagnosis: Diagnosis, row: int, shape: Shape) -> tuple[Raise, ...]:
    """Return the quota limits that keep the job waiting, each with the missing amount; empty if there are none."""
    if not diagnosis.uses_quotas:
        return ()
    usage, found = diagnosis.state.quota_usage, list[Raise]()
    config = usage.queue_config
    queue, user = diagnosis.state.jobs[row, [c.J_QUEUE, c.J_USER]].tolist()
    node = usage.node_of[queue]
    short = diagnosis.admission.shortage(row, shape)
    while isinstance(short, OverQuota) and len(found) < 8:
        own = diagnosis.admission.quota_tree.queues[node].name
        name = short.queue if short.limit == "user" else own
        more = short.asked - short.available
        found.append(Raise(name, short.model, short.resource, more, short.limit))
        queues = tuple(grown(each, short, more) if each.name == name else each for each in config.queues)
        config = type(config)(queues, config.prices)
        tree = QuotaTree(config)
        for charged, who, _, amounts in usage.charged.values():
            if usage.node_of[charged] >= 0:
                tree.charge(usage.node_of[charged], who, amounts)
        left = tree.shortage(node, user, usage.amounts(shape))
        short = None if left is None else _over(tree, left)
    return tuple(found) if short is None else ()


def _over(tree: QuotaTree, short: Shortage) -> OverQuota:
    model, resource = short.key
    return OverQuota(tree.queues[short.queue].name, model, resource, short.asked, short.available, short.kind)


def _by_nodes(diagnosis: Diagnosis, row: int, shape: Shape, quotas: tuple[Raise, ...]) -> list[StartsNow]:
    """Return the change for the first out-of-service node whose return alone gives the job a place."""
    state = diagnosis.state
    status = state.table[:, c.STATUS].tolist()
    out = [node for node in sorted(state.node_index.values()) if status[node] != NodeStatus.IN_SERVICE]
    open_to = state.shapes.admitting(shape, state.table[:, c.POOL])
    out = [node for node in out if open_to[node]][:MOST_NODES]
    if not out:
        return []
    frozen = freeze(state)
    for node in out:
        twin = thaw(frozen)
        name = twin.nodes[node].name
        twin.apply(NodeChanged(diagnosis.now, name, NodeStatus.IN_SERVICE))
        other = Diagnosis(Scheduler(twin, diagnosis.profile, 0), diagnosis.now)
        if other.missing_place(row, twin.shapes.shapes[shape.index]) is None:
            return [StartsNow(quotas=quotas, nodes=(name,))]
    return []


def _proof(diagnosis: Diagnosis, row: int, shape: Shape) -> str:
    """Return a sentence that says why no change starts the job."""
    stay = [one for one in competitors(diagnosis, shape) if not diagnosis.state.jobs[one, c.J_PREEMPTIBLE]]
    jobs = f"{len(stay)} running job{'s' * (len(stay) != 1)} that may not be stopped"
    left = f"{jobs} hold{'s' * (len(stay) == 1)} what it needs" if stay else "quotas and places leave it none"
    return f"proven: even if all preemptible jobs stop, it has no place now: {left}"


def price_text(price: int) -> str:
    """Return a price as text for people."""
    return f"{price / PRICE_HOUR:.3g} GPU-hours"


def raise_sentence(one: Raise) -> str:
    """Return an increase of a quota as text for people, such as `the quota of queue a is raised by 2 GPUs`."""
    what = "the limit of its user" if one.limit == "user" else "the quota"
    return f"{what} of queue {one.queue} is raised by {amount(one.more, one.resource)}{of_model(one.model)}"


def change_sentence(change: StartsNow) -> str:
    """Return a change as text for people, with its price and whether a cheaper change is possible."""
    parts = []
    for moves, verb in ((True, "move"), (False, "stop")):
        jobs = [one for one in change.stopped if one.moves is moves]
        if jobs:
            names = ", ".join(one.job for one in jobs[:5]) + (f" and {len(jobs) - 5:,} more" if jobs[5:] else "")
            parts.append(f"job{'s' * (len(jobs) > 1)} {names} {verb}{'s' * (len(jobs) == 1)}")
    parts += map(raise_sentence, change.quotas)
    parts += [f"node {name} returns" for name in change.nodes]
    parts += [f"job {change.yields} gives up its reservation"] if change.yields else []
    text = " and ".join(parts)
    if not change.stopped:
        return text
    proven = "proven the cheapest" if change.is_cheapest else f"no set loses less than {price_text(change.bound)}"
    return f"{text}: {price_text(change.price)} lost ({proven})"
