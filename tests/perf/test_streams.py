"""Streams: what each task gets, against a checker and an oracle that know nothing of how runs are made."""

from __future__ import annotations

import numpy as np
import pytest
from benchmarks.studies.judges import stream_faults as faults
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples

from kant.placement.perf.layer import DEGREES, Cost, Half, half_run, half_seconds
from kant.placement.perf.published import best_degree, closed_form
from kant.placement.perf.streams import COMPUTE, INTER, INTRA, StreamTask, StreamTimes, play, run

WORK = st.sampled_from((0.0, 0.25, 0.5, 1.0, 3.0)) | st.floats(0.001, 10.0)
CONTENTION = st.sampled_from((0.5, 0.68, 1.0)) | st.floats(0.3, 1.0)
COST = st.builds(Cost, st.floats(0.0, 0.5), st.floats(0.0, 10.0))
HALF = st.builds(Half, COST, COST, COST, COST)
DEGREE = st.sampled_from(DEGREES)


@st.composite
def programs(draw: st.DrawFn) -> tuple[StreamTask, ...]:
    count = draw(st.integers(0, 12))
    return tuple(
        StreamTask(str(i), draw(st.sampled_from((INTER, INTRA, COMPUTE))), draw(WORK), draw(st.integers(-1, i - 1)))
        for i in range(count)
    )


def arrays(tasks: tuple[StreamTask, ...]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return (
        np.array([task.work for task in tasks], dtype=np.float64),
        np.array([task.stream for task in tasks], dtype=np.int64),
        np.array([task.after for task in tasks], dtype=np.int64),
    )


@given(programs(), CONTENTION)
@settings(max_examples=examples(60), deadline=None)
def test_each_task_starts_as_soon_as_it_may_and_gets_its_work(tasks: tuple[StreamTask, ...], contention: float) -> None:
    assert faults(run(tasks, contention)) == []


@given(programs(), CONTENTION)
@settings(max_examples=examples(60), deadline=None)
def test_compiled_streams_are_those_of_plain_python(tasks: tuple[StreamTask, ...], contention: float) -> None:
    found = run(tasks, contention)
    start, end = np.zeros(len(tasks)), np.zeros(len(tasks))
    assert play(*arrays(tasks), len(tasks), contention, start, end) == found.seconds
    assert (tuple(start), tuple(end)) == (found.starts, found.ends)


@given(programs())
@settings(max_examples=examples(60), deadline=None)
def test_without_contention_the_end_is_the_longest_path(tasks: tuple[StreamTask, ...]) -> None:
    ends: list[float] = []
    last = [0.0, 0.0, 0.0]
    for task in tasks:
        ends.append(max(last[task.stream], ends[task.after] if task.after >= 0 else 0.0) + task.work)
        last[task.stream] = ends[-1]
    assert run(tasks, 1.0).ends == pytest.approx(tuple(ends), abs=1e-9)


@given(programs(), st.floats(0.5, 1.0))
@settings(max_examples=examples(40), deadline=None)
def test_contention_at_most_takes_from_messages_what_they_share(
    tasks: tuple[StreamTask, ...], contention: float
) -> None:
    free, shared = run(tasks, 1.0), run(tasks, contention)
    assert shared.seconds >= max(shared.busy(stream) for stream in range(3)) - 1e-9
    assert shared.seconds <= free.seconds / contention + 1e-9


def test_two_messages_that_meet_share_what_there_is() -> None:
    tasks = (StreamTask("out", INTER, 1.0), StreamTask("in", INTRA, 2.0), StreamTask("gemm", COMPUTE, 1.0))
    found = run(tasks, 0.5)
    assert found.ends == (2.0, 3.0, 1.0)  # beside each other at half speed for 2 s, then 1 s of the longer is left


@pytest.mark.parametrize(
    ("ends", "complaint"), [((1.0, 2.0), "out does 0.75 s of its 1.0"), ((1.5, 1.5), "in does 0.5 s of its 1.0")]
)
def test_the_checker_sees_work_that_is_not_done(ends: tuple[float, float], complaint: str) -> None:
    tasks = (StreamTask("out", INTER, 1.0), StreamTask("in", INTRA, 1.0))
    starts = (0.0, 0.5)
    assert any(complaint in fault for fault in faults(StreamTimes(tasks, starts, ends, 0.5)))


def test_the_checker_sees_a_task_that_starts_too_early() -> None:
    tasks = (StreamTask("out", INTER, 1.0), StreamTask("gemm", COMPUTE, 1.0, after=0))
    assert faults(StreamTimes(tasks, (0.0, 0.5), (1.0, 1.5), 1.0)) == ["gemm starts at 0.5; expected 1.0"]


@given(HALF, DEGREE, st.floats(0.0, 5.0), CONTENTION, st.booleans())
@settings(max_examples=examples(60), deadline=None)
def test_a_half_of_a_layer_is_a_run_without_faults(
    half: Half, degree: int, gradient: float, contention: float, apart: bool
) -> None:
    found = half_run(half, degree, gradient, contention, apart)
    assert faults(found) == []
    assert len(found.tasks) == 5 * degree + 1
    assert half_seconds(half, (degree,), np.array([gradient]), contention, apart)[0, 0] == found.seconds
    total = [cost.alpha * degree + cost.beta for cost in half]
    work = sum(task.work for task in found.tasks)
    assert work == pytest.approx(2 * total[0] + total[1] + total[2] + total[3] + gradient)


@given(HALF, DEGREE, st.floats(0.0, 5.0))
@settings(max_examples=examples(100), deadline=None)
def test_the_closed_forms_of_the_paper_are_never_above_its_streams(half: Half, degree: int, gradient: float) -> None:
    assert closed_form(half, degree, gradient) <= half_run(half, degree, gradient, 1.0).seconds + 1e-9


@pytest.mark.parametrize(
    ("half", "gradient", "degree", "seconds"),
    [
        # dispatch is longest and hides the rest: 2r dispatch + gather + scatter
        (Half(Cost(0, 8), Cost(0, 1), Cost(0, 1), Cost(0, 1)), 0.0, 4, 16.5),
        # experts are longest: 2 dispatch + gather + scatter + r experts
        (Half(Cost(0, 4), Cost(0, 1), Cost(0, 100), Cost(0, 1)), 0.0, 4, 102.5),
        # gathering is longest: 2 dispatch + r gather + r scatter
        (Half(Cost(0, 4), Cost(0, 40), Cost(0, 1), Cost(0, 40)), 0.0, 4, 82.0),
        # gradients fill more than the gap: 2r dispatch + gradients
        (Half(Cost(0, 4), Cost(0, 1), Cost(0, 2), Cost(0, 1)), 50.0, 4, 58.0),
    ],
)
def test_the_four_cases_of_the_paper(half: Half, gradient: float, degree: int, seconds: float) -> None:
    assert closed_form(half, degree, gradient) == pytest.approx(seconds)


def test_a_higher_start_up_cost_asks_for_fewer_chunks() -> None:
    cheap, dear = (Half(Cost(a, 4), Cost(a, 2), Cost(a, 6), Cost(a, 2)) for a in (0.001, 10.0))
    assert best_degree(cheap, 0.0) == 8
    assert best_degree(dear, 0.0) == 1
