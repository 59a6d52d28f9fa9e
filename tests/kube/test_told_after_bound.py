"""A leader sends what it binds before it tells pods why they wait."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

from benchmarks.kubernetes_churn import LABEL, WAITING
from benchmarks.kubernetes_load import pod
from benchmarks.kubernetes_turns import Cost, Rig, standing_clock

from kant.kube.notify.reasons import AFRESH, Reasons


async def test_reasons_that_are_told_again_come_after_the_binding_of_the_same_turn() -> None:
    """A flapping node changes the reason of all that wait. Their conditions went before a binding of the same turn."""
    with standing_clock() as clock:
        rig, cost, asked = Rig(4, 4, counting=False), Cost(), list[str]()
        driver, bind = rig.driver, rig.client.bind
        core = driver.core
        assert core is not None
        core.clock = lambda: clock.now
        answered = asyncio.Event()

        async def binds(*args: Any, **options: Any) -> None:
            asked.append("bind")
            await answered.wait()
            await bind(*args, **options)

        async def call(method: str, *_: object, **__: object) -> bytes:
            asked.append(method)
            return b""

        client: Any = rig.client
        client.bind, client.call = binds, call
        driver.notifier.recorder.workers = 32
        tasks = [asyncio.create_task(run()) for run in (driver.effects.run, driver.notifier.recorder.run)]

        async def settled(until: Callable[[], bool]) -> None:
            for _ in range(200):
                if until():
                    return
                await asyncio.sleep(0)
            raise AssertionError(asked)

        for node in ("node-00002", "node-00003"):
            labels = rig._objects[node]["metadata"]["labels"] | {LABEL: "blue"}
            await rig._told(cost, "MODIFIED", node, metadata={"labels": labels})
        await settled(lambda: asked.count("PATCH") == WAITING)
        asked.clear()
        clock.now += AFRESH + 1
        with patch.object(driver, "turn"):  # both lines come before the next turn
            await rig._told(cost, "MODIFIED", "node-00003", spec={"unschedulable": True})
        rig._made("comes", pod("comes", "kant"))
        with patch.object(Reasons, "_answer") as found_out:
            await rig._told(cost, "ADDED", "comes")
        assert not found_out.called, "the binding would be sent after that"
        await settled(lambda: bool(asked))
        assert asked == ["bind"]
        answered.set()
        await settled(lambda: driver._awake.is_set())
        await rig._turn()
        await settled(lambda: asked.count("PATCH") == WAITING)
        for task in tasks:
            task.cancel()
