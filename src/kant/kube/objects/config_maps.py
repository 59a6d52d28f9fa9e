"""ConfigMaps with Kant's own data."""

from __future__ import annotations

import base64
import gzip
from typing import Any

from kant.kube.objects.views import PartialMetadata


class ConfigMap(PartialMetadata, frozen=True):
    """A ConfigMap, of which only `binaryData` is read."""

    binary_data: dict[str, str] | None = None

    def unpacked(self, key: str) -> bytes:
        """Return the gunzipped data of `key`; b"" for none. Raises OSError, EOFError or ValueError if malformed."""
        packed = (self.binary_data or {}).get(key, "")
        return gzip.decompress(base64.b64decode(packed)) if packed else b""


def config_map(meta: dict[str, Any], key: str, packed: bytes) -> dict[str, Any]:
    """Return a ConfigMap with these bytes under `key`."""
    data = {key: base64.b64encode(packed).decode()}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "binaryData": data}
