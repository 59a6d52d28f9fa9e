"""Kant at work on a control plane: in the loop of the test, or as a process of its own."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from functools import cache, partial
from pathlib import Path

from tests.kube.control_plane import ControlPlane
from tests.kube.processes import Forked
from tests.kube.skewed import run_skewed
from tests.patience import PATIENCE_S
from tests.side_processes import server as side_server
from tests.side_processes import use

from kant.kube.connect.client import ApiClient
from kant.kube.connect.config import load
from kant.kube.lead.driver import KubeDriver
from kant.kube.lead.settings import DriverSettings
from kant.kube.notify.recorder import EventRecorder
from kant.live.journals import Journals
from kant.live.solver import Solver
from kant.live.start_forecasts import Forecaster, no_forecaster
from kant.live.warm import warm
from kant.scheduler.profile import Profile, builtin_profile, parse_profile

Kant = Callable[..., AbstractAsyncContextManager[KubeDriver]]
"""What `kant` is to a test that asks for it: `async with kant(profile=profile()) as driver`."""


@cache
def warm_once(profile: str) -> None:
    """As a replica does: a first decision that has to compile kernels takes longer than tests wait."""
    warm(parse_profile(profile, "a profile"))


@asynccontextmanager
async def kant(
    plane: ControlPlane,
    *,
    server: str = "",
    profile: Profile | None = None,
    recovery: float = 3.0,
    staleness: float = 60.0,
    journal: Path | None = None,
    user: str = "admin",
    shadow: tuple[str, ...] = (),
    solver: Solver | None = None,
    forecaster: Forecaster = no_forecaster,
    token: str = "",
) -> AsyncIterator[KubeDriver]:
    """A driver that leads, in this very loop. What it meets comes out when it ends."""
    sink = Journals(journal) if journal is not None else None
    settings = DriverSettings(
        profile or builtin_profile("kant"), sink, recovery=recovery, staleness=staleness, shadow=shadow, solver=solver,
        forecaster=forecaster,
    )  # fmt: skip
    warm_once(settings.profile.text)
    async with ApiClient(load(plane.kubeconfig(user, server=server))) as client:
        driver = KubeDriver(client, settings, EventRecorder(client, "test"), token=lambda: token)
        task = asyncio.create_task(driver.run())
        try:
            yield driver
        finally:
            done = task.done()
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
            assert not done, "the driver ended by itself"


def lead(aside: str, ahead_s: int, arguments: list[str]) -> int:
    """`kant` with these arguments, in this process."""
    use(aside)
    return run_skewed(ahead_s, arguments)


class KantProcess:
    """`kant kube run` as a process of its own, by default with a short Lease. `kill` is kill -9.

    `config` is a kubeconfig of the test's own; `ahead_s` puts its clocks ahead of everybody's. It is forked from the
    tests, with all that they have in memory; with `fresh` it is not. `clock` is a file with the seconds by which its
    system clock is ahead, which may change at any time.
    """

    def __init__(
        self,
        plane: ControlPlane,
        *options: str,
        server: str = "",
        user: str = "kant",
        lease_s: float = 2.0,
        config: Path | None = None,
        ahead_s: int = 0,
        fresh: bool = False,
        clock: Path | None = None,
    ) -> None:
        lease = ["--lease-duration", f"{lease_s}", "--renew-deadline", f"{lease_s / 2}", "--retry-period", "0.2"]
        command = ["kube", "run", "--kubeconfig", str(config or plane.kubeconfig(user, server=server))]
        command += [*lease, *options]
        self.log = plane.folder / f"kant-{os.urandom(4).hex()}.log"
        self.process: Forked | subprocess.Popen[bytes]
        if fresh or clock is not None:
            program = ["kant"] if clock is None else ["tests.kube.wandering", str(clock)]
            with self.log.open("wb") as log:
                self.process = subprocess.Popen([sys.executable, "-m", *program, *command], stderr=log, stdout=log)
        else:
            warm_once(builtin_profile("kant").text)
            self.log.touch()
            self.process = Forked(partial(lead, side_server(), ahead_s, command), self.log)

    async def says(self, text: str) -> None:
        """Wait until its log has this; raises where it ends before."""
        async with asyncio.timeout(PATIENCE_S):
            while text not in self.log.read_text(errors="replace"):
                assert self.process.poll() is None, self.log.read_text(errors="replace")
                await asyncio.sleep(0.05)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def stop(self) -> int:
        """SIGTERM, and its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE_S)
