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


WIDE_GANG = """
from kant.cluster.snapshot import Snapshot
from kant.cluster.state import ClusterState
from kant.placement.placer import Placer
from kant.testing import make_cluster, make_job, make_named_policy
state = ClusterState(make_cluster(*[1] * 90))
shape = state.shapes.of(make_job("wide", 1, pods=80))
for name in ("best-fit", "e-binpack", "kant", "spread", "e-spread"):
    placer = Placer(Snapshot(state), make_named_policy("placement", name), 0)
    assert placer.never_fits(shape) is None
    assert len(placer.place(shape)) == 80
"""


def test_the_first_gang_has_room_for_all_its_pieces_however_wide_it_is() -> None:
    """Uncompiled, since compiled code writes beyond the end of a table without a word."""
    subprocess.run(
        [sys.executable, "-c", WIDE_GANG], cwd=ROOT, env={**os.environ, "NUMBA_DISABLE_JIT": "1"}, check=True
    )
