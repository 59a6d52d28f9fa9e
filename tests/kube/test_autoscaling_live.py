"""What node autoscalers go by, on a real API server: reasons, further nodes, and requests for nodes."""

from __future__ import annotations

import asyncio
import json

import pytest
from tests.kube.api import Api
from tests.kube.control_plane import ControlPlane
from tests.kube.live import (
    bound,
    condition,
    deputy_of_kant,
    install_kind,
    kind,
    name,
    of_queue,
    ours,
    profile,
    queue,
    says,
    until,
)
from tests.kube.objects import Object, make_gang, make_node, make_pod, make_priority_class
from tests.kube.running import Kant
from tests.kube.test_words_live import answer

SCALING, CLASS = "autoscaling.x-k8s.io", "best-effort-atomic-scale-up.autoscaling.x-k8s.io"
REQUESTS = f"/apis/{SCALING}/v1/namespaces/default/provisioningrequests"
UNSCHEDULABLE, QUEUED = "Unschedulable", "Queued"


async def test_who_lacks_nodes_is_unschedulable_and_who_waits_for_quota_is_not_without_gates_too(
    api: Api, kant: Kant, capsys: pytest.CaptureFixture[str]
) -> None:
    await api.create_all([make_node(f"n{i}") for i in range(2)])
    await api.apply([queue("rich", 800), queue("poor", 0)])
    later = "2099-01-01T00:00:00Z"
    await api.apply([ours("Reservation", "later", gpus=8, start=later, queues=["rich"])])
    rich, poor = of_queue("rich"), of_queue("poor")
    async with kant():
        await api.create(make_pod("full", 8, labels=rich))
        await until(api, lambda pods: bound(pods) == ["full"])
        await api.create_all(make_gang("large", 4, 8, labels=rich))
        await api.create_all(
            [
                make_pod("elsewhere", 1, labels=rich, nodeSelector={"zone": "west"}),
                make_pod("poor", 1, labels=poor),
                make_pod("booked", 1, labels=rich, annotations={"scheduling.kant.dev/reservation": "later"}),
                make_pod("held", 1, labels=rich, annotations={"scheduling.kant.dev/hold": "true"}),
                *make_gang("half", 2, 1, labels=rich)[:1],
            ]
        )
        wanted = {f"large-{i}": UNSCHEDULABLE for i in range(4)} | {"elsewhere": UNSCHEDULABLE}
        wanted |= dict.fromkeys(("poor", "booked", "held", "half-0"), QUEUED)
        await until(
            api, lambda pods: wanted == {name(p): condition(p).get("reason") for p in pods if name(p) in wanted}
        )
        assert not any(pod["spec"].get("schedulingGates") for pod in await api.list("pods"))


async def test_kubectl_kant_why_names_the_nodes_that_would_start_a_gang_and_they_do(
    api: Api, kant: Kant, plane: ControlPlane, capsys: pytest.CaptureFixture[str]
) -> None:
    labels = {"nvidia.com/gpu.product": "H100"}
    await api.create_all([make_node(f"n{i}", labels=labels) for i in range(2)])
    async with kant():
        await api.create(make_pod("full", 8))
        await until(api, lambda pods: bound(pods) == ["full"])
        await api.create_all(make_gang("large", 4, 8))
        await until(api, lambda pods: condition(pods[-1]).get("reason") == UNSCHEDULABLE)
        why, _ = await answer(plane, capsys, "why", "large-0")
        (more,) = why["more_nodes"]  # type: ignore[misc]
        assert json.loads(json.dumps(more)) == {
            "count": 3, "like": "n0", "gpus": 8, "model": "H100", "sentence": "3 more nodes like n0 (8 H100)",
            "quotas": [], "remedy": "3 more nodes like n0 (8 H100) come",
        }  # fmt: skip
        await api.create_all([make_node(f"more-{i}", labels=labels) for i in range(3)])
        await until(api, lambda pods: len(bound(pods)) == 5)


@pytest.mark.parametrize("joins", [True, False])
async def test_a_queue_waits_for_a_node_before_it_stops_others(
    api: Api, kant: Kant, capsys: pytest.CaptureFixture[str], joins: bool
) -> None:
    await api.create(make_node("n0"))
    await api.create(make_priority_class("urgent", 10))
    await api.create(queue("all", 64, nodeWait="2h" if joins else "4s"))
    yes, labels = {"scheduling.kant.dev/preemptible": "true"}, of_queue("all")
    async with kant(profile=profile("[preemption]\nmin_run_s = 0\n")):
        await api.create(make_pod("low", 8, labels=labels, annotations=yes, terminationGracePeriodSeconds=0))
        await until(api, lambda pods: bound(pods) == ["low"])
        begun = asyncio.get_running_loop().time()
        await api.create(make_pod("high", 8, labels=labels, priority_class="urgent"))
        pods = await until(api, lambda pods: says(pods, "high", "it waits for a node until"))
        (high,) = [pod for pod in pods if name(pod) == "high"]
        assert condition(high)["reason"] == UNSCHEDULABLE, "else no autoscaler adds a node"
        assert says(pods, "high", f"{'2h' if joins else '4s'} in queue all (node_wait)")
        if joins:
            await api.create(make_node("more"))
            await until(api, lambda pods: bound(pods) == ["high", "low"])
            return
        assert bound(pods) == ["low"]
        await until(api, lambda pods: bound(pods) == ["high"])
        assert asyncio.get_running_loop().time() - begun >= 4


def said_of(pod: Object, reason: str, message: str) -> Object:
    """An Event of the Cluster Autoscaler about a pod, as its recorder writes it."""
    meta = pod["metadata"]
    regarding = {"apiVersion": "v1", "kind": "Pod", "namespace": "default", "name": meta["name"], "uid": meta["uid"]}
    return {
        "apiVersion": "v1", "kind": "Event", "metadata": {"generateName": f"{meta['name']}.", "namespace": "default"},
        "involvedObject": regarding, "reason": reason, "message": message, "type": "Normal",
        "source": {"component": "cluster-autoscaler"},
    }  # fmt: skip


async def test_a_queue_waits_no_longer_than_an_autoscaler_says_that_it_helps(
    api: Api, kant: Kant, plane: ControlPlane, capsys: pytest.CaptureFixture[str]
) -> None:
    await deputy_of_kant(api)
    await api.create(make_node("n0"))
    await api.create(make_priority_class("urgent", 10))
    await api.create(queue("all", 64, nodeWait="2h"))
    yes, labels = {"scheduling.kant.dev/preemptible": "true"}, of_queue("all")
    text = profile("[preemption]\nmin_run_s = 0\n")
    async with kant(profile=text, user="deputy"):
        await api.create(make_pod("low", 8, labels=labels, annotations=yes, terminationGracePeriodSeconds=0))
        await until(api, lambda pods: bound(pods) == ["low"])
        await api.create(make_pod("high", 8, labels=labels, priority_class="urgent"))
        pods = await until(api, lambda pods: says(pods, "high", "2h in queue all (node_wait)"))
        (high,) = [pod for pod in pods if name(pod) == "high"]
        not_now = "pod didn't trigger scale-up: 1 in backoff after failed scale-up"
        await api.create(said_of(high, "NotTriggerScaleUp", not_now))
        await until(api, lambda pods: says(pods, "high", f"no node is added now for it (cluster-autoscaler: {not_now}"))
        await api.create(said_of(high, "TriggeredScaleUp", "pod triggered scale-up: [{gpu 1->2 (max: 2)}]"))
        words = "a node is being added for it (cluster-autoscaler: pod triggered scale-up: [{gpu 1->2 (max: 2)}])"
        pods = await until(api, lambda pods: says(pods, "high", words) and says(pods, "high", "waits for a node"))
        assert bound(pods) == ["low"]
        why, _ = await answer(plane, capsys, "why", "high")
        assert words in why["remarks"]  # type: ignore[operator]
        never = "pod didn't trigger scale-up: 1 max node group size reached"
        await api.create(said_of(high, "NotTriggerScaleUp", never))
        await until(api, lambda pods: bound(pods) == ["high"])


def definition() -> Object:
    """ProvisioningRequest as the Cluster Autoscaler installs it, with a status of its own."""
    found = kind(SCALING, "v1", "ProvisioningRequest", "provisioningrequests")
    found["spec"]["versions"][0]["subresources"] = {"status": {}}
    return found


async def says_autoscaler(api: Api, request: str, **conditions: str) -> None:
    """What an autoscaler writes: conditions that are True, each with its message."""
    now = "2026-01-01T00:00:00Z"
    said = [
        {"type": one, "status": "True", "reason": "Test", "message": text, "lastTransitionTime": now}
        for one, text in conditions.items()
    ]
    await api.patch(f"{REQUESTS}/{request}/status", {"status": {"conditions": said}})


@pytest.mark.parametrize("provisioning_class", [CLASS, f"check-capacity.{SCALING}"])
async def test_pods_wait_for_the_nodes_that_they_consume(api: Api, kant: Kant, provisioning_class: str) -> None:
    await install_kind(api, definition())
    for old in await api.list(REQUESTS):
        await api.delete(f"{REQUESTS}/{name(old)}")
    await deputy_of_kant(api)
    await api.create(make_node("n0"))
    spec = {"provisioningClassName": provisioning_class, "podSets": [{"podTemplateRef": {"name": "t"}, "count": 2}]}
    ask = {"apiVersion": f"{SCALING}/v1", "kind": "ProvisioningRequest", "spec": spec}
    notes = {f"{SCALING}/consume-provisioning-request": "ask", f"{SCALING}/provisioning-class-name": provisioning_class}
    async with kant(user="deputy"):
        await api.create_all(make_gang("train", 2, 4, annotations=notes))

        async def until_said(words: str) -> None:
            pods = await until(api, lambda pods: says(pods, "train-0", words) and says(pods, "train-1", words))
            assert {condition(pod)["reason"] for pod in pods} == {QUEUED}

        await until_said("its ProvisioningRequest ask does not exist")
        await api.create(ask | {"metadata": {"name": "ask", "namespace": "default"}})
        await until_said("has not been accepted yet")
        await says_autoscaler(api, "ask", Accepted="")
        await until_said("is accepted, and its nodes are not provided yet")
        await says_autoscaler(api, "ask", Accepted="", Failed="no such machines")
        await until_said("has failed: no such machines")
        await says_autoscaler(api, "ask", Accepted="", BookingExpired="")
        await until_said("expired before the nodes were provided")
        await says_autoscaler(api, "ask", Accepted="", Provisioned="", BookingExpired="")
        await until(api, lambda pods: bound(pods) == ["train-0", "train-1"])
