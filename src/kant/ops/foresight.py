"""Foresight: the effect of orders, from two simulations that continue one past: with the orders and without."""

from __future__ import annotations

from collections.abc import Mapping

from kant.live.sentences import public_id
from kant.metrics.result import RunResult
from kant.model.errors import InputError
from kant.model.status import JobStatus
from kant.ops.on_run import HeldJob, RunOrders
from kant.ops.orders import Order
from kant.ops.world import OrderFutures
from kant.sim.fork import Fork
from kant.sim.past import Past
from kant.sim.whatif import what_if
from kant.sim.whatif_changes import Changes


def foresee(past: Past, orders: tuple[Order, ...], held: Mapping[str, HeldJob], user: str = "") -> OrderFutures:
    """Try the orders on a fork of `past`, without later arrivals. `complaint` says why an order is infeasible."""
    found: list[RunOrders] = []

    def act(second: Fork) -> Mapping[str, str]:
        own = RunOrders(second.run, dict(held))
        found.append(own)
        for number, order in enumerate(orders, start=1):
            try:
                own.carry_out(order, past.now, user)
            except InputError as error:
                raise InputError(f"order {number}, {error.where}", error.expected, error.got) from None
        return own.renamed

    try:
        both = what_if(past, Changes(), arrivals=False, act=act)
    except InputError as error:
        return OrderFutures(complaint=str(error))
    assert both is not None, "nobody stops it"
    before, after = _stops(both.before), _stops(both.after)
    stopped = tuple(sorted(job for job, count in after.items() if count > before.get(job, 0)))
    starts = _starts_at(both.after, past.now) - _starts_at(both.before, past.now)
    rejected = _rejected(both.after) - _rejected(both.before)
    return OrderFutures(
        answer=both.answer, stopped=stopped, starts=tuple(sorted(starts)), rejected=tuple(sorted(rejected)),
        moves=found[0].moves,
    )  # fmt: skip


def _stops(future: RunResult) -> dict[str, int]:
    """Return how often each job is stopped, by public id: summed over all core ids of the job."""
    counts: dict[str, int] = {}
    for name, times in zip(future.jobs.id, future.jobs.preemptions.tolist(), strict=True):
        counts[public_id(name)] = counts.get(public_id(name), 0) + times
    return counts


def _starts_at(future: RunResult, now: int) -> set[str]:
    starts = future.jobs.first_start.tolist()
    return {public_id(name) for name, start in zip(future.jobs.id, starts, strict=True) if start == now}


def _rejected(future: RunResult) -> set[str]:
    status = future.jobs.status.tolist()
    return {public_id(name) for name, own in zip(future.jobs.id, status, strict=True) if own == JobStatus.REJECTED}
