"""A verb whose extra is not installed says which, in one sentence; the others do not need it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from kant.scheduler.profile import builtin_profile, builtin_texts

BARE = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"uvloop", "yaml", "grpc", "ortools", "matplotlib", "ray", "mcp", "jwt", "zmq"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
from kant.cli import main
sys.exit(main())
"""


def bare(home: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """A command of Kant where nothing but its own dependencies is installed, as after `make run`."""
    env = os.environ | {"KANT_HOME": str(home)}
    return subprocess.run(
        [sys.executable, "-c", BARE, *words], capture_output=True, text=True, check=False, env=env, cwd=home
    )


@pytest.mark.parametrize(
    ("words", "extra"),
    [
        (("serve", "pick", "--backends", "http://127.0.0.1:1"), "picker"),
        (("kube", "run", "--kubeconfig", "config"), "kube"),
        (("jobs", "--kubeconfig", "config"), "kube"),
        (("mcp",), "mcp"),
        (("up", "--oidc", "config"), "oidc"),
        (("serve", "route", "--backends", "http://127.0.0.1:1", "--router", "prefix", "--kv-events", "1"), "kv-events"),
    ],
)
def test_a_verb_names_the_extra_that_it_needs(tmp_path: Path, words: tuple[str, ...], extra: str) -> None:
    (tmp_path / "config").write_text("{}")
    done = bare(tmp_path, *words)
    expected = f"kant: this installation: expected the extra `{extra}` (pip install 'kant-scheduler[{extra}]')"
    assert (done.returncode, done.stderr.strip()) == (2, expected)


@pytest.mark.long
def test_the_others_need_none(tmp_path: Path) -> None:
    found = bare(tmp_path, "profiles", "--json")
    assert json.loads(found.stdout) == {name: builtin_profile(name).about for name in builtin_texts()}
    alone = False
    for words, said in ((("up", "--listen", "none", "--detach"), "this machine has "), (("down",), "Kant is down")):
        done = bare(tmp_path, *words)
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith(said)
        if pid := re.search(r"Kant is up: process (\d+)", done.stdout):
            alone = os.getsid(int(pid[1])) == int(pid[1])
    assert alone, "expected a session of its own, so that the end of a terminal does not end it"
