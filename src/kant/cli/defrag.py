"""`kant defrag`: a few migrations that leave free capacity in usable blocks, and a bound on the best result."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from kant.cli.inputs import Json, Limit, Seed, effort, whole, write_text
from kant.cli.output import Reply
from kant.cli.pack import ToFile
from kant.cli.show import console, percent
from kant.cli.show_answers import table
from kant.optimize.defragment.instance import read_instance
from kant.optimize.instance_file import instance_text

if TYPE_CHECKING:
    from kant.optimize.defragment.answer import DefragAnswer

defrag_app = App(
    name="defrag",
    help="Migrate a few virtual machines so that free cores come in usable blocks, with a proven bound.",
    help_format="plaintext",
)


@defrag_app.default
def defrag(
    instance: Annotated[Path, Parameter(help="A JSON file of hosts and VMs (docs/solvers.md).")],
    /,
    *,
    moves: Annotated[int, Parameter(help="The largest number of migrations.", converter=whole)] = 50,
    limit: Limit = "5s",
    json: Json = False,
) -> int:
    """Find at most so many migrations that leave the fewest free cores in fragments, in a feasible order."""
    from kant.optimize.defragment.answer import defragment

    answer = defragment(read_instance(instance), moves, effort(limit))
    return Reply(answer, lambda: _show(answer)).print(json)


@defrag_app.command
def generate(
    *,
    hosts: Annotated[int, Parameter(help="Hosts with two NUMA nodes of 44 cores.", converter=whole)] = 279,
    vms: Annotated[
        int, Parameter(help="Number of virtual machines; fewer if they do not fit.", converter=whole)
    ] = 2089,
    seed: Seed = 0,
    out: ToFile = None,
) -> None:
    """Draw a cluster with the host and VM types of VMR2L (arXiv 2505.17359), after a period of churn."""
    from kant.optimize.defragment.generate import generate as draw

    write_text(instance_text(draw(hosts, vms, seed)), out)


def _show(answer: DefragAnswer) -> None:
    """Print the answer in the terminal."""
    rows = [
        {
            "step": number,
            "vm": move.vm,
            "source": _place(move.source, move.source_numa),
            "target": _place(move.target, move.target_numa),
        }
        for number, move in enumerate(answer.moves, 1)
    ]
    table("Migrations", rows, {"step": "step", "vm": "VM", "source": "from", "target": "to"})
    before, after = percent(answer.rate_before), percent(answer.rate_after)
    console.print(
        f"fragment rate {before} → {after} of {answer.free_cores:,} free cores"
        f" by {len(answer.moves):,} of {answer.moves_allowed:,} moves ({answer.spent_s:.2f} s of the solver)",
        soft_wrap=True,
    )
    console.print(
        "proven: no plan with this number of moves leaves less"
        if answer.proven
        else f"not proven: every plan with this number of moves leaves at least {percent(answer.rate_bound)}"
    )


def _place(host: str, numa: int | None) -> str:
    return host if numa is None else f"{host} numa {numa}"
