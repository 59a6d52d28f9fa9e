"""Tasks, each a folder. `instruction.md` is the agent's instruction; `task.toml` has the initial and the goal state.

The form of tasks is that of MCPMark (arXiv 2509.24002): a curated state, a text, and a program that judges the final
state. Instead of a program, Kant's tasks have data: the conditions in `verify`.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct, field

from kant.model.errors import InputError
from kant.model.units import parse_duration
from kant.ops.audit import Audit
from kant.ops.bench.conditions import check_goal
from kant.ops.desk import Desk
from kant.ops.orders import parse_orders
from kant.ops.rules import RoleLimits
from kant.ops.scenario import read_scenario
from kant.ops.simulated import SimulatedWorld
from kant.service.roles import Caller, Role
from kant.toml_file import read_text, read_toml

HERE = Path(__file__).parent / "tasks"
Category = Literal[
    "diagnose", "place", "drain", "quota", "reserve", "objectives", "repair", "report", "adversarial"
]  # fmt: skip
Orders = tuple[dict[str, Any], ...]


class StartState(Struct, frozen=True, forbid_unknown_fields=True):
    """The initial state: the scenario `base`, changed by `orders` (which others than the agent have given), after
    which the time `then` passes.

    The agent acts as `user` in the role `role`, and owns the `queues`.
    """

    base: str
    orders: Orders = ()
    then: str = "0s"
    user: str = "olga"
    role: Role = Role.OPERATOR
    queues: tuple[str, ...] = ()


class Economy(Struct, frozen=True, forbid_unknown_fields=True):
    """The maximum cost of the change: 1.2 times `best`. `of` names what is counted.

    `lost`: GPU-hours of work that stopped runs lose. `booked`: hours until the new reservation begins. `best` is the
    minimum over all sets of at most `orders` orders in addition to the requested orders; tests/ops/optimum.py finds it,
    not the oracle.
    """

    best: Annotated[float, Meta(ge=0)]
    of: Literal["lost", "booked"] = "lost"
    orders: Annotated[int, Meta(ge=1, le=4)] = 2


class Verify(Struct, frozen=True, forbid_unknown_fields=True):
    """The required final state. `goal` lists conditions (`bench/conditions.py`). Only things that match `may_change`
    (such as `node n1`) may change. Jobs that match `may_stop` may be stopped if they wait or run again.

    `cancels` lists the jobs that need no longer exist. The audit may have at most `transactions` transactions. `answer`
    is the answer that the agent should give.
    """

    goal: tuple[dict[str, Any], ...] = ()
    may_change: tuple[str, ...] = ()
    may_stop: tuple[str, ...] = ()
    cancels: tuple[str, ...] = ()
    transactions: Annotated[int, Meta(ge=0)] = 1
    economy: Economy | None = None
    answer: dict[str, Any] = field(default_factory=dict)


class OracleSteps(Struct, frozen=True, forbid_unknown_fields=True):
    """One correct solution: plans that are applied one after the other, and the answer."""

    plans: tuple[Orders, ...] = ()
    answer: dict[str, Any] = field(default_factory=dict)


class BenchTask(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A task. `ask` has the content of `text` as data for scripted agents: `want`, and the jobs, queues or nodes
    concerned (docs/ops-bench.md).

    `states` is the folder of the scenarios from which tasks start.
    """

    category: Category
    start: StartState
    ask: dict[str, Any]
    verify: Verify
    oracle: OracleSteps
    name: str = ""
    text: str = ""
    states: str = ""

    def desk(self, world: SimulatedWorld, audit: Audit | None = None) -> Desk:
        """Return a desk for the agent, with the agent's user, role and queues."""
        who = Caller(self.start.user, self.start.role, self.start.queues)
        return Desk(world, who, audit, RoleLimits(), "bench")

    def world(self) -> SimulatedWorld:
        """A new world in the initial state. Raises InputError."""
        world = read_scenario(Path(self.states) / f"{self.start.base}.toml").world()
        for order in parse_orders(self.start.orders) if self.start.orders else ():
            world.carry_out(order, Caller("earlier", Role.OPERATOR))
            world.settle()
        world.step(world.now() + parse_duration(self.start.then, f"task {self.name}, then"))
        return world


def read_task(folder: Path) -> BenchTask:
    """Read the task of a folder. Raises InputError."""
    path, states = folder / "task.toml", str(folder.parent / "states")
    text = read_text(folder / "instruction.md").strip()
    task = msgspec.structs.replace(read_toml(path, BenchTask), name=folder.name, text=text, states=states)
    check_goal(task.verify.goal, str(path))
    return task


def read_tasks(chosen: str = "*", folder: Path = HERE) -> list[BenchTask]:
    """Return the tasks whose name or category matches one of the patterns, by name. Raises InputError if none does."""
    every = [read_task(path.parent) for path in sorted(folder.glob("*/task.toml"))]
    if not every:
        raise InputError(str(folder), "a folder of tasks: folders with instruction.md and task.toml")
    found: dict[str, BenchTask] = {}
    for pattern in (part.strip() for part in chosen.split(",")):
        fits = [task for task in every if fnmatchcase(task.name, pattern) or task.category == pattern]
        if not fits:
            raise InputError("--tasks", "names, patterns or categories of tasks (kant ops bench --list)", pattern)
        found |= {task.name: task for task in fits}
    return [found[name] for name in sorted(found)]
