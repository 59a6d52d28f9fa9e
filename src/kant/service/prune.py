"""Pruning: removes jobs that ended long ago, in small steps, so that Kant stays fast over months.

The files of a job are removed first and its row last, so that after a crash the next sweep finds the row and continues.
Jobs that have not ended, their dependencies, and the last job, whose number must not be reused, are kept.
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
from kant.service.store import JobStore, StoreFullError

log = logging.getLogger("kant.service")
BATCH = 50  # jobs of one step
PAUSE = 0.1  # seconds between two steps
EVERY = 3600.0  # seconds between two sweeps
DOUBT = 7 * DAY  # microseconds after a jump of the clock in which nothing is pruned
MOST_LOG = 64 << 20  # bytes of kant.log, and at most as many of its previous copy


@dataclass(frozen=True, slots=True)
class Places:
    """The paths of what is pruned: the folder of runs, the journals, and Kant's own log."""

    runs: Path
    journals: Journals | None = None
    log_file: Path | None = None


class Pruner:
    """Removes jobs that ended more than `keep` microseconds ago, but not those whose ids `wanted` returns."""

    def __init__(
        self,
        store: JobStore,
        places: Places,
        keep: int,
        clock: Callable[[], int],
        wanted: Callable[[], set[str]],
        on_pruned: Callable[[int], None] = lambda jobs: None,
    ) -> None:
        self.store = store
        self.places = places
        self.keep = keep
        self.clock = clock
        self.wanted = wanted
        self.on_pruned = on_pruned
        self.pruned = 0

    def steps(self) -> Iterator[list[Path]]:
        """Run one sweep. Each step yields the folders to remove before the next step."""
        before = self.clock() - self.keep
        at = (-1, -1)
        while rows := self.store.ended_before(before, at, BATCH):
            at = rows[-1][:2]
            folders = {name: self.places.runs / name for name in self._free([name for _, _, name in rows])}
            yield [folder for folder in folders.values() if folder.exists()]
            names = self._free([name for name, folder in folders.items() if not folder.exists()])
            self.store.prune(names)
            self.pruned += len(names)
            self.on_pruned(len(names))
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
        oldest = min(int(time.time() * 1e6), self.clock()) - self.keep  # one of the two clocks may have jumped
        for path in sorted(journals.folder.glob("*.jsonl")):
            with suppress(OSError):  # file times may be wrong after such a jump, so the name is checked too
                if path != journals.path and path.name < name_at(oldest) and path.stat().st_mtime * 1e6 < oldest:
                    path.unlink()
                    yield []

    def _trim(self) -> None:
        """Copy kant.log and truncate it when it is long. The log is open for appending, so writing continues at its
        new end.
        """
        path = self.places.log_file
        if path is None or not path.exists():
            return
        own = path.stat()
        if own.st_size > MOST_LOG and os.path.samestat(own, os.fstat(1)):
            shutil.copyfile(path, path.with_name(path.name + ".1"))
            os.truncate(path, 0)

    async def sweep(self) -> None:
        """Run one sweep, slowly enough not to disturb the scheduler."""
        for folders in self.steps():
            if folders:
                await asyncio.to_thread(remove, folders)
            await asyncio.sleep(PAUSE)

    async def run(self, not_before: int = 0) -> None:
        """Sweep periodically, from the time `not_before` of the clock on."""
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
    """Remove folders. If a folder cannot be removed, its job is kept, and the next sweep retries."""
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


def wanted(driver: LocalDriver) -> set[str]:
    """Return the ids of jobs to keep: dependencies of jobs that have not ended, and the arrays of such jobs."""
    found: set[str] = set()
    for record in driver.alive():
        found.update(record.ahead)
        if record.array >= 0:
            found.add(str(record.array))
    return found


def in_doubt(latest: int, now: int, keep: int) -> int:
    """Return the time (µs) before which nothing is pruned: a week after `now` if the clock has jumped, otherwise 0."""
    if latest == 0 or now - latest < keep // 2:
        return 0
    log_event(log, "the clock has jumped: nothing is pruned for a week", logging.WARNING, days=(now - latest) // DAY)
    return now + DOUBT
