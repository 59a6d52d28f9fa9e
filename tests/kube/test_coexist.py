"""Beside a real kube-scheduler on the same nodes, while both bind; and when nodes come, go and change meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from tests.kube.api import Api
from tests.kube.audit import Auditor, summary
from tests.kube.control_plane import ControlPlane
from tests.kube.kubelet import FakeKubelet, ReplicaController
from tests.kube.objects import Object, make_gang, make_node, make_pod
from tests.kube.rival import KubeScheduler
from tests.kube.running import KantProcess, kant
from tests.kube.terms import Terms


@contextmanager
def running(plane: ControlPlane) -> Iterator[KantProcess]:
    """A process of its own, which does not wait for the test to read its watches."""
    process = KantProcess(plane, "--no-leader-election", user="admin")
    try:
        yield process
    finally:
        process.kill()


async def test_two_schedulers_share_nodes_and_leave_each_others_pods_alone(api: Api, plane: ControlPlane) -> None:
    """Each knows of the other's bindings when its watch says so. What both bind within that time may be too much for a
    node, as the kubelet then says: that is not judged here, but that nobody is lost, half, touched or evicted."""
    await api.create_all([make_node(f"n{i}") for i in range(40)])
    async with FakeKubelet(api), Auditor(api) as auditor, Terms(api) as terms:
        with KubeScheduler(plane), running(plane) as process:
            await process.says("state built")
            for wave in range(3):  # 320 GPUs for three times 124 pods, which end
                theirs = [make_pod(f"theirs-{wave}-{i}", scheduler="default-scheduler", run_s=1.0) for i in range(60)]
                ours = [pod for i in range(8) for pod in make_gang(f"ours-{wave}-{i}", 8, run_s=1.0)]
                await asyncio.gather(api.create_all(theirs), api.create_all(ours))
            await terms.none_waits()
        report = await auditor.report()
        pods = await api.list("pods")
    print(summary(report), report.violations)
    assert not report.lost and not report.half
    assert len(pods) == 3 * (60 + 64) and not [pod for pod in pods if pod["status"]["phase"] == "Failed"]
    others = [pod for pod in pods if pod["spec"]["schedulerName"] != "kant"]
    assert not [pod for pod in others if "scheduling.kant.dev/leader" in (pod["metadata"].get("annotations") or {})]


async def test_a_node_that_holds_too_much_gets_nothing_more_and_loses_nobody(api: Api, plane: ControlPlane) -> None:
    await api.create_all([make_node("n0"), make_node("n1")])
    await api.create_all([make_pod(f"theirs-{i}", 8, scheduler="somebody", node="n0") for i in range(2)])
    async with Auditor(api) as auditor, Terms(api) as terms, kant(plane):
        await api.create_all([make_pod(f"ours-{i}", 4) for i in range(2)])
        await terms.bound_in_all(2)
        await api.delete("/api/v1/namespaces/default/pods/theirs-0", grace_s=0)
        await api.create(make_pod("one-more", 1))
        await api.until(lambda pods: any(_told(pod) for pod in pods if pod["metadata"]["name"] == "one-more"))
        pods = await api.list("pods")
        report = await auditor.report()
    where = {pod["metadata"]["name"]: pod["spec"].get("nodeName") for pod in pods}
    assert where == {"theirs-1": "n0", "ours-0": "n1", "ours-1": "n1", "one-more": None}
    assert not [one for one in report.violations if "theirs" not in one]


# --- nodes that come, go and change ------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["deleted", "not ready"])
async def test_a_node_that_vanishes_while_a_gang_is_being_bound(api: Api, plane: ControlPlane, how: str) -> None:
    await api.create_all([make_node(f"n{i}") for i in range(12)])
    async with FakeKubelet(api), ReplicaController(api) as jobs, Auditor(api) as auditor, Terms(api) as terms:  # noqa: SIM117
        async with kant(plane):
            arriving = asyncio.create_task(jobs.run(make_gang("train", 64)))
            await terms.bound_in_all(1)
            node = next(one for one in await api.list("pods") if one["spec"].get("nodeName"))["spec"]["nodeName"]
            await vanish(api, node, how)
            await arriving
            await terms.none_waits()
            report = await auditor.report()
    print(summary(report))
    report.assert_kept(all_bound=True)


async def vanish(api: Api, node: str, how: str) -> None:
    path = f"/api/v1/nodes/{node}"
    if how == "deleted":
        await api.delete(path)
    else:
        await api.patch(f"{path}/status", {"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}})


async def test_nodes_come_go_and_change_in_a_burst_and_nothing_is_bound_twice(api: Api, plane: ControlPlane) -> None:
    await api.create_all([make_node(f"n{i}") for i in range(20)])
    async with FakeKubelet(api), ReplicaController(api) as jobs, Auditor(api) as auditor, Terms(api) as terms:  # noqa: SIM117
        async with kant(plane) as driver:
            for step in range(3):
                sizes = [1, 8, 32, 4, 1, 1, 8, 4]
                wave = [make_gang(f"gang-{step}-{i}", size, run_s=1.0) for i, size in enumerate(sizes)]
                arriving = asyncio.create_task(jobs.run([pod for gang in wave for pod in gang]))
                await terms.bound_more(5)
                await api.create(make_node(f"later-{step}"))
                await change(api, f"n{step}", step)
                await arriving
            await terms.none_waits()
            builds, report = driver.counts.builds, await auditor.report()
    print(summary(report), "built", builds)
    report.assert_kept(all_bound=True)
    assert builds > 1


async def change(api: Api, node: str, step: int) -> None:
    """Another label that matters, or a cordon."""
    path = f"/api/v1/nodes/{node}"
    if step % 2 == 0:
        await api.patch(path, {"metadata": {"labels": {"nvidia.com/gpu.product": f"NVIDIA-{step}"}}})
    else:
        await api.patch(path, {"spec": {"unschedulable": True}})


def _told(pod: Object) -> bool:
    return any(one["type"] == "PodScheduled" for one in pod["status"].get("conditions", []))
