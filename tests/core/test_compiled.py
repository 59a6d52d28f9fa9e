"""The compiled kernels decide as the same functions do in plain Python."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.core.small_runs import all_outcomes

ROOT = Path(__file__).parents[2]


def test_every_profile_decides_and_measures_the_same_compiled_and_not() -> None:
    plain = subprocess.run(
        [sys.executable, "-m", "tests.core.small_runs"],
        cwd=ROOT,
        env={**os.environ, "NUMBA_DISABLE_JIT": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    uncompiled = json.loads(plain.stdout)
    compiled = json.loads(json.dumps(all_outcomes()))
    assert compiled.keys() == uncompiled.keys()
    differ = [name for name in compiled if compiled[name] != uncompiled[name]]
    assert not differ, {name: (compiled[name]["digest"], uncompiled[name]["digest"]) for name in differ}
