"""Why a job runs where it does: the cycle that started it is run again with a placer that records the choice."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kant.cluster import columns as c
from kant.cluster.columns import Table
from kant.cluster.elastic import pods_by_group
from kant.cluster.shapes import Shape
from kant.cluster.snapshot import Snapshot, Trial
from kant.cluster.state import ClusterState
from kant.insight.diagnosis import Diagnosis
from kant.insight.domain_choice import domain_choice
from kant.insight.start_plan import StartPlan
from kant.model.decision import NeverFits, NoFit, Preempt, Start
from kant.model.job import LEVELS
from kant.model.placement import COUNTED, NODE, Allocation
from kant.placement.calendar.calendar import Calendar
from kant.placement.cost.slowdown import COLUMNS, T_LEAVES, T_NODES, Slowdowns
from kant.placement.cost.wait_or_place import Choice
from kant.placement.draft import Draft
from kant.placement.explain import PlacementExplanation
from kant.placement.explain_preferences import explain_beside_preferences
from kant.placement.node_replacement import ReplacedGang
from kant.placement.placer import Placer
from kant.scheduler.cycle import Scheduler, run_cycle


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementEffect:
    """What a placement means for its job and for later jobs.

    `level` is the narrowest topology level at which one domain holds the gang (`cluster`: none does). `slowdown` is the
    run time in thousandths of that in the best placement. `broken_nodes` counts nodes that were entirely free and are
    partly taken now. `filled_nodes` counts nodes left without a free GPU. `broken_leaves` counts leaves of only free
    nodes that are partly taken now. `partly_before` and `partly_after` count the partly taken nodes of the cluster.
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
class StartExplanation:
    """Why `job` got `place` in the cycle at `now`.

    `agrees`: the cycle decides the same when run again. `how` names the mechanism that chose the place: `policy`
    (explained by `account`); `preferences` (the policy spreads, or the job names segments, affinity or other rules that
    are not explained); `clear` (of several places equal for the policy, one without bookings); `plan` (the policy found
    no place, but the search for the earliest start did); or `proposed` (by a solver, according to the journal). The
    jobs in `stopped` were preempted for it. `choice` says what the gang would gain by waiting. `within` is the topology
    level that the job requests ("": none); `required`: it is a hard requirement.
    """

    job: str
    now: int
    place: Allocation
    agrees: bool
    how: str
    account: PlacementExplanation | None
    effect: PlacementEffect
    choice: Choice | None
    stopped: tuple[str, ...]
    within: str
    required: bool


class TracingPlacer:
    """A placer that records the last placement of the job in `row`, and the node table before it."""

    def __init__(self, placer: Placer, row: int) -> None:
        self.placer = placer
        self.trial: Trial = placer.trial
        self.row = row
        self.seen: tuple[Table, Shape, Allocation] | None = None
        self.moved = False  # whether the job moved to an equal place without bookings

    @property
    def calendar(self) -> Calendar:
        return self.placer.calendar

    def place(self, shape: Shape, job_row: int = 0) -> Allocation | NoFit:
        before = self.trial.table.copy() if job_row == self.row else None
        result = self.placer.place(shape, job_row)
        if before is not None and not isinstance(result, NoFit):
            self.seen = before, shape, result
        return result

    def clear_of_bookings(
        self, shape: Shape, allocation: Allocation, booked: Mapping[int, int], without: Collection[int]
    ) -> Allocation:
        clear = self.placer.clear_of_bookings(shape, allocation, booked, without)
        if self.seen is not None and self.seen[2] is allocation:
            self.moved = not np.array_equal(clear, allocation)
            self.seen = *self.seen[:2], clear
        return clear

    def replace_nodes(
        self, shape: Shape, held: Allocation, bad: tuple[int, ...], job_row: int, bound: bool
    ) -> ReplacedGang | None:
        return self.placer.replace_nodes(shape, held, bad, job_row, bound)

    def extend(self, shape: Shape, held: Allocation, job_row: int = 0) -> Allocation | NoFit:
        return self.placer.extend(shape, held, job_row)

    def never_fits(self, shape: Shape) -> NeverFits | None:
        return self.placer.never_fits(shape)

    def missing(self, shape: Shape, job_row: int = 0) -> int:
        return self.placer.missing(shape, job_row)

    def counted_domains(self, shape: Shape) -> Table | None:
        return self.placer.counted_domains(shape)

    def nodes_of(self, shape: Shape) -> NDArray[np.bool_]:
        return self.placer.nodes_of(shape)

    def fits_without(self, shape: Shape, rows: Table) -> bool | None:
        return self.placer.fits_without(shape, rows)

    def may_fit(self, shape: Shape) -> bool:
        return self.placer.may_fit(shape)

    def draft(self) -> Draft:
        return self.placer.draft()


def explain_start(scheduler: Scheduler, job: str, now: int, place: Allocation) -> StartExplanation:
    """Explain why the cycle at `now` started `job` on `place`. `scheduler` has the state just before that cycle.

    The cycle is run, so the scheduler cannot be used for anything else afterwards.
    """
    state, profile = scheduler.state, scheduler.profile
    row = state.row_of(job)
    shape = state.shape_of(row)
    slowdowns = Slowdowns(state)
    waits = row in state.pending
    either = domain_choice(StartPlan(Diagnosis(scheduler, now), profile.estimates), slowdowns, row) if waits else None

    cycle = scheduler.begin(now)
    cycle.placer = tracing = TracingPlacer(scheduler.placer, row)
    run_cycle(cycle, profile, scheduler.limits, scheduler.growth)
    starts = {decision.job: decision for decision in cycle.plan.decisions if isinstance(decision, Start)}
    agrees = job in starts and _is_same(starts[job].allocation, place)
    chosen = tracing.seen if tracing.seen is not None and _is_same(tracing.seen[2], place) else None
    before = chosen[0] if chosen is not None else state.table
    policy, seed = scheduler.placer.policy_of(shape), scheduler.placer.seed
    asks = policy.spreads or bool(shape.cuts) or shape.has_affinity
    how = "plan" if chosen is None else "clear" if tracing.moved else "preferences" if asks else "policy"
    return StartExplanation(
        job=job, now=now, place=place, agrees=agrees, how=how,
        account=explain_beside_preferences(
            state, before, policy, seed, chosen[1], row, place, profile.preferences
        )
        if chosen is not None and agrees and how == "policy" else None,
        effect=effect(slowdowns, before, _at_its_size(state, shape, place), place), choice=either,
        within=LEVELS[shape.level] if shape.level >= 0 else "", required=shape.required,
        stopped=tuple(d.job for d in cycle.plan.decisions if isinstance(d, Preempt) and d.by == job) if agrees else (),
    )  # fmt: skip


def _is_same(place: Allocation, said: Allocation) -> bool:
    """Return whether two allocations are equal in the columns before COUNTED. Journals have no counts of pods."""
    return np.array_equal(place[:, :COUNTED], said[:, :COUNTED])


def _at_its_size(state: ClusterState, shape: Shape, place: Allocation) -> Shape:
    """Return the job's shape with the number of pods that it got: an elastic gang may get more than its minimum."""
    counts = pods_by_group(shape, place) if shape.ceiling else None
    return shape if counts is None else state.shapes.sized(shape, counts)


def effect(slowdowns: Slowdowns, before: Table, shape: Shape, place: Allocation) -> PlacementEffect:
    """Return the effect of `place`, given the nodes as they were `before`."""
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
    return PlacementEffect(
        nodes=int(spans[T_NODES]), fewest_nodes=int(best[T_NODES]), leaves=int(spans[T_LEAVES]),
        fewest_leaves=int(best[T_LEAVES]), level=LEVELS[one.index(True)] if any(one) else "cluster",
        slowdown=slowdowns.of(shape.index, spans), broken_nodes=int((whole & touched & ~filled).sum()),
        filled_nodes=int(filled.sum()), broken_leaves=int((~was_broken[of_gang] & has_gpus[of_gang]).sum()),
        partly_before=_partly(before, gpus), partly_after=_partly(later, gpus),
    )  # fmt: skip


def _partly(table: Table, gpus: Table) -> int:
    return int(((table[:, c.FREE] > 0) & (table[:, c.FREE] < gpus)).sum())
