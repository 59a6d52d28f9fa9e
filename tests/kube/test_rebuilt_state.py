"""`kubectl kant` against a real API server: the state is read once, and nothing is written."""

from __future__ import annotations

import asyncio
import json

import pytest
from tests.kube.api import Api
from tests.kube.control_plane import ControlPlane
from tests.kube.objects import make_gang, make_node

from kant.cli.app import run
from kant.cli.kubectl import kubectl_app, stand


def test_a_cluster_is_asked_why_a_pod_waits(plane: ControlPlane, capsys: pytest.CaptureFixture[str]) -> None:
    async def prepare() -> None:
        async with Api(plane) as api:
            await api.create_all([make_node("a"), make_node("b"), *make_gang("fits", 2), *make_gang("large", 80)])
            await api.bind("fits-0", "a")
            await api.bind("fits-1", "a")

    asyncio.run(prepare())
    config = str(plane.kubeconfig("admin"))

    def ask(*words: str) -> dict[str, object]:
        assert run([*words, "--kubeconfig", config, "--json"], kubectl_app(stand)) == 0
        answer: dict[str, object] = json.loads(capsys.readouterr().out)
        return answer

    assert ask("why", "fits-0")["status"] == "running"
    waits = ask("why", "large-7")
    assert (waits["status"], waits["reason"]["why"]) == ("pending", "never-fits")  # type: ignore[index]
    assert ask("top")["pools"] and [row["why"] for row in ask("eta")["jobs"]] == ["never-fits"]  # type: ignore[attr-defined]
    assert run(["why", "nobody", "--kubeconfig", config], kubectl_app(stand)) == 2
    assert "schedulerName kant" in capsys.readouterr().err
