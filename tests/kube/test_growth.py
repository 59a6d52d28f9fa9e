"""A leader that runs for months does not grow: what it holds depends on what there is, not on what ever was.

All that can be reached from the driver is counted, so a table that somebody adds later is counted too.
"""

from __future__ import annotations

import asyncio
import gc
import types
from array import array
from collections import Counter, deque
from functools import partial
from unittest.mock import patch

import numpy as np
import pytest
from benchmarks.kubernetes_turns import Cost, Rig

from kant.insight.past_jobs import PastJobs
from kant.kube.notify.recorder import EventRecorder
from kant.live import core

BOUNDED = (PastJobs, EventRecorder)
"""These keep the latest of what they have seen, thousands of them."""

MANY = 400


def entries(root: object) -> Counter[str]:
    """Count the entries of all containers that `root` leads to by objects of Kant, by the path that leads there."""
    found, seen, todo = Counter[str](), dict[int, object](), deque([(root, "")])
    while todo:
        one, path = todo.popleft()
        if id(one) in seen or isinstance(one, BOUNDED):
            continue
        seen[id(one)] = one
        if isinstance(one, np.ndarray):
            found[path] += one.size
        elif isinstance(one, array | bytearray):
            found[path] += len(one)
        elif isinstance(one, dict | list | tuple | set | frozenset | deque):
            found[path] += len(one)
            todo.extend((each, f"{path}[]") for each in gc.get_referents(one))
        elif isinstance(one, types.FunctionType):
            todo.extend((cell.cell_contents, f"{path}()") for cell in one.__closure__ or ())
        elif isinstance(one, types.MethodType | partial) or _is_ours(one):
            own = vars(one) if hasattr(one, "__dict__") else {}
            todo.extend((value, f"{path}.{name}") for name, value in own.items())
            todo.extend((each, f"{path}.") for each in gc.get_referents(one) if each is not own)
    return found


def _is_ours(one: object) -> bool:
    return type(one).__module__.startswith("kant.") and not isinstance(one, type)


async def come_and_go(rig: Rig, number: int) -> None:
    """A pod comes, is bound, succeeds, and is deleted."""
    cost, name = Cost(), f"comes-{number}"
    await rig._pod(cost, name)
    await rig._told(cost, "MODIFIED", name, status={"phase": "Succeeded"})
    await rig._told(cost, "DELETED", name)
    del rig._objects[name]
    for names in rig._on.values():
        names[:] = [each for each in names if each != name]


@pytest.mark.long
async def test_what_a_leader_holds_does_not_grow_with_the_pods_that_have_come_and_gone() -> None:
    """Some tables of a state have a row for every job that it ever had. So it is built anew, and begins with few."""
    with patch.object(core, "FORGET", 60):
        rig, number = Rig(3, 12, counting=False), 0
        counts = rig.driver.counts
        carrying_out = asyncio.create_task(rig.driver.effects.run())

        async def until_built(least: int) -> Counter[str]:
            """Let pods come and go, at least so many, until the state has just been built."""
            nonlocal number
            end, builds = number + least, counts.builds
            while number < end or counts.builds == builds:
                builds = counts.builds if number < end else builds
                await come_and_go(rig, number)
                number += 1
                assert number < end + 200
            return entries(rig.driver)

        before = await until_built(100)
        after = await until_built(MANY)
        carrying_out.cancel()
    grown = {path: count - before[path] for path, count in after.items() if count > before[path]}
    assert counts.builds >= 5 and sum(after.values()) - sum(before.values()) < MANY // 10, grown
    assert sum(before.values()) > 20_000, "all was counted"


async def test_pods_that_are_gone_are_forgotten_before_the_state_is_built_anew() -> None:
    """With each of them its workload was kept, and all that the API server had said of it."""
    rig = Rig(3, 12, counting=False)
    carrying_out = asyncio.create_task(rig.driver.effects.run())
    for number in range(30):
        await come_and_go(rig, number)
    carrying_out.cancel()
    transitions = rig.driver.workloads.transitions
    listed = transitions._unplaced | transitions.vacated | transitions.unbound | transitions.unprotected
    assert not listed and rig.driver.counts.builds == 1
