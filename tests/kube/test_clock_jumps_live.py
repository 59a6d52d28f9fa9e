"""A leader whose system clock is set forward and back, on a real API server: it goes by the time that passes."""

from __future__ import annotations

from pathlib import Path

from tests.kube.api import Api
from tests.kube.control_plane import NAMESPACE, ControlPlane
from tests.kube.live import bound, until
from tests.kube.objects import Object, make_node, make_pod
from tests.kube.running import KantProcess


def leaving(pods: list[Object]) -> list[str]:
    return [pod["metadata"]["name"] for pod in pods if pod["metadata"].get("deletionTimestamp")]


async def test_no_limit_is_reached_early_and_none_too_late_whatever_the_clock_says(
    api: Api, plane: ControlPlane, tmp_path: Path
) -> None:
    clock = tmp_path / "clock"
    clock.write_text("0")
    await api.namespace(NAMESPACE)
    await api.create_all([make_node("n0", 8), make_pod("limited", activeDeadlineSeconds=1800)])
    leader = KantProcess(plane, user="admin", lease_s=30.0, clock=clock)
    try:
        await until(api, lambda pods: bound(pods) == ["limited"])
        clock.write_text("3600")
        for name in ("first", "second"):  # what a decision stops is being evicted once the next one is carried out
            await api.create(make_pod(name))
            await until(api, lambda pods, name=name: name in bound(pods))  # type: ignore[misc]
        await api.create(make_pod("short", activeDeadlineSeconds=2))
        await until(api, lambda pods: "short" in bound(pods))
        clock.write_text("-3600")
        await until(api, lambda pods: leaving(pods) == ["short"])
    finally:
        leader.kill()
