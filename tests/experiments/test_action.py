"""The GitHub Action of the gate: its script passes what it is given to `kant gate`."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
import yaml
from tests.cli.command import KANT, environment, trace

ACTION = Path(__file__).parents[2] / "deploy" / "gate-action" / "action.yml"


@pytest.mark.long
def test_the_step_of_the_action_is_a_gate(tmp_path: Path) -> None:
    action = yaml.safe_load(ACTION.read_text())
    step = action["runs"]["steps"][-1]
    inputs = {name: entry.get("default", "") for name, entry in action["inputs"].items()}
    month = trace(tmp_path / "last month.csv", jobs=90)
    inputs |= {"old": "srtf", "new": "fifo", "traces": f"{month}\n{month}\n", "cluster": "4x8", "slices": "3"}
    given = {name: inputs[value.split("inputs.")[1].split(" ")[0]] for name, value in step["env"].items()}
    given |= {
        "GITHUB_STEP_SUMMARY": str(tmp_path / "summary.md"),
        "PATH": f"{KANT.parent}{os.pathsep}{os.environ['PATH']}",
    }
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", step["run"]], env=environment(given), capture_output=True, text=True
    )
    assert done.returncode == 1, done
    assert done.stdout.startswith("REGRESSION") and "over 6 slices" in done.stdout
    assert "fifo in place of srtf" in (tmp_path / "summary.md").read_text()
