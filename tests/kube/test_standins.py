"""What stands around the control plane: kubelets, controllers, the rival, faults and the auditor; on a real server."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import aiohttp
import pytest
from tests.kube.api import Api, RefusedError
from tests.kube.audit import Auditor, judge, thousandths
from tests.kube.control_plane import ControlPlane
from tests.kube.faults import Fault, FaultProxy, classify
from tests.kube.kubelet import FakeKubelet, ReplicaController
from tests.kube.objects import Object, make_budget, make_gang, make_node, make_pod
from tests.kube.rival import KubeScheduler
from tests.patience import PATIENCE_S


def names(pods: list[Object]) -> set[str]:
    return {pod["metadata"]["name"] for pod in pods}


# --- kubelets and controllers ------------------------------------------------------------------------------------


async def test_bound_pods_run_finish_and_go(plane: ControlPlane) -> None:
    async with Api(plane) as api, FakeKubelet(api) as kubelet:
        await api.create_all([make_node("a"), make_node("dark"), make_pod("short", run_s=0.2), make_pod("long")])
        await api.create_all([make_pod("unseen"), make_pod("waits")])
        kubelet.silent.add("dark")
        for pod, node in (("short", "a"), ("long", "a"), ("unseen", "dark")):
            await api.bind(pod, node)
        await api.until(lambda pods: {p["status"]["phase"] for p in pods} == {"Succeeded", "Running", "Pending"})
        await api.evict("long")
        await api.evict("unseen")
        await api.until(lambda pods: names(pods) == {"short", "unseen", "waits"})


async def test_an_eviction_respects_the_budget(plane: ControlPlane) -> None:
    async with Api(plane) as api, FakeKubelet(api):
        await api.create_all([make_node("a"), make_pod("kept", labels={"app": "x"}), make_budget("x", {"app": "x"}, 1)])
        await api.bind("kept", "a")
        await api.until(lambda pods: pods[0]["status"]["phase"] == "Running")
        await api.allow("x", 0)
        with pytest.raises(RefusedError, match="429"):
            await api.evict("kept")
        await api.allow("x", 1)
        await api.evict("kept")
        await api.until(lambda pods: not pods)


@pytest.mark.parametrize("new_names", [False, True])
async def test_a_controller_makes_evicted_pods_anew(plane: ControlPlane, new_names: bool) -> None:
    async with Api(plane) as api, FakeKubelet(api), ReplicaController(api, new_names=new_names) as controller:
        await controller.run([make_node("a"), *make_gang("train", 3)])
        before = {pod["metadata"]["uid"] for pod in await api.list("pods")}
        await api.bind("train-1", "a")
        await api.evict("train-1")
        second = "train-1-1" if new_names else "train-1"
        expected = {"train-0", "train-2", second}

        def anew(pods: list[Object]) -> bool:
            return names(pods) == expected and {pod["metadata"]["uid"] for pod in pods} != before

        pods = await api.until(anew)
        assert not any(pod["spec"].get("nodeName") for pod in pods)
        controller.forget("train")
        await api.clean()
        await asyncio.sleep(0.2)
        assert not await api.list("pods") and controller.recreated == 1


async def test_the_real_kube_scheduler_binds_its_own_pods_and_native_gangs(plane: ControlPlane) -> None:
    async with Api(plane) as api, Auditor(api) as auditor:
        gang = make_gang("native", 6, 4, convention="upstream", scheduler="default-scheduler")
        await api.create_all([make_node("a"), make_node("b"), make_pod("ours"), *gang[:-2]])
        with KubeScheduler(plane, native_gangs=True):
            await api.create(make_pod("theirs", 0, scheduler="default-scheduler"))
            await api.until(lambda pods: _bound(pods) == {"theirs"})
            await api.create_all([make_node("c"), *gang[-2:]])
            everything = {"theirs", *(f"native-{index}" for index in range(6))}
            await api.until(lambda pods: _bound(pods) == everything)
        report = await auditor.report()
        assert not report.violations and report.waiting == ["default/ours"]


def _bound(pods: list[Object]) -> set[str]:
    return names([pod for pod in pods if pod["spec"].get("nodeName")])


# --- faults ------------------------------------------------------------------------------------------------------


def test_requests_are_named_as_in_rbac() -> None:
    base = "/api/v1/namespaces/default/pods"
    assert classify("GET", base, {"watch": "1"}) == ("watch", "pods")
    assert classify("GET", "/api/v1/pods", {}) == ("list", "pods")
    assert classify("GET", f"{base}/x", {}) == ("get", "pods")
    assert classify("POST", f"{base}/x/binding") == ("create", "pods/binding")
    assert classify("PATCH", f"{base}/x/status") == ("patch", "pods/status")
    assert classify("GET", "/api/v1/namespaces/default", {}) == ("get", "namespaces")
    assert classify("PUT", "/apis/coordination.k8s.io/v1/namespaces/kant-system/leases/kant") == ("update", "leases")
    assert classify("GET", "/version", {}) == ("get", "/version")


async def test_each_fault_of_a_request_does_what_it_says(plane: ControlPlane) -> None:
    async with Api(plane) as sees, FaultProxy(plane) as proxy, Api(plane, url=proxy.url) as api:
        await api.create_all([make_node("a"), make_pod("one"), make_pod("two")])

        proxy.faults = [Fault("drop", resource="pods/binding")]
        with pytest.raises(aiohttp.ClientError):
            await api.bind("one", "a")
        assert _bound(await sees.list("pods")) == {"one"}  # the reply is lost, not the bind

        proxy.faults = [Fault("refuse", verb="create")]
        with pytest.raises(aiohttp.ClientError):
            await api.bind("two", "a")
        assert _bound(await sees.list("pods")) == {"one"}

        proxy.faults = [Fault("duplicate", resource="pods/binding")]
        with pytest.raises(RefusedError, match="409"):
            await api.bind("two", "a")
        assert _bound(await sees.list("pods")) == {"one", "two"}

        for code in ("409", "410", "429", "500", "503"):
            proxy.faults = [Fault(code, resource="pods")]
            with pytest.raises(RefusedError, match=code):
                await api.create(make_pod("three"))
        assert len(await sees.list("pods")) == 2
        proxy.faults = [Fault("500", resource="pods", after=True)]
        with pytest.raises(RefusedError, match="500"):
            await api.create(make_pod("three"))
        assert len(await sees.list("pods")) == 3

        proxy.faults = [Fault("delay", seconds=5)]
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await api.list("pods")
        proxy.faults = []
        assert len(await api.list("pods")) == 3
        assert proxy.count("create", "pods/binding") == 3 and proxy.injected["drop"] == 1
        assert proxy.replies["create", "pods/binding", 201] == 1  # of the dropped one; the second of two got 409


async def test_the_same_seed_injects_the_same_faults(plane: ControlPlane) -> None:
    async def codes(seed: int) -> list[int]:
        faults = [Fault("500", 0.3), Fault("429", 0.3)]
        async with FaultProxy(plane, faults, seed=seed) as proxy, Api(plane, url=proxy.url) as api:
            found = []
            for _ in range(40):
                try:
                    await api.get("/api/v1/namespaces/default")
                    found.append(200)
                except RefusedError as refused:
                    found.append(refused.code)
            return found

    first = await codes(7)
    assert set(first) == {200, 429, 500}
    assert await codes(7) == first != await codes(8)


async def test_watches_close_stall_crawl_and_expire(plane: ControlPlane) -> None:
    async def events(api: Api, since: str, within_s: float = 30) -> int:
        """How many of the 20 came; -1 where the server ended the watch first."""
        count = 0
        try:
            async with asyncio.timeout(within_s):
                async for _ in api.watch("/api/v1/pods", since):
                    count += 1
                    if count == 20:
                        return count
                return -1
        except TimeoutError:
            return count

    async with Api(plane) as sees, FaultProxy(plane) as proxy, Api(plane, url=proxy.url) as api:
        since = (await sees.get("/api/v1/pods"))["metadata"]["resourceVersion"]
        await sees.create_all(make_gang("train", 20))
        assert await events(api, since) == 20
        proxy.faults = [Fault("close", seconds=0.0)]
        assert await events(api, since) == -1
        proxy.faults = [Fault("stall", seconds=0.0)]
        assert await events(api, since, 0.5) == 0
        proxy.faults = [Fault("slow", rate=5_000)]
        assert 0 <= await events(api, since, 1.0) < 20
        proxy.faults = [Fault("slow", rate=10**7)]
        assert await events(api, since) == 20
        proxy.faults = [Fault("410", verb="watch")]
        with pytest.raises(RefusedError, match="410"):
            await events(api, since)


async def test_an_outage_breaks_what_is_open_and_followers_go_on_after_it(plane: ControlPlane) -> None:
    async with Api(plane) as sees, FaultProxy(plane) as proxy, Api(plane, url=proxy.url) as api:
        await sees.create(make_node("a"))
        async with Auditor(api) as auditor, FakeKubelet(api):
            async with proxy.outage():
                with pytest.raises(aiohttp.ClientError):
                    await api.list("pods")
                await sees.create_all(make_gang("train", 2))
                for index in range(2):
                    await sees.bind(f"train-{index}", "a")
            await sees.until(lambda pods: [p["status"]["phase"] for p in pods] == ["Running"] * 2)
            report = await auditor.report()
            assert report.bound == 2 and not report.violations


# --- the auditor -------------------------------------------------------------------------------------------------


async def test_the_auditor_closes_the_gaps_of_its_watches(plane: ControlPlane) -> None:
    """It starts after pods were bound and nodes changed, and misses a deletion and a bind."""
    async with Api(plane) as sees, FaultProxy(plane) as proxy, Api(plane, url=proxy.url) as api:
        await sees.create_all([make_node("a"), make_pod("old", 8), make_pod("new", 8)])
        await sees.bind("old", "a")
        await sees.patch("/api/v1/nodes/a", {"metadata": {"labels": {"changed": "since"}}})
        async with Auditor(api) as auditor:
            proxy.faults = [Fault("410", verb="watch")]
            proxy.cut_watches()
            await sees.delete("/api/v1/namespaces/default/pods/old", grace_s=0)
            await sees.bind("new", "a")
            before = proxy.injected["410"]
            async with asyncio.timeout(PATIENCE_S):
                while proxy.injected["410"] < before + 4:
                    await asyncio.sleep(0.02)
            proxy.faults = []
            report = await auditor.report()
            assert (report.pods, report.bound) == (2, 2) and auditor.gaps > 0
            assert not report.violations


async def test_the_auditor_finds_nothing_wrong_with_whole_gangs_that_come_and_go(plane: ControlPlane) -> None:
    async with Api(plane) as api, FakeKubelet(api), Auditor(api) as auditor:
        await api.create_all(make_node(name) for name in "ab")
        for turn in range(3):
            await api.create_all(make_gang(f"train-{turn}", 4, 4, run_s=0.1))
            for index in range(4):
                await api.bind(f"train-{turn}-{index}", "ab"[index % 2])
            await api.until(lambda pods, n=4 * turn + 4: _finished(pods) == n)  # type: ignore[misc]
        await api.clean()
        report = await auditor.report()
        report.assert_kept(all_bound=True)
        assert (report.pods, report.bound) == (12, 12) and auditor.gaps == 0
        assert len(report.partial_s) == 3 and all(s > 0 for s in report.partial_s.values())


def _finished(pods: list[Object]) -> int:
    return sum(pod["status"]["phase"] == "Succeeded" for pod in pods)


async def test_the_auditor_catches_overcommitted_nodes_partial_gangs_and_lost_pods(plane: ControlPlane) -> None:
    async with Api(plane) as api, Auditor(api) as auditor:
        await api.create_all([make_node("a", cpu="10"), *make_gang("half", 2, 5)])
        await api.create_all([make_pod("silent"), make_pod("told"), make_pod("big", 0, cpu="9500m"), make_pod("x", 5)])
        told = {"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]}
        await api.patch("/api/v1/namespaces/default/pods/told/status", {"status": told})
        await api.bind("half-0", "a")
        await api.bind("x", "a")
        await api.bind("big", "a")
        await api.delete("/api/v1/namespaces/default/pods/x", grace_s=0)  # what was wrong for a moment stays wrong
        await asyncio.sleep(0.3)
        report = await auditor.report()
        assert report.violations == [
            "default/x was bound to a, which has 8 nvidia.com/gpu and then had 10 taken",
            "default/big was bound to a, which has 8 nvidia.com/gpu and then had 10 taken",
            "default/big was bound to a, which has 10 cpu and then had 11.5 taken",
        ]
        assert (
            report.beside["default/x"].keys() == {"default/half-0"}
            and report.beside["default/x"]["default/half-0"] >= 0
        )
        assert report.lost == ["default/half-1", "default/silent"]
        assert report.waiting == ["default/half-1", "default/silent", "default/told"]
        assert report.partial_s["default/half"] >= 0.3 and report.half == ["default/half"]
        with pytest.raises(AssertionError):
            report.assert_kept()

        moved = [replace(seen, version=seen.version + 10**6, node="b") for seen in auditor._pods if seen.uses][:1]
        again = judge(auditor._pods + moved, auditor._nodes, 0.0)  # the real server would refuse this
        assert "default/half-0 was on a, and then on b" in again.violations


def test_quantities_are_exact() -> None:
    given = {"1": 1000, "100m": 100, "1500m": 1500, "0.1": 100, "1e3": 10**6, "2Gi": 2**31 * 1000, "1.5k": 1_500_000}
    assert {text: thousandths(text) for text in given} == given
    assert thousandths("1n") == 1 and thousandths("12E") == 12 * 10**21 and thousandths("1Ti") == 2**40 * 1000
