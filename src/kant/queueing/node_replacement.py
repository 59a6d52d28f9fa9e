"""Node replacement: a gang that lost a node gets another node before other jobs may take the devices that it held.

The driver evicts the whole gang, so it is never partially bound. The gang restarts from its checkpoint, in one step, on
its remaining devices and on those that replace the lost ones. If that is not possible, the gang holds nothing and waits
at its position in the queue like any other job.

Source: replacement of a failed node as in Kueue's topology-aware scheduling (KEP-2724). The single start without a
partial state, and the time limit of the claim, are ours.
"""

from __future__ import annotations

from kant.cluster.columns import J_BASE, J_SINCE
from kant.model.placement import PODS, Allocation
from kant.model.units import SECOND
from kant.queueing.cycle_plan import CyclePlan
from kant.queueing.ports import ReplacedGang


def replace_lost_nodes(cycle: CyclePlan, in_place: bool = True) -> None:
    """Restart the gangs that have just lost a node, in the order of the losses, and those evicted from draining nodes.

    An evicted gang that cannot stay near its nodes (without `in_place`: any evicted gang) moves like a victim of
    preemption if it fits elsewhere. Burst replicas come last: they restart only if their base job does.
    """
    state, base = cycle.state, cycle.state.jobs[:, J_BASE]
    window = cycle.pending.requeue.in_place_s if in_place else -1
    _move_drained(cycle, [row for row in cycle.drained if base.item(row) < 0], window)
    if window >= 0:
        _replace_broken(cycle, sorted(state.health.broken, key=lambda row: base.item(row) >= 0), window)
    _move_drained(cycle, [row for row in cycle.drained if base.item(row) >= 0], window)


def _move_drained(cycle: CyclePlan, rows: list[int], window: int) -> None:
    """Restart the jobs that the plan evicts, near where they ran if possible; the others move at the plan's end."""
    for row in rows:
        made = _replaced(cycle, row, cycle.state.running[row]) if window >= 0 else None
        if made is not None:
            cycle.move(row, made.allocation, made.kept)
        else:
            cycle.victims.append(row)


def _replace_broken(cycle: CyclePlan, rows: list[int], window: int) -> None:
    """Restart gangs that have lost a node within the last `window` seconds."""
    state, waiting = cycle.state, cycle.pending
    for row in rows:
        late = cycle.now - int(state.jobs[row, J_SINCE]) > window * SECOND
        if late or row in waiting.leaving or row in state.reserved:  # a reservation starts the job instead
            continue
        made = _replaced(cycle, row, state.health.broken[row])
        if made is not None:
            cycle.start(row, made.allocation, made.kept)
            waiting.leave(row)


def complete_bound(cycle: CyclePlan) -> None:
    """Start the partially bound gangs: the bound pods stay, and the missing pods are placed near them.

    No other gang gets what one of them holds, whether it is completed or not.
    """
    trial, broken = cycle.placer.trial, cycle.state.health.broken
    taken: set[int] = set()
    for row, held in broken.items():
        if trial.is_free(held):
            trial.restore(held)
            taken.add(row)
    for row, held in broken.items():
        if row in taken:
            trial.evict(held)
        made = _replaced(cycle, row, held, bound=True)
        if made is not None and made.kept == int(held[:, PODS].sum()):
            cycle.start(row, made.allocation, made.kept)
            continue
        if made is not None:
            trial.evict(made.allocation)
        if row in taken:
            trial.restore(held)


def _replaced(cycle: CyclePlan, row: int, held: Allocation, bound: bool = False) -> ReplacedGang | None:
    """Place a gang that still has some pods of `held`: these stay, and the others go near them, within its quota.

    With `bound` they stay even on nodes that take no new pods. The placement is clear of all reservations.
    """
    trial, admission, forecast = cycle.placer.trial, cycle.admission, cycle.forecast
    if admission.closed(row) is not None:
        return None
    if cycle.state.books and not cycle.booked.has_begun(row):
        return None
    blocked = closed = None
    if forecast is not None and not cycle.state.shape_of(row).ask.reservation:
        blocked = cycle.reserved_space(forecast.estimates.end_if_started(cycle.state, row, cycle.now))
        trial.restore(blocked)
    if cycle.state.books:
        closed = cycle.booked.pieces(row, trial.table)
        trial.restore(closed)
    made = None
    for option in admission.options(row, cycle.state.shape_of(row)):
        if made is None and admission.shortage(row, option) is None:
            made = cycle.placer.replace_nodes(option, held, cycle.bad_nodes(row), row, bound)
    if closed is not None:
        trial.evict(closed)
    if blocked is not None:
        trial.evict(blocked)
    return made
