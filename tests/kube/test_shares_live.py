"""Shares of GPUs on a real API server: counted exactly in queues and on nodes, also by the next leader."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from tests.kube.api import Api
from tests.kube.control_plane import ControlPlane
from tests.kube.live import bound, change, name, of_queue, perform, queue, says, status, until, waiting, where
from tests.kube.objects import GPU, Object, make_node, make_pod
from tests.kube.running import kant

REPLICAS, SHARED = "nvidia.com/gpu.replicas", "nvidia.com/gpu.shared"


def shared_node(name: str, gpus: int, replicas: int, resource: str = GPU, **labels: str) -> Object:
    """A node of NVIDIA's device plugin with time-slicing."""
    node = make_node(name, 0, labels={REPLICAS: str(replicas)} | labels)
    node["status"]["capacity"][resource] = str(gpus * replicas)
    return node


def asks(pod: Object, **amounts: int) -> Object:
    """The pod with limits of other resources of NVIDIA's, by their last name: gpumem=4000."""
    resources = pod["spec"]["containers"][0].setdefault("resources", {})
    for words in (resources.setdefault("requests", {}), resources.setdefault("limits", {})):
        words.update({f"nvidia.com/{name.replace('__', '.').replace('_', '-')}": str(n) for name, n in amounts.items()})
    return pod


async def gone(api: Api, pod: str) -> None:
    await api.delete(f"/api/v1/namespaces/default/pods/{pod}", grace_s=0)


def test_a_replica_of_a_gpu_counts_as_its_part_in_queues_and_on_nodes(plane: ControlPlane, tmp_path: Path) -> None:
    async def story(api: Api) -> None:
        await api.create_all([shared_node("n0", 2, 4), shared_node("n1", 1, 4, SHARED), make_node("n2", 1)])
        select = {"nodeSelector": {REPLICAS: "4"}}
        own = [make_pod(f"t{n}", 1, labels=of_queue("team"), **select) for n in range(3)]
        own += [asks(make_pod(f"s{n}", 0, labels=of_queue("team")), gpu__shared=1) for n in range(2)]
        async with kant(plane, journal=tmp_path):
            await api.apply([queue("team", 1), queue("default", 100)])
            await api.create_all(own)
            pods = await until(api, lambda pods: len(bound(pods)) == 4)  # four replicas are one GPU
            (left,) = {name(pod) for pod in own} - where(pods).keys()
            await until(api, lambda pods: says(pods, left, "quota"))
            found = await status(api, "queues", "team", lambda one: one.get("running") == 4)
            assert [use["amount"] for use in found["used"] if use["resource"] == "gpu"] == ["1"]
        async with kant(plane, journal=tmp_path):  # it knows of what is on the pods
            await api.create(make_pod("whole", 1))
            pods = await until(api, lambda pods: "whole" in bound(pods))
            assert where(pods)["whole"] == "n2" and left not in where(pods)
            await change(api, "queues", "team", quotas=[{"resource": "gpu", "nominal": 8}])
            await until(api, lambda pods: left in bound(pods))
            await api.create_all([make_pod(f"m{n}", 1, **select) for n in range(8)])
            pods = await until(api, lambda pods: Counter(where(pods).values())["n0"] == 8)
            late = sorted(waiting(pods))
            await until(api, lambda pods: all(says(pods, one, "0 of 1 pods fit now") for one in late))
            await gone(api, "t0")
            await until(api, lambda pods: len(waiting(pods)) == len(late) - 1)

    perform(plane, story, tmp_path)
