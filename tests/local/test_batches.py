"""Submissions of a file, one on each line: all of them or none, and the first fault by its line."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cli.command import kant as verb
from tests.local.up import Up

from kant.cli import submit_lines
from kant.cli.everyday import wanted
from kant.model.errors import InputError

LINES = """\
# a sweep
--name first -- python train.py --lr 0.1

  --gpus 2 --time 1h --env A=2 --env C=3 -- python 'two words.py'   # the large one
--array 0-2 --priority=5 -- true
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "jobs.txt"
    path.write_text(text)
    return path


def jobs(kant: Up) -> list[dict[str, Any]]:
    return list(kant.client.get("/v1/jobs", limit=1000)["jobs"])


def test_each_line_is_a_submission_and_the_command_line_says_what_all_have(kant: Up, tmp_path: Path) -> None:
    path = written(tmp_path, LINES)
    done = verb("submit", "--hold", "--gpus", "1", "--env", "A=1", "--from", path, "--home", kant.home)
    assert (done.code, done.err) == (0, "")
    ids = done.out.split()
    assert len(ids) == 3
    first, second = (kant.client.get(kant.client.job(job)) for job in ids[:2])
    assert (first["job"]["name"], first["job"]["gpus"]) == ("first", 1)
    assert first["command"] == ["python", "train.py", "--lr", "0.1"]
    assert (second["job"]["gpus"], second["time_s"], second["command"]) == (2, 3600, ["python", "two words.py"])
    assert {"A", "PATH"} <= set(first["env"]) and {"A", "C", "PATH"} <= set(second["env"])
    third = [kant.client.get(kant.client.job(f"{ids[2]}_{index}")) for index in range(3)]
    assert {each["job"]["phase"] for each in third} == {"held"}
    assert {each["job"]["priority"] for each in third} == {5}


def test_standard_input_has_the_lines_too(kant: Up, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("-- true\n-- false\n"))
    found = verb("submit", "--hold", "--json", "--from", "-", "--home", kant.home).json()
    told = [kant.client.get(kant.client.job(job))["command"] for job in found["jobs"]]
    assert told == [["true"], ["false"]]


def test_a_script_in_a_line_says_in_its_head_what_it_asks_for(kant: Up, tmp_path: Path) -> None:
    script = tmp_path / "train.sh"
    script.write_text("#!/bin/sh\n#KANT --gpus 3 --name mine\ntrue\n")
    path = written(tmp_path, f"{script} 7\n--gpus 2 {script} 8\n")
    found = verb("submit", "--hold", "--json", "--from", path, "--home", kant.home).json()
    told = [kant.client.get(kant.client.job(job)) for job in found["jobs"]]
    asked = [(each["job"]["gpus"], each["job"]["name"], each["command"][-1]) for each in told]
    assert asked == [(3, "mine", "7"), (2, "mine", "8")]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("--gpus two -- x", "--gpus"),
        ("--gpuz 1 -- x", "--gpuz"),
        ("--gpus 1", "options and a command"),
        ("-- 'x", "words in shell syntax"),
        ("--time soon -- x", "--time: expected a duration"),
        ("--env A -- x", "--env: expected NAME=VALUE"),
        ("--wait -- x", "'--wait'"),
        ("--from x -- x", "'--from'"),
        ("--after 99999 -- x", "after: expected the id of a job, got '99999'"),
        ("--gpus 64 -- x", "gpus: expected at most 8"),
        ("--name a\0b -- x\0", "zero byte"),
        ("--workdir /none -- x", "--workdir: expected an existing folder, got '/none'"),
    ],
)
def test_one_fault_is_named_by_its_line_and_nothing_is_queued(kant: Up, tmp_path: Path, line: str, says: str) -> None:
    before = jobs(kant)
    path = written(tmp_path, f"{LINES}{line}\n-- never\n")
    outcome = verb("submit", "--hold", "--from", path, "--home", kant.home)
    assert outcome.refusal().startswith(f"kant: {path}, line 6") and says in outcome.err
    assert jobs(kant) == before


def test_there_is_something_to_queue_and_not_too_much(kant: Up, tmp_path: Path) -> None:
    before = jobs(kant)
    for text, got in (("# nothing\n\n", "got 0"), ("-- true\n" * (submit_lines.MOST + 1), "got 10001")):
        said = verb("submit", "--from", written(tmp_path, text), "--home", kant.home).refusal()
        assert "lines with a submission" in said and got in said
    path = written(tmp_path, LINES)
    assert "no command and no --graph" in verb("submit", "--from", path, "--home", kant.home, "--", "true").refusal()
    path.write_bytes(b"-- \xff\n")
    assert "UTF-8" in verb("submit", "--from", path, "--home", kant.home).refusal()
    assert "can be read" in verb("submit", "--from", tmp_path / "none", "--home", kant.home).refusal()
    assert jobs(kant) == before


GIVEN = st.fixed_dictionaries(
    {},
    optional={
        "gpus": st.sampled_from([0.5, 1, 8]), "time": st.sampled_from(["2h", "30s"]), "queue": st.sampled_from("ab"),
        "priority": st.integers(-9, 9), "hold": st.just(True), "env": st.lists(st.sampled_from(["A=1", "B=x y"])),
    },
)  # fmt: skip


def options(given: dict[str, Any]) -> list[str]:
    words: list[str] = []
    for name, value in given.items():
        for each in value if isinstance(value, list) else [value]:
            words += [f"--{name}"] if each is True else [f"--{name}", str(each)]
    return words


@given(GIVEN, GIVEN, st.lists(st.text(min_size=1), min_size=1, max_size=3))
def test_a_line_goes_before_the_command_line(base: dict[str, Any], own: dict[str, Any], command: list[str]) -> None:
    import shlex

    from hypothesis import assume

    command[0] = f"/{command[0]}"
    text = shlex.join([*options(own), "--", *command])
    assume(len(text.splitlines()) == 1)
    together = base | own | {"env": (*base.get("env", ()), *own.get("env", ()))}
    read = submit_lines._of_line("here", text, {**base, "env": tuple(base.get("env", ()))})
    assert read == wanted(tuple(command), **together)


def test_a_program_is_no_option() -> None:
    with pytest.raises(InputError, match="--gpuz"):
        wanted(("--gpuz", "1"))
