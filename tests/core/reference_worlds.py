"""Random small worlds under Kant and under the reference scheduler side by side, for the tests beside it."""

from __future__ import annotations

import dataclasses
from functools import cache
from typing import Any

import msgspec
import numpy as np
from tests.core.reference import Reference, compare
from tests.core.reference.places import SCORES, place
from tests.core.reference.world import ReferenceWorld, Room
from tests.core.tenant_runs import USERS, draw_queues

from kant.model.decision import Plan
from kant.model.errors import StateError
from kant.model.event import (
    BudgetsUsed,
    Event,
    JobAwaitsNode,
    JobProgressed,
    JobProtected,
    JobRefused,
    JobSubmitted,
    NodeSetChanged,
    QueuesChanged,
)
from kant.model.job import Demand, Job, PodGroup
from kant.model.node import ClusterSpec, Node
from kant.model.preference import LikedNodes, Preferences
from kant.model.tenant import Budget, Queue, QueueConfig, Quota
from kant.model.units import FOREVER, GPU, SECOND
from kant.placement.preference_weights import PreferenceWeights
from kant.queueing.preemption.policy import Preemption
from kant.queueing.requeue import Requeue
from kant.scheduler.profile import Profile
from kant.testing import Harness, at_random, make_profile
from kant.testing.drawn import MODELS, QUEUES, generator
from kant.testing.harness import never

DISCIPLINES: dict[str, Any] = {
    "strict": "strict",
    "best-effort": "best-effort",
    "backfill": {"policy": "backfill", "timeout_s": 200, "hold_s": 60, "hold_fixed_s": 150},
}
NODE_SETS = ("s0", "s1")
RIGHTS: dict[str, Preemption | None] = {
    "none": None,
    "priority": Preemption(min_run_s=60, reclaim="off"),
    "nominal": Preemption(min_run_s=60, most=2),
    "fair-share": Preemption(min_run_s=60, reclaim="fair-share"),
}


class Watched(Harness):
    """A driver that holds every plan to the reference. `differences` has what was found, `decided` counts decisions."""

    def __init__(self, spec: ClusterSpec, profile: Profile, own_places: bool = True, **fields: Any) -> None:
        super().__init__(spec, profile, check=False, **fields)
        self.reference = Reference(spec, profile)
        self.own_places = own_places
        self.differences: list[str] = []
        self.decided = self._known = 0
        self.before_carrying_out = self._compare
        self._asked = 0  # what could be decided before this time is known

    def happen(self, event: Event) -> None:
        self._let_pass(event.time)
        super().happen(event)
        self.reference.happen(event)

    def cycle(self, now: int | None = None) -> Plan:
        self._let_pass(self.now if now is None else now)
        return super().cycle(now)

    def _compare(self, plan: Plan) -> None:
        found, self._known = compare(self.reference, plan, self.own_places), len(self.events)
        self.decided += len(plan.decisions)
        if found:
            self.differences.append(found)

    def _let_pass(self, now: int) -> None:
        """No job of one group waits for nothing: what may be decided as time passes has a cycle of its own."""
        last, self._asked = self._asked, max(now, self._asked)
        refused = any(isinstance(event, JobRefused) for event in self.events[self._known :])
        if now - 1 <= last or refused or not self.own_places or self.differences:
            return  # a driver that refuses asks for a cycle itself
        more = self.reference.decide(now - 1)
        groups = {name: len(live.job.groups) for name, live in self.reference.world.waiting.items()}
        starts = [said[1] for said in more if said[0] == "start"]
        if more and all(groups.get(name, 0) <= 1 for name in starts):
            self.differences.append(f"after {last} nothing asks for a cycle that decides {more[:3]} before {now}")


def draw_nodes(draw: np.random.Generator, most: int = 4) -> ClusterSpec:
    """One to `most` nodes of up to four GPUs; some without GPUs, some with little CPU, some of one queue."""
    models, limited = MODELS[: int(draw.integers(1, 3))], bool(draw.integers(2))
    dedicated = draw.integers(4) == 0
    nodes = []
    for i in range(int(draw.integers(1, most + 1))):
        gpus = int(draw.choice([0, 1, 2, 3, 4, 4, 4]))
        nodes.append(
            Node(
                f"n{i}",
                gpus,
                str(draw.choice(models)) if gpus else "",
                cpu=int(draw.integers(1, 13)) * 1000 if limited else FOREVER,
                memory=int(draw.integers(1, 9)) * 256 if limited else FOREVER,
                queues=(str(draw.choice(QUEUES)),) if dedicated and draw.integers(3) == 0 else (),
            )
        )
    return ClusterSpec("drawn", tuple(nodes))


def draw_gang(draw: np.random.Generator, groups: int) -> tuple[PodGroup, ...]:
    """One to `groups` groups of unlike pods."""
    count = int(draw.integers(2, groups + 1)) if groups > 1 and draw.integers(2) else 1
    found = []
    for _ in range(count):
        gpus = int(draw.choice([0, 1, 1, 1, 2, 2, 3, 4]))
        milli = int(draw.choice([1000, 1000, 1000, 500, 250])) if gpus == 1 else 1000
        cpu, memory = int(draw.choice([0, 0, 500, 2000, 4000])), int(draw.choice([0, 0, 256]))
        found.append(
            PodGroup(int(draw.choice([1, 1, 1, 2, 3])), Demand(gpus, milli, cpu if gpus else max(cpu, 500), memory))
        )
    return tuple(found)


def draw_coming(
    draw: np.random.Generator,
    queues: tuple[str, ...],
    jobs: int,
    groups: int,
    gap: int,
    sets: bool = False,
    prefer: bool = False,
) -> list[JobSubmitted]:
    """Submissions in bursts, of few kinds, so that equal jobs wait behind each other; with `prefer` most like nodes."""
    kinds = [draw_gang(draw, groups) for _ in range(int(draw.integers(2, 7)))]
    priorities = [0, 0, 1, 5] if draw.integers(2) else [0]
    coming, now = [], 0
    for i in range(jobs):
        now += int(draw.exponential(gap)) * SECOND * int(draw.integers(3) > 0)
        run = int(draw.lognormal(4.5, 1)) * SECOND + 1
        job = Job(
            f"j{i}",
            now,
            kinds[int(draw.integers(len(kinds)))],
            queue=queues[int(draw.integers(len(queues)))],
            user=str(draw.choice(USERS)),
            priority=int(draw.choice(priorities)),
            models=tuple(str(model) for model in draw.permutation(MODELS)[: int(draw.integers(1, 3))])
            if draw.integers(5) == 0
            else (),
            estimate=int(draw.choice([-1, 60, 600])) * SECOND,
            preemptible=bool(draw.integers(6)),
            preempts=bool(draw.integers(8)),
            checkpoint=int(draw.choice([-1, 60])) * SECOND,
            node_wait=int(draw.choice([0, 0, 0, 90])) * SECOND,
            node_set=str(draw.choice(["", "", *NODE_SETS])) if sets else "",
        )
        if prefer:
            job = msgspec.structs.replace(job, preferences=draw_preferences(draw, len(job.groups)))
        coming.append(JobSubmitted(now, job, run))
    return coming


def draw_preferences(draw: np.random.Generator, groups: int) -> tuple[Preferences, ...]:
    """What the pods of a job like: none of them anything, all the same, or each group something of its own."""
    found = []
    for _ in range(int(draw.choice([0, 1, 1, groups]))):
        liked = [LikedNodes(name, int(draw.integers(1, 101))) for name in NODE_SETS if draw.integers(2)]
        found.append(Preferences(tuple(liked), tuple(name for name in NODE_SETS if draw.integers(3) == 0)))
    return tuple(found)


def watched_run(
    seed: int,
    discipline: str = "best-effort",
    rights: str = "none",
    groups: int = 3,
    jobs: int = 25,
    profile: Profile | None = None,
    prefer: bool = False,
) -> Watched:
    """One random world. Queues and nodes change, jobs are protected, and starts are refused at once or later.

    With `prefer` most jobs like some nodes, and the weights of the profile are drawn. With a `profile` nodes do not
    fail: a gang would get another node in place of the lost one.
    """
    draw = generator(seed)
    spec = draw_nodes(draw)
    limited = bool(draw.integers(3))
    order = str(draw.choice(["fifo", "fifo", "sjf", "drf"]))
    placement = str(draw.choice(["first-fit", "best-fit", "worst-fit"]))
    requeue = Requeue(base_s=int(draw.choice([0, 20])), in_place_s=-1, avoid_bad_nodes=False)
    shipped = profile is not None
    if profile is None:
        profile = make_profile(order, DISCIPLINES[discipline], placement, RIGHTS[rights], requeue)
        if prefer:
            weights = PreferenceWeights(*(int(draw.integers(4)) for _ in range(5)))
            profile = dataclasses.replace(profile, preferences=weights)
    refuse = at_random(0.15, seed) if draw.integers(4) == 0 else never
    harness = Watched(spec, profile, not shipped, seed=seed, refuse=refuse)
    queues = draw_queues(draw, spec)
    if limited:
        harness.happen(QueuesChanged(0, QueueConfig(tuple(queues))))
    names = tuple(queue.name for queue in queues) if limited else QUEUES
    sets = prefer or (bool(draw.integers(2)) and not shipped)
    fleet = seed % 3 == 0 and not shipped
    for event in draw_coming(draw, names, jobs, groups, int(draw.choice([10, 40])), sets, prefer):
        harness.run(until=event.time)
        harness.now = event.time
        if sets and draw.integers(5) == 0:
            change_node_set(draw, harness)
        if fleet and draw.integers(3) == 0:
            change_fleet(draw, harness, spec)
        there = list(harness.state.node_index)
        chance, node = int(draw.integers(16)), there[int(draw.integers(len(there)))] if there else ""
        if chance == 0 and limited:
            harness.set_queues(*draw_queues(draw, spec))
        elif chance == 1 and not shipped and node:
            harness.fail(node)
        elif chance in (2, 3) and node:
            harness.bring_back(node)
        elif chance == 4 and harness.running():
            refuse_later(harness, str(draw.choice(harness.running())))
        elif chance == 5 and harness.running():
            harness.happen(
                JobProtected(harness.now, str(draw.choice(harness.running())), str(draw.choice(["", "budget"])))
            )
        elif chance == 6 and harness.waiting():
            harness.happen(JobAwaitsNode(harness.now, str(draw.choice(harness.waiting())), bool(draw.integers(4) == 0)))
        harness.run([event], until=event.time)
        if harness.differences:
            return harness
    harness.run(until=harness.now + 5_000 * SECOND)
    return harness


def change_node_set(draw: np.random.Generator, harness: Watched) -> None:
    """Some nodes enter a set or leave it."""
    name = str(draw.choice(NODE_SETS))
    chosen = [name for name in harness.state.node_index if draw.integers(2)]
    there = harness.reference.world.node_sets.get(name, set())
    added = tuple(node for node in chosen if node not in there)
    harness.happen(NodeSetChanged(harness.now, name, added, tuple(node for node in chosen if node in there)))


def change_fleet(draw: np.random.Generator, harness: Watched, spec: ClusterSpec) -> None:
    """A node joins, old or new, or leaves, or is another one from now on."""
    state, drawn = harness.state, draw_nodes(draw, 1).nodes[0]
    there = list(state.node_index)
    what = int(draw.integers(4))
    if what == 0 and len(there) < 8:
        gone = [node for node in spec.nodes if node.name not in there]
        new = msgspec.structs.replace(drawn, name=f"x{len(harness.events)}")
        harness.join(gone[int(draw.integers(len(gone)))] if gone and draw.integers(2) else new)
    elif what == 1 and there:
        harness.leave(str(draw.choice(there)))
    elif there:
        name = str(draw.choice(there))
        try:
            harness.describe(msgspec.structs.replace(drawn, name=name))
        except StateError:
            harness.evict(*harness.jobs_on(name))
            harness.describe(msgspec.structs.replace(drawn, name=name))


def filling_run(seed: int, discipline: str, rights: str = "none") -> Watched:
    """A gang of unlike groups does not fit, and fits once a small job has started: less room, and another order.

    No capacity comes free. A node that one job holds for ever keeps the gang from being impossible.
    """
    draw = generator(seed)
    placement, nodes, gang, small = contrary(seed)
    profile = make_profile("fifo", DISCIPLINES[discipline], placement, RIGHTS[rights])
    large = Node("large", 40, "large", cpu=40_000, memory=40_000)
    harness = Watched(ClusterSpec("drawn", (*nodes, large)), profile, seed=seed)
    jobs = [
        Job("fills", 0, (PodGroup(1, Demand(40, 1000, 40_000, 40_000)),), priority=9, models=("large",)),
        Job("gang", 0, gang, queue=str(draw.choice(QUEUES))),
        *(Job(f"behind{i}", 0, gang, queue=str(draw.choice(QUEUES))) for i in range(int(draw.integers(3)))),
        small,
        Job("later", 0, (PodGroup(1, Demand(40, 1000)),)),  # the cycle in which the gang is looked at again
    ]
    for i, job in enumerate(jobs):
        together = i > 0 and draw.integers(3) == 0
        harness.run([JobSubmitted(harness.now + SECOND * (not together), job, FOREVER)], until=harness.now + SECOND)
    return harness


@cache
def contrary(seed: int) -> tuple[str, list[Node], tuple[PodGroup, ...], Job]:
    """A placement, nodes, a gang that finds no place there, and a small job beside which it finds one.

    Such worlds are rare: it takes a second to draw one."""
    draw = generator(seed)
    while True:
        placement = str(draw.choice(list(SCORES)))
        nodes = [
            Node(
                f"n{i}",
                int(draw.integers(1, 5)),
                f"m{i}",
                cpu=int(draw.integers(1, 9)) * 500,
                memory=int(draw.integers(1, 9)) * 256,
            )
            for i in range(int(draw.integers(2, 4)))
        ]
        gang = Job("gang", 0, tuple(draw_small(draw, 2) for _ in range(int(draw.integers(2, 4)))))
        if place(empty(nodes), gang, SCORES[placement]) is not None:
            continue
        for node in nodes:
            first = int(draw.integers(2))
            demand = Demand(1, 1000, int(draw.integers(3)) * 500)
            small = Job("small", 0, (PodGroup(1, demand),), models=(node.model,), priority=first)
            rooms = empty(nodes)
            if place(rooms, small, SCORES[placement]) is not None and place(rooms, gang, SCORES[placement]) is not None:
                return placement, nodes, gang.groups, small


def empty(nodes: list[Node]) -> list[Room]:
    return ReferenceWorld.of(ClusterSpec("drawn", tuple(nodes))).empty()


def draw_small(draw: np.random.Generator, pods: int) -> PodGroup:
    """A group of up to `pods` pods, limited by GPUs, CPU and memory alike."""
    gpus, cpu = int(draw.integers(0, 4)), int(draw.integers(0, 5)) * 500
    demand = Demand(gpus, 1000, cpu if gpus else max(cpu, 500), int(draw.integers(0, 5)) * 256)
    return PodGroup(int(draw.integers(1, pods + 1)), demand)


def crowded_run(seed: int, rights: str) -> Watched:
    """A full cluster of preemptible jobs, and urgent ones that come to it."""
    draw = generator(seed)
    spec = ClusterSpec("drawn", tuple(Node(f"n{i}", int(draw.integers(1, 5))) for i in range(int(draw.integers(1, 4)))))
    rules = msgspec.structs.replace(RIGHTS[rights], most=float(draw.choice([0.5, 1, 2, 3])))
    discipline = DISCIPLINES[str(draw.choice(list(DISCIPLINES)))]
    order = str(draw.choice(["fifo", "drf"]))
    harness = Watched(spec, make_profile(order, discipline, "best-fit", rules), seed=seed)
    queues = [Queue(name, "all", min_run=int(draw.integers(2)) * 90 * SECOND) for name in ("a", "b", "c")]
    queues[0] = msgspec.structs.replace(queues[0], max_time=int(draw.choice([0, 200])) * SECOND)
    if rights != "priority":
        gpus = sum(node.gpus for node in spec.nodes)
        quotas = [(Quota(nominal=int(draw.integers(gpus + 1)) * GPU),) for _ in queues]
        queues = [msgspec.structs.replace(queue, quotas=quota) for queue, quota in zip(queues, quotas, strict=True)]
        if draw.integers(2):  # in thousandths of GPU-hours
            spend = draw.choice([-1, -1, 40, 90, 200], (4, 4))
            for hard in (0, 2):  # a soft limit is at most the hard one
                spend[:, hard + 1] = np.where(spend[:, hard] < 0, spend[:, hard + 1], spend[:, hard : hard + 2].min(1))
            spend = spend.tolist()
            tree = zip((Queue("all"), *queues), spend, strict=True)
            tenancy = QueueConfig(tuple(msgspec.structs.replace(queue, budget=Budget(*own)) for queue, own in tree))
        else:
            tenancy = QueueConfig((Queue("all"), *queues))
        harness.happen(QueuesChanged(0, tenancy))
        harness.happen(BudgetsUsed(0, (300 * SECOND, 700 * SECOND, 900 * SECOND)))
    for i in range(16):
        gpus = int(draw.integers(1, 5))
        group = PodGroup(int(draw.integers(1, 3)), Demand(gpus, 1000)) if i % 4 else PodGroup(1, Demand(1, 500))
        job = Job(
            f"j{i}",
            harness.now,
            (group,),
            queue=str(draw.choice(["a", "b", "c"])),
            user=str(draw.choice(["ann", "bob"])),
            priority=i // 4 * int(draw.integers(2)),
            preemptible=bool(draw.integers(6)),
            checkpoint=int(draw.choice([-1, 30])) * SECOND,
            limit=int(draw.choice([-1, 100 * SECOND, 300 * SECOND])),
        )
        runtime = int(draw.integers(20, 400)) * SECOND
        harness.run([JobSubmitted(harness.now, job, runtime)], until=harness.now + int(draw.integers(90)) * SECOND)
        comes = harness.now + int(draw.integers(2)) * SECOND
        harness.run(until=comes)
        harness.now = comes
    harness.run(until=harness.now + 600 * SECOND)
    return harness


def refuse_later(harness: Harness, job: str) -> None:
    """A start is refused after some time, and after the job has said how far it is."""
    harness.happen(JobProgressed(harness.now, job, 100 * SECOND))
    harness._stop(job)
    harness.happen(JobRefused(harness.now, job, "the driver of the test refuses late"))
