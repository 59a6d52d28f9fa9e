"""What the tests of workloads share: writing a small file and reading it back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

Put = Callable[[str, str | bytes], Path]


@pytest.fixture
def put(tmp_path: Path) -> Put:
    """Writes a file of the given name and content, and returns its path."""

    def write(name: str, content: str | bytes) -> Path:
        path = tmp_path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return write
