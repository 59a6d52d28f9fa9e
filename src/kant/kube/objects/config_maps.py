"""ConfigMaps that carry data of Kant's own."""

from __future__ import annotations

import base64
import gzip
from typing import Any

from kant.kube.objects.views import PartialMetadata


class ConfigMap(PartialMetadata, frozen=True):
    """One of them, as the API server has it."""

    binary_data: dict[str, str] | None = None

    def unpacked(self, key: str) -> bytes:
        """What was gzipped under this key; nothing where there is none. Raises OSError, EOFError, ValueError."""
        packed = (self.binary_data or {}).get(key, "")
        return gzip.decompress(base64.b64decode(packed)) if packed else b""


def config_map(meta: dict[str, Any], key: str, packed: bytes) -> dict[str, Any]:
    """A ConfigMap that holds some bytes."""
    data = {key: base64.b64encode(packed).decode()}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "binaryData": data}
