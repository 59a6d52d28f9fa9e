"""What every test may use: the folder of real traces, and Hypothesis profiles."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

ROOT = Path(__file__).parent.parent
DATA = Path(os.environ.get("KANT_DATA", ROOT.parent / "shared" / "data"))

# How long an example takes says nothing: the first ones compile, and machines are shared.
settings.register_profile("default", deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=50)
settings.register_profile("ci", settings.get_profile("default"), max_examples=60, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") == "true" else "default")

DataFile = Callable[[str], Path]


@pytest.fixture(scope="session")
def data_file() -> DataFile:
    """Gives the path of a real trace by name. Where it is absent the test is skipped, or fails if CI=true."""

    def find(name: str) -> Path:
        path = DATA / name
        if not path.is_file():
            sentence = f"no {name} in {DATA} (set KANT_DATA to the folder of real traces)"
            if os.environ.get("CI") == "true":
                pytest.fail(sentence, pytrace=False)
            pytest.skip(sentence)
        return path

    return find
