"""What pods of a group are told does not depend on the order in which they, their group and the answers come."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples
from tests.kube.leading import Leader

from kant.kube.follow.mirror import Mirror
from kant.kube.objects import views as k
from kant.kube.reconcile import membership
from kant.kube.reconcile.membership import Membership
from kant.kube.reconcile.translation import Translation
from kant.kube.reconcile.workload import Phase, waits
from kant.kube.translate.groups import GroupRef, group_of
from kant.live.sentences import public_sentence

MADE = "2026-01-31T12:00:00Z"
GPUS, LEAST, PODS = 4, 3, 6
KEY = "scheduling.x-k8s.io/pod-group"
KEYS = [f"ml/{KEY.split('/')[0]}/g"]
OBJECT = k.Unstructured(metadata=k.Meta("g", "ml"), spec=msgspec.Raw(b'{"minMember": %d}' % LEAST))


def pod(number: int, generation: int) -> k.Pod:
    amounts: dict[str, str | int | float] = {"nvidia.com/gpu": 1, "cpu": 1}
    spec = k.PodSpec(scheduler_name="kant", containers=(k.Container(k.Resources(amounts, amounts)),))
    uid = f"g-{number}.{generation}"
    return k.Pod(k.Meta(f"g-{number}", "ml", uid, annotations={KEY: "g"}, creation_timestamp=MADE), spec)


class Story:
    """A leader that is told of changes one by one, as by watches, and answers that come when the story says."""

    def __init__(self, mirror: Mirror, there: k.Unstructured | None) -> None:
        self.mirror, self.object, self.made = mirror, there, 0
        self.told: dict[str, str] = {}
        self.leader = Leader(mirror)
        self.workloads = self.leader.workloads
        self.in_flight = self.workloads.transitions.in_flight = set[str]()
        self.hear()

    def step(self, what: str, number: int) -> None:
        if what == "pod":
            self.made += 1
            self.touch("added", pod(number, self.made))
        elif what == "gone":
            for one in list(self.mirror.pods.values()):
                if one.metadata.name == f"g-{number}":
                    self.touch("deleted", one)
        elif what == "object":
            self.object = OBJECT
        elif what == "read":
            self.read()
        elif what == "answer":
            self.answer()
        else:
            self.turn()
        self.hear()

    def end(self) -> dict[str, str]:
        """What each pod that waits has been told once nothing is under way."""
        for _ in range(4):
            self.answer()
            self.read()
            self.turn()
            self.hear()
        return {uid: self.told.get(uid, "") for uid, one in self.mirror.pods.items() if waits(one)}

    def touch(self, kind: str, one: k.Pod) -> None:
        if kind == "added" and any(one.metadata.name == old.metadata.name for old in self.mirror.pods.values()):
            return
        self.mirror.pod(kind, one)
        key = self.workloads.members.note(one.metadata.uid, one)
        self.settle([key] if key is not None else [])

    def settle(self, keys: Iterable[str]) -> None:
        self.workloads.settle_all(dict.fromkeys(keys))

    def read(self) -> None:
        """The answers to what was asked of the group; one that was not there may have come."""
        groups = self.leader.translation.groups
        if any(found is None for found in groups.values()):
            groups.clear()
            self.settle(KEYS)
        awaited, self.workloads.reading.awaited = self.workloads.reading.awaited, {}
        for ref in awaited:
            groups.update(dict.fromkeys(ref.paths, self.object))
            self.settle(["/".join(ref.key)])

    def answer(self) -> None:
        self.in_flight.clear()
        self.settle(self.workloads.affected.answered())

    def turn(self) -> None:
        """Decide; the watch tells of the bindings at once, and their answers are under way."""
        self.leader.executor.execute(self.leader.core.cycle())
        transitions = self.workloads.transitions
        slots = [slot for one in transitions.to_bind if one.phase is Phase.PLACED for slot in one.slots]
        transitions.to_bind.clear()
        for slot in slots:
            one = self.mirror.pods[slot.pod] if slot.pod else None
            if one is not None and not one.spec.node_name:
                self.in_flight.add(slot.pod)
                self.touch("modified", msgspec.structs.replace(one, spec=_at(one.spec, slot.node)))

    def hear(self) -> None:
        workloads, held = self.workloads, self.leader.executor.held
        workloads.messages.look_at_growing(at_once=True)
        while held:
            workload, decision = held.popleft()
            workload.reason = public_sentence(decision.reason)
            self.told.update(dict.fromkeys(workloads.members.pods_of.get(workload.key, ()), workload.reason))
        workloads.elastic.report_waiting()
        while workloads.messages.unsent:
            workload, sentence, _ = workloads.messages.unsent.popleft()
            self.told.update(dict.fromkeys(workloads.members.pods_of.get(workload.key, ()), sentence))


def _at(spec: k.PodSpec, node: str) -> k.PodSpec:
    return msgspec.structs.replace(spec, node_name=node)


STEPS = st.tuples(
    st.sampled_from(("pod", "pod", "pod", "gone", "object", "read", "answer", "turn")), st.integers(0, PODS - 1)
)


@settings(max_examples=examples(30))
@given(st.lists(STEPS, max_size=24))
def test_what_pods_are_told_is_what_a_new_leader_would_tell_them(steps: list[tuple[str, int]]) -> None:
    mirror = Mirror()
    room: dict[str, str | int | float] = {"cpu": 64, "memory": "64Gi", "nvidia.com/gpu": GPUS}
    mirror.nodes.change(
        "added", k.Node(k.Meta("n"), k.NodeSpec(), k.NodeStatus(room, room, (k.Condition("Ready", "True"),)))
    )
    story = Story(mirror, None)
    for step in steps:
        story.step(*step)
    told = story.end()
    assert all(told.values()) and told == Story(mirror, story.object).end()


def own_pod(number: int, least: int) -> k.Pod:
    one, own = pod(number, 1), "scheduling.kant.dev"
    notes = {f"{own}/pod-group": "g", f"{own}/min-available": f"{least}"}
    return msgspec.structs.replace(one, metadata=msgspec.structs.replace(one.metadata, annotations=notes))


@settings(max_examples=examples(30))
@given(st.lists(st.integers(2, GPUS), max_size=PODS))
def test_a_gang_whose_pods_say_different_numbers_starts_by_the_largest(said: list[int]) -> None:
    mirror = Mirror()
    room: dict[str, str | int | float] = {"cpu": 64, "memory": "64Gi", "nvidia.com/gpu": GPUS}
    mirror.nodes.change(
        "added", k.Node(k.Meta("n"), k.NodeSpec(), k.NodeStatus(room, room, (k.Condition("Ready", "True"),)))
    )
    leader = Leader(mirror)

    def start() -> int:
        leader.settle()
        while leader.turn():
            pass
        return sum(bool(one.spec.node_name) for one in mirror.pods.values())

    for number, least in enumerate(said):  # a gang that has as many as its first pods say waits for a cycle already
        mirror.pod("added", own_pod(number, least))
        leader.settle()
    assert start() == (min(len(said), GPUS) if len(said) >= max(said, default=0) else 0)
    if len(said) < max(said, default=0):
        for number, least in enumerate(said):
            if least > len(said):
                mirror.pod("deleted", mirror.pods[f"g-{number}.1"])
        rest = [least for least in said if least <= len(said)]
        assert start() == (len(rest) if len(rest) >= max(rest, default=0) else 0)


def test_a_pod_that_says_another_number_costs_the_same_however_many_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    mirror = Mirror()
    members, asked = Membership(mirror, Translation(mirror)), 0

    def counted(pod: k.Pod) -> GroupRef | None:
        nonlocal asked
        asked += 1
        return group_of(pod)

    monkeypatch.setattr(membership, "group_of", counted)
    for number in range(60):
        one = own_pod(number, 2 + number % 7)
        mirror.pod("added", one)
        members.note(one.metadata.uid, one)
    (workload,) = members.by_key.values()
    assert workload.group is not None and (workload.group.least, asked) == (8, 60)
