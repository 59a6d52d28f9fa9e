"""Volumes of pods on a real API server: a pod goes where its volumes are, or waits with what is wrong with them."""

from __future__ import annotations

import asyncio

import pytest
from tests.kube.api import Api
from tests.kube.audit import Auditor
from tests.kube.live import bound, condition, deputy_of_kant, says, until, where
from tests.kube.objects import Object, make_gang, make_node, make_pod
from tests.kube.running import Kant
from tests.kube.storage_objects import (
    CLAIMS,
    COMPLETED,
    attachment,
    capacity,
    claim,
    csi_node,
    csi_volume,
    driver,
    storage_class,
    uses,
    volume,
)
from tests.patience import PATIENCE_S

from kant.kube.act import volume_binder

ONE_POD = "ReadWriteOncePod"
ZONE = "topology.kubernetes.io/zone"


def zoned(*zones: str) -> list[Object]:
    return [make_node(f"n{number}", labels={ZONE: zone}) for number, zone in enumerate(zones)]


async def selected(api: Api, name: str) -> str:
    """The node at which a volume is to be made."""
    notes = (await api.get(f"{CLAIMS}/{name}"))["metadata"].get("annotations", {})
    return str(notes.get("volume.kubernetes.io/selected-node", ""))


async def provision(api: Api, name: str, zone: str) -> None:
    """What a provisioner and the volume controller do: a volume in a zone for the claim."""
    await api.create(volume(f"pv-{name}", name, ZONE, zone))
    change = {"metadata": {"annotations": COMPLETED}, "spec": {"volumeName": f"pv-{name}"}}
    await api.patch(f"{CLAIMS}/{name}", change)


async def test_a_pod_goes_where_its_volume_is_and_waits_for_claims_that_are_not_there(api: Api, kant: Kant) -> None:
    await api.create_all(
        [*zoned("a", "b", "c"), volume("pv-data", "data", ZONE, "b"), volume("pv-far", "far", ZONE, "z")]
    )
    await api.create_all([claim("data", "pv-data"), claim("far", "pv-far"), claim("slow")])
    async with kant():
        await api.create(make_pod("zonal", **uses("data")))
        await api.create_all([make_pod(name, **uses(name)) for name in ("far", "slow", "late")])
        pods = await until(
            api,
            lambda pods: (
                bound(pods) == ["zonal"]
                and says(pods, "far", "claim far (volume pv-far) needs a node with topology.kubernetes.io/zone In z")
                and says(pods, "slow", "its claim slow is not bound to a volume yet")
                and says(pods, "late", "its claim late does not exist")
            ),
        )
        assert where(pods) == {"zonal": "n1"}
        reasons = {pod["metadata"]["name"]: condition(pod).get("reason") for pod in pods}
        assert reasons["far"] == "Unschedulable" and reasons["slow"] == reasons["late"] == "Queued"
        await api.create_all([volume("pv-late", "late", ZONE, "c"), claim("late", "pv-late")])
        await api.create(volume("pv-slow", "slow", ZONE, "a"))
        await api.patch(f"{CLAIMS}/slow", {"metadata": {"annotations": COMPLETED}, "spec": {"volumeName": "pv-slow"}})
        await api.create(make_node("n3", labels={ZONE: "z"}))
        pods = await until(api, lambda pods: len(bound(pods)) == 4)
        assert where(pods) == {"zonal": "n1", "late": "n2", "slow": "n0", "far": "n3"}


async def test_a_gang_waits_for_the_volumes_that_are_made_where_it_goes(api: Api, kant: Kant) -> None:
    terms = [{"matchLabelExpressions": [{"key": ZONE, "values": ["b"]}]}]
    await api.create_all([*zoned("a", "b"), storage_class("disk", allowedTopologies=terms)])
    await api.create_all([claim("g-0", storage_class="disk"), claim("g-1", storage_class="disk")])
    pods = make_gang("g", 2, 4)
    for pod in pods:
        pod["spec"] |= uses(pod["metadata"]["name"])
    await deputy_of_kant(api)
    async with Auditor(api) as auditor, kant(user="deputy") as driver:
        await api.create_all(pods)
        await until(api, lambda pods: (own := driver.steps.volumes) is not None and len(own.asked) == 2)
        while [await selected(api, name) for name in ("g-0", "g-1")] != ["n1", "n1"]:
            await asyncio.sleep(0.05)
        assert not bound(await api.list("pods"))
        await provision(api, "g-0", "b")
        await until(api, lambda pods: len(driver.steps.volumes.asked) == 1)
        assert not bound(await api.list("pods"))
        await provision(api, "g-1", "b")
        pods = await until(api, lambda pods: len(bound(pods)) == 2)
        assert set(where(pods).values()) == {"n1"}
        (await auditor.report()).assert_kept(all_bound=True)


async def test_a_volume_that_cannot_be_made_or_lies_elsewhere_sends_its_pod_on(api: Api, kant: Kant) -> None:
    await api.create_all([*zoned("a", "b"), storage_class("disk"), claim("d", storage_class="disk")])
    async with kant() as driver:
        await api.create(make_pod("d", **uses("d")))
        while not (node := await selected(api, "d")):
            await asyncio.sleep(0.05)
        await until(api, lambda pods: all(one.seen for one in driver.steps.volumes.asked.values()))
        await api.patch(f"{CLAIMS}/d", {"metadata": {"annotations": {"volume.kubernetes.io/selected-node": None}}})
        await until(api, lambda pods: says(pods, "d", f"no volume could be created for its claim d on node {node}"))
        other = {"n0": "b", "n1": "a"}[node]
        await provision(api, "d", other)
        pods = await until(api, lambda pods: bound(pods) == ["d"])
        assert where(pods)["d"] != node


async def test_no_node_attaches_more_volumes_than_it_may(api: Api, kant: Kant) -> None:
    """What is attached without a pod counts too, a volume of two pods once, and a gang starts whole or waits whole."""
    disk = "disk.test.kant.dev"
    await api.create_all([*zoned("a", "a"), csi_node("n0", 2, disk), csi_node("n1", 1, disk)])
    names = ("old", "g-0", "g-1", "h-0", "h-1")
    await api.create_all([csi_volume(f"pv-{name}", name, disk) for name in names])
    await api.create_all([claim(name, f"pv-{name}") for name in names])
    await api.create(attachment("pv-old", "n0", disk))
    pods = [*make_gang("g", 2, 1), *make_gang("h", 2, 1)]
    for pod in pods:
        pod["spec"] |= uses(pod["metadata"]["name"])
    async with Auditor(api) as auditor, kant():
        await api.create_all(pods[:2])
        seen = await until(api, lambda pods: len(bound(pods)) == 2)
        assert sorted(where(seen).values()) == ["n0", "n1"]
        (alone,) = [name for name, node in where(seen).items() if node == "n0"]
        await api.create_all([make_pod("beside", **uses(alone)), *pods[2:]])
        what = f"no suitable node may attach 1 more volumes of {disk}"
        seen = await until(api, lambda pods: "beside" in bound(pods) and says(pods, "h-0", what))
        assert where(seen)["beside"] == "n0" and len(bound(seen)) == 3
        await api.delete("/apis/storage.k8s.io/v1/volumeattachments/at-pv-old")
        for name in ("beside", "g-0", "g-1"):
            await api.delete(f"/api/v1/namespaces/default/pods/{name}", grace_s=0)
        seen = await until(api, lambda pods: bound(pods) == ["h-0", "h-1"])
        (await auditor.report()).assert_kept(all_bound=True)


async def at(api: Api, nodes: set[str], *claims: str) -> None:
    """Wait until volumes are to be made for these claims at some of these nodes."""
    async with asyncio.timeout(PATIENCE_S):
        while not {await selected(api, name) for name in claims} <= nodes:
            await asyncio.sleep(0.05)


async def test_storage_is_enough_for_all_claims_of_a_gang_or_it_goes_elsewhere(api: Api, kant: Kant) -> None:
    disk = "disk.test.kant.dev"
    await api.create_all([*zoned("a", "a", "b", "b"), storage_class("disk", disk), driver(disk)])
    await api.create_all([capacity("a", "disk", "1536Mi", zone="a"), capacity("b", "disk", "2Gi", zone="b")])
    names = ("g-0", "g-1", "p0", "p1")
    await api.create_all([claim(name, storage_class="disk") for name in names])
    pods = make_gang("g", 2, 8, annotations={"scheduling.kant.dev/topology-required": ZONE})
    for pod in pods:
        pod["spec"] |= uses(pod["metadata"]["name"])
    await deputy_of_kant(api)
    async with Auditor(api) as auditor, kant(user="deputy") as binding:
        await api.create_all(pods)
        await at(api, {"n2", "n3"}, "g-0", "g-1")
        await api.create(make_pod("p0", 0, **uses("p0")))  # zone b is all spoken for, though nothing is made yet
        await at(api, {"n0", "n1"}, "p0")
        await api.create(make_pod("p1", 0, **uses("p1")))
        what = "no suitable node has access to enough storage for its claims (p1)"
        await until(api, lambda pods: says(pods, "p1", what))
        await api.patch("/apis/storage.k8s.io/v1/namespaces/default/csistoragecapacities/a", {"capacity": "0"})
        await api.patch("/apis/storage.k8s.io/v1/namespaces/default/csistoragecapacities/b", {"capacity": "0"})
        for name, zone in (("g-0", "b"), ("g-1", "b"), ("p0", "a")):
            await provision(api, name, zone)
        await until(api, lambda pods: len(bound(pods)) == 3 and says(pods, "p1", what))
        assert not await selected(api, "p1")
        await api.patch("/apis/storage.k8s.io/v1/namespaces/default/csistoragecapacities/a", {"capacity": "1Gi"})
        await at(api, {"n0", "n1"}, "p1")
        await provision(api, "p1", "a")
        await until(api, lambda pods: len(bound(pods)) == 4)
        assert not binding.steps.volumes.asked
        (await auditor.report()).assert_kept(all_bound=True)


async def local(api: Api, name: str, node: str, size: str) -> None:
    """A volume that somebody has made on a node, and that the volume controller has seen."""
    found = volume(name, "", "kubernetes.io/hostname", node)
    del found["spec"]["claimRef"]
    found["spec"] |= {"storageClassName": "local", "capacity": {"storage": size}}
    await api.create(found)
    await api.patch(f"/api/v1/persistentvolumes/{name}/status", {"status": {"phase": "Available"}})


async def kept_for(api: Api) -> dict[str, str]:
    """Whose each volume is to be."""
    volumes = await api.list("/api/v1/persistentvolumes")
    return {one["metadata"]["name"]: one["spec"].get("claimRef", {}).get("name", "") for one in volumes}


async def bind(api: Api, claim: str, to: str) -> None:
    """As the volume controller does."""
    change = {"metadata": {"annotations": COMPLETED}, "spec": {"volumeName": to}}
    await api.patch(f"{CLAIMS}/{claim}", change)


async def local_gang(api: Api) -> None:
    """A gang of two, each with a claim."""
    await api.create_all([claim(name, storage_class="local") for name in ("g-0", "g-1")])
    pods = make_gang("g", 2, 4)
    for pod in pods:
        pod["spec"] |= uses(pod["metadata"]["name"])
    await api.create_all(pods)


async def test_local_volumes_are_chosen_for_a_whole_gang_and_kept_for_its_claims(api: Api, kant: Kant) -> None:
    """The smallest that fits, where the pods go; with what the shipped role may do."""
    await api.create_all([make_node(f"n{i}", labels={"kubernetes.io/hostname": f"n{i}"}) for i in range(3)])
    await api.create(storage_class("local", "kubernetes.io/no-provisioner"))
    for name, size in {"big": "9Gi", "small": "2Gi", "middle": "4Gi"}.items():
        await local(api, name, "n1", size)
    await local(api, "tiny", "n0", "1Mi")
    await api.create(claim("late", storage_class="local"))
    await deputy_of_kant(api)
    async with Auditor(api) as auditor, kant(user="deputy"):
        await local_gang(api)
        async with asyncio.timeout(PATIENCE_S):
            while {"g-0", "g-1"} - set((kept := await kept_for(api)).values()):
                await asyncio.sleep(0.05)
        assert kept["tiny"] == kept["big"] == "" and not bound(await api.list("pods"))
        await api.delete("/api/v1/persistentvolumes/big")
        await api.create(make_pod("late", **uses("late")))
        words = "no suitable node has free volumes that fit its claims (late)"
        await until(api, lambda pods: says(pods, "late", words))
        for name, of in kept.items():
            if of:
                await bind(api, of, name)
        pods = await until(api, lambda pods: len(bound(pods)) == 2)
        assert set(where(pods).values()) == {"n1"}
        await local(api, "more", "n2", "3Gi")
        async with asyncio.timeout(PATIENCE_S):
            while (await kept_for(api))["more"] != "late":
                await asyncio.sleep(0.05)
        await bind(api, "late", "more")
        pods = await until(api, lambda pods: len(bound(pods)) == 3)
        assert where(pods)["late"] == "n2"
        (await auditor.report()).assert_kept(all_bound=True)


async def test_local_volumes_that_are_never_bound_are_given_back(
    api: Api, kant: Kant, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The volume controller does nothing: the gang is not bound, and does not keep the volumes."""
    monkeypatch.setattr(volume_binder, "PATIENCE", 2.0)
    await api.create(make_node("n0", labels={"kubernetes.io/hostname": "n0"}))
    await api.create(storage_class("local", "kubernetes.io/no-provisioner"))
    await local(api, "a", "n0", "2Gi")
    await local(api, "b", "n0", "2Gi")
    async with kant():
        await local_gang(api)
        async with asyncio.timeout(PATIENCE_S):
            for wanted in (["g-0", "g-1"], ["", ""]):
                while sorted((await kept_for(api)).values()) != wanted:
                    await asyncio.sleep(0.02)
        assert not bound(await api.list("pods"))


async def test_a_claim_for_one_pod_is_used_by_one_at_a_time(api: Api, kant: Kant) -> None:
    await api.create_all([*zoned("a", "b"), volume("pv", "one", mode=ONE_POD), claim("one", "pv", mode=ONE_POD)])
    async with kant():
        await api.create_all([make_pod(f"p{number}", **uses("one")) for number in range(2)])
        pods = await until(
            api, lambda pods: len(bound(pods)) == 1 and any(says(pods, f"p{i}", "allows one pod") for i in range(2))
        )
        (first,) = bound(pods)
        await api.delete(f"/api/v1/namespaces/default/pods/{first}", grace_s=0)
        await until(api, lambda pods: len(pods) == 1 and len(bound(pods)) == 1)


async def test_without_the_right_to_read_claims_pods_that_use_them_are_refused(api: Api, kant: Kant) -> None:
    await deputy_of_kant(api, "storage.k8s.io")
    await api.create_all([*zoned("a"), volume("pv", "data"), claim("data", "pv")])
    await api.create_all([make_pod("with", **uses("data")), make_pod("without")])
    async with kant(user="deputy"):
        pods = await until(
            api, lambda pods: says(pods, "with", "expected permission for Kant to list") and bound(pods) == ["without"]
        )
        assert {condition(pod).get("reason") for pod in pods if pod["metadata"]["name"] == "with"} == {"SchedulerError"}


async def test_pods_of_a_gang_whose_volumes_lie_in_other_zones_start_together_each_where_its_own_is(
    api: Api, kant: Kant
) -> None:
    """As those of a StatefulSet: equal amounts, a claim each. A pod that is made anew goes where its volume is, too."""

    def gang(name: str, *zones: str) -> list[Object]:
        pods = make_gang(name, len(zones), 4)
        for number, (pod, zone) in enumerate(zip(pods, zones, strict=True)):
            pod["spec"] |= {"nodeSelector": {"gpu": zone}} if zone.isupper() else uses(f"{name}-{number}")
        return pods

    def storage(name: str, *zones: str) -> list[Object]:
        names = [(f"{name}-{number}", zone) for number, zone in enumerate(zones) if zone.islower()]
        made = [volume(f"pv-{one}", one, ZONE, zone) for one, zone in names]
        return [*made, *(claim(one, f"pv-{one}") for one, _ in names)]

    nodes = zoned("a", "b", "b", "c")
    for view, label in zip(nodes, "XXYY", strict=True):
        view["metadata"]["labels"]["gpu"] = label
    await api.create_all([*nodes, *storage("g", "b", "a", "b", "b"), *storage("h", "c", "a")])
    async with Auditor(api) as auditor:
        async with kant() as driver:
            g = gang("g", "b", "a", "b", "b", "Y")  # and one that selects its node by a label
            await api.create_all(g)
            pods = await until(api, lambda pods: len(bound(pods)) == 5)
            found = where(pods)
            assert found["g-1"] == "n0" and {found[f"g-{number}"] for number in (0, 2, 3)} == {"n1", "n2"}
            assert found["g-4"] in ("n2", "n3")
            await api.create(make_pod("full", 4, nodeSelector={ZONE: "a"}))
            await until(api, lambda pods: "full" in bound(pods))
            await api.create_all(gang("h", "c", "a"))
            await until(api, lambda pods: says(pods, "h-0", "not enough free capacity: 0 of 1 pods fit now"))
            for name in ("g-0", "g-1"):
                await api.delete(f"/api/v1/namespaces/default/pods/{name}", grace_s=0)
            await api.create_all([g[1], g[0]])
            pods = await until(api, lambda pods: len(bound(pods)) == 6)
            assert where(pods)["g-1"] == "n0" and where(pods)["g-0"] == found["g-0"]
        async with kant() as driver:
            await api.delete("/api/v1/namespaces/default/pods/full", grace_s=0)
            pods = await until(api, lambda pods: len(bound(pods)) == 7)
            assert (where(pods)["h-0"], where(pods)["h-1"]) == ("n3", "n0") and driver.counts.evicted == 0
        (await auditor.report()).assert_kept()
