"""The rules of every discipline (see `conformance`)."""

from __future__ import annotations

import numpy as np

from kant.cluster import columns as c
from kant.model.decision import Demote, Expire, Hold, Plan, Preempt, Reject, Release, Reorder, Reserve, Route, Start
from kant.model.job import Job
from kant.model.status import JobStatus
from kant.queueing.discipline import Discipline
from kant.testing.builders import make_profile
from kant.testing.conformance import say
from kant.testing.drawn import Mould, draw_arrivals, draw_cluster, generator
from kant.testing.harness import Harness, at_random, never
from kant.testing.naive import pods_that_fit_anywhere, wrong_with

DONE = (JobStatus.FINISHED, JobStatus.REJECTED, JobStatus.CANCELLED)


def check_discipline(policy: Discipline, rounds: int, seed: int) -> None:
    """Run random jobs to the end under the discipline, with drivers that refuse some starts and drivers that do not."""
    for number in range(rounds):
        for order in ("fifo", "srtf", "las"):
            for refuse in (False, True):
                DisciplineRound(policy, order, refuse, seed + number).play()


class DisciplineRound:
    """One run, whose plans are checked before and after they are carried out."""

    def __init__(self, policy: Discipline, order: str, refuse: bool, seed: int) -> None:
        self.draw = generator(seed)
        self.order = order
        self.refuses = refuse
        profile = make_profile(order, policy, "best-fit")
        self.harness = Harness(
            draw_cluster(self.draw, 6),
            profile,
            seed=seed,
            refuse=at_random(0.2, seed) if refuse else never,
        )
        self.harness.before_carrying_out = self.before
        self.harness.after_carrying_out = self.after
        plain = type(policy).run is Discipline.run
        self.strict = plain and policy.bucket(0, 1) == policy.bucket(0, 2)
        self.all_tried = plain and policy.bucket(0, 1) != policy.bucket(0, 2)
        self.where = f"{type(policy).__name__} with {order}, seed {seed}"

    def play(self) -> None:
        harness = self.harness
        # Only gangs of one group: for others the naive count cannot tell whether they fit.
        coming = draw_arrivals(self.draw, 30, Mould(groups=1), gap=120, estimates="right")
        harness.run(coming)
        state = harness.state
        say(len(state.ids) == len(coming), f"{self.where}: every job that arrived must be known")
        stuck = [job for job in state.rows if harness.status(job) not in DONE]
        say(not stuck, f"{self.where}: a run must end when every job has left, but {stuck} did not")

    def before(self, plan: Plan) -> None:
        """Check that the plan can be carried out in its order, without repeated decisions."""
        state, where = self.harness.state, f"{self.where}, at {plan.time}"
        said: dict[str, str] = {}
        table = state.table.copy()
        for decision in plan.decisions:
            if isinstance(decision, Route):
                continue
            if isinstance(decision, Reorder):
                live = {state.ids[row] for row in state.live}
                say(set(decision.jobs) <= live, f"{where}: only live jobs may be put in order")
                continue
            row, earlier = state.row_of(decision.job), said.get(decision.job)
            match decision:
                case Demote():
                    say(row in state.running, f"{where}: only running jobs may be demoted")
                    continue
                case Reserve() | Release():
                    say(row in state.pending, f"{where}: only a waiting job may get a reservation")
                    continue
                case Preempt() | Expire():
                    say(row in state.running and earlier is None, f"{where}: {decision} must stop a running job, once")
                    give_back(table, state.running[row])
                case Start(allocation=allocation):
                    fresh = row in state.pending and earlier is None
                    say(fresh or earlier == "moved", f"{where}: {decision.job} must start once, and only if it waits")
                    wrong = wrong_with(state.spec, table, self._job(row), allocation)
                    say(not wrong, f"{where}: {decision} must be possible: {wrong}")
                    take_away(table, allocation)
                case Reject() | Hold():
                    say(row in state.pending and earlier is None, f"{where}: {decision} must be of a waiting job, once")
            said[decision.job] = "moved" if isinstance(decision, Preempt) and decision.moved else "done"
        left = [job for job, what in said.items() if what == "moved"]
        say(not left, f"{where}: a job that is stopped to move must start in the same plan, but {left} do not")
        if self.strict:
            self._no_job_passes(plan)

    def _job(self, row: int) -> Job:
        return self.harness.state.live[row]

    def _no_job_passes(self, plan: Plan) -> None:
        """Check that in each queue the jobs that leave it by this plan precede those that stay."""
        state = self.harness.state
        leaves = {d.job for d in plan.decisions if isinstance(d, (Start, Reject))}
        rows = np.fromiter(state.pending, dtype=np.int64, count=len(state.pending))
        keys = self.harness.profile.order.keys(state.jobs, rows, plan.time).tolist()
        ranked = sorted(zip((-state.jobs[rows, c.J_PRIORITY]).tolist(), keys, rows.tolist(), strict=True))
        blocked: dict[int, str] = {}
        for _, _, row in ranked:
            queue, name = int(state.jobs[row, c.J_QUEUE]), state.ids[row]
            if name not in leaves:
                blocked.setdefault(queue, name)
            else:
                say(queue not in blocked or self._rejected(plan, name),
                    f"{self.where}, at {plan.time}: {name} passes {blocked.get(queue)} in its queue")  # fmt: skip

    def _rejected(self, plan: Plan, name: str) -> bool:
        return any(isinstance(d, Reject) and d.job == name for d in plan.decisions)

    def after(self, plan: Plan) -> None:
        """Check that no job that fits is left waiting, if the discipline tries all. (Refused starts wait until the next
        cycle.)
        """
        if not self.all_tried or self.refuses:
            return
        state = self.harness.state
        for row in state.pending:
            job = self._job(row)
            group = job.groups[0]
            fits = pods_that_fit_anywhere(state.spec, state.table, job, group.demand)
            say(fits < group.count, f"{self.where}, at {plan.time}: {job.id} waits although it fits")


def take_away(table: np.ndarray, allocation: np.ndarray) -> None:
    """Subtract an allocation from a copy of the node table: free amounts only."""
    _shift(table, allocation, -1)


def give_back(table: np.ndarray, allocation: np.ndarray) -> None:
    """Add an allocation back to a copy of the node table: free amounts only."""
    _shift(table, allocation, 1)


def _shift(table: np.ndarray, allocation: np.ndarray, sign: int) -> None:
    for node, _, mask, milli, cpu, memory, *_ in allocation.tolist():
        for device in range(mask.bit_length()):
            table[node, c.DEVICES + device] += sign * milli * (mask >> device & 1)
        table[node, c.CPU_FREE] += sign * cpu
        table[node, c.MEMORY_FREE] += sign * memory
