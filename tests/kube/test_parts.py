"""Parts that start one after the other: which are one gang, that nobody waits for ever, who stands in for pods."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples

from kant.kube.objects import views as k
from kant.kube.translate.group_spec import Part, is_stand_in
from kant.kube.translate.parts import gangs_of, later_parts, stand_ins
from kant.kube.translate.resources import requests_of
from kant.model.errors import InputError

NAMES = "abcde"


def part(name: str, *after: str, pods: int = 1, scheduler: str = "kant") -> Part:
    """`b+` stands for: once b is complete."""
    return Part(
        name, pods, {"spec": {"schedulerName": scheduler}}, tuple((one.rstrip("+"), "+" in one) for one in after)
    )


CASES = [
    ([part("a"), part("b")], ["ab"]),
    ([part("a"), part("b", "a"), part("c", "b")], ["abc"]),
    # a TrainJob with initializers
    ([part("dataset"), part("model"), part("node", "dataset+", "model+")], ["dataset", "model", "node"]),
    ([part("i"), part("l", "i+"), part("w", "l")], ["i", "lw"]),
    # the leader holds places while the initializer is yet to run
    ([part("i"), part("l"), part("w", "l", "i+")], ["ilw"]),
    ([part("d", scheduler="other"), part("v"), part("w", "d")], ["d", "vw"]),
    ([part("a", "nobody")], ["a"]),
    ([], []),
]


@pytest.mark.parametrize(("parts", "expected"), CASES)
def test_which_parts_are_one_gang(parts: list[Part], expected: list[str]) -> None:
    assert ["".join(one.name for one in gang) for gang in gangs_of(parts)] == expected


def test_who_comes_later_in_a_gang() -> None:
    parts = [part("i"), part("l", "i+"), part("w", "l")]
    assert [[one.name for one in later_parts(gang)] for gang in gangs_of(parts)] == [[], ["w"]]


# --- nobody waits for ever ---------------------------------------------------------------------------------------


@st.composite
def workloads(draw: st.DrawFn) -> list[Part]:
    count = draw(st.integers(1, len(NAMES)))
    parts = []
    for at, name in enumerate(NAMES[:count]):
        before = draw(st.lists(st.sampled_from(NAMES[:at]), unique=True, max_size=2)) if at else []
        after = [one + draw(st.sampled_from(["", "+"])) for one in before]
        parts.append(part(name, *after, pods=draw(st.integers(1, 3))))
    return parts


class Run:
    """One workload under a controller that makes each part as its `after` says; its cluster admits gangs whole."""

    def __init__(self, parts: list[Part], gangs: list[list[Part]]) -> None:
        self.parts, self.gangs = parts, gangs
        self.awaited = {name for one in parts for name, complete in one.after if complete}
        self.admitted: set[str] = set()  # the names of their parts
        self.done: set[str] = set()

    def runs(self, one: Part) -> bool:
        return self.is_made(one) and one.name in self.admitted

    def is_made(self, one: Part) -> bool:
        by_name = {other.name: other for other in self.parts}
        return all(name in self.done or (not complete and self.runs(by_name[name])) for name, complete in one.after)

    @property
    def held(self) -> int:
        return sum(one.pods for one in self.parts if one.name in self.admitted - self.done)

    def asks(self) -> list[list[Part]]:
        """Gangs of which all pods are there that are not to come later."""
        left = [gang for gang in self.gangs if gang[0].name not in self.admitted]
        return [gang for gang in left if all(self.is_made(one) for one in gang if one not in later_parts(gang))]

    def ends(self) -> list[str]:
        """Parts that may end: those that others await, and the rest once all run, for they may need each other."""
        running = [one for one in self.parts if self.runs(one) and one.name not in self.done]
        there = {one.name for one in running} | self.done
        every = all(one.name in there for one in self.parts)
        return [one.name for one in running if every or one.name in self.awaited]


@settings(max_examples=examples(200))
@given(st.lists(workloads(), min_size=1, max_size=4), st.randoms(use_true_random=False))
def test_nobody_waits_for_ever_for_what_another_one_holds(many: list[list[Part]], random: Any) -> None:
    """In a cluster that is just large enough for the largest gang, whatever the order of events."""
    runs = [Run(parts, gangs_of(parts)) for parts in many]
    size = max(sum(one.pods for one in gang) for run in runs for gang in run.gangs)
    for _ in range(200):
        free = size - sum(run.held for run in runs)
        steps: list[tuple[set[str], set[str]]] = []
        for run in runs:
            fitting = [gang for gang in run.asks() if sum(one.pods for one in gang) <= free]
            steps += [(run.admitted, {one.name for one in gang}) for gang in fitting]
            steps += [(run.done, {name}) for name in run.ends()]
        if not steps:
            break
        into, names = random.choice(steps)
        into |= names
    assert all(len(run.done) == len(run.parts) for run in runs)


# --- who stands in -----------------------------------------------------------------------------------------------

SIBLING = k.Pod(
    k.Meta("l-0", "ml", "u0", creation_timestamp="2026-01-31T12:00:00Z", owner_references=(k.Owner(controller=True),)),
    k.PodSpec(priority=7, tolerations=(k.Toleration("node.kubernetes.io/not-ready", "Exists", "", "NoExecute"),)),
)
TEMPLATE = {
    "metadata": {"labels": {"scheduling.kant.dev/queue": "q"}},
    "spec": {
        "containers": [{"resources": {"limits": {"nvidia.com/gpu": 2, "cpu": "4"}, "requests": {"cpu": "1"}}}],
        "volumes": [{"name": "scratch", "ephemeral": {}}, {"name": "d", "persistentVolumeClaim": {"claimName": "d"}}],
        "nodeSelector": {"gpu": "h"},
    },
}


def test_a_stand_in_asks_for_what_its_pod_will_ask_for() -> None:
    first, second = stand_ins(Part("w", 3, TEMPLATE), 2, "set", SIBLING)
    assert is_stand_in(first) and not is_stand_in(SIBLING) and first.metadata.uid != second.metadata.uid
    demand = requests_of(first.spec).demand
    assert (demand.gpus, demand.cpu) == (2, 1000)
    assert (first.spec.priority, first.spec.tolerations) == (7, SIBLING.spec.tolerations)
    assert first.metadata.owner_references == SIBLING.metadata.owner_references
    assert first.metadata.namespace == "ml" and first.metadata.labels == {"scheduling.kant.dev/queue": "q"}
    assert [volume.name for volume in first.spec.volumes] == ["d"] and first.spec.node_selector == {"gpu": "h"}


def test_a_pod_of_its_part_is_a_better_likeness_than_the_template() -> None:
    limits: dict[str, str | int | float] = {"nvidia.com/gpu": 1, "cpu": "2"}
    spec = k.PodSpec(node_name="n0", containers=(k.Container(k.Resources(limits, limits)),))
    (one,) = stand_ins(Part("w", 3, TEMPLATE), 1, "set", SIBLING, k.Pod(k.Meta("w-0", "ml", "u1"), spec))
    assert requests_of(one.spec).demand.gpus == 1 and not one.spec.node_name


def test_a_template_that_is_none_is_refused_in_one_sentence() -> None:
    with pytest.raises(InputError, match="the template of w, a part of set: expected a valid pod template"):
        stand_ins(Part("w", 3, {"spec": {"containers": 7}}), 1, "set", SIBLING)
