"""`kant explain`: why a job of a journal got its nodes: the candidates, the choice, and its effects."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter
from rich.padding import Padding
from rich.table import Table

from kant.cli.inputs import JournalFile, Json, parse_at, whole
from kant.cli.output import print_json
from kant.cli.plain import ranges
from kant.cli.show import console, section
from kant.model.errors import InputError, StateError
from kant.model.units import clock

if TYPE_CHECKING:
    from kant.insight.start_explanation import PlacementEffect, StartExplanation
    from kant.model.node import ClusterSpec
    from kant.placement.explain import LevelSearch, NodeSearch, PoolFilter
    from kant.scheduler.cycle import Scheduler
    from kant.sim.state_at import Decided

DISAGREES = 1

SHOWN = 8
"""The maximum number of nodes and leaf switches that the terminal shows; `--json` has all."""


def explain(
    job: Annotated[str, Parameter(help="The id of a job.")],
    journal: JournalFile,
    /,
    *,
    start: Annotated[
        int | None, Parameter(help="Which of its starts, from 1 on. Default: the last.", converter=whole)
    ] = None,
    at: Annotated[str | None, Parameter(help="Its last start up to this time of the run, such as 2h.")] = None,
    json: Json = False,
) -> int:
    """Print why a job got its place: the nodes, domains and scores to choose from, and the effects of the place."""
    from kant.insight.start_explanation import explain_start
    from kant.sim.state_at import find_start, scheduler_before

    if start is not None and at is not None:
        raise InputError("--start", "either --start or --at")
    decided = find_start(journal, job, start, parse_at(at))
    for cycles in (False, True):
        scheduler = scheduler_before(journal, decided, cycles=cycles)
        try:
            found = explain_start(scheduler, job, decided.time, decided.place)
        except (StateError, OverflowError) as violation:
            raise InputError(f"{journal}:{decided.line}", f"a plan that is possible here ({violation})") from None
        if decided.proposed:
            found = replace(found, agrees=_proposes(scheduler, decided), how="proposed", account=None)
        if found.agrees:
            break
    place = pieces(found, scheduler.state.spec)
    print_json(as_json(found, decided, place)) if json else show(found, decided, place)
    return 0 if found.agrees else DISAGREES


def _proposes(scheduler: Scheduler, decided: Decided) -> bool:
    """Return whether carrying out the scheduler's proposal gives the recorded placement again."""
    from kant.model.decision import Start
    from kant.model.placement import COUNTED
    from kant.scheduler.proposals import carry_out_proposal

    plan = carry_out_proposal(scheduler, decided.time)
    starts = [one.allocation for one in plan.decisions if isinstance(one, Start) and one.job == decided.job]
    return [place[:, :COUNTED].tolist() for place in starts] == [decided.place[:, :COUNTED].tolist()]


def pieces(found: StartExplanation, cluster: ClusterSpec) -> list[dict[str, Any]]:
    """Return a placement by node: the number of pods, and for each device used the thousandths in use."""
    held: dict[int, dict[str, Any]] = {}
    for node, pods, mask, milli, *_ in found.place.tolist():
        names = {"node": cluster.nodes[node].name, "leaf": cluster.nodes[node].leaf}
        own = held.setdefault(node, names | {"pods": 0, "devices": {}})
        own["pods"] += pods
        for device in range(mask.bit_length()):
            if (mask >> device) & 1:
                own["devices"][device] = own["devices"].get(device, 0) + milli
    return [own | {"devices": [[d, m] for d, m in sorted(own["devices"].items())]} for own in held.values()]


def as_json(found: StartExplanation, decided: Decided, place: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the answer as the object that `--json` prints."""

    return {
        "job": found.job,
        "time_us": found.now,
        "start": decided.number,
        "starts": decided.of,
        "agrees": found.agrees,
        "how": found.how,
        "stopped": found.stopped,
        "within": found.within,
        "required": found.required,
        "place": place,
        "account": found.account,
        "effect": found.effect,
        "wait_or_place": None if found.choice is None else {"wait": found.choice.wait, "sentence": str(found.choice)},
    }


def show(found: StartExplanation, decided: Decided, place: list[dict[str, Any]]) -> None:
    """Print the answer in the terminal: the placement, how it was chosen, and its effects."""
    devices = sum(len(each["devices"]) for each in place)
    where = f"on node {place[0]['node']}" if len(place) == 1 else f"on {len(place):,} nodes"
    console.print(f"{found.job}: started at {clock(found.now)} {where}", style="bold", soft_wrap=True)
    nth = f", start {decided.number} of {decided.of}" if decided.of > 1 else ""
    pods = sum(each["pods"] for each in place)
    asks = f", {'required' if found.required else 'preferred'} in one {found.within}" if found.within else ""
    console.print(f"{_count(pods, 'pod')} on {_count(devices, 'GPU')}{asks}{nth}", style="dim")
    if not found.agrees:
        console.print(
            "this version of Kant would not have started the job there, so it cannot say why. Another "
            "version wrote the journal, or the journal lacks decisions",
            style="yellow", soft_wrap=True,
        )  # fmt: skip
    elif found.how == "proposed":
        section("how", [f"a solver proposed it ({decided.proposed}), and the whole proposal was applied"])
    elif found.how == "preferences":
        section(
            "how", ["pod by pod, by the preferences of the job or its workload, in addition to a level of the fabric"]
        )
    elif found.how == "clear":
        section("how", ["of equal places, one without a booking during the expected run time of the job"])
    elif found.how == "plan":
        section("how", ["the search for a start in time found this place; the usual placement found none"])
    if found.stopped:
        section("evicted for it", [f"job {job}" for job in found.stopped])
    if found.account is not None:
        section("pools", [_pool(each) for each in found.account.pools])
        for level in found.account.levels:
            _show_level(level)
        if found.account.nodes is not None:
            _show_nodes(found.account.nodes)
    section("place", _place(place))
    section("what it means", _meaning(found.effect))
    if found.choice is not None:
        section("wait or place", [str(found.choice)])


def _count(number: int, noun: str) -> str:
    many = f"{noun[:-1]}ves" if noun.endswith("leaf") else f"{noun}s"
    return f"{number:,} {noun if number == 1 else many}"


def _pool(found: PoolFilter) -> str:
    if not found.admits:
        return f"{found.pool}: {_count(found.nodes, 'node')}, not for this job"
    parts = [
        f"{number:,} {word}"
        for number, word in ((found.cordoned, "cordoned"), (found.failed, "failed"), (found.full, "too full"))
        if number
    ]
    without = f", {', '.join(parts)}" if parts else ""
    return f"{found.pool}: {_count(found.nodes, 'node')}{without}: {found.left:,} can run a pod"


def _show_level(found: LevelSearch) -> None:
    gang = "the pod" if found.pods == 1 else "the gang"
    text = f"{found.holding:,} of {_count(found.domains, found.level)} hold{'s' * (found.holding == 1)} {gang}"
    if found.takes == found.pods and not found.ranked:
        text += ", but none holds all its groups together"
    elif not found.holding:
        text += f": the best holds {found.takes:,} of {_count(found.pods, 'pod')}"
    section(f"level {found.level}", [text])
    if not found.ranked:
        return
    node, tight = found.level == "node", found.level == "leaf" and found.pods == 1
    heads = ["takes", "exactly", "breaks a node", "leaf broken" if node else "broken", "whole nodes"]
    rows = []
    for each in found.ranked:
        marks = ["yes" if mark else "no" for mark in (each.exact, each.breaks, each.broken)]
        free = f"{(each.fullest if tight else each.free) / 1000:g}"
        numbers = [f"{each.takes:,}", *marks, f"{each.whole:,}", free]
        rows.append(([_mark(each.pods), str(each.rank), each.name], numbers))
    _table(["", "", found.level], [*heads, "free, fullest node" if tight else "free GPUs"], rows, found.because)


def _show_nodes(found: NodeSearch) -> None:
    how = "node by node" if found.by_node else "pod by pod"
    where = f" in {found.leaf}" if found.leaf else ""
    if found.among == 1:
        section("nodes", [f"{found.ranked[0].name} is the only node{where} that fits a pod"])
        return
    section("nodes", [f"{_count(found.among, 'node')} to choose from{where}; {found.policy}, {how}"])
    names = list(found.ranked[0].terms) if found.ranked else []
    rows = []
    for each in found.ranked:
        terms = [f"{each.terms.get(name, 0):.4g}" for name in names]
        numbers = [*terms, f"{each.score:,}", f"{each.pods:,}"]
        leaf = [] if found.leaf else [each.leaf]
        rows.append(([_mark(each.pods), str(each.rank), each.name, *leaf], numbers))
    _table(["", "", "node", *([] if found.leaf else ["leaf"])], [*names, "score", "pods"], rows, found.because)


def _table(left: list[str], right: list[str], rows: list[tuple[list[str], list[str]]], because: str) -> None:
    """Print the candidates, best first, with the chosen ones marked, and the reason."""
    table = Table(*left, box=None, padding=(0, 2, 0, 0), header_style="dim")
    for name in right:
        table.add_column(name, justify="right")
    for names, numbers in rows:
        table.add_row(*names, *numbers, style="bold" if names[0] else "")
    console.print(Padding(table, (0, 0, 0, 2), expand=False))
    if because:
        console.print(f"  {because}", soft_wrap=True)


def _mark(pods: int) -> str:
    return ">" if pods else ""


def _place(place: list[dict[str, Any]]) -> list[str]:
    """Return lines about the first nodes of a placement, with their devices."""
    leaves: dict[str, list[int]] = {}
    for each in place:
        leaves.setdefault(each["leaf"], []).append(each["pods"])
    lines = []
    if len(leaves) > 1:
        parts = [f"{sum(pods):,} in {leaf}" for leaf, pods in list(leaves.items())[:SHOWN]]
        more = f" and {_count(len(leaves) - SHOWN, 'leaf')} more" if len(leaves) > SHOWN else ""
        lines.append(f"pods: {', '.join(parts)}{more}")
    for each in place[:SHOWN]:
        whole = [device for device, milli in each["devices"] if milli == 1000]
        parts = [f"GPU{'s' * (len(whole) > 1)} {ranges(whole, ', ')}"] if whole else []
        parts += [f"{milli / 1000:g} of GPU {device}" for device, milli in each["devices"] if milli != 1000]
        lines.append(f"{each['node']}: {_count(each['pods'], 'pod')}{' on ' if parts else ''}{', '.join(parts)}")
    return lines + ([f"and {_count(len(place) - SHOWN, 'node')} more"] if len(place) > SHOWN else [])


def _meaning(effect: PlacementEffect) -> list[str]:
    """Return lines about the effects of a placement on its job and on later jobs."""
    where = "over the whole cluster" if effect.level == "cluster" else f"in one {effect.level}"
    lines = [
        f"{where}: {_of_fewest(effect.nodes, effect.fewest_nodes, 'node')}, "
        f"{_of_fewest(effect.leaves, effect.fewest_leaves, 'leaf')}",
        f"it runs {(effect.slowdown - 1000) / 10:.1f} % slower than at the best possible place"
        if effect.slowdown > 1000
        else "it runs as fast as at the best possible place",
    ]
    left = [
        f"{verb} {_count(number, noun)}"
        for number, verb, noun in (
            (effect.filled_nodes, "fills", "node"),
            (effect.broken_nodes, "breaks", "whole node"),
            (effect.broken_leaves, "breaks", "whole leaf"),
        )
        if number
    ]
    moved = f"partly used nodes: {effect.partly_before:,} before, {effect.partly_after:,} after"
    return [*lines, f"it {' and '.join(left)}; {moved}" if left else moved]


def _of_fewest(number: int, fewest: int, noun: str) -> str:
    return f"{_count(number, noun)}{', the fewest possible' if number <= fewest else f' where {fewest:,} would do'}"
