"""What one looks at all day: where jobs run, what is left of their limits, and the order of those that wait."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.cli.command import kant as verb
from tests.examples import examples
from tests.local.up import Up, eventually
from tests.patience import PATIENCE_S

from kant.cli.job_table import COLUMNS, show_jobs
from kant.cli.output import start_of_last
from kant.cli.plain import ranges


@pytest.fixture(scope="module")
def kant(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """A virtual cluster of two nodes of four GPUs, on which a job has ended, one runs and two wait."""
    with Up(tmp_path_factory.mktemp("up") / "home") as up:
        up.over(up.submit("for i in $(seq 3000); do echo line $i of a log; done; printf last", name="log"))
        up.submit("sleep 600", gpus=3, name="train-a", time_s=3600, grace_s=0.1, preemptible=False)
        assert eventually(lambda: [row["phase"] for row in _rows(up)] == ["running"])
        up.submit("sleep 600", gpus=8, nodes=2, name="train-b", grace_s=0.1)
        up.submit("sleep 600", gpus=8, nodes=2, name="urgent", priority=9, grace_s=0.1)
        yield up


def _rows(kant: Up, *options: str) -> list[dict[str, Any]]:
    return list(verb("jobs", *options, "--json", "--home", kant.home).json()["jobs"])


def test_a_list_says_where_a_job_runs_and_what_is_left_of_its_limit(kant: Up, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "250")
    (row,) = _rows(kant, "--state", "running")
    (node,) = row["nodes"]
    assert row["nodes"] == kant.client.get(kant.client.job(str(row["id"])))["place"]
    assert row["limit_us"] == 3600 * 10**6
    out = verb("jobs", "--home", kant.home).out.splitlines()
    assert out[0].split() == ["job", "name", "queue", "user", "state", "GPUs", "on", "time", "left", "because"]
    (line,) = [line for line in out if "train-a" in line]
    assert f"{node}:0-2" in line and "59m" in line
    assert all("59m" not in other for other in out if other is not line), "who waits has no time left"
    gone = [row for row in _rows(kant) if row["phase"] == "waiting"]
    assert all(row["nodes"] == {} and row["limit_us"] == -1 for row in gone)


def test_names_choose_jobs_with_stars(kant: Up) -> None:
    assert [row["name"] for row in _rows(kant, "--name", "train*")] == ["train-b", "train-a"]
    assert [row["name"] for row in _rows(kant, "--name", "urgent")] == ["urgent"]
    assert _rows(kant, "--name", "rain*") == []
    assert [row["name"] for row in _rows(kant, "--order", "queue", "--name", "t*")] == ["train-b"]


def test_the_order_of_the_queue_is_that_in_which_jobs_are_tried(kant: Up) -> None:
    rows = _rows(kant, "--order", "queue")
    assert [(row["place"], row["name"]) for row in rows] == [(1, "urgent"), (2, "train-b")]
    out = verb("jobs", "--order", "queue", "--format", "place,name", "--home", kant.home).out
    assert [line.split() for line in out.splitlines()] == [["place", "name"], ["1", "urgent"], ["2", "train-b"]]
    assert _rows(kant, "--order", "queue", "--limit", "1") == rows[:1]


@pytest.mark.parametrize(
    "options, sentence",
    [
        (["--format", "job,wher"], "--format: expected some of place, job,"),
        (["--order", "age"], "--order: expected one of latest, queue, got 'age'"),
        (["--order", "queue", "--before", "3"], "--before: expected no pages in the queue's order"),
    ],
)
def test_what_a_list_does_not_have_is_refused(kant: Up, options: list[str], sentence: str) -> None:
    assert sentence in verb("jobs", *options, "--home", kant.home).refusal()


def test_show_takes_several_jobs(kant: Up) -> None:
    first, second = (str(row["id"]) for row in _rows(kant, "--name", "train*"))
    one = verb("show", first, "--json", "--home", kant.home).json()
    both = verb("show", first, second, "--json", "--home", kant.home).json()["jobs"]
    assert both[0]["job"]["id"] == one["job"]["id"] == first and both[1]["job"]["id"] == second
    out = verb("show", first, second, "--home", kant.home).out
    assert out.startswith(f"{first}: train-b") and f"\n\n{second}: train-a" in out


@pytest.mark.parametrize("word, text", [("jobs", b"train-a"), ("top", b"Nodes")])
def test_watch_looks_again_until_it_is_interrupted(kant: Up, word: str, text: bytes) -> None:
    """On a terminal each look begins on an empty one."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "kant", word, "--watch", "--home", kant.home], stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    seen = b""
    while seen.count(b"\x1b[H\x1b[2J") < 2:
        seen += os.read(ours, 1 << 16)
    process.send_signal(signal.SIGINT)
    assert process.wait(PATIENCE_S) == 0
    os.close(ours)
    assert text in seen


def test_the_tail_of_a_log_is_counted_in_lines(kant: Up) -> None:
    (job,) = (str(row["id"]) for row in _rows(kant, "--all", "--name", "log"))
    whole = verb("logs", job, "--home", kant.home).out
    for count in (0, 1, 2, 1000, 2999, 3001, 9999):
        expected = "".join(whole.splitlines(keepends=True)[-count:]) if count else ""
        assert verb("logs", job, "--tail", str(count), "--home", kant.home).out == expected, count
    assert "--tail: expected a number of lines" in verb("logs", job, "--tail=-1", "--home", kant.home).refusal()


@given(
    st.binary(max_size=40).map(lambda text: bytes(b"\n"[0] if byte < 90 else byte for byte in text)), st.integers(0, 50)
)
@settings(max_examples=examples(200))
def test_the_last_lines_are_those_that_python_counts(text: bytes, lines: int) -> None:
    parts = text.split(b"\n")
    kept = [part + b"\n" for part in parts[:-1]] + [parts[-1]] * bool(parts[-1])
    assert text[start_of_last(text, lines) :] == (b"".join(kept[-lines:]) if lines else b"")


@given(st.sets(st.integers(0, 40), min_size=1))
@settings(max_examples=examples(100))
def test_ranges_of_gpus_say_the_same_indices(indices: set[int]) -> None:
    text = ranges(sorted(indices))
    again: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        again |= set(range(int(first), int(last or first) + 1))
    assert again == indices


def test_every_column_has_something_to_say_of_a_job_that_is_over(capsys: pytest.CaptureFixture[str]) -> None:
    row = {
        "id": "7", "name": "n", "queue": "q", "user": "u", "phase": "failed", "priority": None, "gpus": 2.0,
        "submitted": 0, "started": 10**6, "ended": 3601 * 10**6, "code": 3, "signal": None, "reason": "exit code 3",
        "waits": "",
    }  # fmt: skip
    show_jobs([row], 10**10, "", ("job", "time", "exit", "gpu-hours", "left", "because"))
    assert capsys.readouterr().out.splitlines()[1].split() == ["7", "1h", "3", "2.00", "exit", "code", "3"]
    assert all(isinstance(column(row, 10**10), str) for column in COLUMNS.values())
