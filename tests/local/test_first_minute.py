"""The first minute of a Kant, while its kernels compile: it takes jobs, starts them, and answers."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from tests.cli.command import kant as verb
from tests.local.up import Up, eventually

from kant.service import daemon


class Compiling(Up):
    """A Kant whose kernels compile until `compiled`, as for some seconds after an installation."""

    def __init__(self, home: Path) -> None:
        gate = self.gate = home.with_name("compiled")

        def wait(profile: object, ahead: bool = False) -> None:
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


def test_jobs_run_and_questions_are_answered_while_kernels_compile(tmp_path: Path) -> None:
    with Compiling(tmp_path / "home") as up:
        assert up.client.get("/v1/health")["starting"] == daemon.COMPILING
        job, held = up.submit("echo done"), up.submit("true", hold=True)
        up.client.post(up.client.job(held, "release"))
        assert up.over(job, held) == ["finished", "finished"] and up.log(job) == "done\n"
        runs, waits = up.submit("sleep 600", gpus=8, grace_s=0.1), up.submit("true", gpus=1)
        assert eventually(lambda: up.phase(runs) == "running")
        assert "not enough free capacity" in verb("why", waits, "--home", up.home).out
        assert verb("top", "--home", up.home).code == verb("queue", "--home", up.home).code == 0
        up.client.post(up.client.job(runs, "cancel"))
        assert up.over(waits) == ["finished"]
        assert not up.gate.exists() and up.client.get("/v1/health")["starting"] == daemon.COMPILING
        up.compiled()
        assert eventually(lambda: up.client.get("/v1/health")["starting"] == "")


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
        assert up.over(stays, goes) == ["finished", "cancelled"] and up.log(stays) == "on\n"


def test_it_stops_while_kernels_compile(tmp_path: Path) -> None:
    with Compiling(tmp_path / "home") as up:
        job = up.submit("true")
        os.kill(up.pid, signal.SIGTERM)
        assert eventually(up.is_dead) and not up.gate.exists(), "it waits for no kernel"
        up.stop()
    with Up(tmp_path / "home") as up:
        assert up.over(job) == ["finished"]
