"""Our own kinds at a real API server: what is right is kept, what is wrong is refused in a clear sentence."""

from __future__ import annotations

import asyncio
from importlib.resources import files
from typing import Any

import msgspec
import pytest
from tests.kube.api import Api, Object, RefusedError
from tests.kube.control_plane import ControlPlane

from kant.kube.objects.views import Unstructured
from kant.kube.translate.crds import API
from kant.kube.translate.queues import queue_config_of
from kant.kube.translate.reservations import BookedGpus, ReservedNodes, reservation_of
from kant.kube.translate.topology_objects import levels_of
from kant.model.tenant import Budget, Queue, Quota
from kant.model.units import MINUTE

KINDS = ("queues", "topologies", "reservations", "defragmentations")


def thing(kind: str, name: str, **spec: Any) -> Object:
    return {"apiVersion": "scheduling.kant.dev/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec}


RIGHT = [
    thing("Queue", "org", quotas=[{"nominal": 64}]),
    thing("Queue", "team", parent="org", weight=3, minRun="1h30m", nodeWait="10m", userQueues=True, maxTime="24h",
          state="hold", budget={"hard": "2k", "userSoft": "400500m"}, quotas=[
        {"nominal": "12500m", "borrowingLimit": 8}, {"resource": "memory", "model": "H100", "nominal": "2Ti"}]),
    thing("Topology", "fabric", levels=[
        {"level": "leaf", "nodeLabel": "x/rack"}, {"level": "spine", "nodeLabel": "x/row"}]),
    thing("Reservation", "repair", nodeSelector={"rack": "7"}, start="2026-01-31T12:00:00Z",
          end="2026-02-01T12:00:00Z"),
    thing("Reservation", "course", gpus=12, within="leaf", model="H100", queues=["vip"], start="2026-01-31T12:00:00Z",
          end="2026-02-01T12:00:00Z"),
    thing("Defragmentation", "weekly", nodeSelector={"pool": "a"}, model="H100", mostMoves=3, dryRun=True),
]  # fmt: skip

WRONG = [
    (thing("Defragmentation", "a", mostMoves=0), "spec.mostMoves"),
    (thing("Queue", "a", weight=0), "spec.weight"),
    (thing("Queue", "a", state="shut"), 'supported values: "open", "hold", "stop", "drain"'),
    (thing("Queue", "a", namespaces=["x" * 64]), "spec.namespaces"),
    (thing("Queue", "a", namespaceSelector={"matchExpressions": [{"key": "x", "operator": "Gt"}]}),
     "spec.namespaceSelector.matchExpressions[0].operator"),
    (thing("Queue", "a", parent="a"), "expected the name of another queue"),
    (thing("Queue", "a", minRun="soon"), "spec.minRun"),
    (thing("Queue", "a", nodeWait="soon"), "spec.nodeWait"),
    (thing("Queue", "a", maxTime="soon"), "spec.maxTime"),
    (thing("Queue", "a", userQueues="each"), "spec.userQueues"),
    (thing("Queue", "a", quotas=[{"nominal": "many"}]), "expected a quantity that is not negative, such as 8"),
    (thing("Queue", "a", quotas=[{"nominal": -1}]), "expected a quantity that is not negative"),
    (thing("Queue", "a", quotas=[{"nominal": 1, "userLimit": "-1"}]), "expected a quantity that is not negative"),
    (thing("Queue", "a", quotas=[{"nominal": 1}, {"nominal": 2}]), "Duplicate value"),
    (thing("Topology", "a", levels=[]), "spec.levels"),
    (thing("Topology", "a", levels=[{"level": "rack", "nodeLabel": "x"}]), 'supported values: "hbd", "leaf"'),
    (thing("Topology", "a", levels=[{"level": "leaf", "nodeLabel": "x"}, {"level": "spine", "nodeLabel": "x"}]),
     "expected a different nodeLabel for each level"),
    (thing("Topology", "a", levels=[{"level": "leaf", "nodeLabel": "kubernetes.io/hostname"}]),
     "that several nodes share"),
    (thing("Reservation", "a", nodeSelector={}, start="2026-01-31T12:00:00Z"), "spec.nodeSelector"),
    (thing("Reservation", "a", nodeSelector={"a": "b"}, start="today"), "spec.start"),
    (thing("Reservation", "a", nodeSelector={"a": "b"}, start="2026-01-31T12:00:00Z", end="2026-01-30T12:00:00Z"),
     "expected a time after start"),
    (thing("Reservation", "a", start="2026-01-31T12:00:00Z"), "expected either nodeSelector or gpus"),
    (thing("Reservation", "a", gpus=0, start="2026-01-31T12:00:00Z"), "spec.gpus"),
    (thing("Reservation", "a", gpus=8, within="rack", start="2026-01-31T12:00:00Z"), 'supported values: "hbd", "leaf"'),
    (thing("Reservation", "a", nodeSelector={"a": "b"}, model="H100", start="2026-01-31T12:00:00Z"),
     "expected them only together with gpus"),
]  # fmt: skip


async def install(api: Api) -> None:
    for kind in KINDS:
        await api.apply((files("kant.kube") / "manifests" / f"crd-{kind}.yaml").read_text(encoding="utf-8"))
    for one in RIGHT:
        await api.apply([one])  # waits until the kind is served


def test_the_server_keeps_what_is_right_and_refuses_what_is_wrong(plane: ControlPlane) -> None:
    async def run() -> tuple[dict[str, list[Unstructured]], list[str]]:
        async with Api(plane) as api:
            await install(api)
            said = []
            for one, _ in WRONG:
                with pytest.raises(RefusedError) as caught:
                    await api.create(one)
                said.append(caught.value.message)
            path = f"{API}/queues/team"
            status = {"status": {"waiting": 3, "used": [{"resource": "gpu", "model": "", "amount": "8"}]}}
            kept = await api.patch(f"{path}/status", status)
            assert kept["status"]["waiting"] == 3 and kept["metadata"]["generation"] == 1
            conditions = await api.get(
                "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/queues.scheduling.kant.dev"
            )
            assert not [c for c in conditions["status"]["conditions"] if c["type"] == "NonStructuralSchema"]
            found = {kind: await api.list(f"{API}/{kind}") for kind in KINDS}
            return {
                kind: [msgspec.convert(_raw(one), Unstructured) for one in ones] for kind, ones in found.items()
            }, said

    found, said = asyncio.run(run())
    for (_, expected), message in zip(WRONG, said, strict=True):
        assert expected in message
    queue_config, wrong = queue_config_of(found["queues"])
    assert not wrong
    assert queue_config.queues[0] == Queue("org", quotas=(Quota(nominal=64_000),))
    assert queue_config.queues[1] == Queue(
        "team", "org", 3, state="hold", min_run=90 * MINUTE, node_wait=10 * MINUTE, user_queues=True,
        max_time=1440 * MINUTE, budget=Budget(hard=2_000_000, user_soft=400_500),
        quotas=(Quota(nominal=12_500, borrowing_limit=8000), Quota("memory", "H100", 2 << 20)),
    )  # fmt: skip
    levels, wrong = levels_of(found["topologies"])
    assert levels is not None and (levels.leaf, levels.spine, wrong) == ("x/rack", "x/row", {})
    by_name = {one.metadata.name: reservation_of(one) for one in found["reservations"]}
    course, kept = by_name["course"], by_name["repair"]
    assert isinstance(course, BookedGpus)
    assert (course.gpus, course.within, course.model, course.queues) == (12, "leaf", "H100", ("vip",))
    assert isinstance(kept, ReservedNodes) and kept.end - kept.start == 24 * 60 * MINUTE


def _raw(one: Object) -> Object:
    parts = {part: msgspec.Raw(msgspec.json.encode(one[part])) for part in ("spec", "status") if part in one}
    return one | parts
