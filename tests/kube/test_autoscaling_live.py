"""What node autoscalers go by, on a real API server: reasons, further nodes, and requests for nodes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.kube.api import Api
from tests.kube.control_plane import ControlPlane
from tests.kube.live import bound, condition, name, of_queue, ours, perform, queue, until
from tests.kube.objects import make_gang, make_node, make_pod
from tests.kube.running import kant
from tests.kube.test_words_live import answer

UNSCHEDULABLE, QUEUED = "Unschedulable", "Queued"


def test_who_lacks_nodes_is_unschedulable_and_who_waits_for_quota_is_not_without_gates_too(
    plane: ControlPlane, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def story(api: Api) -> None:
        await api.create_all([make_node(f"n{i}") for i in range(2)])
        await api.apply([queue("rich", 800), queue("poor", 0)])
        later = "2099-01-01T00:00:00Z"
        await api.apply([ours("Reservation", "later", gpus=8, start=later, queues=["rich"])])
        rich, poor = of_queue("rich"), of_queue("poor")
        async with kant(plane, journal=tmp_path):
            await api.create(make_pod("full", 8, labels=rich))
            await until(api, lambda pods: bound(pods) == ["full"])
            await api.create_all(make_gang("large", 4, 8, labels=rich))
            await api.create_all(
                [
                    make_pod("elsewhere", 1, labels=rich, nodeSelector={"zone": "west"}),
                    make_pod("poor", 1, labels=poor),
                    make_pod("booked", 1, labels=rich, annotations={"scheduling.kant.dev/reservation": "later"}),
                    make_pod("held", 1, labels=rich, annotations={"scheduling.kant.dev/hold": "true"}),
                    *make_gang("half", 2, 1, labels=rich)[:1],
                ]
            )
            wanted = {f"large-{i}": UNSCHEDULABLE for i in range(4)} | {"elsewhere": UNSCHEDULABLE}
            wanted |= dict.fromkeys(("poor", "booked", "held", "half-0"), QUEUED)
            await until(
                api, lambda pods: wanted == {name(p): condition(p).get("reason") for p in pods if name(p) in wanted}
            )
            assert not any(pod["spec"].get("schedulingGates") for pod in await api.list("pods"))

    perform(plane, story, tmp_path)


def test_kubectl_kant_why_names_the_nodes_that_would_start_a_gang_and_they_do(
    plane: ControlPlane, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def story(api: Api) -> None:
        labels = {"nvidia.com/gpu.product": "H100"}
        await api.create_all([make_node(f"n{i}", labels=labels) for i in range(2)])
        async with kant(plane, journal=tmp_path):
            await api.create(make_pod("full", 8))
            await until(api, lambda pods: bound(pods) == ["full"])
            await api.create_all(make_gang("large", 4, 8))
            await until(api, lambda pods: condition(pods[-1]).get("reason") == UNSCHEDULABLE)
            why, _ = await answer(plane, capsys, "why", "large-0")
            (more,) = why["more_nodes"]  # type: ignore[misc]
            assert json.loads(json.dumps(more)) == {
                "count": 3, "like": "n0", "gpus": 8, "model": "H100", "sentence": "3 more nodes like n0 (8 H100)",
            }  # fmt: skip
            await api.create_all([make_node(f"more-{i}", labels=labels) for i in range(3)])
            await until(api, lambda pods: len(bound(pods)) == 5)

    perform(plane, story, tmp_path)
