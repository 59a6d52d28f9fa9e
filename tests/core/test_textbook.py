"""Disciplines as published: on nodes with one GPU each every job starts when the textbook says."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.textbook import Pass, RigidJob, by_estimate, by_submission, starts_of
from tests.examples import examples

from kant.model.errors import InputError
from kant.model.units import SECOND
from kant.scheduler.profile import Profile, builtin_texts, parse_profile
from kant.sim.run import simulate
from kant.testing import make_cluster, make_jobs, make_profile

pytestmark = pytest.mark.long

World = tuple[int, list[RigidJob]]
DISCIPLINES: dict[str, tuple[Pass, dict[str, Any], Any, Any]] = {
    "fcfs": ("fcfs", {}, "fifo", "strict"),
    "best-effort": ("best-effort", {}, "fifo", "best-effort"),
    "easy": ("easy", {}, "fifo", "easy"),
    "easy, shortest first": ("easy", {"order": by_estimate}, "sjf", "easy"),
    "easy-sjbf": (
        "easy",
        {"backfill_order": by_estimate},
        "fifo",
        {"policy": "easy", "backfill_order": {"policy": "sjf"}},
    ),
    "easy, shortest first, backfilled by submission": (
        "easy",
        {"order": by_estimate, "backfill_order": by_submission},
        "sjf",
        {"policy": "easy", "backfill_order": {"policy": "fifo"}},
    ),
    "conservative": ("conservative", {}, "fifo", "conservative"),
    "conservative, shortest first": ("conservative", {"order": by_estimate}, "sjf", "conservative"),
    "replanned": ("replanned", {}, "fifo", {"policy": "conservative", "sticky": False}),
    "replanned, shortest first": (
        "replanned",
        {"order": by_estimate},
        "sjf",
        {"policy": "conservative", "sticky": False},
    ),
}


@st.composite
def worlds(draw: st.DrawFn, killed: bool = True) -> World:
    """Up to 24 processors and 40 jobs: bursts and gaps, run times of 0, estimates that are exact, too long, too short.

    Where jobs are `killed` at their estimates none runs for longer.
    """
    processors = draw(st.sampled_from((1, 2, 3, 4, 5, 8, 16, 24)))
    gap = draw(st.sampled_from((0, 1, 4, 12)))
    sizes = st.one_of(st.integers(1, processors), st.integers(1, max(processors // 3, 1)))
    runs = st.one_of(st.just(0), st.integers(0, 5), st.integers(1, 30), st.integers(1, 100))
    factors = draw(st.sampled_from(((2,), (2, 4, 10), (1, 2), (1, 2, 2, 4, 8))))
    jobs, now = [], 0
    for _ in range(draw(st.integers(2, 40))):
        now += draw(st.integers(0, gap))
        run, size = draw(runs), draw(sizes)
        estimate = max(run * draw(st.sampled_from(factors)) // 2, 1)
        jobs.append(RigidJob(now, min(run, estimate) if killed else run, size, estimate))
    return processors, jobs


def starts(world: World, profile: Profile) -> list[int]:
    """When each job starts under a profile, in seconds."""
    processors, jobs = world
    workload = make_jobs(
        submit=[job.submit for job in jobs],
        runtime=[job.run for job in jobs],
        gpus=[job.size for job in jobs],
        limit=[job.estimate for job in jobs],
    )
    table = simulate(workload, make_cluster(*[1] * processors), profile).jobs
    found = dict(zip(table.id, table.first_start.tolist(), strict=True))
    assert all(found[name] % SECOND == 0 for name in workload.ids)
    return [found[name] // SECOND for name in workload.ids]


def profile_of(order: Any, discipline: Any, placement: str = "best-fit", **simulation: Any) -> Profile:
    return make_profile(order, discipline, placement, shape="gpu", estimates="limit", **simulation)


@pytest.mark.parametrize("name", DISCIPLINES)
@settings(max_examples=examples(60))
@given(data=st.data())
def test_every_job_starts_when_the_textbook_says(name: str, data: st.DataObject) -> None:
    textbook, options, order, discipline = DISCIPLINES[name]
    world = data.draw(worlds())
    placement = data.draw(st.sampled_from(("best-fit", "consolidated", "first-fit", "worst-fit")))
    wanted = starts_of(world[1], world[0], textbook, **options)
    assert starts(world, profile_of(order, discipline, placement)) == wanted


@pytest.mark.parametrize("name", [name for name, (textbook, *_) in DISCIPLINES.items() if textbook == "easy"])
@settings(max_examples=examples(40))
@given(world=worlds(killed=False))
def test_easy_expects_a_job_that_outlives_its_estimate_to_run_as_long_again(name: str, world: World) -> None:
    textbook, options, order, discipline = DISCIPLINES[name]
    wanted = starts_of(world[1], world[0], textbook, **options, killed=False)
    assert starts(world, profile_of(order, discipline)) == wanted


@pytest.mark.parametrize("name", DISCIPLINES)
@settings(max_examples=examples(40))
@given(world=worlds(killed=False))
def test_it_is_so_too_where_the_scheduler_stops_jobs_at_their_limits(name: str, world: World) -> None:
    textbook, options, order, discipline = DISCIPLINES[name]
    wanted = starts_of(world[1], world[0], textbook, **options)
    assert starts(world, profile_of(order, discipline, enforce_limits=True)) == wanted


SIMULATION = """
[simulation]
shape = "gpu"
estimates = "limit"
"""
SJBF = builtin_texts()["easy"].replace('policy = "easy"', 'policy = "easy"\nbackfill_order = { policy = "sjf" }')


@settings(max_examples=examples(20))
@given(world=worlds())
def test_easy_sjbf_is_one_line_beside_the_profile_easy(world: World) -> None:
    profile = parse_profile(SJBF + SIMULATION, "sjbf.toml")
    assert starts(world, profile) == starts_of(world[1], world[0], "easy", backfill_order=by_estimate)


@pytest.mark.parametrize(
    ("order", "message"),
    [
        ('{ policy = "nobody" }', "discipline.backfill_order.policy"),
        ('{ policy = "sjf", speed = 1 }', "discipline.backfill_order"),
        ('{ policy = "drf" }', "drf cannot be used"),
        ('{ policy = "las" }', "las cannot be used"),
        ('"sjf"', "backfill_order"),
    ],
)
def test_an_order_that_cannot_rank_candidates_is_refused_by_one_sentence(order: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as error:
        parse_profile(SJBF.replace('{ policy = "sjf" }', order), "sjbf.toml")
    assert "\n" not in str(error.value)
