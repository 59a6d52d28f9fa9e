"""A package of policies that is installed beside Kant does not fail Kant's own tests."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.core.test_registry import ORDER
from tests.docs.pages import ROOT

WHAT = ("tests/docs/test_pages.py", "tests/cli/test_check_policy.py", "tests/core/test_registry.py")


@pytest.mark.long
def test_kants_own_tests_pass_beside_a_package_of_policies(tmp_path: Path) -> None:
    (tmp_path / "kant_beside.py").write_text(ORDER.replace("largest", "beside").replace("least", "beyond"))
    info = tmp_path / "kant_beside-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: kant-beside\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[kant.policies]\norder.beside = kant_beside:Largest\n")
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-m", "kant", "policies"]
    assert "beside" in subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-k", "polic or option", *WHAT]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
