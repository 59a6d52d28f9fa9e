"""The audit of `kant ops` in a cluster. Each entry is an object of the kind Operation."""

from __future__ import annotations

from typing import Any

import msgspec

from kant.kube.connect.client import ApiClient, ApiError
from kant.kube.connect.config import Config
from kant.kube.objects.views import Unstructured, View
from kant.kube.translate.crds import API
from kant.model.errors import InputError

OPERATIONS = f"{API}/operations"
LATEST = 300
"""Maximum number of entries that the page shows."""


class _Found(View, frozen=True):
    items: tuple[Unstructured, ...] = ()


def name_of(seq: int) -> str:
    """Return the name of the object for entry `seq`. Sorted by name, the latest entry comes first."""
    return f"op-{10**10 - seq}"


def operation(seq: int, who: str, what: str, line: bytes) -> dict[str, Any]:
    """Return the object for an entry of the audit; `line` is the entry as one line of JSON."""
    spec = {"who": who, "what": what, "entry": line.decode().rstrip("\n")}
    return {"apiVersion": "scheduling.kant.dev/v1alpha1", "kind": "Operation", "metadata": {"name": name_of(seq)}} | {
        "spec": spec
    }


async def latest(config: Config) -> list[Any]:
    """Return the latest LATEST entries, the newest first; [] if the kind is not installed. Raises InputError."""
    async with ApiClient(config, concurrency=1, timeout=10.0) as client:
        try:
            found = await client.get(OPERATIONS, _Found, params={"limit": str(LATEST)})
        except ApiError as error:
            if error.code == 404:
                return []
            raise InputError("the audit", f"permission to list operations ({error})") from None
    return [msgspec.json.decode(msgspec.json.decode(one.spec)["entry"]) for one in found.items]
