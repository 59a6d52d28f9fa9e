"""`kant plan residency`: when each model is kept in the memory of a GPU, and when it is read from a slower tier."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from kant.cli.inputs import Json, Limit, effort
from kant.cli.output import Reply
from kant.cli.show import SHOWN, console, print_table
from kant.optimize.residency.exact import shortest
from kant.optimize.residency.generate import read_program
from kant.optimize.residency.program import ACTIONS, COPY, BufferAction, Program, duration, uses_of


def residency(
    file: Annotated[Path, Parameter(help="A JSON file of buffers and of steps that use them (docs/planning.md).")],
    /,
    *,
    search: Annotated[
        Literal["greedy", "beam", "optimal"], Parameter(help="greedy, beam (never worse), or optimal (proven).")
    ] = "beam",
    limit: Limit = "10s",
    json: Json = False,
) -> int:
    """Say for each use of a model or a buffer whether it is kept in fast memory, copied there ahead of time, or read
    from its own tier.
    """
    from kant.optimize.residency.search import beam, greedy

    seconds = effort(limit)
    program = read_program(file)
    bound = sum(step.compute for step in program.steps)
    simple = greedy(program)
    choices: Sequence[BufferAction] = simple if search == "greedy" else beam(program)
    if search == "optimal":
        choices, bound = shortest(program, choices, seconds)
    answer = {
        "search": search,
        "ticks": duration(program, choices),
        "bound": bound,
        "greedy": duration(program, simple),
        "compute": sum(step.compute for step in program.steps),
        "uses": _uses(program, choices),
    }
    return Reply(answer, lambda: _show(program, answer)).print(json)


def _uses(program: Program, choices: Sequence[BufferAction]) -> list[dict[str, Any]]:
    return [
        {"step": use.step, "buffer": program.buffers[use.buffer].name, "action": ACTIONS[choice.action]}
        | ({"from": choice.start} if choice.action == COPY else {})
        for use, choice in zip(uses_of(program), choices, strict=True)
    ]


def _show(program: Program, answer: dict[str, Any]) -> None:
    proven = (
        "no plan takes less" if answer["ticks"] == answer["bound"] else f"nothing takes less than {answer['bound']:,}"
    )
    console.print(
        f"{len(program.steps):,} steps take {answer['ticks']:,} ticks ({answer['search']}); {proven}. "
        f"The greedy rule takes {answer['greedy']:,}, compute alone {answer['compute']:,}.",
        soft_wrap=True,
    )
    columns = ("step", "compute", "kept", "copied before (from step)", "read from its tier")
    rows: list[dict[str, list[str]]] = [{"keep": [], "copy": [], "drop": []} for _ in program.steps]
    for use in answer["uses"]:
        begun = f" ({use['from']})" if "from" in use else ""
        rows[use["step"]][use["action"]].append(use["buffer"] + begun)
    cells = [
        (str(n), f"{step.compute:,}", *(", ".join(row[action]) for action in ("keep", "copy", "drop")))
        for n, (step, row) in enumerate(zip(program.steps, rows, strict=True))
    ]
    print_table(columns, cells, "What each step finds", left=columns[2:], most=SHOWN)
