"""Answers in slices: what they are at once if nothing happens meanwhile, and sound and without effect if much does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from kant.cluster.columns import J_SUBMIT
from kant.insight.cooperative import OutdatedError, Task, TaskRun, run_to_end
from kant.insight.eta_calibrator import EtaCalibrator
from kant.live.answers import expectations
from kant.live.cached_answer import SLICE, CachedAnswer, run_cooperatively
from kant.model.decision import Plan
from kant.model.units import HOUR, SECOND
from kant.queueing.estimates import Estimates
from kant.testing import Harness, make_cluster, make_job, make_profile
from kant.testing.builders import make_queue
from kant.testing.drawn import Mould, draw_arrivals, draw_cluster, generator


def few(steps: int) -> Callable[[], bool]:
    left = iter(range(steps - 1))
    return lambda: next(left, None) is not None


def busy(discipline: str, seed: int, look: Callable[[Harness, Plan], None] | None) -> dict[str, int]:
    """When the jobs of a busy run started, while somebody looks at every instant."""
    draw = generator(seed)
    profile = replace(make_profile("fifo", discipline), estimates=Estimates(source="learned" if seed % 2 else "given"))
    harness = Harness(draw_cluster(draw, 5), profile, seed=seed, check=False)
    if look is not None:
        harness.after_carrying_out = lambda plan: look(harness, plan)
    harness.run(draw_arrivals(draw, 60, Mould(groups=1), gap=30, estimates="right"))
    return harness.first_starts()


@pytest.mark.parametrize("discipline", ["strict", "best-effort", "easy", "conservative"])
@pytest.mark.parametrize("seed", [1, 2])
def test_an_answer_whose_steps_are_spread_over_the_run_is_of_who_still_waits_and_changes_nothing(
    discipline: str, seed: int
) -> None:
    found, step = 0, generator(seed + 10)
    work: TaskRun[list[dict[str, Any]]] | None = None
    asked = 0

    def look(harness: Harness, plan: Plan) -> None:
        nonlocal work, asked, found
        if work is None:
            work, asked = TaskRun(expectations.task(harness.scheduler, plan.time)), plan.time
        if work.advance(few(int(step.integers(1, 8)))):
            for row in work.found:
                state = harness.state
                assert state.jobs[state.rows[row["job"]], J_SUBMIT] <= asked
                p50, p90 = row["expected_us"]["p50"], row["expected_us"]["p90"]
                assert p50 is None or p90 is None or asked <= p50 <= p90
            found += len(work.found)
            work = None

    assert busy(discipline, seed, look) == busy(discipline, seed, None)
    assert found > 10


def line_up(jobs: int = 40) -> Harness:
    harness = Harness(make_cluster(8, 8), make_profile("fifo", "easy"))
    harness.set_queues(make_queue("a", 12), make_queue("b", 8))
    for i in range(jobs):
        job = make_job(f"j{i}", 1 + i % 8, queue="ab"[i % 2], estimate=(1 + i % 3) * HOUR)
        harness.submit(job, runtime=HOUR)
    harness.cycle()
    return harness


def test_where_nothing_happens_slices_make_no_difference() -> None:
    harness = line_up()
    whole = run_to_end(expectations.task(harness.scheduler, harness.now))
    assert len(whole) > 30
    work, slices = TaskRun(expectations.task(harness.scheduler, harness.now)), 1
    while not work.advance(few(3)):
        slices += 1
    assert work.found == whole and slices > len(whole)


def test_other_queues_meanwhile_begin_the_answer_anew() -> None:
    harness = line_up()
    work = TaskRun(expectations.task(harness.scheduler, harness.now))
    assert not work.advance(few(5))
    harness.set_queues(make_queue("b", 8))
    with pytest.raises(OutdatedError):
        work.advance(lambda: True)


def counted(clock: list[float], steps: int) -> Iterator[Any]:
    """Steps of a millisecond each."""
    for _ in range(steps):
        clock[0] += 0.001
        yield
    return steps


def test_others_have_their_turn_after_each_slice() -> None:
    clock, turns = [0.0], [0]

    async def main() -> None:
        async def others() -> None:
            while True:
                turns[0] += 1
                await asyncio.sleep(0)

        beside = asyncio.create_task(others())
        found, worked = await run_cooperatively(lambda: counted(clock, 400), lambda: clock[0])  # type: ignore[arg-type, return-value]
        beside.cancel()
        assert found == 400 and worked == pytest.approx(0.4)

    asyncio.run(main())
    assert turns[0] >= 400 * 0.001 / SLICE - 2, "a slice is no longer than SLICE"


def test_an_answer_that_took_long_is_told_again_for_a_while_and_found_once_for_all_who_wait() -> None:
    clock, found = [100.0], [0]

    def find(took: float, fails: bool = False) -> Callable[[], Task[int]]:
        def steps() -> Task[int]:
            found[0] += 1
            clock[0] += took
            yield
            if fails:
                raise ValueError("no")
            return found[0]

        return steps

    async def main() -> None:
        calm: CachedAnswer[int] = CachedAnswer(lambda: clock[0])
        assert [await calm.get(find(0.01)) for _ in range(3)] == [1, 2, 3]
        assert await asyncio.gather(*(calm.get(find(0.1)) for _ in range(5))) == [4] * 5
        gone = asyncio.create_task(calm.get(find(0.1)))
        await asyncio.sleep(0)
        gone.cancel()
        clock[0] += 1.9
        assert await calm.get(find(0.1)) == 4
        clock[0] += 0.3
        first, second = (asyncio.create_task(calm.get(find(0.1))) for _ in range(2))
        await asyncio.sleep(0)
        first.cancel()  # the other still gets it
        assert await second == 5
        clock[0] += 6.0
        with pytest.raises(ValueError, match="no"):
            await calm.get(find(0.0, fails=True))
        assert await calm.get(find(0.0)) == 7

    asyncio.run(main())


def test_plans_to_learn_from_are_made_in_pieces_and_only_where_nothing_presses() -> None:
    harness = Harness(make_cluster(8), make_profile("fifo", "strict"))
    answers = EtaCalibrator(harness.scheduler)
    for i in range(200):
        harness.submit(make_job(f"j{i}", 8, estimate=HOUR), runtime=HOUR)
        harness.cycle()
        answers.observe_step(harness.now, may_plan=False)
    assert (answers.plans, answers.learned) == (0, 0), "a burst is let through"
    looks = 0
    while answers.plans == 0:
        answers.observe_step(harness.now)
        looks += 1
    assert 199 // 32 <= looks <= 199 // 32 + 2
    for _ in range(50):  # within the hour nothing more is planned
        harness.now += 60 * SECOND
        harness.submit(make_job(f"k{harness.now}", 8, submit=harness.now, estimate=HOUR), runtime=HOUR)
        harness.cycle(harness.now)
        answers.observe_step(harness.now)
    assert answers.plans == 1
