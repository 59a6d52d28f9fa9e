"""`kant plan capacity` and `kant plan generate`: what they print, and what they say of files that are wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.cli.command import kant

from kant.optimize.capacity.file import instance_json, read_instance
from kant.optimize.capacity.generate import generate

NIGHT: dict[str, Any] = {
    "tick": "30m",
    "resources": [{"name": "gpus", "cost": 10}],
    "processes": [
        {
            "id": "nightly", "release": "1h", "deadline": "9h", "every": "1d", "times": 2,
            "tasks": [
                {"id": "prepare", "duration": "20m", "demand": {"gpus": 1}},
                {"id": "train", "duration": "2h", "demand": {"gpus": 64}, "after": ["prepare"]},
            ],
        },
        {"id": "report", "deadline": "9h", "tasks": [{"id": "fit", "duration": "3h", "demand": {"gpus": 48}}]},
    ],
}  # fmt: skip


@pytest.fixture
def night(tmp_path: Path) -> Path:
    path = tmp_path / "night.json"
    path.write_text(json.dumps(NIGHT))
    return path


def test_recurring_pipelines_by_day(night: Path) -> None:
    done = kant("plan", "capacity", night, "--json")
    answer = done.json()
    assert done.code == 0 and answer["cost"] == answer["bound"] == 640
    assert answer["resources"] == [{"name": "gpus", "cost": 10, "peak": 64, "bound": 64}]
    assert answer["days"] == [{"gpus": 64}, {"gpus": 64}] and answer["tick_s"] == 1800
    starts = {(row["process"], row["task"]): row["start"] for row in answer["tasks"]}
    assert starts["nightly.0", "train"] > starts["nightly.0", "prepare"] >= 2
    assert 50 <= starts["nightly.1", "prepare"] < starts["nightly.1", "train"] <= 62
    text = kant("plan", "capacity", night).out
    assert "meet their deadlines at a cost of 640 (no plan costs less)" in text and "Peak by day" in text


def test_a_change_moves_only_what_has_changed(night: Path, tmp_path: Path) -> None:
    first = kant("plan", "capacity", night, "--json")
    (tmp_path / "plan.json").write_text(first.out)
    new = tmp_path / "new.json"
    new.write_text(night.read_text().replace('"3h"', '"5h"'))
    second = kant("plan", "capacity", new, "--before", night, "--plan", tmp_path / "plan.json", "--json").json()
    moved = [a for a, b in zip(first.json()["tasks"], second["tasks"], strict=True) if a != b]
    assert all(row["process"] == "report" for row in moved)
    assert "--before and --plan" in kant("plan", "capacity", new, "--before", night).refusal()
    (tmp_path / "plan.json").write_text('{"tasks": []}')
    sentence = kant("plan", "capacity", new, "--before", night, "--plan", tmp_path / "plan.json").refusal()
    assert "a start of task" in sentence


@pytest.mark.long
def test_a_generated_instance_is_read_as_it_was_drawn(tmp_path: Path) -> None:
    out = tmp_path / "drawn.json"
    assert "40 tasks" in kant("plan", "generate", "--out", out, "--tasks", "40", "--seed", "7").out
    drawn = generate(40, seed=7)
    assert out.read_text() == instance_json(drawn) and read_instance(out) == drawn
    assert kant("plan", "capacity", out, "--limit", "50ms", "--json").json()["days"] == []
    assert "tasks" in kant("plan", "generate", "--out", out, "--tasks", "0").refusal()
    assert "written" in kant("plan", "generate", "--out", tmp_path).refusal()


def with_change(*path: Any, to: Any) -> str:
    """The file with one value replaced."""
    changed = json.loads(json.dumps(NIGHT))
    at = changed
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = to
    return json.dumps(changed)


TASK = ("processes", 0, "tasks", 1)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", ["JSON"]),
        ("{", ["JSON"]),
        ("[]", ["object"]),
        ('{"processes": []}', ["resources"]),
        (with_change("resources", to=[]), ["resources", "at least one"]),
        (with_change("processes", to=[]), ["at least one task"]),
        (with_change("tick", to="0s"), ["tick"]),
        (with_change("tick", to="soon"), ["tick", "soon"]),
        (with_change("colour", to=1), ["colour"]),
        (with_change(*TASK, "duration", to=2), ["process nightly", "task train, duration", "1h30m"]),
        (with_change(*TASK, "duration", to="long"), ["duration", "long"]),
        (with_change(*TASK, "duration", to="9h"), ["process nightly", "deadline", "longest path"]),
        (with_change(*TASK, "demand", to={"tpus": 1}), ["demand", "tpus"]),
        (with_change(*TASK, "demand", to={"gpus": -1}), ["demand of gpus"]),
        (with_change(*TASK, "demand", to={"gpus": 1.5}), ["processes", "int"]),
        (with_change(*TASK, "after", to=["nobody"]), ["after", "nobody"]),
        (with_change(*TASK, "after", to=["train"]), ["cycle", "train"]),
        (with_change(*TASK, "id", to="prepare"), ["task prepare", "name"]),
        (with_change("processes", 1, "id", to="nightly.0"), ["nightly.0", "name"]),
        (with_change("processes", 1, "times", to=3), ["times", "every"]),
        (with_change("processes", 1, "deadline", to="9999w"), ["at most"]),
        (with_change("resources", 0, "cost", to=-1), ["resource gpus, cost"]),
    ],
)
def test_a_bad_instance_is_refused_in_one_sentence(tmp_path: Path, text: str, says: list[str]) -> None:
    path = tmp_path / "bad.json"
    path.write_text(text)
    sentence = kant("plan", "capacity", path).refusal()
    assert "bad.json" in sentence and all(part in sentence for part in says), sentence


PROJECT = """PRECEDENCE RELATIONS:
jobnr.    #modes  #successors   successors
   1        1          1           2
   2        1          0
****
REQUESTS/DURATIONS:
jobnr. mode duration  R 1
-------------------------
  1      1     2       3
  2      1     4       1
****
"""


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("PRECEDENCE", "OTHER", "PRECEDENCE RELATIONS"),
        ("   1        1          1           2\n", "   1        1          2           2\n", "line 3"),
        ("   1        1          1           2\n", "   1        2          1           2\n", "one mode"),
        ("1           2\n", "1           9\n", "successors that the file has"),
        ("  2      1     4       1\n", "", "every job once"),
        ("  2      1     4       1\n", "  2      1     x       1\n", "line 10"),
    ],
)
def test_a_bad_project_is_refused_in_one_sentence(tmp_path: Path, old: str, new: str, says: str) -> None:
    path = tmp_path / "bad.sm"
    path.write_text(PROJECT)
    answer = kant("plan", "capacity", path, "--deadline", "1.5", "--json").json()
    assert answer["cost"] == 3 and len(answer["tasks"]) == 2
    assert old in PROJECT
    path.write_text(PROJECT.replace(old, new))
    sentence = kant("plan", "capacity", path).refusal()
    assert "bad.sm" in sentence and says in sentence, sentence


def test_options_that_make_no_sense_are_refused(night: Path) -> None:
    assert "json or psplib" in kant("plan", "capacity", night, "--format", "xml").refusal()
    assert "--limit" in kant("plan", "capacity", night, "--limit", "0s").refusal()
    assert "PRECEDENCE" in kant("plan", "capacity", night, "--format", "psplib").refusal()
    assert "can be read" in kant("plan", "capacity", night.parent).refusal()
