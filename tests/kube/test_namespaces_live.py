"""Affinity to pods of namespaces that are selected by labels, on a real API server."""

from __future__ import annotations

from contextlib import suppress

from tests.kube.api import Api, RefusedError
from tests.kube.live import bound, deputy_of_kant, says, until, where
from tests.kube.objects import Object, make_node, make_pod
from tests.kube.running import Kant

ZONE = "topology.kubernetes.io/zone"
SPACE = "spaces-red"


def keeps_from(**labels: str) -> Object:
    """Required anti-affinity to databases in namespaces with these labels, by zone."""
    term = {
        "labelSelector": {"matchLabels": {"app": "db"}},
        "namespaceSelector": {"matchLabels": labels},
        "topologyKey": ZONE,
    }
    return {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}


async def namespace(api: Api, **labels: str) -> None:
    with suppress(RefusedError):  # it is there: namespaces stay until the server ends
        await api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SPACE}})
    await api.patch(f"/api/v1/namespaces/{SPACE}", {"metadata": {"labels": {"team": None} | labels}})


async def test_anti_affinity_to_namespaces_that_are_selected_by_labels(api: Api, kant: Kant) -> None:
    await namespace(api, team="red")
    await api.create_all([make_node(f"n{zone}", labels={ZONE: zone}) for zone in "ab"])
    theirs = make_pod("db", 1, namespace=SPACE, scheduler="somebody", node="na", labels={"app": "db"})
    own = make_pod("own", 1, scheduler="somebody", node="nb", labels={"app": "db"})  # no team has its namespace
    await api.create_all([theirs, own])
    async with kant():
        asks = {"affinity": keeps_from(team="red")}
        await api.create_all([make_pod("free", 1, **asks), make_pod("held", 1, nodeSelector={ZONE: "a"}, **asks)])
        pods = await until(api, lambda pods: "free" in bound(pods))
        assert where(pods)["free"] == "nb"
        await until(api, lambda pods: says(pods, "held", f"such as pod {SPACE}/db"))
        await namespace(api, team="blue")
        pods = await until(api, lambda pods: "held" in bound(pods))
        assert where(pods)["held"] == "na"


async def test_without_the_right_to_list_namespaces_such_pods_are_refused_with_that_reason(
    api: Api, kant: Kant
) -> None:
    await deputy_of_kant(api, but_for="namespaces")
    await api.create_all([make_node("na", labels={ZONE: "a"})])
    async with kant(user="deputy"):
        await api.create_all([make_pod("held", 1, affinity=keeps_from(team="red")), make_pod("other", 1)])
        await until(
            api, lambda pods: "other" in bound(pods) and says(pods, "held", "Kant has no permission to list namespaces")
        )
