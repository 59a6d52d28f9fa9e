"""Rounds of defragmentation that operators ask for, on a real API server: said first, by the Eviction API, stopped."""

from __future__ import annotations

import asyncio

import pytest
import yaml
from tests.kube.api import Api, RefusedError
from tests.kube.control_plane import ControlPlane
from tests.kube.kubelet import FakeKubelet, ReplicaController
from tests.kube.live import MANIFESTS, bound, condition, deputy_of_kant, ours, profile, status, until, where
from tests.kube.objects import Object, make_budget, make_gang, make_node
from tests.kube.running import Kant
from tests.kube.test_orders_live import granted, operator
from tests.kube.test_proposals_live import MOVABLE, STAYS, Beside
from tests.patience import PATIENCE_S

from kant.kube.translate.crds import API

ROUNDS = f"{API}/defragmentations"


async def halves(api: Api, jobs: ReplicaController, pairs: int, allow: str) -> None:
    """Nodes with a job of 2 GPUs each: two such nodes have the label pool=N, and those named in `allow` may move."""
    for number in range(2 * pairs):
        await api.create(make_node(f"n{number}", labels={"pool": str(number // 2)}))
        name = "abcdefgh"[number]
        notes = MOVABLE if name in allow else STAYS
        selector = {"pool": str(number // 2)}
        await jobs.run(make_gang(f"full-{name}", 1, 6, annotations=STAYS, nodeSelector=selector))
        await jobs.run(make_gang(name, 1, 2, annotations=notes, nodeSelector=selector))
        await until(api, lambda pods, name=name: f"{name}-0" in bound(pods))  # type: ignore[misc]
    for name in "abcdefgh"[: 2 * pairs]:
        jobs.forget(f"full-{name}")
        await api.delete(f"/api/v1/namespaces/default/pods/full-{name}-0", grace_s=0)
    await until(api, lambda pods: len(bound(pods)) == 2 * pairs)


def asks(name: str, **spec: object) -> Object:
    return ours("Defragmentation", name, **spec)


async def test_a_round_says_what_would_move_and_why_moves_who_allows_it_and_is_stopped(api: Api, kant: Kant) -> None:
    await deputy_of_kant(api)
    async with (
        FakeKubelet(api), ReplicaController(api) as jobs,
        kant(profile=profile(), solver=Beside(), user="deputy") as driver,
    ):  # fmt: skip
        await halves(api, jobs, 3, allow="acd")
        await api.create(make_budget("keep", {"scheduling.kant.dev/pod-group": "d"}, 1))
        await api.allow("keep", 0)
        # A dry run says what would move, and nothing does.
        await api.create(asks("look", dryRun=True))
        said = await status(api, "defragmentations", "look", lambda s: s.get("phase") == "Planned")
        assert (said["nodes"], said["gfrBefore"], said["gfrPlanned"], said["moved"]) == (6, "1.000", "0.667", 0)
        assert {(one["job"], one["state"]) for one in said["moves"]} == {
            ("default/a", "Planned"), ("default/c", "Planned"),
        }  # fmt: skip
        assert sorted(said["emptied"]) == sorted(one["from"] for one in said["moves"])
        assert "worth" in condition({"status": said}, "Ready")["message"] and float(said["worthGPUHours"]) > 0
        assert driver.counts.evicted == 0
        # One that is about a pool moves there, and nowhere else.
        before = where(await api.list("pods"))
        await api.create(asks("pool", nodeSelector={"pool": "0"}, mostMoves=1))
        said = await status(api, "defragmentations", "pool", lambda s: s.get("phase") == "Done")
        assert (said["moved"], said["gfrBefore"], said["gfrAfter"], driver.counts.evicted) == (1, "1.000", "0.500", 1)
        assert [(one["job"], one["state"]) for one in said["moves"]] == [("default/a", "Moved")]
        found = where(await until(api, lambda pods: "a-0" in bound(pods) and "c-0" in bound(pods)))
        assert {found[name] for name in ("b-0", "c-0", "d-0")} == {before[name] for name in ("b-0", "c-0", "d-0")}
        # Where nobody may move it is refused, with the reason.
        await api.create(asks("nobody", nodeSelector={"pool": "2"}))
        said = await status(api, "defragmentations", "nobody", lambda s: s.get("phase") == "Refused")
        assert "2 jobs, of which 2 may not be moved now" in condition({"status": said}, "Ready")["message"]
        # What is stopped before it begins moves nobody; and only that may be changed.
        await api.create(asks("never", stop=True))
        said = await status(api, "defragmentations", "never", lambda s: s.get("phase") == "Stopped")
        assert said["moved"] == 0 and driver.counts.evicted == 1
        with pytest.raises(RefusedError, match="create another object for another round"):
            await api.patch(f"{ROUNDS}/look", {"spec": {"dryRun": False}})


async def test_who_asks_for_moves_has_to_be_allowed_to_evict_pods(plane: ControlPlane) -> None:
    async with Api(plane) as api, Api(plane, "operator") as person, Api(plane, "tenant") as strong:
        for file in sorted(MANIFESTS.glob("crd-defragmentations.yaml")):
            await api.apply([yaml.safe_load(file.read_text())])
        evicts = {"apiGroups": [""], "resources": ["pods/eviction"], "verbs": ["create"]}
        own = {"apiGroups": ["scheduling.kant.dev"], "resources": ["defragmentations"], "verbs": ["create"]}
        await api.apply([
            *yaml.safe_load_all((MANIFESTS / "orders.yaml").read_text()), *operator(),
            *granted("evicts", "tenant", [evicts, own]),
        ])  # fmt: skip
        async with asyncio.timeout(PATIENCE_S):
            for number in range(1000):  # the API server takes some moments to know of the policy
                try:
                    await person.create(asks(f"early-{number}"))
                except RefusedError as refused:
                    if "needs the permission to create pods/eviction in all namespaces" in refused.message:
                        break
                await asyncio.sleep(0.1)
        await person.create(asks("look", dryRun=True))
        await strong.create(asks("move"))
