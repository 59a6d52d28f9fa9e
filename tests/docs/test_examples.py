"""The example policies of docs/policies.md: installed as a package they are policies like any other."""

from __future__ import annotations

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

EXAMPLES = {
    "placement.fewest-pods": "fewest_pods:FewestPods",
    "order.largest-first": "largest_first:LargestFirst",
    "discipline.one-line": "one_line:OneLine",
    "discipline.shortest-backfills": "shortest_backfills:ShortestBackfills",
}
PAGE = ROOT / "docs" / "policies.md"


def forget() -> None:
    """Look up again what is installed."""
    for cached in (registry.policies, registry._policy, registry._offers):
        cached.cache_clear()


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The examples are a package on the path, as an installer leaves it."""
    metadata = tmp_path / "examples-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: examples\nVersion: 1.0\n")
    points = "".join(f"{name} = {value}\n" for name, value in EXAMPLES.items())
    (metadata / "entry_points.txt").write_text(f"[kant.policies]\n{points}")
    for value in EXAMPLES.values():
        shutil.copy(Path(__file__).parent / "examples" / f"{value.partition(':')[0]}.py", tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    forget()
    yield
    for value in EXAMPLES.values():
        sys.modules.pop(value.partition(":")[0], None)
    monkeypatch.undo()
    forget()


def profile_of_the_page() -> Profile:
    texts = [block.text for block in blocks(PAGE) if block.kind == "toml" and "[discipline]" in block.text]
    return parse_profile(next(text for text in texts if "fewest-pods" in text), "docs/policies.md")


@pytest.mark.long
@pytest.mark.usefixtures("installed")
def test_an_example_keeps_the_rules_of_its_kind() -> None:
    profile = profile_of_the_page()
    for policy in (profile.order, profile.discipline, profile.placement):
        check_policy(policy, rounds=3)


@pytest.mark.usefixtures("installed")
def test_a_profile_schedules_with_the_examples() -> None:
    jobs = make_jobs(submit=[0, 1, 1, 2], runtime=[10, 10, 10, 10], gpus=[2, 1, 2, 1])
    result = simulate(jobs, make_cluster(2, 2), profile_of_the_page())
    # At 1 s one node is free: the larger of the two jobs that arrive takes it, and the others wait for an end.
    assert (result.jobs.first_start // SECOND).tolist() == [0, 10, 1, 10]
    assert result.summary["completed"] == 4


def test_without_the_package_the_names_are_unknown() -> None:
    for name in EXAMPLES:
        kind, _, tag = name.partition(".")
        assert tag not in registry.policies(kind)
