"""Small graphs, and a plain opinion of what plans there are."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations, product

from hypothesis import strategies as st

from kant.optimize.workflow.graph import NEVER, Graph, Stage, StageRun


@st.composite
def graphs(draw: st.DrawFn, most: int = 5, processors: int = 2) -> Graph:
    """Any precedence, stages without duration, transfers without time, and processors that cannot run everything."""
    count = draw(st.integers(1, processors))
    stages = []
    for i in range(draw(st.integers(1, most))):
        before = tuple((j, draw(st.integers(0, 4))) for j in range(i) if draw(st.booleans()))
        durations = draw(st.lists(st.integers(NEVER, 5), min_size=count, max_size=count).filter(lambda d: max(d) >= 0))
        stages.append(Stage(f"s{i}", tuple(durations), before))
    return Graph(tuple(f"p{p}" for p in range(count)), tuple(stages))


def all_plans(graph: Graph) -> Iterator[tuple[StageRun, ...]]:
    """For each order of the stages and each choice of processors the plan in which each starts as soon as it may.

    A shortest plan is among them.
    """
    able = [[p for p, d in enumerate(stage.durations) if d != NEVER] for stage in graph.stages]
    for order in permutations(range(len(graph.stages))):
        if any(order.index(j) > order.index(i) for i, stage in enumerate(graph.stages) for j, _ in stage.before):
            continue
        for chosen in product(*able):
            free = [0] * len(graph.processors)
            ends = [0] * len(graph.stages)
            runs = []
            for i in order:
                p = chosen[i]
                there = [ends[j] + (ticks if chosen[j] != p else 0) for j, ticks in graph.stages[i].before]
                start = max([free[p], *there])
                free[p] = ends[i] = start + graph.stages[i].durations[p]
                runs.append(StageRun(0, i, p, start, ends[i]))
            yield tuple(runs)


def naive_faults(graph: Graph, runs: tuple[StageRun, ...]) -> bool:
    """Whether a plan is wrong, looked at tick by tick."""
    of = {run.stage: run for run in runs}
    if sorted(of) != list(range(len(graph.stages))) or len(runs) != len(of):
        return True
    for tick in range(max(run.end for run in runs)):
        busy = [run.processor for run in runs if run.start <= tick < run.end]
        if len(set(busy)) < len(busy):
            return True
    for i, stage in enumerate(graph.stages):
        run = of[i]
        if run.start < 0 or stage.durations[run.processor] != run.end - run.start:
            return True
        for j, ticks in stage.before:
            if of[j].end + (ticks if of[j].processor != run.processor else 0) > run.start:
                return True
    return False
