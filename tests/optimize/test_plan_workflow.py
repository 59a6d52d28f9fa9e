"""`kant plan workflow`: what it prints, and what it says of files that are wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.studies.workflow_example import topcuoglu
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.cli.command import kant
from tests.examples import examples

from kant.cli.plan_workflow import picture
from kant.model.errors import InputError
from kant.optimize.workflow import file
from kant.optimize.workflow.file import graph_of, parse_workflow, processors_of, workflow_toml
from kant.optimize.workflow.generate import generate
from kant.optimize.workflow.plan import plan
from kant.optimize.workflow.policies import POLICIES

NIGHTLY = """\
bandwidth = "2GiB/s"
latency = "1s"
speed = {H100 = 2.5}

[[stage]]
id = "report"
duration = "5m"
after_any = ["evaluate"]

[[stage]]
id = "prepare"
duration = "40m"

[[stage]]
id = "train"
gpus = 8
duration = {A100 = "3h", H100 = "2h"}
after = {prepare = "600GiB"}

[[stage]]
id = "evaluate"
duration = "30m"
after = ["train"]

[[processor]]
model = "A100"
count = 2
gpus = 8

[[processor]]
name = "fast"
model = "H100"
gpus = 4
"""


@pytest.fixture
def nightly(tmp_path: Path) -> Path:
    path = tmp_path / "nightly.toml"
    path.write_text(NIGHTLY)
    return path


def test_a_plan_by_gpu_model_with_data_on_its_way(nightly: Path) -> None:
    answer = kant("plan", "workflow", nightly, "--json").json()
    rows = {row["id"]: row for row in answer["stages"]}
    assert answer["processors"] == ["A100-0", "A100-1", "fast"]
    assert answer["critical_path"] == ["prepare", "train", "evaluate", "report"]
    prepare, train = rows["prepare"], rows["train"]
    assert (prepare["processor"], prepare["start"], prepare["end"]) == ("fast", 0, 16 * 60)
    assert train["processor"] == "A100-0" and train["start"] == 16 * 60 + 1 + 300, "8 GPUs, and 600 GiB at 2 GiB/s"
    assert train["end"] - train["start"] == 3 * 3600
    assert rows["evaluate"]["end"] - rows["evaluate"]["start"] == 12 * 60, "an H100 is 2.5 times as fast"
    assert rows["report"]["slack"] == 0 and all(row["critical"] for row in rows.values())
    assert answer["makespan"] == rows["report"]["end"] and answer["bound"] <= answer["makespan"]
    text = kant("plan", "workflow", nightly).out
    assert "critical path: prepare -> train -> evaluate -> report" in text and "├" in text


def test_the_ten_tasks_are_planned_and_proven(tmp_path: Path) -> None:
    path = tmp_path / "ten.toml"
    path.write_text(workflow_toml(topcuoglu()))
    assert "end after 80 (heft); no plan ends before 41." in kant("plan", "workflow", path).out
    assert "end after 73 (optimal); no plan ends earlier." in kant("plan", "workflow", path, "--policy", "optimal").out
    rows = kant("plan", "workflow", path, "--compare", "--json").json()["policies"]
    ends = {row["policy"]: row["makespan"] for row in rows}
    assert list(ends) == [*POLICIES, "optimal"]
    assert (ends["heft"], ends["cpop"], ends["optimal"]) == (80, 86, 73)
    assert all(row["bound"] == 73 and row["proven"] == (row["makespan"] == 73) for row in rows)
    assert "9.59 %" in kant("plan", "workflow", path, "--compare").out


def test_nodes_of_a_cluster_are_processors(tmp_path: Path) -> None:
    flow = tmp_path / "flow.toml"
    flow.write_text('[[stage]]\nid = "a"\ngpus = 4\nduration = "1h"\n[[stage]]\nid = "b"\ngpus = 4\nduration = "1h"\n')
    assert kant("plan", "workflow", flow, "--cluster", "2x4", "--json").json()["makespan"] == 3600
    assert "this number of GPUs" in kant("plan", "workflow", flow, "--cluster", "9x2").refusal()
    assert "--cluster" in kant("plan", "workflow", flow).refusal()
    assert "1,000 nodes" in kant("plan", "workflow", flow, "--cluster", "1001x8").refusal()


@given(st.integers(0, 1000), st.integers(1, 30), st.integers(1, 4))
@settings(max_examples=examples(20))
def test_a_graph_is_read_as_it_was_written(seed: int, stages: int, processors: int) -> None:
    graph = generate(stages, processors, seed)
    read = parse_workflow("drawn", workflow_toml(graph))
    assert graph_of(read, processors_of(read)) == graph


@given(st.integers(0, 1000), st.integers(1, 30), st.integers(10, 90))
@settings(max_examples=examples(20))
def test_a_picture_has_a_line_for_each_processor_and_all_of_the_same_width(seed: int, stages: int, width: int) -> None:
    graph = generate(stages, 3, seed)
    runs = plan(graph, POLICIES["heft"])
    *lines, times = picture(graph, runs, width)
    assert [line.split()[0] for line in lines] == sorted({f"P{run.processor + 1}" for run in runs})
    assert all(len(line) <= width + 3 for line in lines) and max(map(len, lines)) == len(times) == width + 3


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("[[stage]]\n", "[[stage]\n", ["TOML", "line 5"]),
        ('id = "report"', 'id = "a b"', ["line 6", "[[stage]] 1, id", "without spaces"]),
        ('id = "report"', "id = 3", ["line 6", "id", "name", "3"]),
        ('id = "report"', 'id = "train"', ["line 15", "[[stage]] 3, id", "no other stage", "train"]),
        ('id = "report"\n', "", ["line 5", "[[stage]] 1", "the key id"]),
        ('after = ["train"]', 'after = ["trian"]', ["line 23", "[[stage]] 4, after", "stages of the file", "trian"]),
        ('duration = "40m"', 'duration = "40m"\nafter = ["report"]', ["cycle", "prepare", "report", "->"]),
        ('duration = "40m"', 'duration = "40x"', ["line 12", "stage prepare, duration", "40x"]),
        ('duration = "40m"', "duration = 40", ["line 12", "duration such as 30m", "40"]),
        ('duration = "40m"', "", ["stage prepare, duration", "how long it runs"]),
        ('duration = "40m"', "duration = true", ["line 12", "duration", "a time"]),
        ('A100 = "3h", ', "", ["line 17", "stage train, duration", "with 8 GPUs (A100)"]),
        ("gpus = 8\nduration", "gpus = 16\nduration", ["line 16", "stage train, gpus", "this number of GPUs", "16"]),
        ("gpus = 8\nduration", "gpus = -1\nduration", ["line 16", "gpus", "from 0"]),
        ('A100 = "3h", H100 = "2h"', 'V100 = "3h"', ["stage train, duration", "(A100)"]),
        ('"600GiB"', "600", ["line 18", "after.prepare", "10GiB"]),
        ('"600GiB"', '"600 apples"', ["line 18", "after.prepare", "10GiB"]),
        ('bandwidth = "2GiB/s"', "", ["bandwidth", "stages send data"]),
        ('bandwidth = "2GiB/s"', 'bandwidth = "2GiB"', ["bandwidth", "10GiB/s"]),
        ('bandwidth = "2GiB/s"', 'bandwidth = "0GiB/s"', ["bandwidth", "more than 0"]),
        ("H100 = 2.5", "H100 = 0", ["speed", "above 0"]),
        ('latency = "1s"', "latency = 1", ["latency", "duration"]),
        ('latency = "1s"', "colour = 1", ["colour", "only the keys"]),
        ("count = 2", "count = 0", ["line 27", "[[processor]] 1, count", "whole number from 1"]),
        ("count = 2", "colour = 2", ["line 27", "[[processor]] 1, colour", "only the keys"]),
        ('name = "fast"', 'name = "A100-0"', ["processor", "no other processor", "A100-0"]),
        ('name = "fast"', 'name = "A B"', ["processor", "without spaces"]),
    ],
)
def test_a_bad_file_is_refused_in_one_sentence(tmp_path: Path, old: str, new: str, says: list[str]) -> None:
    assert old in NIGHTLY
    path = tmp_path / "bad.toml"
    path.write_text(NIGHTLY.replace(old, new, 1))
    sentence = kant("plan", "workflow", path).refusal()
    assert "bad.toml" in sentence and all(part in sentence for part in says), sentence


def test_a_workflow_that_is_drawn_is_planned(tmp_path: Path) -> None:
    out = tmp_path / "drawn.toml"
    options = ("--kind", "workflow", "--tasks", "12", "--processors", "4", "--transfers", "0.5", "--seed", "3")
    assert "12 stages on 4 processors written" in kant("plan", "generate", "--out", out, *options).out
    read = parse_workflow("drawn", out.read_text())
    assert graph_of(read, processors_of(read)) == generate(12, 4, 3, ccr=0.5)
    assert len(kant("plan", "workflow", out, "--json").json()["stages"]) == 12
    for option, value in (("--tasks", "0"), ("--processors", "0"), ("--transfers", "nan"), ("--kind", "job")):
        assert kant("plan", "generate", "--kind", "workflow", "--out", out, option, value).refusal()


@given(st.data())
@settings(max_examples=examples(80))
def test_whatever_is_changed_in_a_file_it_is_read_or_refused(data: st.DataObject) -> None:
    lines = NIGHTLY.splitlines()
    for _ in range(data.draw(st.integers(1, 3))):
        n = data.draw(st.integers(0, len(lines) - 1))
        key = lines[n].partition("=")[0]
        value = data.draw(
            st.sampled_from(
                ["0", "-1", "1.5", '""', '"1h"', "[]", "{}", '["a"]', "{a = 1}", "true", '"\\u0000"', "nan"]
            )
        )
        lines[n] = data.draw(
            st.sampled_from(["", f"{key} = {value}", lines[n] * 2, lines[data.draw(st.integers(0, 9))]])
        )
    try:
        read = parse_workflow("file.toml", "\n".join(lines))
        graph_of(read, processors_of(read))
    except InputError as error:
        assert str(error).startswith("file.toml") and "\n" not in str(error)


@pytest.mark.long
def test_what_is_too_large_to_prove_is_compared_without_a_proof(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kant.optimize.workflow.exact.MOST", 200)
    out = tmp_path / "large.toml"
    out.write_text(workflow_toml(generate(12, 30, 1)))
    assert "for a proof" in kant("plan", "workflow", out, "--policy", "optimal").refusal()
    rows = kant("plan", "workflow", out, "--compare", "--json").json()["policies"]
    assert [row["policy"] for row in rows] == list(POLICIES)


def test_a_file_of_too_many_letters_is_refused(nightly: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    letters = len(NIGHTLY)
    monkeypatch.setattr(file, "MOST_LETTERS", letters)
    assert file.read_workflow(nightly).stages
    monkeypatch.setattr(file, "MOST_LETTERS", letters - 1)
    with pytest.raises(InputError, match=f"expected at most {letters - 1:,} characters, got {letters}"):
        file.read_workflow(nightly)


def test_options_that_make_no_sense_are_refused(nightly: Path) -> None:
    assert "heft, cpop" in kant("plan", "workflow", nightly, "--policy", "best").refusal()
    assert "--limit" in kant("plan", "workflow", nightly, "--limit", "0s").refusal()
    assert "can be read" in kant("plan", "workflow", nightly.parent).refusal()
