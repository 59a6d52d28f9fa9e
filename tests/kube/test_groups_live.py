"""Groups in the words of every scheduler and controller, on a real API server: whole, or not at all."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.kube.api import Api
from tests.kube.audit import Auditor
from tests.kube.control_plane import ControlPlane
from tests.kube.live import bound, condition, install_kind, kind, says, until, waiting, where
from tests.kube.objects import GANG, GANG_MIN, Object, make_gang, make_node, make_pod, make_pod_group
from tests.kube.running import Kant, kant

from kant.kube.follow import informers
from kant.kube.reconcile import elastic_gangs

GROUPS = {
    "KAI": ("scheduling.run.ai", "v2alpha2", "pod-group-name"),
    "Volcano": ("scheduling.volcano.sh", "v1beta1", "scheduling.k8s.io/group-name"),
    "scheduler-plugins": ("scheduling.x-k8s.io", "v1alpha1", "scheduling.x-k8s.io/pod-group"),
}
"""Group and version of the PodGroup, and the key that names it on a pod."""


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(informers, "ABSENT", 0.3)


def pods_of(name: str, size: int, gpus: int = 1, *, least: int | None = None, **more: Any) -> list[Object]:
    """Pods that only the auditor knows to be a gang, with labels or annotations of a dialect."""
    return make_gang(name, size, gpus, convention="none", least=least, **more)


async def story_of(api: Api, plane: ControlPlane, tmp_path: Path, name: str, size: int, things: list[Object]) -> None:
    """Two nodes of 8 GPUs, one GPU too few for the gang: nobody of it may be bound until somebody else goes."""
    await api.create_all([make_node(f"n{i}") for i in range(2)])
    await api.create_all(
        [make_pod(f"theirs-{i}", 1, scheduler="somebody", node=f"n{i // 8}") for i in range(17 - size)]
    )
    async with Auditor(api) as auditor, kant(plane, journal=tmp_path):
        await api.create_all(things)
        pods = await until(api, lambda pods: all(says(pods, f"{name}-{i}", "fit now") for i in range(size)))
        assert not any(one.startswith(name) for one in bound(pods))
        await api.delete("/api/v1/namespaces/default/pods/theirs-0", grace_s=0)
        await until(api, lambda pods: sum(one.startswith(name) for one in bound(pods)) == size)
        (await auditor.report()).assert_kept(all_bound=True)


LABELLED = {
    "scheduler-plugins": {
        "pod-group.scheduling.sigs.k8s.io/name": "g", "pod-group.scheduling.sigs.k8s.io/min-available": "4",
    },
    "Koordinator": {
        "gang.scheduling.koordinator.sh/name": "g", "gang.scheduling.koordinator.sh/min-available": "4",
    },
    "Kueue": {"kueue.x-k8s.io/pod-group-name": "g", "kueue.x-k8s.io/pod-group-total-count": "4"},
    "YuniKorn": {
        "yunikorn.apache.org/task-group-name": "w", "yunikorn.apache.org/app-id": "g",
        "yunikorn.apache.org/task-groups": '[{"name": "w", "minMember": 4}]',
    },
}  # fmt: skip


@pytest.mark.parametrize("said", LABELLED.values(), ids=list(LABELLED))
async def test_groups_that_pods_alone_describe(
    api: Api, plane: ControlPlane, tmp_path: Path, said: dict[str, str]
) -> None:
    await story_of(api, plane, tmp_path, "g", 4, pods_of("g", 4, annotations=said))


@pytest.mark.parametrize(("group", "version", "key"), GROUPS.values(), ids=list(GROUPS))
async def test_groups_with_an_object_that_comes_after_its_pods(
    api: Api, kant: Kant, group: str, version: str, key: str
) -> None:
    await install_kind(api, kind(group, version, "PodGroup", "podgroups"))
    await api.create_all([make_node(f"n{i}") for i in range(2)])
    async with Auditor(api) as auditor, kant():
        # the first three have to run together, the others may come when there is room
        await api.create_all(pods_of("g", 5, 4, least=3, annotations={key: "g"}))
        pods = await until(api, lambda pods: all(says(pods, f"g-{i}", "does not exist") for i in range(5)))
        assert not bound(pods)
        meta = {"name": "g", "namespace": "default"}
        await api.create(
            {"apiVersion": f"{group}/{version}", "kind": "PodGroup", "metadata": meta, "spec": {"minMember": 3}}
        )
        pods = await until(api, lambda pods: len(bound(pods)) == 4 and says(pods, "g-4", "fit now"))
        await api.create(make_node("n2"))
        await until(api, lambda pods: len(bound(pods)) == 5)
        (await auditor.report()).assert_kept(all_bound=True)
    await api.delete(f"/apis/{group}/{version}/namespaces/default/podgroups/g")


async def test_the_podgroup_of_kubernetes(api: Api, kant: Kant) -> None:
    await api.create(make_node("n0"))
    group, *pods = make_gang("g", 4, convention="upstream")
    (basic,) = [make_pod_group("loose", 1)]
    basic["spec"] = {"schedulingPolicy": {"basic": {}}}
    loose = [make_pod(f"loose-{i}", 1, schedulingGroup={"podGroupName": "loose"}) for i in range(6)]
    async with Auditor(api) as auditor, kant():
        await api.create_all(pods)
        await until(api, lambda pods: all(says(pods, f"g-{i}", "does not exist") for i in range(4)))
        await api.create(group)
        await until(api, lambda pods: len(bound(pods)) == 4)
        await api.create_all([basic, *loose])  # each of them alone
        pods = await until(api, lambda pods: len(bound(pods)) == 8)
        await until(api, lambda pods: all(says(pods, pod, "capacity") for pod in waiting(pods)))
        (await auditor.report()).assert_kept()


async def indexed(api: Api, count: int, number: str = "", on_pods: str = "", **spec: Any) -> list[Object]:
    """Make an indexed Job that says how many pods start together, or whose pods do; `count` pods of it."""
    template = {"spec": {"restartPolicy": "Never", "containers": [{"name": "main", "image": "test"}]}}
    own = {"completionMode": "Indexed", "completions": count, "parallelism": count, "template": template} | spec
    notes = {"scheduling.kant.dev/min-available": number} if number else {}
    meta = {"name": "g", "namespace": "default", "annotations": notes}
    job = await api.create({"apiVersion": "batch/v1", "kind": "Job", "metadata": meta, "spec": own})
    owner = {
        "apiVersion": "batch/v1", "kind": "Job", "name": "g", "uid": job["metadata"]["uid"], "controller": True,
    }  # fmt: skip
    pods = pods_of("g", count)
    for index, pod in enumerate(pods):
        pod["metadata"]["ownerReferences"] = [owner]
        said = {"scheduling.kant.dev/min-available": on_pods} if on_pods else {}
        pod["metadata"]["annotations"] |= {"batch.kubernetes.io/job-completion-index": str(index)} | said
    return pods


@pytest.mark.parametrize("on_pods", [False, True], ids=["on the Job", "on its pods"])
async def test_an_indexed_job_that_says_so_is_a_gang(
    api: Api, plane: ControlPlane, tmp_path: Path, on_pods: bool
) -> None:
    pods = await indexed(api, 4, on_pods="4") if on_pods else await indexed(api, 4, "4")
    await story_of(api, plane, tmp_path, "g", 4, pods)


SWEEPS: dict[str, dict[str, Any]] = {
    "it says nothing": {},
    "more completions than pods at a time": {"completions": 200, "number": "12"},
    "each index has its own tries": {"backoffLimitPerIndex": 3, "on_pods": "12"},
}


@pytest.mark.parametrize("said", SWEEPS.values(), ids=list(SWEEPS))
async def test_the_pods_of_a_sweep_start_one_by_one(api: Api, kant: Kant, said: dict[str, Any]) -> None:
    await api.create(make_node("n0"))
    pods = await indexed(api, 12, **said)
    async with kant():
        await api.create_all(pods)
        found = await until(api, lambda pods: len(bound(pods)) == 8)
        await api.delete(f"/api/v1/namespaces/default/pods/{bound(found)[0]}", grace_s=0)
        await until(api, lambda pods: len(pods) == 11 and len(bound(pods)) == 8)


async def test_what_is_beyond_the_minimum_follows_and_what_is_wrong_is_told(
    api: Api, kant: Kant, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(elastic_gangs, "HELD", 60.0)  # however busy the machine is
    await api.create(make_node("n0"))
    wrong = {"scheduling.kant.dev/pod-group": "w", "scheduling.kant.dev/min-available": "many"}
    async with Auditor(api) as auditor, kant():
        await api.create_all(make_gang("g", 6, 2, least=3))
        await api.create_all([make_pod("wrong", labels=wrong)])
        pods = await until(
            api, lambda pods: len(bound(pods)) == 4 and says(pods, "wrong", "min-available: expected a whole number")
        )
        rest = [one["metadata"]["name"] for one in pods if not one["spec"].get("nodeName")]
        assert len(rest) == 3
        gone = bound(pods)[0]  # whichever came first
        await api.delete(f"/api/v1/namespaces/default/pods/{gone}", grace_s=0)
        await asyncio.sleep(0.2)
        (again,) = (pod for pod in make_gang("g", 6, 2, least=3) if pod["metadata"]["name"] == gone)
        await api.create(again)  # as its controller would
        pods = await until(api, lambda pods: len(bound(pods)) == 4)
        assert gone in bound(pods)
        (await auditor.report()).assert_kept()


async def test_a_gang_that_no_pods_complete_says_so(api: Api, kant: Kant) -> None:
    await api.create(make_node("n0"))
    labels = {GANG: "g", GANG_MIN: "4"}
    said = {"kueue.x-k8s.io/pod-group-name": "g", "kueue.x-k8s.io/pod-group-total-count": "4"}
    async with kant():
        await api.create_all([make_pod(f"g-{i}", labels=labels | said) for i in range(3)])
        await until(api, lambda pods: all(says(pods, f"g-{i}", "3 of the 4 pods of its gang exist") for i in range(3)))
        await api.delete("/api/v1/namespaces/default/pods/g-0", grace_s=0)
        pods = await until(api, lambda pods: says(pods, "g-1", "2 of the 4 pods of its gang exist"))
        assert {condition(pod)["reason"] for pod in pods} == {"Queued"}


async def test_a_head_without_gpus_and_its_workers_are_one_gang_on_nodes_of_their_own(api: Api, kant: Kant) -> None:
    """Each role has its selector and its tolerations; nobody is bound before both have room."""

    def node(name: str, pool: str, gpus: int) -> Object:
        taint = {"key": "pool", "value": pool, "effect": "NoSchedule"}
        return make_node(name, gpus, labels={"pool": pool}, taints=[taint])

    def role(pool: str) -> dict[str, Any]:
        toleration = {"key": "pool", "operator": "Equal", "value": pool, "effect": "NoSchedule"}
        return {"nodeSelector": {"pool": pool}, "tolerations": [toleration]}

    await api.create_all([node("g0", "gpu", 8), node("g1", "gpu", 8), node("other", "spare", 8)])
    head, *workers = pods_of("ray", 3, 8, labels={"scheduling.kant.dev/pod-group": "ray",
                                                 "scheduling.kant.dev/min-available": "3"})  # fmt: skip
    head = make_pod("ray-0", 0, labels=head["metadata"]["labels"], **role("cpu"))
    for worker in workers:
        worker["spec"] |= role("gpu")
    async with Auditor(api) as auditor, kant():
        await api.create_all([head, *workers])
        pods = await until(api, lambda pods: says(pods, "ray-0", "no node has the labels"))
        assert not bound(pods)
        await api.create(node("c0", "cpu", 0))
        pods = await until(api, lambda pods: len(bound(pods)) == 3)
        assert where(pods)["ray-0"] == "c0" and {where(pods)[f"ray-{i}"] for i in (1, 2)} == {"g0", "g1"}
        (await auditor.report()).assert_kept(all_bound=True)
