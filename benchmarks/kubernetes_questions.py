"""What one question of `kubectl kant` costs: a process of its own beside a full cluster, for an operator and a tenant.

The operator asks where nobody leads, and reckons alone; and then a leader, through the API server.

Pods have the weight of real ones (4 KB). Warm: everything was loaded before. Cold: no module is compiled, as after an
installation.
"""

from __future__ import annotations

import asyncio
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from os import environ
from pathlib import Path

from tests.kube import api
from tests.kube.control_plane import NAMESPACE
from tests.kube.crowd import put_all
from tests.kube.live import address_of_host, install, reachable
from tests.kube.objects import Object, make_gang, make_node, make_pod
from tests.kube.processes import free_port
from tests.kube.running import KantProcess
from tests.kube.test_orders_live import granted

from benchmarks.kubernetes_rig import Plane

SIZES = (100, 1_000)
"""Nodes of 8 GPUs. Four of five hold one pod of a gang each, the others seven pods of one GPU; and on each are pods of
DAEMONS, which no scheduler of jobs has placed."""
LED = (1_000, 5_000)
"""Nodes of clusters with a leader."""
DAEMONS = 4
GANGS, SIZE = 20, 8
"""Gangs that wait, each for all of 8 nodes: none has room."""
TEAM = "default"
WORDS = {
    "why": ("why", "gang-00-0", "-n", TEAM),
    "eta": ("eta",),
    "queue": ("queue",),
    "top": ("top",),
}
VARIABLES = [{"name": f"SETTING_{i:02}", "value": f"the value of setting {i:02} of this workload"} for i in range(40)]


@dataclass(frozen=True)
class Asked:
    """Seconds that a process took: of CPU, and by the clock."""

    cpu: float
    wall: float


def questions(repeats: int) -> Iterator[tuple[str, list[Asked]]]:
    """For each size, user, question and start (`why-1000-admin-warm`): the runs."""
    for count in SIZES:
        with Plane() as plane:
            asyncio.run(_fill(plane, count))
            for user in ("admin", "tenant"):
                config = plane.kubeconfig(user)
                for word, words in WORDS.items():
                    asked(words, config)
                    yield f"{word}-{count}-{user}-warm", [asked(words, config) for _ in range(repeats)]
                yield f"why-{count}-{user}-cold", [_cold(WORDS["why"], config) for _ in range(repeats)]
    for count in LED if address_of_host() else ():
        with Plane() as plane:
            asyncio.run(_fill(plane, count))
            process = asyncio.run(_led(plane))
            try:
                config = plane.kubeconfig("admin")
                asked(WORDS["eta"], config)  # the first forecast is made
                for word, words in WORDS.items():
                    yield f"{word}-{count}-leader-warm", [asked(words, config) for _ in range(repeats)]
                yield f"why-{count}-leader-cold", [_cold(WORDS["why"], config) for _ in range(repeats)]
            finally:
                process.stop()


async def _led(plane: Plane) -> KantProcess:
    """A leader on the plane, behind its Service."""
    port = free_port()
    async with api.Api(plane) as client:
        await client.namespace(NAMESPACE)
        await reachable(client, address_of_host(), port)
    process = KantProcess(plane, "--listen", f"0.0.0.0:{port}", user="admin", lease_s=60.0)
    await process.says("state built")
    return process


def asked(words: Sequence[str], config: Path, compiled: str = "") -> Asked:
    """One question. `compiled`: the folder of compiled modules, "" for that of every day."""
    command = [sys.executable, "-c", "from kant.cli.kubectl import main; main()", *words, "--kubeconfig", str(config)]
    own = {name: value for name, value in environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    done = subprocess.run(
        command, env=own | ({"PYTHONPYCACHEPREFIX": compiled} if compiled else {}), capture_output=True, text=True
    )
    wall, after = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise RuntimeError(f"kubectl kant {' '.join(words)}: {done.stderr}")
    return Asked(after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime, wall)


def _cold(words: Sequence[str], config: Path) -> Asked:
    with tempfile.TemporaryDirectory() as folder:
        return asked(words, config, folder)


async def _fill(plane: Plane, count: int) -> None:
    async with api.Api(plane) as client:
        await install(client)
        looks = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}]
        await client.apply(granted("tenant-looks", "tenant", looks, TEAM))
    await put_all(plane, (make_node(f"node-{i:05}") for i in range(count)))
    await put_all(plane, map(_weighty, _pods(count)))


def _pods(count: int) -> Iterator[Object]:
    whole = count * 4 // 5 // SIZE * SIZE
    for i in range(0, whole, SIZE):
        for pod in make_gang(f"runs-{i:05}", SIZE, 8, namespace="other"):
            place = i + int(pod["metadata"]["name"].rpartition("-")[2])
            yield pod | {"spec": pod["spec"] | {"nodeName": f"node-{place:05}"}}
    for i in range(7 * (count - whole)):
        yield make_pod(f"small-{i:05}", namespace="other", node=f"node-{whole + i // 7:05}")
    for i in range(DAEMONS * count):
        yield make_pod(
            f"daemon-{i:05}", 0, namespace="kube-system", scheduler="default-scheduler", node=f"node-{i // DAEMONS:05}"
        )
    for i in range(GANGS):
        yield from make_gang(f"gang-{i:02}", SIZE, 8, namespace=TEAM)


def _weighty(pod: Object) -> Object:
    """The pod with as much in its container as people write."""
    spec = pod["spec"]
    return pod | {"spec": spec | {"containers": [spec["containers"][0] | {"env": VARIABLES}]}}
