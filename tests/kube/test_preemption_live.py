"""Preemption on a real API server: who goes, how, and who comes in their place; budgets, restarts, long runs."""

from __future__ import annotations

import asyncio
import random

import pytest
from tests.kube.api import Api
from tests.kube.audit import Auditor
from tests.kube.kubelet import FakeKubelet, ReplicaController
from tests.kube.live import bound, condition, deputy_of_kant, events, profile, says, until, waiting
from tests.kube.objects import Object, make_budget, make_gang, make_node, make_pod, make_priority_class
from tests.kube.running import Kant
from tests.patience import PATIENCE_S
from tests.patience import until as holds

from kant.kube.follow import informers
from kant.kube.lead.driver import KubeDriver
from kant.kube.reconcile import lost_places
from kant.scheduler.profile import Profile

YES = {"scheduling.kant.dev/preemptible": "true"}


def preempting() -> Profile:
    return profile("[preemption]\npriority = true\nmin_run_s = 0\n")


def high(name: str, gpus: int = 8, **more: object) -> Object:
    return make_pod(name, gpus, priority_class="high", **more)  # type: ignore[arg-type]


async def begin(api: Api, nodes: int) -> None:
    classes = [make_priority_class("high", 1000), make_priority_class("middle", 500)]
    await api.create_all([*classes, *(make_node(f"n{i}") for i in range(nodes))])


async def test_a_winner_that_is_evicted_before_it_was_bound_keeps_nobody_from_its_node(api: Api, kant: Kant) -> None:
    gone = asyncio.Event()
    await begin(api, 1)
    async with FakeKubelet(api, stops=gone), ReplicaController(api) as jobs, kant(profile=preempting()):
        await jobs.run([pod for i in range(8) for pod in make_gang(f"low-{i}", 1, annotations=YES)])
        await until(api, lambda pods: len(bound(pods)) == 8)
        await api.create(make_pod("middle", 4, priority_class="middle", annotations=YES))
        await until(api, lambda pods: sum(1 for p in pods if p["metadata"].get("deletionTimestamp")) == 4)
        await api.create(high("high"))
        await until(api, lambda pods: not any(pod["metadata"]["name"] == "middle" for pod in pods))
        gone.set()
        await until(api, lambda pods: "high" in bound(pods))


async def test_victims_go_with_grace_and_the_winner_comes_when_they_are_gone(api: Api, kant: Kant) -> None:
    gone = asyncio.Event()
    await begin(api, 1)
    async with (
        Auditor(api) as auditor,
        FakeKubelet(api, stops=gone),
        ReplicaController(api) as jobs,
        kant(profile=preempting()) as driver,
    ):
        await jobs.run([pod for i in range(4) for pod in make_gang(f"low-{i}", 2, annotations=YES)])
        await until(api, lambda pods: len(bound(pods)) == 8)
        await api.create(high("high", 4))
        pods = await until(api, lambda pods: sum(1 for p in pods if p["metadata"].get("deletionTimestamp")) == 4)
        leaving = [pod for pod in pods if pod["metadata"].get("deletionTimestamp")]
        assert "high" not in bound(pods)  # their grace runs
        assert all(condition(pod, "DisruptionTarget")["reason"] == "EvictionByEvictionAPI" for pod in leaving)
        gone.set()
        pods = await until(api, lambda pods: "high" in bound(pods) and len(waiting(pods)) == 4)
        gangs = {one.rsplit("-", 1)[0] for one in waiting(pods)}
        assert len(gangs) == 2 and len(bound(pods)) == 5 and driver.counts.evicted == 4
        assert await driver.notifier.recorder.drain(PATIENCE_S)
        told = await events(api, "Preempted")
        assert len(told) == 4 and all("preempted by default/high (priority)" in event["note"] for event in told)
        await until(api, lambda pods: all(condition(pod) for pod in pods if not pod["spec"].get("nodeName")))
        (await auditor.report()).assert_kept()


async def test_bare_pods_and_those_that_say_no_are_left_alone(api: Api, kant: Kant) -> None:
    await begin(api, 3)
    no = {"scheduling.kant.dev/preemptible": "false"}
    async with FakeKubelet(api), kant(profile=preempting()) as driver:
        await api.create_all(
            [make_pod("bare", 8), make_pod("no", 8, annotations=no), make_pod("yes", 8, annotations=YES)]
        )
        await until(api, lambda pods: len(bound(pods)) == 3)
        await api.create_all([high("high-0"), high("high-1")])
        pods = await until(
            api,
            lambda pods: (
                len(bound(pods)) == 3
                and sum(one.startswith("high") for one in bound(pods)) == 1
                and any(says(pods, f"high-{i}", "capacity") for i in range(2))
            ),
        )
        assert {"bare", "no"} < set(bound(pods)) and driver.counts.evicted == 1


async def test_whom_a_budget_protects_is_passed_over_until_it_allows_it(api: Api, kant: Kant) -> None:
    """A gang of two under a budget that allows one: nobody asks for its eviction, and another goes at once."""
    await begin(api, 2)
    await api.create(make_budget("careful", {"app": "db"}, 2))
    await api.allow("careful", 1)
    async with FakeKubelet(api), kant(profile=preempting()) as driver:
        db = make_gang("db", 2, 4, labels={"app": "db"}, annotations=YES)
        await api.create_all([*db, make_pod("web", 8, annotations=YES)])
        await until(api, lambda pods: all(pod["status"].get("phase") == "Running" for pod in pods))
        await holds(lambda: any(known.protected[1] for known in driver.workloads.by_job.values()))
        await api.create_all([high("high-0"), high("high-1")])
        pods = await until(api, lambda pods: len(pods) == 4 and any("high" in one for one in bound(pods)))
        await until(api, lambda pods: says(pods, "high-0", "capacity") or says(pods, "high-1", "capacity"))
        assert {"db-0", "db-1"} < set(bound(pods)) and driver.counts.evicted == 1
        await api.allow("careful", 2)
        await until(api, lambda pods: bound(pods) == ["high-0", "high-1"])
        assert driver.counts.evicted == 3 and not await events(api, "EvictionRefused")


async def test_victims_that_are_more_than_one_budget_allows_are_not_begun_to_be_evicted(api: Api, kant: Kant) -> None:
    """Each of two may go, but not both: nobody is evicted, and the next victims are others."""
    await begin(api, 2)
    await api.create(make_budget("careful", {"app": "db"}, 2))
    await api.allow("careful", 1)
    async with FakeKubelet(api), kant(profile=preempting()) as driver:
        dbs = [make_pod(f"db-{i}", 4, labels={"app": "db"}, annotations=YES) for i in range(2)]
        await api.create_all([*dbs, make_pod("web", 8, annotations=YES, priority_class="middle")])
        await until(api, lambda pods: all(pod["status"].get("phase") == "Running" for pod in pods))
        await api.create(high("high"))
        pods = await until(api, lambda pods: "high" in bound(pods) and len(pods) == 3)
        assert bound(pods) == ["db-0", "db-1", "high"] and driver.counts.evicted == 1
        assert await driver.notifier.recorder.drain(30)
        assert {event["regarding"]["name"] for event in await events(api, "EvictionRefused")} == {"db-0", "db-1"}


async def test_a_pod_whose_class_does_not_preempt_waits_and_holds_nobody_up(api: Api, kant: Kant) -> None:
    await begin(api, 1)
    await api.create(make_priority_class("polite", 1000, preempts=False))
    async with FakeKubelet(api), kant(profile=preempting()) as driver:
        await api.create(make_pod("low", 8, annotations=YES))
        await until(api, lambda pods: bound(pods) == ["low"])
        await api.create(make_pod("polite", 8, priority_class="polite"))
        await until(api, lambda pods: says(pods, "polite", "capacity"))
        assert driver.counts.evicted == 0
        await api.create(high("high"))
        await until(api, lambda pods: bound(pods) == ["high"])


async def test_a_budget_that_refuses_keeps_all_and_both_are_told(
    api: Api, kant: Kant, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the role does not let budgets be watched, the Eviction API alone says no."""
    monkeypatch.setattr(lost_places, "PROTECTED", 4.0)
    heard: list[str] = []
    monkeypatch.setattr(informers, "log_event", lambda log, text, *level: heard.append(text))
    await deputy_of_kant(api, but_for="policy")
    await begin(api, 1)
    await api.create(make_budget("careful", {"app": "db"}, 2))
    await api.allow("careful", 0)
    async with FakeKubelet(api), kant(profile=preempting(), user="deputy"):
        db = {"app": "db"}
        await api.create_all([make_pod("db-0", 4, labels=db, annotations=YES), make_pod("web", 4, annotations=YES)])
        pods = await until(api, lambda pods: len(bound(pods)) == 2)
        uids = {pod["metadata"]["uid"] for pod in pods}
        await api.create(high("high"))
        pods = await until(api, lambda pods: says(pods, "high", "disruption budget"))
        assert bound(pods) == ["db-0", "web"] and uids < {pod["metadata"]["uid"] for pod in pods}
        assert not any(pod["metadata"].get("deletionTimestamp") for pod in pods)
        await api.until(
            lambda found: (
                {e["regarding"]["name"] for e in found if e["reason"] == "EvictionRefused"} == {"db-0", "web"}
            ),
            "/apis/events.k8s.io/v1/events",
        )
        assert bound(pods) == ["db-0", "web"] and not await events(api, "Preempted")
        await api.allow("careful", 1)
        await until(api, lambda pods: bound(pods) == ["high"])
    assert len(heard) == 1 and "no permission to list poddisruptionbudgets.policy: add it to ClusterRole" in heard[0]


async def test_a_driver_killed_between_eviction_and_binding_evicts_nobody_else(api: Api, kant: Kant) -> None:
    gone = asyncio.Event()
    await begin(api, 2)
    async with FakeKubelet(api, stops=gone):
        async with kant(profile=preempting()):
            await api.create_all([make_pod(f"low-{i}", 8, annotations=YES) for i in range(2)])
            await until(api, lambda pods: len(bound(pods)) == 2)
            await api.create(high("high"))
            await until(api, lambda pods: sum(1 for p in pods if p["metadata"].get("deletionTimestamp")) == 1)
        async with kant(profile=preempting()) as driver:
            await holds(lambda: driver.counts.cycles > 0)
            gone.set()
            await until(api, lambda pods: "high" in bound(pods))
            await asyncio.sleep(0.5)
            assert driver.counts.evicted == 0 and len(bound(await api.list("pods"))) == 2


async def at_rest(api: Api, driver: KubeDriver) -> None:
    """Wait until nobody is leaving, and for a second nobody is evicted or bound; what was done has been told."""
    async with asyncio.timeout(PATIENCE_S):
        before, leave = (-1, -1), True
        while leave or before != (driver.counts.evicted, driver.counts.bound):
            before = driver.counts.evicted, driver.counts.bound
            await asyncio.sleep(1.0)
            leave = any(pod["metadata"].get("deletionTimestamp") for pod in await api.list("pods"))
    assert await driver.notifier.recorder.drain(PATIENCE_S)


async def test_no_two_rounds_undo_each_other(api: Api, kant: Kant) -> None:
    """Random arrivals of two priorities: whoever had to go made room for somebody who was bound there."""
    draw = random.Random(5)
    await begin(api, 4)
    async with (
        Auditor(api) as auditor,
        FakeKubelet(api, stop_s=0.1),
        ReplicaController(api, new_names=False) as jobs,
        kant(profile=preempting()) as driver,
    ):
        await jobs.run([pod for i in range(8) for pod in make_gang(f"base-{i}", 2, 2, annotations=YES)])
        await until(api, lambda pods: len(bound(pods)) == 16)
        winners = []
        for i in range(12):
            size, gpus = draw.choice([(1, 8), (2, 2), (1, 4), (2, 1)])
            above = draw.random() < 0.5
            run_s = draw.choice([None, 0.5])
            gang = make_gang(
                f"job-{i}", size, gpus, annotations=YES, priority_class="high" if above else "", run_s=run_s
            )
            if above:
                winners.append(f"job-{i}")
            await jobs.run(gang)
            await asyncio.sleep(draw.random() * 0.3)
        await at_rest(api, driver)
        told = await events(api, "Preempted")
        assert driver.counts.evicted == len(told) > 0
        by = {event["note"].split(" by default/")[1].split()[0].split("~")[0] for event in told}
        assert by <= set(winners)
        seen = {event["regarding"]["name"] for event in await events(api, "Scheduled")}
        assert all(any(one.startswith(f"{winner}-") for one in seen) for winner in by)
        (await auditor.report()).assert_kept()
