"""The watch may tell of a binding before its own answer comes: nobody is forgotten for that."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.kube.api import Api
from tests.kube.control_plane import ControlPlane
from tests.kube.live import bound, perform, says, until
from tests.kube.objects import make_gang, make_node
from tests.kube.running import kant


def test_pods_beyond_the_minimum_follow_though_the_answers_come_late(
    plane: ControlPlane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(api: Api) -> None:
        await api.create(make_node("n0", 4))
        async with kant(plane, journal=tmp_path) as driver:
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

    perform(plane, story, tmp_path)
