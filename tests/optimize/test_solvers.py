"""Solvers are an extra: who has not installed it is told what to install."""

from __future__ import annotations

import math
import os
import random
import re
import signal
import sys
import threading
import time
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from benchmarks.studies.calendar import week
from tests.cli.command import Outcome, kant
from tests.kube.processes import Forked

from kant.cli.app import run
from kant.cli.runs import one_interrupt
from kant.model.errors import InputError
from kant.optimize.capacity.file import instance_json
from kant.optimize.capacity.generate import generate as draw_capacity
from kant.optimize.defragment.generate import generate as draw_hosts
from kant.optimize.instance_file import instance_text
from kant.optimize.packing.generate import generate as draw_pods
from kant.optimize.residency.generate import generate as draw_program
from kant.optimize.solvers import cp_sat, deterministic
from kant.optimize.workflow.file import workflow_toml
from kant.optimize.workflow.generate import generate as draw_workflow

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]
BY_THE_CLOCK = re.compile(
    r"max_time_in_seconds|set_time_limit|SetTimeLimit|\btime_limit\b|TimeLimit\(|max_wall|wall_time|num_search_workers"
)
"""How a solver is given a limit by the clock, or more than one worker."""


def test_an_absent_solver_is_said_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ortools.sat.python", None)
    with pytest.raises(InputError, match=r"pip install 'kant-scheduler\[optimize\]'"):
        cp_sat()


def test_a_model_is_solved() -> None:
    cp_model = cp_sat()
    model = cp_model.CpModel()
    x = model.new_int_var(0, 9, "x")
    model.maximize(x)
    solver = deterministic(1.0)
    assert solver.solve(model) == cp_model.OPTIMAL and solver.value(x) == 9


def sources() -> list[Path]:
    return [*(ROOT / "src" / "kant").rglob("*.py"), *(ROOT / "benchmarks").rglob("*.py")]


def test_no_solver_has_a_limit_by_the_clock() -> None:
    assert len(sources()) > 500
    for path in sources():
        found = BY_THE_CLOCK.search(path.read_text(encoding="utf-8"))
        assert found is None, f"{path.relative_to(ROOT)}: {found and found[0]}"


def test_every_solver_is_made_at_one_place() -> None:
    made = [path.relative_to(ROOT).as_posix() for path in sources() if "CpSolver" in path.read_text(encoding="utf-8")]
    assert made == ["src/kant/optimize/solvers.py"]
    parameters = deterministic(0.25, 3).parameters
    assert (parameters.num_workers, parameters.random_seed, parameters.max_deterministic_time) == (1, 3, 0.25)
    assert parameters.max_time_in_seconds == math.inf


def loads(machines: int = 12, tasks: int = 60) -> Any:
    """A model whose optimum no search proves in a minute: tasks on machines, the fullest as empty as may be."""
    model, draw = cp_sat().CpModel(), random.Random(1)
    weights = [draw.randint(100, 999) for _ in range(tasks)]
    on = [[model.new_bool_var(f"{task}-{machine}") for machine in range(machines)] for task in range(tasks)]
    for row in on:
        model.add_exactly_one(row)
    fullest = model.new_int_var(0, sum(weights), "fullest")
    for machine in range(machines):
        model.add(sum(weight * row[machine] for weight, row in zip(weights, on, strict=True)) <= fullest)
    model.minimize(fullest)
    return model


def interrupt_after(seconds: float) -> None:
    threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGINT)).start()


def interrupted(before: float) -> None:
    base, model = type(deterministic(1e6)).__mro__[1], loads()
    solve = base.solve
    base.solve = lambda *given: (time.sleep(before), solve(*given))[1]
    interrupt_after(0.2)
    with pytest.raises(KeyboardInterrupt):
        deterministic(1e6).solve(model)
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize("before", [0.0, 0.4])
def test_an_interrupt_ends_a_search_and_is_heard_again(before: float, tmp_path: Path) -> None:
    """OR-Tools' own handler takes the partial result for the answer, and kills the process at the next interrupt.

    The search has begun for long when it is interrupted, or is about to.
    """
    log = tmp_path / "log"
    assert Forked(partial(interrupted, before), log).wait() == 0, log.read_text()


def test_a_search_goes_on_where_the_process_handles_interrupts(tmp_path: Path) -> None:
    """As in a simulation, which ends between two instants, and whose decisions are those of a whole run."""

    def searched() -> tuple[object, ...]:
        solver = deterministic(0.5)
        return solver.status_name(solver.solve(loads())), solver.objective_value, solver.num_branches

    def search() -> None:
        with one_interrupt() as asked:
            interrupt_after(0.05)
            found = searched()
        assert asked and found == searched()

    log = tmp_path / "log"
    assert Forked(search, log).wait() == 0, log.read_text()


def test_no_plan_looks_at_a_clock() -> None:
    for path in (ROOT / "src" / "kant" / "optimize").rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"^ *(from|import) (time|datetime|threading|signal)\b", text, re.MULTILINE), path


@pytest.fixture(scope="module")
def questions(tmp_path_factory: pytest.TempPathFactory) -> list[list[str | Path]]:
    """A question to each verb that searches, with a limit that ends its search long before its proof."""
    there = tmp_path_factory.mktemp("questions")
    hard = week(3, 130, 0.05)
    files = {
        "tasks.json": instance_json(draw_capacity(60, seed=4)),
        "many.json": instance_json(draw_capacity(260, seed=4)),
        "stages.toml": workflow_toml(draw_workflow(20, 4, 2)),
        "program.json": instance_text(draw_program(24, seed=2)),
        "pods.json": instance_text(draw_pods(8, 4, 3, 0.98, 5)),
        "hosts.json": instance_text(draw_hosts(6, 40, 1)),
        "week.csv": "\n".join(["id,lower,upper,size", *(f"{b.id},{b.start},{b.end},{b.gpus}" for b in hard)]),
    }
    for name, text in files.items():
        (there / name).write_text(text)
    return [
        ["plan", "calendar", there / "week.csv", "--limit", "20ms", "--json"],
        ["plan", "calendar", there / "week.csv", "--limit", "20ms", "--capacity", "64", "--json"],
        ["plan", "capacity", there / "tasks.json", "--limit", "300ms", "--json"],
        ["plan", "capacity", there / "many.json", "--limit", "300ms", "--json"],
        ["plan", "workflow", there / "stages.toml", "--policy", "optimal", "--limit", "50ms", "--json"],
        ["plan", "residency", there / "program.json", "--search", "optimal", "--limit", "50ms", "--json"],
        ["pack", there / "pods.json", "--limit", "100ms", "--json"],
        ["defrag", there / "hosts.json", "--moves", "5", "--limit", "100ms", "--json"],
    ]


@pytest.fixture(scope="module")
def answered(questions: list[list[str | Path]]) -> tuple[list[Outcome], list[float]]:
    """The answers, and the deterministic limit of each call of a solver on the way."""
    solver = type(deterministic(1.0))
    solve, limits = solver.solve, []

    def looked_at(self: Any, *given: Any, **options: Any) -> Any:
        limits.append(self.parameters.max_deterministic_time)
        assert self.parameters.max_time_in_seconds == math.inf and self.parameters.num_workers == 1
        return solve(self, *given, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(solver, "solve", looked_at)
        return [kant(*question) for question in questions], limits


def test_every_call_of_a_solver_has_a_deterministic_limit(answered: tuple[list[Outcome], list[float]]) -> None:
    answers, limits = answered
    for answer in answers:
        answer.is_civil()
    assert len(limits) >= 5 and all(0 < limit < math.inf for limit in limits)


def test_an_answer_does_not_depend_on_the_clock(
    questions: list[list[str | Path]], answered: tuple[list[Outcome], list[float]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A clock that leaps by an hour at each look changes no answer."""
    ticks = count(0, 3600)
    monkeypatch.setattr(time, "monotonic", lambda: float(next(ticks)))
    assert [kant(*question) for question in questions] == answered[0]


def test_a_slow_machine_gives_the_same_answers(
    questions: list[list[str | Path]], answered: tuple[list[Outcome], list[float]], tmp_path: Path
) -> None:
    """Plans of a calendar and of capacity, by a process that stands still nine tenths of the time."""
    for number in (0, 2):
        log = tmp_path / f"slow-{number}"
        log.touch()
        slow = Forked(partial(run, [str(word) for word in questions[number]]), log)
        stops = 0
        while slow.poll() is None:
            slow.send_signal(signal.SIGSTOP)
            time.sleep(0.045)
            slow.send_signal(signal.SIGCONT)
            time.sleep(0.005)
            stops += 1
        assert slow.returncode == 0 and stops > 2 and log.read_text() == answered[0][number].out
