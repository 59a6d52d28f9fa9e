"""Worlds in which all features meet: quotas, budgets, bookings, replicas, rules, node sets, elastic gangs, faults.

Before each event, and before each cycle, a new scheduler is asked what it would decide a microsecond earlier. If that
is anything, a job could have started while nobody asked. And each plan is the one that a new scheduler makes.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
from msgspec.structs import replace
from tests.core.elastic_runs import made_elastic
from tests.core.tenant_runs import USERS, draw_queues
from tests.core.test_state_machine import said

from kant.model.decision import Expire, Grow, Plan, Preempt, Reject, Shrink, Start
from kant.model.errors import InputError, StateError
from kant.model.event import (
    BudgetsUsed,
    Event,
    GpusBooked,
    JobLimited,
    JobPriced,
    JobProtected,
    JobRefused,
    JobShrunk,
    JobSubmitted,
    NodeSetChanged,
    QueuesChanged,
)
from kant.model.job import Job, PodGroup
from kant.model.node import ClusterSpec
from kant.model.preference import LikedNodes, Preferences
from kant.model.rules import PodAffinity, PodAntiAffinity, PodRules, TopologySpread
from kant.model.tenant import Budget, Queue, QueueConfig
from kant.model.units import GPU, SECOND
from kant.queueing.growth import Elastic
from kant.queueing.preemption.policy import Preemption
from kant.queueing.requeue import Requeue
from kant.scheduler.cycle import Scheduler
from kant.scheduler.profile import Profile, builtin_profile, builtin_texts
from kant.testing import Harness, at_random, make_profile
from kant.testing.drawn import QUEUES, Mould, draw_cluster, draw_job, generator
from kant.testing.harness import never

SHIPPED = [
    name
    for name in builtin_texts()
    if not builtin_profile(name).simulation.get("static") and not name.startswith(("muri", "helios"))
]
"""The shipped profiles whose schedulers live in a cluster, and not in an experiment alone."""

DISCIPLINES: list[Any] = [
    "strict", "best-effort", {"policy": "backfill", "timeout_s": 200, "hold_s": 60, "hold_fixed_s": 150},
    {"policy": "easy", "timeout_s": 300}, {"policy": "conservative", "timeout_s": 300},
    {"policy": "backfill", "timeout_s": 0},
]  # fmt: skip
RIGHTS = [None, Preemption(min_run_s=60, reclaim="off"), Preemption(min_run_s=60),
          Preemption(min_run_s=60, reclaim="fair-share"), Preemption(min_run_s=0, most=2)]  # fmt: skip
CHANGES = (Start, Preempt, Expire, Reject, Grow, Shrink)
FEATURES = ("blocks", "levels", "quotas", "bookings", "replicas", "budgets", "rules", "likes", "sets", "fleet",
            "faults", "elastic", "limits")  # fmt: skip


class Watched(Harness):
    """A harness that asks new schedulers; `asked` is until when nothing is left to be decided."""

    def __init__(self, spec: ClusterSpec, profile: Profile, **options: Any) -> None:
        super().__init__(spec, profile, check=True, **options)
        self.before_carrying_out = self.compare
        self.asked = self.decided = 0
        self.refused = False  # a driver that refuses is asked again when it likes

    def new_plan(self, now: int) -> Plan:
        return Scheduler(self.state, self.profile, self.seed).cycle(now)

    def expect_nothing(self, now: int) -> None:
        asked, self.asked = self.asked, max(self.asked, now)
        if asked < now - 1 and not self.refused:
            late = [each for each in self.new_plan(now - 1).decisions if isinstance(each, CHANGES)]
            assert not late, f"nobody asked since {asked}, and now, at {now}: {late}"

    def happen(self, event: Event) -> None:
        self.expect_nothing(event.time)
        super().happen(event)
        self.refused |= isinstance(event, JobRefused) or (isinstance(event, JobShrunk) and not event.by)

    def cycle(self, now: int | None = None) -> Plan:
        self.expect_nothing(self.now if now is None else now)
        self.refused = False
        try:
            return super().cycle(now)
        except (StateError, InputError) as error:  # what a world does itself may be refused, but no plan
            raise AssertionError(f"the plan cannot be carried out: {error}") from error

    def compare(self, plan: Plan) -> None:
        self.decided += len(plan.decisions)
        assert said(plan) == said(self.new_plan(plan.time))


class WideWorld:
    """One world: `profile` is a shipped one, or drawn. Each feature is there or not."""

    def __init__(self, seed: int, profile: str = "") -> None:
        self.draw = draw = generator(seed)
        chosen = builtin_profile(profile) if profile else self._profile()
        self.has = {feature: not draw.integers(2) for feature in FEATURES}
        self.has["replicas"] &= chosen.discipline.quotas
        self.has["bookings"] &= chosen.router is None
        self.spec = draw_cluster(draw, 6, self.has["blocks"])
        self.queues = [self._with_budget(queue) for queue in draw_queues(draw, self.spec)]
        self.harness = Watched(
            self.spec, chosen, seed=seed, refuse=never if draw.integers(4) else at_random(0.15, seed)
        )
        if self.has["quotas"]:
            self.harness.happen(QueuesChanged(0, QueueConfig(tuple(self.queues))))
        if self.has["budgets"]:
            self.harness.happen(BudgetsUsed(0, (3000 * SECOND, 9000 * SECOND)))
        self.mould = Mould(3, levels=self.has["levels"], islands=self.has["blocks"], slices=self.has["blocks"])
        self.booked = 0

    def run(self, jobs: int) -> Watched:
        """Submit the jobs, each after something else has happened, and run them all to their ends."""
        harness, draw, gap = self.harness, self.draw, int(self.draw.choice([20, 120]))
        for number in range(jobs):
            now = harness.now + int(draw.exponential(gap)) * SECOND * int(draw.integers(3) > 0)
            harness.run(until=now)
            harness.now = max(harness.now, now)
            job, change = self._job(f"j{number}"), self._change()
            with suppress(StateError, InputError):  # two bookings of one GPU, a node that has jobs
                change()
            with suppress(StateError, InputError):  # a base job that is itself a burst replica
                harness.run([JobSubmitted(harness.now, job, int(draw.lognormal(5.5, 1)) * SECOND + 1)], harness.now)
        harness.run(until=harness.now + 20_000 * SECOND)
        return harness

    def _profile(self) -> Profile:
        draw = self.draw
        discipline = DISCIPLINES[int(draw.integers(len(DISCIPLINES)))]
        reserves = isinstance(discipline, dict) and discipline["policy"] in ("easy", "conservative")
        return make_profile(
            str(draw.choice(["fifo", "sjf", "aged", "drf", "fair-share"])), discipline,
            str(draw.choice(["best-fit", "e-binpack", "kant", "first-fit", "spread", "fgd"])),
            None if reserves else RIGHTS[int(draw.integers(len(RIGHTS)))],
            Requeue(30 * int(draw.integers(2)), in_place_s=int(draw.choice([-1, 120]))),
            elastic=Elastic(int(draw.choice([0, 100]))) if draw.integers(2) else None,
        )  # fmt: skip

    def _with_budget(self, queue: Queue) -> Queue:
        if not self.has["budgets"] or not self.draw.integers(2):
            return queue
        return replace(queue, budget=Budget(hard=int(self.draw.choice([-1, 400, 4000]))))

    def _job(self, name: str) -> Job:
        draw, has, state = self.draw, self.has, self.harness.state
        names = [queue.name for queue in self.queues] if has["quotas"] else QUEUES
        job = replace(draw_job(draw, name, self.mould, self.harness.now), queue=str(draw.choice(names)),
                      user=str(draw.choice(USERS)), preempts=draw.integers(8) > 0,
                      node_wait=90 * SECOND * int(draw.integers(8) == 0))  # fmt: skip
        job = made_elastic(job, draw) if has["elastic"] else job
        bases = [one.id for one in state.live.values() if not one.base_job]
        more: dict[str, Any] = {}
        if has["limits"] and draw.integers(2):
            more |= {"limit": int(draw.integers(100, 900)) * SECOND, "retries": int(draw.integers(2))}
        if has["replicas"] and bases and not draw.integers(3) and not any(group.floor for group in job.groups):
            more["base_job"] = str(draw.choice(bases))
        if has["sets"] and not draw.integers(3):
            more["node_set"] = str(draw.choice(["s0", "s1"]))
        if has["likes"] and draw.integers(2):
            more["preferences"] = (Preferences((LikedNodes("s0", int(draw.integers(1, 5))),), ("s1",)),)
        if has["rules"] and not (job.affinity_group or job.apart or any(group.within for group in job.groups)):
            more["rules"] = self._rules(job.groups)
        if self.booked and not draw.integers(3):
            more["reservation"] = f"r{int(draw.integers(self.booked))}"
        return replace(job, **more)

    def _rules(self, groups: tuple[PodGroup, ...]) -> tuple[PodRules, ...]:
        draw = self.draw
        if draw.integers(3):
            return ()
        own = (str(draw.choice(["p", "q"])),) if draw.integers(3) else ()
        where = str(draw.choice(["node", "leaf"]))
        return (PodRules(
            own,
            (PodAntiAffinity(str(draw.choice(["p", "q"])), where, int(draw.integers(2))),) if draw.integers(2) else (),
            (PodAffinity(str(draw.choice(["p", "q"])), where),) if not draw.integers(4) else (),
            (TopologySpread(own[0], where, int(draw.integers(1, 3))),) if own and not draw.integers(3) else (),
        ),) * (len(groups) if draw.integers(2) else 1)  # fmt: skip

    def _change(self) -> Callable[[], object]:
        """What happens before the next job comes; often nothing."""
        draw, has, harness = self.draw, self.has, self.harness
        nodes, running, what = list(harness.state.node_index), harness.running(), int(draw.integers(13))
        node = str(draw.choice(nodes)) if nodes else ""
        job = str(draw.choice(running)) if running else ""
        if what == 0 and has["quotas"]:
            return lambda: harness.set_queues(*map(self._with_budget, draw_queues(draw, self.spec)))
        if what < 4 and node:
            return lambda: harness.fail(node) if what == 1 and has["faults"] else harness.bring_back(node)
        if what == 4 and node and has["faults"]:
            return lambda: harness.drain(node, harness.now + int(draw.integers(200)) * SECOND)
        if what == 5 and node and has["faults"]:
            gpus = harness.state.nodes[harness.state.node_index[node]].gpus
            return lambda: harness.lose(node, *[device for device in range(gpus) if draw.integers(2)])
        if what == 6 and job:
            return lambda: harness.happen(JobProtected(harness.now, job, str(draw.choice(["", "b"]))))
        if what == 7 and job and has["limits"]:
            return lambda: harness.happen(JobLimited(harness.now, job, int(draw.integers(1, 900)) * SECOND))
        if what == 8 and job and has["faults"]:
            return lambda: harness.fail_job(job, node=harness.nodes_of(job)[0])
        if what == 9 and has["sets"]:
            return lambda: self._change_set(str(draw.choice(["s0", "s1"])), nodes)
        if what == 10 and has["fleet"]:
            return lambda: self._change_fleet(node)
        if what == 11 and node and has["bookings"]:
            return lambda: self._book(node)
        if what == 12 and job:
            return lambda: harness.happen(JobPriced(harness.now, job, int(draw.integers(-1, 10**6))))
        return lambda: None

    def _change_set(self, name: str, nodes: list[str]) -> None:
        state = self.harness.state
        inside = {state.nodes[node].name for node in state.shapes.node_sets.nodes(name)}
        chosen = {node for node in nodes if self.draw.integers(2)}
        self.harness.happen(NodeSetChanged(self.harness.now, name, tuple(chosen - inside), tuple(chosen & inside)))

    def _change_fleet(self, node: str) -> None:
        harness, other = self.harness, draw_cluster(self.draw, 1, self.has["blocks"]).nodes[0]
        which = int(self.draw.integers(3))
        if which == 0 and len(harness.state.node_index) < 9:
            harness.join(replace(other, name=f"x{len(harness.events)}"))
        elif which == 1 and node:
            harness.leave(node)
        elif node:
            harness.evict(*harness.jobs_on(node))
            harness.describe(replace(other, name=node))

    def _book(self, node: str) -> None:
        harness, draw, index = self.harness, self.draw, self.harness.state.node_index[node]
        spec, start = harness.state.nodes[index], harness.now + int(draw.integers(400)) * SECOND
        if spec.gpus and not spec.mig:
            gpus, end = int(draw.integers(1, spec.gpus + 1)), start + int(draw.integers(50, 900)) * SECOND
            held = np.array([[index, 1, (1 << gpus) - 1, GPU, 0, 0, gpus]], dtype=np.int64)
            harness.happen(GpusBooked(harness.now, f"r{self.booked}", start, end, held, str(draw.choice(["", *USERS]))))
            self.booked += 1
