"""What is written in claims, before the pods that share them are bound."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import msgspec

from kant.kube.act.claim_binder import ClaimBinder
from kant.kube.act.effects import Effects
from kant.kube.connect.client import ApiClient
from kant.kube.follow.mirror import Mirror
from kant.kube.objects import device_views as d
from kant.kube.objects import views as k
from kant.kube.reconcile.device_allocations import DeviceAllocations
from kant.kube.reconcile.slots import Slot, coming
from kant.kube.reconcile.workload import Phase, Workload
from kant.kube.translate.device_claims import MOST_CONSUMERS, with_consumers
from kant.model.job import Demand


class Server:
    """Has one claim, which each request changes."""

    def __init__(self, claim: dict[str, Any]) -> None:
        self.claim, self.reserved = claim, list[list[str]]()

    async def patch(self, path: str, change: Any, **_: Any) -> bytes:
        assert change["metadata"]["resourceVersion"] == self.claim["metadata"]["resourceVersion"], "a conflict"
        before = msgspec.json.encode(self.claim)
        if "status" in change:
            self.claim["status"] = change["status"]
            self.reserved.append([one["uid"] for one in change["status"]["reservedFor"]])
        else:
            self.claim["metadata"] |= change["metadata"]
        self.claim["metadata"]["resourceVersion"] += "1" if msgspec.json.encode(self.claim) != before else ""
        return msgspec.json.encode(self.claim)


def test_one_write_reserves_a_claim_for_all_placed_pods_that_share_it_as_far_as_it_may() -> None:
    mirror, place = Mirror(), Workload("place", None)
    devices, name = mirror.devices, ("ml", "c")
    mirror.serves_devices = True
    devices.classes.change("added", d.DeviceClass(k.Meta("card")))
    mirror.nodes.change("added", k.Node(k.Meta("n")))
    there = d.SliceSpec("cards", d.Pool("n", 1, 1), "n", devices=(d.Device("d"),))
    devices.slices.change("added", d.ResourceSlice(k.Meta("n"), there))
    asked = {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "card"}}]}}
    server = Server({"metadata": {"name": "c", "namespace": "ml", "uid": "c", "resourceVersion": "1"}, "spec": asked})
    devices.claim("added", msgspec.convert(server.claim, d.ResourceClaim))
    own = k.PodSpec(resource_claims=(k.PodClaim("it", resource_claim_name="c"),))
    uids = [f"u{at}" for at in range(MOST_CONSUMERS + 2)]
    for uid in uids:
        mirror.pod("added", k.Pod(k.Meta(uid, "ml", uid), own))
    effects = Effects(cast(ApiClient, server), lambda: None)
    binder = ClaimBinder(effects, mirror, DeviceAllocations(mirror))
    waiting, first, last = uids[0], Workload("first", None), uids[-1]
    for workload, pods in ((first, [last]), (place, uids[1:-1])):
        workload.phase, workload.slots = Phase.PLACED, [Slot("n", Demand(), uid) for uid in pods]

    async def main() -> None:
        running = asyncio.create_task(effects.run())
        assert not binder.prepare(first)
        binder.allocations.expect(place)
        while binder.step.in_flight:
            await asyncio.sleep(0)
        running.cancel()

    asyncio.run(main())
    full = [d.Consumer("", "pods", uid, uid) for uid in uids[:MOST_CONSUMERS]]
    last_pod = mirror.pods[last]
    assert len(with_consumers(full, [last_pod], ())) == MOST_CONSUMERS + 1, "the API server says why that is refused"
    assert len(with_consumers(full, (), [last_pod])) == MOST_CONSUMERS
    (reserved,) = server.reserved
    assert reserved[0] == last and waiting not in reserved and len(set(reserved)) == len(reserved) == MOST_CONSUMERS
    between = server.claim["metadata"]["resourceVersion"][:-1]
    assert binder.step.is_unseen(name, "1") and binder.step.is_unseen(name, between), "no write begins on these"
    now = msgspec.convert(server.claim, d.ResourceClaim)
    devices.claim("modified", now)
    assert binder.prepare(first)
    assert asyncio.run(binder._patch(now, {"metadata": {"finalizers": now.metadata.finalizers}})) == now
    assert not binder.step.is_unseen(name, now.metadata.resource_version), "what changes nothing replaces nothing"


def test_what_is_to_be_bound_is_a_pod_that_is_there_in_a_slot_without_a_bound_one() -> None:
    pods = {uid: k.Pod(k.Meta(uid)) for uid in ("bound", "unbound")}
    slots = [
        Slot("n", Demand(), "bound", bound=True), Slot("n", Demand(), "unbound"), Slot("n", Demand(), "gone"),
        Slot("n", Demand()),
    ]  # fmt: skip
    assert list(coming(slots, pods)) == [(slots[1], pods["unbound"])]
