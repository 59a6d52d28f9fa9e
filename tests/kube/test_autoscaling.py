"""What Events of node autoscalers say of pods. The messages are theirs, as clusters have shown them."""

from __future__ import annotations

from types import SimpleNamespace as Of
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kant.kube.follow.scale_ups import ScaleUps
from kant.kube.objects.views import Meta, Pod, PodSpec
from kant.kube.reconcile.awaited_nodes import AwaitedNodes
from kant.kube.reconcile.workload import Phase, Workload
from kant.kube.translate.autoscaling import PodEvent, ScaleUp, of_gang, scale_up_of, sentence
from kant.testing import Harness, make_cluster, make_job, make_profile

CA, NOT = "cluster-autoscaler", "pod didn't trigger scale-up"
SAID = {
    "scales up": ("TriggeredScaleUp", CA, "pod triggered scale-up: [{gpu 1->2 (max: 4)}]", True),
    "a new node": ("Nominated", "karpenter", "Pod should schedule on: nodeclaim/gpu-x7, node/ip-10", True),
    "a node that is there": ("Nominated", "karpenter", "Pod should schedule on: node/ip-10", ...),
    "at its limits": ("NotTriggerScaleUp", CA, f"{NOT}: 2 max node group size reached, 1 Insufficient cpu", False),
    "older words": ("NotTriggerScaleUp", CA, f"{NOT} (it wouldn't fit if a new node is added)", False),
    "no group": ("NotTriggerScaleUp", CA, f"{NOT}:", False),
    "backs off": (
        "NotTriggerScaleUp",
        CA,
        f"{NOT}: 1 max node group size reached, 1 in backoff after failed scale-up",
        None,
    ),
    "not ready": ("NotTriggerScaleUp", CA, f"{NOT}: 1 not ready for scale-up", None),
    "fits no pool": (
        "FailedScheduling",
        "eks-auto-mode/compute",
        "Failed to schedule pod, incompatible requirements",
        False,
    ),
    "of a scheduler": ("FailedScheduling", "karpenter", "0/3 nodes are available", ...),
    "something else": ("ScaleDown", CA, "deleting pod for node scale down", ...),
}


def event(reason: str, source: str, message: str, version: int = 7, uid: str = "u") -> PodEvent:
    text = {"metadata": {"name": "e", "resourceVersion": str(version)}, "involvedObject": {"kind": "Pod", "uid": uid},
            "reason": reason, "message": message, "source": {"component": source}}  # fmt: skip
    return msgspec.json.decode(msgspec.json.encode(text), type=PodEvent)


@pytest.mark.parametrize("case", SAID)
def test_what_they_say(case: str) -> None:
    reason, source, message, comes = SAID[case]
    found = scale_up_of(event(reason, source, message))
    assert found == (None if comes is ... else ScaleUp(7, comes, f"{source}: {message}"))


def test_for_people() -> None:
    said = {case: scale_up_of(event(*SAID[case][:3])) for case in SAID}
    assert sentence(said["scales up"] or ScaleUp(0, False, "")) == (
        "a node is being added for it (cluster-autoscaler: pod triggered scale-up: [{gpu 1->2 (max: 4)}])"
    )
    assert sentence(ScaleUp(0, False, "x")) == "no node is added for it (x)"
    assert sentence(ScaleUp(0, None, "x")) == "no node is added now for it (x)"
    long = scale_up_of(event("NotTriggerScaleUp", CA, f"(combined from similar events): {NOT}:\n" + "1 y, " * 99))
    assert long is not None and long.said.startswith(f"{CA}: {NOT}: 1 y, 1 y") and len(long.said) < 230


def test_a_gang_needs_a_node_for_each_of_its_pods() -> None:
    yes, no, later = ScaleUp(3, True, "yes"), ScaleUp(2, False, "no"), ScaleUp(1, None, "later")
    assert of_gang([]) is None
    assert of_gang([yes]) == yes and of_gang([yes, later]) == later and of_gang([later, yes, no]) == no


@given(said=st.permutations([(version, kind) for version in range(1, 5) for kind in ("modified",)]), last=st.booleans())
def test_what_was_said_last_counts_in_whatever_order_it_comes(said: list[tuple[int, str]], last: bool) -> None:
    """A list has no order, and each autoscaler a watch of its own."""
    known, reason = ScaleUps(), ("NotTriggerScaleUp", "TriggeredScaleUp")
    for version, kind in said:
        known.event(kind, event(reason[version % 2], CA, f"m{version}", version))
    assert known.of_pod["u"] == ScaleUp(4, False, f"{CA}: m4")
    known.touched.clear()
    assert not known.event("modified", event(reason[0], CA, "m4", 9)) and not known.touched, "said again"
    known.event("deleted", event(reason[1], CA, "m3", 3))
    assert known.of_pod["u"].version == 9, "an older Event has expired"
    assert known.event("deleted", event(reason[0], CA, "m4", 9)) and not known.of_pod and known.touched == {"u": None}


def test_the_state_follows_what_was_said_last_of_the_pods_that_wait() -> None:
    harness, scale_ups, clock = Harness(make_cluster(8, 8), make_profile()), ScaleUps(), [0.0]
    harness.submit(make_job("busy", 8, 2), make_job("gang", 8, 2), make_job("other", 8))
    harness.cycle(0)
    pods = {uid: Pod(Meta(uid, uid=uid), PodSpec(node_name="n" * (uid == "busy"))) for uid in ("busy", "g0", "g1", "o")}
    key_of = {"busy": "busy", "g0": "gang", "g1": "gang", "o": "other"}
    by_key = {key: Workload(key) for key in key_of.values()}
    for key, one in by_key.items():
        one.job, one.phase, one.reason = key, Phase.WAITING, "said"
        one.members = [Of(pod=pods[uid]) for uid in pods if key_of[uid] == key]  # type: ignore[misc]
    core: Any = Of(state=harness.state, happen=harness.happen, now=0, clock=lambda: clock[0])
    workloads: Any = Of(core=core, mirror=Of(scale_ups=scale_ups, pods=pods), members=Of(by_key=by_key, key_of=key_of))
    listens: list[bool] = []
    awaited = AwaitedNodes(workloads, lambda: listens.append(True))

    def after(uid: str, comes: bool | None, version: int) -> list[str]:
        reason = {True: "TriggeredScaleUp", False: "NotTriggerScaleUp", None: "NotTriggerScaleUp"}[comes]
        scale_ups.event("modified", event(reason, CA, "in backoff" if comes is None else "", version, uid))
        awaited.follow()
        return [harness.state.ids[row] for row in harness.state.without_node]

    assert after("g0", True, 1) == [] and by_key["gang"].reason == "" and by_key["other"].reason == "said"
    assert after("g1", False, 2) == ["gang"] and after("g1", None, 3) == [] and after("g1", False, 4) == ["gang"]
    assert after("busy", False, 5) == ["gang"] and "busy" not in scale_ups.of_pod
    by_key["gang"].phase = Phase.PLACED
    by_key["other"].job = "unknown"
    assert after("o", False, 6) == [] and after("gone", False, 7) == [] and "gone" not in scale_ups.of_pod
    by_key["gang"].phase, clock[0] = Phase.WAITING, 0.5
    awaited.follow()
    assert not harness.state.without_node, "nothing new was said"
    clock[0] = 1.0
    awaited.follow()
    assert harness.state.without_node and len(listens) == 9
