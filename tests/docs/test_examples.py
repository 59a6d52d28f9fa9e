"""The example policies of docs/policies.md: dropped into their folders they are policies like any other."""

from __future__ import annotations

import importlib
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.docs.pages import ROOT, blocks

from kant.model.units import SECOND
from kant.scheduler import registry
from kant.scheduler.profile import Profile, parse_profile
from kant.sim.run import simulate
from kant.testing import check_policy, make_cluster, make_jobs

EXAMPLES = {"fewest_pods": "placement", "largest_first": "order", "one_line": "discipline"}
PAGE = ROOT / "docs" / "policies.md"


@pytest.fixture
def dropped_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The examples lie in folders that the policy packages look into."""
    for name, kind in EXAMPLES.items():
        package_name = registry.KINDS[kind][1]
        folder = tmp_path / kind
        folder.mkdir()
        shutil.copy(Path(__file__).parent / "examples" / f"{name}.py", folder)
        package = importlib.import_module(package_name)
        monkeypatch.setattr(package, "__path__", [*package.__path__, str(folder)])
        monkeypatch.delitem(sys.modules, f"{package_name}.{name}", raising=False)
    registry.policies.cache_clear()
    yield
    registry.policies.cache_clear()
    for name, kind in EXAMPLES.items():
        sys.modules.pop(f"{registry.KINDS[kind][1]}.{name}", None)


def profile_of_the_page() -> Profile:
    return parse_profile(next(block.text for block in blocks(PAGE) if block.kind == "toml"), "docs/policies.md")


@pytest.mark.usefixtures("dropped_in")
def test_an_example_keeps_the_rules_of_its_kind() -> None:
    profile = profile_of_the_page()
    for policy in (profile.order, profile.discipline, profile.placement):
        check_policy(policy, rounds=3)


@pytest.mark.usefixtures("dropped_in")
def test_a_profile_schedules_with_the_examples() -> None:
    jobs = make_jobs(submit=[0, 1, 1, 2], runtime=[10, 10, 10, 10], gpus=[2, 1, 2, 1])
    result = simulate(jobs, make_cluster(2, 2), profile_of_the_page())
    # At 1 s one node is free: the larger of the two jobs that arrive takes it, and the others wait for an end.
    assert (result.jobs.first_start // SECOND).tolist() == [0, 10, 1, 10]
    assert result.summary["completed"] == 4


def test_without_the_files_the_names_are_unknown() -> None:
    for kind in ("order", "discipline", "placement"):
        assert not {"largest-first", "one-line", "fewest-pods"} & set(registry.policies(kind))
