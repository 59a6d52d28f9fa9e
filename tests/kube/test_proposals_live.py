"""Moves that a solver proposes, on a real API server: by the Eviction API, and only of pods that allow it."""

from __future__ import annotations

import asyncio

from tests.kube.api import Api
from tests.kube.audit import Auditor
from tests.kube.kubelet import FakeKubelet, ReplicaController
from tests.kube.live import bound, profile, until
from tests.kube.objects import make_budget, make_gang, make_node
from tests.kube.running import Kant
from tests.patience import PATIENCE_S

from kant.kube.lead.driver import KubeDriver
from kant.live.solver import SolverTask, work_out

STAYS = {"scheduling.kant.dev/preemptible": "true"}
MOVABLE = STAYS | {"scheduling.kant.dev/movable": "true"}
TABLES = "[fallback]\nwait_s = 1\nevery_s = 1\nlimit_s = 0.2\n"


class Beside:
    """The solver, in a thread. `asked` counts its answers."""

    def __init__(self) -> None:
        self.asked = 0

    async def __call__(self, task: SolverTask) -> bytes:
        answer = await asyncio.to_thread(work_out, task)
        self.asked += 1
        return answer


async def two_halves(api: Api, jobs: ReplicaController) -> None:
    """Two nodes with four GPUs in use each, and a pod that wants a whole node. Only `a` may be moved."""
    await api.create_all([make_node("n0"), make_node("n1")])
    for name in "axby":
        await jobs.run(make_gang(name, 1, 4, annotations=MOVABLE if name == "a" else STAYS))
        await until(api, lambda pods, name=name: f"{name}-0" in bound(pods))  # type: ignore[misc]
    for name in "xy":
        jobs.forget(name)
        await api.delete(f"/api/v1/namespaces/default/pods/{name}-0", grace_s=0)
    await until(api, lambda pods: bound(pods) == ["a-0", "b-0"])


async def test_a_pod_that_allows_it_moves_for_one_that_waits_and_another_stays(api: Api, kant: Kant) -> None:
    solver = Beside()
    async with (
        Auditor(api), FakeKubelet(api), ReplicaController(api) as jobs,
        kant(profile=profile(TABLES), solver=solver) as driver,
    ):  # fmt: skip
        await two_halves(api, jobs)
        stays = next(pod["metadata"]["uid"] for pod in await api.list("pods") if pod["metadata"]["name"] == "b-0")
        await jobs.run(make_gang("wide", 1, 8))
        pods = await until(api, lambda pods: bound(pods) == ["a-0", "b-0", "wide-0"])
        assert stays in {pod["metadata"]["uid"] for pod in pods}, "it has not said that it may be moved"
        assert driver.counts.evicted == 1 and jobs.recreated == 1


async def test_a_budget_that_says_no_keeps_the_pod_and_the_other_waits_on(api: Api, kant: Kant) -> None:
    solver = Beside()
    async with (
        FakeKubelet(api), ReplicaController(api) as jobs,
        kant(profile=profile(TABLES), solver=solver) as driver,
    ):  # fmt: skip
        await two_halves(api, jobs)
        await api.create(make_budget("keep", {"scheduling.kant.dev/pod-group": "a"}, 1))
        await api.allow("keep", 0)
        await jobs.run(make_gang("wide", 1, 8))
        await asked(solver, driver)
        assert driver.counts.evicted == 0 and jobs.recreated == 0


async def asked(solver: Beside, driver: KubeDriver) -> None:
    """Until the solver has been asked twice more, and nothing is under way."""
    before = solver.asked
    async with asyncio.timeout(PATIENCE_S):
        while solver.asked < before + 3 or driver.steps.evictor.is_busy:
            await asyncio.sleep(0.05)
