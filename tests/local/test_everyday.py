"""Everyday use of the command line against a Kant that runs: what it says when something is not as one thought."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.cli.command import kant as verb
from tests.local.up import Up, eventually
from tests.patience import PATIENCE_S

from kant.local.submission import check_room
from kant.model.errors import InputError
from kant.model.node import ClusterSpec, Node
from kant.model.submission import Submission
from kant.service.client import ServiceClient


@pytest.mark.parametrize("end", ["kill", "stop"])
def test_logs_that_follow_say_that_kant_has_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str) -> None:
    read, parts = threading.Event(), ServiceClient._parts

    def telling(client: ServiceClient, response: Any) -> Iterator[bytes]:
        for part in parts(client, response):
            if b"begun" in part:
                read.set()
            yield part

    with Up(tmp_path / "home") as up:
        job = up.submit("echo begun; sleep 60", grace_s=0.1)
        assert eventually(lambda: up.log(job) == "begun\n")
        monkeypatch.setattr(ServiceClient, "_parts", telling)
        ending = threading.Thread(target=lambda: read.wait(PATIENCE_S) and (up.kill if end == "kill" else up.stop)())
        ending.start()
        outcome = verb("logs", job, "--follow", "--home", up.home)
        ending.join()
    assert outcome.code == 2 and outcome.out == "begun\n"
    assert outcome.err.count("\n") == 1 and "Kant has stopped, and the job continues" in outcome.err
    with Up(tmp_path / "home") as again:
        again.client.post(again.client.job(job, "cancel"))
        again.over(job)


def test_logs_that_follow_to_the_end_of_a_job_are_done(kant: Up) -> None:
    job = kant.submit("echo one; sleep 0.3; echo two")
    outcome = verb("logs", job, "--follow", "--home", kant.home)
    assert (outcome.code, outcome.out, outcome.err) == (0, "one\ntwo\n", "")


def test_a_working_folder_is_there_unless_an_image_or_an_earlier_job_brings_it(kant: Up, tmp_path: Path) -> None:
    none, at = tmp_path / "none", ("--home", kant.home)
    for asked in (("submit",), ("submit", "--test-only"), ("run",)):
        said = verb(*asked, "--workdir", none, *at, "--", "true").refusal()
        assert said.startswith("kant: --workdir: expected an existing folder, got '")
    first = verb("submit", *at, "--", "mkdir", none).out.strip()
    second = verb("submit", "--workdir", none, "--after-ok", first, *at, "--", "pwd").out.strip()
    kant.over(second)
    assert kant.log(second) == f"{none}\n"


@pytest.mark.parametrize("option", ["after", "after_ok", "after_not_ok", "after_started", "after_each"])
def test_a_job_that_another_waits_for_and_that_never_was_is_named_with_the_option(kant: Up, option: str) -> None:
    words = ("--" + option.replace("_", "-"), "99999", "--home", kant.home)
    assert f"{option}: expected the id of a job, got '99999'" in verb("submit", *words, "--", "true").refusal()


def test_of_an_array_why_answers_for_one_that_waits_and_logs_show_all(kant: Up) -> None:
    block = kant.submit("sleep 60", gpus=8, grace_s=0.1)
    array = kant.submit("printf $KANT_ARRAY_INDEX", gpus=1, array=[0, 1, 2]).partition("_")[0]
    found = verb("why", array, "--json", "--home", kant.home).json()
    assert (found["job"], found["phase"]) == (f"{array}_0", "waiting") and found["answer"]["reason"]
    shown = verb("logs", array, "--home", kant.home)
    assert (shown.code, shown.out) == (0, "".join(f"==> {array}_{i} <==\n" for i in range(3)))
    for option in (("--follow",), ("--attempt", "1")):
        refusal = verb("logs", array, *option, "--home", kant.home).refusal()
        assert f"{option[0]}: expected a single job of the array, such as {array}_0" in refusal
    assert "the id of a job" in verb("why", "no-such-job", "--home", kant.home).refusal()
    kant.client.post(kant.client.job(block, "cancel"))
    kant.over(*(f"{array}_{i}" for i in range(3)))
    assert verb("why", array, "--home", kant.home).out.startswith(f"{array}_0: it is finished")
    shown = verb("logs", array, "--home", kant.home)
    assert shown.out == f"==> {array}_0 <==\n0\n==> {array}_1 <==\n1\n==> {array}_2 <==\n2"


def test_nodes_of_a_few_gpus_each_have_no_more() -> None:
    settings: Any = SimpleNamespace(
        cluster=ClusterSpec("c", tuple(Node(f"n{i}", gpus=4) for i in range(3))), shared_power=-1
    )
    check_room(Submission(command=("true",), workdir="/", env={}, gpus=8, nodes=2), settings)
    with pytest.raises(InputError, match="gpus: expected at most 4 on each of 2 nodes, got 10"):
        check_room(Submission(command=("true",), workdir="/", env={}, gpus=10, nodes=2), settings)


def test_a_job_that_can_never_start_is_refused_at_once(kant: Up) -> None:
    def refused(*options: str) -> str:
        return verb("submit", "--home", kant.home, *options, "--", "true").refusal()

    assert "gpus: expected at most 8, all GPUs of the cluster, got 9\n" in refused("--gpus", "9")
    assert verb("submit", "--home", kant.home, "--", "true").code == 0


@pytest.mark.parametrize("evil", ["\x1b[2Jgone", "\x9b31mred", "\rover", "\u202egnp", "a\n13  job"])
def test_names_are_no_commands_to_the_terminal(kant: Up, evil: str, monkeypatch: pytest.MonkeyPatch) -> None:
    job = verb("submit", "--home", kant.home, "--name", evil, "--hold", "--", "true").out.strip()
    monkeypatch.setenv("COLUMNS", "300")  # else long reasons go on in the next line
    text = verb("jobs", "--home", kant.home).out
    assert evil not in text and "\n " not in text and all(ch.isprintable() or ch == "\n" for ch in text)
    assert job in text and evil not in verb("show", job, "--home", kant.home).out
    verb("cancel", job, "--home", kant.home)
