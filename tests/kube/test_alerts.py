"""The alerts of the PrometheusRule, played through by Prometheus' own promtool: the machine's, or Debian's."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from tests.kube.binaries import caches

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


@pytest.fixture
def promtool(tmp_path: Path) -> str:
    """The machine's own, or that of Debian's package prometheus, which is fetched once and not installed."""
    kept = caches()[0] / "promtool"
    if (found := shutil.which("promtool") or shutil.which(kept)) is not None:
        return found
    fetch = "(apt-get download prometheus || (apt-get update && apt-get download prometheus)) && dpkg-deb -x *.deb ."
    done = subprocess.run(["sh", "-c", fetch], cwd=tmp_path, capture_output=True, text=True)
    if done.returncode != 0:
        sentence = "no promtool on the path, and no Debian package prometheus to be had"
        if os.environ.get("CI") == "true":
            pytest.fail(f"{sentence}: {done.stderr}", pytrace=False)
        pytest.skip(sentence)
    kept.parent.mkdir(parents=True, exist_ok=True)
    own = kept.with_suffix(f".{os.getpid()}")
    shutil.copy2(tmp_path / "usr/bin/promtool", own)
    own.replace(kept)
    return str(kept)


def test_alerts_come_when_they_should_and_not_before(tmp_path: Path, promtool: str) -> None:
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump({"groups": [{"name": "kant", "rules": rules()}]}))
    (tmp_path / "alerts.yaml").write_text(STORIES.read_text())
    done = subprocess.run([promtool, "test", "rules", "alerts.yaml"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
