"""Orders on a real API server with RBAC: everybody has the rights that they have without Kant, and Kant has no more."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
import yaml
from tests.kube.api import Api, RefusedError
from tests.kube.control_plane import ControlPlane
from tests.kube.kubelet import FakeKubelet
from tests.kube.live import MANIFESTS, bound, condition, deputy_of_kant, of_queue, queue, says, until, where
from tests.kube.objects import Object, make_gang, make_node, make_pod
from tests.kube.running import Kant
from tests.patience import PATIENCE_S

from kant.cli.app import run
from kant.cli.kubectl import cluster_answers, kubectl_app
from kant.cluster.columns import J_PRIORITY
from kant.kube.translate.crds import API

TEAM, OTHER = "red", "blue"
RBAC = "rbac.authorization.k8s.io"


def granted(name: str, user: str, rules: list[Object], namespace: str = "") -> list[Object]:
    """A role and who has it: in one namespace, or everywhere."""
    kind = "Role" if namespace else "ClusterRole"
    meta = {"name": name} | ({"namespace": namespace} if namespace else {})
    subject = {"kind": "User", "name": user, "apiGroup": RBAC}
    ref = {"kind": kind, "name": name, "apiGroup": RBAC}
    version = {"apiVersion": f"{RBAC}/v1", "metadata": meta}
    return [
        version | {"kind": kind, "rules": rules},
        version | {"kind": f"{kind}Binding", "subjects": [subject], "roleRef": ref},
    ]


def tenant() -> list[Object]:
    """A tenant may change pods of the namespace `red`, as `edit` lets them."""
    rules = [
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "patch"]},
        {"apiGroups": ["batch"], "resources": ["jobs"], "verbs": ["get", "patch"]},
    ]
    return granted("red-edit", "tenant", rules, TEAM)


def operator() -> list[Object]:
    """The operator has the shipped role of those who run the cluster, and may change all pods."""
    shipped = [one for one in yaml.safe_load_all((MANIFESTS / "rbac.yaml").read_text()) if one["kind"] == "ClusterRole"]
    rules = next(one["rules"] for one in shipped if one["metadata"]["name"] == "kant-operator")
    pods = {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "patch"]}
    return granted("operates", "operator", [*rules, pods])


class People:
    """`kubectl kant` as somebody."""

    def __init__(self, plane: ControlPlane, capsys: pytest.CaptureFixture[str]) -> None:
        self.plane, self.capsys = plane, capsys
        self.config: dict[str, str] = {}

    async def __call__(self, user: str, *words: str, code: int = 0) -> str:
        """What it prints; on standard error where it refuses, and then it is one line."""
        config = self.config.setdefault(user, str(self.plane.kubeconfig(user)))
        got = await asyncio.to_thread(run, [*words, "--kubeconfig", config], kubectl_app(cluster_answers))
        out, err = self.capsys.readouterr()
        assert got == code, (words, out, err)
        assert not code or len(err.strip().splitlines()) == 1, err
        return (err if code else out).strip()


async def policy(api: Api, people_can: Sequence[Object]) -> None:
    """The shipped policy of orders is in force: the API server takes some moments to know of it."""
    await api.apply([*yaml.safe_load_all((MANIFESTS / "orders.yaml").read_text()), *people_can])
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                await api.create(make_pod("wrong", 1, annotations={"scheduling.kant.dev/priority": "high"}))
            except RefusedError as refused:
                assert "expected a whole number" in refused.message
                return
            await api.delete("/api/v1/namespaces/default/pods/wrong", grace_s=0)
            await asyncio.sleep(0.1)


async def test_a_tenant_holds_releases_and_lowers_what_is_theirs_and_nothing_else(
    api: Api, kant: Kant, plane: ControlPlane, capsys: pytest.CaptureFixture[str]
) -> None:
    people = People(plane, capsys)
    await api.namespace(TEAM)
    await api.namespace(OTHER)
    await policy(api, [*tenant(), *operator()])
    await api.create(make_node("n0"))
    await deputy_of_kant(api)
    async with FakeKubelet(api), kant(user="deputy") as driver:
        await api.create(make_pod("full", 8))
        await until(api, lambda pods: bound(pods) == ["full"])
        await api.create_all(make_gang("train", 2, 4, namespace=TEAM))
        await api.create_all([make_pod("theirs", 4, namespace=OTHER), make_pod("next", 4, namespace=TEAM)])
        await until(api, lambda pods: says(pods, "train-1", "capacity") and says(pods, "theirs", "capacity"))
        assert await people("tenant", "hold", "train-0", "-n", TEAM) == "train-0"
        told = {"train-0": "it is held", "train-1": "it is held", "theirs": "capacity", "next": "capacity"}
        pods = await until(api, lambda pods: all(says(pods, pod, words) for pod, words in told.items()))
        marks = {pod["metadata"]["name"]: condition(pod)["reason"] for pod in pods if pod["metadata"]["name"] != "full"}
        assert marks == {"train-0": "Queued", "train-1": "Queued", "theirs": "Unschedulable", "next": "Unschedulable"}
        assert driver.workloads.outside().keys() == {f"{TEAM}/train"}
        assert await people("tenant", "hold", "train", "-n", TEAM) == "nothing to change"
        said = await people("tenant", "hold", "theirs", "-n", OTHER, code=2)
        assert "you have no permission to list pods in namespace blue" in said
        said = await people("tenant", "hold", "queue/vision", code=2)
        assert "no permission to get queues.scheduling.kant.dev" in said
        said = await people("tenant", "priority", "7", "next", "-n", TEAM, code=2)
        assert "a priority above that of the pod's PriorityClass needs the permission to update queues" in said
        assert await people("tenant", "priority", "-5", "next", "-n", TEAM) == "next"
        assert await people("operator", "priority", "9", "theirs", "-n", OTHER) == "theirs"
        said = await people("tenant", "hold", "nothing", "-n", TEAM, code=2)
        assert "a job or a pod of namespace red with schedulerName kant" in said
        await api.delete("/api/v1/namespaces/default/pods/full", grace_s=0)
        pods = await until(api, lambda pods: {"theirs", "next"} <= set(bound(pods)))
        state = driver.core.state  # type: ignore[union-attr]
        rank = {state.ids[row].partition("~")[0]: int(state.jobs[row, J_PRIORITY]) for row in state.running}
        assert (rank["blue/theirs"], rank["red/next"]) == (9, -5)
        said = await people("tenant", "hold", "next", "-n", TEAM, code=2)
        assert "a waiting job" in said
        for name, space in (("theirs", OTHER), ("next", TEAM)):
            await api.delete(f"/api/v1/namespaces/{space}/pods/{name}", grace_s=0)
        await asyncio.sleep(0.3)
        assert not bound(await api.list("pods")), "what is held does not start, though there is room"
        assert await people("tenant", "release", "train-1", "-n", TEAM) == "train-1"
        await until(api, lambda pods: bound(pods) == ["train-0", "train-1"])
        assert not driver.workloads.outside()


async def test_an_operator_holds_queues_and_drains_nodes_and_kant_itself_may_not(
    api: Api, kant: Kant, plane: ControlPlane, capsys: pytest.CaptureFixture[str]
) -> None:
    people = People(plane, capsys)
    await api.apply(operator())
    await api.create_all([make_node("n0"), make_node("n1"), queue("vision", 16)])
    await deputy_of_kant(api)
    async with FakeKubelet(api), kant(user="deputy"):
        assert await people("operator", "hold", "queue/vision") == "queue/vision"
        assert await people("operator", "hold", "queue/vision") == "nothing to change"
        marks = of_queue("vision") | {"scheduling.kant.dev/preemptible": "true"}
        await api.create_all([make_pod(f"p{i}", 8, labels=marks) for i in range(2)])
        await until(api, lambda pods: says(pods, "p0", "hold") and says(pods, "p1", "hold"))
        assert await people("operator", "release", "queue/vision") == "queue/vision"
        pods = await until(api, lambda pods: len(bound(pods)) == 2)
        on = {node: pod for pod, node in where(pods).items()}
        assert await people("operator", "drain", "node/n0", "--for", "2h", "--reason", "new cables") == "node/n0"
        await until(api, lambda pods: bound(pods) == [on["n1"]])
        (drain,) = await api.list(f"{API}/reservations")
        assert drain["spec"]["reason"] == "new cables" and "end" in drain["spec"]
        await api.create(make_pod("late", 8, labels=of_queue("vision")))
        await until(api, lambda pods: says(pods, "late", "capacity"))
        assert await people("operator", "release", "node/n0") == "node/n0"
        await until(api, lambda pods: where(pods).get("late") == "n0")
        for words, sentence in (
            (("drain", "node/n7"), "an existing node, got 'n7'"),
            (("drain", "late"), "queue/NAME or node/NAME"),
            (("hold", "node/n0"), "a node can only be drained"),
            (("release", "node/n0"), "a node that was drained"),
            (("drain", "queue/none"), "an existing queue, got 'none'"),
            (("priority", "high", "late"), "a whole number, or `class`"),
            (("priority", "5", "queue/vision"), "a queue has a weight"),
            (("hold", "shelf/late"), "queue/NAME or node/NAME"),
        ):
            assert sentence in await people("operator", *words, code=2)
        await api.create(make_pod("more", 8, labels=of_queue("vision")))
        for words in (("hold", "more"), ("hold", "queue/vision"), ("drain", "node/n0")):
            assert "no permission" in await people("deputy", *words, code=2), "Kant has no right to give orders"
