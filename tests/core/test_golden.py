"""Same input, same profile, same seed: the same decisions as when the digests in golden.json were written.

When decisions are meant to change, say so in the commit and write them again:

    KANT_REFRESH_GOLDEN=1 python -m pytest tests/core/test_golden.py
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from tests.core.small_runs import small_pods_run, small_run, small_services_run

from kant.scheduler.profile import builtin_profile, builtin_texts

GOLDEN = Path(__file__).with_name("golden.json")
REFRESH = os.environ.get("KANT_REFRESH_GOLDEN") == "1"


def digests(name: str) -> dict[str, str]:
    """The digests of the small runs of one profile, by workload."""
    profile = builtin_profile(name)
    runs = [small_run(profile)]
    if not profile.simulation:
        runs.append(small_pods_run(profile))
    if profile.strategies:
        runs.append(small_services_run(profile))
    return {run.workload: run.summary["digest"] for run in runs}


@pytest.mark.skipif(not REFRESH, reason="only with KANT_REFRESH_GOLDEN=1")
def test_refresh() -> None:
    table = {name: digests(name) for name in builtin_texts()}
    GOLDEN.write_text(json.dumps(table, indent=1, sort_keys=True) + "\n")


@pytest.mark.parametrize("name", builtin_texts())
def test_a_profile_decides_as_it_did(name: str) -> None:
    golden = json.loads(GOLDEN.read_text())
    assert name in golden, "a new profile: KANT_REFRESH_GOLDEN=1 adds its digests"
    assert digests(name) == golden[name]


def test_no_digest_is_left_of_a_profile_that_went() -> None:
    assert set(json.loads(GOLDEN.read_text())) == set(builtin_texts())
