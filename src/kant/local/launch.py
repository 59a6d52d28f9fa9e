"""Starts and stops runs. Resources are assigned at once; the process starts once no other run uses them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from signal import Signals
from typing import TYPE_CHECKING

import msgspec

from kant.local import cgroups
from kant.local.accounts import account_of
from kant.local.containers import contained
from kant.local.cores import counted, share
from kant.local.forks import ForkServer
from kant.local.joined import wire
from kant.local.joined.machines import Machines
from kant.local.joined.runs import EndedPart, JoinedRun, RemotePart
from kant.local.processes import send
from kant.local.record import FOR_HANDLERS, JobRecord
from kant.local.runs import MARK, Exit, SupervisedRun, begin, find, mark, read_spec
from kant.local.submission import Host, most_memory, spec_of
from kant.local.trace_ids import VARIABLE, traceparent
from kant.model.errors import InputError
from kant.model.job_request import SignalName
from kant.model.placement import CPU, MASK, MEMORY, NODE

if TYPE_CHECKING:
    from pathlib import Path

    from kant.local.joined.machines import Machine
    from kant.local.joined.runs import RunPart
    from kant.local.runs import Spec
    from kant.local.settings import LocalSettings

Place = list[list[int]]
Run = SupervisedRun | JoinedRun
IDLE = ("sleep", "infinity")
SLICE = 0.02  # seconds for which runs are started at a time


class Launcher:
    """The live runs by job, with their places (allocations), and the runs to begin, in the order of the plans."""

    def __init__(
        self,
        settings: LocalSettings,
        over: Callable[[JobRecord, Exit], None],
        ticks: Callable[[], float] = time.monotonic,
        machines: Machines | None = None,
    ) -> None:
        self.ticks = ticks
        self.machines = machines or Machines(len(settings.cluster.nodes), None, lambda kept: None)
        self.server = ForkServer()
        self.settings = settings
        self.over = over
        self.runs: dict[str, Run] = {}
        self.holds: dict[str, tuple[JobRecord, Place]] = {}
        self.planned: dict[str, tuple[JobRecord, Place]] = {}
        self.cores: dict[str, tuple[int, ...]] = {}
        self.to_stop: list[JobRecord] = []
        self._to_begin: list[JobRecord] = []
        self.shed: Callable[[], list[Place]] = list  # devices that elastic runs are giving back
        self.begins: Callable[[JobRecord], dict[str, str]] = lambda record: {}  # sends an elastic run its place

    @property
    def begins_more(self) -> bool:
        """Whether ready runs wait for the next call of `go`."""
        return bool(self._to_begin)

    @property
    def is_busy(self) -> bool:
        """Whether there are pending starts, which a rebuilt state would not contain."""
        return bool(self.planned or self._to_begin)

    def folder(self, record: JobRecord, attempt: int | None = None) -> Path:
        """Return the folder of a run of a job, by default of the current run."""
        return self.settings.runs / record.id / str(record.attempt if attempt is None else attempt)

    def plan(self, record: JobRecord, place: Place) -> None:
        """Plan a run at this place, to begin as soon as the place is empty."""
        self.planned[record.id] = (record, place)

    def resize(self, record: JobRecord, place: Place) -> None:
        """Change the place of an elastic run: at once or, if it has not begun, for its start."""
        if record.id in self.planned:
            self.planned[record.id] = record, place
        else:
            record.place = place
            self.holds[record.id] = record, place

    def is_planned(self, record: JobRecord) -> bool:
        return record.id in self.planned

    def cancel_plan(self, record: JobRecord) -> bool:
        """Cancel a planned run. Return False if it was not planned."""
        return self.planned.pop(record.id, None) is not None

    def cancel_start(self, record: JobRecord) -> bool:
        """Cancel a job's run that is ready but has not begun. Return False if the job has no such run."""
        if record not in self._to_begin:
            return False
        self._to_begin.remove(record)
        self.gone(record)
        return True

    def ready(self) -> list[JobRecord]:
        """Return the planned runs whose place is empty; from now on they hold their places."""
        found = []
        leaving = [held for other, held in self.holds.values() if other.stopping]
        leaving += self.shed() if self.planned else []
        for job, (record, place) in list(self.planned.items()):
            if job not in self.holds and not any(clash(place, held) for held in leaving):
                del self.planned[job]
                record.place = place
                self.holds[job] = (record, place)
                self._to_begin.append(record)
                found.append(record)
        return found

    def go(self) -> Iterator[tuple[JobRecord, str]]:
        """Stop the runs to stop, and start ready runs for a SLICE of time; the next call starts more. Yield the jobs
        that could not begin, with the reason."""
        self.stop_all()
        end = self.ticks() + SLICE
        while self._to_begin and self.server.has_room and self.ticks() < end:
            record = self._to_begin.pop(0)
            folder = self.folder(record)
            try:
                run = self._run(record, folder) or begin(folder, self._spec(record, folder), self.server)
            except (OSError, InputError) as error:
                self.gone(record)
                yield record, getattr(error, "strerror", None) or str(error)
            else:
                self._watch(record, run)

    def _run(self, record: JobRecord, folder: Path) -> JoinedRun | None:
        """Return the run of a job with a place on a joined machine; None for other jobs. Raises InputError."""
        parts = self.machines.parts(record.place)
        if all(machine is None for machine, _ in parts):
            return None
        names = [self._host(place[0][NODE]).name for _, place in parts]
        specs = [self._spec(record, folder, machine, place) for machine, place in parts]

        def begun(at: int) -> RunPart:
            (machine, place), spec, own = parts[at], specs[at], folder
            if at:  # this part reserves the place for tasks that the command starts on its machine
                own = folder / f"on.{at}"
                spec = msgspec.structs.replace(spec, command=IDLE, output="", error="", terminal=None)
                spec = msgspec.structs.replace(spec, env=spec.env | {MARK: str(own)})
            if machine is None:
                return self._here(own, spec)
            name = str(own.relative_to(self.settings.runs))
            wanted = record.submission
            image = wanted.image if not at or wanted.slurm else ""
            order = wire.Begin(name, spec, counted(place), wanted.slurm, image, wanted.mounts, wanted.gpus > 0)
            part = RemotePart(own, name, machine, order)
            part.begin()
            return part

        others = [begun(at) for at in range(1, len(parts))]
        return JoinedRun(lambda: begun(0), others, names)

    def _here(self, folder: Path, spec: Spec) -> RunPart:
        """Return the part of a run on this machine; begin it if it was never begun. Raises OSError."""
        if not (folder / "spec.json").exists():
            return begin(folder, spec, self.server)
        found = find(folder)
        if isinstance(found, SupervisedRun):
            return found
        return EndedPart(folder, found or Exit(lost="the run was not started", unborn=True))

    def _spec(
        self, record: JobRecord, folder: Path, machine: Machine | None = None, place: Place | None = None
    ) -> Spec:
        """Return the spec of a run, or of its part at `place` on `machine` (None: this machine). Assign cores, unless
        a joined machine does so itself. Raises InputError if the run's user no longer exists."""
        place, base = record.place if place is None else place, self.settings.cgroups
        cores: tuple[int, ...] = ()
        if machine is None:
            others = [(cores, counted(self.machines.here(self.holds[job][1]))) for job, cores in self.cores.items()]
            cores = share(self.settings.cores, counted(place), others)
            if cores:
                self.cores[record.id] = cores
        own = str(cgroups.of_run(base, folder)) if base is not None and machine is None and most_memory(place) else ""
        account = account_of(record.user) if self.settings.as_users else None
        spec = spec_of(
            record,
            folder,
            self.settings.cluster,
            self.settings.log_bytes,
            cores,
            own,
            account,
            self._host,
            str(self.settings.shims) if machine is None else "",
            self.begins(record),
        )
        if machine is not None or len(place) < len(record.place):
            spec = msgspec.structs.replace(spec, memory_mib=most_memory(place))
        if self.settings.trace_key:
            spec.env[VARIABLE] = traceparent(self.settings.trace_key, record)
        if machine is not None:  # a joined machine uses its own container runtime
            return spec
        wanted = record.submission
        return contained(spec, wanted.image, wanted.mounts, wanted.gpus > 0, wanted.slurm)

    def _host(self, node: int) -> Host:
        """Return the machine of a node (index in the cluster)."""
        machine, machines = self.machines.at(node), self.machines
        if machine is not None:
            return Host(machine.name, machine.known.visible)
        return Host(machines.host if machines.known else "", self.settings.visible)

    def folder_on(self, record: JobRecord, node: str) -> Path:
        """Return the folder of the part of a run on a machine; "": the machine of its command. Raises InputError."""
        run = self.runs.get(record.id)
        nodes = self.settings.cluster.nodes
        names = run.names if isinstance(run, JoinedRun) else [nodes[piece[NODE]].name for piece in record.place]
        if node and node not in names:
            raise InputError("node", f"a node of job {record.id} ({', '.join(names)})", node)
        at = names.index(node) if node and isinstance(run, JoinedRun) else 0
        return self.folder(record) / f"on.{at}" if at else self.folder(record)

    def stop_all(self) -> None:
        """Stop the runs in `to_stop`. This works even if the disk is full."""
        stops, self.to_stop = self.to_stop, []
        for record in stops:
            self.stop(record)

    def stop(self, record: JobRecord) -> None:
        """Stop a run."""
        run = self.runs.get(record.id)
        if run is not None:
            run.stop()

    def limit(self, record: JobRecord, seconds: float | None) -> None:
        """Set the time limit of a job's run, counted from its start. Raises OSError, and then nothing has changed."""
        run = self.runs.get(record.id)
        if run is not None:  # otherwise it has not begun, and will begin with the job's new limit
            run.limit(seconds)

    def signal(self, record: JobRecord, name: SignalName) -> int:
        """Send a signal to the processes of a run, or to those that handle it. Return how many received it."""
        number, handled, sent = Signals[f"SIG{name}"], name in FOR_HANDLERS, 0
        for part in self.runs[record.id].parts:
            if isinstance(part, RemotePart):
                part.machine.tell(wire.Signal(part.name, number, handled))
                sent += 1  # only the machine knows how many received it
            else:
                sent += send(mark(part.folder), number, handled)
        return sent

    def find(self, record: JobRecord) -> Run | Exit | None:
        """Return the state of a run from the previous process of Kant, and watch it if it lives. Raises OSError."""
        self.holds[record.id] = (record, record.place)
        joined = self._run(record, self.folder(record))
        if joined is not None:
            self._watch(record, joined)
            return joined
        del self.holds[record.id]
        found = find(self.folder(record))
        if isinstance(found, SupervisedRun):
            self.holds[record.id] = (record, record.place)
            spec = read_spec(self.folder(record))
            if spec is not None and spec.cores:
                self.cores[record.id] = spec.cores
            self._watch(record, found)
            found.limit(record.submission.time_s)  # the previous process may not have written a new limit
        return found

    def sweep(self) -> None:
        """Remove the cgroups of runs that have ended."""
        base = self.settings.cgroups
        if base is not None:
            living = {cgroups.of_run(base, part.folder) for run in self.runs.values() for part in run.parts}
            cgroups.sweep(base, self.settings.runs, living)

    def _watch(self, record: JobRecord, run: Run) -> None:
        self.runs[record.id] = run
        run.over = lambda run: self.over(record, run.exit())
        run.watch(asyncio.get_running_loop())

    def gone(self, record: JobRecord) -> None:
        """Record that a run has ended and no longer uses its place."""
        self.runs.pop(record.id, None)
        self.holds.pop(record.id, None)
        self.cores.pop(record.id, None)

    def forget(self) -> None:
        """Stop watching all runs; they continue."""
        for run in self.runs.values():
            run.forget()
        self.server.close()


def clash(new: Place, held: Place) -> bool:
    """Return whether two places share a device, or both use cores or memory of one node.

    Only a run that is being stopped can hold what another run was given: the core assigns no resource twice.
    """
    for a in new:
        for b in held:
            if a[NODE] == b[NODE] and (a[MASK] & b[MASK] or (a[CPU] and b[CPU]) or (a[MEMORY] and b[MEMORY])):
                return True
    return False
