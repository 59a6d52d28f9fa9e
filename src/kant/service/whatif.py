"""`POST /v1/whatif`: simulates two futures of the running Kant in a separate process.

The process reads the journal, which has everything that the scheduler knew at its last cycle, so the scheduler does not
wait. The process has low priority, bounded time and bounded memory, and is killed when the caller disconnects.
"""

from __future__ import annotations

import asyncio
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

import msgspec
from msgspec import Struct

from kant.model.errors import InputError, SentenceError
from kant.sim.question import Question

AT_ONCE = 2
"""Maximum number of simultaneous simulations."""

LONGEST = 60.0
"""Timeout of one answer in seconds."""

LOOK = 0.2
"""Seconds between two checks whether the caller still waits."""

MOST_ANSWER = 64 << 20
PROCESS = (sys.executable, "-m", "kant.service.whatif_process")


class WhatIfInput(Struct, frozen=True):
    """The input of the process: the journal, the present (microseconds since the Unix epoch), and the question."""

    journal: str
    now_us: int
    question: msgspec.Raw


class WhatIfRequest(Protocol):
    """A question about a journal."""

    def check(self) -> None:
        """Raise InputError if the question is invalid."""


class WhatIfBusyError(InputError):
    """Too many what-ifs are being simulated."""


class TooLongError(InputError):
    """The simulation took too long."""


class WhatIfDesk:
    """Answers what-if questions, at most `at_once` at a time. With another `form`, it answers questions of that type,
    by another `process`.
    """

    def __init__(
        self,
        at_once: int = AT_ONCE,
        longest: float = LONGEST,
        process: tuple[str, ...] = PROCESS,
        form: type[WhatIfRequest] = Question,
    ) -> None:
        self.at_once, self.longest, self.process, self.form = at_once, longest, process, form
        self.working = 0

    async def ask(self, journal: str, now_us: int, question: WhatIfRequest, gone: Callable[[], bool]) -> bytes:
        """Return the answer as JSON; b"" if `gone` says that the caller no longer waits.

        Raises InputError for an invalid question, WhatIfBusyError and TooLongError.
        """
        question.check()
        if not journal:
            raise InputError("the journal", "a disk that can be written, since a what-if needs the journal")
        if self.working >= self.at_once:
            raise WhatIfBusyError("whatif", f"at most {self.at_once} questions at once; try again in a moment")
        self.working += 1
        try:
            task = WhatIfInput(journal, now_us, msgspec.Raw(msgspec.json.encode(question)))
            return await self._answer(msgspec.json.encode(task), gone)
        finally:
            self.working -= 1

    async def reply(self, journal: str, now_us: int, asked: bytes, gone: Callable[[], bool]) -> tuple[int, bytes]:
        """Answer a question for an HTTP server: return the status code, and the answer or an error as JSON."""
        try:
            return 200, await self.ask(journal, now_us, msgspec.json.decode(asked, type=self.form), gone)
        except (WhatIfBusyError, TooLongError) as error:
            code, sentence = 503 if isinstance(error, WhatIfBusyError) else 504, str(error)
        except InputError as error:
            code, sentence = 400, str(error)
        except msgspec.ValidationError as error:
            code, sentence = 400, f"the request: expected a valid body ({error})"
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            code, sentence = 400, f"the request: expected JSON ({error})"
        return code, msgspec.json.encode({"error": sentence})

    async def _answer(self, task: bytes, gone: Callable[[], bool]) -> bytes:
        child = await asyncio.create_subprocess_exec(
            *self.process, stdin=PIPE, stdout=PIPE, start_new_session=True, limit=MOST_ANSWER
        )
        talk = asyncio.create_task(child.communicate(task))
        loop = asyncio.get_running_loop()
        end = loop.time() + self.longest
        try:
            while not talk.done():
                await asyncio.wait({talk}, timeout=LOOK)
                if gone():
                    return b""
                if not talk.done() and loop.time() > end:
                    raise TooLongError("whatif", f"a simulation of at most {self.longest:g} s; set an earlier `until`")
            answer, _ = talk.result()
        finally:
            await _ended(child, talk)
        if child.returncode == 0:
            return answer
        raise error_in(answer)


async def _ended(child: Process, talk: asyncio.Task[Any]) -> None:
    if child.returncode is None:
        with suppress(ProcessLookupError):
            child.kill()
    with suppress(Exception):
        await asyncio.shield(talk)


def error_in(answer: bytes) -> InputError:
    """Return the error that the process reported instead of an answer."""
    try:
        sentence = str(msgspec.json.decode(answer)["error"])
    except (msgspec.DecodeError, KeyError, TypeError):
        sentence = "whatif: expected a simulation that fits in memory; set an earlier `until`"
    return SentenceError(sentence)
