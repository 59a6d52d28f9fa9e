"""Which nodes are feasible for a pod, by the real kube-scheduler: an extender notes them, and takes none."""

from __future__ import annotations

import asyncio
import copy
from contextlib import suppress

import yaml
from aiohttp import web
from tests.kube.api import Api
from tests.kube.control_plane import ControlPlane
from tests.kube.live import condition
from tests.kube.objects import Object
from tests.kube.rival import QPS
from tests.patience import PATIENCE_S

NAME = "oracle"
TRIES = 6


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
        extender["httpTimeout"] = f"{PATIENCE_S:.0f}s"  # it answers from the loop of the test, which may be busy
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
        """The nodes for a pod like this, which does not stay.

        Where its write of a condition fails, kube-scheduler says nothing of the pod for five minutes, unless something
        happens: it is asked for another pod like this.
        """
        for attempt in range(TRIES):
            twin = copy.deepcopy(pod)
            twin["metadata"]["name"] = f"{NAME}-{attempt}-{pod['metadata']['name']}"
            twin["spec"]["schedulerName"] = NAME
            made = (await self.api.create(twin))["metadata"]
            path = f"/api/v1/namespaces/{made['namespace']}/pods/{made['name']}"
            with suppress(TimeoutError):
                async with asyncio.timeout(PATIENCE_S / TRIES):
                    while made["uid"] not in self._seen:  # where no node passes, the extender is not asked
                        if condition(await self.api.get(path)).get("reason") == "Unschedulable":
                            self._seen.setdefault(made["uid"], set())
                        await asyncio.sleep(0.02)
            await self.api.delete(path, grace_s=0)
            if made["uid"] in self._seen:
                return self._seen[made["uid"]]
        raise AssertionError(f"kube-scheduler says nothing of the pod:\n{self.plane.log(NAME, 30)}")
