"""Rounds of a live core: a solver is asked beside the loop, and the loop goes on whatever becomes of it."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable

import pytest

from kant.live.core import Core
from kant.live.rounds import LiveRounds
from kant.live.solver import SolverTask, work_out
from kant.model.decision import Plan, Preempt, Start
from kant.model.errors import InputError
from kant.model.event import JobFinished, JobPreempted, JobStarted, JobSubmitted, PlanProposed
from kant.model.job import Demand, Job, PodGroup
from kant.model.node import ClusterSpec, Node
from kant.model.units import HOUR
from kant.scheduler.profile import parse_profile
from kant.service.solver_process import SolverProcess

PROFILE = """
[order]
policy = "fifo"

[discipline]
policy = "strict"

[placement]
policy = "e-binpack"
"""
FALLBACK = "[fallback]\nwait_s = 60\nevery_s = 60\n"
DEFRAGMENT = "[defragment]\nevery_s = 60\nfloor = 1.0\ngain = 1.0\nrestart_s = 1\n"


class Story:
    """A core with two nodes, half in use each, and a clock that the test moves."""

    def __init__(self, tables: str, wide: bool = True) -> None:
        self.seconds = 1_000.0
        profile = parse_profile(PROFILE + tables, "test")
        spec = ClusterSpec("c", (Node("n0", 8), Node("n1", 8)))
        self.core = core = Core(spec, profile, zero=1_000_000_000, clock=lambda: self.seconds)
        core.settled()
        for name in ("a", "x", "b", "y"):
            self.submit(name, 4)
            self.execute(core.cycle())
        for name in ("x", "y"):
            core.happen(JobFinished(core.now, name))
        if wide:
            self.submit("wide", 8)
            self.execute(core.cycle())
        self.seconds += 3600

    def submit(self, name: str, gpus: int) -> None:
        core = self.core
        core.happen(JobSubmitted(core.now, Job(name, core.now, (PodGroup(1, Demand(gpus)),), checkpoint=HOUR)))

    def execute(self, plan: Plan) -> None:
        for one in plan.decisions:
            if isinstance(one, Preempt):
                self.core.happen(JobPreempted(self.core.now, one.job, 0, one.moved, one.by))
            elif isinstance(one, Start):
                self.core.happen(JobStarted(self.core.now, one.job, one.allocation))

    async def round(self, rounds: LiveRounds) -> PlanProposed | None:
        """One round from its begin to its answer."""
        assert rounds.turn(self.core) is None
        self.seconds += 61
        assert rounds.turn(self.core) is None
        while rounds._asking is not None:
            await asyncio.sleep(0.001)
        return rounds.turn(self.core)


async def here(task: SolverTask) -> bytes:
    return work_out(task)


def told(story: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(story())  # type: ignore[arg-type]


@pytest.mark.long
@pytest.mark.parametrize("tables", [FALLBACK, DEFRAGMENT])
def test_a_proposal_is_carried_out_as_it_was_promised(tables: str) -> None:
    async def play() -> None:
        story = Story(tables)
        found = await story.round(LiveRounds(here))
        assert found is not None and len(found.moves) == 1
        plan = story.core.propose(found)
        moved = [one.job for one in plan.decisions if isinstance(one, Preempt)]
        assert plan.proposed and moved == [one.job for one in found.moves]
        assert {one.by for one in plan.decisions if isinstance(one, Preempt)} == {"wide" if found.starts else ""}
        story.execute(plan)
        story.execute(story.core.cycle())
        assert not story.core.state.pending
        story.core.state.check()

    told(play)


@pytest.mark.long
def test_it_is_dropped_where_things_have_changed_meanwhile() -> None:
    async def play() -> None:
        story = Story(FALLBACK)
        found = await story.round(LiveRounds(here))
        assert found is not None
        story.core.happen(JobFinished(story.core.now, found.moves[0].job))
        assert story.core.propose(found).decisions == []
        story.execute(story.core.cycle())
        assert not story.core.state.pending, "it fits by itself now"

    told(play)


def test_only_who_allows_it_is_moved() -> None:
    async def play() -> None:
        assert await Story(FALLBACK).round(LiveRounds(here, movable=lambda core: frozenset())) is None
        found = await Story(FALLBACK).round(LiveRounds(here, movable=lambda core: frozenset({"b"})))
        assert found is not None and [one.job for one in found.moves] == ["b"]

    told(play)


def test_a_profile_without_the_tables_asks_nobody() -> None:
    async def never(task: SolverTask) -> bytes:
        raise AssertionError

    async def play() -> None:
        assert await Story("").round(LiveRounds(never)) is None

    told(play)


def test_a_solver_that_is_absent_killed_or_too_late_is_one_sentence_and_the_next_round_asks_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def refuses(task: SolverTask) -> bytes:
        raise InputError("the solver", "an answer from its process (no answer within 300 s)")

    async def play() -> None:
        dies = SolverProcess((sys.executable, "-c", "raise SystemExit"))
        for solver in (dies, refuses):
            story, rounds = Story(FALLBACK), LiveRounds(solver)
            assert await story.round(rounds) is None
            assert rounds.trouble.startswith("the solver: expected") and "\n" not in rounds.trouble
            story.submit("small", 1)
            story.execute(story.core.cycle())
            rounds.solver = here
            story.seconds += 61
            assert await story.round(rounds) is not None and rounds.trouble == ""
        with monkeypatch.context() as absent:
            absent.setitem(sys.modules, "ortools.sat.python", None)
            rounds = LiveRounds(here)
            assert await Story(FALLBACK).round(rounds) is None and "kant-scheduler[optimize]" in rounds.trouble

    told(play)


def test_another_core_begins_anew_and_keeps_what_was_learned() -> None:
    async def play() -> None:
        rounds = LiveRounds(here)
        story = Story(DEFRAGMENT)
        assert await story.round(rounds) is not None
        assert rounds._rounds is not None
        learned = rounds._rounds.learned
        assert max(learned.wanted) > 0
        other = Story(DEFRAGMENT)
        assert rounds.turn(other.core) is None and rounds._rounds.learned == learned

    told(play)
