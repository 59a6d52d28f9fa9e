"""Who stands by keeps a state, and knows what the last leader has bound when it leads."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any
from unittest.mock import Mock, call

import pytest
from tests.kube import virtual
from tests.kube.api import Api
from tests.kube.control_plane import ControlPlane
from tests.kube.objects import make_gang, make_node, make_pod
from tests.kube.running import warm_once
from tests.kube.test_driver import bound, until

from kant.kube.connect.client import ApiClient
from kant.kube.connect.config import load
from kant.kube.lead import driver as leader
from kant.kube.lead.driver import KubeDriver
from kant.kube.lead.settings import DriverSettings
from kant.kube.lead.standby import Standby
from kant.kube.notify.recorder import EventRecorder
from kant.live.journals import Journals
from kant.scheduler.profile import builtin_profile
from kant.sim.replay import replay


class Fake:
    """A driver that does nothing but say what has become of it."""

    def __init__(self) -> None:
        self.led = self.ended = False
        self.breaks = asyncio.Event()

    async def run(self, led: asyncio.Event) -> None:
        broken = asyncio.create_task(self.breaks.wait())
        try:
            await asyncio.wait({broken, asyncio.create_task(led.wait())}, return_when=asyncio.FIRST_COMPLETED)
            self.led = not self.breaks.is_set()
            await broken
            raise RuntimeError("broken")
        finally:
            self.ended = True


@virtual.timed
async def test_a_driver_stands_by_from_the_first_another_one_if_it_has_ended_and_is_taken_at_the_election() -> None:
    made: list[Fake] = []

    def make() -> Any:
        made.append(Fake())
        return made[-1]

    election: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    async with Standby(make) as standby:
        waiting = asyncio.create_task(standby.until(election))
        await asyncio.sleep(0.5)
        assert len(made) == 1 and not made[0].led
        made[0].breaks.set()
        await asyncio.sleep(2.0)
        assert [fake.ended for fake in made] == [True, False]
        election.set_result("token")
        assert await waiting == "token"
        ready = await standby.take()
        assert ready.driver is made[1] and not made[1].led  # type: ignore[comparison-overlap]
        ready.led.set()
        await asyncio.sleep(0.5)
        assert made[1].led and not made[0].led
        fresh = await standby.take()
        assert len(made) == 3
        await ready.drop()
        await fresh.drop()


@asynccontextmanager
async def standing_by(
    plane: ControlPlane, led: asyncio.Event, journals: Journals | None = None
) -> AsyncIterator[KubeDriver]:
    settings = DriverSettings(builtin_profile("kant"), journals, recovery=1.0)
    warm_once(settings.profile.text)
    async with ApiClient(load(plane.kubeconfig("admin"))) as client:
        driver = KubeDriver(client, settings, EventRecorder(client, "test"))
        task = asyncio.create_task(driver.run(led))
        try:
            await until(lambda: driver.core is not None or task.done())
            yield driver
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


async def test_a_state_that_was_made_ready_is_led_with_and_takes_in_what_has_changed_since(
    api: Api, plane: ControlPlane, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def bind(api: Api, pod: str, node: str) -> None:
        target = {"apiVersion": "v1", "kind": "Node", "name": node}
        body = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": pod}, "target": target}
        await api.call("POST", f"/api/v1/namespaces/default/pods/{pod}/binding", body)

    led, collector = asyncio.Event(), Mock(spec=gc)
    monkeypatch.setattr(leader, "gc", collector)
    await api.create_all([make_node("n0"), make_node("n2"), make_pod("ends", 8, node="n0")])
    await api.create_all([make_pod("first", 8), make_pod("second", 1), *make_gang("gang", 2, 8)])
    await bind(api, "gang-0", "n2")  # by the last leader, as of a gang one pod of two
    async with standing_by(plane, led, Journals(tmp_path)) as driver:
        assert driver.counts.builds == 1 and not list(tmp_path.glob("*.jsonl"))
        await asyncio.sleep(1.5)  # longer than a gang may be in part
        await api.create_all([make_node(f"n{i}") for i in (1, 3)])
        await api.delete("/api/v1/namespaces/default/pods/ends", grace_s=0)
        take, held = driver.informers.pods._take, list[bytes]()
        driver.informers.pods._take = held.append  # type: ignore[method-assign]
        await bind(api, "first", "n0")
        led.set()
        await asyncio.sleep(1.0)
        assert not driver.counts.cycles, "the watch has not said yet what the last leader bound"
        driver.informers.pods._take = take  # type: ignore[method-assign]
        for line in held:
            take(line)
        pods = await api.until(lambda pods: len(bound(pods)) == 4)
        where = {pod["metadata"]["name"]: pod["spec"]["nodeName"] for pod in pods}
        assert where["first"] == "n0" and where["gang-0"] == "n2" and len(set(where.values())) == 4
        assert driver.counts.builds == 1, "the state that there was goes on"
        driver.take_profile(driver.settings.profile)
        await until(lambda: driver.counts.builds == 2)
    assert collector.method_calls[-1] == call.unfreeze(), "what a leader leaves behind is garbage"
    journals = list(tmp_path.glob("*.jsonl"))
    assert len(journals) == 2 and all(replay(journal).equal for journal in journals)
