"""Properties of a graph's plan: how much later each stage may end, and a lower bound on the length of any plan."""

from __future__ import annotations

from collections.abc import Sequence

from kant.optimize.workflow.graph import NEVER, Graph, StageRun


def slack(graph: Graph, runs: Sequence[StageRun]) -> list[int]:
    """For each stage of a plan, how much later it could end without delaying the end of the plan.

    Stages keep their processors, and their order on each processor; stages without duration are not in this order. All
    `runs` are of one graph.
    """
    of = {run.stage: run for run in runs}
    end = max(run.end for run in runs)
    latest = [end] * len(graph.stages)
    by_time = sorted(runs, key=lambda run: (run.end, run.start, run.stage), reverse=True)
    following: dict[int, StageRun] = {}
    for run in by_time:
        late = end
        for j, ticks in graph.after[run.stage]:
            then = of[j]
            takes = then.end - then.start
            late = min(late, latest[j] - takes - (ticks if then.processor != run.processor else 0))
        if run.start < run.end:
            if run.processor in following:
                then = following[run.processor]
                late = min(late, latest[then.stage] - (then.end - then.start))
            following[run.processor] = run
        latest[run.stage] = late
    return [latest[i] - of[i].end for i in range(len(graph.stages))]


def lower_bound(graph: Graph) -> int:
    """A lower bound on any plan: the longest path without transfers, or the least total work / number of processors.

    A transfer to another processor only makes a path longer, so transfers are left out.
    """
    ways = [0] * len(graph.stages)
    for i, stage in enumerate(graph.stages):
        ways[i] = stage.least + max((ways[j] for j, _ in stage.before), default=0)
    work = sum(stage.least for stage in graph.stages)
    able = sum(any(stage.durations[p] != NEVER for stage in graph.stages) for p in range(len(graph.processors)))
    return max(*ways, -(-work // able))
