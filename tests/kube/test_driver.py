"""The driver on a real API server: gangs whole or not at all, preemption, restarts, and whatever is malformed."""

from __future__ import annotations

import asyncio
import re
import time
from pathlib import Path

import pytest
from tests.kube.api import Api
from tests.kube.audit import Auditor
from tests.kube.control_plane import ControlPlane
from tests.kube.kubelet import FakeKubelet
from tests.kube.objects import GANG, Object, make_budget, make_gang, make_node, make_pod
from tests.kube.running import kant
from tests.patience import until

from kant.cluster.columns import J_SINCE, J_STARTED
from kant.kube.act import evictor
from kant.kube.shadow import compared, summary
from kant.scheduler.profile import builtin_profile, parse_profile
from kant.sim.replay import replay


def bound(pods: list[Object]) -> list[str]:
    return sorted(pod["metadata"]["name"] for pod in pods if pod["spec"].get("nodeName"))


def condition(pod: Object) -> Object:
    found = [one for one in pod.get("status", {}).get("conditions", []) if one["type"] == "PodScheduled"]
    return found[0] if found else {}


def told(pods: list[Object], words: str) -> bool:
    """Whether all pods that wait say why, in these words."""
    waiting = [pod for pod in pods if not pod["spec"].get("nodeName")]
    return bool(waiting) and all(words in condition(pod).get("message", "") for pod in waiting)


async def test_gangs_of_1_to_512_are_bound_whole_and_the_journal_replays(
    api: Api, plane: ControlPlane, tmp_path: Path
) -> None:
    await api.create_all([make_node(f"n{i}") for i in range(140)])
    async with Auditor(api) as auditor, kant(plane, journal=tmp_path):
        sizes = (1, 2, 3, 8, 31, 64, 512)
        await api.create_all([pod for size in sizes for pod in make_gang(f"gang-{size}", size)])
        await api.until(lambda pods: len(bound(pods)) == sum(sizes))
        report = await auditor.report()
    report.assert_kept(all_bound=True)
    (journal,) = tmp_path.glob("*.jsonl")
    assert replay(journal).equal


async def test_what_each_pod_costs_the_api_server_in_requests(api: Api, plane: ControlPlane) -> None:
    """A binding and an Event for each pod that starts, as with kube-scheduler; the counts may only fall."""
    ours, theirs = ([{"name": name}] for name in ("scheduling.kant.dev/quota", "example.com/hold"))
    await api.create_all([make_node(f"n{i}") for i in range(3)])
    await api.create_all(make_pod(f"leaving-{i}") for i in range(2))
    for i in range(2):
        path = f"/api/v1/namespaces/default/pods/leaving-{i}"
        await api.patch(path, {"metadata": {"finalizers": ["example.com/kept"]}})
        await api.delete(path)
    starts = [*(make_pod(f"single-{i}") for i in range(4)), *make_gang("gang", 8)]
    await api.create_all([*starts, *(make_pod(f"held-{i}", schedulingGates=theirs) for i in range(5))])
    await api.create_all(make_pod(f"gated-{i}", schedulingGates=ours) for i in range(2))
    await api.create_all(make_gang("large", 16, 2))
    before = await api.requests()
    async with kant(plane) as driver:
        await until(lambda: driver.notifier.recorder.sent == 14 + 2 * 16 and not driver.steps.is_binding())
        cycles, node = driver.counts.cycles, "/api/v1/nodes/n0/status"
        await api.patch(node, {"status": {"conditions": [{"type": "Ready", "status": "True", "reason": "again"}]}})
        await api.patch("/api/v1/namespaces/default/pods/held-0", {"metadata": {"labels": {"told": "nothing"}}})
        await until(lambda: driver.counts.cycles > cycles + 3)
    spent = await api.requests() - before
    spent["PATCH pods 200"] -= 1  # our own
    assert {what: count for what, count in spent.items() if re.match(r"(?!WATCH)\w+ (pods|events)\b", what)} == {
        "LIST pods 200": 1,
        "POST pods/binding 201": 14,
        "POST events 201": 14 + 16,
        "PATCH pods 200": 2,  # our gate is opened before a pod is bound
        "PATCH pods/status 200": 16,
    }


async def test_a_gang_that_does_not_fit_binds_nothing_and_says_why(api: Api, plane: ControlPlane) -> None:
    await api.create_all([make_node(f"n{i}") for i in range(9)])
    async with kant(plane) as driver:
        await api.create_all(make_gang("large", 10, 8))
        pods = await api.until(lambda pods: told(pods, "empty cluster has room for 9 of 10 pods"))
        assert not bound(pods) and condition(pods[0])["reason"] == "Unschedulable"
        await api.create(make_node("n9"))
        await api.until(lambda pods: len(bound(pods)) == 10)
        assert driver.counts.builds == 1, "the node has joined the state that there was"


async def test_a_gang_waits_for_its_last_pod(api: Api, plane: ControlPlane) -> None:
    await api.create_all([make_node(f"n{i}") for i in range(4)])
    async with kant(plane):
        gang = make_gang("late", 8)
        await api.create_all(gang[:7])
        pods = await api.until(lambda pods: told(pods, "7 of the 8 pods"))
        assert not bound(pods)
        await api.create(gang[7])
        await api.until(lambda pods: len(bound(pods)) == 8)


async def test_a_gang_bound_in_part_is_completed_near_what_it_has(api: Api, plane: ControlPlane) -> None:
    await api.create_all([make_node(f"n{i}") for i in range(4)])
    gang = make_gang("half", 8, 2)
    await api.create_all(gang)
    for index in (0, 3, 5):  # as if somebody had been killed between two bindings
        await api.bind(f"half-{index}", "n2")
    await api.create_all([make_pod(f"other-{i}", 4) for i in range(8)])
    async with kant(plane) as driver:
        await api.until(lambda pods: sum("half" in name for name in bound(pods)) == 8)
        assert driver.counts.released == 0


async def test_a_gang_bound_in_part_that_cannot_be_completed_is_given_back(api: Api, plane: ControlPlane) -> None:
    await api.create_all([make_node(f"n{i}") for i in range(2)])
    await api.create_all([make_pod("big", 8, scheduler="somebody", node="n1"), *make_gang("half", 9)])
    await api.bind("half-0", "n0")
    async with FakeKubelet(api), kant(plane):
        await api.until(lambda pods: bound(pods) == ["big"] and len(pods) == 9)


async def test_what_others_have_bound_is_counted_and_left_alone(api: Api, plane: ControlPlane) -> None:
    await api.create_all([make_node(f"n{i}") for i in range(3)])
    await api.create_all([make_pod(f"theirs-{i}", 6, scheduler="somebody", node=f"n{i}") for i in range(3)])
    async with Auditor(api) as auditor, kant(plane):
        await api.create_all([make_pod(f"ours-{i}", 2) for i in range(4)])
        await api.until(lambda pods: len(bound(pods)) == 6 and told(pods, "fit now"))
        await api.delete("/api/v1/namespaces/default/pods/theirs-1", grace_s=0)
        await api.until(lambda pods: len(bound(pods)) == 6 and len(pods) == 6)
        (await auditor.report()).assert_kept()


@pytest.mark.parametrize("ends", ["Succeeded", "Failed", "deleted"])
async def test_what_has_ended_gives_its_place_back(api: Api, plane: ControlPlane, ends: str) -> None:
    await api.create(make_node("n0"))
    async with kant(plane):
        await api.create(make_pod("first", 8))
        await api.until(lambda pods: bound(pods) == ["first"])
        await api.create(make_pod("second", 8))
        await api.until(lambda pods: told(pods, "fit now"))
        path = "/api/v1/namespaces/default/pods/first"
        if ends == "deleted":
            await api.delete(path, grace_s=0)
        else:
            await api.patch(f"{path}/status", {"status": {"phase": ends}})
        await api.until(lambda pods: "second" in bound(pods))


async def test_a_malformed_pod_is_told_so_and_harms_no_other(api: Api, plane: ControlPlane) -> None:
    await api.create(make_node("n0"))
    async with kant(plane):
        wrong = {"scheduling.kant.dev/topology-required": "galaxy"}
        await api.create_all([make_pod("wrong", 1, annotations=wrong), make_pod("right", 1)])
        pods = await api.until(lambda pods: bound(pods) == ["right"] and told(pods, "galaxy"))
        assert len(pods) == 2


async def test_a_pod_of_a_gang_that_dies_is_replaced_in_its_place(api: Api, plane: ControlPlane) -> None:
    await api.create_all([make_node(f"n{i}") for i in range(2)])
    gang = make_gang("train", 8, 2)
    async with kant(plane):
        await api.create_all(gang)
        pods = await api.until(lambda pods: len(bound(pods)) == 8)
        where = {pod["metadata"]["name"]: pod["spec"]["nodeName"] for pod in pods}
        await api.create(make_pod("next", 2))
        await api.delete("/api/v1/namespaces/default/pods/train-3", grace_s=0)
        await api.create(gang[3])
        pods = await api.until(lambda pods: len(bound(pods)) == 8)
        assert {pod["metadata"]["name"]: pod["spec"].get("nodeName") for pod in pods} == where | {"next": None}


async def test_everybody_who_waits_says_why_also_whom_no_cycle_has_tried(api: Api, plane: ControlPlane) -> None:
    await api.create(make_node("n0"))
    async with kant(plane):
        await api.create_all([make_pod(f"p{i}", 3) for i in range(20)])
        await api.until(lambda pods: len(bound(pods)) == 2 and told(pods, "fit now"))


async def test_in_the_shadow_of_another_scheduler_it_decides_and_binds_nothing(
    api: Api, plane: ControlPlane, tmp_path: Path
) -> None:
    await api.create_all([make_node(f"n{i}") for i in range(2)])
    async with kant(plane, journal=tmp_path, shadow=("somebody",)) as driver:
        await api.create_all([make_pod(f"p{i}", 4, scheduler="somebody") for i in range(4)])
        await until(lambda: driver.core is not None and len(driver.core.state.rows) == 4)
        for index in range(3):
            await api.bind(f"p{index}", f"n{index // 2}")
        await until(lambda: driver.core is not None and len(driver.core.state.running) == 3)
        pods = await api.list("pods")
        assert bound(pods) == ["p0", "p1", "p2"] and not condition(pods[3])
        assert driver.counts.bound == 0
    (journal,) = tmp_path.glob("*.jsonl")
    again = replay(journal)
    assert again.equal and again.result.summary["jobs"] == 4
    jobs, end = compared(journal)
    found = summary(jobs, end)
    assert (found["jobs"], found["started"], found["decided"], found["decided_but_waiting"]) == (4, 3, 4, 1)


async def test_who_has_ended_well_is_not_waited_for_when_a_gang_is_completed(api: Api, plane: ControlPlane) -> None:
    await api.create_all([make_node(f"n{i}") for i in range(2)])
    await api.create_all(make_gang("half", 4))
    await api.bind("half-0", "n0")  # as if somebody had been killed then
    await api.patch("/api/v1/namespaces/default/pods/half-0/status", {"status": {"phase": "Succeeded"}})
    async with kant(plane):
        await api.until(lambda pods: len(bound(pods)) == 4)
        again = make_gang("whole", 2)
        await api.create_all(again)
        pods = await api.until(lambda pods: len(bound(pods)) == 6)
        for pod in pods:
            path = f"/api/v1/namespaces/default/pods/{pod['metadata']['name']}/status"
            await api.patch(path, {"status": {"phase": "Succeeded"}})
        again[0]["metadata"]["name"] = "whole-again"
        await api.create(again[0])  # another run of the same gang, of which nothing has been done
        pods = await api.until(lambda pods: told(pods, "1 of the 2 pods"))


async def test_a_state_that_is_built_knows_since_when_jobs_wait_and_run(api: Api, plane: ControlPlane) -> None:
    await api.create_all([make_node(f"n{i}") for i in range(2)])
    await api.create_all([make_pod("runs", 8), make_pod("theirs", 8, scheduler="somebody")])
    await api.bind("runs", "n0")
    await asyncio.sleep(1.1)
    await api.bind("theirs", "n1")
    began = time.time()
    await api.create(make_pod("waits", 8))
    await asyncio.sleep(2.1)
    async with kant(plane) as driver:
        await until(lambda: driver.core is not None)
        core = driver.core
        assert core is not None
        state = core.state
        assert core.now > 3_000_000
        ran = {job: core.now - int(state.jobs[row, J_STARTED]) for job, row in state.rows.items()}
        assert ran["default/runs"] > ran["default/theirs"] > 1_900_000
        there = (time.time() - began + 1) * 1e6  # the API server tells whole seconds
        assert 1_900_000 < core.now - int(state.jobs[state.rows["default/waits"], J_SINCE]) <= there
        state.check()


async def test_a_state_that_is_built_anew_knows_what_its_jobs_have_waited_for(api: Api, plane: ControlPlane) -> None:
    def waited() -> dict[str, int]:
        core = driver.core
        assert core is not None
        return core.waits.of(core.state.rows["default/late"], core.now)

    await api.create(make_node("n0"))
    async with kant(plane) as driver:
        await api.create(make_pod("train", 8))
        await api.until(lambda pods: bound(pods) == ["train"])
        await api.create(make_pod("late", 8))
        await api.until(lambda pods: told(pods, "not enough free capacity"))
        await until(lambda: waited().get("capacity", 0) > 0)
        then = waited()
        driver.take_profile(driver.settings.profile)
        await until(lambda: driver.counts.builds == 2)
        split = waited()
        assert split["capacity"] >= then["capacity"], "it is carried from one state to the next"
        await until(lambda: waited()["capacity"] > split["capacity"])


async def test_a_pod_that_no_node_suits_says_so_and_starts_when_one_comes(api: Api, plane: ControlPlane) -> None:
    await api.create(make_node("n0"))
    async with kant(plane):
        await api.create(make_pod("wish", 1, nodeSelector={"disk": "fast"}))
        pods = await api.until(lambda pods: told(pods, "no node has the labels"))
        assert condition(pods[0])["reason"] == "Unschedulable"
        await api.create(make_node("n1", labels={"disk": "fast"}))
        pods = await api.until(lambda pods: bound(pods) == ["wish"])
        assert pods[0]["spec"]["nodeName"] == "n1"


async def test_a_node_has_no_more_pods_than_it_may(api: Api, plane: ControlPlane) -> None:
    await api.create_all([make_node("small", pods=4), make_node("large", pods=20)])
    await api.create_all([make_pod(f"theirs-{i}", 0, scheduler="somebody", node="small") for i in range(2)])
    eager = parse_profile(builtin_profile("kant").text.replace("base_s = 10", "base_s = 1"), "eager")
    async with Auditor(api) as auditor, kant(plane, profile=eager):
        await api.create_all([make_pod(f"p{i}", 0, cpu="10m") for i in range(12)])
        await api.create_all(make_gang("gang", 5, 0, cpu="10m"))
        await api.until(lambda pods: len(bound(pods)) == 2 + 12 + 5)
        await api.create_all([make_pod(f"more-{i}", 0, cpu="10m") for i in range(8)])
        await api.until(lambda pods: len(bound(pods)) == 24 and told(pods, " "))
        (await auditor.report()).assert_kept()


async def test_a_restart_knows_bound_pods_that_select_nodes_and_builds_one_state(api: Api, plane: ControlPlane) -> None:
    """Their queue and priority count, though no pod that waits selects on the same label."""
    await api.create(make_node("n0", labels={"disk": "fast"}))
    marks = {"scheduling.kant.dev/queue": "vision"}
    await api.create(make_pod("runs", 4, nodeSelector={"disk": "fast"}, labels=marks))
    await api.bind("runs", "n0")
    async with kant(plane) as driver:
        await until(lambda: driver.counts.cycles > 3)
        assert driver.core is not None and driver.counts.builds == 1
        state = driver.core.state
        assert [state.live[row].queue for row in state.running] == ["vision"]


@pytest.mark.parametrize("there", [4, 2])
async def test_bound_pods_count_before_their_group_has_been_read(api: Api, plane: ControlPlane, there: int) -> None:
    """The first cycle after a restart comes before any PodGroup is read."""
    await api.create_all([make_node("n0"), make_node("n1")])
    await api.create_all(make_gang("train", 4, 2, convention="upstream"))
    await api.create_all([make_pod(f"big-{i}", 8) for i in range(2)])
    for index in range(there):
        await api.bind(f"train-{index}", "n0")
    async with Auditor(api) as auditor, kant(plane) as driver:
        pods = await api.until(lambda pods: len(bound(pods)) == 5 and told(pods, " "))
        where = {pod["metadata"]["name"]: pod["spec"].get("nodeName") for pod in pods}
        assert {where[f"train-{index}"] for index in range(there)} == {"n0"}
        assert driver.core is not None and driver.counts.released == driver.counts.evicted == 0
        driver.core.state.check()
        (await auditor.report()).assert_kept()


async def test_a_gang_in_part_that_others_gate_is_counted(api: Api, plane: ControlPlane) -> None:
    await api.create(make_node("n0"))
    gate = [{"name": "somebody.example/gate"}]
    first, second = make_gang("half", 2, 4)
    second["spec"]["schedulingGates"] = gate
    await api.create_all([first, second])
    await api.bind("half-0", "n0")
    async with Auditor(api) as auditor, kant(plane, recovery=60.0) as driver:
        await api.create(make_pod("big", 8))
        await api.until(lambda pods: told([p for p in pods if p["metadata"]["name"] == "big"], " "))
        assert driver.core is not None and len(driver.core.state.running) == 1
        assert not (await auditor.report()).violations


async def test_a_gang_in_part_that_a_budget_protects_is_counted_and_tried_again(
    api: Api, plane: ControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evictor, "PATIENCE", 0.5)
    await api.create_all([make_node("n0"), make_pod("big", 4, scheduler="somebody", node="n0")])
    await api.create(make_budget("keep", {GANG: "half"}, 1))
    await api.allow("keep", 0)
    await api.create_all(make_gang("half", 3, 2))
    await api.bind("half-0", "n0")
    async with FakeKubelet(api), kant(plane, recovery=1.0) as driver:
        await until(lambda: driver.counts.released >= 2)
        assert driver.core is not None
        driver.core.state.check()
        assert len(driver.core.state.running) == 2
        await api.allow("keep", 5)
        await api.until(lambda pods: bound(pods) == ["big"])
