"""The simulator of Muri and Tiresias, to the float noise: three published cells and a hand-check.

KANT_EXAMPLES=2 takes all six cells."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tests.examples import part

from kant.model.units import SECOND
from kant.scheduler.profile import builtin_profile
from kant.sim.run import simulate
from kant.workload.cluster_file import read_cluster
from kant.workload.read import read_workload
from kant.workload.workload import make_workload

pytestmark = pytest.mark.long

DataFile = Callable[[str], Path]

CELLS = {
    ("trace1", "muri-srtf"): (1494, 1370603.197651, 26045465.532945, 16647148.090740),
    ("trace1", "muri-srsf"): (1494, 980140.569929, 26065759.044845, 15529913.227905),
    ("trace1", "muri-tiresias"): (1494, 3330371.306772, 23556410.217355, 14739851.505200),
    ("trace3", "muri-srtf"): (992, 193081.796024, 8174135.280030, 4538890.607380),
    ("trace3", "muri-srsf"): (992, 185021.880164, 8174135.280030, 4189699.176840),
    ("trace3", "muri-tiresias"): (992, 347213.248119, 8174226.280030, 4983397.254010),
}
"""Jobs, and mean JCT, makespan and p99 JCT in seconds."""


@pytest.mark.parametrize(("trace", "profile"), part(list(CELLS), 0))
def test_a_published_cell_is_met_to_a_millisecond(data_file: DataFile, trace: str, profile: str) -> None:
    workload = read_workload(data_file("muri_traces_1_3.csv.gz"), format="muri", slice=trace)
    summary = simulate(workload, read_cluster("8x8"), builtin_profile(profile)).summary
    found = (summary["completed"], summary["jct_s"]["mean"], summary["makespan_s"], summary["jct_s"]["p99"])
    assert found == pytest.approx(CELLS[trace, profile], abs=0.001, rel=0)


@pytest.mark.parametrize(
    ("profile", "ends", "preemptions"),
    [
        ("muri-srtf", [1146.5, 623.5, 301.5], 1),
        ("muri-srsf", [1146.5, 623.5, 301.5], 1),
        ("muri-tiresias", [1165.5, 668.5, 323.5], None),
    ],
)
def test_the_hand_check_with_three_jobs_of_32_gpus(profile: str, ends: list[float], preemptions: int | None) -> None:
    """bert, dqn and gpt2 with 1000, 500 and 100 iterations of a second; overheads of 10, 8 and 10 s."""
    workload = make_workload(
        "hand",
        np.array([0, 100, 200]) * SECOND,
        np.array([1000, 500, 100]) * SECOND,
        np.array([32, 32, 32]),
        overhead=np.array([10, 8, 10]) * SECOND,
    )
    result = simulate(workload, read_cluster("8x8"), builtin_profile(profile))
    assert result.jobs.end / SECOND == pytest.approx(ends, abs=1e-6)
    if preemptions is not None:
        assert result.summary["preemptions"] == preemptions
