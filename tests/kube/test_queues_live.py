"""Queues on a real API server: quota, borrowing, lending, limits of users, states, changes while jobs run; gates."""

from __future__ import annotations

import asyncio
import re
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import pytest
from tests.kube.api import Api, RefusedError
from tests.kube.kubelet import FakeKubelet
from tests.kube.live import (
    GATE,
    bound,
    change,
    condition,
    gates,
    install,
    of_queue,
    profile,
    queue,
    says,
    seen,
    status,
    until,
    waiting,
)
from tests.kube.objects import Object, make_gang, make_node, make_pod
from tests.kube.running import Kant
from tests.patience import PATIENCE_S

from kant.cli.eta import eta
from kant.cli.why import why
from kant.kube.follow import informers


def pods_of(queue: str, count: int, gpus: int = 1, **more: object) -> list[Object]:
    return [make_pod(f"{queue}-{i}", gpus, labels=of_queue(queue), **more) for i in range(count)]  # type: ignore[arg-type]


async def test_a_pod_over_quota_keeps_its_gate_and_is_not_called_unschedulable(api: Api, kant: Kant) -> None:
    await api.create(make_node("n0"))
    await api.apply([queue("a", 3), queue("b", 1)])
    gate = [{"name": GATE}]
    async with kant():
        await api.create_all(pods_of("a", 3, schedulingGates=gate))
        pods = await until(api, lambda pods: len(bound(pods)) == 3)
        assert not any(pod["spec"].get("schedulingGates") for pod in pods)
        await api.create(make_pod("more", 1, labels=of_queue("a"), schedulingGates=gate))
        await api.create(make_pod("never", 2, labels=of_queue("b"), schedulingGates=gate))
        pods = await until(api, lambda pods: says(pods, "more", "quota") and says(pods, "never", "quota"))
        for pod in pods:
            if not pod["spec"].get("nodeName"):
                assert condition(pod)["reason"] == "Queued" and gates([pod], pod["metadata"]["name"]) == [GATE]
        await api.create(make_pod("theirs", 5, scheduler="somebody", node="n0"))
        await change(api, "queues", "a", quotas=[{"resource": "gpu", "nominal": 5}])
        # now it lacks nothing but capacity: autoscalers may look at it
        pods = await until(api, lambda pods: says(pods, "more", "capacity") and not gates(pods, "more"))
        assert next(condition(p) for p in pods if p["metadata"]["name"] == "more")["reason"] == "Unschedulable"
        assert gates(pods, "never") == [GATE]
        await api.delete("/api/v1/namespaces/default/pods/theirs", grace_s=0)
        await until(api, lambda pods: "more" in bound(pods))


async def test_every_pod_says_why_it_waits_and_again_when_the_reason_is_another(
    api: Api, kant: Kant, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    await api.create_all([make_node("n0", 4), make_pod("theirs", 2, scheduler="somebody", node="n0")])
    await api.apply([queue("a", 2)])
    async with kant() as driver:
        await api.create_all(pods_of("a", 2))
        await until(api, lambda pods: len(bound(pods)) == 3)
        gate = [{"name": GATE}]
        late = [make_pod(f"late-{i}", labels=of_queue("a"), schedulingGates=gate) for i in range(3)]
        await api.create_all(late)
        await until(api, lambda pods: all(says(pods, f"late-{i}", "over quota") for i in range(3)))
        await seen(driver, "n0", await api.patch("/api/v1/nodes/n0", {"spec": {"unschedulable": True}}))
        for one in ("a-0", "a-1"):  # the quota is free now, and no queue has changed
            await api.delete(f"/api/v1/namespaces/default/pods/{one}", grace_s=0)
        pods = await until(
            api,
            lambda pods: all(says(pods, f"late-{i}", "capacity") and not gates(pods, f"late-{i}") for i in range(3)),
        )
        assert {condition(pod)["reason"] for pod in pods if "late" in pod["metadata"]["name"]} == {"Unschedulable"}
        await api.patch("/api/v1/nodes/n0", {"spec": {"unschedulable": False}})
        await until(
            api, lambda pods: len(bound(pods)) == 3 and sum(says(pods, f"late-{i}", "quota") for i in range(3)) == 1
        )
    (journal,) = tmp_path.glob("*.jsonl")
    eta(str(journal))
    today = datetime.now(UTC)
    assert re.search(
        rf"Expected starts as of {today.year}-{today.month:02}-\d\d \d\d:\d\d:\d\dZ", capsys.readouterr().out
    )
    job = next(job for job in (f"default/late-{i}" for i in range(3)) if "it waits: " in _why(job, journal, capsys))
    assert f"{job}: over quota" in _why(job, journal, capsys)


def _why(job: str, journal: Path, capsys: pytest.CaptureFixture[str]) -> str:
    why(job, journal)
    text = capsys.readouterr().out
    return text if "it does not wait" in text else f"it waits: {text}"


async def test_gates_of_others_hold_a_pod_and_a_gang_until_they_go(api: Api, kant: Kant) -> None:
    await api.create(make_node("n0"))
    gates = [{"name": GATE}, {"name": "example.com/license"}]
    async with kant():
        first, second = make_gang("gang", 2)
        first["spec"]["schedulingGates"] = gates[1:]
        await api.create_all([make_pod("single", schedulingGates=gates), first, second])
        of_others = "non-empty scheduling gates"  # the API server says so
        said = {"gang-1": "gate of another controller", "single": of_others, "gang-0": of_others}
        await until(api, lambda pods: all(says(pods, one, words) for one, words in said.items()))
        for one in ("gang-0", "single"):
            left = [{"name": GATE}] if one == "single" else None
            await api.patch(f"/api/v1/namespaces/default/pods/{one}", {"spec": {"schedulingGates": left}})
        await until(api, lambda pods: len(bound(pods)) == 3)


async def test_no_pod_starts_before_the_queue_is_seen_whose_kind_was_installed_just_before(
    api: Api, kant: Kant, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though nobody would look for the kind by himself; and pods that come while it is looked for end nothing."""
    monkeypatch.setattr(informers, "INSTALLED", 1e9)
    monkeypatch.setattr(informers, "OWN_INSTALLED", 1e9)
    path = "/apis/scheduling.kant.dev/v1alpha1/queues"
    look = informers.Informers._add

    async def looked_at_as_a_pod_comes(follower: informers.Informers, kind: str) -> bool:
        found = await look(follower, kind)
        if found:
            follower._asked += 1
            follower._ask.set()
        return found

    monkeypatch.setattr(informers.Informers, "_add", looked_at_as_a_pod_comes)
    await api.delete("/apis/apiextensions.k8s.io/v1/customresourcedefinitions/queues.scheduling.kant.dev")
    async with asyncio.timeout(PATIENCE_S):
        with suppress(RefusedError):
            while True:
                await api.list(path)
                await asyncio.sleep(0.05)
    await api.create(make_node("n0"))
    async with kant():
        await api.create(make_pod("free", 1))
        await until(api, lambda pods: bound(pods) == ["free"])
        await install(api)
        await api.apply([queue("team", 1)])
        await api.create_all(pods_of("team", 3))
        await until(api, lambda pods: len(bound(pods)) == sum(says(pods, f"team-{i}", "quota") for i in range(3)) == 2)


async def test_borrowing_lending_and_limits_of_users(api: Api, kant: Kant) -> None:
    await api.create_all([make_node(f"n{i}") for i in range(2)])
    await api.namespace("other")
    await api.apply(
        [
            queue("org", 0),
            queue("a", 4, parent="org", quota={"borrowingLimit": 2}),
            queue("b", 8, parent="org", quota={"lendingLimit": 3}),
            queue("c", 4, quota={"userLimit": 3}),
        ]
    )
    async with kant():
        await api.create_all([*pods_of("a", 8), *pods_of("c", 4)])
        pods = await until(
            api,
            lambda pods: (
                len(bound(pods)) == 9 and len([p for p in pods if "borrow" in condition(p).get("message", "")]) == 2
            ),
        )
        assert sum(one.startswith("a-") for one in bound(pods)) == 6  # 4 of its own, 2 of those that b lends
        assert sum(one.startswith("c-") for one in bound(pods)) == 3  # the other is of the same user
        await api.create(make_pod("c-other", labels=of_queue("c"), namespace="other"))
        await until(api, lambda pods: "c-other" in bound(pods))
        await change(api, "queues", "a", quotas=[{"resource": "gpu", "nominal": 4, "borrowingLimit": 8}])
        pods = await until(api, lambda pods: sum(one.startswith("a-") for one in bound(pods)) == 7)
        await change(api, "queues", "c", quotas=[{"resource": "gpu", "nominal": 5}])
        await until(api, lambda pods: sum(one.startswith("c-") for one in bound(pods)) == 5)


async def test_a_lender_takes_back_what_it_has_lent(api: Api, kant: Kant) -> None:
    await api.create(make_node("n0"))
    await api.apply([queue("org", 0), queue("a", 4, parent="org"), queue("b", 4, parent="org")])
    yes = {"scheduling.kant.dev/preemptible": "true"}

    text = '[preemption]\nreclaim = "nominal"\nmin_run_s = 0\n'
    async with FakeKubelet(api), kant(profile=profile(text)):
        await api.create_all(pods_of("a", 8, annotations=yes))
        await until(api, lambda pods: len(bound(pods)) == 8)
        await api.create_all(make_gang("b", 3, labels=of_queue("b")))
        pods = await until(api, lambda pods: sum(one.startswith("b-") for one in bound(pods)) == 3)
        assert len(bound(pods)) == 8
        told = await api.until(
            lambda found: sum(e["reason"] == "Preempted" for e in found) == 3, "/apis/events.k8s.io/v1/events"
        )
        assert all("returns borrowed quota, for default/b" in e["note"] for e in told if e["reason"] == "Preempted")


@pytest.mark.parametrize(
    ("state", "runs_on", "starts", "accepts"),
    [("hold", True, False, False), ("stop", False, False, False), ("drain", True, True, False)],
)
async def test_states_of_a_queue(api: Api, kant: Kant, state: str, runs_on: bool, starts: bool, accepts: bool) -> None:
    await api.create(make_node("n0"))
    await api.apply([queue("a", 2)])
    async with FakeKubelet(api), kant():
        await api.create_all(pods_of("a", 2))
        await until(api, lambda pods: bound(pods) == ["a-0", "a-1"])
        await api.create(make_pod("waits", labels=of_queue("a")))
        await until(api, lambda pods: says(pods, "waits", "quota"))
        await change(api, "queues", "a", state=state)
        if runs_on:
            await status(api, "queues", "a", lambda s: s.get("observedGeneration") == 2)
            await api.delete("/api/v1/namespaces/default/pods/a-1", grace_s=0)
            await api.create(make_pod("late", labels=of_queue("a")))
            word = "is on hold" if state == "hold" else "drains"
            pods = await until(api, lambda pods: says(pods, "late", word) and ("waits" in bound(pods)) == starts)
            assert bound(pods) == (["a-0", "waits"] if starts else ["a-0"])
        else:
            pods = await until(api, lambda pods: not bound(pods) and says(pods, "waits", "stopped"))
            assert waiting(pods) == ["waits"]
        await change(api, "queues", "a", state="open", quotas=[{"resource": "gpu", "nominal": 8}])
        await until(api, lambda pods: not waiting(pods))


async def test_a_queue_that_is_not_there_and_comes(api: Api, kant: Kant) -> None:
    await api.create(make_node("n0"))
    await api.apply([queue("a", 2)])
    async with kant():
        await api.create_all([make_pod("early", labels=of_queue("b")), make_pod("right", labels=of_queue("a"))])
        pods = await until(api, lambda pods: says(pods, "early", "queue b does not exist") and bound(pods) == ["right"])
        assert condition(next(p for p in pods if p["metadata"]["name"] == "early"))["reason"] == "Queued"
        await api.apply([queue("b", 2)])
        await until(api, lambda pods: len(bound(pods)) == 2)
        await api.delete("/apis/scheduling.kant.dev/v1alpha1/queues/b")
        await api.create(make_pod("late", labels=of_queue("b")))
        await until(api, lambda pods: says(pods, "late", "queue b does not exist"))


async def test_the_status_of_queues(api: Api, kant: Kant) -> None:
    await api.create(make_node("n0", labels={"nvidia.com/gpu.product": "H100"}))
    await api.apply(
        [
            queue("org"),
            queue("a", 3, parent="org", quota={"model": "H100"}),
            queue("lost", 1, parent="nowhere", quota={"model": "H100"}),
            queue("wrong", 1, minRun="1000000000w"),
        ]
    )
    async with kant() as driver:
        await api.create_all(pods_of("a", 4))
        await until(api, lambda pods: len(bound(pods)) == 3)
        found = await status(api, "queues", "org", lambda s: s.get("waiting") == 1 and s.get("running") == 3)
        used = {(one["resource"], one["model"]): one["amount"] for one in found["used"]}
        assert used == {("gpu", ""): "3", ("gpu", "H100"): "3", ("cpu", ""): "3", ("memory", ""): "3072Mi"}
        (ready,) = found["conditions"]
        assert (ready["type"], ready["status"], ready["reason"]) == ("Ready", "True", "Accepted")
        assert found["observedGeneration"] == 1
        found = await status(api, "queues", "lost", lambda s: s["conditions"][0]["status"] == "False")
        assert "spec.parent: expected the name of another queue, got 'nowhere'" in found["conditions"][0]["message"]
        found = await status(api, "queues", "wrong", lambda s: s["conditions"][0]["status"] == "False")
        assert "minRun" in found["conditions"][0]["message"]
        await status(api, "queues", "a", lambda s: s.get("waiting") == 1 and s.get("running") == 3)
        builds, written = driver.counts.builds, driver.statuses.written
        await asyncio.sleep(2.5)
        assert driver.statuses.written == written  # nothing has changed, and nothing is written
        await change(api, "queues", "lost", parent="org")
        found = await status(api, "queues", "lost", lambda s: s["conditions"][0]["status"] == "True")
        assert found["observedGeneration"] == 2
        await change(api, "queues", "wrong", minRun="1h")
        await status(api, "queues", "wrong", lambda s: s["conditions"][0]["status"] == "True")
        assert driver.counts.builds == builds
