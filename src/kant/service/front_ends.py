"""Runs the front ends (`kant up --front-ends N`): processes that accept short jobs. Manages their socket and slots, and
writes the node loads that they read."""

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

import msgspec

from kant.live.logs import log_event
from kant.local.driver import LocalDriver
from kant.service.client import FRONT_SOCKET
from kant.service.loads import LOADS, OfferedSlot, Report, loads_of, write_loads
from kant.service.slot_keeper import SlotKeeper

log = logging.getLogger("kant.service")
BACKLOG = 1024
EVERY_S = 0.2
"""Minimum seconds between two updates of the loads; longer if an update takes more than a twentieth of this time."""
AGAIN_S = 0.5
"""Seconds after which a front end that has ended is restarted."""
LOOK_S = 0.02
"""Seconds between two checks of the slots, while there are slots or requests for them."""
IDLE_S = 0.5
"""Seconds between two checks while there are neither slots nor requests for slots."""
MOST_BYTES = 4 << 20
"""Maximum number of bytes of one report of a front end."""


class FrontEnds:
    """`async with FrontEnds(home, count, driver, keeper)`: runs `count` front ends, and restarts each that ends."""

    def __init__(self, home: Path, count: int, driver: LocalDriver, keeper: SlotKeeper) -> None:
        self.home, self.count, self.driver, self.keeper = home, count, driver, keeper
        self._said = asyncio.Event()
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
        self._tasks += [asyncio.create_task(self._tell()), asyncio.create_task(self._look())]
        return self

    @property
    def _path(self) -> Path:
        return self.home / FRONT_SOCKET

    async def _keep(self, own: socket.socket) -> None:
        """Run one front end on the listening socket `own`, and restart it whenever it ends."""
        while True:
            child = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "kant.service.front_end", str(self.home), str(own.fileno()),
                stdin=PIPE, stdout=PIPE, limit=MOST_BYTES, pass_fds=(own.fileno(),), start_new_session=True,
            )  # fmt: skip
            assert child.stdin is not None and child.stdout is not None
            into = child.stdin

            def tell(slots: tuple[OfferedSlot, ...], into: asyncio.StreamWriter = into) -> None:
                into.write(msgspec.json.encode(slots) + b"\n")

            share = self.keeper.join(tell)
            try:
                while line := await child.stdout.readline():
                    self.keeper.report(share, msgspec.json.decode(line, type=Report))
                    self._said.set()
                code = await child.wait()
            finally:
                self.keeper.leave(share)
                if child.returncode is None:
                    into.close()  # the process exits when its input ends
                    try:
                        await asyncio.wait_for(child.wait(), 2)
                    except TimeoutError:
                        child.kill()
            log_event(log, "a front end has ended", logging.WARNING, code=code)
            await asyncio.sleep(AGAIN_S)

    def _write(self) -> None:
        records = self.driver.jobs.records.values()
        with suppress(OSError):  # the disk may be full: front ends use the last loads that they read
            write_loads(self.home, loads_of(records, self.driver.settings.cluster, self.driver.clock.micros()))

    async def _tell(self) -> None:
        """Write the node loads periodically, until cancelled."""
        while True:
            began = time.monotonic()
            self._write()
            await asyncio.sleep(max(EVERY_S, 20 * (time.monotonic() - began)))

    async def _look(self) -> None:
        """Update the slots: often while there are slots or requests for slots, seldom otherwise."""
        while True:
            await asyncio.sleep(LOOK_S)
            if not self.keeper.look():
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._said.wait(), IDLE_S)
            self._said.clear()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for name in (FRONT_SOCKET, LOADS):
            (self.home / name).unlink(missing_ok=True)
