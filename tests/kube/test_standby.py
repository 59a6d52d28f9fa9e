"""Who stands by makes a state ready when the leader is silent, and knows what that one has bound when it leads."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from tests.kube.api import Api
from tests.kube.control_plane import ControlPlane
from tests.kube.objects import make_node, make_pod
from tests.kube.running import warm_once
from tests.kube.test_driver import bound, play, until

from kant.kube.connect.client import ApiClient
from kant.kube.connect.config import load
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

    async def run(self, led: asyncio.Event) -> None:
        try:
            await led.wait()
            self.led = True
            await asyncio.Event().wait()
        finally:
            self.ended = True


def test_a_driver_is_made_when_the_leader_is_silent_dropped_when_it_is_heard_and_taken_at_the_election() -> None:
    made: list[Fake] = []
    silence = 0.0

    def make() -> Any:
        made.append(Fake())
        return made[-1]

    async def settle(enough: Any) -> None:
        async with asyncio.timeout(30):
            while not enough():
                await asyncio.sleep(0.01)

    async def story() -> None:
        nonlocal silence
        election: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        async with Standby(make, lambda: silence, 5.0) as standby:
            waiting = asyncio.create_task(standby.until(election))
            await asyncio.sleep(0.6)
            assert not made
            silence = 6.0
            await settle(lambda: len(made) == 1)
            silence = 0.5
            await settle(lambda: made[0].ended)
            silence = float("inf")
            await settle(lambda: len(made) == 2)
            election.set_result("token")
            assert await waiting == "token"
            ready = await standby.take()
            assert ready.driver is made[1] and not made[1].led  # type: ignore[comparison-overlap]
            ready.led.set()
            await settle(lambda: made[1].led)
            assert len(made) == 2 and not made[0].led
            fresh = await standby.take()
            assert len(made) == 3
            await ready.drop()
            await fresh.drop()

    asyncio.run(story())


@asynccontextmanager
async def standing_by(
    plane: ControlPlane, led: asyncio.Event, journals: Journals | None = None
) -> AsyncIterator[KubeDriver]:
    settings = DriverSettings(builtin_profile("kant"), journals)
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


@pytest.mark.parametrize("binds", [False, True])
def test_a_state_that_is_made_ready_is_led_with_unless_the_last_leader_bound_more_since(
    plane: ControlPlane, binds: bool, tmp_path: Any
) -> None:
    async def story(api: Api) -> None:
        led = asyncio.Event()
        await api.create_all([make_node("n0"), make_pod("first", 8), make_pod("second", 1)])
        async with standing_by(plane, led, Journals(tmp_path)) as driver:
            assert driver.counts.builds == 1 and not list(tmp_path.glob("*.jsonl"))
            await api.create(make_node("n1"))
            if binds:  # the last leader, whose binding is on its way to us
                target = {"apiVersion": "v1", "kind": "Node", "name": "n0"}
                body = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "first"}, "target": target}
                await api.call("POST", "/api/v1/namespaces/default/pods/first/binding", body)
            assert len(bound(await api.list("pods"))) == int(binds)
            led.set()
            pods = await api.until(lambda pods: len(bound(pods)) == 2)
            assert len({pod["spec"]["nodeName"] for pod in pods}) == 2
            assert driver.counts.builds == 1 + int(binds)
        (journal,) = tmp_path.glob("*.jsonl")
        assert replay(journal).equal

    play(plane, story)
