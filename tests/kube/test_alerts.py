"""The alerts of the PrometheusRule, played through by Prometheus' own promtool, where the machine has one.

It comes with Debian's package prometheus, or is built by `go install github.com/prometheus/prometheus/cmd/promtool`:
many minutes, for which the tests do not wait. Where it is missing the test is skipped, also with CI=true.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from kant.kube.manifests import part

STORIES = Path(__file__).parent / "alerts.yaml"


def rules() -> list[dict[str, object]]:
    groups: list[dict[str, list[dict[str, object]]]] = yaml.safe_load(part("prometheus-rule"))["spec"]["groups"]
    return [rule for group in groups for rule in group["rules"]]


def test_each_alert_has_a_story_in_which_it_comes_and_one_in_which_it_does_not() -> None:
    comes, stays = set(), set()
    for story in yaml.safe_load(STORIES.read_text())["tests"]:
        for one in story["alert_rule_test"]:
            (comes if one.get("exp_alerts") else stays).add(one["alertname"])
    assert comes == stays == {rule["alert"] for rule in rules()}


def test_alerts_come_when_they_should_and_not_before(tmp_path: Path) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("no promtool on PATH (Debian's package prometheus has one)")
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump({"groups": [{"name": "kant", "rules": rules()}]}))
    (tmp_path / "alerts.yaml").write_text(STORIES.read_text())
    done = subprocess.run([promtool, "test", "rules", "alerts.yaml"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
