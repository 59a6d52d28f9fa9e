"""Launching and stopping runs. A place is given away on paper at once; a process waits until its place is empty."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from kant.local import cgroups
from kant.local.cores import counted, share
from kant.local.record import Record
from kant.local.runs import Exit, Run, begin, find, read_spec
from kant.local.wishes import most_memory, spec_of
from kant.model.placement import CPU, MASK, MEMORY, NODE

if TYPE_CHECKING:
    from pathlib import Path

    from kant.local.driver import Settings
    from kant.local.runs import Spec

Place = list[list[int]]


class Launcher:
    """The runs that live, by job, with what they hold; and those that are to begin, in the order of the plans."""

    def __init__(self, settings: Settings, over: Callable[[Record, Exit], None]) -> None:
        self.settings = settings
        self.over = over
        self.runs: dict[str, Run] = {}
        self.holds: dict[str, tuple[Record, Place]] = {}
        self.planned: dict[str, tuple[Record, Place]] = {}
        self.cores: dict[str, tuple[int, ...]] = {}
        self.to_stop: list[Record] = []
        self._to_begin: list[Record] = []

    @property
    def is_busy(self) -> bool:
        """Whether something is planned that a state built anew would not know of."""
        return bool(self.planned or self._to_begin)

    def folder(self, record: Record) -> Path:
        """Where the present run of a job keeps its files."""
        return self.settings.runs / record.id / str(record.attempt)

    def plan(self, record: Record, place: Place) -> None:
        """A run is to begin at this place, as soon as it is empty."""
        self.planned[record.id] = (record, place)

    def is_planned(self, record: Record) -> bool:
        return record.id in self.planned

    def unplan(self, record: Record) -> bool:
        """It is not to begin. False where it was not planned."""
        return self.planned.pop(record.id, None) is not None

    def unbegin(self, record: Record) -> bool:
        """A run that was ready, but has not begun, is not to begin. False where there is none."""
        if record not in self._to_begin:
            return False
        self._to_begin.remove(record)
        self.gone(record)
        return True

    def ready(self) -> list[Record]:
        """Those whose place is empty; from now on they hold it."""
        found = []
        for job, (record, place) in list(self.planned.items()):
            leaving = [held for other, held in self.holds.values() if other.stopping]
            if job not in self.holds and not any(clash(place, held) for held in leaving):
                del self.planned[job]
                record.place = place
                self.holds[job] = (record, place)
                self._to_begin.append(record)
                found.append(record)
        return found

    def go(self) -> Iterator[tuple[Record, str]]:
        """Begin and stop what has been written down. Gives those that could not begin, and why."""
        begins, self._to_begin = self._to_begin, []
        stops, self.to_stop = self.to_stop, []
        for record in begins:
            folder = self.folder(record)
            try:
                run = begin(folder, self._spec(record, folder))
            except OSError as error:
                self.gone(record)
                yield record, error.strerror or str(error)
            else:
                self._watch(record, run)
        for record in stops:
            self.stop(record)

    def _spec(self, record: Record, folder: Path) -> Spec:
        """What its supervisor has to know; from now on it has its cores."""
        others = [(self.cores[job], counted(place)) for job, (_, place) in self.holds.items() if job in self.cores]
        cores = share(self.settings.cores, counted(record.place), others)
        if cores:
            self.cores[record.id] = cores
        base, own = self.settings.cgroups, ""
        if base is not None and most_memory(record.place):
            own = str(cgroups.of_run(base, folder))
        return spec_of(record, folder, self.settings.cluster, self.settings.log_bytes, cores, own)

    def stop(self, record: Record) -> None:
        """Tell a run to end."""
        run = self.runs.get(record.id)
        if run is not None:
            run.stop()

    def find(self, record: Record) -> Run | Exit | None:
        """What has become of a run that the last Kant knew; one that lives is watched from now on. Raises OSError."""
        found = find(self.folder(record))
        if isinstance(found, Run):
            self.holds[record.id] = (record, record.place)
            spec = read_spec(self.folder(record))
            if spec is not None and spec.cores:
                self.cores[record.id] = spec.cores
            self._watch(record, found)
        return found

    def sweep(self) -> None:
        """Let no cgroup be left of runs that do not live."""
        base = self.settings.cgroups
        if base is not None:
            living = {cgroups.of_run(base, run.folder) for run in self.runs.values()}
            cgroups.sweep(base, self.settings.runs, living)

    def _watch(self, record: Record, run: Run) -> None:
        self.runs[record.id] = run
        run.over = lambda run: self.over(record, run.exit())
        run.watch(asyncio.get_running_loop())

    def gone(self, record: Record) -> None:
        """Its place is empty."""
        self.runs.pop(record.id, None)
        self.holds.pop(record.id, None)
        self.cores.pop(record.id, None)

    def forget(self) -> None:
        """Watch nothing any more; what runs runs on."""
        for run in self.runs.values():
            run.forget(asyncio.get_running_loop())


def clash(new: Place, held: Place) -> bool:
    """Whether two places share a whole device, or both take cores or memory of a node.

    Only a run that is being stopped can hold what was given to another, so this is about those alone: what the core
    gives out does not clash.
    """
    for a in new:
        for b in held:
            if a[NODE] == b[NODE] and (a[MASK] & b[MASK] or (a[CPU] and b[CPU]) or (a[MEMORY] and b[MEMORY])):
                return True
    return False
