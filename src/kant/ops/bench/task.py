"""Tasks: a folder each. `instruction.md` is what the agent reads; `task.toml` says how the state starts and must end.

The form of tasks is that of MCPMark (arXiv 2509.24002): a curated state, a text, a program that judges what is left.
Here the judge is data, in the small language of `verify`.
"""

from __future__ import annotations

import tomllib
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
from kant.ops.rules import Limits
from kant.ops.scenario import read_scenario
from kant.ops.simulated import SimulatedWorld
from kant.service.roles import Caller, Role

HERE = Path(__file__).parent / "tasks"
Category = Literal[
    "diagnose", "place", "drain", "quota", "reserve", "objectives", "repair", "report", "adversarial"
]  # fmt: skip
Orders = tuple[dict[str, Any], ...]


class Start(Struct, frozen=True, forbid_unknown_fields=True):
    """The state at the start: one of `states`, then these orders (none of them the agent's), then time that passes.

    The agent is `user` in the role `role`; `queues` are its own.
    """

    base: str
    orders: Orders = ()
    then: str = "0s"
    user: str = "olga"
    role: Role = Role.OPERATOR
    queues: tuple[str, ...] = ()


class Economy(Struct, frozen=True, forbid_unknown_fields=True):
    """What the change may cost: at most 1.2 times `best`, in the unit of `of`.

    `lost`: GPU-hours of work that stopped runs throw away. `booked`: hours until the new reservation begins. `best` is
    found by trying all sets of at most `orders` orders beside what is asked for (tests/ops/optimum.py), and not by the
    oracle.
    """

    best: Annotated[float, Meta(ge=0)]
    of: Literal["lost", "booked"] = "lost"
    orders: Annotated[int, Meta(ge=1, le=4)] = 2


class Verify(Struct, frozen=True, forbid_unknown_fields=True):
    """What has to be left. `goal` are conditions of `verify`; of all else only what `may_change` names may be touched
    (such as `node n1`), and the runs of jobs that fit `may_stop` may be stopped, if the job waits or runs again.

    `cancels` are the jobs that may be gone. There are at most `transactions` of the audit. `answer` is what the agent
    has to say.
    """

    goal: tuple[dict[str, Any], ...] = ()
    may_change: tuple[str, ...] = ()
    may_stop: tuple[str, ...] = ()
    cancels: tuple[str, ...] = ()
    transactions: Annotated[int, Meta(ge=0)] = 1
    economy: Economy | None = None
    answer: dict[str, Any] = field(default_factory=dict)


class Oracle(Struct, frozen=True, forbid_unknown_fields=True):
    """One right way: plans that are made and applied in turn, and what is said then."""

    plans: tuple[Orders, ...] = ()
    answer: dict[str, Any] = field(default_factory=dict)


class Task(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A task. `ask` says what `text` says, for scripted agents: `want`, and what it is about (docs/ops-bench.md).

    `states` is the folder of the states of its start.
    """

    category: Category
    start: Start
    ask: dict[str, Any]
    verify: Verify
    oracle: Oracle
    name: str = ""
    text: str = ""
    states: str = ""

    def desk(self, world: SimulatedWorld, audit: Audit | None = None) -> Desk:
        """The desk of the agent."""
        who = Caller(self.start.user, self.start.role, self.start.queues)
        return Desk(world, who, audit, Limits(), "bench")

    def world(self) -> SimulatedWorld:
        """A new world as it is at the start. Raises InputError."""
        world = read_scenario(Path(self.states) / f"{self.start.base}.toml").world()
        for order in parse_orders(self.start.orders) if self.start.orders else ():
            world.carry_out(order, Caller("earlier", Role.OPERATOR))
            world.settle()
        world.step(world.now() + parse_duration(self.start.then, f"task {self.name}, then"))
        return world


def read_task(folder: Path) -> Task:
    """The task of a folder. Raises InputError."""
    path, states = folder / "task.toml", str(folder.parent / "states")
    try:
        text = (folder / "instruction.md").read_text(encoding="utf-8").strip()
        found = tomllib.loads(path.read_text(encoding="utf-8"))
        task = msgspec.structs.replace(msgspec.convert(found, Task), name=folder.name, text=text, states=states)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InputError(str(folder), f"instruction.md and task.toml that can be read ({error})") from None
    except msgspec.ValidationError as error:
        raise InputError(str(path), f"a task (docs/ops-bench.md): {error}") from None
    check_goal(task.verify.goal, str(path))
    return task


def read_tasks(chosen: str = "*", folder: Path = HERE) -> list[Task]:
    """The tasks whose names or categories fit one of the patterns, by name. Raises InputError where none does."""
    every = [read_task(path.parent) for path in sorted(folder.glob("*/task.toml"))]
    if not every:
        raise InputError(str(folder), "a folder of tasks: folders with instruction.md and task.toml")
    found: dict[str, Task] = {}
    for pattern in (part.strip() for part in chosen.split(",")):
        fits = [task for task in every if fnmatchcase(task.name, pattern) or task.category == pattern]
        if not fits:
            raise InputError("--tasks", "names, patterns or categories of tasks (kant ops bench --list)", pattern)
        found |= {task.name: task for task in fits}
    return [found[name] for name in sorted(found)]
