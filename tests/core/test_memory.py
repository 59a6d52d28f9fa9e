"""What a simulated job takes in memory, counted by the allocator: it does not depend on time or on the machine."""

from __future__ import annotations

import gc
import sys
import tracemalloc
from dataclasses import replace
from unittest.mock import patch

import pytest
from benchmarks import traces

from kant.model.errors import StateError
from kant.model.units import FOREVER
from kant.scheduler.profile import builtin_profile
from kant.sim.jobs import Arrivals, Gangs
from kant.sim.options import SimOptions
from kant.sim.run import Run, RunHooks
from kant.workload.workload import COLUMNS

pytestmark = pytest.mark.long

FEW, MANY = 1000, 9000
MOST = 620
"""Bytes a job, at the peak: its columns in the state, among the samples, and in the result. It may only fall."""
MOST_WITH_WORKLOAD = 720
MOST_RINGS = 600
"""Objects of a whole run that refer to one another in a ring, which only the garbage collector frees: none a cycle."""


def peak(jobs: int) -> tuple[int, int]:
    """Jobs of a run, and the most bytes that the run held at once beside its workload."""
    trace = traces.idle(jobs)
    gc.collect()
    tracemalloc.start()
    try:
        trace.simulate()
        return len(trace.workload), tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_job_takes_less_than_six_hundred_and_twenty_bytes() -> None:
    traces.idle(FEW).simulate()  # what is made once for all
    (few, least), (many, most) = peak(FEW), peak(MANY)
    each, workload = (most - least) / (many - few), traces.idle(MANY).workload
    assert 300 < each < MOST, f"{each:.0f} bytes a job"
    columns = sum(column.nbytes for name in COLUMNS if (column := getattr(workload, name)).strides != (0,))
    names = sys.getsizeof(workload.ids) + sum(map(sys.getsizeof, workload.ids))
    assert each + (columns + names) / many < MOST_WITH_WORKLOAD


def test_a_cycle_leaves_nothing_to_the_garbage_collector() -> None:
    """A plan that preempts looks at all running jobs; its tables took 50 MiB before a collection came by."""
    trace = traces.saturated_queues()
    trace.simulate()
    gc.collect()
    gc.disable()
    try:
        result = trace.simulate()
        assert result.summary["preemptions"] > 50
        assert gc.collect() < MOST_RINGS
    finally:
        gc.enable()


def test_ended_jobs_and_their_pieces_are_forgotten() -> None:
    """Names of ended jobs and pieces of stopped ones do not pile up in compiled instants."""
    trace = traces.idle(200)
    run = Run(trace.name, trace.cluster, builtin_profile("fifo"), SimOptions(), 0, FOREVER, RunHooks())
    with patch("kant.sim.advancer.MOST", 16), patch("kant.sim.advancer.STALE", 16):
        run.result(Arrivals(trace.workload, Gangs(trace.cluster, False), SimOptions()), len(trace.workload))
    assert len(run.state.rows) <= 32 < len(run.state.ids)
    assert run.state.pieces_used < 100


def test_a_workload_with_two_jobs_of_one_name_is_refused() -> None:
    trace = traces.idle(200).first(3)
    with pytest.raises(StateError, match="job 'b' was submitted twice"):
        replace(trace, workload=replace(trace.workload, ids=["a", "b", "b"])).simulate()
