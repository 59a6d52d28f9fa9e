"""Recount: what a journal tells is what the run itself left behind."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.core.elastic_runs import elastic_arrivals
from tests.examples import examples

from kant.metrics.result import RunResult
from kant.model.errors import InputError
from kant.model.units import FOREVER
from kant.scheduler.profile import builtin_profile, builtin_texts, parse_profile
from kant.sim.options import read_options
from kant.sim.recount import recount
from kant.sim.run import Run, RunHooks
from kant.testing.drawn import Mould, draw_arrivals, draw_cluster, generator

FAULTY = "[simulation]\nmtbf_days = 0.05\nrepair_h = 0.2\ngpu_fault_share = 0.4\ncheckpoint_s = 300\n"


def same(told: RunResult, run: RunResult) -> None:
    for column in ("id", "queue", "gpus", "submit", "first_start", "end", "wait", "preemptions", "status"):
        assert np.array_equal(getattr(told.jobs, column), getattr(run.jobs, column)), column
    order = [np.lexsort(rows.T[::-1]) for rows in (told.intervals, run.intervals)]
    assert told.intervals[order[0]].tolist() == run.intervals[order[1]].tolist()
    assert told.service.tolist() == run.service.tolist()
    assert told.wait_by_cause is not None and run.wait_by_cause is not None
    assert {k: v.tolist() for k, v in told.wait_by_cause.items()} == {
        k: v.tolist() for k, v in run.wait_by_cause.items()
    }
    assert (told.end, told.queues, told.cluster) == (run.end, run.queues, run.cluster)
    for key in ("wait_s", "jct_s", "digest", "decisions", "completed", "preemptions", "evictions"):
        assert told.summary[key] == run.summary[key], key
    for key in ("gar", "gfr"):  # sums of other parts: the run also looks at instants that leave no line
        assert told.summary[key] == pytest.approx(run.summary[key]), key


@pytest.mark.parametrize("name", ["kant", "srtf", "faulty", "elastic"])
@settings(max_examples=examples(8), suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(seed=st.integers(0, 2**32))
def test_a_journal_tells_what_the_run_left(name: str, seed: int, tmp_path: Path) -> None:
    draw = generator(seed)
    if name == "elastic":
        coming, profile = elastic_arrivals(draw, draw_arrivals(draw, 25, gap=200)), builtin_profile("kant")
    else:
        coming = draw_arrivals(draw, 25, Mould(levels=True), gap=200)
        text = builtin_texts()["fifo-best-effort"]
        profile = parse_profile(text + FAULTY, "test") if name == "faulty" else builtin_profile(name)
    path = tmp_path / "run.jsonl"
    with path.open("wb") as file:
        hooks = RunHooks(journal=file.write, keep_intervals=True, ledger=True)
        options = read_options(profile.simulation, "test")
        run = Run("drawn", draw_cluster(draw, 6), profile, options, 3, FOREVER, hooks)
        result = run.result(iter(coming), len(coming))
    told = recount(path)
    assert told.zero is None
    same(told.result, result)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[: len(lines) // 2]) + lines[len(lines) // 2][:10])  # it still goes on
    half = recount(path).result
    assert half.end <= result.end and not half.interrupted
    assert set(half.jobs.id) <= set(result.jobs.id)


def test_a_journal_with_a_clock_of_its_own_tells_when_that_was_at_zero(tmp_path: Path) -> None:
    profile = builtin_profile("fifo")
    draw = generator(1)
    path = tmp_path / "run.jsonl"
    with path.open("wb") as file:
        options = read_options(profile.simulation, "test")
        run = Run("drawn", draw_cluster(draw, 3), profile, options, 3, FOREVER, RunHooks(journal=file.write))
        run.result(iter(()), 0)
    header = msgspec.json.decode(path.read_bytes().splitlines()[0])
    path.write_bytes(msgspec.json.encode(header | {"zero": 7, "begins": 5}) + b"\n")
    assert recount(path).zero == 7
    path.write_text("{}\n")
    with pytest.raises(InputError):
        recount(path)
