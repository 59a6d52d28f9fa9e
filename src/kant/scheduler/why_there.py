"""Why is this job there? The cycle that started it is run again before a witness, and what it chose from is told."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kant.cluster import columns as c
from kant.cluster.columns import Table
from kant.cluster.elastic import pods_by_group
from kant.cluster.shapes import Shape
from kant.cluster.snapshot import Snapshot, Trial
from kant.cluster.state import ClusterState
from kant.model.decision import NeverFits, NoFit, Preempt, Start
from kant.model.job import LEVELS
from kant.model.placement import NODE, Allocation
from kant.placement.account import Account, account
from kant.placement.mending import Mended
from kant.placement.placer import Placer
from kant.placement.spans import COLUMNS, T_LEAVES, T_NODES, Slowdowns
from kant.placement.timeline import Timeline
from kant.placement.wait_or_place import Choice
from kant.queueing.turn import Turn
from kant.scheduler.choice import choice
from kant.scheduler.cycle import Scheduler, run_cycle
from kant.scheduler.eta import StartPlan
from kant.scheduler.inquiry import Inquiry


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """What a place means for its job and for those to come.

    `level` is the lowest of which one domain has the gang (`cluster`: none has); `slowdown` is in thousandths of its
    run time at its best place. `broken_nodes` were wholly free and now are partly taken, `filled_nodes` have no GPU
    free any more, `broken_leaves` had only wholly free nodes and are not wholly taken. `partly_before` and
    `partly_after` count the nodes of the cluster of which a part is taken.
    """

    nodes: int
    fewest_nodes: int
    leaves: int
    fewest_leaves: int
    level: str
    slowdown: int
    broken_nodes: int
    filled_nodes: int
    broken_leaves: int
    partly_before: int
    partly_after: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WhyThere:
    """Why `job` got `place` in the cycle at `now`.

    With `agrees` the cycle decided the same when it was run again. `how` says who chose: `policy`, of which there is an
    `account`; `wish`, where the policy spreads or the job names segments, an affinity group or the like (pods then go
    by rules that are not accounted for); or `plan` (the search for a start in time proved the place, and the policy
    found none). `stopped` had to make room. `choice` is what a gang could have had by waiting. `within` is the level of
    the fabric that the job asks for (empty: none), and `required` whether it insists.
    """

    job: str
    now: int
    place: Allocation
    agrees: bool
    how: str
    account: Account | None
    effect: Effect
    choice: Choice | None
    stopped: tuple[str, ...]
    within: str
    required: bool


class Witness:
    """A placer that remembers the last place that a job was given, and the nodes as they were before."""

    def __init__(self, placer: Placer, row: int) -> None:
        self.placer = placer
        self.trial: Trial = placer.trial
        self.row = row
        self.seen: tuple[Table, Shape, Allocation] | None = None

    @property
    def timeline(self) -> Timeline:
        return self.placer.timeline

    def place(self, shape: Shape, salt: int = 0) -> Allocation | NoFit:
        before = self.trial.table.copy() if salt == self.row else None
        result = self.placer.place(shape, salt)
        if before is not None and not isinstance(result, NoFit):
            self.seen = before, shape, result
        return result

    def mend(self, shape: Shape, held: Allocation, bad: tuple[int, ...], salt: int, bound: bool) -> Mended | None:
        return self.placer.mend(shape, held, bad, salt, bound)

    def extend(self, shape: Shape, held: Allocation, salt: int = 0) -> Allocation | NoFit:
        return self.placer.extend(shape, held, salt)

    def never_fits(self, shape: Shape) -> NeverFits | None:
        return self.placer.never_fits(shape)


def why_there(scheduler: Scheduler, job: str, now: int, place: Allocation) -> WhyThere:
    """Why the cycle at `now`, before which `scheduler` stands, started `job` on `place`.

    The cycle is run: the scheduler is of no use for anything else afterwards.
    """
    state, profile = scheduler.state, scheduler.profile
    row = state.row_of(job)
    shape = state.shape_of(row)
    slowdowns = Slowdowns(state)
    waits = row in state.pending
    either = choice(StartPlan(Inquiry(scheduler, now), profile.estimates), slowdowns, row) if waits else None

    scheduler.catch_up(now)
    witness = Witness(scheduler.placer, row)
    turn = Turn(scheduler.snapshot, profile.order, scheduler.waiting, witness, profile.preemption, scheduler.forecast)
    run_cycle(turn, profile, scheduler.limits, scheduler.growth)
    starts = {decision.job: decision for decision in turn.plan.decisions if isinstance(decision, Start)}
    agrees = job in starts and np.array_equal(starts[job].allocation, place)
    chosen = witness.seen if witness.seen is not None and np.array_equal(witness.seen[2], place) else None
    before = chosen[0] if chosen is not None else state.table
    policy, seed = scheduler.placer.policy_of(shape), scheduler.placer.seed
    wishes = policy.spreads or bool(shape.cuts) or shape.picky
    return WhyThere(
        job=job, now=now, place=place, agrees=agrees, how="plan" if chosen is None else "wish" if wishes else "policy",
        account=account(state, before, policy, seed, chosen[1], row, place)
        if chosen is not None and agrees and not wishes else None,
        effect=effect(slowdowns, before, _at_its_size(state, shape, place), place), choice=either,
        within=LEVELS[shape.level] if shape.level >= 0 else "", required=shape.required,
        stopped=tuple(d.job for d in turn.plan.decisions if isinstance(d, Preempt) and d.by == job) if agrees else (),
    )  # fmt: skip


def _at_its_size(state: ClusterState, shape: Shape, place: Allocation) -> Shape:
    """The shape of what a gang got: an elastic one may have got more than its floor."""
    counts = pods_by_group(shape, place) if shape.ceiling else None
    return shape if counts is None else state.shapes.sized(shape, counts)


def effect(slowdowns: Slowdowns, before: Table, shape: Shape, place: Allocation) -> Effect:
    """What `place` means, on the nodes as they were `before`."""
    state: ClusterState = slowdowns.state
    spans, best = slowdowns.spans(place), slowdowns.best(shape.index)
    nodes = np.unique(place[:, NODE])
    snapshot = Snapshot(state)
    snapshot.table = before.copy()
    Trial(snapshot).restore(place)
    later = snapshot.table
    gpus = before[:, c.GPUS] * 1000
    whole, touched = (before[:, c.FREE] == gpus) & (gpus > 0), before[:, c.FREE] != later[:, c.FREE]
    filled = touched & (later[:, c.FREE] == 0)
    leaf = before[:, c.LEAF]
    was_broken, has_gpus = np.zeros((2, leaf.max(initial=-1) + 1), dtype=np.bool_)
    was_broken[leaf[(gpus > 0) & ~whole]] = True
    has_gpus[leaf[later[:, c.FREE] > 0]] = True
    of_gang = np.unique(leaf[touched])
    one = [nodes.size == 1, *(len(np.unique(before[nodes, column])) == 1 for column in COLUMNS)]
    return Effect(
        nodes=int(spans[T_NODES]), fewest_nodes=int(best[T_NODES]), leaves=int(spans[T_LEAVES]),
        fewest_leaves=int(best[T_LEAVES]), level=LEVELS[one.index(True)] if any(one) else "cluster",
        slowdown=slowdowns.of(shape.index, spans), broken_nodes=int((whole & touched & ~filled).sum()),
        filled_nodes=int(filled.sum()), broken_leaves=int((~was_broken[of_gang] & has_gpus[of_gang]).sum()),
        partly_before=_partly(before, gpus), partly_after=_partly(later, gpus),
    )  # fmt: skip


def _partly(table: Table, gpus: Table) -> int:
    return int(((table[:, c.FREE] > 0) & (table[:, c.FREE] < gpus)).sum())
