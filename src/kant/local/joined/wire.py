"""The protocol between Kant and a joined machine: messages in MessagePack, each preceded by its length."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TypeAlias

import msgspec
from msgspec import Struct

from kant.local.runs import Exit, Spec
from kant.model.node import Node

VERSION = 2
MOST = 1 << 26  # bytes of a message
PIECE = 1 << 16


class Hello(Struct, tag=True, frozen=True):
    """A machine joins, or joins again: `id` distinguishes it from another machine of the same name; `runs` are its
    runs, including ended runs. `visible` has the CUDA names of its devices, if their indices do not suffice;
    `runtime` is its container runtime ("": none).
    """

    version: int
    id: str
    node: Node
    runs: tuple[str, ...]
    visible: tuple[str, ...] = ()
    runtime: str = ""
    again: bool = False
    """Whether this agent was connected before, so that it rejoins on its own and not at a user's request."""
    gpu_watts: int = 0
    """The maximum power of each of its GPUs in watts; 0: unknown."""


class Welcome(Struct, tag=True, frozen=True):
    """The machine has joined. `kept`: the runs that are still wanted, with the number of output bytes received; all
    others must end. The lease lasts `lease_s` seconds from the hello. The file `shared` contains `nonce`.
    """

    lease_s: float
    kept: dict[str, int]
    shared: str
    nonce: str


class Refused(Struct, tag=True, frozen=True):
    """The machine may not join, with the reason."""

    why: str


class Left(Struct, tag=True, frozen=True):
    """The machine has left as requested: nothing runs on it, and no run will begin."""


class Shared(Struct, tag=True, frozen=True):
    """Whether the machine has found the file with the nonce."""

    is_shared: bool


class Ping(Struct, tag=True, frozen=True):
    """The machine asks to extend its lease."""

    number: int


class Pong(Struct, tag=True, frozen=True):
    """Extends the lease, counted from the ping of this number."""

    number: int


class Begin(Struct, tag=True, frozen=True):
    """An order to begin a run, once. `milli` is its number of milli-cores; `slurm`: it needs Slurm's commands; `gpus`:
    it uses GPUs. If `image` is not empty, it runs in this container image, with these folders as `mounts`.
    """

    run: str
    spec: Spec
    milli: int = 0
    slurm: bool = False
    image: str = ""
    mounts: tuple[str, ...] = ()
    gpus: bool = False


class Begun(Struct, tag=True, frozen=True):
    """A run has a supervisor."""

    run: str


class Stop(Struct, tag=True, frozen=True):
    """End a run."""

    run: str


class Limit(Struct, tag=True, frozen=True):
    """Set the time limit of a run, counted from its start."""

    run: str
    seconds: float | None


class Signal(Struct, tag=True, frozen=True):
    """A signal for all processes of a run, or for those that handle it."""

    run: str
    number: int
    handled: bool


class Written(Struct, tag=True, frozen=True):
    """Output of a run from `offset` on."""

    run: str
    offset: int
    data: bytes


class Ended(Struct, tag=True, frozen=True):
    """A run has ended, and all of its output was sent."""

    run: str
    exit: Exit


class Forget(Struct, tag=True, frozen=True):
    """Kant has stored the end of a run: the machine may delete it."""

    run: str


class Dial(Struct, tag=True, frozen=True):
    """A client wants to reach the supervisor of a run: the machine opens another connection with this number."""

    run: str
    number: int


class Line(Struct, tag=True, frozen=True):
    """The first message of another connection. The bytes after it are for the client `number` (0: for the API)."""

    number: int = 0


Streams: TypeAlias = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Message: TypeAlias = (
    Hello | Welcome | Refused | Left | Shared | Ping | Pong | Begin | Begun | Stop | Limit | Signal | Written | Ended
    | Forget | Dial | Line
)  # fmt: skip
_decoder = msgspec.msgpack.Decoder(Message)


def say(writer: asyncio.StreamWriter, message: Message) -> None:
    """Send a message."""
    packed = msgspec.msgpack.encode(message)
    writer.write(len(packed).to_bytes(4, "big") + packed)


async def receive(reader: asyncio.StreamReader) -> Message:
    """Return the next message. Raises ConnectionError at the end, or for an invalid message."""
    try:
        length = int.from_bytes(await reader.readexactly(4), "big")
        if length > MOST:
            raise ConnectionError("a message is too long")
        return _decoder.decode(await reader.readexactly(length))  # type: ignore[no-any-return]
    except (asyncio.IncompleteReadError, msgspec.MsgspecError) as error:
        raise ConnectionError(str(error)) from None


async def join(one: Streams, other: Streams) -> None:
    """Relay bytes in both directions until both ends are closed."""

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(PIECE):
                writer.write(data)
                await writer.drain()
        with suppress(OSError, RuntimeError, NotImplementedError):
            if writer.can_write_eof():
                writer.write_eof()
            else:
                writer.close()  # TLS signals the end by closing

    try:
        await asyncio.gather(pass_on(one[0], other[1]), pass_on(other[0], one[1]))
    finally:
        for _, writer in (one, other):
            writer.close()
