"""Usage of ended jobs of a namespace, and import of an export into a cluster."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

from kant.cli.kube_options import Kube
from kant.kube.connect.client import ApiClient, ApiError
from kant.kube.connect.config import load
from kant.kube.connect.errors import advice
from kant.model.errors import InputError
from kant.service.usage import USAGE_BY, usage_of

PATHS = {
    "Queue": "/apis/scheduling.kant.dev/v1alpha1/queues",
    "PriorityClass": "/apis/scheduling.k8s.io/v1/priorityclasses",
    "ConfigMap": "/api/v1/namespaces/{}/configmaps",
    "Job": "/apis/batch/v1/namespaces/{}/jobs",
}
"""The API paths by which objects of an export are created."""


def usage(there: Kube, *, by: str, since: int, until: int | None, user: str, queue: str) -> dict[str, Any]:
    """Return the usage in the form of `/v1/usage` on one machine. Raises InputError."""
    names = [part for part in by.split(",") if part]
    for name in names:
        if name not in USAGE_BY or names.count(name) > 1:
            raise InputError("by", f"some of {', '.join(USAGE_BY)}, each at most once", name)
    end = until if until is not None else round(time.time() * 1e6)

    async def work() -> list[dict[str, Any]]:
        from kant.kube.user.job_objects import OVER
        from kant.kube.user.jobs import UserJobs
        from kant.kube.user.old_jobs import old_jobs

        async with _client(there) as client:
            own = UserJobs(client, there.namespace)
            rows = [row for row in await own.rows() if row["phase"] in OVER]
            return rows + [job async for job in old_jobs(client, own.namespace)]

    rows = asyncio.run(work())
    where = {name: value for name, value in (("user", user), ("queue", queue)) if value}
    return {"since": since, "until": end, "rows": usage_of(rows, names, since, end, where)}


def bring(there: Kube, path: Path) -> dict[str, int]:
    """Create the missing objects of a file of `kant export`; return how many of each kind. Raises InputError."""
    try:
        objects = json.loads(path.read_bytes())["items"]
        targets = [PATHS[each["kind"]].format(each["metadata"].get("namespace", "")) for each in objects]
    except FileNotFoundError:
        raise InputError(str(path), "an export with objects for Kubernetes (`kant export --image IMAGE`)") from None
    except (OSError, ValueError, KeyError, TypeError):
        raise InputError(str(path), "the objects that `kant export` has written") from None

    async def work() -> dict[str, int]:
        made = dict.fromkeys(PATHS, 0)
        async with _client(there) as client:
            for each, target in zip(objects, targets, strict=True):
                try:
                    await client.create(target, each)
                    made[each["kind"]] += 1
                except ApiError as error:
                    if error.reason != "AlreadyExists":
                        what = f"{each['kind']} {each['metadata']['name']}"
                        sentence = advice(error, client.config.source)
                        raise InputError(what, f"an object that the API server accepts ({sentence})") from None
        return made

    return asyncio.run(work())


def _client(there: Kube) -> ApiClient:
    return ApiClient(load(there.kubeconfig, there.context), concurrency=4, timeout=30.0)
