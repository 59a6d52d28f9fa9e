"""Pods that only ask: each is answered once, namespaces in turn, and whatever they say the leader goes on."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace
from tests.patience import PATIENCE_S

from kant.insight.expected_start import StartForecast
from kant.insight.moment import Moment
from kant.kube.act.gates import asks
from kant.kube.lead import trials
from kant.kube.objects.names import TEST_GATE, TEST_ONLY, TEST_PODS
from kant.kube.objects.views import Condition, Gate, Meta, Pod, PodSpec, PodStatus
from kant.live.core import Core
from kant.model.errors import InputError
from kant.scheduler.profile import builtin_profile
from kant.sim.forecast_starts import forecast_starts
from kant.testing import make_cluster, make_job


def asking(space: str, number: int, pods: str = "1", answered: str = "", gate: str = TEST_GATE) -> Pod:
    meta = Meta(name=f"p{number}", namespace=space, uid=f"{space}{number}", annotations={TEST_PODS: pods})
    conditions = (Condition(type="PodScheduled", status="False", reason=answered),) if answered else ()
    return Pod(meta, PodSpec(scheduling_gates=(Gate(gate),)), PodStatus(conditions=conditions))


def answered(*pods: Pod, gone: str = "") -> dict[str, str]:
    """What each pod is told, in the order in which they are; the pod `gone` has left meanwhile."""
    told: dict[str, str] = {}
    by_uid = {pod.metadata.uid: pod for pod in pods}

    def job(core: Core, ref: object, own: list[Pod]) -> Any:
        if own[0].metadata.name == "p9":
            raise InputError("pod p9", "GPUs in whole numbers", "x")
        return SimpleNamespace(job=make_job(own[0].metadata.name, 2))

    async def forecaster(moment: Moment) -> StartForecast:
        assert moment.trial is not None
        found = forecast_starts(moment, moment.trial.id)
        return replace(found, jobs={}) if moment.trial.pods == 7 else found

    async def story() -> None:
        core = Core(make_cluster(8), builtin_profile("kant"), clock=lambda: 0.0)
        core.settled()
        mirror = SimpleNamespace(pods={uid: pod for uid, pod in by_uid.items() if uid != gone})
        translation: Any = SimpleNamespace(is_ours=lambda pod: True, mirror=mirror, job=job)
        notifier: Any = SimpleNamespace(answers=lambda uid, text, reason: told.setdefault(uid, text))
        own = trials.Trials(translation, notifier, forecaster, lambda: core)
        own.look(by_uid)
        work = asyncio.create_task(own.run())
        ask = [pod for uid, pod in by_uid.items() if uid != gone and asks(pod) and not pod.status.conditions]
        async with asyncio.timeout(PATIENCE_S):
            while len(told) < len(ask):
                assert not work.done(), work
                await asyncio.sleep(0.001)
        await asyncio.sleep(0.01)  # nobody else is answered
        assert not work.done(), work
        work.cancel()

    asyncio.run(story())
    return told


@pytest.fixture(autouse=True)
def restless(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trials, "REST", 0.0)


def test_namespaces_are_answered_in_turn_and_only_who_asks_and_is_there() -> None:
    crowd = [asking("a", number) for number in range(4)]
    others = (
        asking("b", 0),
        asking("c", 0),
        asking("c", 1, answered=TEST_ONLY),
        asking("d", 0, gate="example.com/other"),
    )
    assert list(answered(*crowd, *others, gone="a2")) == ["a0", "b0", "c0", "a1", "a3"]


@pytest.mark.parametrize("pods", ["0", "-1", "many", "10001", "9" * 5000, "", "1.5", "²"])
def test_what_is_no_number_of_pods_is_told_and_the_next_is_answered(pods: str) -> None:
    told = answered(asking("a", 0, pods), asking("b", 0, "4"))
    assert told["a0"].startswith(f"annotation {TEST_PODS}: expected a number of pods from 1 to 10,000")
    assert told["b0"].startswith("P50 ")


def test_a_pod_that_makes_no_job_or_that_no_forecast_has_is_told_why() -> None:
    told = answered(asking("a", 9), asking("b", 0, "7"), asking("c", 0, "5"))
    assert told["a9"] == "pod p9: expected GPUs in whole numbers, got 'x'"
    assert told["b0"] == "the job: expected one that can start with the cluster and its queues as they are"
    assert told["c0"].startswith("P50 never, P90 never; number 1 of 1")
