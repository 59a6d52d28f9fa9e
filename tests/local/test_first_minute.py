"""The first minute of a Kant, while its kernels compile: it takes jobs, answers, and says why nothing starts."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from tests.cli.command import kant as verb
from tests.local.up import Up, eventually

from kant.local.jobs import STARTING
from kant.service import client, daemon

SECONDS = 4.0
"""For which kernels seem to compile."""


def slow() -> None:
    """Let the kernels of this process compile for some seconds, as after an installation."""
    daemon.warm = lambda profile: time.sleep(SECONDS)  # type: ignore[assignment]


def test_jobs_are_taken_while_kernels_compile_and_start_afterwards(tmp_path: Path) -> None:
    began = time.monotonic()
    with Up(tmp_path / "home", prepare=slow, early=True) as up:
        assert up.client.get("/v1/health")["starting"] == STARTING
        job, held, gone = up.submit("echo done"), up.submit("true", hold=True), up.submit("true")
        assert time.monotonic() - began < SECONDS, "nobody has waited for kernels"
        assert up.phase(job) == "blocked"
        assert verb("why", job, "--home", up.home).out.startswith(f"{job}: it is blocked: {STARTING}")
        assert job in verb("jobs", "--home", up.home).out
        up.client.post(up.client.job(gone, "cancel"))
        up.client.post(up.client.job(held, "release"))
        assert up.phase(gone) == "cancelled"
        assert up.over(job, held) == ["finished", "finished"]
        assert up.log(job) == "done\n" and up.client.get("/v1/health")["starting"] == ""
        assert time.monotonic() - began >= SECONDS


def test_questions_wait_for_the_state_and_say_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Up(tmp_path / "home", prepare=slow, early=True) as up:
        assert up.client.get("/v1/queues")["queues"] == []
        assert "compiles its kernels" in capsys.readouterr().err
        assert up.client.get("/v1/health")["starting"] == ""


def test_questions_are_refused_where_kernels_compile_for_too_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "PATIENCE", 0.0)
    with Up(tmp_path / "home", prepare=slow, early=True) as up:
        for words in (("top",), ("queue",), ("eta",)):
            assert "one whose kernels are compiled" in verb(*words, "--home", up.home).refusal()


def test_a_run_is_adopted_and_can_be_cancelled_while_kernels_compile(tmp_path: Path) -> None:
    with Up(tmp_path / "home") as up:
        stays, goes = up.submit("sleep 1; echo on"), up.submit("sleep 60", grace_s=0.1)
        assert eventually(lambda: (up.phase(stays), up.phase(goes)) == ("running", "running"))
        up.kill()
    with Up(tmp_path / "home", prepare=slow, early=True) as up:
        assert up.client.get("/v1/health")["running"] == 2
        up.client.post(up.client.job(goes, "cancel"))
        assert up.phase(goes) == "stopping"
        assert up.over(stays, goes) == ["finished", "cancelled"] and up.log(stays) == "on\n"


def test_it_stops_while_kernels_compile(tmp_path: Path) -> None:
    with Up(tmp_path / "home", prepare=slow, early=True) as up:
        job = up.submit("true")
        up.stop()
    with Up(tmp_path / "home") as up:
        assert up.over(job) == ["finished"]
