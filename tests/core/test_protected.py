"""Who may not be stopped for now, and for whom nobody is stopped."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kant.model.event import JobProtected
from kant.model.units import HOUR, SECOND
from kant.scheduler.profile import parse_profile
from kant.testing import Harness, make_cluster, make_job

PRIORITY = "[preemption]\npriority = true\nmin_run_s = 0\n"


def harness(nodes: int, discipline: str = "best-effort", more: str = PRIORITY) -> Harness:
    text = f'[order]\npolicy = "fifo"\n[discipline]\npolicy = "{discipline}"\n[placement]\npolicy = "best-fit"\n{more}'
    return Harness(make_cluster(*[8] * nodes), parse_profile(text, "test"))


@given(st.lists(st.booleans(), min_size=1, max_size=6), st.integers(1, 6))
def test_the_protected_are_passed_over_and_nobody_else(protected: list[bool], newcomers: int) -> None:
    made = harness(len(protected))
    made.submit(*(make_job(f"low{i}", 8) for i in range(len(protected))))
    made.cycle(0)
    for index, by in enumerate(protected):
        made.happen(JobProtected(made.now, f"low{index}", "a budget" if by else ""))
    made.submit(*(make_job(f"high{i}", 8, priority=1) for i in range(newcomers)))
    made.cycle(SECOND)
    left = {f"low{i}" for i, by in enumerate(protected) if by}
    assert left <= set(made.running())
    assert sum(job.startswith("high") for job in made.running()) == min(newcomers, len(protected) - len(left))


def test_who_is_protected_no_longer_is_stopped_in_the_next_cycle_though_nothing_has_come_free() -> None:
    made = harness(1)
    made.submit(make_job("low", 8))
    made.cycle(0)
    made.happen(JobProtected(0, "low", "a budget"))
    made.submit(make_job("high", 8, priority=1))
    for second in (1, 2):
        made.cycle(second * SECOND)
        assert made.running() == ["low"]
    made.happen(JobProtected(made.now, "low"))
    made.cycle(3 * SECOND)
    assert made.running() == ["high"]


def test_who_was_never_to_be_stopped_is_not_after_protection_has_ended() -> None:
    made = harness(1)
    made.submit(make_job("low", 8, preemptible=False))
    made.cycle(0)
    made.happen(JobProtected(0, "low"))
    made.submit(make_job("high", 8, priority=1))
    made.cycle(SECOND)
    assert made.running() == ["low"]


@pytest.mark.parametrize(("discipline", "more"), [("best-effort", PRIORITY), ("easy", PRIORITY), ("preemptive", "")])
def test_for_a_job_that_does_not_preempt_nobody_is_stopped(discipline: str, more: str) -> None:
    made = harness(1, discipline, more)
    made.submit(make_job("low", 8, estimate=HOUR))
    made.cycle(0)
    made.submit(make_job("polite", 8, priority=1, preempts=False))
    for second in (1, 5000):
        made.cycle(second * SECOND)
        assert made.running() == ["low"]
    made.submit(make_job("high", 8, priority=1))  # asks for the same, and is not held back by what polite may not
    made.cycle(5001 * SECOND)
    assert made.running() == (["low"] if discipline == "easy" else ["high"])  # easy has promised the place to polite


@pytest.mark.parametrize("preempts", [True, False])
def test_nor_those_who_have_overtaken_it(preempts: bool) -> None:
    made = harness(1, "backfill", "")
    made.submit(make_job("first", 4), make_job("head", 8, preempts=preempts), make_job("small", 4))
    made.cycle(0)
    assert made.running() == ["first", "small"]
    made.finish("first")
    made.cycle(100_000 * SECOND)
    assert made.running() == (["head"] if preempts else ["small"])
