"""Devices by claims (dynamic resource allocation) on a real API server; drivers are played."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress

import pytest
from tests.kube import device_objects as d
from tests.kube.api import Api, RefusedError
from tests.kube.control_plane import ControlPlane
from tests.kube.faults import Fault, FaultProxy
from tests.kube.live import bound, condition, deputy_of_kant, of_queue, queue, says, until, where
from tests.kube.objects import Object, make_gang, make_node, make_pod
from tests.kube.running import Kant
from tests.patience import PATIENCE_S

JSON = {"Content-Type": "application/json"}


async def gone(api: Api, pod: str) -> None:
    await api.delete(f"/api/v1/namespaces/default/pods/{pod}", grace_s=0)


async def create_with_spaces(api: Api, claim: Object) -> None:
    """As a person writes it: a patch in JSON would take the spaces out of parameters, which must stay as they are."""
    claim["spec"]["devices"]["config"] = [
        {"opaque": {"driver": d.DRIVER, "parameters": {"mode": "claim", "a": [1, 2]}}}
    ]
    async with api._http.post(api.url + d.CLAIMS, data=json.dumps(claim, indent=2), headers=JSON) as reply:
        assert reply.status == 201, await reply.text()
    with pytest.raises(RefusedError, match="immutable"):
        await api.patch(f"{d.CLAIMS}/{claim['metadata']['name']}", {"metadata": {"labels": {"any": "one"}}})


async def test_pods_get_the_devices_that_their_claims_ask_for(api: Api, kant: Kant) -> None:
    await api.create_all([*(d.bare_node(f"n{at}") for at in range(2)), make_node("plugin")])
    config = [{"opaque": {"driver": d.DRIVER, "parameters": {"mode": "class"}}}]
    await api.create(d.device_class(config=config))
    await api.create(d.device_slice("n0", [*d.gpus(2, model="A"), d.device("slow", type="gpu", model="B")]))
    await api.create(d.device_slice("n1", d.gpus(2, model="B")))
    await deputy_of_kant(api)
    async with kant(user="deputy"):
        model_b = f'device.attributes["{d.DRIVER}"].model == "B"'
        two = d.claim("two", d.request("gpu", d.DRIVER, 2, model_b))
        await create_with_spaces(api, two)
        await api.create_all([d.claim("any"), d.claim("none", d.request("gpu", d.DRIVER, 1, "device.driver == 'x'"))])
        await api.create_all([d.claiming_pod(name, name) for name in ("two", "any", "none", "late")])
        await api.create(make_pod("plain", 8))
        pods = await until(
            api,
            lambda pods: (
                bound(pods) == ["any", "plain", "two"]
                and says(pods, "none", "no suitable node has the devices that its claims ask for (none)")
                and says(pods, "late", "its claim late does not exist")
            ),
        )
        assert where(pods) == {"two": "n1", "any": "n0", "plain": "plugin"}
        assert await d.allocated(api) == {"two": [("n1", "gpu-0"), ("n1", "gpu-1")], "any": [("n0", "gpu-0")]}
        one = await api.get(f"{d.CLAIMS}/two")
        assert [pod["name"] for pod in one["status"]["reservedFor"]] == ["two"]
        assert one["metadata"]["finalizers"] == ["resource.kubernetes.io/delete-protection"]
        said = [(c["source"], c.get("requests")) for c in one["status"]["allocation"]["devices"]["config"]]
        assert said == [("FromClass", ["gpu"]), ("FromClaim", None)]
        fields = one["status"]["allocation"]["nodeSelector"]["nodeSelectorTerms"][0]["matchFields"]
        assert fields == [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]
        await api.create(d.claim("late", d.request("gpu", d.DRIVER, 3)))
        await until(api, lambda pods: says(pods, "late", "0 of 1 pods fit now"))
        await gone(api, "any")
        await d.freed(api, "any")
        pods = await until(api, lambda pods: "late" in bound(pods))
        assert where(pods)["late"] == "n0"
        await gone(api, "two")
        await d.freed(api, "two")
        async with asyncio.timeout(PATIENCE_S):
            while (await api.get(f"{d.CLAIMS}/two"))["metadata"].get("finalizers"):
                await asyncio.sleep(0.05)
        reasons = {pod["metadata"]["name"]: condition(pod).get("reason") for pod in pods}
        assert reasons["none"] == "Unschedulable"


async def test_claims_from_templates_and_a_claim_that_several_pods_share(api: Api, kant: Kant) -> None:
    await api.create_all([*(d.bare_node(f"n{at}") for at in range(2)), d.device_class()])
    await api.create_all([d.device_slice(f"n{at}", d.gpus(2)) for at in range(2)])
    one = d.template("one")
    await api.create_all([one, d.claim("shared")])
    async with kant():
        waiting = make_pod("early", 0, resourceClaims=[{"name": "devices", "resourceClaimTemplateName": "one"}])
        await api.create(waiting)
        await until(api, lambda pods: says(pods, "early", "has not been created from the template one yet"))
        await api.create_all([d.claiming_pod(f"s{at}", "shared") for at in range(3)])
        pods = await until(api, lambda pods: len(bound(pods)) == 3)
        assert len(set(where(pods).values())) == 1
        assert len((await api.get(f"{d.CLAIMS}/shared"))["status"]["reservedFor"]) == 3
        names = await d.create_claiming(api, [make_pod(f"t{at}", 0) for at in range(4)], one)
        pods = await until(api, lambda pods: len(bound(pods)) == 6)
        devices = [found for own in (await d.allocated(api)).values() for found in own]
        assert len(devices) == len(set(devices)) == 4
        (left,) = names.keys() - where(pods).keys()
        for at in range(3):
            await gone(api, f"s{at}")
        await until(api, lambda pods: left in bound(pods))


async def test_gpus_of_claims_and_parts_of_them_count_in_quotas(api: Api, kant: Kant) -> None:
    await api.create_all([d.bare_node("n0"), d.device_class(), queue("team", 2), queue("open")])
    cut = [d.device(f"cut-{at}", type="mig", profile="1g.5gb") for at in range(2)]
    await api.create(d.device_slice("n0", [*d.gpus(4), d.device("part", type="mig"), *cut]))
    whole = f'device.attributes["{d.DRIVER}"].type == "gpu"'
    claims = [d.claim(f"c{at}", d.request("gpu", d.DRIVER, 1, whole)) for at in range(3)]
    part = d.claim("part", d.request("part", d.DRIVER, 1, f'device.attributes["{d.DRIVER}"].type == "mig"'))
    await api.create_all([*claims, part, d.claim("either")])
    async with kant():
        for at in range(3):
            await api.create(d.claiming_pod(f"c{at}", f"c{at}", labels=of_queue("team")))
        await until(api, lambda pods: any(says(pods, f"c{at}", "over quota") for at in range(3)))
        await api.create_all([d.claiming_pod(name, name, labels=of_queue("team")) for name in ("part", "either")])
        what = "parts with a known share of a GPU"
        pods = await until(
            api, lambda pods: len(bound(pods)) == 2 and says(pods, "part", what) and says(pods, "either", what)
        )
        (left,) = {"c0", "c1", "c2"} - where(pods).keys()
        reason = condition(next(pod for pod in pods if pod["metadata"]["name"] == left))
        assert reason.get("reason") == "Queued", reason
        await api.create(
            d.claim("free", d.request("part", d.DRIVER, 1, f'device.attributes["{d.DRIVER}"].type == "mig"'))
        )
        await api.create(d.claiming_pod("free", "free", labels=of_queue("open")))
        await until(api, lambda pods: "free" in bound(pods))
        await api.create(queue("slim", quota={"nominal": "200m"}, gpus=0))
        eighth = d.request("r", d.DRIVER, 1, f'device.attributes["{d.DRIVER}"].profile == "1g.5gb"')
        await api.create_all([d.claim(f"cut-{at}", eighth) for at in range(2)])
        await api.create_all([d.claiming_pod(f"cut-{at}", f"cut-{at}", labels=of_queue("slim")) for at in range(2)])
        words = "over quota: it asks for 0.125 GPUs, and queue slim has 0.075 GPUs left"
        await until(
            api,
            lambda pods: (
                len({"cut-0", "cut-1"} & {*bound(pods)}) == 1 and any(says(pods, f"cut-{at}", words) for at in range(2))
            ),
        )


async def test_without_the_right_to_read_claims_pods_that_have_some_are_refused(api: Api, kant: Kant) -> None:
    await deputy_of_kant(api, "resource.k8s.io")
    await api.create_all([d.bare_node("n0"), d.device_class(), d.device_slice("n0", d.gpus(1)), d.claim("one")])
    await api.create_all([d.claiming_pod("one", "one"), make_pod("without", 0)])
    async with kant(user="deputy"):
        await until(
            api, lambda pods: says(pods, "one", "expected permission for Kant to list") and bound(pods) == ["without"]
        )


async def test_a_cluster_without_claims_to_devices_is_what_it_was(api: Api, kant: Kant, plane: ControlPlane) -> None:
    await api.create(make_node("n0"))
    absent = Fault("404", resource="deviceclasses|resource.*")
    async with FaultProxy(plane, [absent]) as proxy, kant(server=proxy.url) as driver:
        await api.create_all([make_pod("plain", 8), d.claiming_pod("claims", "any")])
        await until(
            api,
            lambda pods: bound(pods) == ["plain"] and says(pods, "claims", "a cluster with the API resource.k8s.io/v1"),
        )
        assert not driver.informers.forbidden and not driver.mirror.unreadable_devices


@pytest.mark.plane(
    gates=(), flags=["--feature-gates=DRADeviceTaintRules=true", "--runtime-config=resource.k8s.io/v1beta2=true"]
)
async def test_devices_that_people_have_tainted_go_to_who_tolerates_it(api: Api, kant: Kant) -> None:
    rules = "/apis/resource.k8s.io/v1beta2/devicetaintrules"
    ill = {"key": "example.com/ill", "effect": "NoSchedule"}
    await api.create_all([d.bare_node("n0"), d.device_class(), d.device_slice("n0", d.gpus(2))])
    rule = {"deviceSelector": {"driver": d.DRIVER, "pool": "n0", "device": "gpu-0"}, "taint": ill}
    meta = {"apiVersion": "resource.k8s.io/v1beta2", "kind": "DeviceTaintRule"}
    await api.call("POST", rules, meta | {"metadata": {"name": "ill"}, "spec": rule})
    tolerant = d.request("gpu", tolerations=[{"key": "example.com/ill", "operator": "Exists"}])
    await api.create_all([d.claim("one"), d.claim("two"), d.claim("bears", tolerant)])
    async with kant():
        await api.create_all([d.claiming_pod(name, name) for name in ("one", "two")])
        words = "the devices that its claims ask for"
        await until(api, lambda pods: len(bound(pods)) == 1 and any(says(pods, one, words) for one in ("one", "two")))
        assert {device for own in (await d.allocated(api)).values() for _, device in own} == {"gpu-1"}
        await api.create(d.claiming_pod("bears", "bears"))
        await until(api, lambda pods: "bears" in bound(pods))
        await gone(api, "bears")
        await api.delete(f"{rules}/ill")
        await until(api, lambda pods: len(bound(pods)) == 2)


async def tells(api: Api, name: str, condition: str, message: str = "") -> None:
    """What whoever attaches devices says, in the status of a claim, of the one that it has."""
    one = (await api.get(f"{d.CLAIMS}/{name}"))["status"]["allocation"]["devices"]["results"][0]
    now = "2026-01-01T00:00:00Z"
    said = {"type": condition, "status": "True", "reason": "Test", "message": message, "lastTransitionTime": now}
    device = {key: one[key] for key in ("driver", "pool", "device")} | {"conditions": [said]}
    await api.patch(f"{d.CLAIMS}/{name}/status", {"status": {"devices": [device]}})


async def test_a_gang_is_bound_once_all_of_its_devices_are_attached_and_what_fails_is_given_back(
    api: Api, kant: Kant
) -> None:
    await api.create_all([d.bare_node(f"n{at}") for at in range(2)])
    await api.create(d.device_class())
    more = {"bindsToNode": True, "bindingConditions": ["attached"], "bindingFailureConditions": ["failed"]}
    await api.create(d.device_slice("fabric", [d.device(f"f{at}", more=more) for at in range(2)], allNodes=True))
    await deputy_of_kant(api)
    async with kant(user="deputy"):
        await api.create_all([d.claim("a"), d.claim("b")])
        pods = make_gang("g", 2, 0)
        for pod, name in zip(pods, "ab", strict=True):
            pod["spec"] |= d.uses(name)
        await api.create_all(pods)
        await until(api, lambda pods: says(pods, "g-0", "of its claim a is not attached yet"))
        allocation = (await api.get(f"{d.CLAIMS}/a"))["status"]["allocation"]
        (field,) = allocation["nodeSelector"]["nodeSelectorTerms"][0]["matchFields"]
        assert field["values"][0] in ("n0", "n1") and allocation["allocationTimestamp"]
        assert allocation["devices"]["results"][0]["bindingFailureConditions"] == ["failed"]
        await tells(api, "a", "attached")
        pods = await until(api, lambda pods: says(pods, "g-1", "of its claim b is not attached yet"))
        assert bound(pods) == []
        await tells(api, "b", "failed", "no such cable")
        await until(api, lambda pods: says(pods, "g-1", "of its claim b cannot be attached: no such cable"))
        async with asyncio.timeout(PATIENCE_S):
            while bound(await api.list("pods")) != ["g-0", "g-1"]:
                for name in await d.allocated(api):
                    with suppress(RefusedError, KeyError):  # it is given back at this moment
                        await tells(api, name, "attached")
                await asyncio.sleep(0.2)
        assert sorted((await d.allocated(api)).values()) == [[("fabric", "f0")], [("fabric", "f1")]]
