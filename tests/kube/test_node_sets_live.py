"""Node sets on a real API server: any number of selections, and nodes whose labels and taints change, in one state."""

from __future__ import annotations

from typing import Any

import pytest
from tests.kube.api import Api
from tests.kube.live import bound, says, until, where
from tests.kube.objects import Object, make_gang, make_node, make_pod
from tests.kube.running import Kant

MANY = 70
KEPT = {"key": "kept", "value": "yes", "effect": "NoSchedule"}


def taint(number: int, own_key: bool) -> Object:
    key, value = (f"team-{number}", "") if own_key else ("team", f"t{number}")
    return {"key": key, "value": value, "effect": "NoSchedule"}


def tolerating(number: int, own_key: bool) -> dict[str, Any]:
    one = taint(number, own_key)
    return {"tolerations": [{"key": one["key"], "operator": "Equal", "value": one["value"], "effect": one["effect"]}]}


@pytest.mark.parametrize("own_key", [False, True], ids=["of one key", "of a key each"])
async def test_seventy_taints_stop_nobody(api: Api, kant: Kant, own_key: bool) -> None:
    await api.create_all([make_node("free", 8)])
    await api.create_all([make_node(f"n{i}", 1, taints=[taint(i, own_key)]) for i in range(MANY)])
    async with kant() as driver:
        await api.create(make_pod("plain", 8))
        pods = await until(api, lambda pods: len(bound(pods)) == 1)
        assert where(pods) == {"plain": "free"}
        await api.create_all([make_pod(f"p{i}", 1, **tolerating(i, own_key)) for i in range(MANY)])
        pods = await until(api, lambda pods: len(bound(pods)) == MANY + 1)
        found = where(pods)
        assert all(found[f"p{i}"] == f"n{i}" for i in range(MANY)), found
        assert driver.counts.builds == 1


async def test_any_number_of_pods_pinned_to_hosts_and_none_holds_up_others(api: Api, kant: Kant) -> None:
    await api.create_all([make_node(f"n{i}", 1) for i in range(80)])
    pinned = [make_pod(f"p{i}", 1, nodeSelector={"kubernetes.io/hostname": f"n{i}"}) for i in range(80)]
    async with kant() as driver:
        await api.create_all([make_pod("full", 1, scheduler="somebody", node="n7")])
        await api.create_all(pinned)
        pods = await until(api, lambda pods: len(bound(pods)) == 80)
        assert all(where(pods)[f"p{i}"] == f"n{i}" for i in range(80) if i != 7)
        await until(api, lambda pods: says(pods, "p7", "fit now"))
        assert driver.counts.builds == 1


async def test_pods_follow_labels_and_taints_and_no_state_is_built_anew(api: Api, kant: Kant) -> None:
    fast = {"nodeSelector": {"disk": "fast"}}

    async def label(node: str, disk: str | None) -> None:
        await api.patch(f"/api/v1/nodes/{node}", {"metadata": {"labels": {"disk": disk}}})

    async def stain(node: str, *taints: Object) -> None:
        await api.patch(f"/api/v1/nodes/{node}", {"spec": {"taints": list(taints)}})

    async def placed(name: str, node: str) -> None:
        pods = await until(api, lambda pods: name in bound(pods))
        assert where(pods)[name] == node, where(pods)

    await api.create_all([make_node("a", 8, labels={"disk": "fast"}), make_node("b", 4)])
    async with kant() as driver:
        await api.create(make_pod("first", 2, **fast))
        await placed("first", "a")
        await api.create(make_pod("wish", 1, nodeSelector={"disk": "tape"}))
        await until(api, lambda pods: says(pods, "wish", "none has disk=tape"))
        await label("a", None)
        await api.create(make_pod("second", 2, **fast))
        await until(api, lambda pods: says(pods, "second", "none has disk=fast"))
        await stain("b", KEPT)
        await label("b", "fast")
        await until(api, lambda pods: says(pods, "second", "kept=yes:NoSchedule"))  # another reason by now
        await api.create_all([make_pod("plain", 1), make_pod("large", 5, **fast), *make_gang("gang", 2, 1)])
        for name in ("plain", "gang-0", "gang-1"):
            await placed(name, "a")
        await stain("b")
        await placed("second", "b")
        await until(api, lambda pods: says(pods, "large", "never fit"))  # b has 4 GPUs
        await label("a", "fast")
        await until(api, lambda pods: "first" in bound(pods))
        await api.delete("/api/v1/namespaces/default/pods/first", grace_s=0)
        await placed("large", "a")
        await label("b", "tape")
        await placed("wish", "b")
        assert driver.counts.builds == 1


async def test_the_first_taint_is_heeded_by_pods_that_select_nothing(api: Api, kant: Kant) -> None:
    await api.create_all([make_node("a", 2), make_node("b", 2)])
    async with kant() as driver:
        await api.create_all([*make_gang("runs", 2, 1), make_pod("full", 2)])
        await until(api, lambda pods: len(bound(pods)) == 3)
        await api.create_all([make_pod("late", 2), make_pod("able", 2, tolerations=[{"operator": "Exists"}])])
        pods = await until(api, lambda pods: says(pods, "late", "fit now") and says(pods, "able", "fit now"))
        node = where(pods)["full"]
        await api.patch(f"/api/v1/nodes/{node}", {"spec": {"taints": [KEPT]}})
        await until(api, lambda _: driver.translation.eligible.node_sets.tainted)
        await api.delete("/api/v1/namespaces/default/pods/full", grace_s=0)
        pods = await until(api, lambda pods: "able" in bound(pods))
        assert where(pods)["able"] == node and "late" not in bound(pods)
        await api.delete("/api/v1/namespaces/default/pods/runs-0", grace_s=0)
        await api.delete("/api/v1/namespaces/default/pods/runs-1", grace_s=0)
        pods = await until(api, lambda pods: "late" in bound(pods))
        assert where(pods)["late"] != node and driver.counts.builds == 1
