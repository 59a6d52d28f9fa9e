"""Forecasts of starts by a process of their own, so that no decision waits for one.

The process works at low priority and with bounded memory, lives from the first question on, and ends when nobody has
asked for a while or with the one who asks. It is sent a moment (`insight/moment.py`), and answers with a forecast.
"""

from __future__ import annotations

import asyncio
import pickle
import sys
from asyncio.subprocess import PIPE, Process
from contextlib import suppress

import msgspec

from kant.insight.expected_start import StartForecast
from kant.insight.moment import Moment
from kant.model.errors import InputError

PROCESS = (sys.executable, "-m", "kant.service.forecast_process")

LONGEST = 300.0
"""Seconds that one forecast may take; the first one may have to compile."""

MOST_ANSWER = 256 << 20


class ForecastProcess:
    """A process that makes one forecast after the other. Call it with a moment; `close` ends it."""

    def __init__(self, process: tuple[str, ...] = PROCESS, longest: float = LONGEST) -> None:
        self.process, self.longest = process, longest
        self._child: Process | None = None
        self._turn = asyncio.Lock()

    async def __call__(self, moment: Moment) -> StartForecast:
        """The forecast of this moment. Raises InputError where the process cannot answer."""
        async with self._turn:
            try:
                async with asyncio.timeout(self.longest):
                    return await self._ask(pickle.dumps(moment, pickle.HIGHEST_PROTOCOL))
            except (TimeoutError, OSError, asyncio.IncompleteReadError, msgspec.DecodeError) as error:
                await self.close()
                why = str(error) or f"no answer within {self.longest:g} s"
                raise InputError("the forecaster", f"a process that answers ({why})") from None
            except BaseException:
                await self.close()
                raise

    async def _ask(self, moment: bytes) -> StartForecast:
        if self._child is None or self._child.returncode is not None:
            self._child = await asyncio.create_subprocess_exec(
                *self.process, stdin=PIPE, stdout=PIPE, start_new_session=True, limit=MOST_ANSWER
            )
        child = self._child
        assert child.stdin is not None and child.stdout is not None
        child.stdin.write(len(moment).to_bytes(8, "big") + moment)
        await child.stdin.drain()
        size = int.from_bytes(await child.stdout.readexactly(8), "big")
        return msgspec.json.decode(await child.stdout.readexactly(size), type=StartForecast)

    async def close(self) -> None:
        """End the process."""
        child, self._child = self._child, None
        if child is not None:
            with suppress(ProcessLookupError):
                child.kill()
            await child.wait()
