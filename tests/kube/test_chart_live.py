"""The chart in the hands of helm, on a real API server: installed, upgraded, refused a second time, and uninstalled."""

from __future__ import annotations

import asyncio
import os
import subprocess
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml
from aiohttp import web
from tests.kube.api import Api, RefusedError
from tests.kube.control_plane import ControlPlane
from tests.kube.faults import FaultProxy
from tests.kube.live import queue
from tests.kube.test_manifests import may
from yarl import URL

from kant.kube.manifests import ManifestSettings, render

CHART = Path(__file__).parents[2] / "deploy" / "helm" / "kant"
WITH = {"gates": True, "hami": True, "network_policy": True, "dashboard": True}
"""All parts of the chart that need no kinds of others."""


class AsAdmin(FaultProxy):
    """Helm gives no token to whom it speaks without TLS; and a kube-apiserver that tests have built has no version."""

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        if request.path == "/version":
            return web.json_response({"major": "1", "minor": "36", "gitVersion": "v1.36.0"})
        return await super()._handle(request)

    def _send(self, request: web.Request, body: bytes = b"") -> aiohttp.client._RequestContextManager:
        headers = {**request.headers, "Authorization": f"Bearer {self.plane.token('admin')}"}
        target = URL(self.plane.url + request.raw_path, encoded=True)
        return self._http.request(request.method, target, headers=headers, data=body or None)


async def rest(api: Api, things: list[dict[str, Any]]) -> list[str]:
    """Which of these objects are there."""
    found = []
    for thing in things:
        try:
            await api.get(f"{await api._place(thing)}/{thing['metadata']['name']}")
            found.append(f"{thing['kind']} {thing['metadata']['name']}")
        except (RefusedError, LookupError):
            pass
    return found


@pytest.mark.long
@pytest.mark.plane
async def test_helm_installs_upgrades_and_uninstalls_kant(
    helm_program: str, plane: ControlPlane, tmp_path: Path
) -> None:
    objects = [thing for thing in yaml.safe_load_all(render(ManifestSettings(**WITH))) if thing]
    everything = ",".join(f"{name}=true" for name in ("gates", "hami", "networkPolicy", "dashboard"))

    async def story(api: Api, proxy: FaultProxy) -> None:
        environment = {"HOME": str(tmp_path), "PATH": os.environ["PATH"]}
        environment["KUBECONFIG"] = str(plane.kubeconfig("admin", server=proxy.url))

        async def helm(*words: str, namespace: str = "kant-system") -> subprocess.CompletedProcess[str]:
            command = [helm_program, *words, "--namespace", namespace]
            return await asyncio.to_thread(
                subprocess.run, command, capture_output=True, text=True, env=environment, check=False
            )

        done = await helm("install", "kant", str(CHART), "--create-namespace", "--set", everything)
        assert done.returncode == 0, done.stderr
        assert (
            "`schedulerName: kant`" in done.stdout
            and "keep the scheduling gate scheduling.kant.dev/quota" in done.stdout
        )
        assert len(await rest(api, objects)) == len(objects)
        async with Api(plane, "kant") as kant:
            assert await may(kant, "patch", "", "pods") and await may(kant, "patch", "", "nodes")
        await api.create(queue("team", 4))

        done = await helm("install", "second", str(CHART), "--create-namespace", namespace="elsewhere")
        assert done.returncode and "invalid ownership metadata" in done.stderr

        named = "extraArgs={--scheduler-name=theirs}"
        done = await helm("upgrade", "kant", str(CHART), "--reset-values", "--set", named)
        assert done.returncode == 0, done.stderr
        assert "`schedulerName: theirs`" in done.stdout and "--set gates=true" in done.stdout
        async with Api(plane, "kant") as kant:
            assert not await may(kant, "patch", "", "pods") and not await may(kant, "patch", "", "nodes")
            claim = {"namespace": "kube-system", "name": "scheduler-name-theirs"}
            assert await may(kant, "update", "coordination.k8s.io", "leases", **claim)
        done = await helm("upgrade", "kant", str(CHART), "--set", "gates=yes")
        assert done.returncode and "/gates" in done.stderr

        done = await helm("uninstall", "kant")
        assert done.returncode == 0, done.stderr
        kinds = {"Namespace", "CustomResourceDefinition"}
        assert await rest(api, objects) == [
            f"{t['kind']} {t['metadata']['name']}" for t in objects if t["kind"] in kinds
        ]
        assert [one["metadata"]["name"] for one in await api.list("/apis/scheduling.kant.dev/v1alpha1/queues")] == [
            "team"
        ]

    async with Api(plane) as api, AsAdmin(plane) as proxy:
        await story(api, proxy)
