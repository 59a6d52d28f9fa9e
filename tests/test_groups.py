"""Tests that share a control plane, a browser or a result run in one worker: pytest-xdist names the group in their ids.

Without it each worker starts all of them for itself, and nothing else tells.
"""

from __future__ import annotations

import os

import pytest


def test_pytest_xdist_sees_the_groups(request: pytest.FixtureRequest) -> None:
    groups = {item.nodeid: item.get_closest_marker("xdist_group") for item in request.session.items}
    asked = request.config.getoption("loadgroup", default=False)
    missed = [name for name, mark in groups.items() if asked and mark and not name.endswith(f"@{mark.args[0]}")]
    assert not missed, missed[:5]


def test_only_tests_that_wait_for_other_processes_are_tried_again(request: pytest.FixtureRequest) -> None:
    for item in request.session.items:
        waits = any(item.get_closest_marker(need) for need in ("cluster", "browser", "service"))
        again = waits and os.environ.get("CI") == "true"
        assert bool(item.get_closest_marker("flaky")) == again, item.nodeid
