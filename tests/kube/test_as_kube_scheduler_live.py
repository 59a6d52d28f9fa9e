"""One by one, random pods over random nodes: each goes to a node that is feasible for kube-scheduler, if there is one.

Both see the same state on one API server. Nodes lack labels, pods have several rules each, and some are ending.
"""

from __future__ import annotations

import asyncio
from random import Random

import pytest
from tests.examples import examples
from tests.kube.api import Api
from tests.kube.control_plane import ControlPlane
from tests.kube.feasible import Feasible
from tests.kube.live import condition, profile
from tests.kube.objects import Object, make_node, make_pod
from tests.kube.running import Kant
from tests.patience import PATIENCE_S

ZONE, RACK, HOST = "topology.kubernetes.io/zone", "example.com/rack", "kubernetes.io/hostname"
NAMESPACES = {"default": {}, "blue": {"team": "blue"}, "red": {"team": "red"}}
HARD = "requiredDuringSchedulingIgnoredDuringExecution"
PODS = 14


def node(of: Random, name: str) -> Object:
    labels = {ZONE: of.choice("abc")} if of.random() < 0.85 else {}
    labels |= {RACK: of.choice(("r1", "r2"))} if of.random() < 0.7 else {}
    taints = [{"key": "kept", "value": of.choice(("x", "y")), "effect": of.choice(("NoSchedule", "NoExecute"))}]
    made = make_node(name, of.choice((0, 2, 8)), cpu=of.choice(("4", "32")), pods=of.choice((4, 110)), labels=labels)
    made["spec"]["taints"] = taints if of.random() < 0.2 else []
    for what, amounts in (("allocatable", ("1", "4")), ("capacity", ("4",))):
        made["status"][what] = made["status"][what] | {"rdma/hca": of.choice(amounts)}
    return made


def pod(of: Random, name: str) -> Object:
    def selector() -> Object:
        return of.choice(({}, {"matchLabels": {"app": of.choice(("web", "db"))}}, {"matchExpressions": [
            {"key": "tier", "operator": of.choice(("Exists", "DoesNotExist"))}]}))  # fmt: skip

    def term() -> Object:
        spaces = of.choice(({}, {}, {"namespaces": ["blue"]}, {"namespaceSelector": {"matchLabels": {"team": "red"}}}))
        return {"topologyKey": of.choice((ZONE, RACK, HOST)), "labelSelector": selector()} | spaces

    def spread(key: str) -> Object:
        policies = {kind: of.choice(("Honor", "Ignore")) for kind in ("nodeAffinityPolicy", "nodeTaintsPolicy")}
        least = {"minDomains": of.choice((1, 3))} if of.random() < 0.3 else {}
        skew = {"maxSkew": of.choice((1, 2)), "topologyKey": key, "whenUnsatisfiable": "DoNotSchedule"}
        return skew | {"labelSelector": selector()} | policies | least

    labels = {
        key: of.choice(values) for key, values in (("app", ("web", "db")), ("tier", ("1", "2"))) if of.random() < 0.7
    }
    made = make_pod(name, of.choice((0, 0, 1)), cpu=of.choice(("100m", "3")), labels=labels, namespace="default")
    made["metadata"]["namespace"] = of.choice(("default", "default", *NAMESPACES))
    spec, affinity = made["spec"], dict[str, Object]()
    if of.random() < 0.3:
        affinity["podAffinity"] = {HARD: [term() for _ in range(of.choice((1, 2)))]}
    if of.random() < 0.25:
        affinity["podAntiAffinity"] = {HARD: [term() for _ in range(of.choice((1, 2)))]}
    if of.random() < 0.2:
        terms = [{"matchExpressions": [{"key": ZONE, "operator": of.choice(("In", "NotIn")), "values": ["a"]}]}]
        affinity["nodeAffinity"] = {HARD: {"nodeSelectorTerms": terms}}
    spec["affinity"] = affinity
    if of.random() < 0.45:
        spec["topologySpreadConstraints"] = [spread(key) for key in of.sample((ZONE, RACK, HOST), of.choice((1, 2)))]
    if of.random() < 0.5:
        spec["tolerations"] = [of.choice(({"key": "kept", "operator": "Exists"}, {"key": "kept", "value": "x"}))]
    container = spec["containers"][0]
    if of.random() < 0.2:
        container["resources"]["requests"]["rdma/hca"] = "1"
        container["resources"].setdefault("limits", {})["rdma/hca"] = "1"
    if of.random() < 0.15:
        container["ports"] = [{"containerPort": 8080, "hostPort": 8080}]
    if of.random() < 0.2:
        spec["initContainers"] = [{"name": "side", "image": "test", "restartPolicy": "Always",
                                   "resources": {"requests": {"cpu": of.choice(("1", "2"))}}}]  # fmt: skip
    return made


@pytest.mark.parametrize("seed", range(examples(2)))
async def test_each_pod_goes_where_kube_scheduler_could_put_it(
    api: Api, kant: Kant, plane: ControlPlane, seed: int
) -> None:
    of = Random(seed)
    for name, labels in NAMESPACES.items():
        await api.namespace(name)
        await api.patch(f"/api/v1/namespaces/{name}", {"metadata": {"labels": labels}})
    nodes = [node(of, f"n{i}") for i in range(of.randint(3, 5))]
    await api.create_all(nodes)
    async with Feasible(plane, api) as feasible, kant(profile=profile()):
        for number in range(PODS):
            made = pod(of, f"p{number}")
            path = f"/api/v1/namespaces/{made['metadata']['namespace']}/pods/p{number}"
            if of.random() < 0.25:  # one that is there, of somebody else
                made["spec"] |= {"schedulerName": "other", "nodeName": of.choice(nodes)["metadata"]["name"]}
                await api.create(made)
                if of.random() < 0.3:
                    await api.delete(path, grace_s=300)
                continue
            able = await feasible(made)
            await api.create(made)
            async with asyncio.timeout(PATIENCE_S):
                while not (seen := await api.get(path))["spec"].get("nodeName"):
                    if not able and condition(seen):
                        break
                    await asyncio.sleep(0.05)
            await asyncio.sleep(0 if able else 0.1)
            where = (await api.get(path))["spec"].get("nodeName")
            assert where in able if able else where is None, (number, where, able, condition(seen), made["spec"])
            if not where:
                await api.delete(path, grace_s=0)
