"""`kant ops runbooks`: earlier solutions as files, to review and to replay when they apply."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from cyclopts import App, Parameter

from kant.cli.inputs import Json
from kant.cli.ops_options import Where
from kant.cli.ops_show import show_runbook, show_runbooks, show_runs
from kant.cli.output import Reply
from kant.cli.show import console
from kant.model.errors import InputError

if TYPE_CHECKING:
    from kant.ops.memory.replay import RunbookRun
    from kant.ops.memory.runbooks import Runbook, Runbooks

runbooks_app = App(name="runbooks", help="Compile solved tasks into runbooks, review them, and repeat them.")
HERE = Where()
STOPPED = 1
Folder = Annotated[Path, Parameter(name="--runbooks", help="The folder of the runbooks.")]
FOLDER = Path("runbooks")


@runbooks_app.command(name="list")
def list_(*, folder: Folder = FOLDER, json: Json = False) -> int:
    """List the runbooks: the words that select each, its steps, and how many are stale."""
    rows = [
        {
            "name": book.name,
            "tasks": book.tasks,
            "steps": len(book.step),
            "stale": sum(bool(step.stale) for step in book.step),
        }
        for book in _books(_load(folder))
    ]
    return Reply({"runbooks": rows}, lambda: show_runbooks(rows)).print(json)


@runbooks_app.command
def show(
    name: Annotated[str, Parameter(help="The name of a runbook (`kant ops runbooks list`).")],
    /,
    *,
    folder: Folder = FOLDER,
    json: Json = False,
) -> int:
    """Print the steps of a runbook, and their conditions."""
    known = {book.name: book for book in _books(_load(folder))}
    if name not in known:
        raise InputError("NAME", f"one of {', '.join(known) or 'no runbook'}", name)
    found: dict[str, Any] = msgspec.to_builtins(known[name])
    return Reply(found, lambda: show_runbook(found)).print(json)


@runbooks_app.command(name="compile")
def compile_(
    *traces: Annotated[Path, Parameter(help="Folders of traces of completed tasks (`kant mcp --traces`).")],
    folder: Folder = FOLDER,
    json: Json = False,
) -> int:
    """Compile traces into runbooks, and add them to the existing ones. Review the files before you run them."""
    from kant.ops.memory.runbooks import Runbooks
    from kant.ops.memory.traces import read_traces

    if not traces:
        raise InputError("ops runbooks compile", "at least one folder of traces")
    own = Runbooks.load(folder) if folder.is_dir() else Runbooks()
    every = [trace for path in traces for trace in read_traces(path)]
    good = [trace for trace in every if trace.ended]
    for trace in good:
        own.learn(trace)
    files = [str(path) for path in own.save(folder)]
    found = {"traces": len(good), "left_out": len(every) - len(good), "files": files}
    return Reply(found, lambda: _say(f"{len(good)} of {len(every)} traces are complete and usable", *files)).print(json)


@runbooks_app.command
def run(
    *tasks: Annotated[str, Parameter(help="The task, in the words of a runbook. Several tasks run together.")],
    folder: Folder = FOLDER,
    traces: Annotated[
        Path | None, Parameter(help="Write the traces to this folder, and continue an interrupted task there.")
    ] = None,
    yes: Annotated[bool, Parameter(help="Confirm plans that exceed the limits.", negative="")] = False,
    where: Where = HERE,
    json: Json = False,
) -> int:
    """Carry out tasks by their runbooks, as long as the conditions of each step hold."""
    from kant.cli.ops import asked
    from kant.ops.memory.replay import RunbookRun
    from kant.ops.memory.together import run_together
    from kant.ops.memory.traces import DeskTools

    if not tasks:
        raise InputError("ops runbooks run", "at least one task, such as 'drain node-00003'")
    books, desk = _load(folder), where.opening().desk("runbook")
    tools = DeskTools(desk, lambda question: desk.who.user if yes or asked(question) else "")
    runs = run_together(tasks, tools, lambda task, own: RunbookRun(task, own, books, lambda trace: None, traces))
    found = {"tasks": [_row(each) for each in runs]}
    Reply(found, lambda: show_runs(found["tasks"])).print(json)
    return 0 if all(each.trace.ended for each in runs) else STOPPED


def _row(run: RunbookRun) -> dict[str, Any]:
    """Return the result of a task."""
    steps = [
        {"tool": step.call.tool, "args": step.call.args, "answer": _short(step.answer or {})}
        for step in run.trace.steps
    ]
    return {"task": run.task, "over": run.trace.ended, "stopped": run.stopped, "steps": steps}


def _short(answer: dict[str, Any]) -> dict[str, Any]:
    keep = ("plan_id", "can_be_applied", "txn", "state", "did", "refused", "sentence", "error")
    return {key: answer[key] for key in keep if answer.get(key)}


def _load(folder: Path) -> Runbooks:
    from kant.ops.memory.runbooks import Runbooks

    return Runbooks.load(folder)


def _books(books: Runbooks) -> list[Runbook]:
    return list({book.name: book for book in books.books.values()}.values())


def _say(*lines: str) -> None:
    for line in lines:
        console.print(line, markup=False, highlight=False, soft_wrap=True)
