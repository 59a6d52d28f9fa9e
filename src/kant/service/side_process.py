"""A process beside the one that schedules: it is asked in bytes on its input, and answers on its output, one by one.

It works at low priority and with bounded memory, lives from the first question on, and ends when nobody has asked for a
while or with the one who asks. Each message comes after its length.
"""

from __future__ import annotations

import asyncio
import select
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable
from contextlib import suppress
from typing import BinaryIO

from kant.model.errors import InputError

LONGEST = 300.0
"""Seconds that one answer may take; the first one may have to compile."""

MOST_ANSWER = 256 << 20

IDLE = 300.0
"""Seconds without a question after which the process ends."""


class SideProcess:
    """One process that is asked one question after the other; `close` ends it. `name` is what people call it."""

    def __init__(self, process: tuple[str, ...], name: str, longest: float = LONGEST) -> None:
        self.process, self.name, self.longest = process, name, longest
        self._child: Process | None = None
        self._turn = asyncio.Lock()

    async def ask(self, question: bytes) -> bytes:
        """The answer. Raises InputError where the process cannot be started, is killed, or takes too long."""
        async with self._turn:
            try:
                async with asyncio.timeout(self.longest):
                    return await self._ask(question)
            except (TimeoutError, OSError, asyncio.IncompleteReadError) as error:
                await self.close()
                why = str(error) or f"no answer within {self.longest:g} s"
                raise InputError(self.name, f"a process that answers ({why})") from None
            except BaseException:
                await self.close()
                raise

    async def _ask(self, question: bytes) -> bytes:
        if self._child is None or self._child.returncode is not None:
            self._child = await asyncio.create_subprocess_exec(
                *self.process, stdin=PIPE, stdout=PIPE, start_new_session=True, limit=MOST_ANSWER
            )
        child = self._child
        assert child.stdin is not None and child.stdout is not None
        child.stdin.write(len(question).to_bytes(8, "big") + question)
        await child.stdin.drain()
        size = int.from_bytes(await child.stdout.readexactly(8), "big")
        return await child.stdout.readexactly(size)

    async def close(self) -> None:
        """End the process."""
        child, self._child = self._child, None
        if child is not None:
            with suppress(ProcessLookupError):
                child.kill()
            await child.wait()


def answer_all(answer: Callable[[bytes], bytes]) -> int:
    """Be such a process: answer until the input ends, or nobody asks."""
    from kant.service.low_priority import lower_priority  # who asks keeps its own

    lower_priority()
    while (question := _read(sys.stdin.buffer)) is not None:
        said = answer(question)
        sys.stdout.buffer.write(len(said).to_bytes(8, "big") + said)
        sys.stdout.buffer.flush()
    return 0


def _read(file: BinaryIO) -> bytes | None:
    if not select.select([file], [], [], IDLE)[0]:
        return None
    size = file.read(8)
    return file.read(int.from_bytes(size, "big")) if len(size) == 8 else None
