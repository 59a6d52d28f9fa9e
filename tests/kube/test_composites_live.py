"""Groups in groups: the PodGroups of a CompositePodGroup start together, on a real API server."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from tests.kube.api import Api
from tests.kube.live import bound, says, until, where
from tests.kube.objects import Object, make_node, make_pod
from tests.kube.running import Kant
from tests.kube.test_topology_live import TOPOGRAPH, fabric
from tests.patience import PATIENCE_S

from kant.kube.connect.client import ApiClient
from kant.kube.follow import informers

BASE = "/apis/scheduling.k8s.io/v1alpha3/namespaces/default"
Kinds = dict[str, Object]


@pytest.fixture
def kinds(monkeypatch: pytest.MonkeyPatch) -> Kinds:
    """Objects by their path, of kinds of Kubernetes 1.37: the API server of the tests has 1.36, and serves no other
    kinds in that group. Whoever reads one gets it from here, and all else from the API server."""
    monkeypatch.setattr(informers, "ABSENT", 0.3)
    found: Kinds = {}
    real = ApiClient.get

    async def get(client: ApiClient, path: str, what: Any) -> Any:
        if path in found:
            return msgspec.json.decode(msgspec.json.encode(found[path]), type=what)
        return await real(client, path, what)

    monkeypatch.setattr(ApiClient, "get", get)
    return found


def put(kinds: Kinds, *things: Object) -> None:
    for one in things:
        kinds[f"{BASE}/{one['kind'].lower()}s/{one['metadata']['name']}"] = one


def made(what: str, name: str, policy: Object, parent: str = "") -> Object:
    spec = {"schedulingPolicy": policy} | ({"parentCompositePodGroupName": parent} if parent else {})
    meta = {"name": name, "namespace": "default"}
    return {"apiVersion": "scheduling.k8s.io/v1alpha3", "kind": what, "metadata": meta, "spec": spec}


def outer(name: str, groups: int, parent: str = "") -> Object:
    policy: Object = {"gang": {"minGroupCount": groups}} if groups else {"basic": {}}
    return made("CompositePodGroup", name, policy, parent)


def inner(name: str, pods: int, parent: str) -> Object:
    return made("PodGroup", name, {"gang": {"minCount": pods}}, parent)


def constrained(one: Object, label: str) -> Object:
    """The group, with all of its pods in one domain that this label names."""
    one["spec"]["schedulingConstraints"] = {"topology": [{"key": label}]}
    return one


def pods_of(group: str, count: int, gpus: int = 1) -> list[Object]:
    return [make_pod(f"{group}-{index}", gpus, schedulingGroup={"podGroupName": group}) for index in range(count)]


async def test_the_groups_of_a_group_start_together_or_not_at_all(api: Api, kant: Kant, kinds: Kinds) -> None:
    """A driver and its workers, twice, on 6 GPUs: 4 for each. And the next leader knows what belongs together."""
    await api.create_all([make_node("n0", 4), make_node("n1", 2)])
    for name in "ab":
        put(kinds, outer(name, 2), inner(f"{name}-d", 1, name), inner(f"{name}-w", 3, name))
    async with kant():
        await api.create_all([one for name in "ab" for one in pods_of(f"{name}-d", 1)])
        await until(api, lambda pods: all(says(pods, f"{name}-d-0", f"another group of {name}") for name in "ab"))
        await api.create_all([one for name in "ab" for one in pods_of(f"{name}-w", 3)])
        pods = await until(api, lambda pods: len(bound(pods)) == 4)
        first = bound(pods)[0][0]
        second = "b" if first == "a" else "a"
        assert {one[0] for one in bound(pods)} == {first}
        await until(api, lambda pods: says(pods, f"{second}-d-0", "of 4 pods fit now"))
    async with kant() as driver:
        await until(api, lambda pods: says(pods, f"{second}-w-2", "of 4 pods fit now"))
        await api.delete(f"/api/v1/namespaces/default/pods/{first}-d-0", grace_s=0)
        for index in range(3):
            await api.delete(f"/api/v1/namespaces/default/pods/{first}-w-{index}", grace_s=0)
        await until(api, lambda pods: len(bound(pods)) == 4)
        assert driver.counts.evicted == driver.counts.released == 0


async def test_groups_of_groups_of_groups_and_what_goes_its_own_way(api: Api, kant: Kant, kinds: Kinds) -> None:
    await api.create(make_node("n0", 7))
    put(kinds, outer("top", 2), outer("left", 2, "top"), outer("right", 1, "top"))
    put(kinds, inner("l1", 2, "left"), inner("l2", 2, "left"), inner("r1", 2, "right"))
    put(kinds, outer("loose", 0), inner("x", 2, "loose"), inner("y", 3, "loose"))
    async with kant():
        await api.create_all([*pods_of("l1", 2), *pods_of("r1", 2), *pods_of("x", 2), *pods_of("y", 2)])
        await until(api, lambda pods: bound(pods) == ["x-0", "x-1"] and says(pods, "r1-0", "another group of left"))
        await until(api, lambda pods: says(pods, "y-0", "2 of the 3 pods of its gang exist"))
        await api.create_all(pods_of("l2", 2))
        await until(api, lambda pods: says(pods, "l2-1", "5 of 6 pods fit now"))
        await api.create(make_node("n1", 1))
        await until(api, lambda pods: len(bound(pods)) == 8)


async def test_each_group_has_a_rack_and_all_of_them_one_row(api: Api, kant: Kant, kinds: Kinds) -> None:
    await api.create_all(fabric(TOPOGRAPH, nodes=3))
    await api.create(make_pod("there", 8, nodeSelector={"kubernetes.io/hostname": "n0-0"}))
    put(kinds, constrained(outer("a", 2), TOPOGRAPH[1]))
    put(kinds, *(constrained(inner(f"a-{name}", 3, "a"), TOPOGRAPH[0]) for name in "xy"))
    put(kinds, outer("odd", 1), constrained(inner("odd-x", 2, "odd"), TOPOGRAPH[0]))
    async with kant():
        await until(api, lambda pods: bound(pods) == ["there"])
        await api.create_all([*pods_of("a-x", 3, 8), *pods_of("a-y", 3, 8)])
        placed = where(await until(api, lambda pods: len(bound(pods)) == 7))
        leaves = {name: {placed[f"a-{name}-{at}"][:2] for at in range(3)} for name in "xy"}
        assert sorted(map(sorted, leaves.values())) == [["n2"], ["n3"]], "n0 has no room for three"
        await api.create_all(
            [*pods_of("odd-x", 1, 8), make_pod("odd-x-1", 4, schedulingGroup={"podGroupName": "odd-x"})]
        )
        words = "PodGroup odd-x: expected pods with equal requests, or no topology constraint of its own"
        await until(api, lambda pods: says(pods, "odd-x-0", words))


async def test_groups_of_a_group_that_were_bound_in_part_are_given_back(api: Api, kant: Kant, kinds: Kinds) -> None:
    """Its driver was bound by a leader that is gone, and there is no room for all of its workers."""
    await api.create(make_node("n0", 3))
    put(kinds, outer("a", 2), inner("a-d", 1, "a"), inner("a-w", 3, "a"))
    (driver,) = pods_of("a-d", 1)
    driver["spec"]["nodeName"] = "n0"
    await api.create_all([driver, *pods_of("a-w", 3)])
    async with kant(recovery=1.0) as leader:
        async with asyncio.timeout(PATIENCE_S):
            while not leader.counts.released:
                await asyncio.sleep(0.05)
        assert bound(await api.list("/api/v1/pods")) == ["a-d-0"]
