"""More kinds of nodes than the core tells apart, on a real API server: nothing stops, and every pod has its turn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.kube.api import Api
from tests.kube.control_plane import ControlPlane
from tests.kube.live import bound, perform, says, until, where
from tests.kube.objects import Object, make_node, make_pod
from tests.kube.running import kant

from kant.kube.reconcile import translation
from kant.model.units import SECOND

MANY = 70


@pytest.fixture(autouse=True)
def short_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(translation, "TURN", SECOND)


def taint(number: int, own_key: bool) -> Object:
    key, value = (f"team-{number}", "") if own_key else ("team", f"t{number}")
    return {"key": key, "value": value, "effect": "NoSchedule"}


def tolerating(number: int, own_key: bool) -> dict[str, Any]:
    one = taint(number, own_key)
    return {"tolerations": [{"key": one["key"], "operator": "Equal", "value": one["value"], "effect": one["effect"]}]}


@pytest.mark.parametrize("own_key", [False, True], ids=["of one key", "of a key each"])
def test_seventy_taints_stop_nobody_and_their_pods_have_turns(
    plane: ControlPlane, tmp_path: Path, own_key: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A turn is over when nobody waits whose turn it is, however long it might last."""
    monkeypatch.setattr(translation, "TURN", 3600 * SECOND)

    async def story(api: Api) -> None:
        await api.create_all([make_node("free", 8)])
        await api.create_all([make_node(f"n{i}", 1, taints=[taint(i, own_key)]) for i in range(MANY)])
        async with kant(plane, journal=tmp_path):
            await api.create(make_pod("plain", 8))
            pods = await until(api, lambda pods: len(bound(pods)) == 1)
            assert where(pods) == {"plain": "free"}
            await api.create_all([make_pod(f"p{i}", 1, **tolerating(i, own_key)) for i in range(MANY)])
            pods = await until(api, lambda pods: len(bound(pods)) == MANY + 1)
            found = where(pods)
            assert all(found[f"p{i}"] == f"n{i}" for i in range(MANY)), found

    perform(plane, story, tmp_path)


def test_any_number_of_pods_pinned_to_hosts_and_none_holds_up_others(plane: ControlPlane, tmp_path: Path) -> None:
    async def story(api: Api) -> None:
        await api.create_all([make_node(f"n{i}", 1) for i in range(80)])
        pinned = [make_pod(f"p{i}", 1, nodeSelector={"kubernetes.io/hostname": f"n{i}"}) for i in range(80)]
        async with kant(plane, journal=tmp_path):
            await api.create_all([make_pod("full", 1, scheduler="somebody", node="n7")])
            await api.create_all(pinned)
            pods = await until(api, lambda pods: len(bound(pods)) == 80)
            assert all(where(pods)[f"p{i}"] == f"n{i}" for i in range(80) if i != 7)
            await until(api, lambda pods: says(pods, "p7", "fit now"))

    perform(plane, story, tmp_path)
