"""What is learned from finished jobs: against a model that keeps everything, and the stated probabilities by lot."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kant.cluster.history import MIN_SAMPLES, STATED, WINDOW, RunTimes, size_class_of
from kant.model.units import FOREVER

Ask = tuple[int, int, str, int]
asks = st.tuples(
    st.integers(0, 1), st.integers(-1, 1), st.sampled_from(["", "a", "b"]), st.sampled_from([0, 470, 1000, 1001, 8000])
)
ends = st.lists(st.tuples(asks, st.integers(0, 300)), max_size=400)
permilles = st.integers(1, 999)


class Remembering:
    """Keeps every finished job, and sorts when asked; no promise is judged."""

    def __init__(self) -> None:
        self.jobs: list[tuple[Ask, int]] = []

    def total(self, ask: Ask, elapsed: int, permille: int) -> int:
        queue, user, name, milli = ask
        size = size_class_of(milli)
        groups: list[Callable[[int, int, str], bool]] = [lambda q, u, n: q == queue, lambda q, u, n: True]
        if user >= 0:
            groups.insert(0, lambda q, u, n: u == user)
        if name:
            groups.insert(0, lambda q, u, n: (u, n) == (user, name))
        for group in groups:
            known = [run for (q, u, n, m), run in self.jobs if size_class_of(m) == size and group(q, u, n)]
            longer = sorted(run for run in known[-WINDOW:] if run > elapsed)
            rank = -(-permille * (len(longer) + 1) // 1000)
            if len(longer) >= MIN_SAMPLES and rank <= len(longer):
                return longer[rank - 1]
        return -1


def learned(jobs: list[tuple[Ask, int]]) -> RunTimes:
    times = RunTimes()
    for ask, runtime in jobs:
        times.finished(times.kind(*ask), runtime)
    return times


@given(ends, asks, permilles, st.integers(0, 320))
def test_answers_are_those_of_a_model_that_keeps_everything(
    jobs: list[tuple[Ask, int]], ask: Ask, permille: int, elapsed: int
) -> None:
    times, model = learned(jobs), Remembering()
    model.jobs = jobs
    kind = times.kind(*ask)
    assert times.quantile(kind, permille) == model.total(ask, -1, permille)
    total = model.total(ask, elapsed, permille)
    guess = elapsed * permille // (1000 - permille) if elapsed else -1
    assert times.remaining(kind, elapsed, permille) == (guess if total < 0 else total - elapsed)


@given(st.lists(st.integers(0, 10**6), max_size=50), st.lists(st.integers(0, 10**6), min_size=WINDOW, max_size=300))
def test_only_the_latest_run_times_count(before: list[int], after: list[int]) -> None:
    ask = (0, 0, "a", 1000)
    old, new = learned([(ask, run) for run in before + after]), learned([(ask, run) for run in after])
    for permille in (1, 250, 500, 900, 992):
        assert old.quantile(old.kind(*ask), permille) == new.quantile(new.kind(*ask), permille)


@given(ends, permilles)
def test_asking_changes_nothing(jobs: list[tuple[Ask, int]], permille: int) -> None:
    quiet, asked = RunTimes(), RunTimes()
    for ask, runtime in jobs:
        kinds = [times.kind(*ask) for times in (quiet, asked)]
        asked.quantile(kinds[1], permille)
        asked.remaining(kinds[1], runtime, permille)
        promised = quiet.promises(kinds[0])
        assert promised == asked.promises(kinds[1])
        for times, kind in zip((quiet, asked), kinds, strict=True):
            times.finished(kind, runtime, promised)


@given(st.lists(st.tuples(st.integers(0, 10**6), st.integers(-1, 10**6), st.integers(-1, 10**6)), max_size=200))
def test_a_likelier_promise_of_one_group_is_never_shorter(judged: list[tuple[int, int, int]]) -> None:
    times = RunTimes()
    kind = times.kind(0, -1, "", 1000)
    for runtime, *promised in judged:
        times.finished(kind, runtime, tuple(promised))
    known = [total for permille in range(100, 1000, 50) if (total := times.quantile(kind, permille)) >= 0]
    assert known == sorted(known)


def test_a_probability_needs_as_many_run_times_as_it_says() -> None:
    times = RunTimes()
    kind = times.kind(0, 0, "a", 1000)
    for n in range(1, WINDOW + 1):
        times.finished(kind, n)
        for permille in (500, 900, 950, 990):
            known = times.quantile(kind, permille)
            assert (known >= 0) == (n >= MIN_SAMPLES and n >= permille // (1000 - permille))
            assert known < 0 or 1000 * known >= permille * (n + 1) > 1000 * (known - 1)


def test_the_longest_times_stay_within_what_a_state_can_hold() -> None:
    times = RunTimes()
    kind = times.kind(0, -1, "", 0)
    assert times.remaining(kind, FOREVER - 1, 999) == FOREVER
    assert times.remaining(kind, 0, 500) == -1


def kept(draws: np.ndarray) -> list[float]:
    """The share of promises kept when jobs of one kind run for `draws`, one after the other."""
    times = RunTimes()
    kind = times.kind(0, 0, "a", 1000)
    hits = []
    for runtime in draws.tolist():
        promised = times.promises(kind)
        if promised[0] >= 0:
            hits.append([runtime <= promise for promise in promised])
        times.finished(kind, runtime, promised)
    return [float(share) for share in np.mean(hits, axis=0)]


def test_promises_to_exchangeable_jobs_are_kept_as_often_as_stated() -> None:
    rng = np.random.Generator(np.random.PCG64(7))
    for draws in (rng.lognormal(20, 2, 20_000), rng.exponential(1e9, 20_000), rng.pareto(0.8, 20_000) * 1e6):
        for share, permille in zip(kept(draws.astype(np.int64)), STATED, strict=True):
            assert abs(share - permille / 1000) < 0.015  # over four standard errors of 0.0035, and the levels' drift


def test_a_quantile_covers_the_next_of_few_exchangeable_jobs() -> None:
    rng = np.random.Generator(np.random.PCG64(8))
    for n, permille in ((10, 500), (19, 900), (39, 950)):
        hits = 0
        for _ in range(2000):
            draws = rng.integers(0, 10**9, n + 1).tolist()
            times = learned([((0, 0, "a", 1000), run) for run in draws[:-1]])
            hits += draws[-1] <= times.quantile(times.kind(0, 0, "a", 1000), permille)
        exact = -(-permille * (n + 1) // 1000) / (n + 1)  # the order statistic's own coverage
        assert abs(hits / 2000 - exact) < 0.045


def test_promises_are_kept_as_often_as_stated_while_run_times_grow() -> None:
    rng = np.random.Generator(np.random.PCG64(9))
    growing = rng.lognormal(15 + np.arange(20_000) / 1000, 1)  # e times longer every thousand jobs
    bursts = rng.lognormal(15 + 3 * (np.arange(20_000) // 50 % 2), 1)  # fifty short, fifty long
    for draws in (growing, bursts):
        for share, permille in zip(kept(draws.astype(np.int64)), STATED, strict=True):
            assert abs(share - permille / 1000) < 0.02
