"""A package of policies that is installed beside Kant does not fail Kant's own tests."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.core.test_registry import ORDER
from tests.docs.pages import ROOT

WHAT = ("docs/test_pages.py", "docs/test_curriculum.py", "cli/test_check_policy.py", "core/test_registry.py")
BESIDE = {
    "kant-beside": "order.beside = kant_beside:Largest",
    "kant-curriculum": "discipline.fill = kant_fill:Fill",  # the example, of which a test installs a copy of its own
}


def install(name: str, points: str, site: Path) -> None:
    """What an installer leaves of a package."""
    info = site / f"{name.replace('-', '_')}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[kant.policies]\n{points}\n")


@pytest.mark.long
def test_kants_own_tests_pass_beside_a_package_of_policies(tmp_path: Path) -> None:
    (tmp_path / "kant_beside.py").write_text(ORDER.replace("largest", "beside").replace("least", "beyond"))
    for name, points in BESIDE.items():
        install(name, points, tmp_path)
    environment = os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT / 'examples' / 'curriculum'}"}
    command = [sys.executable, "-m", "kant", "policies"]
    assert "beside" in subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    tests = [f"tests/{name}" for name in WHAT]
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-k", "polic or option or fillers_start", *tests]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
