"""Devices of gangs on a real API server: all of them or none, whatever becomes of writes and of leaders."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

import pytest
import yaml
from tests.kube import device_objects as d
from tests.kube.api import Api, RefusedError
from tests.kube.audit import Auditor
from tests.kube.control_plane import ControlPlane
from tests.kube.faults import Fault, FaultProxy
from tests.kube.kubelet import FakeKubelet
from tests.kube.live import MANIFESTS, bound, deputy_of_kant, profile, says, until, where
from tests.kube.objects import Object, make_gang, make_pod, make_priority_class
from tests.kube.running import Kant, KantProcess
from tests.patience import PATIENCE_S

LINK = "example.com/link"


@asynccontextmanager
async def fenced(api: Api) -> AsyncIterator[None]:
    """The shipped policy, for the user `deputy`: what they write of claims has to bear the token of the Lease, b/1."""
    await deputy_of_kant(api)
    spec = {"holderIdentity": "b", "leaseTransitions": 1}
    lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "kant"}, "spec": spec}
    text = (MANIFESTS / "fencing.yaml").read_text().replace("${namespace}", "default")
    policies = list(yaml.safe_load_all(text.replace("system:serviceaccount:default:kant", "deputy")))
    await api.create(lease)
    await api.apply(policies)
    path, kind = f"{d.CLAIMS}/never", "application/merge-patch+json"
    await api.create(d.claim("never"))
    async with Api(api.plane, "deputy") as deputy, asyncio.timeout(PATIENCE_S):
        with pytest.raises(RefusedError, match="kant-fencing"):
            while True:
                await deputy.call("PATCH", path, {"metadata": {"labels": {"a": "b"}}}, kind=kind, dryRun="All")
                await asyncio.sleep(0.1)
    try:
        yield
    finally:
        for each in policies:
            plural = "policies" if each["kind"].endswith("Policy") else "policybindings"
            name = each["metadata"]["name"]
            await api.delete(f"/apis/admissionregistration.k8s.io/v1/validatingadmission{plural}/{name}")
        await api.delete("/apis/coordination.k8s.io/v1/namespaces/default/leases/kant")


async def all_allocated(api: Api, names: Iterable[str]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while len(await d.allocated(api, *names)) < len(list(names)):
            await asyncio.sleep(0.05)


async def claims_are_as_bound(api: Api, pods: list[Object]) -> None:
    """Each bound pod has its claim on its node, no device is held twice, and nobody who is not bound holds one."""
    node_of = {pod["metadata"]["uid"]: pod["spec"].get("nodeName") for pod in pods}
    held = []
    for one in await api.list(f"/apis/{d.API}/resourceclaims"):
        allocation = one.get("status", {}).get("allocation")
        users = [node_of.get(user["uid"]) for user in one.get("status", {}).get("reservedFor", [])]
        assert bool(allocation) == bool(users) and all(users), one
        for result in allocation["devices"]["results"] if allocation else ():
            assert set(users) == {result["pool"]}
            held.append((result["pool"], result["device"]))
    assert len(held) == len(set(held)) > 0


async def test_a_gang_gets_all_of_its_devices_or_none(api: Api, kant: Kant, plane: ControlPlane) -> None:
    await api.create_all([*(d.bare_node(f"n{at}") for at in range(2)), d.device_class()])
    await api.create_all([d.device_slice(f"n{at}", d.gpus(4)) for at in range(2)])
    two = d.template("two", d.request("gpu", count=2))
    await api.create(two)
    async with Auditor(api) as auditor, FaultProxy(plane, seed=1) as proxy:
        async with kant(server=proxy.url):
            proxy.faults = [Fault("403", 0.5, "patch", "resourceclaims/status")]
            first = await d.create_claiming(api, make_gang("g", 4, 0), two)
            await until(api, lambda pods: any("cannot be allocated" in str(pod["status"]) for pod in pods))
            assert not bound(await api.list("pods"))
            proxy.faults = []
            pods = await until(api, lambda pods: len(bound(pods)) == 4)
            await claims_are_as_bound(api, pods)
            second = await d.create_claiming(api, make_gang("h", 2, 0), two)
            await until(api, lambda pods: says(pods, "h-0", "0 of 2 pods fit now"))
            assert not await d.allocated(api, *second.values())
            await api.delete("/api/v1/namespaces/default/pods/g-0", grace_s=0)
            await d.freed(api, first["g-0"])
            again = await d.create_claiming(api, make_gang("g", 4, 0)[:1], two)
            pods = await until(api, lambda pods: "g-0" in bound(pods))  # in the place of the one that went
            assert await d.allocated(api, *again.values()) and not await d.allocated(api, *second.values())
            for at in range(4):
                await api.delete(f"/api/v1/namespaces/default/pods/g-{at}", grace_s=0)
            await until(api, lambda pods: {"h-0", "h-1"} <= {*bound(pods)})
        report = await auditor.report()
        assert not report.violations and "default/h" not in report.half


async def test_a_leader_that_is_killed_before_it_has_bound_leaves_nothing_that_nobody_takes_back(
    api: Api, kant: Kant, plane: ControlPlane
) -> None:
    await api.create_all([*(d.bare_node(f"n{at}") for at in range(4)), d.device_class()])
    await api.create_all([d.device_slice(f"n{at}", d.gpus(2)) for at in range(4)])
    two = d.template("two", d.request("gpu", count=2))
    await api.create(two)
    async with FaultProxy(plane, [Fault("refuse", 1.0, "create", "pods/binding")]) as proxy:
        leader = KantProcess(plane, "--no-leader-election", server=proxy.url, user="admin")
        await leader.says("state built")
        names = await d.create_claiming(api, make_gang("g", 2, 0), two)
        lost = await d.create_claiming(api, [make_pod("lost", 0)], two)
        await all_allocated(api, [*names.values(), *lost.values()])
        leader.kill()
    assert not bound(await api.list("pods"))
    ((node, _), _) = (await d.allocated(api, names["g-0"]))[names["g-0"]]
    await api.patch(f"/api/v1/nodes/{node}", {"spec": {"unschedulable": True}})
    await api.delete("/api/v1/namespaces/default/pods/lost", grace_s=0)
    async with Auditor(api) as auditor, fenced(api), kant(user="deputy", token="b/1"):
        pods = await until(api, lambda pods: len(bound(pods)) == 2)
        assert node not in where(pods).values()
        await d.freed(api, *lost.values())
        await claims_are_as_bound(api, pods)
        (await auditor.report()).assert_kept(all_bound=True)


async def test_a_gang_that_shares_devices_of_a_domain_goes_into_it(api: Api, kant: Kant) -> None:
    await api.create_all([d.bare_node(f"{link}{at}", labels={LINK: link}, cpu="2") for link in "ab" for at in range(2)])
    await api.create(d.device_class("channel.example.com"))
    for link in "ab":
        term = {"matchExpressions": [{"key": LINK, "operator": "In", "values": [link]}]}
        channels = [d.device(f"channel-{at}") for at in range(2 if link == "a" else 1)]
        selector = {"nodeSelectorTerms": [term]}
        await api.create(d.device_slice(link, channels, driver="channel.example.com", nodeSelector=selector))
    await api.create(d.claim("shared", d.request("channel", "channel.example.com")))
    await api.create_all([make_pod(f"x{at}", 0, scheduler="somebody", node="a0") for at in range(2)])
    async with kant() as driver:
        pods = make_gang("g", 3, 0)
        for pod in pods:
            pod["spec"] |= d.uses("shared")
        await api.create_all(pods)
        await until(api, lambda pods: sum(name.startswith("g") for name in bound(pods)) == 3)
        seen = await api.list("pods")
        assert {where(seen)[f"g-{at}"][0] for at in range(3)} == {"b"}  # a has room for two more pods
        assert await d.allocated(api) == {"shared": [("b", "channel-0")]}
        one = await api.get(f"/apis/{d.API}/namespaces/default/resourceclaims/shared")
        assert len(one["status"]["reservedFor"]) == 3
        assert driver.counts.builds == 1


async def test_who_is_evicted_gives_its_devices_to_who_comes_for_them(api: Api, kant: Kant) -> None:
    await api.create_all([make_priority_class("high", 1000), d.bare_node("n0"), d.device_class()])
    await api.create(d.device_slice("n0", d.gpus(4)))
    two = d.template("two", d.request("gpu", count=2))
    ruled = profile("[preemption]\npriority = true\nmin_run_s = 0\n")
    async with FakeKubelet(api), kant(profile=ruled) as driver:
        stoppable = {"scheduling.kant.dev/preemptible": "true"}
        low = await d.create_claiming(api, [make_pod(f"low-{at}", 0, annotations=stoppable) for at in range(2)], two)
        await until(api, lambda pods: len(bound(pods)) == 2)
        high = await d.create_claiming(api, [make_pod("high", 0, priority_class="high")], two)
        await until(api, lambda pods: "high" in bound(pods))
        assert driver.counts.evicted == 1 and driver.counts.refused == 0
        assert len(await d.allocated(api, *low.values())) == 1 and len(await d.allocated(api, *high.values())) == 1
