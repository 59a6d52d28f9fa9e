"""Whoever binds pods in the benchmarks: processes that are given a kubeconfig, so that one rig measures them all."""

from __future__ import annotations

import asyncio
import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass

import msgspec
import yaml

from benchmarks.kubernetes_rig import Api, Plane

LIMITLESS = 100_000
"""Requests a second that a client may send: more than it can, so that no limit of its own holds it back."""


@dataclass(frozen=True)
class Rival:
    """`name` is that of its process too; `scheduler` is the schedulerName of its pods."""

    name: str
    scheduler: str
    start: Callable[[Plane], None]


def kube_scheduler(plane: Plane) -> None:
    """The default scheduler with its default profile; with the gates of native gangs where the API server has them."""
    config = plane.folder / "scheduler.json"
    settings = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "clientConnection": {"kubeconfig": str(plane.config), "qps": LIMITLESS, "burst": LIMITLESS},
        "leaderElection": {"leaderElect": False},
        "profiles": [{"schedulerName": "default-scheduler"}],
    }
    config.write_bytes(msgspec.json.encode(settings))
    if plane.binaries.scheduler is None:
        sys.exit("benchmarks: expected a kube-scheduler beside the kube-apiserver (TEST_ASSET_KUBE_SCHEDULER)")
    plane.run(
        "kube-scheduler", [*plane.binaries.scheduler, "--secure-port=0", f"--config={config}", *plane.feature_flags()]
    )


def binder(name: str, events: bool, connections: int = 16) -> Callable[[Plane], None]:
    """Binding alone, round robin over the nodes."""

    def start(plane: Plane) -> None:
        words = [str(plane.config), "binder", str(connections), "events" if events else "silent"]
        plane.python(name, "benchmarks.kubernetes_binder", *words)

    return start


def kant(plane: Plane, *options: str, name: str = "kant", profile: str = "kant") -> None:
    """Kant as people start it; `KANT_BENCH_OPTIONS` has further options of `kant kube run`."""
    asyncio.run(install(plane))
    extra = [*options, *shlex.split(os.environ.get("KANT_BENCH_OPTIONS", ""))]
    plane.python(name, "kant", "kube", "run", "--kubeconfig", str(plane.config), "--profile", profile, *extra)


def has_kant() -> bool:
    """Whether this Kant has a driver for Kubernetes."""
    words = [sys.executable, "-m", "kant", "kube", "run", "--help"]
    return subprocess.run(words, capture_output=True, check=False).returncode == 0


async def install(plane: Plane) -> None:
    """Create what `kant kube manifests` prints, but for the workloads: nobody here would run them."""
    words = [sys.executable, "-m", "kant", "kube", "manifests"]
    printed = subprocess.run(words, capture_output=True, check=True, text=True).stdout
    async with Api(plane.config) as api:
        for each in yaml.safe_load_all(printed):
            if each and each["kind"] not in ("Deployment", "Service", "PodDisruptionBudget", "ServiceMonitor"):
                status, reply = await api.send("POST", await path_of(api, each), msgspec.json.encode(each))
                if status not in (200, 201, 409):
                    raise RuntimeError(f"{each['kind']} {each['metadata']['name']}: {status} {reply[:300]!r}")


async def path_of(api: Api, body: dict[str, object]) -> str:
    """Where an object is created, as the API server's discovery says; waits for a new CRD to be served."""
    version, metadata = str(body["apiVersion"]), body["metadata"]
    root = f"/apis/{version}" if "/" in version else f"/api/{version}"
    for _ in range(100):
        status, reply = await api.send("GET", root)
        found = msgspec.json.decode(reply)["resources"] if status == 200 else []
        for each in found:
            if each["kind"] == body["kind"] and "/" not in each["name"]:
                assert isinstance(metadata, dict)
                space = f"/namespaces/{metadata.get('namespace', 'default')}" if each["namespaced"] else ""
                return f"{root}{space}/{each['name']}"
        await asyncio.sleep(0.1)
    raise RuntimeError(f"the API server does not serve {body['kind']} of {version}")


SCHEDULER = Rival("kube-scheduler", "default-scheduler", kube_scheduler)
KANT = Rival("kant", "kant", kant)
BINDER = Rival("binder", "binder", binder("binder", events=False))
BINDER_EVENTS = Rival("binder-events", "binder", binder("binder-events", events=True))
RIVALS = {each.name: each for each in (SCHEDULER, BINDER, BINDER_EVENTS, KANT)}
