"""Rounds step by step: counted before they are taken, stopped between two of them, and taken over by another leader."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import msgspec
from tests.kube.live import profile

from kant.kube.follow.mirror import Mirror
from kant.kube.lead.defragmentations import Defragmentations
from kant.kube.objects import views as k
from kant.live.core import Core
from kant.live.solver import SolverTask
from kant.model.decision import Plan, Preempt
from kant.optimize.answers import DefragmentMove, DefragmentPlan
from kant.testing import make_cluster

JOBS = ("a", "b", "c")
STEPS = tuple((DefragmentMove(job, f"n{job}", "n9", 1, 2),) for job in JOBS)


class Story:
    """One object in a mirror, its jobs, and a solver that answers with three steps of one job each."""

    def __init__(self) -> None:
        self.mirror = Mirror()
        self.tasks: list[SolverTask] = []
        self.core: Any = Core(make_cluster(8, 8), profile(), clock=lambda: 1e9)
        slots = {job: SimpleNamespace(slots=[SimpleNamespace(pod=job)]) for job in JOBS}
        members = SimpleNamespace(by_key={}, key_of={})
        self.workloads: Any = SimpleNamespace(by_job=slots, members=members, movable=lambda: frozenset(JOBS))

    async def answer(self, task: SolverTask) -> bytes:
        self.tasks.append(task)
        return msgspec.json.encode(DefragmentPlan(STEPS, ("na", "nb", "nc"), 4, 3, 0))

    def says(self, *, stop: bool = False, **status: object) -> None:
        """The object as the API server has it now."""
        spec = {"mostMoves": 3, "dryRun": False, "stop": stop}
        meta = k.Meta("round", uid="u", creation_timestamp="2026-01-01T00:00:00Z")
        item = k.Unstructured("", "Defragmentation", meta, msgspec.Raw(msgspec.json.encode(spec)),
                       msgspec.Raw(msgspec.json.encode(status)))  # fmt: skip
        self.mirror.objects["defragmentations"] = {("", "round"): item}

    def leader(self) -> Defragmentations:
        return Defragmentations(self.mirror, self.answer, lambda: None)

    async def planned(self, rounds: Defragmentations) -> None:
        """The solver is asked, answers, and is heard."""
        for _ in range(4):
            assert rounds.turn(self.core, self.workloads, False) is None
            await asyncio.sleep(0)


def status(rounds: Defragmentations) -> dict[str, Any]:
    return next(one for name, one, _, _ in rounds.statuses() if name == "round")


async def test_a_step_is_counted_before_it_is_taken_and_the_next_one_is_stopped() -> None:
    own = Story()
    own.says()
    rounds = own.leader()
    await own.planned(rounds)
    assert (status(rounds)["phase"], status(rounds)["moved"]) == ("Moving", 1)
    assert rounds.turn(own.core, own.workloads, False) is None, "its status has not been written"
    own.says(phase="Moving", moved=1)
    step = rounds.turn(own.core, own.workloads, False)
    assert step is not None and [one.job for one in step.moves] == ["a"]
    rounds.record(Plan(0, [Preempt("a", True, "", "defragment")]))
    own.says(stop=True, phase="Moving", moved=1)
    assert rounds.turn(own.core, own.workloads, True) is None and status(rounds)["phase"] == "Moving"
    assert rounds.turn(own.core, own.workloads, False) is None
    told = status(rounds)
    assert (told["phase"], told["moved"], [one["state"] for one in told["moves"]]) == (
        "Stopped", 1, ["Moved", "Planned", "Planned"],
    )  # fmt: skip


async def test_another_leader_moves_only_as_many_as_are_left_and_nobody_after_the_end() -> None:
    own = Story()
    own.says(phase="Moving", moved=2)
    await own.planned(own.leader())
    assert own.tasks[0].order is not None and own.tasks[0].order.settings.moves == 1
    own.says(phase="Done", moved=3)
    assert own.leader().turn(own.core, own.workloads, False) is None and len(own.tasks) == 1


async def test_a_step_that_the_core_refuses_is_not_counted() -> None:
    own = Story()
    own.says()
    rounds = own.leader()
    await own.planned(rounds)
    own.says(phase="Moving", moved=1)
    assert rounds.turn(own.core, own.workloads, False) is not None
    rounds.record(Plan(0, []))
    told = status(rounds)
    assert (
        told["moved"] == 0
        and told["moves"][0]["state"] == "Refused"
        and "it has changed since" in told["moves"][0]["reason"]
    )
