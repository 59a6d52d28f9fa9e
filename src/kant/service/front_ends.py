"""The front ends of a Kant: their socket, their processes, and the loads that they read (`kant up --front-ends N`)."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sys
import time
from asyncio.subprocess import PIPE
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from kant.live.logs import log_event
from kant.local.driver import LocalDriver
from kant.service.client import FRONT_SOCKET
from kant.service.loads import LOADS, loads_of, write_loads

log = logging.getLogger("kant.service")
BACKLOG = 1024
EVERY_S = 0.2
"""Seconds between two looks at the loads, and more where a look takes longer than a twentieth of that."""
AGAIN_S = 0.5
"""Seconds after which a front end that has ended is started anew."""


class FrontEnds:
    """`async with FrontEnds(home, count, driver)`: they are there, and are started anew where one ends."""

    def __init__(self, home: Path, count: int, driver: LocalDriver) -> None:
        self.home, self.count, self.driver = home, count, driver
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> FrontEnds:
        if not self.count:
            return self
        self._path.unlink(missing_ok=True)
        own = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        mask = os.umask(0o177)
        try:
            own.bind(str(self._path))
        finally:
            os.umask(mask)
        own.listen(BACKLOG)
        self._write()
        self._tasks = [asyncio.create_task(self._keep(own)) for _ in range(self.count)]
        self._tasks.append(asyncio.create_task(self._tell()))
        return self

    @property
    def _path(self) -> Path:
        return self.home / FRONT_SOCKET

    async def _keep(self, own: socket.socket) -> None:
        """One front end, for as long as Kant lives."""
        while True:
            child = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "kant.service.front_end", str(self.home), str(own.fileno()),
                stdin=PIPE, pass_fds=(own.fileno(),), start_new_session=True,
            )  # fmt: skip
            try:
                code = await child.wait()
            finally:
                if child.returncode is None:
                    assert child.stdin is not None
                    child.stdin.close()  # it ends by that
                    try:
                        await asyncio.wait_for(child.wait(), 2)
                    except TimeoutError:
                        child.kill()
            log_event(log, "a front end has ended", logging.WARNING, code=code)
            await asyncio.sleep(AGAIN_S)

    def _write(self) -> None:
        records = self.driver.jobs.records.values()
        with suppress(OSError):  # the disk may be full: front ends go on by what they know
            write_loads(self.home, loads_of(records, self.driver.settings.cluster, self.driver.clock.micros()))

    async def _tell(self) -> None:
        """Write the loads now and then."""
        while True:
            began = time.monotonic()
            self._write()
            await asyncio.sleep(max(EVERY_S, 20 * (time.monotonic() - began)))

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for name in (FRONT_SOCKET, LOADS):
            (self.home / name).unlink(missing_ok=True)
