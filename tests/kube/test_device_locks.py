"""The lock of a node of HAMi's: who may take it, and who has to wait."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.kube.test_hami import Ask, Card, node, pod

from kant.kube.act.device_locks import EXPIRES, LOCK, DeviceLocks
from kant.kube.act.effects import PAUSE, Effects, RefusedError
from kant.kube.connect.client import ApiClient, ApiError
from kant.kube.follow.mirror import Mirror
from kant.kube.objects import views as k
from kant.kube.reconcile.slots import Slot
from kant.kube.translate.hami import PHASE
from kant.model.job import Demand


class Server:
    """An API server with one node, which refuses what it is told to."""

    config = SimpleNamespace(source="a test")

    def __init__(self, lock: str = "", refuses: int = 0) -> None:
        self.notes = {LOCK: lock} if lock else {}
        self.refuses = refuses
        self.version = 1

    async def get(self, path: str, view: type[k.Node]) -> k.Node:
        return k.Node(k.Meta("n0", annotations=dict(self.notes), resource_version=str(self.version)))

    async def patch(self, path: str, change: Any, **options: Any) -> None:
        if self.refuses:
            raise ApiError(self.refuses, "No", "no")
        assert change["metadata"]["resourceVersion"] == str(self.version)
        self.notes.update(change["metadata"]["annotations"])


def there(name: str, at: str = "", phase: str = "", scheduler: str = "kant") -> k.Pod:
    notes = {PHASE: phase} if phase else {}
    return k.Pod(k.Meta(name, "ml", uid=name, annotations=notes), k.PodSpec(node_name=at, scheduler_name=scheduler))


def lock(name: str, ago: float = 0.0) -> str:
    return f"{datetime.now(UTC) - timedelta(seconds=ago):%Y-%m-%dT%H:%M:%SZ}" + (f",ml,{name}" if name else "")


def asked(server: Server, *others: k.Pod) -> tuple[bool, DeviceLocks]:
    """Whether the pod `p` has the lock of its node after it was asked for once."""

    async def ask() -> tuple[bool, DeviceLocks]:
        mirror = Mirror()
        mirror.nodes.change("added", node("n0", [Card()]))
        for one in (pod("p", Ask(1, 1000)), *others):
            mirror.pod("added", one)
        locks = DeviceLocks(Effects(cast(ApiClient, server), lambda: None), mirror)
        slot, running = Slot("n0", Demand(1, 100), "p", devices=1), asyncio.create_task(locks.effects.run())
        assert not locks.is_held_for(slot, ())
        await asyncio.sleep(0.01)
        try:
            return locks.is_held_for(slot, ()), locks
        finally:
            running.cancel()

    return asyncio.run(ask())


@pytest.mark.parametrize(
    ("holder", "ago", "other", "free"),
    [
        (None, 0, None, True),
        ("q", 0, None, True),  # its pod is gone
        ("q", 0, there("q"), True),  # left behind by the leader before
        ("q", 0, there("q", scheduler="hami-scheduler"), False),  # about to be bound
        ("q", EXPIRES + 5, there("q", scheduler="hami-scheduler"), True),
        ("q", 0, there("q", "n0", "allocating"), False),
        ("q", EXPIRES + 5, there("q", "n0", "allocating"), True),
        ("q", 0, there("q", "n0", "success"), False),  # the plugin is about to let go
        ("q", 0, there("q", "n1", "success"), True),
        ("", 0, None, False),  # as older releases write it
        ("", EXPIRES + 5, None, True),
        ("p", 0, None, True),  # taken for this very pod, before a restart
    ],
)
def test_a_lock_is_taken_from_nobody_who_needs_it(
    holder: str | None, ago: float, other: k.Pod | None, free: bool
) -> None:
    server = Server(lock(holder, ago) if holder is not None else "")
    found, _ = asked(server, *([other] if other is not None else []))
    assert found == free
    assert server.notes.get(LOCK, "").endswith(",ml,p") == free


def test_a_lock_without_a_time_is_nobodys() -> None:
    assert asked(Server("yesterday"))[0]


def test_whoever_changed_the_node_meanwhile_goes_first() -> None:
    server = Server(refuses=409)
    assert not asked(server)[0] and LOCK not in server.notes


def test_without_the_right_to_change_nodes_it_is_said() -> None:
    with pytest.raises(RefusedError, match="node n0 cannot be locked"):
        asked(Server(refuses=403))


async def test_the_next_pod_waits_until_the_first_has_its_devices() -> None:
    mirror, server = Mirror(), Server()
    mirror.nodes.change("added", node("n0", [Card()]))
    for name in "pq":
        mirror.pod("added", pod(name, Ask(1, 1000)))
    locks = DeviceLocks(Effects(cast(ApiClient, server), lambda: None), mirror)
    running = asyncio.create_task(locks.effects.run())
    first, second = (Slot("n0", Demand(1, 100), name, devices=1) for name in "pq")
    assert not locks.is_held_for(first, ())
    await asyncio.sleep(0.01)
    assert locks.is_held_for(first, ()) and not locks.is_held_for(second, {"p"})
    mirror.bound_here["p"] = "n0"  # the answer is there, and the watch has not come so far
    assert not locks.is_held_for(second, ())
    mirror.pod("modified", there("p", "n0", "allocating"))
    assert not locks.is_held_for(second, ()) and server.notes[LOCK].endswith(",p")
    mirror.pod("modified", there("p", "n0", "success"))
    assert not locks.is_held_for(second, ())
    await asyncio.sleep(0.01)
    assert not locks.is_held_for(second, ()) and server.notes[LOCK].endswith(",p")  # until the plugin lets go
    del server.notes[LOCK]
    await asyncio.sleep(2 * PAUSE)
    assert not locks.is_held_for(second, ())
    await asyncio.sleep(0.01)
    assert locks.is_held_for(second, ()) and server.notes[LOCK].endswith(",q")
    running.cancel()


def test_nodes_that_name_no_devices_need_no_lock() -> None:
    mirror = Mirror()
    mirror.nodes.change("added", k.Node(k.Meta("n0")))
    mirror.pod("added", pod("p", Ask(1)))
    locks = DeviceLocks(Effects(cast(ApiClient, Server()), lambda: None), mirror)
    assert locks.is_held_for(Slot("n0", Demand(1), "p", devices=1), ()) and not locks.notes(Slot("n0", Demand(1), "p"))
