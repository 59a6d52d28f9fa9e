"""Streams of workflows, and the order that is learned on them."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.studies.judges import workflow_faults as faults
from benchmarks.studies.workflow_example import topcuoglu
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.cli.command import kant
from tests.examples import examples

from kant.model.errors import InputError
from kant.optimize.workflow.board import Board
from kant.optimize.workflow.file import workflow_toml
from kant.optimize.workflow.generate import generate
from kant.optimize.workflow.load import WorkflowStream
from kant.optimize.workflow.plan import plan, stream
from kant.optimize.workflow.policies import POLICIES
from kant.optimize.workflow.policies.learned import LearnedRule
from kant.optimize.workflow.policies.rank import Rank
from kant.optimize.workflow.train import WEIGHTS, train

ETF = LearnedRule(**{name: -1.0 if name == "finish" else 0.0 for name in WEIGHTS})


@given(st.integers(0, 1000), st.integers(5, 60), st.integers(0, 4), st.sampled_from(sorted(POLICIES)))
@settings(max_examples=examples(40))
def test_streams_hold_and_repeat(seed: int, every: int, most: int, policy: str) -> None:
    load = WorkflowStream(tuple(generate(6, 2, n) for n in range(3)), every, 400, most, min(most, 2))
    graphs, arrivals = load.draw(seed)
    assert arrivals == sorted(arrivals) and all(at < 400 for at in arrivals)
    found = load.under(POLICIES[policy], seed)
    assert not faults(graphs, found.runs, found.arrivals)
    assert len(found.ends) == len(found.arrivals) and len(found.arrivals) + found.lost == len(arrivals)
    assert found == load.under(POLICIES[policy], seed)


@given(st.integers(0, 1000))
@settings(max_examples=examples(20))
def test_where_graphs_never_meet_a_stream_is_its_graphs_one_by_one(seed: int) -> None:
    graphs = [generate(8, 3, seed + n) for n in range(3)]
    for policy in POLICIES.values():
        alone = [max(run.end for run in plan(graph, policy)) for graph in graphs]
        apart = stream(graphs, [0, 10_000, 20_000], policy)
        assert apart.latencies == alone


@given(st.integers(0, 1000), st.integers(1, 15))
@settings(max_examples=examples(30))
def test_with_the_weight_of_the_finish_alone_the_learned_order_is_etf(seed: int, stages: int) -> None:
    """Where no two pairs end at the same time; ties go to another stage."""
    graph = generate(stages, 3, seed)
    if all(len(set(ends)) == len(ends) for ends in _choices(graph, POLICIES["etf"])):
        assert plan(graph, ETF) == plan(graph, POLICIES["etf"])


def _choices(graph: object, policy: object) -> list[list[int]]:
    """The ends that ETF had to choose from, at each choice."""
    seen: list[list[int]] = []

    class Watched:
        whole = False

        def choose(self, board: Board, open: list[tuple[int, int]]) -> tuple[tuple[int, int], int]:
            seen.append([board.earliest_finish(key)[0] for key in open])
            return policy.choose(board, open)  # type: ignore[attr-defined, no-any-return]

    plan(graph, Watched())  # type: ignore[arg-type]
    return seen


def test_on_the_streams_of_the_paper_etf_and_rank_are_faster_than_heft_rt() -> None:
    for every, etf, rank in ((25, 0.90, 0.96), (50, 0.90, 0.96)):
        load = WorkflowStream((topcuoglu(),), every, 5_000, 3, 3)
        rules = {"etf": POLICIES["etf"], "rank": Rank(transfers=False), "heft-rt": POLICIES["heft-rt"]}
        mean = {name: sum(load.under(rule, seed).latency for seed in range(6)) for name, rule in rules.items()}
        assert mean["etf"] < etf * mean["heft-rt"] and mean["rank"] < rank * mean["heft-rt"]


@pytest.mark.long
def test_training_repeats_and_begins_at_etf() -> None:
    load = WorkflowStream((generate(8, 2, 1),), 60, 600, 3)
    first, second = list(train([load], seed=3, generations=2)), list(train([load], seed=3, generations=2))
    assert first == second and [made.number for made in first] == [0, 1]
    assert first[0].ratio == pytest.approx(
        sum(load.under(first[0].policy, seed).latency / load.under(POLICIES["etf"], seed).latency for seed in _seeds(3))
        / 4
    )
    assert next(train([load], seed=4, generations=1)) != first[0]
    with pytest.raises(InputError):
        next(train([], 0))


def _seeds(seed: int) -> range:
    """Those of the first generation: no test of ours draws streams by them."""
    return range((seed + 1) << 32, ((seed + 1) << 32) + 4)


@pytest.fixture
def ten(tmp_path: Path) -> Path:
    path = tmp_path / "ten.toml"
    path.write_text(workflow_toml(topcuoglu()))
    return path


def test_the_command_compares_policies_on_the_same_streams(ten: Path) -> None:
    options = ("--every", "25", "--until", "1000", "--most", "3", "--seeds", "4", "--seed", "7")
    rows = kant("plan", "stream", ten, *options, "--policy", "heft-rt", "--policy", "etf", "--json").json()["policies"]
    load = WorkflowStream((topcuoglu(),), 25, 1000, 3, 3)
    for row, name in zip(rows, ("heft-rt", "etf"), strict=True):
        means = [load.under(POLICIES[name], seed).latency for seed in range(7, 11)]
        assert row["policy"] == name and row["latency"]["mean"] == pytest.approx(sum(means) / 4)
        assert row["latency"]["low"] < row["latency"]["mean"] < row["latency"]["high"]
    assert rows[0]["change"] is None and rows[1]["change"]["high"] < 0
    assert "beside heft-rt" in kant("plan", "stream", ten, *options, "--policy", "heft-rt").out
    one = kant("plan", "stream", ten, "--every", "25", "--seeds", "1", "--policy", "etf", "--json").json()
    assert one["policies"][0]["latency"]["low"] is None


def test_weights_are_trained_written_and_used(ten: Path, tmp_path: Path) -> None:
    out = tmp_path / "weights.toml"
    options = ("--every", "40", "--until", "200", "--most", "2", "--generations", "2", "--out", out)
    assert "weights written to" in kant("plan", "train", ten, *options).out
    assert kant("plan", "workflow", ten, "--policy", out, "--json").json()["policy"] == str(out)
    rows = kant("plan", "stream", ten, "--every", "40", "--seeds", "1", "--policy", out, "--json").json()["policies"]
    assert rows[0]["policy"] == str(out)
    text = out.read_text()
    for bad, says in (
        (text.replace("rank", "rang", 1), "only the keys"),
        (text.replace("finish = ", "finish = nan #"), "a weight"),
        (text.partition("\n")[2], "finish: expected a weight"),
        ("=", "TOML"),
    ):
        out.write_text(bad)
        assert says in kant("plan", "workflow", ten, "--policy", out).refusal()
    assert "can be read" in kant("plan", "workflow", ten, "--policy", tmp_path / "none.toml").refusal()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--every", "25s"), "--every"),
        (("--every", "0"), "above 0"),
        (("--every", "1", "--until", "200001"), "100,000 graphs"),
        (("--every", "25", "--most", "-1"), "--most"),
        (("--every", "25", "--seeds", "0"), "--seeds"),
        (("--every", "25", "--policy", "best"), "--policy"),
        (("--every", "1000000", "--until", "1"), "--until"),
    ],
)
def test_streams_that_make_no_sense_are_refused(ten: Path, options: tuple[str, ...], says: str) -> None:
    assert says in kant("plan", "stream", ten, *options).refusal()


def test_workflows_of_one_stream_have_the_same_processors(ten: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.toml"
    other.write_text(workflow_toml(generate(5, 2, 0)))
    assert "same processors" in kant("plan", "stream", ten, other, "--every", "25").refusal()
    other.write_text('[[stage]]\nid = "a"\nduration = "1h"\n[[processor]]\n')
    assert "durations if" in kant("plan", "stream", ten, other, "--every", "25").refusal()
    assert "--out" in kant("plan", "train", ten, "--every", "25").refusal()
    assert "--generations" in kant(
        "plan", "train", ten, "--every", "25", "--generations", "0", "--out", other
    ).refusal()  # fmt: skip
