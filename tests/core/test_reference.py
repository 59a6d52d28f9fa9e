"""Every plan is what the reference scheduler decides, on random small worlds.

The reference decides by code of its own. It reads the same profiles, and counts quotas as `naive_quota` does.
What it does not model has oracles of its own: EASY and conservative `test_textbook.py`, elastic gangs
`test_elastic.py`, bookings `test_bookings.py`, the fabric `test_domains.py`.
"""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.core.reference import Reference
from tests.core.reference_worlds import DISCIPLINES, RIGHTS, Watched, crowded_run, filling_run, watched_run
from tests.examples import examples

from kant.model.units import SECOND
from kant.scheduler.profile import builtin_profile
from kant.testing import make_cluster, make_job, make_profile
from kant.testing.builders import make_queue

pytestmark = pytest.mark.long

SEEDS = st.integers(0, 10**9)


def test_what_a_queue_outside_the_tree_holds_is_reclaimed() -> None:
    """It was there before queues were declared, and is entitled to nothing."""
    harness = Watched(make_cluster(4), builtin_profile("kant"), own_places=False)
    harness.submit(make_job("before", 4, queue="old"))
    harness.cycle(0)
    harness.set_queues(make_queue("team", 4))
    harness.submit(make_job("entitled", 4, queue="team"))
    harness.cycle(400 * SECOND)
    assert harness.running() == ["entitled"] and hold(harness)


@pytest.mark.parametrize("discipline", ["easy", "shockwave"])
def test_a_policy_that_the_reference_does_not_model_is_refused(discipline: str) -> None:
    with pytest.raises(TypeError, match="does not model"):
        Reference(make_cluster(1), make_profile(discipline=discipline))


def hold(harness: Watched) -> int:
    """Fail with the first difference; otherwise how much was decided."""
    assert harness.differences == []
    return harness.decided


@pytest.mark.parametrize("rights", RIGHTS)
@pytest.mark.parametrize("discipline", DISCIPLINES)
@given(seed=SEEDS)
@example(seed=1250)  # jobs of a queue outside the tree hold what others are entitled to
@example(seed=128)  # the order by shares decides who is the head
@settings(max_examples=examples(12), deadline=None)
def test_every_plan_is_that_of_the_reference(discipline: str, rights: str, seed: int) -> None:
    """Gangs of several groups, quotas, priorities, preemption, back-offs, faults, refusals, protected jobs."""
    hold(watched_run(seed, discipline, rights))


@pytest.mark.parametrize(("seed", "discipline", "rights"), [(279, "strict", "fair-share"), (3, "backfill", "nominal")])
def test_a_job_that_may_reclaim_from_one_that_the_same_plan_starts_is_tried_in_time(
    seed: int, discipline: str, rights: str
) -> None:
    """It is tried again when that one has run for its minimum, though nothing happens until then."""
    hold(watched_run(seed, discipline, rights))


@pytest.mark.parametrize("rights", RIGHTS)
@given(seed=SEEDS)
@settings(max_examples=examples(12), deadline=None)
def test_pods_go_where_the_reference_says_they_like_it_best(rights: str, seed: int) -> None:
    """Node sets that are liked or avoided, with drawn weights; sets and the fleet change under way."""
    hold(watched_run(seed, "best-effort", rights, prefer=True))


@given(seed=SEEDS)
@settings(max_examples=examples(8), deadline=None)
def test_a_gang_that_fits_where_less_is_free_starts(seed: int) -> None:
    """Its groups choose other nodes once a small job has started, in the same plan or in the next one."""
    for discipline in DISCIPLINES:
        hold(filling_run(seed, discipline))


@pytest.mark.parametrize("rights", ["priority", "nominal", "fair-share"])
@given(seed=SEEDS)
@example(seed=82)  # a job that is rejected leaves the others a larger fair share
@example(seed=38)  # running jobs use up a budget, and then others go first
@settings(max_examples=examples(12), deadline=None)
def test_the_victims_are_those_of_the_reference(rights: str, seed: int) -> None:
    """On full clusters, where nearly every job that comes has to evict others, or may not for `most`."""
    hold(crowded_run(seed, rights))


@pytest.mark.parametrize("name", ["kant", "backfill", "fifo-best-effort", "fifo"])
@given(seed=SEEDS)
@settings(max_examples=examples(16), deadline=None)
def test_shipped_profiles_decide_as_the_reference(name: str, seed: int) -> None:
    """Gangs of one group, so that whether they fit depends on no placement; they go where the plan puts them."""
    hold(watched_run(seed, profile=builtin_profile(name), groups=1))
