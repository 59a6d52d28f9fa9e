"""Reads a file, plain or gzip; read errors become one sentence."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path

from kant.model.errors import InputError

MAGIC = b"\x1f\x8b"


def read_bytes(path: Path) -> bytes:
    """Return the content of a file; raises InputError if it is absent, unreadable or truncated."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(str(path), f"a file that can be read ({error.strerror or error})") from None
    if content[:2] != MAGIC:
        return content
    try:
        return gzip.decompress(content)
    except (OSError, EOFError, zlib.error):
        raise InputError(str(path), "a whole gzip file") from None
