"""`kant pack`: what a scheduler could still place, the moves needed for it, and the proof that no more fits."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
from cyclopts import App, Parameter

from kant.cli.inputs import At, Json, Limit, Seed, effort, parse_at, whole, write_text
from kant.cli.output import Reply, printable
from kant.cli.show import console, print_table
from kant.cli.show_answers import table
from kant.model.errors import InputError
from kant.optimize.instance_file import instance_text
from kant.optimize.packing.instance import read_instance

if TYPE_CHECKING:
    from kant.optimize.packing.answer import PackingAnswer
    from kant.optimize.packing.instance import PackingInstance

pack_app = App(
    name="pack",
    help="Place pods that wait by moving others as little as possible, or prove that no more fit.",
    help_format="plaintext",
)

ToFile = Annotated[Path | None, Parameter(help="The file to write. Default: standard output.")]


@pack_app.default
def pack(
    instance: Annotated[Path, Parameter(help="A JSON file of nodes and pods (docs/solvers.md), or a journal.jsonl.")],
    /,
    *,
    at: At = None,
    limit: Limit = "1s",
    model: Annotated[str, Parameter(help="portfolio, or paper: the published model, as a reference.")] = "portfolio",
    json: Json = False,
) -> int:
    """Place as many waiting pods as possible, the highest priority first, and disturb as few others as possible."""
    from kant.optimize.packing.answer import pack as solve

    problem, note = _instance_of(instance, at)
    answer = solve(problem, model, effort(limit))
    return Reply(answer, lambda: _show(answer, note)).print(json)


def _instance_of(path: Path, at: str | None) -> tuple[PackingInstance, str]:
    """Return the instance of a file, or of a journal at a time; and a note on jobs that it leaves out."""
    if path.suffix != ".jsonl":
        if at is not None:
            raise InputError("--at", "a journal.jsonl as the file")
        return read_instance(path), ""
    from kant.optimize.packing.snapshot import snapshot_of
    from kant.sim.state_at import state_at

    found = snapshot_of(state_at(path, parse_at(at)).state)
    parts = [(len(found.fixed), "running jobs stay where they are"), (len(found.left_out), "waiting jobs are left out")]
    return found.instance, "; ".join(f"{count:,} {what}" for count, what in parts if count)


@pack_app.command
def generate(
    *,
    nodes: Annotated[int, Parameter(help="The number of equal nodes.", converter=whole)] = 32,
    pods_per_node: Annotated[int, Parameter(help="Pods for each node.", converter=whole)] = 4,
    priorities: Annotated[int, Parameter(help="The number of priorities.", converter=whole)] = 4,
    util: Annotated[float, Parameter(help="The requests of all pods, divided by the capacity of the nodes.")] = 0.95,
    seed: Seed = 0,
    out: ToFile = None,
) -> None:
    """Draw an instance by the published rules (arXiv 2511.08373), as left by the default scheduler of Kubernetes."""
    from kant.optimize.packing.generate import generate as draw

    write_text(instance_text(draw(nodes, pods_per_node, priorities, util, seed)), out)


def _show(answer: PackingAnswer, note: str) -> None:
    """Print the answer in the terminal."""
    columns = {"priority": "priority", "pods": "pods", "before": "placed now", "after": "after", "bound": "at most"}
    table("Pods placed", [msgspec.to_builtins(row) for row in answer.priorities], columns)
    if answer.steps:
        names = ("step", "do", "pods", "from", "to")
        rows = [
            (str(number), step.do, _some(step.pods), _some(step.source), _some(step.target))
            for number, step in enumerate(answer.steps, 1)
        ]
        print_table(names, rows, "Steps", left=names[1:])
    console.print(
        f"{answer.started:,} started, {answer.moved:,} moved, {answer.evicted:,} evicted"
        f" ({answer.spent_s:.2f} s of the solver)"
    )
    console.print(_certificate(answer), soft_wrap=True)
    if note:
        console.print(f"{note} (docs/solvers.md)")


def _some(names: tuple[str, ...], most: int = 4) -> str:
    shown = ", ".join(dict.fromkeys(names[:most]))
    return printable(shown + (f" and {len(names) - most} more" if len(names) > most else ""))


def _certificate(answer: PackingAnswer) -> str:
    """Return what has been proven, in one or two sentences."""
    if answer.proven and not answer.steps:
        return "proven: no allowed move starts one more pod"
    if not answer.proven:
        row = next((row for row in answer.priorities if row.after < row.bound), None)
        if row is None:
            return "not proven"
        return f"not proven: {row.after:,} pods of priority {row.priority} are placed, at most {row.bound:,} can be"
    if answer.model == "paper":
        return "proven optimal in the order of the paper's stages"
    if answer.disturbed == answer.disturbed_bound:
        return "proven: no plan places more pods by priority, and no plan that places as many disturbs fewer"
    return (
        "proven: no plan places more pods by priority;"
        f" any that places as many disturbs at least {answer.disturbed_bound:,}, this one {answer.disturbed:,}"
    )
