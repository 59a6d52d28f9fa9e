"""Workloads whose parts start one after the other, on a real API server: whoever begins is able to go on."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.kube.api import Api
from tests.kube.live import bound, install_kind, kind, says, until
from tests.kube.objects import GPU, Object, make_node, make_pod
from tests.kube.running import Kant

from kant.kube.follow import informers

LWS = "leaderworkerset.x-k8s.io", "v1", "LeaderWorkerSet", "leaderworkersets"
JOBSET = "jobset.x-k8s.io", "v1alpha2", "JobSet", "jobsets"


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(informers, "ABSENT", 0.3)


def template(gpus: int = 1, cpu: str = "1") -> Object:
    """A pod as its author writes it: the API server completes the requests of a pod, not those of a template."""
    limits = {"cpu": cpu, "memory": "1Gi"} | ({GPU: str(gpus)} if gpus else {})
    return {
        "spec": {
            "schedulerName": "kant",
            "containers": [{"name": "main", "image": "test", "resources": {"limits": limits}}],
        }
    }


def made(name: str, template: Object, labels: dict[str, str]) -> Object:
    """A pod that a controller makes of its template."""
    meta = {"name": name, "namespace": "default", "labels": labels | template.get("metadata", {}).get("labels", {})}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": template["spec"]}


def of_lws(name: str, index: int, own: Object) -> Object:
    base = "leaderworkerset.sigs.k8s.io"
    labels = {f"{base}/name": name, f"{base}/group-index": "0", f"{base}/worker-index": str(index)}
    return made(f"{name}-0-{index}" if index else f"{name}-0", own, labels)


def of_jobset(name: str, job: str, index: int, own: Object) -> Object:
    base = "jobset.sigs.k8s.io"
    return made(f"{name}-{job}-{index}", own, {f"{base}/jobset-name": name, f"{base}/replicatedjob-name": job})


def replicated(name: str, own: Object, pods: int = 1, *after: tuple[str, str]) -> Object:
    job = {"completionMode": "Indexed", "parallelism": pods, "completions": pods, "template": own}
    depends = {"dependsOn": [{"name": one, "status": status} for one, status in after]} if after else {}
    return {"name": name, "replicas": 1, "template": {"spec": job}} | depends


async def create(api: Api, what: tuple[str, str, str, str], name: str, **spec: Any) -> None:
    group, version, named, _ = what
    meta = {"name": name, "namespace": "default"}
    await api.create({"apiVersion": f"{group}/{version}", "kind": named, "metadata": meta, "spec": spec})


async def drop(api: Api, what: tuple[str, str, str, str], *names: str) -> None:
    for name in names:
        await api.delete(f"/apis/{what[0]}/{what[1]}/namespaces/default/{what[3]}/{name}")


async def delete(api: Api, *names: str) -> None:
    for name in names:
        await api.delete(f"/api/v1/namespaces/default/pods/{name}", grace_s=0)


async def test_two_sets_whose_workers_come_after_their_leaders_do_not_hold_half_each(api: Api, kant: Kant) -> None:
    """6 GPUs, 4 for each. The controller makes the workers of whoever's leader has its node."""
    await install_kind(api, kind(*LWS))
    await api.create_all([make_node("n0", 4), make_node("n1", 2)])
    for name in "ab":
        await create(
            api, LWS, name, startupPolicy="LeaderReady", leaderWorkerTemplate={"size": 4, "workerTemplate": template()}
        )
    async with kant():
        await api.create_all([of_lws(name, 0, template()) for name in "ab"])
        pods = await until(api, lambda pods: len(bound(pods)) == 1 and len(condition_of(pods)) == 2)
        (leader,) = bound(pods)
        first, second = leader[0], "b" if leader[0] == "a" else "a"
        # what is kept for its workers is nobody else's, be it a single pod
        await api.create_all([make_pod("small", 2), make_pod("large", 3)])
        await until(api, lambda pods: "small" in bound(pods) and says(pods, "large", "fit now"))
    async with kant():  # and the next leader keeps it too
        pods = await until(api, lambda pods: says(pods, f"{second}-0", "fit now") and says(pods, "large", "fit now"))
        await api.create_all([of_lws(first, index, template()) for index in range(1, 4)])
        await until(api, lambda pods: sum(one[0] == first for one in bound(pods)) == 4)
        await delete(api, "large", *(f"{first}-0{rest}" for rest in ("", "-1", "-2", "-3")))
        pods = await until(api, lambda pods: f"{second}-0" in bound(pods))
        await api.create_all([of_lws(second, index, template()) for index in range(1, 4)])
        await until(api, lambda pods: sum(one[0] == second for one in bound(pods)) == 4)
    await drop(api, LWS, "a", "b")


def condition_of(pods: list[Object]) -> list[Object]:
    """The pods of which the scheduler has said something, be it where they are."""
    return [pod for pod in pods if pod["spec"].get("nodeName") or pod.get("status", {}).get("conditions")]


async def finish(api: Api, *names: str) -> None:
    for name in names:
        await api.patch(f"/api/v1/namespaces/default/pods/{name}/status", {"status": {"phase": "Succeeded"}})


async def test_trainjobs_load_their_data_first_and_then_start_whole(api: Api, kant: Kant) -> None:
    """An initializer keeps no place for the nodes that come after it; these are a gang. 6 GPUs, 4 for each."""
    await install_kind(api, kind(*JOBSET))
    await api.create_all([make_node("n0", 4), make_node("n1", 2)])
    small = template(1)
    for name in "ab":
        jobs = [replicated("init", template(1)), replicated("node", small, 4, ("init", "Complete"))]
        await create(api, JOBSET, name, replicatedJobs=jobs)
    async with kant():
        await api.create(make_pod("other", 4))
        await until(api, lambda pods: len(bound(pods)) == 1)
        await api.create_all([of_jobset(name, "init", 0, template(1)) for name in "ab"])
        await until(api, lambda pods: len(bound(pods)) == 3)
        await finish(api, "a-init-0", "b-init-0")
        await delete(api, "other")
        await api.create_all([of_jobset(name, "node", index, small) for name in "ab" for index in range(4)])
        pods = await until(api, lambda pods: sum("node" in one for one in bound(pods)) == 4)
        first = next(one[0] for one in bound(pods) if "node" in one)
        second = "b" if first == "a" else "a"
        pods = await until(
            api, lambda pods: all(says(pods, f"{second}-node-{i}", "of 4 pods fit now") for i in range(4))
        )
        assert sum(one.startswith(f"{first}-node") for one in bound(pods)) == 4
        await finish(api, *(f"{first}-node-{i}" for i in range(4)))
        await until(api, lambda pods: sum(one.startswith(f"{second}-node") for one in bound(pods)) == 4)
    await drop(api, JOBSET, "a", "b")


@pytest.mark.parametrize("larger", [False, True], ids=["as its template says", "as a webhook has made them"])
async def test_a_driver_that_starts_first_has_places_for_its_workers(api: Api, kant: Kant, larger: bool) -> None:
    """A JobSet in order. What its workers ask for beyond their template is looked for when they come."""
    await install_kind(api, kind(*JOBSET))
    await api.create_all([make_node("n0", 4), make_node("n1", 2)])
    driver, worker = template(0), template(2, "2")
    order = {"startupPolicyOrder": "InOrder"}
    jobs = [replicated("driver", driver), replicated("worker", worker, 3)]
    await create(api, JOBSET, "s", startupPolicy=order, replicatedJobs=jobs)
    async with kant() as leader:
        await api.create(of_jobset("s", "driver", 0, driver))
        await until(api, lambda pods: bound(pods) == ["s-driver-0"])
        await api.create(make_pod("late", 1))
        await until(api, lambda pods: says(pods, "late", "fit now"))
        if larger:
            worker = template(2, "4")
        await api.create_all([of_jobset("s", "worker", index, worker) for index in range(3)])
        await until(api, lambda pods: len(bound(pods)) == 4 and says(pods, "late", "fit now"))
        assert leader.counts.evicted == leader.counts.released == 0
        await delete(api, "s-driver-0", *(f"s-worker-{index}" for index in range(3)))
        await until(api, lambda pods: "late" in bound(pods))
    await drop(api, JOBSET, "s")


async def test_a_leader_that_goes_gives_back_what_was_kept_for_its_workers(api: Api, kant: Kant) -> None:
    await install_kind(api, kind(*LWS))
    await api.create(make_node("n0", 4))
    own = {"size": 4, "workerTemplate": template()}
    await create(api, LWS, "a", startupPolicy="LeaderReady", leaderWorkerTemplate=own)
    async with kant(recovery=0.5) as driver:
        await api.create(of_lws("a", 0, template()))
        await until(api, lambda pods: bound(pods) == ["a-0"])
        await api.create(make_pod("other", 2))
        await until(api, lambda pods: says(pods, "other", "fit now"))
        await asyncio.sleep(1.5)  # a gang in part would be given back by now
        assert driver.counts.released == 0
        await delete(api, "a-0")
        await until(api, lambda pods: bound(pods) == ["other"])
    await drop(api, LWS, "a")
