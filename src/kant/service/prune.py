"""Pruning: what is over for long goes, in small steps, so that a Kant that runs for months stays as quick as it was.

Of a job its files go first and its row last: killed in between, the next sweep finds the row and goes on. Nothing that
lives is touched, nor what a job that lives comes after, nor the last job of all, whose number must not be given again.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from kant.live.journals import Journals, name_at
from kant.live.logs import log_event
from kant.local.driver import LocalDriver
from kant.model.units import DAY
from kant.service.store import Store, StoreFullError

log = logging.getLogger("kant.service")
BATCH = 50  # jobs of one step
CALM = 0.1  # seconds between two steps
EVERY = 3600.0  # seconds between two sweeps
DOUBT = 7 * DAY  # after a leap of the clock
MOST_LOG = 64 << 20  # bytes of kant.log, and as much again of the one before


@dataclass(frozen=True, slots=True)
class Places:
    """Where the files are: of the runs, of the journals, and what Kant itself has said."""

    runs: Path
    journals: Journals | None = None
    log_file: Path | None = None


class Pruner:
    """Sweeps away what has ended more than `keep` microseconds ago. `wanted` names jobs that others wait for."""

    def __init__(
        self,
        store: Store,
        places: Places,
        keep: int,
        clock: Callable[[], int],
        wanted: Callable[[], set[str]],
        told: Callable[[int], None] = lambda jobs: None,
    ) -> None:
        self.store = store
        self.places = places
        self.keep = keep
        self.clock = clock
        self.wanted = wanted
        self.told = told
        self.pruned = 0

    def steps(self) -> Iterator[list[Path]]:
        """One sweep: each step gives folders that are to be removed before the next."""
        before = self.clock() - self.keep
        at = (-1, -1)
        while rows := self.store.over(before, at, BATCH):
            at = rows[-1][:2]
            folders = {name: self.places.runs / name for name in self._free([name for _, _, name in rows])}
            yield [folder for folder in folders.values() if folder.exists()]
            names = self._free([name for name, folder in folders.items() if not folder.exists()])
            self.store.prune(names)
            self.pruned += len(names)
            self.told(len(names))
        while self.store.prune_audit(before, BATCH * 20):
            yield []
        yield from self._journals()
        self._trim()

    def _free(self, names: list[str]) -> list[str]:
        wanted = self.wanted()
        return [name for name in names if name not in wanted and name.partition("_")[0] not in wanted]

    def _journals(self) -> Iterator[list[Path]]:
        journals = self.places.journals
        if journals is None:
            return
        oldest = min(int(time.time() * 1e6), self.clock()) - self.keep  # one of the two may have leapt,
        for path in sorted(journals.folder.glob("*.jsonl")):
            with suppress(OSError):  # and so may that of the disk: the name says it too
                if path != journals.path and path.name < name_at(oldest) and path.stat().st_mtime * 1e6 < oldest:
                    path.unlink()
                    yield []

    def _trim(self) -> None:
        """Begin kant.log anew when it is long. It is open for appending, so it goes on from its new end."""
        path = self.places.log_file
        if path is None or not path.exists():
            return
        own = path.stat()
        if own.st_size > MOST_LOG and os.path.samestat(own, os.fstat(1)):
            shutil.copyfile(path, path.with_name(path.name + ".1"))
            os.truncate(path, 0)

    async def sweep(self) -> None:
        """One sweep, at a pace that nobody notices."""
        for folders in self.steps():
            if folders:
                await asyncio.to_thread(remove, folders)
            await asyncio.sleep(CALM)

    async def run(self, not_before: int = 0) -> None:
        """Sweep for ever, from a moment of the clock on."""
        while True:
            if self.clock() >= not_before:
                try:
                    await self.sweep()
                except (StoreFullError, OSError) as error:
                    log_event(log, "pruning waits", logging.WARNING, error=str(error))
                if self.pruned:
                    log_event(log, "pruned", jobs=self.pruned)
                    self.pruned = 0
            await asyncio.sleep(EVERY)


def remove(folders: list[Path]) -> None:
    """Remove folders. One that stays keeps its job, and is tried again."""
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


def wanted(driver: LocalDriver) -> set[str]:
    """The jobs that those that live come after, and the arrays of which a job lives."""
    found: set[str] = set()
    for record in driver.alive():
        found.update(record.ahead)
        if record.array >= 0:
            found.add(str(record.array))
    return found


def in_doubt(latest: int, now: int, keep: int) -> int:
    """The moment before which nothing is pruned: after a leap of the clock since `latest`, which may be a wrong one."""
    if latest == 0 or now - latest < keep // 2:
        return 0
    log_event(log, "the clock has leapt: nothing is pruned for a week", logging.WARNING, days=(now - latest) // DAY)
    return now + DOUBT
