"""Ended jobs whose objects no longer exist in the cluster, kept in ConfigMaps for `kant history --kube`.

Each ConfigMap has some of the jobs as gzipped lines of JSON, below the limit of 256 KiB of `kubectl apply`.
"""

from __future__ import annotations

import gzip
from collections.abc import AsyncIterator, Iterable
from typing import Any
from urllib.parse import quote

import msgspec

from kant.kube.connect.client import ApiClient, ApiError
from kant.kube.objects.config_maps import ConfigMap, config_map
from kant.kube.objects.names import OWN
from kant.model.errors import InputError

LABEL = f"{OWN}/history"
KEY = "jobs.jsonl.gz"
MOST = 5_000
"""Maximum number of jobs in one ConfigMap: about 100 KiB, or three times as much if names hardly compress."""
FEWER = 500
MOST_BYTES = 180_000
"""Maximum size in bytes after compression, before base64 adds a third."""


def history_objects(source: str, jobs: list[dict[str, Any]], namespace: str) -> list[dict[str, Any]]:
    """Return ConfigMaps with these jobs. `source` (letters and digits) names the machine that exported them."""
    made: list[dict[str, Any]] = []
    for packed in _packed(jobs):
        meta = {"name": f"kant-history-{source}-{len(made)}", "namespace": namespace, "labels": {LABEL: source}}
        made.append(config_map(meta, KEY, packed))
    return made


def _packed(jobs: list[dict[str, Any]]) -> Iterable[bytes]:
    at = 0
    while at < len(jobs):
        for count in (MOST, FEWER):
            packed = gzip.compress(b"\n".join(map(msgspec.json.encode, jobs[at : at + count])), mtime=0)
            if len(packed) <= MOST_BYTES:
                break
        yield packed
        at += count


async def old_jobs(client: ApiClient, namespace: str) -> AsyncIterator[dict[str, Any]]:
    """Yield each ended job in the ConfigMaps of a namespace once. Raises InputError if they cannot be read."""
    path = f"/api/v1/namespaces/{quote(namespace, safe='')}/configmaps?labelSelector={quote(LABEL)}"
    seen = set[tuple[str, str]]()
    try:
        for item in await client.list(path, ConfigMap):
            source = (item.metadata.labels or {}).get(LABEL, "")
            for job in _jobs_of(item):
                if (source, job["id"]) not in seen:
                    seen.add((source, job["id"]))
                    yield job
    except ApiError as error:
        raise InputError("the history", f"config maps of namespace {namespace} that can be listed ({error})") from None


def _jobs_of(item: ConfigMap) -> list[dict[str, Any]]:
    try:
        return [msgspec.json.decode(line, type=dict[str, Any]) for line in item.unpacked(KEY).splitlines()]
    except (OSError, EOFError, ValueError, msgspec.MsgspecError):
        raise InputError(f"ConfigMap {item.metadata.name}", "a history created by `kant export`") from None
