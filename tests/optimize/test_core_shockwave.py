"""The discipline `shockwave` of the core beside `kant share` on the same jobs: both end at about the same time."""

from __future__ import annotations

import numpy as np
import pytest
from tests.examples import part

from kant.model.adaptive import plain_job
from kant.model.units import SECOND
from kant.optimize.share.policies import POLICIES
from kant.optimize.share.rounds import simulate as share
from kant.scheduler.profile import builtin_profile
from kant.sim.run import simulate
from kant.testing import make_cluster
from kant.workload.workload import make_workload

pytestmark = pytest.mark.long

GPUS = 32
MIXES: dict[str, tuple[list[int], float, float, float]] = {
    "wide": ([1, 8, 16, 32], 6.8, 60, 1.02),
    "odd": ([3, 5, 6, 7], 7.0, 60, 1.09),
    "whole cluster": ([1, 2, 32], 6.5, 100, 1.02),
    "narrow": ([1, 2, 4], 7.2, 30, 1.05),
}
"""GPUs of a job, logarithm of the median run time in seconds, mean seconds between two arrivals, and by what factor the
core may end later: at most 1.10, and less where it lost time by stopping jobs that could go on."""


@pytest.mark.parametrize("name, seed", [(name, seed) for i, name in enumerate(MIXES) for seed in part((1, 2), i)])
def test_the_discipline_ends_hardly_later_than_the_program(name: str, seed: int) -> None:
    sizes, median, gap, later = MIXES[name]
    draw, jobs = np.random.Generator(np.random.PCG64(seed)), 40
    gpus = draw.choice(sizes, jobs)
    seconds = np.exp(draw.normal(median, 0.8, jobs)).astype(np.int64) + 60
    arrivals = np.cumsum(draw.exponential(gap, jobs)).astype(np.int64)
    rows = zip(arrivals.tolist(), gpus.tolist(), seconds.tolist(), strict=True)
    program = share(
        [plain_job(f"j{i}", float(at), wide, float(runs), "default") for i, (at, wide, runs) in enumerate(rows)],
        GPUS,
        POLICIES["shockwave"],
    )
    workload = make_workload(name, arrivals * SECOND, seconds * SECOND, gpus)
    core = simulate(workload, make_cluster(*[8] * (GPUS // 8)), builtin_profile("shockwave"))
    assert core.end / SECOND <= later * program.makespan_s, core.end / SECOND / program.makespan_s
