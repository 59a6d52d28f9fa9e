"""Integer columns and lists of names as small text: byte planes, deflate, base64. `codec.ts` reads them."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

LARGEST = 1 << 53
"""JavaScript represents integers below this limit exactly."""

Blob = dict[str, Any]


def pack(values: ArrayLike, *, delta: bool = False) -> Blob:
    """Pack one column of integers below 2**53 in size.

    With `delta` the differences of neighbours are stored. Negative numbers are mapped to odd ones (zigzag). The lowest
    bytes of all numbers come first, then the second lowest, and so on: columns that change slowly become long runs of
    equal bytes.
    """
    column = np.asarray(values, dtype=np.int64)
    if delta:
        column = np.diff(column, prepend=0)
    zigzag = bool(len(column)) and int(column.min()) < 0
    if zigzag:
        column = (column << 1) ^ (column >> 63)
    largest = int(column.max()) if len(column) else 0
    if largest >= LARGEST:
        raise ValueError(f"a column of the report holds {largest}, too large for the page")
    width = max(1, (largest.bit_length() + 7) // 8)
    planes = column.astype("<u8").view(np.uint8).reshape(-1, 8).T[:width]
    return {
        "n": len(column),
        "bytes": width,
        "delta": delta,
        "zigzag": zigzag,
        "data": _text(planes.tobytes()),
    }


def pack_names(names: Sequence[str]) -> Blob:
    """Pack a list of strings."""
    return {"n": len(names), "data": _text(json.dumps(list(names)).encode("ascii"))}


def size(value: object) -> int:
    """Return the bytes of compressed data in `value`: a blob, or dictionaries and lists of blobs."""
    if isinstance(value, dict):
        data = value.get("data")
        if isinstance(data, str):
            return len(data) * 3 // 4
        return sum(size(part) for part in value.values())
    if isinstance(value, list):
        return sum(size(part) for part in value)
    return 0


def _text(raw: bytes) -> str:
    return base64.b64encode(zlib.compress(raw, 6)).decode("ascii")
