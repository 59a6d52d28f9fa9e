"""A child process that answers one question at a time: bytes on its input, bytes on its output.

It runs at low priority and with bounded memory. It starts with the first question, and ends with its parent or after
some time without questions. A message is preceded by its length.
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
"""Timeout of one answer in seconds; the time of the first answer may include compilation."""

MOST_ANSWER = 256 << 20

IDLE = 300.0
"""Seconds without a question after which the process ends."""


class SideProcess:
    """One process that answers one question at a time; `close` ends it. `name` is its name in error messages."""

    def __init__(self, process: tuple[str, ...], name: str, longest: float = LONGEST) -> None:
        self.process, self.name, self.longest = process, name, longest
        self._child: Process | None = None
        self._turn = asyncio.Lock()

    async def ask(self, question: bytes) -> bytes:
        """Return the answer to a question. Raises InputError if the process cannot start, is killed or takes too
        long."""
        async with self._turn:
            try:
                async with asyncio.timeout(self.longest):
                    return await self._ask(question)
            except (TimeoutError, OSError, asyncio.IncompleteReadError) as error:
                await self.close()
                why = str(error) or f"no answer within {self.longest:g} s"
                raise InputError(self.name, f"an answer from its process ({why})") from None
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
        child.stdin.write(len(question).to_bytes(8, "big"))
        child.stdin.write(question)
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


def answer_all(answer: Callable[[bytes], bytes], idle: float | None = IDLE) -> int:
    """Be the child process: answer until the input ends or no question comes for `idle` seconds (None: no limit)."""
    from kant.service.low_priority import lower_priority  # the parent keeps its own priority

    lower_priority()
    while (question := _read(sys.stdin.buffer, idle)) is not None:
        said = answer(question)
        sys.stdout.buffer.write(len(said).to_bytes(8, "big") + said)
        sys.stdout.buffer.flush()
    return 0


def _read(file: BinaryIO, idle: float | None) -> bytes | None:
    if not select.select([file], [], [], idle)[0]:
        return None
    size = file.read(8)
    return file.read(int.from_bytes(size, "big")) if len(size) == 8 else None
