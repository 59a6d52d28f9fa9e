"""ConfigMaps that carry data of Kant's own."""

from __future__ import annotations

import base64
from typing import Any


def config_map(meta: dict[str, Any], key: str, packed: bytes) -> dict[str, Any]:
    """A ConfigMap that holds some bytes."""
    data = {key: base64.b64encode(packed).decode()}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "binaryData": data}
