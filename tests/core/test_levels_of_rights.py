"""Whom a job evicts is the best over all levels of its rights: as few as any level needs, by brute force."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.examples import examples

from kant.model.decision import Preempt, Start
from kant.model.event import JobPriced
from kant.model.units import SECOND
from kant.queueing.preemption.policy import Preemption
from kant.testing import Harness, make_cluster, make_job, make_profile
from kant.testing.builders import make_queue


@dataclass(frozen=True)
class Ran:
    """A job of one pod: its queue, GPUs and priority; of those that run, node, number and price."""

    queue: int
    gpus: int
    priority: int
    node: int = -1
    number: int = -1
    price: int = 0


Key = tuple[int, tuple[int, int], int, int, list[int]]


def within(running: Sequence[Ran], nominal: Sequence[int]) -> dict[int, bool]:
    """Of each running job, in the order in which they started, whether it is in quota."""
    used, found = [0] * len(nominal), {}
    for job in running:
        used[job.queue] += job.gpus
        found[job.number] = used[job.queue] <= nominal[job.queue]
    return found


def rank(job: Ran, new: Ran, entitled: bool, in_quota: bool) -> tuple[int, int] | None:
    """Of a victim: whether it is not reclaimed, and its priority; None where it may not be stopped."""
    lower = job.priority < new.priority
    if entitled and job.queue != new.queue and not in_quota:
        return 0, job.priority
    may = lower and (entitled if job.queue == new.queue and in_quota else not in_quota)
    return (1, job.priority) if may else None


def level_bests(running: Sequence[Ran], new: Ran, nominal: Sequence[int], sizes: Sequence[int]) -> Iterator[Key]:
    """The best set of each level, by the rules of design note 9 for flat queues that all borrow.

    By worst rank, price, GPUs, number and rows; and given with the number first.
    """
    in_quota = within(running, nominal)
    own = sum(job.gpus for job in running if job.queue == new.queue) + new.gpus
    for entitled in (True, False):
        found: list[tuple[tuple[int, int], int, int, int, list[int]]] = []
        for count in range(1, len(running) + 1):
            for victims in combinations(running, count):
                stay = [job for job in running if job not in victims]
                room = [size - sum(job.gpus for job in stay if job.node == node) for node, size in enumerate(sizes)]
                left = own - sum(job.gpus for job in victims if job.queue == new.queue)
                ranks = [rank(job, new, entitled, in_quota[job.number]) for job in victims]
                if max(room) < new.gpus or None in ranks or (entitled and left > nominal[new.queue]):
                    continue
                worst = max(each for each in ranks if each is not None)
                price, gpus = sum(job.price for job in victims), sum(job.gpus for job in victims)
                found.append((worst, price, gpus, count, sorted(job.number for job in victims)))
        if found:
            worst, price, gpus, count, rows = min(found)
            yield count, worst, price, gpus, rows


def decided(running: Sequence[Ran], new: Ran, nominal: Sequence[int], sizes: Sequence[int]) -> tuple[list[int], bool]:
    """The victims of the scheduler's plan, and whether the job starts."""
    rights = Preemption(min_run_s=0, most=1000, move_victims=False)
    harness = Harness(make_cluster(*sizes), make_profile(placement="best-fit", preemption=rights))
    harness.set_queues(
        make_queue("all", sum(sizes)), *(make_queue(f"q{i}", n, parent="all") for i, n in enumerate(nominal))
    )
    for job in running:
        for node in [node for node in range(len(sizes)) if node != job.node]:
            harness.cordon(f"n{node}")
        harness.submit(make_job(f"j{job.number}", job.gpus, queue=f"q{job.queue}", priority=job.priority))
        harness.cycle(harness.now + SECOND)
        for node in range(len(sizes)):
            harness.bring_back(f"n{node}")
        harness.happen(JobPriced(harness.now, f"j{job.number}", job.price))
    assert harness.running() == [f"j{job.number}" for job in running]
    harness.submit(make_job("new", new.gpus, queue=f"q{new.queue}", priority=new.priority))
    plan = harness.cycle(harness.now)
    victims = sorted(int(d.job[1:]) for d in plan.decisions if isinstance(d, Preempt))
    return victims, any(isinstance(d, Start) and d.job == "new" for d in plan.decisions)


@st.composite
def contests(draw: st.DrawFn) -> tuple[list[Ran], Ran, list[int], list[int]]:
    """Up to seven jobs of three queues on full nodes, and a newcomer that has no place."""
    sizes = draw(st.lists(st.sampled_from((2, 3, 4)), min_size=1, max_size=3))
    shares = draw(st.lists(st.integers(0, 4), min_size=3, max_size=3))
    nominal = [share * sum(sizes) // max(sum(shares), 1) for share in shares]
    queue, priority = st.integers(0, 2), st.integers(0, 3)
    running = []
    for node, size in enumerate(sizes):
        left = size
        while left and len(running) < 7:
            gpus = draw(st.integers(1, left))
            left -= gpus
            running.append((draw(queue), gpus, draw(priority), node, draw(st.integers(0, 3))))
    order = draw(st.permutations(running))
    found = [Ran(q, gpus, p, node, i, price) for i, (q, gpus, p, node, price) in enumerate(order)]
    return found, Ran(draw(queue), draw(st.integers(1, max(sizes))), draw(st.integers(0, 4))), nominal, sizes


BORROWER_ALONE = (
    [Ran(0, 2, 0, 0, 0), Ran(0, 2, 0, 0, 1), Ran(1, 4, 1, 1, 2)], Ran(0, 4, 2), [4, 0, 0], [4, 4],
)  # fmt: skip
"""The newcomer is in quota once both jobs of its own queue have left; borrowing, it may evict the one that borrows."""


@given(contests())
@example(BORROWER_ALONE)
@settings(max_examples=examples(60), deadline=None)
def test_the_victims_are_the_best_over_all_levels(case: tuple[list[Ran], Ran, list[int], list[int]]) -> None:
    running, new, nominal, sizes = case
    room = [size - sum(job.gpus for job in running if job.node == node) for node, size in enumerate(sizes)]
    victims, starts = decided(running, new, nominal, sizes)
    if max(room) >= new.gpus:
        assert not victims and starts
        return
    best = min(level_bests(running, new, nominal, sizes), default=None)
    assert (victims, starts) == (([], False) if best is None else (best[-1], True))
