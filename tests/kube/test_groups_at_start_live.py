"""A new leader on a real API server: it knows the groups of all pods before it decides."""

from __future__ import annotations

import asyncio

import pytest
from tests.kube.api import Api
from tests.kube.control_plane import ControlPlane
from tests.kube.faults import Fault, FaultProxy
from tests.kube.kubelet import FakeKubelet
from tests.kube.live import bound, install_kind, kind, profile, says, until
from tests.kube.objects import make_node, make_pod
from tests.kube.running import Kant
from tests.kube.test_ordered_starts_live import JOBSET, create, drop, of_jobset, replicated, template
from tests.patience import until as until_so

from kant.cluster.columns import J_STARTED, J_SUBMIT
from kant.kube.follow import informers

GANG = ["old-w-0", "old-w-1", "old-w-2"]


async def make_jobset(api: Api, name: str) -> None:
    await install_kind(api, kind(*JOBSET))
    await create(api, JOBSET, name, replicatedJobs=[replicated("w", template(), 3)])
    await api.create_all([of_jobset(name, "w", index, template()) for index in range(3)])


async def test_a_gang_whose_object_has_to_be_read_keeps_its_age_and_its_start(api: Api, kant: Kant) -> None:
    """Neither a single pod that came later goes first, nor does the run of the gang begin anew."""
    await api.create(make_node("n0", 4))
    await make_jobset(api, "old")
    await asyncio.sleep(1.1)  # the API server notes creations in whole seconds
    await api.create(make_pod("young", 4))
    async with FakeKubelet(api), kant(profile=profile()):
        await until(api, lambda pods: bound(pods) == GANG and says(pods, "young", "fit now"))
    await asyncio.sleep(1.1)
    async with kant(profile=profile()) as driver:
        await until_so(lambda: driver.core is not None and "default/old" in driver.core.state.rows)
        assert driver.core is not None
        core = driver.core
        row = core.state.jobs[core.state.rows["default/old"]]
        pods = {pod.metadata.name: pod for pod in driver.mirror.pods.values()}
        since = driver.translation.bound_at([pods[name] for name in GANG])
        assert (row[J_SUBMIT], row[J_STARTED]) == (0, since)
    await drop(api, JOBSET, "old")


async def test_a_group_that_cannot_be_read_for_a_while_is_asked_for_once_a_second(
    api: Api, plane: ControlPlane, kant: Kant, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(informers, "GROUPS", 0.5)
    await api.create(make_node("n0", 4))
    await make_jobset(api, "old")
    async with FaultProxy(plane, [Fault("503", verb="get", resource="jobsets")]) as proxy, kant(server=proxy.url):
        await until_so(lambda: proxy.count("get", "jobsets") >= 4)
        refused = proxy.injected["503"]
        proxy.faults.clear()
        await until(api, lambda pods: bound(pods) == GANG)
        assert proxy.count("get", "jobsets") <= refused + 2
    await drop(api, JOBSET, "old")
