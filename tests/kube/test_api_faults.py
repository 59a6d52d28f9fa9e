"""Kant behind a proxy that loses, delays, doubles and refuses requests and replies, and breaks watches.

KANT_FAULT_SEEDS=1,2,3 has other faults (1); each run goes on until it has seen KANT_FAULT_REQUESTS requests (600).
"""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter

import pytest
from tests.kube.api import Api, at_once
from tests.kube.audit import Auditor, summary
from tests.kube.control_plane import ControlPlane
from tests.kube.faults import Fault, FaultProxy
from tests.kube.kubelet import FakeKubelet, ReplicaController
from tests.kube.objects import Object, make_gang, make_node
from tests.kube.running import kant
from tests.kube.terms import Terms

SEEDS = [int(seed) for seed in os.environ.get("KANT_FAULT_SEEDS", "1").split(",")]
REQUESTS = int(os.environ.get("KANT_FAULT_REQUESTS", "600"))
WAVE = 250
"""Pods."""
RECOVERY_S = 3.0

FAULTS = [
    *(Fault(kind, 0.02) for kind in ("refuse", "drop", "duplicate")),
    Fault("delay", 0.03, seconds=0.5),
    *(Fault(code, 0.02, "create", seconds=0.2) for code in ("409", "429", "500")),
    *(Fault(code, 0.01, "create", after=True) for code in ("409", "500", "504")),
    *(Fault(code, 0.02, "list") for code in ("429", "500", "503")),
    Fault("410", 0.10, "watch"),
    Fault("close", 0.30, "watch", seconds=3.0),
    Fault("slow", 0.20, "watch", rate=200_000),
]


def mixture(count: int, rng: random.Random, first: int) -> list[list[Object]]:
    gangs: list[list[Object]] = []
    while count:
        size = min(rng.choice((1, 1, 1, 4, 8, 32)), count)
        name = f"gang-{first + len(gangs)}"
        gangs.append(make_gang(name, size, rng.choice((1, 2, 4) if size < 32 else (1,))))
        count -= size
    return gangs


def runs(pod: Object) -> bool:
    return pod["status"].get("phase") != "Succeeded"


async def end(api: Api, pod: Object) -> None:
    """As the kubelet says of a pod that has done its work; all of its gang has begun."""
    path = f"/api/v1/namespaces/default/pods/{pod['metadata']['name']}/status"
    await api.patch(path, {"metadata": {"uid": pod["metadata"]["uid"]}, "status": {"phase": "Succeeded"}})


@pytest.mark.parametrize("seed", SEEDS)
async def test_nothing_is_half_or_twice_or_lost_whatever_becomes_of_requests(plane: ControlPlane, seed: int) -> None:
    rng = random.Random(seed)
    async with Api(plane) as api:
        await api.create_all([make_node(f"n{i}") for i in range(150)])
        async with (
            FakeKubelet(api),
            ReplicaController(api) as jobs,
            Auditor(api) as auditor,
            Terms(api) as terms,
            FaultProxy(plane, FAULTS, seed=seed) as proxy,
            kant(plane, server=proxy.url, recovery=RECOVERY_S) as driver,
        ):
            gangs, ran = 0, 0
            while proxy.count() < REQUESTS:
                wave = mixture(WAVE, rng, gangs)
                gangs, ran = gangs + len(wave), ran + WAVE
                await jobs.run([pod for gang in wave for pod in gang])
                if rng.random() < 0.5:
                    async with proxy.outage():
                        await asyncio.sleep(rng.uniform(0.1, 1.0))
                await terms.none_waits()
                await at_once(end(api, pod) for pod in await api.list("pods") if runs(pod))
            report = await auditor.report()
            injected = Counter(proxy.injected)
        print(summary(report), proxy.count(), "requests", dict(injected), driver.counts)
        report.assert_kept(all_bound=True)
        assert report.bound == ran + jobs.recreated
        assert injected.total() > REQUESTS / 20
