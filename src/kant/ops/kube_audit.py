"""The audit of a Kubernetes cluster: an object for each entry, which the API server lets nobody change.

The name of an object is the number of its entry. So of two simultaneous entries one is refused and written again, and
the actions of all assistants have one order. The API server checks who writes an entry (`manifests/orders.yaml`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from kant.kube.connect.client import ApiClient, ApiError
from kant.kube.objects.views import Unstructured
from kant.kube.user.operations import OPERATIONS, name_of, operation
from kant.model.errors import InputError
from kant.model.units import MINUTE
from kant.ops.audit import Audit, AuditBusyError, OpsEntry

if TYPE_CHECKING:
    from kant.ops.kubernetes import KubeWorld

LONGEST = 2 * MINUTE
"""Maximum time (µs) between two entries of a transaction; after it the writer is presumed dead."""


class KubeAudit(Audit):
    """The audit of the world's cluster, read and written with the rights of the world's caller."""

    def __init__(self, world: KubeWorld) -> None:
        super().__init__()
        self.world = world
        self.name = "the operations of the cluster"

    def news(self) -> list[OpsEntry]:
        return [self._taken(found) for found in self.world.run(self._unread)]

    async def _unread(self, client: ApiClient) -> list[Unstructured]:
        found: list[Unstructured] = []
        if not self.entries:
            async for items, _ in client.pages(OPERATIONS, Unstructured):
                found += items
            return found[::-1]
        while True:
            try:
                found.append(await client.get(f"{OPERATIONS}/{name_of(self.next_seq + len(found))}", Unstructured))
            except ApiError as error:
                if error.code != 404:
                    raise
                return found

    def _taken(self, found: Unstructured) -> OpsEntry:
        spec = msgspec.json.decode(found.spec)
        line = str(spec.get("entry", "")).encode() + b"\n"
        if not self.entries:
            self._last = msgspec.json.decode(line, type=OpsEntry).chain  # an authorized user has deleted older entries
        entry = self._read(line)
        if (entry.who, name_of(entry.seq)) != (spec.get("who"), found.metadata.name):
            raise InputError(f"{self.name}, {found.metadata.name}", "the author and the name that the entry has")
        return entry

    def is_cut_off(self, last: OpsEntry, now_us: int) -> bool:
        return now_us - last.time_us > LONGEST

    def _stored(self, entry: OpsEntry, line: bytes) -> bool:
        body = operation(entry.seq, entry.who, entry.what, line)

        async def write(client: ApiClient) -> bool:
            try:
                await client.create(OPERATIONS, body)
            except ApiError as error:
                if error.reason != "AlreadyExists":
                    raise
                return False
            return True

        if self.world.run(write):
            return True
        other = next((other for other in self.news() if other.what == "apply"), None)
        if other is not None and entry.what == "apply":
            raise AuditBusyError(other.who)
        return False
