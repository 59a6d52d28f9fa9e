"""The watch may tell of a binding before its own answer comes: nobody is forgotten for that."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.kube.api import Api
from tests.kube.live import bound, says, until
from tests.kube.objects import make_gang, make_node
from tests.kube.running import Kant


async def test_pods_beyond_the_minimum_follow_though_the_answers_come_late(
    api: Api, kant: Kant, monkeypatch: pytest.MonkeyPatch
) -> None:
    await api.create(make_node("n0", 4))
    async with kant() as driver:
        bind, heard = driver.client.bind, asyncio.Event()

        async def late(*words: Any, **options: Any) -> None:
            await bind(*words, **options)
            await heard.wait()

        monkeypatch.setattr(driver.client, "bind", late)
        await api.create_all(make_gang("g", 5, 1, least=3))
        await until(api, lambda pods: len(bound(pods)) >= 3)
        while sum(bool(pod.spec.node_name) for pod in driver.mirror.pods.values()) < 3 or driver.mirror.touched:
            await asyncio.sleep(0.01)
        heard.set()
        await until(api, lambda pods: len(bound(pods)) == 4 and says(pods, "g-4", "fit now"))
