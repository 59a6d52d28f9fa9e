"""The agent of a machine that has joined Kant: starts and stops runs as Kant orders, and reports on them.

The agent's runs are like those of `kant up`: each has a folder, a claim and a supervisor, and outlives the agent. In
addition there is a lease: a file with a time since boot, which each response of Kant extends. When the lease has
expired, every supervisor kills its run, and no later response can extend it. New runs then get a new lease file.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import shutil
import signal
import socket
import ssl
import sys
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from kant.live.logs import log_event
from kant.local import cgroups
from kant.local.containers import contained, runtime
from kant.local.cores import share
from kant.local.forks import ForkServer
from kant.local.joined import wire
from kant.local.joined.keys import context
from kant.local.output import read_output
from kant.local.processes import kill_marked, send, since_boot
from kant.local.runs import MARK, Exit, Spec, SupervisedRun, begin, find, mark, read_spec
from kant.local.slurm_commands import write_shims
from kant.local.terminals import SOCKET as TERMINAL
from kant.model.errors import InputError, SentenceError
from kant.model.node import Node

log = logging.getLogger("kant.local")
PINGS = 6  # per lease
LOOK = 0.1  # seconds between two reads of the runs' output
PIECE = 1 << 18
AGAIN_S = (0.2, 5.0)  # seconds between two attempts to connect: first, and at most
CONNECT_S = 5.0
FIRST_S = 30.0
"""Seconds within which the first connection must succeed, so that a wrong address is not tried for ever."""
API = "kant.sock"


class MachineLease:
    """The lease of this machine's runs: files `lease.N` in the agent's home, of which the last applies to new runs."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.number = max(
            (int(path.suffix[1:]) for path in home.glob("lease.*") if path.suffix[1:].isdigit()), default=0
        )

    @property
    def path(self) -> Path:
        return self.home / f"lease.{self.number}"

    @property
    def until(self) -> float:
        """The end of the lease in seconds since boot; 0 if there is no lease."""
        try:
            return float(self.path.read_bytes() or 0)
        except (OSError, ValueError):
            return 0.0

    @property
    def holds(self) -> bool:
        return self.until > since_boot() / 1e6

    def begin(self, until: float) -> None:
        """Set the lease's end (seconds since boot): in the same file if the lease has not expired, otherwise in a new
        file. Raises OSError.
        """
        if not self.holds:  # a number that was never used, even if the home was deleted
            self.number = max(self.number + 1, time.time_ns())
            self.path.touch(0o600)
        self._write(until)

    def renew(self, until: float) -> bool:
        """Extend the lease until this time (seconds since boot). Return False if it has expired. Raises OSError."""
        if self.holds:
            self._write(until)
            return True
        return False

    def _write(self, until: float) -> None:
        file = os.open(self.path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.pwrite(file, f"{until:020.6f}".encode(), 0)  # the same length as before, so it works on a full disk
        finally:
            os.close(file)


@dataclass(slots=True, eq=False)
class HeldRun:
    """A run of this machine. `output_sent` is the number of output bytes that were sent to Kant."""

    name: str
    folder: Path
    milli: int
    cores: tuple[int, ...] = ()
    run: SupervisedRun | None = None
    exit: Exit | None = None
    output_sent: int = 0
    start_sent: bool = False  # whether Kant was told of the run's start
    end_sent: bool = False  # whether Kant was told of the run's end


@dataclass(frozen=True, slots=True)
class AgentOptions:
    """Options of an agent. `keys` is the folder of certificates. `visible` has the CUDA names of the devices, and
    `cores` the cores for runs (empty on a virtual machine). Each GPU draws at most `gpu_watts` (0: unknown).
    """

    home: Path
    keys: Path
    host: str
    port: int
    node: Node
    visible: tuple[str, ...] = ()
    cores: tuple[int, ...] = ()
    gpu_watts: int = 0


class JoinRefusedError(SentenceError):
    """Kant refuses this machine; the message is Kant's."""


class LeftError(Exception):
    """The machine has left Kant, as requested."""


class Agent:
    """The agent of one home. `run` returns when the agent is stopped (its runs then continue until their lease expires)
    or when the machine has left.
    """

    def __init__(self, options: AgentOptions) -> None:
        self.options = options
        self.home = options.home
        self.lease = MachineLease(self.home)
        self.server = ForkServer()
        self.cgroups = cgroups.prepare()
        self.runs: dict[str, HeldRun] = {}
        self.line: asyncio.StreamWriter | None = None
        self.on_join: Callable[[], None] = lambda: None
        self._tls = context(options.keys, is_leader=False)
        self._has_joined = False
        self._some = asyncio.Event()  # there may be something to send
        self._pings: dict[int, float] = {}
        self._aside: set[asyncio.Task[None]] = set()

    @property
    def shims(self) -> Path:
        return self.home / "slurm"

    def _id(self) -> str:
        """Return the id of the home's folder of runs. No other home has it, not even a copy on another machine."""
        path = self.home / "runs" / "id"
        path.parent.mkdir(exist_ok=True)
        if not path.exists():
            path.write_text(secrets.token_hex(16), encoding="ascii")
        with suppress(OSError):
            return path.read_text(encoding="ascii") + Path("/etc/machine-id").read_text(encoding="ascii").strip()
        return path.read_text(encoding="ascii")

    async def run(self, stop: asyncio.Event) -> None:
        """Join, and rejoin whenever the connection is lost. Raises JoinRefusedError if Kant refuses."""
        write_shims(self.shims, sys.executable)
        self.server.watch(asyncio.get_running_loop())
        self._find()
        api = await self._open_api()
        work = asyncio.create_task(self._stay())
        ending = asyncio.create_task(stop.wait())
        try:
            await asyncio.wait({work, ending}, return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                work.result()
        finally:
            for task in (work, ending, *self._aside):
                task.cancel()
            await asyncio.gather(work, ending, *self._aside, return_exceptions=True)
            api.close()
            for held in self.runs.values():
                if held.run is not None:
                    held.run.forget()
            self.server.close()

    def _find(self) -> None:
        """Find out the state of the previous agent's runs."""
        base = self.home / "runs"
        for path in sorted(base.rglob("spec.json")):
            folder = path.parent
            held = HeldRun(str(folder.relative_to(base)), folder, 0)
            self.runs[held.name] = held
            found = find(folder)
            if isinstance(found, SupervisedRun):
                spec = read_spec(folder)
                held.cores = spec.cores if spec is not None else ()
                held.milli = 1000 * len(held.cores)
                self._watch(held, found)
            else:
                held.exit = found or Exit(lost="the agent of its machine ended before the run began", unborn=True)

    async def _stay(self) -> None:
        wait, end = AGAIN_S[0], time.monotonic() + FIRST_S
        while True:
            try:
                await self._session()
                wait = AGAIN_S[0]
            except ssl.SSLError as error:
                raise InputError("--token-file", f"the output of `kant token join` there ({error.reason})") from None
            except LeftError:
                log_event(log, "this machine has left", address=self.options.host)
                return
            except (OSError, TimeoutError) as error:
                why = error.strerror if isinstance(error, socket.gaierror) else str(error)
                log_event(log, "no connection to Kant", address=self.options.host, error=why or "no answer")
                if not self._has_joined and time.monotonic() + wait > end:
                    address = f"{self.options.host}:{self.options.port}"
                    what = f"the address of `kant up --join-listen` within {FIRST_S:g} s ({why or 'no answer'})"
                    raise InputError("ADDRESS", what, address) from None
            await asyncio.sleep(wait)
            wait = min(2 * wait, AGAIN_S[1])

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        opening = asyncio.open_connection(self.options.host, self.options.port, ssl=self._tls)
        return await asyncio.wait_for(opening, CONNECT_S)

    async def _session(self) -> None:
        """Run one connection to Kant, from the hello to the end. Raises OSError or TimeoutError."""
        reader, writer = await self._connect()
        try:
            said = since_boot() / 1e6
            own = self.options
            hello = wire.Hello(
                wire.VERSION, self._id(), own.node, tuple(self.runs), own.visible, runtime(), self._has_joined,
                own.gpu_watts,
            )  # fmt: skip
            wire.say(writer, hello)
            welcome = await asyncio.wait_for(wire.receive(reader), CONNECT_S)
            if isinstance(welcome, wire.Refused):
                raise JoinRefusedError(welcome.why)
            if isinstance(welcome, wire.Left):
                raise LeftError
            if not isinstance(welcome, wire.Welcome):
                raise ConnectionError("an answer in another protocol")
            self.lease.begin(said + welcome.lease_s)
            for name, held in list(self.runs.items()):
                if name in welcome.kept:
                    held.output_sent, held.start_sent, held.end_sent = welcome.kept[name], False, False
                else:
                    await self._drop(held)
            self._tell_shared(writer, welcome)
            self._pings.clear()
            self.line, self._has_joined = writer, True
            self.on_join()
            self._some.set()
            tasks = [
                asyncio.create_task(each)
                for each in (self._receive(reader, welcome.lease_s), self._ping(welcome.lease_s), self._tell())
            ]
            try:
                done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
        finally:
            self.line = None
            writer.close()

    def _tell_shared(self, writer: asyncio.StreamWriter, welcome: wire.Welcome) -> None:
        path = Path(welcome.shared)
        try:
            is_shared = path.read_text(encoding="ascii") == welcome.nonce
        except (OSError, UnicodeDecodeError):
            is_shared = False
        if not is_shared:
            what = (
                f"{path.parent} is not shared with the machine of `kant up`: jobs here do not find files that lie there"
            )
            log_event(log, what, logging.WARNING)
        wire.say(writer, wire.Shared(is_shared))

    async def _receive(self, reader: asyncio.StreamReader, lease_s: float) -> None:
        """Execute Kant's messages, until none arrives for half a lease."""
        while True:
            message = await asyncio.wait_for(wire.receive(reader), lease_s / 2)
            match message:
                case wire.Pong(number) if number in self._pings:
                    if not self.lease.renew(self._pings.pop(number) + lease_s):
                        raise ConnectionError("the lease has expired")
                case wire.Begin():
                    self._begin(message)
                case wire.Stop(run) if (held := self.runs.get(run)) is not None and held.run is not None:
                    held.run.stop()
                case wire.Limit(run, seconds) if (held := self.runs.get(run)) is not None and held.run is not None:
                    with suppress(OSError):  # Kant sends the limit again over the next connection
                        held.run.limit(seconds)
                case wire.Signal(run, number, handled) if run in self.runs:
                    send(mark(self.runs[run].folder), number, handled)
                case wire.Forget(run) if (held := self.runs.get(run)) is not None:
                    await self._drop(held)
                case wire.Left():
                    raise LeftError
                case wire.Dial(run, number) if run in self.runs:
                    self._start(self._answer(self.runs[run].folder, number))
                case _:
                    pass

    async def _ping(self, lease_s: float) -> None:
        number = 0
        while True:
            number += 1
            self._pings[number] = since_boot() / 1e6
            assert self.line is not None
            wire.say(self.line, wire.Ping(number))
            await asyncio.sleep(lease_s / PINGS)

    async def _tell(self) -> None:
        """Send the output of runs, and how they end."""
        while True:
            for held in list(self.runs.values()):
                await self._tell_of(held)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._some.wait(), LOOK if self.runs else None)
            self._some.clear()

    async def _tell_of(self, held: HeldRun) -> None:
        assert self.line is not None
        ended = held.exit
        if not held.start_sent and held.run is not None and held.run.claim.pid:
            held.start_sent = True
            wire.say(self.line, wire.Begun(held.name))
        while (found := read_output(held.folder, held.output_sent, PIECE)).data:
            wire.say(self.line, wire.Written(held.name, found.offset, found.data))
            held.output_sent = found.offset + len(found.data)
            await self.line.drain()
        if ended is not None and not held.end_sent:
            held.end_sent = True
            wire.say(self.line, wire.Ended(held.name, ended))

    def _begin(self, order: wire.Begin) -> None:
        """Begin a run unless this machine already has it. Only the first process to create the run's claim runs it, so
        it begins at most once.
        """
        if order.run in self.runs:
            return
        folder = self.home / "runs" / order.run
        held = HeldRun(order.run, folder, order.milli)
        others = [(each.cores, each.milli) for each in self.runs.values() if each.cores]
        held.cores = share(self.options.cores, order.milli, others)
        self.runs[order.run] = held
        try:
            if not self.lease.holds:
                raise OSError(0, "the lease of its machine has expired")
            run = begin(folder, self._own(order, held), self.server)
        except OSError as error:
            held.exit = Exit(lost=error.strerror or str(error), unborn=True)
        else:
            self._watch(held, run)
        self._some.set()

    def _own(self, order: wire.Begin, held: HeldRun) -> Spec:
        """Return the spec of a run, completed for this machine."""
        spec, env = order.spec, order.spec.env | {MARK: str(held.folder), "KANT_HOME": str(self.home)}
        if held.cores:
            env = {"OMP_NUM_THREADS": str(len(held.cores))} | env
        if order.slurm:
            env |= {"PATH": f"{self.shims}:{env.get('PATH', os.defpath)}", "KANT_SHIMS": str(self.shims)}
        base = self.cgroups
        own = str(cgroups.of_run(base, held.folder)) if base is not None and spec.memory_mib else ""
        spec = msgspec.structs.replace(spec, env=env, cores=held.cores, cgroup=own, lease=str(self.lease.path))
        return contained(spec, order.image, order.mounts, order.gpus, order.slurm)

    def _watch(self, held: HeldRun, run: SupervisedRun) -> None:
        def over(run: SupervisedRun) -> None:
            held.exit, held.run, held.cores = run.exit(), None, ()
            self._some.set()

        held.run, run.over = run, over
        run.watch(asyncio.get_running_loop())

    async def _drop(self, held: HeldRun) -> None:
        """Stop and delete a run of which Kant has recorded the end, or which Kant no longer wants."""
        if held.run is not None:
            held.run.stop()  # `kill_marked` does not find a process that cleared its environment
        while held.run is not None:
            kill_marked(mark(held.folder))
            await asyncio.sleep(LOOK)
        self.runs.pop(held.name, None)
        shutil.rmtree(held.folder, ignore_errors=True)
        with suppress(OSError):
            for above in held.folder.relative_to(self.home / "runs").parents[:-1]:
                (self.home / "runs" / above).rmdir()

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._aside.add(task)
        task.add_done_callback(self._aside.discard)

    async def _answer(self, folder: Path, number: int) -> None:
        """Connect Kant's client `number` to the supervisor of the run in a folder."""
        with suppress(OSError, TimeoutError):
            inside = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                here = await asyncio.open_unix_connection(f"/proc/self/fd/{inside}/{TERMINAL}")
            finally:
                os.close(inside)
            await self._side(here, number)

    async def _side(self, here: wire.Streams, number: int = 0) -> None:
        """Open another connection to Kant, and relay bytes between it and a local connection."""
        try:
            there = await self._connect()
        except (OSError, TimeoutError):
            here[1].close()
            return
        wire.say(there[1], wire.Line(number))
        await wire.join(here, there)

    async def _open_api(self) -> asyncio.Server:
        """Serve Kant's API on a local socket that only its owner can open."""

        async def come(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with suppress(OSError):
                await self._side((reader, writer))

        path = self.home / API
        path.unlink(missing_ok=True)
        mask = os.umask(0o177)
        try:
            return await asyncio.start_unix_server(come, path)
        finally:
            os.umask(mask)


def serve(agent: Agent) -> int:
    """Run an agent until SIGTERM or SIGINT. Raises InputError."""

    async def until_signalled() -> None:
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        await agent.run(stop)

    mask = os.umask(0o077)  # the environment of a job may contain secrets
    try:
        asyncio.run(until_signalled())
    finally:
        os.umask(mask)
    return 0
