"""`kubectl kant` for people with few rights, on a real API server: by the profile that runs there, in little time."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.kube.api import Api
from tests.kube.control_plane import NAMESPACE, ControlPlane
from tests.kube.live import bound, deputy_of_kant, install, says
from tests.kube.objects import make_gang, make_node, make_pod
from tests.kube.running import KantProcess
from tests.kube.test_orders_live import OTHER, TEAM, People, granted, operator

from kant.kube.objects.names import PROFILE
from kant.scheduler.profile import builtin_profile

LOADED = (
    "import sys\nfrom kant.cli.kubectl import main\ntry:\n    main(sys.argv[2:])\nexcept SystemExit:\n    pass\n"
    "found = [name for name in sys.argv[1].split(',') if name in sys.modules]\nprint('loaded:', *found)"
)


def loaded(config: Path, modules: Sequence[str], *words: str) -> tuple[str, list[str]]:
    """What a process of its own answers, and which of these modules it has loaded for that."""
    command = [sys.executable, "-c", LOADED, ",".join(modules), *words, "--kubeconfig", str(config)]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    text, _, found = said.rpartition("loaded:")
    return text, found.split()


async def test_a_tenant_asks_about_their_own_pods_with_no_right_beyond_their_namespace(
    plane: ControlPlane, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    people = People(plane, capsys)
    own = tmp_path / "own.toml"
    own.write_text(builtin_profile("easy").text.replace('name = "easy"', 'name = "own"', 1))
    async with Api(plane) as api:
        await install(api)
        for space in (TEAM, OTHER, NAMESPACE):
            await api.namespace(space)
        looks = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}]
        await api.apply([*granted("red-looks", "tenant", looks, TEAM), *operator()])
        await deputy_of_kant(api)
        leases = [{"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["*"]}]
        await api.apply(granted("leads", "deputy", leases, NAMESPACE))
        await api.create(make_node("n0"))
        process = KantProcess(plane, "--profile", str(own), user="deputy")
        try:
            await process.says("state built")
            await api.create_all([*make_gang("train", 2, 8, namespace=TEAM), make_pod("runs", 1, namespace=TEAM)])
            await api.create(make_pod("theirs", 8, namespace=OTHER))
            await api.until(lambda pods: says(pods, "train-1", "fit") and bound(pods) == ["runs"])
            lease = await api.get(f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/kant")
            assert lease["metadata"]["annotations"][PROFILE] == own.read_text()
            why = json.loads(await people("tenant", "why", "train", "-n", TEAM, "--json"))
            assert (why["status"], why["reason"], why["pods"]) == (
                "pending", "Unschedulable", {"train-0": "", "train-1": ""},
            )  # fmt: skip
            said = await people("tenant", "why", "train-0", "-n", TEAM)
            assert why["sentence"] in said and "waits: train-0, train-1" in said and "kant-inspector" in said
            (waits,) = json.loads(await people("tenant", "eta", "-n", TEAM, "--json"))["jobs"]
            assert (waits["job"], waits["queue"], waits["gpus"]) == ("red/train", "default", 16.0)
            assert waits["sentence"] == why["sentence"] and waits["expected_us"]["p50"] is None
            assert f"red/train: 16 GPUs in queue default, for 0s: {why['sentence']}" in re.sub(
                r"for [\d.]+s", "for 0s", await people("tenant", "eta", "train-1", "-n", TEAM)
            )
            assert "a pod that waits" in await people("tenant", "eta", "runs", "-n", TEAM, code=2)
            (row,) = json.loads(await people("tenant", "queue", "-n", TEAM, "--json"))["queues"]
            assert row == {
                "queue": "default", "used_gpus": 1.0, "running": 1, "waiting": 1, "waiting_gpus": 16.0,
            }  # fmt: skip
            said = await people("tenant", "queue", "-n", TEAM)
            assert "default: 1 jobs run with 1 GPUs, 1 wait for 16" in said
            said = await people("tenant", "top", "-n", TEAM)
            assert "red/runs: 1 GPUs on 1 node, queue default" in said and "theirs" not in said
            assert "quotas, positions, the jobs of others, evidence and expected starts need" in said
            assert "runs on n0" in await people("tenant", "why", "runs", "-n", TEAM)
            for words in (("why", "theirs"), ("eta",), ("top",), ("queue",)):
                said = await people("tenant", *words, "-n", OTHER, code=2)
                assert f"may list pods of namespace {OTHER}, or the role kant-inspector" in said
            assert "a pod of namespace red" in await people("tenant", "why", "none", "-n", TEAM, code=2)
            heavy = ("numba", "numpy", "rich", "aiohttp", "kant.cluster")
            text, found = await asyncio.to_thread(loaded, plane.kubeconfig("tenant"), heavy, "why", "train", "-n", TEAM)
            assert why["sentence"] in text and found == []
            text, found = await asyncio.to_thread(loaded, plane.kubeconfig("admin"), heavy, "why", "train", "-n", TEAM)
            assert "never" in text or "fit" in text
            assert "numpy" in found and "numba" not in found, "one question needs no compiled kernels"
            assert "aiohttp" not in found, "nor anything that only streams need"
            top = json.loads(await people("admin", "top", "--json"))
            assert top["profile"] == "own", "it decides as the Kant does that leads there"
            top = json.loads(await people("admin", "top", "--json", "--profile", "fifo"))
            assert top["profile"] == "fifo"
        finally:
            process.stop()
