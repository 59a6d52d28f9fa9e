"""Gangs whose pods come and go, on a real API server: they start with their minimum, grow, and are shed first."""

from __future__ import annotations

import asyncio

import pytest
from tests.kube.api import Api
from tests.kube.control_plane import ControlPlane
from tests.kube.kubelet import FakeKubelet, ReplicaController
from tests.kube.live import bound, condition, install_kind, kind, of_queue, profile, queue, says, until, waiting
from tests.kube.objects import Object, make_budget, make_gang, make_node, make_pod
from tests.kube.running import Kant
from tests.kube.test_words_live import answer
from tests.patience import PATIENCE_S

from kant.kube.lead.driver import KubeDriver
from kant.scheduler.profile import Profile

YES = {"scheduling.kant.dev/preemptible": "true"}


def reclaiming() -> Profile:
    return profile('[preemption]\nreclaim = "nominal"\nmin_run_s = 0\n')


async def sized(driver: KubeDriver, key: str, words: str) -> None:
    """Wait until the leader says with how many pods a gang runs."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            known = driver.workloads.members.by_key if driver.core is not None else {}
            found = [one for name, one in known.items() if key in name and one.job]
            if found and driver.workloads.elastic.size(found[0]) == words:
                return
            await asyncio.sleep(0.02)


async def delete(api: Api, *pods: str) -> None:
    for pod in pods:
        await api.delete(f"/api/v1/namespaces/default/pods/{pod}", grace_s=0)


async def test_a_gang_grows_and_shrinks_with_its_pods_and_never_below_its_minimum(
    api: Api, kant: Kant, plane: ControlPlane, capsys: pytest.CaptureFixture[str]
) -> None:
    await api.create(make_node("n0"))
    pods = make_gang("g", 6, 1, least=2)
    async with kant() as driver:
        await api.create(pods[0])
        await until(api, lambda pods: says(pods, "g-0", "1 of the 2 pods"))
        await api.create(pods[1])
        await until(api, lambda pods: len(bound(pods)) == 2)
        await api.create_all(pods[2:])
        await until(api, lambda pods: len(bound(pods)) == 6)
        await sized(driver, "g", "runs with 6 of 2 to 6 pods")
        await delete(api, "g-1", "g-4", "g-5")
        await sized(driver, "g", "runs with 3 of 2 to 3 pods")
        why, _ = await answer(plane, capsys, "why", "g-0")
        assert (why["status"], why["size"]) == ("running", "runs with 3 of 2 to 3 pods")
        await api.create(make_pod("other", 5))  # what is given back is free at once
        await until(api, lambda pods: "other" in bound(pods))
        room = "and there is no capacity"
        await api.create(pods[4])
        await until(api, lambda pods: says(pods, "g-4", f"its gang runs with 3 of 2 to 4 pods, {room}"))
        await api.create(pods[5])
        await until(api, lambda pods: says(pods, "g-5", f"its gang runs with 3 of 2 to 5 pods, {room}"))
        await delete(api, "other")
        await until(api, lambda pods: len(bound(pods)) == 5)
        await sized(driver, "g", "runs with 5 of 2 to 5 pods")


async def test_a_lender_takes_back_what_is_beyond_minimums_before_any_gang_is_stopped(api: Api, kant: Kant) -> None:
    await api.create(make_node("n0"))
    await api.apply([queue("org", 0), queue("a", 4, parent="org"), queue("b", 4, parent="org")])
    async with FakeKubelet(api), ReplicaController(api) as jobs, kant(profile=reclaiming()) as driver:
        await jobs.run(make_gang("wide", 6, 1, least=2, annotations=YES, labels=of_queue("a")))
        await until(api, lambda pods: len(bound(pods)) == 6)
        await jobs.run(make_gang("late", 2, 1, annotations=YES, labels=of_queue("a")))
        await until(api, lambda pods: len(bound(pods)) == 8)
        await jobs.run(make_gang("mine", 4, 1, annotations=YES, labels=of_queue("b")))
        pods = await until(api, lambda pods: sum("mine" in one for one in bound(pods)) == 4)
        there = bound(pods)
        assert sum("late" in one for one in there) == 2 and sum("wide" in one for one in there) >= 2
        assert driver.counts.evicted == 4
        await sized(driver, "wide", "runs with 2 of 2 to 6 pods")
        pods = await until(api, lambda pods: len(waiting(pods)) == 4 and all(condition(p) for p in pods))
        assert all("quota" in condition(one)["message"] for one in pods if not one["spec"].get("nodeName"))


def of_kubeflow(role: str, index: int, job: Object, gpus: int = 1) -> Object:
    """A pod as the training operator makes it."""
    name = job["metadata"]["name"]
    pod = make_pod(
        f"{name}-{role}-{index}",
        gpus,
        labels={"training.kubeflow.org/job-name": name, "training.kubeflow.org/replica-type": role},
        annotations=YES,
    )
    return owned(pod, job)


def owned(pod: Object, by: Object) -> Object:
    who = {"apiVersion": by["apiVersion"], "kind": by["kind"], "name": by["metadata"]["name"]}
    pod["metadata"]["ownerReferences"] = [who | {"uid": by["metadata"]["uid"], "controller": True}]
    return pod


async def test_an_elastic_pytorchjob_starts_with_its_master_and_least_workers(api: Api, kant: Kant) -> None:
    await install_kind(api, kind("kubeflow.org", "v1", "PyTorchJob", "pytorchjobs"))
    await api.create(make_node("n0"))
    spec = {
        "elasticPolicy": {"minReplicas": 2, "maxReplicas": 6},
        "pytorchReplicaSpecs": {"Master": {"replicas": 1}, "Worker": {"replicas": 5}},
    }
    meta = {"name": "train", "namespace": "default"}
    job = await api.create({"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": meta, "spec": spec})
    workers = [of_kubeflow("worker", index, job) for index in range(5)]
    async with kant() as driver:
        await api.create(make_pod("first", 4))
        await until(api, lambda pods: len(bound(pods)) == 1)
        await api.create_all(workers)
        await until(api, lambda pods: says(pods, "train-worker-0", "its gang lacks pods: master has 0 of 1"))
        await api.create(of_kubeflow("master", 0, job))
        pods = await until(api, lambda pods: len(bound(pods)) == 5)
        assert {"train-master-0", "train-worker-0", "train-worker-1"} < set(bound(pods))
        await sized(driver, "train", "runs with 4 of 3 to 6 pods")
        await delete(api, "train-worker-0")  # the operator makes it anew, and it has its place again
        await api.create(workers[0])
        await until(api, lambda pods: len(bound(pods)) == 5 and "train-worker-0" in bound(pods))
        await delete(api, "first")
        await until(api, lambda pods: len(bound(pods)) == 6)
        await delete(api, "train-worker-4", "train-worker-3", "train-worker-2")  # the operator scales it down
        await sized(driver, "train", "runs with 3 pods")
    await api.delete("/apis/kubeflow.org/v1/namespaces/default/pytorchjobs/train")


async def test_an_elastic_pytorchjob_of_at_least_one_worker_is_one_gang_and_gives_back_down_to_that(
    api: Api, kant: Kant
) -> None:
    await install_kind(api, kind("kubeflow.org", "v1", "PyTorchJob", "pytorchjobs"))
    await api.create(make_node("n0", 4))
    await api.apply([queue("org", 0), queue("a", 1, parent="org"), queue("b", 3, parent="org")])
    spec = {"elasticPolicy": {"minReplicas": 1, "maxReplicas": 4}, "pytorchReplicaSpecs": {"Worker": {"replicas": 4}}}
    meta = {"name": "train", "namespace": "default"}
    job = await api.create({"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": meta, "spec": spec})
    workers = [of_kubeflow("worker", index, job) for index in range(4)]
    for one in workers:
        one["metadata"]["labels"] |= of_queue("a")
    async with FakeKubelet(api):
        async with kant(profile=reclaiming()) as driver:
            await api.create_all(workers)
            await until(api, lambda pods: len(bound(pods)) == 4)
            await sized(driver, "train", "runs with 4 of 1 to 4 pods")
        async with kant(profile=reclaiming()) as driver:
            await api.create_all(make_gang("mine", 3, 1, labels=of_queue("b")))
            pods = await until(api, lambda pods: sum("mine" in one for one in bound(pods)) == 3)
            assert sum("train" in one for one in bound(pods)) == 1 and driver.counts.evicted == 3
    await api.delete("/apis/kubeflow.org/v1/namespaces/default/pytorchjobs/train")


@pytest.mark.parametrize("whole", ["Job", "JobSet"])
async def test_an_indexed_job_is_scaled_while_it_runs(api: Api, kant: Kant, whole: str) -> None:
    """Up beyond what there is room for, through a change of the leader, and down below what it began with."""
    await api.create(make_node("n0"))
    template = {"spec": {"restartPolicy": "Never", "containers": [{"name": "main", "image": "test"}]}}
    meta, labels = {"name": "g", "namespace": "default"}, dict[str, str]()
    spec = {"completionMode": "Indexed", "completions": 4, "parallelism": 4, "template": template}
    gang = {"scheduling.kant.dev/min-available": "4"}
    own = meta | {"annotations": gang}
    job = await api.create({"apiVersion": "batch/v1", "kind": "Job", "metadata": own, "spec": spec})
    if whole == "JobSet":  # as the JobSet controller labels the pods of its Job
        await install_kind(api, kind("jobset.x-k8s.io", "v1alpha2", "JobSet", "jobsets"))
        jobs = {"replicatedJobs": [{"name": "w", "replicas": 1, "template": {"spec": spec}}]}
        await api.create({"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": meta, "spec": jobs})
        labels = {"jobset.sigs.k8s.io/jobset-name": "g"}

    def pods_of(*indices: int) -> list[Object]:
        note = "batch.kubernetes.io/job-completion-index"
        named = [(f"g-{i}-x", {note: str(i)} | YES) for i in indices]
        return [owned(make_pod(name, 2, annotations=notes, labels=labels), job) for name, notes in named]

    async def scale(pods: int) -> None:
        size = {"completions": pods, "parallelism": pods}
        if whole == "Job":
            least = {"annotations": {"scheduling.kant.dev/min-available": str(min(pods, 4))}}
            await api.patch("/apis/batch/v1/namespaces/default/jobs/g", {"spec": size, "metadata": least})
        else:
            jobs = [{"name": "w", "replicas": 1, "template": {"spec": spec | size}}]
            path = "/apis/jobset.x-k8s.io/v1alpha2/namespaces/default/jobsets/g"
            await api.patch(path, {"spec": {"replicatedJobs": jobs}})

    async with FakeKubelet(api):
        async with kant() as driver:
            await api.create_all(pods_of(0, 1, 2, 3))
            await until(api, lambda pods: len(bound(pods)) == 4)
            await asyncio.sleep(1.1)  # the API server's times are whole seconds
            await scale(6)
            await api.create_all(pods_of(4, 5))
            await until(api, lambda pods: says(pods, "g-4-x", "runs with 4 of 4 to 6 pods"))
        async with kant(recovery=0.5) as driver:
            await until(api, lambda pods: says(pods, "g-5-x", "runs with 4 of 4 to 6 pods"))
            await asyncio.sleep(1.0)
            await api.create(make_node("n1", 2))
            await until(api, lambda pods: len(bound(pods)) == 5)
            await scale(2)
            await delete(api, "g-2-x", "g-3-x", "g-4-x", "g-5-x")
            await sized(driver, "g", "runs with 2 pods")
            await api.create(make_pod("other", 4))
            await until(api, lambda pods: "other" in bound(pods))
            assert driver.counts.evicted == 0


async def test_workers_of_a_ray_cluster_come_and_go_with_its_autoscaler(api: Api, kant: Kant) -> None:
    await install_kind(api, kind("ray.io", "v1", "RayCluster", "rayclusters"))
    await api.create_all([make_node("c0", 0), make_node("n0", 8)])
    spec = {
        "enableInTreeAutoscaling": True,
        "workerGroupSpecs": [{"groupName": "gpu", "replicas": 2, "minReplicas": 2, "maxReplicas": 8}],
    }
    meta = {"name": "ray", "namespace": "default"}
    cluster = await api.create({"apiVersion": "ray.io/v1", "kind": "RayCluster", "metadata": meta, "spec": spec})

    def of_ray(name: str, group: str, gpus: int) -> Object:
        labels = {"ray.io/cluster": "ray", "ray.io/group": group}
        return owned(make_pod(name, gpus, labels=labels, annotations=YES), cluster)

    async with kant() as driver:
        await api.create(of_ray("ray-gpu-a", "gpu", 1))
        await api.create(of_ray("ray-gpu-b", "gpu", 1))
        await until(api, lambda pods: says(pods, "ray-gpu-a", "2 of the 3 pods of its gang exist"))
        await api.create(of_ray("ray-head", "headgroup", 0))
        await until(api, lambda pods: len(bound(pods)) == 3)
        await api.create_all([of_ray(f"ray-gpu-{letter}", "gpu", 1) for letter in "cdef"])
        await until(api, lambda pods: len(bound(pods)) == 7)
        await sized(driver, "ray", "runs with 7 of 3 to 7 pods")
        await delete(api, "ray-gpu-a", "ray-gpu-c", "ray-gpu-e", "ray-gpu-f")  # any of them
        await sized(driver, "ray", "runs with 3 pods")
        await api.create(make_pod("other", 6))
        await until(api, lambda pods: "other" in bound(pods))
        await api.create(of_ray("ray-gpu-g", "gpu", 1))
        await until(api, lambda pods: says(pods, "ray-gpu-g", "3 of 3 to 4 pods"))
        await delete(api, "other")
        await until(api, lambda pods: "ray-gpu-g" in bound(pods))
    await api.delete("/apis/ray.io/v1/namespaces/default/rayclusters/ray")


async def test_a_budget_that_spares_only_the_minimum_lets_the_others_go(api: Api, kant: Kant) -> None:
    """And one that spares all keeps all: nobody is evicted, and whoever would have come is told."""
    await api.create(make_node("n0"))
    await api.apply([queue("org", 0), queue("a", 4, parent="org"), queue("b", 4, parent="org")])
    await api.create(make_budget("careful", {"app": "x"}, 8))
    await api.allow("careful", 0)
    labels = of_queue("a") | {"app": "x"}
    async with FakeKubelet(api), kant(profile=reclaiming()) as driver:
        await api.create_all(make_gang("wide", 8, 1, least=4, annotations=YES, labels=labels))
        await until(api, lambda pods: all(pod["status"].get("phase") == "Running" for pod in pods))
        async with asyncio.timeout(PATIENCE_S):
            while not any(known.protected[1] for known in driver.workloads.by_job.values()):
                await asyncio.sleep(0.02)
        await api.create_all(make_gang("mine", 2, 1, annotations=YES, labels=of_queue("b")))
        await until(api, lambda pods: all(condition(p) for p in pods if "mine" in p["metadata"]["name"]))
        assert driver.counts.evicted == 0
        await api.allow("careful", 4)
        pods = await until(api, lambda pods: {"mine-0", "mine-1"} <= set(bound(pods)))
        assert sum("wide" in one for one in bound(pods)) == 6 and driver.counts.evicted == 2


@pytest.mark.parametrize("mode", ["Pod", "PodGroup"])
async def test_a_podgroup_of_kubernetes_grows_and_says_how_it_is_disrupted(api: Api, kant: Kant, mode: str) -> None:
    """With its Workload. In mode PodGroup all of its pods go, or none."""
    version = "scheduling.k8s.io/v1alpha2"
    await api.create(make_node("n0"))
    await api.apply([queue("org", 0), queue("a", 4, parent="org"), queue("b", 4, parent="org")])
    policy: Object = {"schedulingPolicy": {"gang": {"minCount": 2}}, "disruptionMode": mode}
    meta = {"name": "train", "namespace": "default"}
    templates = {"podGroupTemplates": [policy | {"name": "workers"}]}
    await api.create({"apiVersion": version, "kind": "Workload", "metadata": meta, "spec": templates})
    ref = {"workload": {"workloadName": "train", "podGroupTemplateName": "workers"}}
    own = policy | {"podGroupTemplateRef": ref}
    await api.create({"apiVersion": version, "kind": "PodGroup", "metadata": meta, "spec": own})
    group = {"podGroupName": "train"}
    pods = [make_pod(f"train-{i}", 1, labels=of_queue("a"), annotations=YES, schedulingGroup=group) for i in range(6)]
    async with FakeKubelet(api), kant(profile=reclaiming()) as driver:
        await api.create_all(pods)
        await until(api, lambda pods: len(bound(pods)) == 6)
        await api.create_all(make_gang("mine", 4, 1, labels=of_queue("b")))
        found = await until(api, lambda pods: sum("mine" in one for one in bound(pods)) == 4)
        left = sum("train" in one for one in bound(found))
        assert (driver.counts.evicted, left) == ((6, 0) if mode == "PodGroup" else (2, 4))
