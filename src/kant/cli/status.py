"""`kant status`: the capacity, use and demand of a cluster, and how far its use is from the best possible."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from kant.cli.inputs import At, Home, Json
from kant.cli.kube_options import KubeQuestion
from kant.cli.places import questions_of


def status(
    journal: Annotated[Path | None, Parameter(help="A journal.jsonl of a run.")] = None,
    /,
    *,
    optimality: Annotated[
        bool, Parameter(help="Also print what a solver could start now, and which jobs strand GPUs (extra `optimize`).")
    ] = False,
    at: At = None,
    home: Home = None,
    json: Json = False,
    there: KubeQuestion = KubeQuestion(),  # noqa: B008 - it is frozen
) -> int:
    """Print the capacity of the pools and how much waits; with --optimality, how far this is from the best possible.

    Without a journal it asks Kant on this machine (`kant up`), or with --kube on a Kubernetes cluster.
    """
    return questions_of(home, there, journal, at).status(optimality).print(json)


def show(found: dict[str, Any]) -> None:
    """Print the status."""
    from kant.cli.show import console
    from kant.cli.show_answers import show_pools

    show_pools(found["pools"])
    gpus = found["waiting_gpus"]
    console.print(
        f"{_do(found['running'], 'run')}, {_do(found['waiting'], 'wait')} for {gpus:g} GPU{'s' * (gpus != 1)}",
        soft_wrap=True,
    )
    if found["optimality"] is not None:
        _show_optimality(found["optimality"])


def _show_optimality(found: dict[str, Any]) -> None:
    from kant.cli.show import section

    held = f" ({_jobs(found['held_back'])} may not start, whatever is free)" if found["held_back"] else ""
    section(f"a solver starts now{held}", _startable(found["startable"]))
    section(
        "the largest gang of whole nodes",
        [
            f"{gang['gpus']} GPUs of {gang['pool'] or 'any model'}"
            + (f", {gang['after_moves']} once {_do(gang['moves'], 'move')}" if gang["moves"] else "")
            for gang in found["gangs"]
        ],
    )
    section(
        f"{found['stranded_gpus']:g} GPUs are stranded on partly used nodes",
        [f"queue {one['queue']}: {one['gpus']:g} GPUs, {_worst(one['jobs'])}" for one in found["stranded"]],
    )


def _startable(found: dict[str, Any]) -> list[str]:
    lines = []
    for packing, words in ((found["in_place"], "while all stay"), (found["with_moves"], "")):
        moves = packing["moves"]
        words = words or f"if {_do(len(moves), 'move')} ({_some(moves)})"
        if packing is found["with_moves"] and not moves:
            continue
        if not packing["jobs"]:
            lines.append(f"{words}: no job" + ("" if packing["proven"] else ", within the limit of the search"))
            continue
        share = f"{100 * packing['share']:.1f} % of the waiting demand"
        which = f" ({_some(packing['jobs'])})"
        proof = "" if packing["proven"] else ", at least"
        lines.append(f"{words}: {_jobs(len(packing['jobs']))} of {packing['gpus']:g} GPUs{which}, {share}{proof}")
    return lines


def _worst(jobs: list[dict[str, Any]]) -> str:
    return ", ".join(f"{one['job']} {one['gpus']:.2g}" for one in jobs[:3]) + (" and others" if jobs[3:] else "")


def _jobs(count: int) -> str:
    return f"{count:,} job{'s' * (count != 1)}"


def _do(count: int, verb: str) -> str:
    return f"{_jobs(count)} {verb}{'s' * (count == 1)}"


def _some(names: list[str]) -> str:
    return ", ".join(names[:4]) + (f" and {len(names) - 4:,} more" if names[4:] else "")
