"""The control plane of the tests and what stands around it, tried on the real API server."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.kube.api import Api, RefusedError
from tests.kube.control_plane import ControlPlane
from tests.kube.objects import make_gang, make_node
from tests.patience import PATIENCE_S

ROOT = Path(__file__).parent.parent.parent
CRD = """
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: widgets.test.kant.dev}
spec:
  group: test.kant.dev
  scope: Cluster
  names: {plural: widgets, singular: widget, kind: Widget}
  versions:
  - name: v1
    served: true
    storage: true
    schema:
      openAPIV3Schema: {type: object, properties: {size: {type: integer, minimum: 1}}}
---
apiVersion: test.kant.dev/v1
kind: Widget
metadata: {name: one}
size: 3
"""


async def test_pods_are_created_bound_once_and_deleted(plane: ControlPlane) -> None:
    async with Api(plane) as api:
        await api.create_all([make_node("a"), make_node("b"), *make_gang("train", 20)])
        await api.bind("train-3", "a")
        with pytest.raises(RefusedError, match="409"):
            await api.bind("train-3", "b")
        pods = {pod["metadata"]["name"]: pod["spec"] for pod in await api.list("pods", "default")}
        assert len(pods) == 20 and {spec["schedulerName"] for spec in pods.values()} == {"kant"}
        assert pods["train-3"]["nodeName"] == "a"
        node = await api.get("/api/v1/nodes/a")
        assert node["status"]["allocatable"]["nvidia.com/gpu"] == "8"
        await api.clean()
        assert not await api.list("pods") and not await api.list("nodes")


async def test_native_pod_groups_are_accepted(plane: ControlPlane) -> None:
    async with Api(plane) as api:
        await api.create_all(make_gang("train", 3, convention="upstream"))
        (group,) = await api.list("/apis/scheduling.k8s.io/v1alpha2/podgroups")
        assert group["spec"]["schedulingPolicy"] == {"gang": {"minCount": 3}}
        pods = await api.list("pods")
        assert {pod["spec"]["schedulingGroup"]["podGroupName"] for pod in pods} == {"train"}


async def test_users_are_who_they_say_and_may_what_rbac_lets_them(plane: ControlPlane) -> None:
    async def who(user: str) -> tuple[str, set[str]]:
        async with Api(plane, user) as api:
            review = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
            found = (await api.call("POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", review))["status"]
            return found["userInfo"]["username"], set(found["userInfo"]["groups"])

    assert await who("admin") == ("admin", {"system:masters", "system:authenticated"})
    name, groups = await who("kant")
    assert name == "system:serviceaccount:kant-system:kant"
    assert groups == {"system:serviceaccounts", "system:serviceaccounts:kant-system", "system:authenticated"}
    async with Api(plane, "tenant") as api:
        with pytest.raises(RefusedError, match="403 Forbidden"):
            await api.list("pods")


async def test_a_custom_resource_is_applied_after_its_definition(plane: ControlPlane) -> None:
    async with Api(plane) as api:
        await api.apply(CRD)
        await api.apply(CRD.replace("size: 3", "size: 4"))
        (widget,) = await api.list("/apis/test.kant.dev/v1/widgets")
        assert widget["size"] == 4
        with pytest.raises(RefusedError, match="422"):
            await api.apply(CRD.replace("size: 3", "size: 0"))
        await api.clean()
        assert not await api.list("/apis/test.kant.dev/v1/widgets")


async def test_nothing_is_left_when_the_tests_are_killed() -> None:
    """A process dies of SIGKILL: those that it started go, and their folder."""
    script = """
import json, os, signal, tempfile
from pathlib import Path
from tests.kube.processes import Brood
brood = Brood(Path(tempfile.mkdtemp(prefix="kant-control-plane-")))
brood.start("sleep", ["sleep", "600"])
print(json.dumps([str(brood.folder), brood.pid("sleep")]), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False)
    folder, pid = json.loads(done.stdout)
    async with asyncio.timeout(PATIENCE_S):
        while Path(folder).exists() or _lives(pid):
            await asyncio.sleep(0.02)


def _lives(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    try:
        return stat.read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False
