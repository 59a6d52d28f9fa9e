"""Whatever happens to a cluster, in whatever order: every invariant holds, and a scheduler that lived through it
decides as one that was born this moment."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.examples import examples

from kant.cluster.columns import J_REMAINING
from kant.model.decision import Hold, Plan
from kant.model.errors import StateError
from kant.model.event import JobLimited, JobPreempted, JobPriced, JobProgressed, JobProtected, TypicalPodsGiven
from kant.model.job import Job
from kant.model.node import ClusterSpec, Node
from kant.model.units import SECOND
from kant.scheduler.cycle import Scheduler
from kant.scheduler.registry import policies
from kant.testing import Harness, at_random, make_profile
from kant.testing.conformance_placement import draw_typical_pods
from kant.testing.drawn import generator
from kant.testing.strategies import clusters, jobs, nodes

PICK = st.integers(0, 1000)
DISCIPLINES = (
    *policies("discipline"),
    {"policy": "preemptive", "min_run_s": 0},
    {"policy": "repack", "keep": True},
    {"policy": "backfill", "timeout_s": 0},
    {"policy": "easy", "timeout_s": 0},
)
PLACEMENTS = (*policies("placement"), {"policy": "best-fit", "ties": "random"})
ORDERS = (*policies("order"), {"policy": "las", "thresholds_gpu_s": (10, 100)})


def said(plan: Plan) -> tuple[int, list[Any]]:
    """A plan without what a scheduler says only once, in a form that can be compared."""
    decisions = [d for d in plan.decisions if not isinstance(d, Hold)]
    return plan.review_at, [msgspec.to_builtins(d, enc_hook=lambda array: array.tolist()) for d in decisions]


class Cluster(RuleBasedStateMachine):
    """A cluster to which anything may happen."""

    @initialize(
        spec=clusters(),
        order=st.sampled_from(ORDERS),
        discipline=st.sampled_from(DISCIPLINES),
        placement=st.sampled_from(PLACEMENTS),
        seed=st.integers(0, 1 << 40),
    )
    def begin(self, spec: ClusterSpec, order: Any, discipline: Any, placement: Any, seed: int) -> None:
        self.harness = Harness(spec, make_profile(order, discipline, placement), seed=seed)
        self.harness.before_carrying_out = self.compare
        self.harness.happen(TypicalPodsGiven(0, draw_typical_pods(generator(seed), self.harness.state)))

    def compare(self, plan: Plan) -> None:
        state = self.harness.state
        fresh = Scheduler(state, self.harness.profile, self.harness.seed).cycle(plan.time)
        assert said(plan) == said(fresh)

    def chosen(self, rows: Any, pick: int) -> str:
        rows = list(rows)
        return self.harness.state.ids[rows[pick % len(rows)]]

    def perhaps_cycle(self, then_cycle: bool) -> None:
        if then_cycle:
            self.harness.cycle()

    def runs(self) -> bool:
        return bool(self.harness.state.running)

    def waits(self) -> bool:
        return bool(self.harness.state.pending)

    def has_nodes(self) -> bool:
        return bool(self.harness.state.node_index)

    def some_node(self, pick: int) -> Node:
        state = self.harness.state
        rows = list(state.node_index.values())
        return state.nodes[rows[pick % len(rows)]]

    @rule(job=jobs("any"), several=st.sampled_from((1, 1, 3)), then_cycle=st.booleans())
    def submit(self, job: Job, several: int, then_cycle: bool) -> None:
        for _ in range(several):
            name = f"j{len(self.harness.state.ids)}"
            self.harness.submit(msgspec.structs.replace(job, id=name, submit=self.harness.now))
        self.perhaps_cycle(then_cycle)

    @rule()
    def cycle(self) -> None:
        self.harness.cycle()

    @rule(seconds=st.sampled_from((0, 1, 59, 60, 4000)))
    def cycle_later(self, seconds: int) -> None:
        self.harness.cycle(self.harness.now + seconds * SECOND)

    @rule(share=st.sampled_from((0.0, 0.0, 0.5, 1.0)))
    def change_the_driver(self, share: float) -> None:
        self.harness.refuse = at_random(share, len(self.harness.events))

    @precondition(runs)
    @rule(pick=PICK, then_cycle=st.booleans())
    def finish(self, pick: int, then_cycle: bool) -> None:
        self.harness.finish(self.chosen(self.harness.state.running, pick))
        self.perhaps_cycle(then_cycle)

    @precondition(runs)
    @rule(pick=PICK, then_cycle=st.booleans())
    def evict(self, pick: int, then_cycle: bool) -> None:
        self.harness.evict(self.chosen(self.harness.state.running, pick))
        self.perhaps_cycle(then_cycle)

    @precondition(runs)
    @rule(pick=PICK, cost=st.sampled_from((0, 7 * SECOND)))
    def preempt(self, pick: int, cost: int) -> None:
        job = self.chosen(self.harness.state.running, pick)
        self.harness.happen(JobPreempted(self.harness.now, job, cost))

    @precondition(runs)
    @rule(pick=PICK)
    def progress(self, pick: int) -> None:
        state = self.harness.state
        job = self.chosen(state.running, pick)
        left = int(state.jobs[state.rows[job], J_REMAINING])
        self.harness.happen(JobProgressed(self.harness.now, job, max(left - SECOND, -1)))

    @precondition(lambda self: self.runs() or self.waits())
    @rule(pick=PICK, by=st.sampled_from(("", "somebody")), then_cycle=st.booleans())
    def protect(self, pick: int, by: str, then_cycle: bool) -> None:
        job = self.chosen(self.harness.state.live, pick)
        self.harness.happen(JobProtected(self.harness.now, job, by))
        self.perhaps_cycle(then_cycle)

    @precondition(lambda self: self.runs() or self.waits())
    @rule(pick=PICK, price=st.integers(-1, 10**6), then_cycle=st.booleans())
    def price(self, pick: int, price: int, then_cycle: bool) -> None:
        job = self.chosen(self.harness.state.live, pick)
        self.harness.happen(JobPriced(self.harness.now, job, price))
        self.perhaps_cycle(then_cycle)

    @precondition(runs)
    @rule(pick=PICK, seconds=st.integers(1, 600), then_cycle=st.booleans())
    def limit(self, pick: int, seconds: int, then_cycle: bool) -> None:
        job = self.chosen(self.harness.state.running, pick)
        self.harness.happen(JobLimited(self.harness.now, job, seconds * SECOND))
        self.perhaps_cycle(then_cycle)

    @precondition(lambda self: self.runs() or self.waits())
    @rule(pick=PICK, then_cycle=st.booleans())
    def cancel(self, pick: int, then_cycle: bool) -> None:
        self.harness.cancel(self.chosen(self.harness.state.live, pick))
        self.perhaps_cycle(then_cycle)

    @precondition(has_nodes)
    @rule(pick=PICK, what=st.sampled_from(("fail", "cordon", "drain", "bring_back")), then_cycle=st.booleans())
    def node_changes(self, pick: int, what: str, then_cycle: bool) -> None:
        getattr(self.harness, what)(self.some_node(pick).name)
        self.perhaps_cycle(then_cycle)

    @precondition(has_nodes)
    @rule(pick=PICK, seconds=st.sampled_from((0, 59)), then_cycle=st.booleans())
    def drain_by(self, pick: int, seconds: int, then_cycle: bool) -> None:
        self.harness.drain(self.some_node(pick).name, self.harness.now + seconds * SECOND)
        self.perhaps_cycle(then_cycle)

    @precondition(has_nodes)
    @rule(pick=PICK, lost=st.integers(0, 255), then_cycle=st.booleans())
    def devices_change(self, pick: int, lost: int, then_cycle: bool) -> None:
        node = self.some_node(pick)
        self.harness.lose(node.name, *(device for device in range(node.gpus) if (lost >> device) & 1))
        self.perhaps_cycle(then_cycle)

    @rule(node=nodes("new"), back=st.booleans(), then_cycle=st.booleans())
    def node_joins(self, node: Node, back: bool, then_cycle: bool) -> None:
        state = self.harness.state
        gone = [one for one in state.nodes if one.name and one.name not in state.node_index]
        name = gone[0].name if gone and back else f"x{len(self.harness.events)}"
        self.harness.join(msgspec.structs.replace(node, name=name))
        self.perhaps_cycle(then_cycle)

    @precondition(has_nodes)
    @rule(pick=PICK, then_cycle=st.booleans())
    def node_leaves(self, pick: int, then_cycle: bool) -> None:
        self.harness.leave(self.some_node(pick).name)
        self.perhaps_cycle(then_cycle)

    @precondition(has_nodes)
    @rule(node=nodes("other"), pick=PICK, then_cycle=st.booleans())
    def node_is_described(self, node: Node, pick: int, then_cycle: bool) -> None:
        node = msgspec.structs.replace(node, name=self.some_node(pick).name)
        try:
            self.harness.describe(node)
        except StateError:
            self.harness.evict(*self.harness.jobs_on(node.name))
            self.harness.describe(node)
        self.perhaps_cycle(then_cycle)

    @precondition(runs)
    @rule(pick=PICK, then_cycle=st.booleans())
    def job_fails_on_a_node(self, pick: int, then_cycle: bool) -> None:
        job = self.chosen(self.harness.state.running, pick)
        self.harness.fail_job(job, node=self.harness.nodes_of(job)[0])
        self.perhaps_cycle(then_cycle)

    @invariant()
    def everything_holds(self) -> None:
        if hasattr(self, "harness"):
            self.harness.state.check()


TestCluster = Cluster.TestCase
TestCluster.settings = settings(
    max_examples=examples(60),
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
