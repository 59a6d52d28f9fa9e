"""The number of replicas of a workload on Kubernetes, read and set through its `scale` subresource only.

The caller needs only the rights `get` and `patch` on `scale` of the workload.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from urllib.parse import quote

from msgspec import UNSET, UnsetType

from kant.kube.connect.client import ApiClient, ApiError
from kant.kube.objects.views import View
from kant.kube.user.endpoints import unread
from kant.model.errors import InputError

if TYPE_CHECKING:
    from kant.kube.connect.config import Config

PART = re.compile("[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
RIGHT = "the right to get and patch its scale (docs/serving.md)"
BUILT_IN = {"deployments", "statefulsets", "replicasets"}


class _Spec(View, frozen=True):
    replicas: int = 0


class _Status(View, frozen=True):
    replicas: int = 0


class Scale(View, frozen=True):
    """The `scale` subresource: `spec` has the wanted number of replicas, `status` the present number."""

    spec: _Spec = _Spec()
    status: _Status | UnsetType = UNSET


def scale_path(text: str, namespace: str, where: str) -> str:
    """Return the path of a `scale` subresource, from PLURAL/NAME or GROUP/VERSION/PLURAL/NAME. Raises InputError."""
    parts = text.split("/")
    if len(parts) == 2 and parts[0] in BUILT_IN:
        parts = ["apps", "v1", *parts]
    if len(parts) != 4 or not all(PART.fullmatch(part) for part in (*parts, namespace)):
        expected = "deployments/NAME, statefulsets/NAME or GROUP/VERSION/PLURAL/NAME, and a namespace"
        raise InputError(where, expected, f"{namespace}: {text}")
    group, version, plural, name = (quote(part, safe="") for part in parts)
    return f"/apis/{group}/{version}/namespaces/{quote(namespace, safe='')}/{plural}/{name}/scale"


class ScaledWorkload:
    """The workload at one `scale` path. Each method opens its own connection, and raises InputError on failure."""

    def __init__(self, config: Config, path: str, where: str) -> None:
        self.config, self.path, self.where = config, path, where

    async def replicas(self) -> int:
        """Return the wanted number of replicas of the workload."""
        async with ApiClient(self.config, concurrency=1, timeout=30.0) as client:
            return await self._wanted(client)

    async def have(self, replicas: int) -> bool:
        """Set the wanted number of replicas. If it is the same already, write nothing and return False."""
        async with ApiClient(self.config, concurrency=1, timeout=30.0) as client:
            if await self._wanted(client) == replicas:
                return False
            try:
                await client.patch(self.path, {"spec": {"replicas": replicas}})
            except ApiError as error:
                raise self._sentence(error) from None
            return True

    async def _wanted(self, client: ApiClient) -> int:
        try:
            return (await client.get(self.path, Scale)).spec.replicas
        except ApiError as error:
            raise self._sentence(error) from None

    def _sentence(self, error: ApiError) -> InputError:
        return unread(error, self.where, RIGHT, "an existing workload with a scale subresource")
