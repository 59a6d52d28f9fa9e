"""`kant plan workflow`: which stage of a graph runs where and when, and how much slack each stage has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from kant.cli.inputs import Json, Limit, effort
from kant.cli.output import Reply
from kant.cli.show import SHOWN, console, percent, print_table
from kant.model.errors import InputError
from kant.model.units import SECOND, show_duration
from kant.optimize.solvers import cp_sat
from kant.optimize.workflow.bounds import lower_bound, slack
from kant.optimize.workflow.exact import is_small, shortest
from kant.optimize.workflow.file import MOST_PROCESSORS, Processor, graph_of, processors_of, read_workflow
from kant.optimize.workflow.graph import Graph, StageRun, makespan
from kant.optimize.workflow.plan import plan
from kant.optimize.workflow.policies import POLICIES
from kant.optimize.workflow.policy import WorkflowRule
from kant.workload.cluster_file import read_cluster

OPTIMAL = "optimal"
WIDTH = 72
"""The width of the picture of a plan in characters, without the names of processors."""

WorkflowPath = Annotated[Path, Parameter(help="A TOML file of stages, and of processors (docs/planning.md).")]
ClusterNodes = Annotated[
    str | None, Parameter(help="A cluster file, or NxG: each node is a processor. Default: those of the file.")
]


def workflow(
    file: WorkflowPath,
    /,
    *,
    policy: Annotated[
        str,
        Parameter(
            help="heft, cpop, learned, etf, rank, eft, met, heft-rt, a file of `kant plan train`, or optimal (proven)."
        ),
    ] = "heft",
    compare: Annotated[bool, Parameter(help="Compare all policies.", negative="")] = False,
    cluster: ClusterNodes = None,
    limit: Limit = "10s",
    json: Json = False,
) -> int:
    """Plan a workflow: which stage runs when on which processor, with the critical path, and the slack of each stage.

    Processors may differ in speed, each runs one stage at a time, and a transfer of data between two takes time.
    """
    graph = load_graph(file, cluster)
    seconds = effort(limit)
    if compare:
        rows = compared(graph, seconds)
        return Reply({"policies": [_row_json(graph, *row) for row in rows]}, lambda: _show_compared(graph, rows)).print(
            json
        )
    runs, bound = planned(graph, policy, seconds)
    return Reply(plan_json(graph, policy, runs, bound), lambda: _show_plan(graph, policy, runs, bound)).print(json)


def load_graph(path: Path, cluster: str | None) -> Graph:
    """Return the workflow of a file on its own processors, or on the nodes of a cluster."""
    read = read_workflow(path)
    if cluster is None:
        return graph_of(read, processors_of(read))
    nodes = read_cluster(cluster).nodes
    if len(nodes) > MOST_PROCESSORS:
        raise InputError("--cluster", f"at most {MOST_PROCESSORS:,} nodes", len(nodes))
    return graph_of(read, [Processor(node.name, node.model, node.gpus) for node in nodes])


def planned(graph: Graph, policy: str, seconds: float) -> tuple[tuple[StageRun, ...], int]:
    """Return the plan of a policy, and a time before which no plan can end."""
    if policy == OPTIMAL:
        best = min((plan(graph, each) for each in POLICIES.values()), key=makespan)
        found = shortest(graph, best, seconds)
        return found.runs, found.bound
    return plan(graph, policy_named(policy, [*POLICIES, OPTIMAL])), lower_bound(graph)


def policy_named(name: str, known: Sequence[str]) -> WorkflowRule:
    """Return the policy of a name, or the learned order of a file. Raises InputError if the name is neither."""
    from kant.optimize.workflow.weights import read_weights

    if name in POLICIES:
        return POLICIES[name]
    if name.endswith(".toml"):
        return read_weights(Path(name))
    raise InputError("--policy", f"{', '.join(known)}, or a file of weights (.toml)", name)


def compared(graph: Graph, seconds: float) -> list[tuple[str, int, int]]:
    """Return each policy with the end of its plan, and with the best known bound.

    `optimal` is included if CP-SAT is installed and the graph is not too large for it.
    """
    found = [(name, *planned(graph, name, seconds)) for name in POLICIES]
    try:
        cp_sat()
    except InputError:
        pass
    else:
        if is_small(graph):
            found.append((OPTIMAL, *planned(graph, OPTIMAL, seconds)))
    bound = max(bound for *_, bound in found)
    return [(name, makespan(runs), bound) for name, runs, _ in found]


def _ticks(graph: Graph, ticks: float) -> float:
    """Return a time as `--json` prints it: seconds, or a plain number."""
    return ticks / SECOND if graph.timed else ticks


def shown_by(graph: Graph) -> Callable[[float], str]:
    """Return the function that formats times."""
    return show_duration if graph.timed else lambda ticks: f"{ticks:,.6g}"


def _row_json(graph: Graph, name: str, end: int, bound: int) -> dict[str, Any]:
    return {"policy": name, "makespan": _ticks(graph, end), "bound": _ticks(graph, bound), "proven": end == bound}


def plan_json(graph: Graph, policy: str, runs: Sequence[StageRun], bound: int) -> dict[str, Any]:
    """Return the plan in the form of `--json`."""
    left = slack(graph, runs)
    on_path = set(graph.critical_path)
    return _row_json(graph, policy, makespan(runs), bound) | {
        "critical_path": [graph.stages[i].id for i in graph.critical_path],
        "processors": list(graph.processors),
        "stages": [
            {
                "id": graph.stages[run.stage].id,
                "processor": graph.processors[run.processor],
                "start": _ticks(graph, run.start),
                "end": _ticks(graph, run.end),
                "slack": _ticks(graph, left[run.stage]),
                "rank": _ticks(graph, graph.upward[run.stage]),
                "critical": run.stage in on_path,
            }
            for run in sorted(runs, key=lambda run: (run.start, run.end, run.stage))
        ],
    }


def _proof(graph: Graph, end: int, bound: int) -> str:
    show = shown_by(graph)
    return "no plan ends earlier" if end == bound else f"no plan ends before {show(bound)}"


def _show_plan(graph: Graph, policy: str, runs: Sequence[StageRun], bound: int) -> None:
    show, end, left = shown_by(graph), makespan(runs), slack(graph, runs)
    console.print(
        f"{len(graph.stages):,} stages on {len(graph.processors):,} processors end after {show(end)} ({policy}); "
        f"{_proof(graph, end, bound)}.",
        soft_wrap=True,
    )
    names = [graph.stages[i].id for i in graph.critical_path]
    console.print(f"critical path: {' -> '.join(names)} ({show(max(graph.upward))} on average)", soft_wrap=True)
    rows = sorted(runs, key=lambda run: (run.start, run.end, run.stage))
    cells = []
    for run in rows:
        times = (run.start, run.end, left[run.stage], graph.upward[run.stage])
        cells.append((graph.stages[run.stage].id, graph.processors[run.processor], *map(show, times)))
    columns = ("stage", "processor", "start", "end", "slack", "rank")
    print_table(columns, cells, "The plan", left=columns[:2], most=SHOWN)
    for line in picture(graph, runs):
        console.print(line, soft_wrap=True)


def _show_compared(graph: Graph, rows: Sequence[tuple[str, int, int]]) -> None:
    show = shown_by(graph)
    bound = rows[0][2]
    console.print(f"{len(graph.stages):,} stages on {len(graph.processors):,} processors; ", end="")
    console.print(f"no plan ends before {show(bound)}.")
    cells = [(name, show(end), percent(end / bound - 1) if bound else "-") for name, end, _ in rows]
    print_table(("policy", "ends after", "above the bound"), cells)


def picture(graph: Graph, runs: Sequence[StageRun], width: int = WIDTH) -> list[str]:
    """Return a line for each used processor, with each run from its start to its end, and a line of times."""
    end = max((run.end for run in runs), default=0)
    busy = sorted({run.processor for run in runs})
    label = max(len(graph.processors[p]) for p in busy)
    lines = []
    for p in busy[:SHOWN]:
        cells = [" "] * width
        for run in sorted(runs, key=lambda run: (run.start, run.end)):
            if run.processor != p or run.start == run.end:
                continue
            first = min(run.start * width // end, width - 1)
            last = max(-(-run.end * width // end), first + 1)
            if run.end < end:
                last = max(run.end * width // end, first + 1)
            cells[first:last] = _bar(graph.stages[run.stage].id, last - first)
        lines.append(f"{graph.processors[p]:<{label}} {''.join(cells).rstrip()}")
    if len(busy) > SHOWN:
        lines.append(f"and {len(busy) - SHOWN:,} more processors")
    stop = shown_by(graph)(end)
    return [*lines, f"{'':<{label}} 0{stop:>{width - 1}}"]


def _bar(name: str, length: int) -> str:
    """Return the bar of a run: `length` characters, with as much of its name as fits."""
    if length == 1:
        return "│"
    return "├" + (name[: length - 2] if length > 2 else "").center(length - 2, "─") + "┤"
