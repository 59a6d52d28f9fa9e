"""What the tests of the command line share: a small contended trace and one journal of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cli.command import kant, trace


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trace of 60 jobs that a cluster of 4x8 is too small for at times."""
    return trace(tmp_path_factory.mktemp("small") / "small.csv")


@pytest.fixture(scope="session")
def journal(small: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The journal of a preemptive run of `small`."""
    out = tmp_path_factory.mktemp("journal") / "out"
    summary = kant("simulate", small, "--cluster", "4x8", "--profile", "srtf", "--out", out, "--json").json()
    assert summary["preemptions"] > 0
    return out / "journal.jsonl"
