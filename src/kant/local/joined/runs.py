"""Runs on joined machines: their parts, and the local copy of each remote part.

The folder of a remote part also exists on Kant's machine, as if the part ran there: its output, its end, and a socket
that leads to its supervisor. So code that reads these folders need not know where a run is.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import msgspec

from kant.local.joined import wire
from kant.local.output import parts
from kant.local.runs import Exit, read_exit, write_spec
from kant.local.supervisor import Log
from kant.local.terminals import SOCKET

if TYPE_CHECKING:
    from kant.local.joined.machines import Machine

BEGUN = "begun"
"""The name of a file that exists once the machine has confirmed that the run has a supervisor."""


class RunPart(Protocol):
    """The part of a run on one machine."""

    folder: Path

    def watch(self, loop: asyncio.AbstractEventLoop) -> None: ...
    def forget(self) -> None: ...
    def stop(self) -> None: ...
    def limit(self, seconds: float | None) -> None: ...
    def exit(self) -> Exit: ...


class OutputCopy(Log):
    """The local copy of a remote run's output; it continues the output that the folder already has."""

    def __init__(self, folder: Path, cap: int) -> None:
        super().__init__(str(folder), cap)
        known = parts(folder)
        self.names = [str(path) for _, path in known]
        self.offset = max((begin + path.stat().st_size for begin, path in known), default=0)

    def put(self, offset: int, data: bytes) -> None:
        """Add output from `offset` on; bytes that the copy already has are skipped."""
        fresh = data[max(self.offset - offset, 0) :]
        if offset > self.offset:  # the machine no longer stores the bytes between
            self.offset, self.left = offset, 0
        if fresh:
            self.write(fresh)


class EndedPart:
    """A local part whose end is known."""

    def __init__(self, folder: Path, exit: Exit) -> None:
        self.folder, self._exit = folder, exit
        self.over: Callable[[EndedPart], None] = lambda part: None

    def watch(self, loop: asyncio.AbstractEventLoop) -> None:
        loop.call_soon(self.over, self)

    def forget(self) -> None: ...
    def stop(self) -> None: ...
    def limit(self, seconds: float | None) -> None: ...

    def exit(self) -> Exit:
        return self._exit


class RemotePart:
    """A run, or a part of a run, on a joined machine. It is requested again until the machine confirms it. On the
    machine, only the first process to create its claim runs it, so it begins at most once."""

    def __init__(self, folder: Path, name: str, machine: Machine, order: wire.Begin) -> None:
        self.folder, self.name, self.machine, self.order = folder, name, machine, order
        self.over: Callable[[RemotePart], None] = lambda part: None
        self.on_begun: Callable[[], None] = lambda: None
        self.is_stopped = False
        self._exit = read_exit(folder)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._mirror: OutputCopy | None = None
        self._listener: asyncio.Server | None = None

    @property
    def has_begun(self) -> bool:
        """Whether the machine has confirmed the start."""
        return (self.folder / BEGUN).exists()

    @property
    def log(self) -> OutputCopy:
        """The local copy of the part's output so far. Raises OSError."""
        if self._mirror is None:
            self._mirror = OutputCopy(self.folder, self.order.spec.log_bytes)
        return self._mirror

    def begin(self) -> None:
        """Request the run from its machine. If this raises OSError, the run is not requested."""
        self.folder.mkdir(parents=True, mode=0o700, exist_ok=True)
        write_spec(self.folder, self.order.spec)
        if self._exit is None:
            self.machine.take(self)

    def watch(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        if self._exit is not None:
            loop.call_soon(self.over, self)
        elif self.has_begun:
            loop.create_task(self._open())

    def begun(self) -> None:
        """Record that the machine has confirmed the run's supervisor. Raises OSError."""
        if self.has_begun:
            return
        (self.folder / BEGUN).touch(0o600)
        if self._loop is not None:
            self._loop.create_task(self._open())
        self.on_begun()

    async def _open(self) -> None:
        """Open a local socket that leads to the supervisor."""
        path = self.folder / SOCKET
        path.unlink(missing_ok=True)
        inside = os.open(self.folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:  # the path itself may be too long for a socket
            listener = await asyncio.start_unix_server(self._speak, f"/proc/self/fd/{inside}/{SOCKET}")
        except OSError:
            return
        finally:
            os.close(inside)
        if self._exit is not None or self._loop is None:
            listener.close()
        self._listener = listener

    async def _speak(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            other = await self.machine.dial(self.name)
        except (OSError, TimeoutError):
            writer.close()
            return
        await wire.join((reader, writer), other)

    def ended(self, exit: Exit) -> None:
        """Record how the run ended, or why this is unknown. Raises OSError."""
        if self._exit is not None:
            return
        self.folder.mkdir(parents=True, mode=0o700, exist_ok=True)
        new = self.folder / "exit.new"
        new.write_bytes(msgspec.json.encode(exit))
        new.replace(self.folder / "exit")
        self._exit = exit
        loop = self._loop
        self.forget()
        if loop is not None:
            loop.call_soon(self.over, self)

    def stop(self) -> None:
        self.is_stopped = True
        self.machine.tell(wire.Stop(self.name))

    def limit(self, seconds: float | None) -> None:
        """Set the time limit, counted from the start. Raises OSError, and then nothing has changed."""
        if seconds != self.order.spec.limit_s:
            spec = msgspec.structs.replace(self.order.spec, limit_s=seconds)
            write_spec(self.folder, spec)
            self.order = msgspec.structs.replace(self.order, spec=spec)
            self.machine.tell(wire.Limit(self.name, seconds))

    def forget(self) -> None:
        self._loop = None
        self.machine.runs.pop(self.name, None)
        if self._listener is not None:
            self._listener.close()
            (self.folder / SOCKET).unlink(missing_ok=True)

    def exit(self) -> Exit:
        assert self._exit is not None
        return self._exit


class JoinedRun:
    """A run with a part on another machine. The first part runs the command; the other parts reserve resources for its
    tasks.

    The command begins once all other parts have begun. The end of one part ends all parts, and then the run.
    """

    def __init__(self, first: Callable[[], RunPart], others: Sequence[RunPart], names: Sequence[str]) -> None:
        self._begin_first, self.others, self.names = first, list(others), list(names)
        self.first: RunPart | None = None
        self.over: Callable[[JoinedRun], None] = lambda run: None
        self.is_stopped = False
        self._exit: Exit | None = None
        self._left: set[RunPart] = set(others)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._limit: tuple[float | None] | None = None

    @property
    def parts(self) -> list[RunPart]:
        return [*([self.first] if self.first is not None else []), *self.others]

    def watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Call `over` from the loop when all parts have ended."""
        self._loop = loop
        for part in self.others:
            self._follow(part)
        self._go_on()

    def _follow(self, part: RunPart) -> None:
        assert self._loop is not None
        part.over = self._ended  # type: ignore[attr-defined]
        if isinstance(part, RemotePart):
            part.on_begun = self._go_on
        part.watch(self._loop)

    def _go_on(self) -> None:
        """Begin the command once all other parts have begun."""
        if self.first is not None or self.is_stopped or self._loop is None:
            return
        if all(part.has_begun for part in self.others if isinstance(part, RemotePart)):
            try:
                self.first = self._begin_first()
            except OSError as error:
                self._end(Exit(lost=error.strerror or str(error), unborn=True))
                return
            self._left.add(self.first)
            if self._limit is not None:
                self.first.limit(*self._limit)
            self._follow(self.first)

    def _ended(self, part: RunPart) -> None:
        exit = part.exit()
        self._left.discard(part)
        if part is not self.first and not (exit.lost or exit.unborn):
            name = self.names[self.others.index(part) + 1]
            exit = msgspec.structs.replace(exit, code=None, signal=exit.signal or 9, lost=f"its part on {name} ended")
        self._end(exit)

    def _end(self, exit: Exit) -> None:
        """End the run with this result and stop the other parts, unless the run is already ending."""
        if self._exit is None:
            if self.is_stopped and self.first is None:
                exit = Exit(signal=15, why="stopped")
            self._exit, self.is_stopped = exit, True
            for part in self._left:
                part.stop()
        if not self._left:
            self.over(self)

    def stop(self) -> None:
        self.is_stopped = True
        if self.first is not None:
            self.first.stop()
        else:
            for part in self.others:
                part.stop()
            if not self.others and self._loop is not None:
                self._loop.call_soon(self._end, Exit(signal=15, why="stopped"))

    def limit(self, seconds: float | None) -> None:
        """Set the time limit of all parts, counted from their start. Raises OSError."""
        self._limit = (seconds,)
        for part in self.parts:
            part.limit(seconds)

    def forget(self) -> None:
        """Stop watching; the run continues."""
        self._loop = None
        for part in self.parts:
            part.forget()

    def exit(self) -> Exit:
        assert self._exit is not None
        return self._exit
