"""A control plane of one's own for a benchmark, what each process has cost in CPU time, and requests to it.

The binaries and their start are those of the tests (tests/kube).
"""

from __future__ import annotations

import asyncio
import os
import ssl
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import yaml
from tests.kube import control_plane
from tests.kube.binaries import NoBinariesError, find
from tests.kube.processes import cpu_seconds

GROUP = control_plane.GANG_API
GATES = (*control_plane.GANG_GATES, "TopologyAwareWorkloadScheduling")
ROOT = Path(__file__).parent.parent


class Plane(control_plane.ControlPlane):
    """A fresh etcd and kube-apiserver: `with Plane() as plane`. `gangs` opens the gates of native gangs.

    `features` are further gates, for a kube-scheduler too; `flags` are of the API server.
    """

    def __init__(
        self, gangs: bool = False, features: Mapping[str, bool] | None = None, flags: Sequence[str] = ()
    ) -> None:
        try:
            binaries = find(say=lambda line: print(line, file=sys.stderr))
        except NoBinariesError as missing:
            sys.exit(f"benchmarks: {missing}")
        self.features = {**dict.fromkeys(GATES if gangs else (), True), **(features or {})}
        super().__init__(binaries, gates=GATES if gangs else (), flags=[*flags, *self.feature_flags(gangs)])

    def feature_flags(self, gangs: bool = False) -> list[str]:
        """The gates as an option of a program; with `gangs` without those, which the API server has already."""
        left = {name: on for name, on in self.features.items() if not (gangs and name in GATES)}
        return [f"--feature-gates={','.join(f'{name}={str(on).lower()}' for name, on in left.items())}"] if left else []

    def start(self) -> Plane:
        super().start()
        self.config = self.kubeconfig("admin")
        return self

    def __enter__(self) -> Plane:
        return self.start()

    def python(self, name: str, module: str, *words: str) -> None:
        """Run a module of this tree, with this interpreter, as a process of its own."""
        before = os.environ.get("PYTHONPATH")
        paths = [str(ROOT), *([before] if before else [])]
        self.run(name, ["env", f"PYTHONPATH={os.pathsep.join(paths)}", sys.executable, "-m", module, *words])

    def cpu(self) -> dict[str, float]:
        """CPU-seconds of each process so far."""
        return {name: cpu_seconds(pid) for name, pid in self.pids().items()}

    def peak_mib(self, name: str) -> float:
        """The most memory that a process has held, in MiB."""
        status = Path(f"/proc/{self.pids()[name]}/status").read_text(encoding="utf-8")
        line = next(line for line in status.splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) / 1024


class Api:
    """Requests of the rig itself: JSON over at most `connections` connections."""

    def __init__(self, config: Path, connections: int = 16) -> None:
        given = yaml.safe_load(config.read_text(encoding="utf-8"))
        cluster = given["clusters"][0]["cluster"]
        self.url = str(cluster["server"])
        self.certificate = str(cluster["certificate-authority"])
        self.token = str(given["users"][0]["user"]["token"])
        self.connections = connections

    async def __aenter__(self) -> Api:
        trust = ssl.create_default_context(cafile=self.certificate)
        self.session = aiohttp.ClientSession(
            base_url=self.url,
            connector=aiohttp.TCPConnector(ssl=trust, limit=self.connections + 1),  # one is a watch
            headers={"Authorization": f"Bearer {self.token}"},
            timeout=aiohttp.ClientTimeout(total=None),
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.session.close()

    async def send(
        self, method: str, path: str, body: bytes | None = None, kind: str = "application/json", **headers: str
    ) -> tuple[int, bytes]:
        sent = {"Content-Type": kind, **{name.replace("_", "-"): value for name, value in headers.items()}}
        async with self.session.request(method, path, data=body, headers=sent) as reply:
            return reply.status, await reply.read()

    async def get(self, path: str) -> Any:
        status, body = await self.send("GET", path)
        if status != 200:
            raise RuntimeError(f"GET {path}: {status} {body[:300]!r}")
        return msgspec.json.decode(body)

    async def post_all(self, path: str, bodies: list[bytes]) -> None:
        """Create them all, as many at a time as there are connections."""
        await self.do_all([("POST", path, body) for body in bodies])

    async def do_all(self, requests: list[tuple[str, str, bytes]]) -> None:
        waiting = iter(requests)

        async def worker() -> None:
            for method, path, body in waiting:
                kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
                status, reply = await self.send(method, path, body, kind)
                if status not in (200, 201):
                    raise RuntimeError(f"{method} {path}: {status} {reply[:300]!r}")

        await asyncio.gather(*(worker() for _ in range(self.connections)))
