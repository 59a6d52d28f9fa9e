"""What tests of `kant up` share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.local.up import Up


@pytest.fixture(scope="module")
def kant(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """A virtual cluster of two nodes of four GPUs."""
    with Up(tmp_path_factory.mktemp("up") / "home") as up:
        yield up
