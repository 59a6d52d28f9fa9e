"""Workflows: plans hold, ranks and slack are what their definitions say, and optima are optima."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from benchmarks.studies.judges import workflow_faults as faults
from benchmarks.studies.workflow_example import topcuoglu
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples
from tests.optimize.workflows import all_plans, graphs, naive_faults

from kant.model.errors import InputError
from kant.model.precedence import order_of
from kant.optimize.workflow.board import Board
from kant.optimize.workflow.bounds import lower_bound, slack
from kant.optimize.workflow.exact import shortest
from kant.optimize.workflow.generate import generate
from kant.optimize.workflow.graph import Graph, Stage, StageRun, makespan
from kant.optimize.workflow.plan import plan, stream
from kant.optimize.workflow.policies import POLICIES


@given(graphs())
@settings(max_examples=examples(60))
def test_every_policy_plans_any_graph_and_none_beats_the_best_of_all_plans(graph: Graph) -> None:
    best = min(makespan(runs) for runs in all_plans(graph))
    assert lower_bound(graph) <= best
    for name, policy in POLICIES.items():
        runs = plan(graph, policy)
        assert not faults([graph], runs) and not naive_faults(graph, runs), name
        assert makespan(runs) >= best
        assert runs == plan(graph, policy)


@given(graphs(most=4))
@settings(max_examples=examples(25))
def test_the_shortest_plan_of_a_small_graph_is_found_and_proven(graph: Graph) -> None:
    worst = max(all_plans(graph), key=makespan)
    found = shortest(graph, worst)
    assert not naive_faults(graph, found.runs) and found.proven
    assert makespan(found.runs) == found.bound == min(makespan(runs) for runs in all_plans(graph))


@given(graphs(most=12, processors=3), st.integers(0, 1000))
@settings(max_examples=examples(40))
def test_the_check_of_a_plan_sees_what_a_look_at_every_tick_sees(graph: Graph, seed: int) -> None:
    rng = random.Random(seed)
    runs = list(plan(graph, POLICIES["etf"]))
    n = rng.randrange(len(runs))
    run = runs[n]
    shift, on = rng.randint(-2, 2), rng.randrange(len(graph.processors))
    longer = rng.choice((0, 0, 0, 1))
    runs[n] = StageRun(0, run.stage, on, max(run.start + shift, 0), max(run.end + shift, 0) + longer)
    assert bool(faults([graph], runs)) == naive_faults(graph, tuple(runs))
    assert faults([graph], runs[1:]) and faults([graph], [*runs, runs[0]])


@given(graphs(most=10, processors=3))
@settings(max_examples=examples(40))
def test_ranks_and_critical_path_are_longest_ways(graph: Graph) -> None:
    mean = [stage.mean for stage in graph.stages]

    def ways(at: int) -> list[list[int]]:
        return [[at]] + [[at, *way] for j, _ in graph.after[at] for way in ways(j)]

    def length(way: list[int]) -> float:
        return sum(mean[i] for i in way) + sum(dict(graph.after[i])[j] for i, j in pairwise(way))

    sources = [i for i, stage in enumerate(graph.stages) if not stage.before]
    every = [way for i in sources for way in ways(i)]
    longest = max(map(length, every))
    for i in range(len(mean)):
        assert graph.upward[i] == pytest.approx(max(map(length, ways(i))))
        assert graph.downward[i] == pytest.approx(max(length(way) for way in every if way[-1] == i) - mean[i])
        through = max(length(way) for way in every if i in way)
        assert graph.spare[i] == pytest.approx(longest - through, abs=1e-9)
    assert length(list(graph.critical_path)) == pytest.approx(longest)
    assert list(graph.critical_path) in every


def end_with(graph: Graph, runs: tuple[StageRun, ...], late: int, by: int) -> int:
    """When the plan ends if one stage ends so much later, each stage keeping its processor and its turn there."""
    ends: dict[int, int] = {}
    free: dict[int, int] = {}
    of = {run.stage: run for run in runs}
    for run in sorted(runs, key=lambda run: (run.start, run.end, run.stage)):
        there = [
            ends[j] + (ticks if of[j].processor != run.processor else 0)
            for j, ticks in graph.stages[run.stage].before
        ]  # fmt: skip
        length = run.end - run.start
        start = max([run.start, free.get(run.processor, 0) if length else 0, *there])
        ends[run.stage] = start + length + by * (run.stage == late)
        if length:
            free[run.processor] = ends[run.stage]
    return max(ends.values())


@given(graphs(most=10, processors=3), st.sampled_from(sorted(POLICIES)))
@settings(max_examples=examples(60))
def test_slack_is_how_much_later_a_stage_may_end(graph: Graph, policy: str) -> None:
    runs = plan(graph, POLICIES[policy])
    for i, left in enumerate(slack(graph, runs)):
        assert left >= 0
        assert end_with(graph, runs, i, left) == makespan(runs) < end_with(graph, runs, i, left + 1)


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(1, 5)), max_size=8), st.integers(0, 25), st.integers(0, 4))
def test_a_stage_goes_into_the_first_gap_that_is_long_enough(
    asked: list[tuple[int, int]], ready: int, length: int
) -> None:
    board = Board([Graph(("p",), tuple(Stage(f"s{n}", (d,)) for n, (_, d) in enumerate(asked)) or (Stage("s", (1,)),))])
    busy: set[int] = set()
    runs = []
    for n, (at, _) in enumerate(asked):
        board.now = at
        run = board.place((0, n), 0)
        ticks = set(range(run.start, run.end))
        assert not ticks & busy and run.start >= at
        busy |= ticks
        runs.append(run)
    start = board.start(0, ready, length)
    first = next(at for at in range(ready, 100) if all(t not in busy for t in range(at, at + length)))
    if length:
        assert start == first
    else:
        assert start >= ready and not any(run.start < start < run.end for run in runs)


def test_the_ten_tasks_of_topcuoglu() -> None:
    graph = topcuoglu()
    published = (108, 77, 80, 80, 69, 63.333, 42.667, 35.667, 44.333, 14.667)
    assert graph.upward == pytest.approx(published, abs=1e-3)
    assert [graph.stages[i].id for i in graph.critical_path] == ["n1", "n2", "n9", "n10"]
    assert makespan(plan(graph, POLICIES["heft"])) == 80
    assert makespan(plan(graph, POLICIES["cpop"])) == 86
    found = shortest(graph, plan(graph, POLICIES["heft"]))
    assert not faults([graph], found.runs)
    assert makespan(found.runs) == found.bound == 73 and found.proven
    assert lower_bound(graph) <= 73


@given(st.integers(0, 10_000), st.integers(1, 40), st.integers(1, 4))
@settings(max_examples=examples(30))
def test_drawn_graphs_have_one_first_stage_and_one_last(seed: int, stages: int, processors: int) -> None:
    graph = generate(stages, processors, seed)
    assert len(graph.stages) == stages and len(graph.processors) == processors
    assert [i for i, stage in enumerate(graph.stages) if not stage.before] == [0]
    assert [i for i in range(stages) if not graph.after[i]] == [stages - 1]
    assert graph == generate(stages, processors, seed)


@given(st.lists(graphs(most=4), min_size=1, max_size=5), st.data())
@settings(max_examples=examples(40))
def test_a_stream_holds_whatever_arrives(drawn: list[Graph], data: st.DataObject) -> None:
    graphs = [graph for graph in drawn if len(graph.processors) == len(drawn[0].processors)]
    arrivals = data.draw(st.lists(st.integers(0, 12), min_size=len(graphs), max_size=len(graphs)))
    most = data.draw(st.integers(0, 2))
    for name, policy in POLICIES.items():
        found = stream(graphs, arrivals, policy, most)
        assert not faults(graphs, found.runs, found.arrivals), name
        assert len(found.arrivals) + found.lost == len(graphs) and (most or not found.lost)
        assert all(found.arrivals[k] == arrivals[k] for k in found.arrivals)
        for k, end in found.ends.items():
            assert end == max(run.end for run in found.runs if run.graph == k)
        for k, at in found.arrivals.items():
            inside = [j for j, came in found.arrivals.items() if (came, j) < (at, k) and found.ends[j] > at]
            assert not most or len(inside) < most


def test_a_circle_is_named_in_its_order() -> None:
    order, circle = order_of(["a", "b", "c", "d"], [[], ["a", "d"], ["b"], ["c"]])
    assert order == [0] and sorted(circle) == ["b", "c", "d"]
    follows = {"b": ["a", "d"], "c": ["b"], "d": ["c"]}
    assert all(circle[n - 1] in follows[name] for n, name in enumerate(circle))
    assert order_of(["a"], [["a"]]) == ([], ["a"])


def test_a_graph_that_cannot_be_is_refused() -> None:
    with pytest.raises(InputError, match="at least one"):
        Graph(("p",), ())
    with pytest.raises(InputError, match="on which it can run"):
        Graph(("p",), (Stage("s", (-1,)),))
    with pytest.raises(InputError, match="earlier stages"):
        Graph(("p",), (Stage("s", (1,), ((0, 1),)),))
    with pytest.raises(InputError, match="a time"):
        Graph(("p",), (Stage("s", (-2,)),))
