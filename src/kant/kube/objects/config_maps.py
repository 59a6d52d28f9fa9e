"""ConfigMaps with Kant's own data."""

from __future__ import annotations

import base64
import gzip
from typing import Any

from kant.kube.objects.views import PartialMetadata


class ConfigMap(PartialMetadata, frozen=True):
    """A ConfigMap of the API server."""

    binary_data: dict[str, str] | None = None

    def unpacked(self, key: str) -> bytes:
        """Return the decompressed data of this key; empty if there is none. Raises OSError, EOFError, ValueError."""
        packed = (self.binary_data or {}).get(key, "")
        return gzip.decompress(base64.b64decode(packed)) if packed else b""


def config_map(meta: dict[str, Any], key: str, packed: bytes) -> dict[str, Any]:
    """Return a ConfigMap with these bytes under `key`."""
    data = {key: base64.b64encode(packed).decode()}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "binaryData": data}
