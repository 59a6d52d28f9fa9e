"""Records what a release leaves behind, for the test of upgrades: python -m tests.kube.record_release OUT.json.gz

Run it at a release, in a checkout of it. A leader of that release places a gang of 2, one of 4 and a pod, and lets a
gang of 3 wait for its quota; then it is killed, and what the API server and the journal have is written.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.kube.api import Api
from tests.kube.binaries import find
from tests.kube.control_plane import ControlPlane
from tests.kube.live import bound, of_queue, queue, says, until
from tests.kube.objects import Object, make_gang, make_node, make_pod
from tests.kube.running import KantProcess

from kant.kube.manifests import ManifestSettings, render

GIVEN = ("managedFields", "uid", "resourceVersion", "creationTimestamp", "generation")
"""What an API server gives an object itself."""
KINDS = {
    "nodes": ("v1", "Node", "nodes"),
    "pods": ("v1", "Pod", "pods"),
    "queues": ("scheduling.kant.dev/v1alpha1", "Queue", "/apis/scheduling.kant.dev/v1alpha1/queues"),
    "leases": ("coordination.k8s.io/v1", "Lease", "/apis/coordination.k8s.io/v1/namespaces/kant-system/leases"),
}


def in_queue(pods: list[Object]) -> list[Object]:
    for pod in pods:
        pod["metadata"].setdefault("labels", {}).update(of_queue("team"))
    return pods


def bare(value: Any) -> Any:
    """An object as somebody could post it."""
    if isinstance(value, dict):
        return {key: bare(inner) for key, inner in value.items() if key not in GIVEN}
    return [bare(inner) for inner in value] if isinstance(value, list) else value


async def record(plane: ControlPlane, journal: Path) -> dict[str, Any]:
    manifests = render(ManifestSettings())
    async with Api(plane) as api:
        await api.apply(manifests)
        await api.create_all([make_node(f"n{number}") for number in range(4)])
        await api.apply([queue("team", 32)])
        leader = KantProcess(plane, "--journal", str(journal))
        gangs = [*make_gang("whole", 2, 8), *make_gang("parts", 4, 2), make_pod("one", 1)]
        await api.create_all(in_queue(gangs))
        await until(api, lambda pods: len(bound(pods)) == len(gangs))
        await api.create_all(in_queue(make_gang("waits", 3, 8)))
        await until(api, lambda pods: says(pods, "waits-0", "quota"))
        leader.kill()
        found: dict[str, Any] = {"manifests": manifests}
        for name, (version, kind, path) in KINDS.items():
            items = (await api.get(path))["items"] if path.startswith("/") else await api.list(path)
            found[name] = [{"apiVersion": version, "kind": kind} | bare(item) for item in items]
    found["journal"] = "".join(path.read_text() for path in sorted(journal.glob("*.jsonl")))
    return found


def main(out: Path) -> None:
    with tempfile.TemporaryDirectory() as journal, ControlPlane(find(go_bin=True)) as plane:
        found = asyncio.run(record(plane, Path(journal)))
    out.write_bytes(gzip.compress(json.dumps(found).encode(), mtime=0))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
