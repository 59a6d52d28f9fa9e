"""A Kant of a home of its own, as a process forked from the tests: it starts in a moment, and can be killed at will."""

from __future__ import annotations

import gc
import os
import signal
import time
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from tests.patience import PATIENCE_S
from tests.side_processes import server, use

from kant.live.warm import warm
from kant.local.processes import kill_marked
from kant.local.runs import mark, read_exit
from kant.model.errors import InputError
from kant.scheduler.profile import builtin_texts, parse_profile
from kant.service.client import ServiceClient
from kant.service.daemon import DaemonOptions, serve
from kant.workload.cluster_file import read_cluster

TEXT = builtin_texts()["kant"].replace("base_s = 10", "base_s = 0").replace('"nominal"', '"nominal"\nmin_run_s = 0')
PROFILE = parse_profile(TEXT, "kant, in a hurry")
homes: set[Path] = set()
"""Those of all Kants and machines of this process."""


def end_jobs(of: Iterable[Path]) -> None:
    """Kill what the jobs of these homes still run. Jobs outlive their Kant, and would outlive the tests."""
    for claim in (claim for home in of for claim in home.glob("runs/*/*/claim")):
        if read_exit(claim.parent) is None:
            kill_marked(mark(claim.parent))


def nothing() -> None:
    """Nothing is prepared."""


class Up:
    """`with Up(home) as kant:` it answers; at the end it is told to stop. `prepare` runs in its process first.

    Without a `cluster` it has this machine. With `early` it need not have compiled its kernels to be up."""

    def __init__(
        self,
        home: Path,
        cluster: str | None = "2x4",
        prepare: Callable[[], None] = nothing,
        early: bool = False,
        **options: Any,
    ) -> None:
        warm(PROFILE)
        self.early = early
        self.home = home
        self.client = ServiceClient(home)
        home.mkdir(exist_ok=True)
        homes.add(home)
        given = {"profile": PROFILE, "cluster": read_cluster(cluster) if cluster is not None else None} | options
        aside = server()
        self.pid = os.fork()
        if self.pid == 0:
            gc.freeze()  # to collect what has threads, such as a gRPC server, would wait for ever: they are not here
            code = 1
            try:
                out = os.open(home / "kant.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
                os.dup2(out, 1)
                os.dup2(out, 2)
                use(aside)
                prepare()
                code = serve(DaemonOptions(home=home, **given))
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        self.code: int | None = None

    def answers(self) -> bool:
        """Wait until it answers; False where it died before."""
        return eventually(lambda: self.is_dead() or self._answers()) and not self.is_dead()

    def _answers(self) -> bool:
        try:
            found = self.client.get("/v1/health")
            return bool(found["pid"] == self.pid and (self.early or not found["starting"]))
        except InputError:
            return False

    def is_dead(self) -> bool:
        """Whether it has gone."""
        if self.code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.code = os.waitstatus_to_exitcode(status)
        return self.code is not None

    def kill(self) -> None:
        """With -9."""
        if not self.is_dead():
            os.kill(self.pid, signal.SIGKILL)
            eventually(self.is_dead)

    def stop(self) -> None:
        """As a person does."""
        if not self.is_dead():
            os.kill(self.pid, signal.SIGTERM)
            assert eventually(self.is_dead)
        assert self.code in (0, -signal.SIGKILL), (
            f"it ended with {self.code}: " + (self.home / "kant.log").read_text()[-3000:]
        )

    def __enter__(self) -> Up:
        assert self.answers(), (self.home / "kant.log").read_text()[-3000:]
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def submit(self, script: str, **wish: Any) -> str:
        """Queue a script of the shell; returns the id of the (first) job."""
        return str(self.client.post("/v1/jobs", asked(self.home, script, **wish))["jobs"][0])

    def job(self, job: str) -> dict[str, Any]:
        """What is known of a job."""
        found: dict[str, Any] = self.client.get(self.client.job(job))
        return found

    def phase(self, job: str) -> str:
        """Where a job stands."""
        return str(self.job(job)["job"]["phase"])

    def log(self, job: str) -> str:
        """What a job has written."""
        _, body = self.client.stream(self.client.job(job, "log"))
        return b"".join(body).decode()

    def over(self, *jobs: str, patience: float = PATIENCE_S) -> list[str]:
        """Wait until the jobs are over; where they stand then."""
        done = ("finished", "failed", "cancelled", "rejected")
        assert eventually(lambda: all(self.phase(job) in done for job in jobs), patience), [
            self.job(job) for job in jobs
        ]
        return [self.phase(job) for job in jobs]


def asked(home: Path, script: str, **wish: Any) -> dict[str, Any]:
    """A submission of a script of the shell."""
    env = {"PATH": os.environ["PATH"], "HOME": str(home)}
    return {"command": ["sh", "-c", script], "workdir": str(home), "env": env, "grace_s": 1.0} | wish


def eventually(true: Callable[[], bool], patience: float = PATIENCE_S) -> bool:
    """Whether it comes true in time."""
    end, pause = time.monotonic() + patience, 0.01
    while not true():
        if time.monotonic() > end:
            return False
        time.sleep(pause)
        pause = min(1.2 * pause, 0.1)  # who asks takes the processor from who is asked
    return True
