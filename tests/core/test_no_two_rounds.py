"""Preemption comes to an end: design note 9, checked step by step in runs in which no job ends.

The note has a ranking of situations: who runs within what its queue is entitled to, and then who runs at all, each
as bits in the order of priority and submission. Every eviction must bring it up, so none can be undone for ever.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.elastic_runs import elastic_arrivals
from tests.core.naive_quota import NaiveQuotas
from tests.core.tenant_runs import USERS, draw_queues
from tests.examples import examples

from kant.cluster.elastic import above_floor, without
from kant.cluster.shapes import Shape
from kant.cluster.state import ClusterState
from kant.model.decision import Plan, Preempt, Shrink, Start
from kant.model.event import JobSubmitted, QueuesChanged
from kant.model.job import Job
from kant.model.node import ClusterSpec, Node
from kant.model.tenant import Queue, QueueConfig
from kant.model.units import FOREVER, SECOND
from kant.queueing.cycle_plan import CyclePlan
from kant.queueing.growth import Elastic
from kant.queueing.preemption.policy import Preemption
from kant.testing import Harness, make_cluster, make_job, make_profile
from kant.testing.builders import make_queue
from kant.testing.drawn import generator

SEEDS = range(max(2, examples(12)))
ORDERS = ("fifo", "aged", "drf", "fair-share")
TIMEOUT = 600
DISCIPLINES: tuple[Any, ...] = (
    "strict",
    "best-effort",
    {"policy": "backfill", "timeout_s": TIMEOUT},
    {"policy": "easy", "timeout_s": TIMEOUT},
    {"policy": "conservative", "timeout_s": TIMEOUT},
)
STEP = 700 * SECOND
"""Past every minimal run time, every timeout and every back-off of these runs."""

CALM, MOST = 4, 400
"""So many cycles without an eviction are the end; it has to come within so many."""

Bits = tuple[int, ...]


def floor_of(state: ClusterState, row: int, allocation: np.ndarray) -> tuple[int, ...]:
    """What a job holds of the quotas, an elastic gang with its floor (design note 17)."""
    shape = state.shape_of(row)
    floor = without(allocation, above_floor(shape, allocation)) if shape.ceiling else allocation
    return state.quota_usage.amounts(shape, floor)


@dataclass
class Situation:
    """Who runs, in the order in which they started, and what they hold of the quotas. Said again plainly."""

    harness: Harness
    fair: bool
    running: list[int]
    held: dict[int, tuple[int, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.state = self.harness.state
        rights = self.harness.profile.preemption
        self.reclaims = rights is not None and rights.reclaim != "off"
        self.held |= {row: floor_of(self.state, row, held) for row, held in self.state.running.items()}
        tree = self.state.quota_usage.tree
        self.keys = tree.keys if tree is not None else ()
        if tree is None:
            return
        naive, names = NaiveQuotas(tree.queue_config), list(tree.index)
        wants = {name: [0] * len(self.keys) for name in names}
        for row, job in self.state.live.items():
            if job.queue in wants:
                amounts = self.state.quota_usage.amounts(self.state.shape_of(row))
                wants[job.queue] = [a + b for a, b in zip(wants[job.queue], amounts, strict=True)]
        self.part: dict[str, list[int]] = {name: [] for name in names}
        for place, key in enumerate(self.keys):
            shares = tree.fair_shares(place, [wants[name][place] for name in names])
            for name in names:
                own = naive.quota(name, key) if not self.fair else shares[tree.index[name]]
                self.part[name].append(naive.limits(name, key).nominal if naive.below(name) else own)

    def within(self) -> set[int]:
        """Who runs within: he and those of his queue that started before him hold no more than its part."""
        used: dict[str, list[int]] = {}
        found = set()
        for row in self.running:
            queue, held = self.state.live[row].queue, self.held[row]
            if not self.keys or queue not in self.part:
                continue
            total = used[queue] = [a + b for a, b in zip(used.get(queue, [0] * len(held)), held, strict=True)]
            fits = all(t <= p for t, p, h in zip(total, self.part[queue], held, strict=True) if h)
            if fits and any(held):
                found.add(row)
        return found

    def rank(self) -> tuple[Bits, Bits]:
        """What every eviction has to bring up."""
        jobs = self.state.live
        order = sorted(jobs, key=lambda row: (-jobs[row].priority, jobs[row].submit, row))
        within, runs = self.within() if self.reclaims else set(), set(self.running)
        return tuple(int(row in within) for row in order), tuple(int(row in runs) for row in order)


@dataclass
class Watch:
    """Follows the plans of a run, decision by decision."""

    harness: Harness
    fair: bool
    evictions: int = 0
    shrunk: int = 0  # of these
    risen: int = 0
    run_of: dict[int, int] = field(default_factory=dict)  # the run that a job is in, by number
    owed: dict[int, list[tuple[int, bool]]] = field(default_factory=dict)  # run -> whom it stopped, and if within
    runs: int = 0
    known: set[int] = field(default_factory=set)

    def __call__(self, plan: Plan) -> None:
        state, victims, shrunk = self.harness.state, list[int](), 0
        if self.fair and self.known != set(state.live):  # then what each queue is entitled to has changed
            self.known = set(state.live)
            self.owed.clear()
        now = Situation(self.harness, self.fair, list(state.running))
        before, within = now.rank(), now.within()
        for decision in plan.decisions:
            if isinstance(decision, Shrink):
                row = state.rows[decision.job]
                assert state.live[row].preemptible and row in now.running, f"{decision.job} may not be shrunk"
                shrunk += 1
            elif isinstance(decision, Preempt):
                row = state.rows[decision.job]
                assert state.live[row].preemptible, f"{decision.job} may not be stopped"
                now.running.remove(row)
                victims.append(row)
            elif isinstance(decision, Start):
                row = state.rows[decision.job]
                now.running.append(row)
                now.held[row] = floor_of(state, row, decision.allocation)
                after = now.rank()
                assert after > before, f"{plan.time}: {decision.job} and {[state.ids[v] for v in victims]} go in rounds"
                self.evictions += len(victims) + shrunk
                self.shrunk, shrunk = self.shrunk + shrunk, 0
                self._nobody_undoes(row, victims, within, now.within())
                before, within, victims = after, now.within(), []
        assert not victims and not shrunk, "somebody is stopped for nobody"

    def _nobody_undoes(self, newcomer: int, victims: Iterable[int], before: set[int], after: set[int]) -> None:
        """Whoever was stopped does not stop the very run for which it was, unless it has risen to within."""
        self.runs += 1
        for victim in victims:
            for who, was_within in self.owed.get(self.run_of.get(victim, -1), []):
                if who == newcomer:
                    assert not was_within and newcomer in after, "two rounds undo each other"
                    self.risen += 1
        self.run_of[newcomer] = self.runs
        self.owed[self.runs] = [(victim, victim in before) for victim in victims]


def settle(harness: Harness, coming: list[JobSubmitted], fair: bool) -> Watch:
    """Let all come, and time pass, until nobody is stopped any more. Nobody ever ends."""
    watch = Watch(harness, fair)
    harness.before_carrying_out = watch
    for event in coming:
        base = event.job.base_job
        if base and harness.state.rows[base] not in harness.state.live:  # rejected: it can never run here
            event = JobSubmitted(event.time, msgspec.structs.replace(event.job, base_job=""), event.runtime)
        harness.happen(event)
        harness.cycle()
    calm = 0
    for _ in range(MOST):
        seen = watch.evictions
        harness.cycle(harness.now + STEP)
        calm = calm + 1 if watch.evictions == seen else 0
        if calm == CALM:
            return watch
    raise AssertionError(f"still {watch.evictions} evictions after {MOST} cycles")


def draw_family(draw: np.random.Generator, gpus: int) -> list[Queue]:
    """Queues under one root that share everything, and are entitled to more or less of it."""
    queues = [make_queue("q0", int(draw.choice([0, gpus])))]
    for i in range(1, int(draw.integers(3, 7))):
        parent = "q0" if draw.integers(3) else f"q{draw.integers(0, i)}"
        own = int(draw.choice([0, 0, 1, 2, 3]))
        queues.append(make_queue(f"q{i}", own, parent=parent, weight=int(draw.integers(1, 4))))
    return queues


def draw_contest(draw: np.random.Generator) -> tuple[ClusterSpec, list[Queue], list[JobSubmitted]]:
    """A small cluster, and many more jobs than fit, of all priorities. None of them ever ends."""
    sizes = draw.choice([2, 3, 4, 5], int(draw.integers(1, 4))).tolist()
    priorities, replicas = int(draw.choice([1, 2, 4, 4])), int(draw.choice([2, 6, 99]))
    models = [str(draw.choice(["A100", "H800"])) if draw.integers(4) == 0 else "A100" for _ in sizes]
    cpu = int(draw.choice([FOREVER, 4_000]))
    spec = ClusterSpec(
        "contest", tuple(Node(f"n{i}", *of, cpu=cpu) for i, of in enumerate(zip(sizes, models, strict=True)))
    )
    queues = draw_family(draw, sum(sizes)) if draw.integers(3) else draw_queues(draw, spec)
    coming, now = list[JobSubmitted](), 0
    for i in range(int(draw.integers(4, 22))):
        now += int(draw.choice([0, 1, 100, 700])) * SECOND
        others = [event.job for event in coming]
        base = others[int(draw.integers(len(others)))] if others and draw.integers(replicas) == 0 else None
        job = make_job(
            f"j{i}",
            int(draw.choice([0, 1, 1, 1, 2, 2, 3])),
            int(draw.choice([1, 1, 1, 1, 2])),
            cpu=int(draw.choice([0, 1_000, 3_000])) or 1,
            submit=now,
            queue=str(draw.choice([queue.name for queue in queues])),
            user=str(draw.choice(USERS)),
            priority=int(draw.integers(priorities)),
            models=("H800",) if draw.integers(20) == 0 else (),
            estimate=int(draw.integers(1, 5000)) * SECOND if draw.integers(3) == 0 else -1,
            preemptible=bool(draw.integers(16)),
            base_job="" if base is None else base.base_job or base.id,
        )
        coming.append(JobSubmitted(now, job, FOREVER))
    return spec, queues, coming


def settle_seed(seed: int, order: str, discipline: Any, rights: Preemption, elastic: bool = False) -> Watch:
    draw = generator(seed)
    spec, queues, coming = draw_contest(draw)
    if elastic:
        coming = elastic_arrivals(draw, coming)
    profile = make_profile(order, discipline, "best-fit", rights, elastic=Elastic(grow_s=0))
    harness = Harness(spec, profile, seed=seed, check=False)
    if draw.integers(12):
        harness.happen(QueuesChanged(0, QueueConfig(tuple(queues))))
    return settle(harness, coming, rights.reclaim == "fair-share")


@pytest.mark.parametrize("reclaim", ["nominal", "fair-share", "off"])
@pytest.mark.parametrize("discipline", DISCIPLINES, ids=str)
def test_in_a_tenancy_that_stays_nobody_is_stopped_any_more_after_a_while(discipline: Any, reclaim: Any) -> None:
    evictions = 0
    for order, seed in product(ORDERS, SEEDS):
        try:
            watch = settle_seed(seed + 100 * ORDERS.index(order), order, discipline, Preemption(True, reclaim, 60))
        except AssertionError as error:
            raise AssertionError(f"seed {seed}, {order}") from error
        evictions += watch.evictions
    assert evictions > len(SEEDS)


@pytest.mark.parametrize("reclaim", ["nominal", "fair-share", "off"])
def test_nor_is_anybody_shrunk_for_ever(reclaim: Any) -> None:
    """Elastic gangs count with their floors: whoever starts brings these up, and what is above comes and goes.

    In the run of seed 1399 a base job was once stopped, and its burst replica both shrunk and stopped.
    """
    shrunk = 0
    for seed in (*range(500, 500 + 8 * len(SEEDS)), 1399):
        order, discipline = ORDERS[seed % 4], DISCIPLINES[seed % 5]
        shrunk += settle_seed(seed, order, discipline, Preemption(True, reclaim, 60), elastic=True).shrunk
    assert shrunk > 0


@pytest.mark.parametrize("reclaim", ["nominal", "fair-share", "off"])
def test_where_counts_say_that_nobody_can_be_evicted_the_running_jobs_say_so_too(
    monkeypatch: pytest.MonkeyPatch, reclaim: Any
) -> None:
    answers: Counter[bool] = Counter()
    quick = Preemption._may_evict

    def compared(policy: Preemption, cycle: CyclePlan, row: int, shape: Shape, later: bool = False) -> bool:
        answer = quick(policy, cycle, row, shape, later)
        answers[answer] += 1
        if not answer and not later:
            running = policy.entitlements(cycle)
            for some in (running, running.surplus() if cycle.state.elastic else None):
                if some is not None:
                    rules = policy.rules(cycle, row, shape, some)
                    assert not any(len(rules.victims(level)[0]) for level in rules.levels())
        return answer

    monkeypatch.setattr(Preemption, "_may_evict", compared)
    for seed in range(8):
        settle_seed(seed, ORDERS[seed % 4], DISCIPLINES[seed % 5], Preemption(True, reclaim, 60), elastic=seed % 2 > 0)
    assert answers[True] and answers[False]


SMALL = st.tuples(
    st.integers(0, 3),  # GPUs of each pod
    st.integers(1, 2),  # pods
    st.integers(0, 3),  # queue
    st.integers(0, 2),  # priority
    st.integers(0, 3),  # thousandths of a core, in thousands
    st.sampled_from((-1, -1, -1, 0, 1, 2)),  # whose burst replica it is
)


@settings(max_examples=examples(20))
@given(
    st.lists(st.integers(1, 4), min_size=1, max_size=3),
    st.lists(st.integers(0, 3), min_size=3, max_size=3),
    st.lists(SMALL, min_size=2, max_size=10),
    st.sampled_from(DISCIPLINES),
    st.sampled_from(("nominal", "fair-share")),
)
def test_so_it_is_in_any_small_cluster(
    sizes: list[int], nominal: list[int], jobs: list[tuple[int, ...]], discipline: Any, reclaim: Any
) -> None:
    """A root that has what there is, two queues under it, and one more under the second."""
    queues = [make_queue("q0", sum(sizes))]
    queues += [make_queue(f"q{i + 1}", n, parent="q0" if i < 2 else "q2") for i, n in enumerate(nominal)]
    profile = make_profile("fifo", discipline, preemption=Preemption(True, reclaim, 60))
    harness = Harness(make_cluster(*sizes, cpu=4000), profile)
    harness.set_queues(*queues)
    coming = []
    for i, (gpus, pods, queue, priority, cpu, base) in enumerate(jobs):
        base_of = f"j{base}" if 0 <= base < i and jobs[base][-1] < 0 else ""
        job = make_job(f"j{i}", gpus, pods, cpu=1000 * cpu or 1, queue=f"q{queue}", priority=priority, base_job=base_of)
        coming.append(JobSubmitted(i * 100 * SECOND, job, FOREVER))
    settle(harness, coming, reclaim == "fair-share")


def endless(harness: Harness, *jobs: Job) -> Watch:
    """All of them come one after the other, each an hour after the one before, and none ever ends."""
    hour = 3600 * SECOND
    return settle(harness, [JobSubmitted(i * hour, job, FOREVER) for i, job in enumerate(jobs)], False)


def harness_of(*gpus: int, queues: Iterable[Queue] = (), discipline: Any = "best-effort", **amounts: int) -> Harness:
    harness = Harness(make_cluster(*gpus, **amounts), make_profile("fifo", discipline, preemption=Preemption()))
    if queues:
        harness.set_queues(*queues)
    return harness


def test_whoever_only_replaces_its_own_kind_gets_no_right_to_what_others_hold() -> None:
    """A loop of two once: `new` gave back as much as it took, and so it passed for within though entitled to nothing.

    It stopped `pair` of its own queue and `other`; then `other`, of higher priority, stopped it.
    """
    queues = (make_queue("all", 9), make_queue("poor", 0, parent="all"), make_queue("rich", 0, parent="all"))
    harness = harness_of(5, 2, queues=queues)
    pair = make_job("pair", 2, pods=2, queue="poor")
    other = make_job("other", 3, queue="rich", priority=5)
    new = make_job("new", 4, queue="poor", priority=1)
    endless(harness, pair, other, new)
    assert sorted(harness.running()) == ["other", "pair"]


def test_a_core_is_not_stopped_by_whom_its_burst_would_stop_in_turn() -> None:
    """A loop of three once: `middle` stopped the base and its replica with it, the base came back, the replica stopped
    `middle`."""
    harness = harness_of(1, 1)
    base, replica = make_job("core"), make_job("burst", base_job="core", priority=2)
    endless(harness, base, replica, make_job("middle", priority=1))
    assert sorted(harness.running()) == ["burst", "core"]


def test_a_burst_that_may_not_be_stopped_keeps_its_core() -> None:
    harness = harness_of(1, 1)
    base, replica = make_job("core"), make_job("burst", base_job="core", preemptible=False)
    endless(harness, base, replica, make_job("first", priority=1))
    assert sorted(harness.running()) == ["burst", "core"]


def test_a_head_that_holds_nothing_of_the_quotas_stops_nobody_who_is_within_his() -> None:
    """A loop of three once: the head (CPU only) stopped `within` after its timeout, `high` stopped the head, and
    `within` took back from `high` what its queue is entitled to."""
    queues = (make_queue("all", 0), *(make_queue(name, n, parent="all") for name, n in (("a", 1), ("b", 0), ("c", 0))))
    backfill = {"policy": "backfill", "timeout_s": TIMEOUT}
    harness = harness_of(4, queues=queues, discipline=backfill, cpu=4000)
    high = make_job("high", 1, cpu=4000, queue="b", priority=1)
    head, within = make_job("head", 0, cpu=4000, queue="c"), make_job("within", 1, cpu=4000, queue="a")
    endless(harness, high, head, within)
    assert harness.running() == ["within"]
