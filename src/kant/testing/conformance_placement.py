"""The rules of every placement policy (see `conformance`)."""

from __future__ import annotations

import numpy as np

from kant.cluster.shapes import Shape
from kant.cluster.snapshot import Snapshot
from kant.cluster.state import ClusterState
from kant.model.decision import NoFit
from kant.model.event import DevicesChanged, JobFinished, JobStarted, NodeChanged, TypicalPodsGiven
from kant.model.job import Job
from kant.model.node import ClusterSpec
from kant.model.placement import Allocation
from kant.model.status import NodeStatus
from kant.placement.fits import capacity
from kant.placement.placer import Placer
from kant.placement.policy import NodePolicy
from kant.testing.builders import submitted
from kant.testing.conformance import say
from kant.testing.drawn import Mould, draw_cluster, draw_job, generator
from kant.testing.naive import pods_that_fit_anywhere, pods_that_fit_as_asked, too_close, wrong_with

STEPS = 40
"""The number of jobs offered in one round."""


def check_placement(policy: NodePolicy, rounds: int, seed: int, mould: Mould | None = None) -> None:
    """Check the policy on random clusters that fill and empty: a long-lived placer must decide as new ones do."""
    for number in range(rounds):
        PlacementRound(
            policy, seed + number, mould or Mould(levels=True, islands=number % 4 == 3, slices=number % 4 == 3)
        ).play()


class PlacementRound:
    """One random cluster, and one placer that follows it."""

    def __init__(self, policy: NodePolicy, seed: int, mould: Mould) -> None:
        self.policy = policy
        self.seed = seed
        self.mould = mould
        self.draw = generator(seed)
        self.spec: ClusterSpec = draw_cluster(self.draw, blocks=mould.islands)
        self.state = ClusterState(self.spec)
        self.state.apply(TypicalPodsGiven(0, draw_typical_pods(self.draw, self.state)))
        self.snapshot = Snapshot(self.state)
        self.placer = Placer(self.snapshot, policy, seed)
        self.where = f"{type(policy).__name__}, seed {seed}"

    def play(self) -> None:
        for step in range(STEPS):
            job = draw_job(self.draw, f"j{step}", self.mould, step)
            self.state.apply(submitted(job))
            self._offer(job, step)
            self._something_happens(step)
            self.state.check()

    def _offer(self, job: Job, now: int) -> None:
        """Place one job with the persistent and a fresh placer, compare, and usually start it."""
        state, snapshot, where = self.state, self.snapshot, f"{self.where}, job {job}"
        row = state.rows[job.id]
        snapshot.refresh(now)
        say(bool(np.array_equal(snapshot.table, state.table)), f"{where}: a refreshed snapshot must equal the state")
        trial = self.placer.trial
        trial.begin()
        for other in self.draw.integers(0, row + 1, 3):  # trials that are undone must leave no trace
            mark, before = trial.checkpoint(), snapshot.table.copy()
            self.placer.place(state.shape_of(int(other)), int(other))
            trial.rollback(mark)
            say(bool(np.array_equal(before, snapshot.table)), f"{where}: undoing a placement must restore what it took")
        shape = state.shape_of(row)
        result = self.placer.place(shape, row)
        fresh = Placer(Snapshot(state), self.policy, self.seed).place(shape, row)
        self._terms_tell(shape)
        say(same(result, fresh), f"{where}: a long-lived placer must decide as a new one: {result} and {fresh}")
        if isinstance(result, NoFit):
            say(bool(np.array_equal(snapshot.table, state.table)), f"{where}: a gang that does not fit took something")
            self._verdict_is_true(job, result)
            return
        wrong = wrong_with(self.spec, state.table, job, result)
        wrong = wrong or too_close(self.spec, job, result, self._affinity_members(job))
        say(not wrong, f"{where}: a gang must get exactly what it requests, and only free devices: {wrong}")
        again = taken(state, result)
        say(bool(np.array_equal(again, snapshot.table)), f"{where}: what is placed must no longer be free in the trial")
        if len(job.groups) == 1:
            group = job.groups[0]
            fits = pods_that_fit_anywhere(self.spec, state.table, job, group.demand)
            say(fits >= group.count, f"{where}: placed although only {fits} pods fit")
        if self.draw.integers(4):
            state.apply(JobStarted(now, job.id, result))

    def _terms_tell(self, shape: Shape) -> None:
        """Check that the score of a node follows from its terms (for `kant explain`)."""
        table, demands, typical = self.state.table, self.state.shapes.demands, self.state.typical_pods
        for group, (pods, d) in enumerate(shape.parts):
            policy, _ = self.policy.policy_for(group, len(shape.parts), pods)
            params = policy.numbers(typical, self.state.empty)
            scores: dict[tuple[tuple[str, float], ...], int] = {}
            for node in range(len(table) if not policy.fresh else 0):
                fits = capacity(table, node, demands, d) > 0
                terms = tuple(policy.terms(table, node, demands, d, typical, params).items()) if fits else ()
                if terms:
                    score = policy.score(table, node, demands, d, typical, params, 0)
                    message = f"{self.where}: nodes with the terms {terms} must have one score"
                    say(scores.setdefault(terms, score) == score, message)

    def _verdict_is_true(self, job: Job, verdict: NoFit) -> None:
        say(0 <= verdict.fits < verdict.pods, f"{self.where}, job {job}: {verdict} contradicts itself: it fits")
        say(verdict.pods == job.groups[verdict.group].count, f"{self.where}, job {job}: {verdict} must name its group")
        if len(job.groups) == 1:
            fits = pods_that_fit_as_asked(self.spec, self.state.table, job, self._affinity_members(job))
            say(verdict.fits == fits, f"{self.where}, job {job}: {verdict}, but {fits} pods fit")

    def _affinity_members(self, job: Job) -> list[Allocation]:
        """Return the allocations of the running jobs in the affinity group of `job`."""
        state, group = self.state, job.affinity_group
        return [held for row, held in state.running.items() if group and state.live[row].affinity_group == group]

    def _something_happens(self, now: int) -> None:
        state, draw = self.state, self.draw
        if state.running and draw.integers(3) == 0:
            row = list(state.running)[int(draw.integers(len(state.running)))]
            state.apply(JobFinished(now, state.ids[row]))
        if draw.integers(6) == 0:
            node = int(draw.integers(len(self.spec.nodes)))
            name, gpus = self.spec.nodes[node].name, self.spec.nodes[node].gpus
            status = NodeStatus(int(draw.integers(NodeStatus.RETIRED.value)))
            lost = int(draw.integers(1 << gpus)) if draw.integers(2) else 0
            for row in state.jobs_on(node, -1 if status == NodeStatus.FAILED else lost):
                state.apply(JobFinished(now, state.ids[row]))
            state.apply(DevicesChanged(now, name, lost))
            state.apply(NodeChanged(now, name, status))


def draw_typical_pods(draw: np.random.Generator, state: ClusterState) -> np.ndarray:
    """Return random typical pods as rows: milli-cores, GPUs, thousandths of each GPU, pools as bits, weight."""
    pools = (1 << len(state.pools)) - 1
    rows = [(500, 0, 0, pools, 3), (0, 8, 1000, pools, 1)]
    for _ in range(int(draw.integers(0, 6))):
        share = int(draw.choice([100, 500, 1000]))
        gpus = int(draw.choice([1, 2, 4])) if share == 1000 else 1
        rows.append((int(draw.choice([0, 2000])), gpus, share, pools, int(draw.integers(1, 20))))
    return np.array(rows, dtype=np.int64)


def same(a: Allocation | NoFit, b: Allocation | NoFit) -> bool:
    """Return whether two placers gave the same answer."""
    if isinstance(a, NoFit) or isinstance(b, NoFit):
        return type(a) is type(b) and bool(a == b)
    return bool(np.array_equal(a, b))


def taken(state: ClusterState, allocation: Allocation) -> np.ndarray:
    """Return the node table after `allocation` is taken."""
    other = Snapshot(state)
    Placer(other, _ANY, 0).trial.restore(allocation)
    return other.table


_ANY = NodePolicy()
