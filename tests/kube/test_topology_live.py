"""The fabric and the kinds of nodes on a real API server: levels required and wished, reservations, flavors."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

import pytest
from tests.kube.api import Api
from tests.kube.kubelet import FakeKubelet
from tests.kube.live import (
    bound,
    change,
    condition,
    install_kind,
    kind,
    of_queue,
    ours,
    queue,
    says,
    status,
    until,
    where,
)
from tests.kube.objects import Object, make_gang, make_node, make_pod
from tests.kube.running import Kant
from tests.patience import PATIENCE_S

from kant.kube.follow import informers

TOPOGRAPH = ("fabric.topograph.run/tier-0", "fabric.topograph.run/tier-1")
OWN = ("example.com/rack", "example.com/row")


def fabric(labels: tuple[str, str], leaves: int = 4, nodes: int = 2) -> list[Object]:
    """Two spines with leaves of so many nodes each: node n1-0 is the first of leaf 1."""
    leaf, spine = labels
    return [
        make_node(f"n{i}-{k}", labels={leaf: f"leaf-{i}", spine: f"spine-{2 * i // leaves}"})
        for i in range(leaves)
        for k in range(nodes)
    ]


def leaves(pods: list[Object], gang: str) -> set[str]:
    return {node[:2] for pod, node in where(pods).items() if pod.startswith(f"{gang}-")}


def topology(name: str = "fabric") -> Object:
    return ours(
        "Topology", name, levels=[{"level": "leaf", "nodeLabel": OWN[0]}, {"level": "spine", "nodeLabel": OWN[1]}]
    )


REQUIRED = {
    "ours": {"scheduling.kant.dev/topology-required": "leaf"},
    "by label": {"scheduling.kant.dev/topology-required": TOPOGRAPH[0]},
    "KAI": {"kai.scheduler/topology-required-placement": TOPOGRAPH[0]},
    "Kueue": {"kueue.x-k8s.io/podset-required-topology": TOPOGRAPH[0]},
}


SEGMENTS = {
    "ours": {"scheduling.kant.dev/segments": "spine=4 leaf=2"},
    "Kueue": {
        "kueue.x-k8s.io/podset-slice-required-topology-constraints": json.dumps(
            [{"topology": TOPOGRAPH[1], "size": 4}, {"topology": TOPOGRAPH[0], "size": 2}]
        )
    },
}


@pytest.mark.parametrize("said", SEGMENTS.values(), ids=list(SEGMENTS))
async def test_segments_in_segments_lie_each_in_one_domain_of_their_level(
    api: Api, kant: Kant, said: Mapping[str, str]
) -> None:
    await api.create_all(fabric(TOPOGRAPH, nodes=3))
    async with kant():
        await api.create_all(make_gang("wide", 8, 8, annotations=dict(said)))
        placed = where(await until(api, lambda pods: len(bound(pods)) == 8))
        ranks = [placed[f"wide-{rank}"][:2] for rank in range(8)]
        assert len(set(ranks)) == 4 and all(len(set(ranks[at : at + 2])) == 1 for at in range(0, 8, 2))
        assert {frozenset(ranks[:4]), frozenset(ranks[4:])} == {frozenset({"n0", "n1"}), frozenset({"n2", "n3"})}
        await api.create_all(make_gang("late", 4, 8, annotations=dict(said)))
        words = "fits in no spine: the best one has room for 0 of 4 pods, in segments of 2 that each lie in one leaf"
        await until(api, lambda pods: says(pods, "late-0", words))
        await api.create_all(make_gang("odd", 6, 8, annotations=dict(said)))
        await until(api, lambda pods: says(pods, "odd-0", "expected a length that divides 6"))


@pytest.mark.parametrize("said", REQUIRED.values(), ids=list(REQUIRED))
async def test_a_required_level_holds_a_gang_together_or_it_waits(
    api: Api, kant: Kant, said: Mapping[str, str]
) -> None:
    await api.create_all(fabric(TOPOGRAPH))
    await api.create_all([make_pod(f"theirs-{i}", 6, scheduler="somebody", node=f"n{i}-0") for i in range(4)])
    async with kant():
        await api.create_all(make_gang("fits", 5, 2, annotations=said))
        pods = await until(api, lambda pods: len(leaves(pods, "fits")) == 1 and len(bound(pods)) == 9)
        await api.create_all([*make_gang("waits", 6, 2, annotations=said), *make_gang("free", 6, 2)])
        pods = await until(
            api,
            lambda pods: (
                sum(one.startswith("free") for one in bound(pods)) == 6
                and all(says(pods, f"waits-{i}", "leaf") for i in range(6))
            ),
        )
        assert condition(next(p for p in pods if p["metadata"]["name"] == "waits-5"))["reason"] == "Unschedulable"
        assert "has room for" in condition(next(p for p in pods if p["metadata"]["name"] == "waits-0"))["message"]
        taken = leaves(pods, "fits") | leaves(pods, "free")
        other = next(i for i in range(4) if f"n{i}" not in taken)
        await api.delete(f"/api/v1/namespaces/default/pods/theirs-{other}", grace_s=0)
        await until(api, lambda pods: leaves(pods, "waits") == {f"n{other}"} and len(bound(pods)) == 20)


async def test_a_topology_object_names_the_levels_and_a_wished_one_gives_way(api: Api, kant: Kant) -> None:
    await api.create_all(fabric(OWN))
    must, may = ({f"scheduling.kant.dev/topology-{word}": "leaf"} for word in ("required", "preferred"))
    async with kant() as driver:
        await api.create_all(make_gang("must", 2, 8, annotations=must))
        await until(api, lambda pods: says(pods, "must-0", "level of the fabric"))
        await api.apply([topology()])  # a level that is known from now on
        await until(api, lambda pods: len(bound(pods)) == 2)
        assert driver.counts.builds == 2
        await api.create_all(make_gang("together", 2, 8, annotations=may))
        pods = await until(api, lambda pods: len(bound(pods)) == 4)
        assert len(leaves(pods, "together")) == len(leaves(pods, "must")) == 1
        await api.create_all(make_gang("wide", 3, 8, annotations=may))
        pods = await until(api, lambda pods: len(bound(pods)) == 7)
        assert len(leaves(pods, "wide")) == 2
        await api.apply([topology("second")])
        found = await status(api, "topologies", "second", lambda s: bool(s["conditions"]))
        assert found["conditions"][0]["status"] == "False"
        assert "Topology fabric is in force" in found["conditions"][0]["message"]
        found = await status(api, "topologies", "fabric", lambda s: bool(s["conditions"]))
        assert found["conditions"][0]["status"] == "True"
        builds = driver.counts.builds
        await asyncio.sleep(1.0)
        assert driver.counts.builds == builds  # a status is no news


async def test_a_topology_of_kueue_beside_ours_of_the_same_name(
    api: Api, kant: Kant, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its kind is installed while Kant runs."""
    monkeypatch.setattr(informers, "INSTALLED", 0.3)
    definition = kind("kueue.x-k8s.io", "v1beta1", "Topology", "topologies")
    definition["spec"]["scope"] = "Cluster"
    theirs = {"apiVersion": "kueue.x-k8s.io/v1beta1", "kind": "Topology", "metadata": {"name": "fabric"}}
    await api.create_all(fabric(("a", "b")))
    async with kant() as driver:
        said = {"kueue.x-k8s.io/podset-required-topology": "a"}
        await api.create_all(make_gang("one", 2, 8, annotations=said))
        await until(api, lambda pods: says(pods, "one-0", "level of the fabric"))
        await install_kind(api, definition)
        await api.apply([theirs | {"spec": {"levels": [{"nodeLabel": "b"}, {"nodeLabel": "a"}]}}])
        pods = await until(api, lambda pods: len(bound(pods)) == 2)
        assert len(leaves(pods, "one")) == 1 and driver.translation.nodes.levels.source == "Topology fabric"
        await api.apply([topology()])
        await status(api, "topologies", "fabric", lambda s: s["conditions"][0]["status"] == "True")
        assert driver.translation.nodes.levels.leaf == OWN[0]
        await api.delete("/apis/scheduling.kant.dev/v1alpha1/topologies/fabric")
        async with asyncio.timeout(PATIENCE_S):
            while driver.translation.nodes.levels.leaf != "a":
                await asyncio.sleep(0.05)
    await api.delete("/apis/apiextensions.k8s.io/v1/customresourcedefinitions/topologies.kueue.x-k8s.io")


def at(seconds: float) -> str:
    return (datetime.now(UTC) + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")


async def test_maintenance_drains_its_nodes_and_gives_them_back(api: Api, kant: Kant) -> None:
    await api.create_all([make_node("n0", labels={"row": "a"}), make_node("n1", labels={"row": "b"})])
    async with FakeKubelet(api), kant():
        yes = {"scheduling.kant.dev/preemptible": "true"}
        await api.create_all([make_pod(f"runs-{i}", 8, annotations=yes) for i in range(2)])
        pods = await until(api, lambda pods: len(bound(pods)) == 2)
        on = {node: pod for pod, node in where(pods).items()}
        upkeep = ours(
            "Reservation", "upkeep", nodeSelector={"row": "a"}, start=at(3600), end=at(7200), reason="new cables"
        )
        await api.apply([upkeep])
        found = await status(api, "reservations", "upkeep", lambda s: s.get("phase") == "Pending")
        assert found["nodes"] == 1 and len(bound(await api.list("pods"))) == 2
        await change(api, "reservations", "upkeep", start=at(1))
        pods = await until(api, lambda pods: bound(pods) == [on["n1"]])
        await api.create(make_pod("late", 8))
        await until(api, lambda pods: says(pods, "late", "capacity"))
        await status(api, "reservations", "upkeep", lambda s: s.get("phase") == "Active")
        end = at(1)
        await change(api, "reservations", "upkeep", end=end)
        pods = await until(api, lambda pods: where(pods).get("late") == "n0")
        assert at(0) >= end
        await status(api, "reservations", "upkeep", lambda s: s.get("phase") == "Over")


async def test_nodes_that_are_kept_for_a_queue(api: Api, kant: Kant) -> None:
    await api.create_all([make_node("n0", labels={"row": "a"}), make_node("n1", labels={"row": "b"})])
    await api.apply(
        [
            queue("vip", 16),
            queue("rest", 16),
            ours("Reservation", "mine", nodeSelector={"row": "a"}, queues=["vip"], start=at(-60)),
            ours("Reservation", "none", nodeSelector={"row": "z"}, start=at(-60)),
        ]
    )
    async with kant():
        await api.create_all([make_pod(f"rest-{i}", 8, labels=of_queue("rest")) for i in range(2)])
        pods = await until(
            api, lambda pods: len(bound(pods)) == 1 and any(says(pods, f"rest-{i}", "capacity") for i in (0, 1))
        )
        assert set(where(pods).values()) == {"n1"}
        found = await status(api, "reservations", "none", lambda s: s.get("phase") == "Active")
        assert found["nodes"] == 0 and "no node" in found["conditions"][0]["message"]
        await api.create(make_pod("vip", 4, labels=of_queue("vip")))
        await until(api, lambda pods: where(pods).get("vip") == "n0")
        await api.delete("/apis/scheduling.kant.dev/v1alpha1/reservations/mine")
        await api.delete("/api/v1/namespaces/default/pods/vip", grace_s=0)
        await until(api, lambda pods: len(bound(pods)) == 2)


async def test_taints_selectors_and_affinity_are_honoured(api: Api, kant: Kant) -> None:
    taint = {"key": "dedicated", "value": "vision", "effect": "NoSchedule"}
    await api.create_all(
        [
            make_node("plain"),
            make_node("tainted", taints=[taint]),
            make_node("fast", labels={"disk": "nvme", "zone": "x"}),
            make_node("slow", labels={"disk": "hdd", "zone": "x"}),
        ]
    )
    need = {
        "nodeSelectorTerms": [{"matchExpressions": [{"key": "disk", "operator": "NotIn", "values": ["nvme"]},
                                                    {"key": "zone", "operator": "Exists"}]}]
    }  # fmt: skip
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": need}}
    tolerates = [{"key": "dedicated", "operator": "Equal", "value": "vision", "effect": "NoSchedule"}]
    async with kant():
        await api.create_all([make_pod(f"any-{i}", 8) for i in range(4)])
        pods = await until(api, lambda pods: len(bound(pods)) == 3)  # nobody goes where he does not tolerate it
        assert "tainted" not in where(pods).values()
        await until(api, lambda pods: any(says(pods, f"any-{i}", "capacity") for i in range(4)))
        await api.create(make_pod("vision", 8, tolerations=tolerates))
        await until(api, lambda pods: where(pods).get("vision") == "tainted")
        for pod in await api.list("pods"):
            await api.delete(f"/api/v1/namespaces/default/pods/{pod['metadata']['name']}", grace_s=0)
        # keys that nobody has selected on so far
        await api.create_all(
            [make_pod("nvme", 8, nodeSelector={"disk": "nvme"}), make_pod("not", 8, affinity=affinity)]
        )
        pods = await until(api, lambda pods: len(bound(pods)) == 2)
        assert where(pods) == {"nvme": "fast", "not": "slow"}
        await api.create_all([make_pod("nowhere", 1, nodeSelector={"disk": "tape"}), *make_gang("pair", 3, 8)])
        pods = await until(
            api, lambda pods: says(pods, "nowhere", "no node has the labels") and says(pods, "pair-0", "1 of 3")
        )
        await api.create(make_node("old", labels={"disk": "tape"}))
        await until(api, lambda pods: where(pods).get("nowhere") == "old")
