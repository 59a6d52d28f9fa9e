"""What pods prefer, on a real API server: they go where they like it best, and elsewhere where that is taken."""

from __future__ import annotations

from typing import Any

from tests.kube.api import Api
from tests.kube.live import bound, of_queue, queue, says, seen, until, where
from tests.kube.objects import Object, make_node, make_pod
from tests.kube.running import Kant

SOFT = "preferredDuringSchedulingIgnoredDuringExecution"
HOST, ZONE = "kubernetes.io/hostname", "topology.kubernetes.io/zone"
SPARED = {"key": "spared", "value": "yes", "effect": "PreferNoSchedule"}


def liking(*terms: tuple[int, str, str]) -> dict[str, Any]:
    """Preferred node affinity: weight, label and value of each term."""
    found: list[Object] = [
        {"weight": weight, "preference": {"matchExpressions": [{"key": key, "operator": "In", "values": [value]}]}}
        for weight, key, value in terms
    ]
    return {"affinity": {"nodeAffinity": {SOFT: found}}}


async def test_a_pod_goes_to_the_nodes_that_it_likes_best_and_then_to_others(api: Api, kant: Kant) -> None:
    await api.create_all([make_node("a", 2), make_node("b", 2, labels={"disk": "ssd", "zone": "z"})])
    await api.create_all([make_node("c", 2, labels={"disk": "ssd"})])
    async with kant():
        likes = liking((10, "disk", "ssd"), (1, "zone", "z"))
        for number, node in enumerate("bbccaa"):
            await api.create(make_pod(f"p{number}", 1, **likes))
            pods = await until(api, lambda pods, so_far=number + 1: len(bound(pods)) == so_far)
            assert where(pods)[f"p{number}"] == node


async def test_a_pod_avoids_a_taint_that_came_while_it_waited_unless_it_tolerates_it(api: Api, kant: Kant) -> None:
    await api.create_all([make_node("a", 4), make_node("b", 4)])
    await api.apply([queue("team", 5)])

    def pod(name: str, gpus: int, node: str = "", **spec: Any) -> Object:
        selector = {"nodeSelector": {HOST: node}} if node else {}
        return make_pod(name, gpus, labels=of_queue("team"), **selector, **spec)

    async with kant() as driver:
        await api.create_all([pod("full", 4, "b"), pod("resident", 1, "a")])
        await until(api, lambda pods: len(bound(pods)) == 2)
        await api.create(pod("careful", 1))
        await api.create(pod("tolerant", 1, tolerations=[{"key": "spared", "operator": "Exists"}]))
        await until(api, lambda pods: all(says(pods, name, "quota") for name in ("careful", "tolerant")))
        await seen(driver, "a", await api.patch("/api/v1/nodes/a", {"spec": {"taints": [SPARED]}}))
        await api.delete("/api/v1/namespaces/default/pods/full", grace_s=0)
        pods = await until(api, lambda pods: len(bound(pods)) == 3)
        assert where(pods) == {"careful": "b", "tolerant": "a", "resident": "a"}


def beside(part: str, app: str) -> dict[str, Any]:
    """What a pod prefers of the pods of an app on its node: `podAffinity` or `podAntiAffinity`."""
    term = {"topologyKey": HOST, "labelSelector": {"matchLabels": {"app": app}}}
    return {"affinity": {part: {SOFT: [{"weight": 100, "podAffinityTerm": term}]}}}


async def test_six_replicas_that_would_rather_not_meet_stand_on_six_nodes(api: Api, kant: Kant) -> None:
    """Of eight nodes that each hold all of them; they are decided together."""
    await api.create_all([make_node(f"n{i}", 8) for i in range(8)])
    web = [make_pod(f"web-{i}", 1, labels={"app": "web"}, **beside("podAntiAffinity", "web")) for i in range(6)]
    async with kant():
        await api.create_all(web)
        found = where(await until(api, lambda pods: len(bound(pods)) == 6))
        assert len({*found.values()}) == 6


async def test_a_pod_keeps_away_from_who_dislikes_it_and_goes_to_whom_it_likes(api: Api, kant: Kant) -> None:
    await api.create_all([make_node("a", 8), make_node("b", 8)])
    async with kant():
        await api.create(make_pod("hermit", 1, **beside("podAntiAffinity", "web")))
        await until(api, lambda pods: len(bound(pods)) == 1)
        await api.create(make_pod("web", 1, labels={"app": "web"}))
        await until(api, lambda pods: len(bound(pods)) == 2)
        await api.create(make_pod("more", 2, nodeSelector={HOST: "a"}))
        await until(api, lambda pods: len(bound(pods)) == 3)
        await api.create(make_pod("friend", 1, **beside("podAffinity", "web")))
        found = where(await until(api, lambda pods: len(bound(pods)) == 4))
        assert found == {"hermit": "a", "web": "b", "more": "a", "friend": "b"}


async def test_pods_that_may_lie_anywhere_lie_evenly_over_zones(api: Api, kant: Kant) -> None:
    await api.create_all([make_node(f"n{i}", 8, labels={ZONE: "abbb"[i]}) for i in range(4)])
    spread = {"maxSkew": 1, "topologyKey": ZONE, "whenUnsatisfiable": "ScheduleAnyway"}
    spread |= {"labelSelector": {"matchLabels": {"app": "web"}}}
    web = [make_pod(f"web-{i}", 1, labels={"app": "web"}, topologySpreadConstraints=[spread]) for i in range(6)]
    async with kant():
        await api.create_all(web)
        found = where(await until(api, lambda pods: len(bound(pods)) == 6))
        assert sorted(found.values()).count("n0") == 3
