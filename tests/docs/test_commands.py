"""What the documentation tells a reader to type works, and prints what it says (conventions: `pages`)."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.docs.forked import forked_kant
from tests.docs.pages import PAGES, ROOT, blocks, name_of, squeezed
from tests.docs.session import Session
from tests.environment import fresh_environment

pytestmark = pytest.mark.long

WITH_COMMANDS = [
    page for page in PAGES if any(block.kind in ("sh", "console") or block.what == "python" for block in blocks(page))
]
KINDS = {"file", "output", "fails", "needs", "not run", "python", "source", ""}


@pytest.fixture(scope="module")
def forked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with forked_kant(tmp_path_factory.mktemp("forked")) as folder:
        yield folder


@pytest.mark.parametrize("page", WITH_COMMANDS, ids=name_of)
def test_the_commands_of_a_page_do_what_it_says(page: Path, tmp_path: Path, forked: Path) -> None:
    if shutil.which("bash") is None:
        pytest.skip("the commands of the documentation need bash")
    installs = any("pip install" in block.text and block.what != "not run" for block in blocks(page))
    first = tmp_path / "venv" / "bin" if installs else forked
    environment = (fresh_environment(tmp_path / "venv") if installs else os.environ) | {
        "PATH": f"{first}{os.pathsep}{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "COLUMNS": "140",
        "LC_ALL": "C.UTF-8",
        "KANT_HOME": str(tmp_path / "up"),
    }
    try:
        with Session(forked / "session", tmp_path, environment) as session:
            run_blocks(page, tmp_path, environment, session)
    finally:
        if (tmp_path / "up" / "kant.sock").exists():  # a page that failed halfway
            subprocess.run(["kant", "down"], env=environment, check=False)


def run_blocks(page: Path, tmp_path: Path, environment: dict[str, str], session: Session) -> None:
    """Do what the page says, in its order."""
    printed: str | None = ""
    for block in blocks(page):
        if block.what == "file":
            (tmp_path / block.rest).parent.mkdir(exist_ok=True)
            (tmp_path / block.rest).write_text(block.text, encoding="utf-8")
        elif block.what == "output" and printed is not None:
            for line in squeezed(block.text).splitlines():
                assert line in squeezed(printed), f"{name_of(page)}: {line!r} is not in:\n{printed}"
        elif block.what == "python":
            printed, failed = session.run(block.text)
            assert failed == (block.rest == "raises"), f"{name_of(page)}: {block.text}\n{printed}"
        elif block.what == "needs" and shutil.which(block.rest) is None:
            printed = None
        elif block.kind in ("sh", "console") and block.what != "not run":
            done = subprocess.run(
                ["bash", "-euo", "pipefail", "-c", block.text],
                cwd=tmp_path,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=300,
            )
            printed = done.stdout
            expected = int(block.rest) if block.what == "fails" else 0
            assert done.returncode == expected, f"{name_of(page)}: {block.text}\n{printed}"


def test_a_comment_before_a_block_is_one_that_the_tests_know() -> None:
    for page in PAGES:
        for block in blocks(page):
            assert block.what in KINDS, f"{name_of(page)}: <!-- {block.what} -->"
            assert block.what != "not run" or block.rest, f"{name_of(page)}: `not run` says why"


def test_a_block_that_shows_a_file_is_that_file() -> None:
    for page in PAGES:
        for block in blocks(page):
            if block.what == "source":
                assert block.text == (ROOT / block.rest).read_text(encoding="utf-8"), f"{name_of(page)}: {block.rest}"
