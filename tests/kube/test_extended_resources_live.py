"""Extended resources that device classes serve, on a real API server; drivers and device plugins are played."""

from __future__ import annotations

import asyncio

import pytest
from tests.kube import device_objects as d
from tests.kube.api import Api
from tests.kube.live import bound, deputy_of_kant, of_queue, queue, says, until, where
from tests.kube.objects import Object, make_node, make_pod
from tests.kube.running import Kant
from tests.patience import PATIENCE_S

from kant.kube.objects import views as k
from kant.kube.translate.device_claims import FINALIZER
from kant.kube.translate.extended_claims import name_for

CARD, CARDS = "example.com/card", "cards.example.com"
PODS = "/api/v1/namespaces/default/pods"
IMPLICIT = "deviceclass.resource.kubernetes.io"


def serving(name: str, resource: str, driver: str = CARDS) -> Object:
    """A class of all devices of a driver, which serves a resource."""
    one = d.device_class(name, f"device.driver == '{driver}'")
    one["spec"]["extendedResourceName"] = resource
    return one


def cards(node: str, count: int) -> Object:
    return d.device_slice(node, [d.device(f"card-{at}") for at in range(count)], driver=CARDS)


def asking(name: str, *containers: dict[str, int], **more: object) -> Object:
    """A pod whose containers ask for resources, one after the other."""

    def resources(asked: dict[str, int]) -> Object:
        words = {resource: str(count) for resource, count in asked.items()}
        return {"requests": {"cpu": "1"} | words, "limits": words}

    made = [{"name": f"c{at}", "image": "test", "resources": resources(asked)} for at, asked in enumerate(containers)]
    return make_pod(name, 0, **{"containers": made, **more})


def left_behind(pod: Object, count: int) -> Object:
    """A claim for extended resources of a pod that asks for so many devices."""
    meta = pod["metadata"]
    name = name_for(k.Pod(k.Meta(meta["name"], uid=meta["uid"])))
    made = d.claim(name, d.request("container-0-request-1", "card", count))
    owner = {"apiVersion": "v1", "kind": "Pod", "name": meta["name"], "uid": meta["uid"], "controller": True}
    marks = {"resource.kubernetes.io/extended-resource-claim": "true", "scheduling.kant.dev/allocated": "true"}
    made["metadata"] |= {"ownerReferences": [owner], "annotations": marks, "finalizers": [FINALIZER]}
    return made


async def gone(api: Api, pod: str) -> None:
    await api.delete(f"{PODS}/{pod}", grace_s=0)


async def status_of(api: Api, pod: str) -> Object:
    found = await api.get(f"{PODS}/{pod}")
    return dict(found["status"].get("extendedResourceClaimStatus") or {})


async def test_a_resource_that_a_class_serves_comes_from_device_plugins_and_from_claims(api: Api, kant: Kant) -> None:
    plugin = make_node("plugin", 0)
    for amounts in ("capacity", "allocatable"):
        plugin["status"][amounts] = plugin["status"][amounts] | {CARD: "2"}
    await api.create_all([plugin, *(d.bare_node(f"n{at}") for at in range(2)), serving("card", CARD)])
    await api.create(cards("n0", 3))
    await deputy_of_kant(api)
    for at, node in enumerate(("n0", "plugin")):  # a leader that was killed has left these behind
        pod = await api.create(asking(f"p{at}", {CARD: 1}, nodeSelector={"kubernetes.io/hostname": node}))
        await api.create(left_behind(pod, 2))
        said = {"requestMappings": [{"containerName": "c0", "resourceName": CARD, "requestName": "any"}]}
        said["resourceClaimName"] = left_behind(pod, 2)["metadata"]["name"]
        await api.patch(f"{PODS}/p{at}/status", {"status": {"extendedResourceClaimStatus": said}})
    taken = await api.create(asking("taken", {CARD: 1}, nodeSelector={"kubernetes.io/hostname": "n1"}))
    other = left_behind(taken, 1)
    await api.create(other | {"metadata": {key: other["metadata"][key] for key in ("name", "namespace")}})
    await api.create(cards("n1", 1))
    async with kant(user="deputy"):
        await until(api, lambda pods: says(pods, "taken", "which would be created for it, exists already"))
        await gone(api, "taken")
        await api.delete(f"{d.CLAIMS}/{other['metadata']['name']}")
        await api.delete("/apis/resource.k8s.io/v1/resourceslices/n1-cards-example-com")
        await api.create_all([asking(f"p{at}", {CARD: 1}) for at in range(2, 5)])
        pods = await until(api, lambda pods: len(bound(pods)) == 5)
        there = where(pods)
        assert sorted(there.values()) == ["n0"] * 3 + ["plugin"] * 2
        claims = {one["metadata"]["ownerReferences"][0]["name"]: one for one in await api.list(d.CLAIMS)}
        assert sorted(claims) == sorted(pod for pod, node in there.items() if node == "n0")
        devices = []
        for pod in pods:
            name = pod["metadata"]["name"]
            if name not in claims:
                assert not await status_of(api, name)
                continue
            claim, (one,) = claims[name], pod["status"]["extendedResourceClaimStatus"]["requestMappings"]
            assert one == {"containerName": "c0", "resourceName": CARD, "requestName": "container-0-request-1"}
            assert pod["status"]["extendedResourceClaimStatus"]["resourceClaimName"] == claim["metadata"]["name"]
            owner = claim["metadata"]["ownerReferences"][0]
            assert (owner["kind"], owner["uid"], owner["controller"]) == ("Pod", pod["metadata"]["uid"], True)
            assert claim["metadata"]["annotations"]["resource.kubernetes.io/extended-resource-claim"] == "true"
            assert claim["metadata"]["finalizers"] == ["resource.kubernetes.io/delete-protection"]
            assert [user["uid"] for user in claim["status"]["reservedFor"]] == [pod["metadata"]["uid"]]
            (result,) = claim["status"]["allocation"]["devices"]["results"]
            assert result["request"] == "container-0-request-1"
            devices.append(result["device"])
        assert sorted(devices) == [f"card-{at}" for at in range(3)]
        await api.create(asking("late", {CARD: 1}))
        await until(api, lambda pods: says(pods, "late", f"no suitable node has 1 of {CARD} left"))
        left = sorted(claims)[0]
        await gone(api, left)
        pods = await until(api, lambda pods: "late" in bound(pods))
        assert where(pods)["late"] == "n0"
        async with asyncio.timeout(PATIENCE_S):  # what was made for the pod goes with it
            while any(one["metadata"]["name"] == claims[left]["metadata"]["name"] for one in await api.list(d.CLAIMS)):
                await asyncio.sleep(0.05)


async def test_classes_serve_gpus_and_each_its_own_name_and_say_which_container_has_what(api: Api, kant: Kant) -> None:
    await api.create_all([d.bare_node("n0"), serving(d.DRIVER, "nvidia.com/gpu", d.DRIVER), d.device_class(CARDS)])
    await api.create_all([d.device_slice("n0", d.gpus(4)), cards("n0", 3), queue("team", 3)])
    implicit, team = f"{IMPLICIT}/{CARDS}", of_queue("team")
    first = {"name": "first", "image": "test", "resources": {key: {implicit: "3"} for key in ("requests", "limits")}}
    async with kant():
        await api.create(
            asking("both", {"nvidia.com/gpu": 1, implicit: 1}, {implicit: 1}, initContainers=[first], labels=team)
        )
        await until(api, lambda pods: bound(pods) == ["both"])
        found = {
            (one["containerName"], one["resourceName"], one["requestName"])
            for one in (await status_of(api, "both"))["requestMappings"]
        }
        assert found == {
            ("c0", "nvidia.com/gpu", "container-1-request-2"),
            ("c0", implicit, "container-1-request-1"),
            ("c1", implicit, "container-2-request-1"),
            ("first", implicit, "container-1-request-1"),
            ("first", implicit, "container-2-request-1"),
            ("first", implicit, "container-0-request-0"),
        }
        (own,) = (await d.allocated(api)).values()
        assert sorted(own) == [*(("n0", f"card-{at}") for at in range(3)), ("n0", "gpu-0")]
        await api.create(asking("none", {implicit: 1}, labels=team))
        await until(api, lambda pods: says(pods, "none", f"claims ask for ({implicit}) are in use"))
        await api.create_all([make_pod(f"g{at}", 1, labels=team) for at in range(3)])
        await until(
            api, lambda pods: len(bound(pods)) == 3 and any(says(pods, f"g{at}", "over quota") for at in range(3))
        )
        await gone(api, "both")
        await until(api, lambda pods: "none" in bound(pods))
        devices = [device for own in (await d.allocated(api)).values() for device in own]
        assert len(devices) == len(set(devices))


@pytest.mark.plane(gates=(), flags=["--feature-gates=DRAExtendedResource=false"])
async def test_an_api_server_that_keeps_no_such_claims_has_the_pod_refused(api: Api, kant: Kant) -> None:
    await api.create_all([d.bare_node("n0"), d.device_class(CARDS)])
    await api.create(cards("n0", 1))
    async with kant():
        await api.create(asking("one", {f"{IMPLICIT}/{CARDS}": 1}))
        await until(api, lambda pods: says(pods, "one", "its feature gate DRAExtendedResource is off"))
        await d.freed(api)
