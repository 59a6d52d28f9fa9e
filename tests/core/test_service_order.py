"""The order of service: what becomes of each job is what a few drawn answers say, and nothing else is asked."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kant.model.decision import Preempt, Start
from kant.model.units import SECOND
from kant.queueing.disciplines.best_effort import BestEffort
from kant.queueing.preemption.policy import Preemption
from kant.queueing.service_order import make_in_order, make_nominate
from kant.testing import Harness, make_cluster, make_job, make_profile


class Option(NamedTuple):
    """What is true of a job as one of its shapes."""

    in_quota: bool
    fits: bool
    victims: bool


class Drawn(NamedTuple):
    """What is true of a job."""

    held: bool
    beside: bool
    options: list[Option]


def plain(function: Any) -> Any:
    return function


def ask(what: str) -> Any:
    def answer(view: Any, row: int, shape: Any) -> bool:
        view.asked.append((what, row, shape))
        return bool(getattr(view.jobs[row].options[shape], what))

    return answer


def following(view: Any) -> tuple[int, int, int]:
    view.at += 1
    return (view.at, view.at - 1, 0) if view.at <= len(view.jobs) else (0, -1, -1)


def note(what: str) -> Any:
    return lambda view, entry, row, shape: view.done.append((row, what))


nominate = make_nominate(
    lambda view, row, shape: range(len(view.jobs[row].options)), ask("in_quota"), ask("fits"), ask("victims"), plain
)
in_order = make_in_order(
    following, following, lambda view, row, shape: view.jobs[row].held, lambda view, row, shape: view.jobs[row].beside,
    nominate, note("starts"), note("steps aside"), note("sleeps"), plain,
)  # fmt: skip
OPTIONS = st.builds(Option, st.booleans(), st.booleans(), st.booleans())
JOBS = st.lists(st.builds(Drawn, st.booleans(), st.booleans(), st.lists(OPTIONS, max_size=3)), max_size=5)


def expected(job: Drawn) -> str:
    if job.held:
        return "starts" if job.beside else "steps aside"
    free = any(one.in_quota and one.fits for one in job.options)
    return "starts" if free or any(one.victims for one in job.options) else "sleeps"


@given(JOBS)
def test_each_job_is_tried_once_and_starts_where_it_may(jobs: list[Drawn]) -> None:
    view = SimpleNamespace(jobs=jobs, at=0, asked=[], done=[])
    in_order(view)
    assert view.done == [(row, expected(job)) for row, job in enumerate(jobs)]
    for row, job in enumerate(jobs):
        asked = [(what, option) for what, which, option in view.asked if which == row]
        assert len(set(asked)) == len(asked), "a question is asked twice"
        assert not (job.held and asked), "a held job is placed beside its holders, or not at all"
        assert [option for what, option in asked if what == "fits"] == [
            option for what, option in asked if what == "in_quota" and job.options[option].in_quota
        ], "a place is looked for where the quota has room"
        victims = [at for at, (what, _) in enumerate(asked) if what == "victims"]
        assert victims == list(range(len(asked) - len(victims), len(asked))), "nobody stops while a shape is untried"


@pytest.mark.parametrize("option", [Option(False, True, True), Option(True, False, True), Option(False, False, True)])
def test_what_a_caller_does_not_give_is_never_asked(option: Option) -> None:
    view = SimpleNamespace(jobs=[Drawn(True, True, [option])], at=0, asked=[], done=[])
    can_start = make_nominate(None, None, ask("fits"), None, plain)
    make_in_order(
        following, following, None, None, can_start, note("starts"), note("steps aside"), note("sleeps"), plain
    )(view)
    assert view.done == [(0, "starts" if option.fits else "sleeps")] and view.asked == [("fits", 0, 0)]


def test_what_an_eviction_leaves_over_is_used_in_the_same_plan_by_a_job_that_was_tried_before() -> None:
    harness = Harness(make_cluster(4), make_profile("fifo", BestEffort(), "best-fit", Preemption(min_run_s=0)))
    harness.submit(make_job("low", 4))
    harness.cycle(0)
    harness.now = SECOND
    harness.submit(make_job("meek", 1, priority=2, preempts=False))
    harness.submit(make_job("bold", 2, priority=1))
    plan = harness.cycle(SECOND)
    assert [(type(d), d.job) for d in plan.decisions if isinstance(d, Preempt | Start)] == [
        (Preempt, "low"), (Start, "bold"), (Start, "meek")
    ]  # fmt: skip
