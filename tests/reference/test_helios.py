"""The simulator of HeliosArtifact on Philly's virtual clusters: every sum of waits and every makespan, exactly."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from tests.examples import part

from kant.model.units import DAY, SECOND
from kant.scheduler.profile import builtin_profile
from kant.sim.run import simulate
from kant.testing import make_cluster
from kant.workload.cluster_file import read_cluster
from kant.workload.read import read_workload
from kant.workload.workload import Workload, make_workload

pytestmark = [pytest.mark.long, pytest.mark.xdist_group("helios")]

DataFile = Callable[[str], Path]

WINDOW = (27 * DAY, 88 * DAY)
NODES = {
    "0e4a51": 16, "103959": 4, "6214e9": 32, "6c71a0": 16, "7f04ca": 16,
    "b436b2": 32, "e13805": 8, "ed69ec": 4, "ee9e8c": 32,
}  # fmt: skip
JOBS = {
    "0e4a51": 1269, "103959": 1450, "6214e9": 33950, "6c71a0": 9383, "7f04ca": 604,
    "b436b2": 7222, "e13805": 264, "ed69ec": 1096, "ee9e8c": 1053,
}  # fmt: skip
FIFO = {
    "0e4a51": (29392772, 5102339), "103959": (114418809, 5453965), "6214e9": (16661562, 6145733),
    "6c71a0": (13500622, 6469551), "7f04ca": (13665921, 5263063), "b436b2": (2406753, 5783906),
    "e13805": (995, 5302270), "ed69ec": (1833545, 5342314), "ee9e8c": (3652396, 6084045),
}  # fmt: skip
SJF = {
    "0e4a51": (19510506, 5102339), "103959": (19684268, 5453965), "6214e9": (13982285, 6145733),
    "6c71a0": (9683373, 6469551), "7f04ca": (5357410, 5263063), "b436b2": (2078924, 5783906),
    "e13805": (995, 5302270), "ed69ec": (1793796, 5342314), "ee9e8c": (1709109, 6084045),
}  # fmt: skip
SRTF = {
    "0e4a51": (11183933, 5102340), "103959": (12192511, 5458931), "6214e9": (12154026, 6156983),
    "6c71a0": (4733300, 6469552), "7f04ca": (2298123, 5263064), "b436b2": (1789822, 5783907),
    "e13805": (731, 5302271), "ed69ec": (1605845, 5342315), "ee9e8c": (1002176, 6084046),
}  # fmt: skip
"""Sum of waits and makespan in seconds."""
SRTF_PREEMPTIONS = {
    "0e4a51": 230, "103959": 508, "6214e9": 3327, "6c71a0": 1471, "7f04ca": 125,
    "b436b2": 1538, "e13805": 3, "ed69ec": 210, "ee9e8c": 38,
}  # fmt: skip
QUANTILES = {
    ("helios-fifo", "0e4a51"): (118865.3, 23162.2, 76257.0, 278165.9),
    ("helios-sjf", "103959"): (38112.7, 13575.4, 26911.0, 245525.6),
    ("helios-srtf", "ed69ec"): (26926.5, 1465.2, 1079.0, 50227.0),
}
"""Mean JCT, and mean, p90 and p99 of the waits, in seconds to a tenth."""
EXPECTED = {"helios-fifo": FIFO, "helios-sjf": SJF, "helios-srtf": SRTF}


@cache
def philly(path: Path) -> Workload:
    return read_workload(path, format="philly", window=WINDOW)


def virtual_cluster(path: Path, name: str) -> Workload:
    """The jobs of one virtual cluster. The trace is read once for all of them."""
    every = philly(path)
    return every.take(every.queue == every.queues.index(name))


LARGE = ("6214e9", "6c71a0", "b436b2")
"""They have nine tenths of the jobs: each is taken under one profile, or with KANT_EXAMPLES=3 under all."""
CASES = [(profile, vc) for profile in EXPECTED for vc in NODES if vc not in LARGE]
CASES += [(profile, vc) for i, profile in enumerate(EXPECTED) for vc in part(LARGE, i, 3)]


@pytest.mark.parametrize(("profile", "vc"), CASES)
def test_the_sum_of_waits_and_the_makespan_are_the_published_integers(
    data_file: DataFile, profile: str, vc: str
) -> None:
    workload = virtual_cluster(data_file("philly_jobs.csv.gz"), vc)
    result = simulate(workload, make_cluster(*[8] * NODES[vc]), builtin_profile(profile))
    summary = result.summary
    assert summary["completed"] == JOBS[vc]
    assert (int(result.jobs.wait.sum()), int(result.jobs.end.max())) == tuple(
        seconds * SECOND for seconds in EXPECTED[profile][vc]
    )
    if profile == "helios-srtf":
        assert summary["preemptions"] == SRTF_PREEMPTIONS[vc]
    if (profile, vc) in QUANTILES:
        waits = summary["wait_s"]
        found = (summary["jct_s"]["mean"], waits["mean"], waits["p90"], waits["p99"])
        assert found == pytest.approx(QUANTILES[profile, vc], abs=0.0501)


@pytest.mark.parametrize(
    ("profile", "ends", "waits", "preemptions"),
    [
        ("helios-fifo", [100, 110, 160], [0, 80, 85], 0),
        ("helios-sjf", [100, 110, 160], [0, 80, 85], 0),
        ("helios-srtf", [193, 31, 82], [62, 0, 6], 1),
    ],
)
def test_the_hand_check_with_three_jobs_on_one_node(
    profile: str, ends: list[int], waits: list[int], preemptions: int
) -> None:
    workload = make_workload(
        "hand", np.array([0, 20, 25]) * SECOND, np.array([100, 10, 50]) * SECOND, np.array([8, 4, 6])
    )
    result = simulate(workload, read_cluster("1x8"), builtin_profile(profile))
    assert (result.jobs.end // SECOND).tolist() == ends
    assert (result.jobs.wait // SECOND).tolist() == waits
    assert result.summary["preemptions"] == preemptions
