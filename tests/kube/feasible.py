"""Which nodes are feasible for a pod, by the real kube-scheduler: an extender notes them, and takes none."""

from __future__ import annotations

import asyncio
import copy

import yaml
from aiohttp import web
from tests.kube.api import Api
from tests.kube.control_plane import ControlPlane
from tests.kube.live import condition
from tests.kube.objects import Object
from tests.kube.rival import QPS
from tests.patience import PATIENCE_S

NAME = "oracle"


class Feasible:
    """`async with Feasible(plane, api) as feasible: await feasible(pod)` is the set of nodes that pass all filters."""

    def __init__(self, plane: ControlPlane, api: Api) -> None:
        self.plane, self.api = plane, api
        self._seen: dict[str, set[str]] = {}

    async def __aenter__(self) -> Feasible:
        assert self.plane.binaries.scheduler is not None, "expected a kube-scheduler beside the kube-apiserver"
        app = web.Application()
        app.router.add_post("/filter", self._filter)
        self._runner = web.AppRunner(app)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        host, port = self._runner.addresses[0]
        extender = {"urlPrefix": f"http://{host}:{port}", "filterVerb": "filter", "nodeCacheCapable": True, "weight": 1}
        config = {
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            "leaderElection": {"leaderElect": False},
            "clientConnection": {"kubeconfig": str(self.plane.kubeconfig("admin")), "qps": QPS, "burst": QPS},
            "percentageOfNodesToScore": 100,
            "profiles": [{"schedulerName": NAME, "plugins": {"postFilter": {"disabled": [{"name": "*"}]}}}],
            "extenders": [extender],
        }
        path = self.plane.folder / f"{NAME}.yaml"
        path.write_text(yaml.safe_dump(config))
        self.plane.run(NAME, [*self.plane.binaries.scheduler, f"--config={path}", "--secure-port=0"])
        return self

    async def __aexit__(self, *_: object) -> None:
        self.plane.end(NAME)
        await self._runner.cleanup()

    async def _filter(self, request: web.Request) -> web.Response:
        asked = {key.lower(): value for key, value in (await request.json()).items()}
        self._seen[asked["pod"]["metadata"]["uid"]] = set(asked["nodenames"])
        return web.json_response({"NodeNames": [], "FailedNodes": dict.fromkeys(asked["nodenames"], NAME)})

    async def __call__(self, pod: Object) -> set[str]:
        """The nodes for a pod like this, which does not stay."""
        twin = copy.deepcopy(pod)
        twin["metadata"]["name"] = f"{NAME}-{pod['metadata']['name']}"
        twin["spec"]["schedulerName"] = NAME
        made = await self.api.create(twin)
        path = f"/api/v1/namespaces/{made['metadata']['namespace']}/pods/{made['metadata']['name']}"
        try:
            async with asyncio.timeout(PATIENCE_S):
                while not condition(await self.api.get(path)):
                    await asyncio.sleep(0.05)
        except TimeoutError:
            raise AssertionError(f"kube-scheduler says nothing of the pod:\n{self.plane.log(NAME, 30)}") from None
        await self.api.delete(path, grace_s=0)
        return self._seen.get(made["metadata"]["uid"], set())
