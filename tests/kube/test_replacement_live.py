"""A pod that comes for one that is gone obeys everything that a first placement obeys, on a real API server."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.kube.api import Api
from tests.kube.audit import Auditor
from tests.kube.live import bound, says, seen, until, where
from tests.kube.objects import Object, make_gang, make_node
from tests.kube.running import Kant
from tests.patience import PATIENCE_S

from kant.kube.lead.driver import KubeDriver

TAINT = [{"key": "maintenance", "value": "soon", "effect": "NoSchedule"}]
CHANGES: dict[str, Object] = {
    "tainted": {"spec": {"taints": TAINT}},
    "relabelled": {"metadata": {"labels": {"pool": "b"}}},
    "cordoned": {"spec": {"unschedulable": True}},
}
"""What becomes of a node after a gang was placed there. All that run there may run on."""


def gang() -> list[Object]:
    return make_gang("g", 2, 8, nodeSelector={"pool": "a"})


def pool(name: str, nodes: int) -> list[Object]:
    return [make_node(f"{name}{i}", labels={"pool": name}) for i in range(nodes)]


async def replace(api: Api, pod: int) -> None:
    """Delete a pod of the gang, and make it again as its controller does."""
    await api.delete(f"/api/v1/namespaces/default/pods/g-{pod}", grace_s=0)
    await api.create(gang()[pod])


async def change(api: Api, driver: KubeDriver, node: str, patch: Any) -> None:
    """Change a node, and wait until the leader has been told."""
    await seen(driver, node, await api.patch(f"/api/v1/nodes/{node}", patch))


@pytest.mark.parametrize("patch", CHANGES.values(), ids=list(CHANGES))
async def test_a_replacement_does_not_go_where_a_first_placement_would_not(api: Api, kant: Kant, patch: Object) -> None:
    await api.create_all([*pool("a", 3), *pool("b", 1)])
    async with Auditor(api) as auditor:
        async with kant():
            await api.create_all(gang())
            await until(api, lambda pods: len(bound(pods)) == 2)
        async with kant() as driver:  # it knows the gang from its bound pods alone
            pods = await until(api, lambda pods: len(bound(pods)) == 2)
            async with asyncio.timeout(PATIENCE_S):
                while not driver.counts.builds:
                    await asyncio.sleep(0.02)
            left = where(pods)["g-0"]
            await change(api, driver, left, patch)
            for _ in range(3):
                await replace(api, 0)
                pods = await until(api, lambda pods: len(bound(pods)) == 2)
                found = where(pods)
                assert found["g-0"] != left and found["g-0"].startswith("a"), found
        (await auditor.report()).assert_kept(all_bound=True)


async def test_a_replacement_without_a_place_says_so_and_is_bound_when_there_is_one(api: Api, kant: Kant) -> None:
    await api.create_all([*pool("a", 2), *pool("b", 1)])
    async with Auditor(api) as auditor, kant() as driver:
        await api.create_all(gang())
        pods = await until(api, lambda pods: len(bound(pods)) == 2)
        left = where(pods)["g-0"]
        await change(api, driver, left, CHANGES["tainted"])
        await replace(api, 0)
        await until(api, lambda pods: says(pods, "g-0", "no place was found for its other pods"))
        await change(api, driver, left, {"spec": {"taints": None}})
        pods = await until(api, lambda pods: len(bound(pods)) == 2)
        assert where(pods)["g-0"] == left
        (await auditor.report()).assert_kept(all_bound=True)
