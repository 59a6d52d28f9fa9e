"""A worker that dies ends the run with a failure. It neither hangs nor passes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.patience import PATIENCE_S

ROOT = Path(__file__).parents[1]
TESTS = """
import ctypes, os, signal
from pathlib import Path
import pytest
pytestmark = pytest.mark.xdist_group("one")

def test_takes_the_handler():
    ctypes.CDLL(None).signal(signal.SIGINT, signal.SIG_DFL)

def test_interrupts_itself():
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)

def test_dies():
    with Path("deaths").open("a") as file:
        file.write("one\\n")
    os.kill(os.getpid(), signal.SIGKILL)
"""
LATE = """
import os

def pytest_sessionfinish(session):
    if hasattr(session.config, "workerinput"):  # in a worker
        os._exit(0)
"""


def run(folder: Path) -> tuple[int, str]:
    command = [sys.executable, "-m", "pytest", "-c", ROOT / "pyproject.toml", "--rootdir", folder, "-p", "tests.whole"]
    done = subprocess.run(
        [*command, "-p", "no:cacheprovider", "-n", "1", "--dist", "loadgroup", "test_them.py"],
        cwd=folder, env={**os.environ, "PYTEST_ADDOPTS": ""}, capture_output=True, text=True, timeout=PATIENCE_S,
        check=False,
    )  # fmt: skip
    return done.returncode, done.stdout


@pytest.mark.long
def test_a_death_ends_the_run_and_no_handler_is_taken_unseen(tmp_path: Path) -> None:
    (tmp_path / "test_them.py").write_text(TESTS)
    code, said = run(tmp_path)
    assert code == 1 and "crashed while running 'test_them.py::test_dies@one'" in said
    assert "expected a handler of SIGINT" in said and "1 failed, 2 passed, 1 error" in said
    assert (tmp_path / "deaths").read_text() == "one\n"


@pytest.mark.long
def test_a_death_after_the_last_test_fails_the_run(tmp_path: Path) -> None:
    (tmp_path / "test_them.py").write_text("def test_it(): pass\n")
    (tmp_path / "conftest.py").write_text(LATE)
    code, said = run(tmp_path)
    assert code == 1 and "1 passed" in said and "node down" in said
