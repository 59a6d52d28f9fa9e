"""The first minute of a Kant, while its kernels compile: it takes jobs, answers, and says why nothing starts."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import pytest
from tests.cli.command import kant as verb
from tests.local.up import Up, eventually

from kant.local.jobs import STARTING
from kant.service import client, daemon


class Compiling(Up):
    """A Kant whose kernels compile until `compiled`, as for some seconds after an installation."""

    def __init__(self, home: Path) -> None:
        gate = self.gate = home.with_name("compiled")

        def wait(profile: object) -> None:
            while not gate.exists():
                time.sleep(0.01)

        def prepare() -> None:
            daemon.warm = wait

        super().__init__(home, prepare=prepare, early=True)

    def compiled(self) -> None:
        """From now on its kernels are there."""
        self.gate.touch()

    def stop(self) -> None:
        self.compiled()
        super().stop()


def test_jobs_are_taken_while_kernels_compile_and_start_afterwards(tmp_path: Path) -> None:
    with Compiling(tmp_path / "home") as up:
        assert up.client.get("/v1/health")["starting"] == STARTING
        job, held, gone = up.submit("echo done"), up.submit("true", hold=True), up.submit("true")
        assert up.phase(job) == "blocked"
        assert verb("why", job, "--home", up.home).out.startswith(f"{job}: it is blocked: {STARTING}")
        assert job in verb("jobs", "--home", up.home).out
        up.client.post(up.client.job(gone, "cancel"))
        up.client.post(up.client.job(held, "release"))
        assert up.phase(gone) == "cancelled" and up.phase(job) == up.phase(held) == "blocked"
        up.compiled()
        assert up.over(job, held) == ["finished", "finished"]
        assert up.log(job) == "done\n" and up.client.get("/v1/health")["starting"] == ""


def test_questions_wait_for_the_state_and_say_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Compiling(tmp_path / "home") as up:
        answers: list[object] = []
        asking = threading.Thread(target=lambda: answers.append(up.client.get("/v1/queues")["queues"]))
        asking.start()
        assert eventually(lambda: "compiles its kernels" in capsys.readouterr().err)
        assert answers == []
        up.compiled()
        asking.join()
        assert answers == [[]] and up.client.get("/v1/health")["starting"] == ""


def test_questions_are_refused_where_kernels_compile_for_too_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "PATIENCE", 0.0)
    with Compiling(tmp_path / "home") as up:
        for words in (("top",), ("queue",), ("eta",)):
            assert "one whose kernels are compiled" in verb(*words, "--home", up.home).refusal()


def test_a_run_is_adopted_and_can_be_cancelled_while_kernels_compile(tmp_path: Path) -> None:
    with Up(tmp_path / "home") as up:
        stays = up.submit("touch stays; while [ ! -e go ]; do sleep 0.05; done; echo on")
        goes = up.submit("touch goes; sleep 60", grace_s=0.1)
        assert eventually(lambda: (up.home / "stays").exists() and (up.home / "goes").exists()), "both have begun"
        up.kill()
    with Compiling(tmp_path / "home") as up:
        assert up.client.get("/v1/health")["running"] == 2
        up.client.post(up.client.job(goes, "cancel"))
        assert up.phase(goes) in ("stopping", "cancelled")
        (up.home / "go").touch()
        up.compiled()
        assert up.over(stays, goes) == ["finished", "cancelled"] and up.log(stays) == "on\n"


def test_it_stops_while_kernels_compile(tmp_path: Path) -> None:
    with Compiling(tmp_path / "home") as up:
        job = up.submit("true")
        os.kill(up.pid, signal.SIGTERM)
        assert eventually(lambda: not up._answers()), "it waits for no kernel"
        up.stop()
    with Up(tmp_path / "home") as up:
        assert up.over(job) == ["finished"]
