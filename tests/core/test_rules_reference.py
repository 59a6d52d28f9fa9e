"""Under rules among pods every plan is that of the reference scheduler, which tries every order and every node.

So no world that is placed breaks a rule, and what waits has no place: the reference has neither counters nor kernels.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.core.reference.places import may_stand
from tests.core.reference.world import ReferenceWorld
from tests.core.reference_worlds import DISCIPLINES, RIGHTS, Watched
from tests.examples import examples

from kant.model.event import (
    Event,
    JobReleased,
    JobReserved,
    JobRuled,
    JobStarted,
    JobSubmitted,
    NodeSetChanged,
    PodsCounted,
    TopologyChanged,
)
from kant.model.job import Demand, Job, PodGroup
from kant.model.node import ClusterSpec, Node
from kant.model.rules import PodAffinity, PodAntiAffinity, PodRules, TopologySpread
from kant.model.units import FOREVER, SECOND
from kant.queueing.requeue import Requeue
from kant.scheduler.profile import Profile, builtin_profile
from kant.testing import Harness, make_profile
from kant.testing.drawn import generator

SEEDS = st.integers(0, 10**9)
CLASSES = ("web", "db", "!web")
TOPOLOGIES = ("zone", "rack", "leaf", "node")
AMOUNTS = ("pods", "fpga")


def draw_cluster(draw: np.random.Generator) -> ClusterSpec:
    return ClusterSpec("drawn", tuple(draw_node(draw, f"n{i}") for i in range(int(draw.integers(2, 6)))))


def draw_node(draw: np.random.Generator, name: str) -> Node:
    amounts = tuple((name, int(draw.integers(1, 6))) for name in AMOUNTS if draw.integers(3))
    return Node(name, int(draw.integers(1, 5)), cpu=8000, leaf=f"leaf{draw.integers(2)}", amounts=amounts)


def draw_rules(draw: np.random.Generator, wide: bool) -> PodRules:
    """What pods count as and demand; without `wide` only of their own node."""

    def topology() -> str:
        return str(draw.choice(TOPOLOGIES)) if wide else "node"

    def some(most: int) -> range:
        return range(int(draw.integers(most + 1)))

    spread = {
        (str(draw.choice(CLASSES)), topology()): (int(draw.integers(1, 3)), int(draw.integers(1, 4))) for _ in some(1)
    }
    return PodRules(
        tuple(str(name) for name in draw.permutation(CLASSES)[: int(draw.integers(3))]),
        tuple(PodAntiAffinity(str(draw.choice(CLASSES)), topology(), int(draw.choice([0, 0, 1]))) for _ in some(1)),
        tuple(PodAffinity(str(draw.choice(CLASSES)), topology()) for _ in some(1)) if wide else (),
        tuple(TopologySpread(*of, *limits) for of, limits in spread.items()) if wide else (),
        tuple((name, int(draw.integers(0, 3))) for name in AMOUNTS if draw.integers(4) == 0),
        (("power", int(draw.integers(1, 4)), int(draw.integers(2, 9))),) if wide and draw.integers(3) == 0 else (),
    )


def draw_job(draw: np.random.Generator, number: int, now: int, groups: int, wide: bool) -> Job:
    own = tuple(
        PodGroup(int(draw.choice([1, 1, 2, 3])), Demand(int(draw.choice([0, 1, 1, 2])), 1000, 500))
        for _ in range(int(draw.integers(1, groups + 1)))
    )
    rules = (
        tuple(draw_rules(draw, wide) for _ in range(len(own) if draw.integers(2) else 1)) if draw.integers(5) else ()
    )
    return Job(
        f"j{number}", now, own, priority=int(draw.choice([0, 0, 5])), rules=rules, preemptible=bool(draw.integers(5)),
        node_set="some" if draw.integers(5) == 0 else "",
    )  # fmt: skip


def ruled_run(
    seed: int, discipline: str = "best-effort", rights: str = "none", groups: int = 1, wide: bool = True
) -> Watched:
    """One random world: jobs with rules come and go, nodes change their domains, and pods of no job stand about."""
    draw = generator(seed)
    requeue = Requeue(base_s=0, in_place_s=-1, avoid_bad_nodes=False)
    placement = str(draw.choice(["first-fit", "best-fit", "kant"]))
    profile = make_profile("fifo", DISCIPLINES[discipline], placement, RIGHTS[rights], requeue)
    spec = draw_cluster(draw)
    harness = Watched(spec, profile, own_places=False, seed=seed)
    kinds = [draw_job(draw, number, 0, groups, wide) for number in range(int(draw.integers(2, 6)))]
    harness.happen(NodeSetChanged(0, "some", tuple(node.name for node in spec.nodes if draw.integers(2))))
    for number in range(14):
        change(draw, harness, wide)
        kind = kinds[int(draw.integers(len(kinds)))]
        job = Job(
            f"j{number}", harness.now, kind.groups, priority=kind.priority, rules=kind.rules,
            preemptible=kind.preemptible, node_set=kind.node_set,
        )  # fmt: skip
        runtime = int(draw.choice([40, 200, FOREVER // SECOND - 1])) * SECOND
        harness.run([JobSubmitted(harness.now, job, runtime)], until=harness.now + int(draw.integers(40)) * SECOND)
        harness.state.check()
        if harness.differences:
            break
    return harness


def change(draw: np.random.Generator, harness: Harness, wide: bool) -> None:
    """Something happens to nodes, or to what is said of pods."""
    there = list(harness.state.node_index)
    what, node = int(draw.integers(8)), str(draw.choice(there))
    if what == 0 or not harness.state.counter_tables.said:
        domains = {name: str(draw.choice(["a", "b", "c", ""])) for name in there if draw.integers(3)}
        harness.happen(TopologyChanged(harness.now, str(draw.choice(["zone", "rack"])), domains))
    elif what == 1:
        classes = {name: int(draw.integers(3)) for name in CLASSES if draw.integers(2)}
        harness.happen(PodsCounted(harness.now, node, classes, {"pods": int(draw.integers(2))}))
    elif what == 2 and harness.running():
        rules = (draw_rules(draw, wide),) if draw.integers(2) else ()
        harness.happen(JobRuled(harness.now, str(draw.choice(harness.running())), rules))
    elif what == 3 and len(there) > 1:
        harness.leave(node)
    elif what == 4:
        gone = [own for own in harness.state.nodes if own.name and own.name not in there]
        harness.join(gone[0] if gone and draw.integers(2) else draw_node(draw, f"x{len(harness.events)}"))
    elif what == 5:
        own = harness.state.nodes[harness.state.node_index[node]]
        harness.describe(
            Node(
                **{name: getattr(own, name) for name in own.__struct_fields__}
                | {"amounts": draw_node(draw, "").amounts}
            )
        )


@pytest.mark.parametrize("discipline", ["best-effort", "strict"])
@given(seed=SEEDS)
@settings(max_examples=examples(40), deadline=None)
def test_every_plan_under_rules_is_that_of_the_reference(discipline: str, seed: int) -> None:
    assert ruled_run(seed, discipline).differences == []


@given(seed=SEEDS)
@settings(max_examples=examples(30), deadline=None)
def test_gangs_of_several_groups_under_rules_are_placed_exactly(seed: int) -> None:
    assert ruled_run(seed, groups=2).differences == []


@pytest.mark.parametrize("rights", ["priority"])
@given(seed=SEEDS)
@settings(max_examples=examples(30), deadline=None)
def test_the_victims_under_rules_of_one_node_are_those_of_the_reference(rights: str, seed: int) -> None:
    assert ruled_run(seed, rights=rights, wide=False).differences == []


class Careful(Harness):
    """A driver that looks at every start before it carries it out: does some order of the pods keep all rules?"""

    def __init__(self, spec: ClusterSpec, profile: Profile, seed: int) -> None:
        super().__init__(spec, profile, seed=seed, check=False)
        self.world = ReferenceWorld.of(spec)
        self.broken: list[str] = []

    def happen(self, event: Event) -> None:
        if isinstance(event, JobStarted):
            job = self.world.waiting[event.job].job
            if not may_stand(self.world.rooms(), job, event.allocation.tolist()):
                self.broken.append(f"{event}: {job.rules}")
        super().happen(event)
        if not isinstance(event, (JobReserved, JobReleased)):
            self.world.happen(event)


@pytest.mark.parametrize("name", ["kant", "easy", "conservative", "spread"])
@given(seed=SEEDS)
@settings(max_examples=examples(24), deadline=None)
def test_no_start_of_a_shipped_profile_breaks_a_rule(name: str, seed: int) -> None:
    """With reservations, backfilling and preemption, which the reference does not decide under such rules."""
    draw = generator(seed)
    spec = draw_cluster(draw)
    harness = Careful(spec, builtin_profile(name), seed)
    kinds = [draw_job(draw, number, 0, 2, True) for number in range(4)]
    harness.happen(NodeSetChanged(0, "some", tuple(node.name for node in spec.nodes if draw.integers(2))))
    for number in range(14):
        change(draw, harness, True)
        kind = kinds[int(draw.integers(4))]
        job = replace(kind, id=f"j{number}", submit=harness.now, estimate=int(draw.choice([-1, 60, 300])) * SECOND)
        runtime = int(draw.choice([40, 200, 2000])) * SECOND
        harness.run([JobSubmitted(harness.now, job, runtime)], until=harness.now + int(draw.integers(400)) * SECOND)
        harness.state.check()
    assert harness.broken == []
