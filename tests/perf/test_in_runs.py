"""Jobs that say what they train: speed, JTTED and the choice to wait go by the predicted step; others are as before."""

from __future__ import annotations

from dataclasses import replace as changed
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.examples import examples

from kant.cluster.state import ClusterState
from kant.model.errors import InputError
from kant.model.fabric import Fabric, Link
from kant.model.node import ClusterSpec, Node
from kant.model.training import Training
from kant.model.units import HOUR, MINUTE, SECOND
from kant.placement.calendar.calendar import Calendar
from kant.placement.cost.communication import FULL, Spans
from kant.placement.cost.slowdown import T_GPUS, Slowdowns
from kant.placement.cost.wait_or_place import wait_or_place
from kant.placement.perf.step import step, step_slowdown
from kant.scheduler.profile import Profile, parse_profile
from kant.sim.replay import replay
from kant.sim.run import RunHooks, simulate
from kant.testing import make_job, make_jobs
from kant.testing.strategies import workloads
from kant.workload.digest import workload_digest
from kant.workload.kant_table import parse, to_table, trace_of
from kant.workload.workload import Workload

MOE = Training(4, 2048, 8192, length=2048, experts=8, top_k=2, tensor=4, expert=4)
SLOW = Fabric(spine=Link(5.0, 10.6, 4.0))


def leaves(*names: str, fabric: Fabric = SLOW) -> ClusterSpec:
    """A node of four GPUs in each leaf that is named."""
    return ClusterSpec("leaves", tuple(Node(f"n{i}", 4, leaf=name) for i, name in enumerate(names)), fabric)


@given(st.permutations(range(8)), st.sampled_from((None, MOE, replace(MOE, tensor=8, expert=2))))
@settings(max_examples=examples(20), deadline=None)
def test_a_slowdown_is_the_ratio_of_predicted_steps(order: list[int], training: Training | None) -> None:
    state = ClusterState(leaves(*"aabbccdd"))
    slowdowns = Slowdowns(state)
    shape = state.shapes.of(replace(make_job("j", 4, 4), training=training))
    place = np.array([[node, 1, 15, 1000, 0, 0, 4] for node in order[:4]], dtype=np.int64)
    spans = slowdowns.spans(place)
    here, best = (
        Spans(gpus, nodes, hbds, tuple(most))  # type: ignore[arg-type]
        for gpus, nodes, hbds, *most in (columns[T_GPUS:].tolist() for columns in (spans, slowdowns.best(shape.index)))
    )
    found = slowdowns.of(shape.index, spans)
    if training is None:
        assert shape == state.shapes.of(make_job("other", 4, 4))
    else:
        ratio = step(training, SLOW, here).seconds / step(training, SLOW, best).seconds
        assert found == step_slowdown(training, SLOW, here, best) == max(FULL, int(ratio * FULL + 0.5))


def four_leaves(fabric: Fabric = SLOW) -> ClusterSpec:
    return leaves(*"aabbccdd", fabric=fabric)


def with_training(workload: Workload, training: Training | None) -> Workload:
    return changed(workload, training=np.ones(len(workload), dtype=np.int64), trainings=(None, training))


def profile_of(placement: str) -> Profile:
    """As a text that a journal can carry."""
    text = f"""
        name = "stretched"
        order = {{ policy = "fifo" }}
        discipline = {{ policy = "best-effort" }}
        placement = {{ policy = "{placement}" }}
        simulation = {{ speed = "placed", shape = "gpu" }}
    """
    return parse_profile(text, "test")


def test_run_times_and_jtted_go_by_the_predicted_step_and_a_journal_carries_it(tmp_path: Path) -> None:
    """One job of 16 GPUs in pods of one, worst fit: half of each of eight nodes, over four leaves."""
    jobs, path = make_jobs(submit=[0], runtime=[1000], gpus=[16]), tmp_path / "journal.jsonl"
    with path.open("wb") as file:
        hooks = RunHooks(journal=file.write)
        result = simulate(with_training(jobs, MOE), four_leaves(), profile_of("worst-fit"), hooks=hooks)
    spread = Spans(16, 8, 8, (2, 2, 4, 16, 16))
    packed = Spans(16, 4, 4, (4, 4, 8, 16, 16))
    ratio = step_slowdown(MOE, SLOW, spread, packed)
    assert ratio > 1100
    assert int(result.jobs.end[0]) == 1000 * SECOND * ratio // FULL
    assert result.summary["jtted"]["mean"] == ratio / FULL
    again = replay(path)
    assert again.equal
    assert again.result.summary["jtted"] == result.summary["jtted"]
    other = simulate(jobs, four_leaves(), profile_of("worst-fit"))
    assert other.summary["jtted"]["mean"] != ratio / FULL


@given(workloads(most_gpus=24), st.sampled_from(("best-fit", "worst-fit")))
@settings(max_examples=examples(10), deadline=None)
def test_jobs_that_do_not_say_run_as_before(workload: Workload, placement: str) -> None:
    plain, silent = (
        simulate(each, four_leaves(), profile_of(placement)) for each in (workload, with_training(workload, None))
    )
    assert plain.summary["digest"] == silent.summary["digest"]
    assert (plain.jobs.end == silent.jobs.end).all()


def test_a_job_that_sends_much_waits_for_one_leaf_and_one_that_computes_does_not() -> None:
    """Nodes 0, 2 and 3 are free, each in a leaf of its own; node 1, beside node 0, is taken for 12 minutes."""
    state = ClusterState(leaves("a", "a", "b", "c"))
    calendar = Calendar(state.empty, state.table, state.shapes)
    calendar.add(0, np.array([[1, 1, 15, 4000, 0, 0, 4, 0, 0]], dtype=np.int64), 0, 12 * MINUTE)
    busy = replace(MOE, length=64, tensor=1, expert=8)
    quiet = Training(8, 4096, 4096, length=32_768, sequences=8, tensor=4)
    for training, wait in ((busy, True), (quiet, False)):
        job = replace(make_job("j", 4, 2), training=training)
        assert wait_or_place(calendar, Slowdowns(state), job, "leaf", HOUR, 0).wait is wait


def test_a_trace_says_what_its_jobs_train(tmp_path: Path) -> None:
    path = tmp_path / "jobs.csv"
    rows = "id,submit_s,runtime_s,gpus,training\na,0,60,8,\nb,1,60,8,mixtral-8x7b tensor=4 expert=2\nc,2,60,8,"
    path.write_text(rows + "\n")
    workload = parse(path).jobs
    assert workload.trainings[0] is None
    assert [workload.trainings[code] is None for code in workload.training] == [True, False, True]
    table = to_table(workload)
    assert [bool(text) for text in table.texts["training"]] == [False, True, False]
    assert trace_of(path, table)["jobs"].trainings == workload.trainings  # type: ignore[attr-defined]
    path.write_text(rows.replace("expert=2", "expert=3") + "\n")
    with pytest.raises(InputError, match=r"jobs.csv, job b, field training, field expert: expected a divisor"):
        parse(path)


def test_only_what_jobs_say_changes_the_digest_of_a_workload() -> None:
    jobs = make_jobs(submit=[0], runtime=[1000], gpus=[16])
    said = [with_training(jobs, training) for training in (MOE, replace(MOE, layers=5))]
    assert len({workload_digest(each) for each in (jobs, *said)}) == 3
