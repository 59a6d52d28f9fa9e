"""A front end of `kant up --front-ends N`: starts short jobs in its own slots, and passes other jobs on to Kant.

`python -m kant.service.front_end HOME SOCKET`: SOCKET is the descriptor of a listening socket, which all front ends
share. Each line of standard input lists the free slots of this front end; when the input ends, the process ends. On
standard output it reports which slots it filled. Every job that it has confirmed is on disk: in the folder of a run, or
in Kant's store.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import socket
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import aiohttp
import msgspec
from aiohttp import web
from msgspec import Raw

from kant.local.slots import give, slot_for
from kant.local.submission import checked
from kant.model.errors import InputError
from kant.model.submission import Submission
from kant.service.client import SOCKET
from kant.service.loads import LOADS, LONGEST_WAIT_S, NodeLoad, OfferedSlot, Report, read_loads, short_fault, wait_s
from kant.service.received import received, refusal
from kant.service.replies import answer, failure
from kant.service.store import digest_of

MOST, BATCHES = 500, 4
"""Maximum number of jobs in one batch, and maximum number of batches in flight."""
REPORT_S = 0.02
"""Minimum number of seconds between two reports."""
MOST_WAITING = 10_000
"""Maximum number of jobs that wait in a front end for Kant's answer."""
BACKLOG = 1024
MOST_BODY, MOST_BYTES = 1 << 20, 4 << 20
"""Maximum size of a job in bytes, and the size of a batch in bytes from which on no further job is added."""
ELSEWHERE, UNKNOWN = 421, 502
"""HTTP statuses: the job is not short, so it must be sent to Kant's own socket; the submission's outcome is unknown."""

JSON = {"Content-Type": "application/json"}

Waiting = tuple[bytes, "asyncio.Future[web.Response]"]


class FrontEnd:
    """Accepts submissions, and passes them on in batches: further submissions collect while a batch is in flight."""

    def __init__(self, home: Path, draw: random.Random) -> None:
        self.home, self.draw = home, draw
        self.waiting: list[Waiting] = []
        self.some = asyncio.Event()
        self.nodes: list[NodeLoad] = []
        self.slots: dict[bytes, list[OfferedSlot]] = {}
        self.news = asyncio.Event()
        self._written = 0
        self._used: set[str] = set()
        self._filled: list[str] = []
        self._arrivals: Counter[bytes] = Counter()

    def application(self) -> web.Application:
        """Return the web application."""
        app = web.Application(client_max_size=MOST_BODY)
        app.add_routes([web.post("/v1/jobs", self.submit)])
        return app

    async def submit(self, request: web.Request) -> web.Response:
        """Queue a short job, as POST /v1/jobs of Kant does."""
        try:
            body = await request.read()
            job = received(body, Submission)
        except msgspec.ValidationError as error:
            return failure(refusal(error), 400)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            return failure(f"the request: expected JSON ({error})", 400)
        fault = short_fault(job)
        if fault:
            return failure(f"a front end: expected a short job, with {fault}; send others to {SOCKET}", ELSEWHERE)
        try:
            if (job_id := await self._start(job)) is not None:
                return answer({"jobs": [job_id]}, 201)
        except InputError as error:
            return failure(str(error), 400)
        if len(self.waiting) >= MOST_WAITING:
            return failure(f"a front end: expected at most {MOST_WAITING:,} jobs: try again", 503, Retry_After="1")
        waits = self.expected_wait(job)
        if waits > LONGEST_WAIT_S:
            what = f"a wait of at most {LONGEST_WAIT_S:g} s, got about {waits:.0f} s; {SOCKET} accepts the job anyway"
            return failure(f"a front end: expected {what}", 503, Retry_After=str(int(waits - LONGEST_WAIT_S) + 1))
        said: asyncio.Future[web.Response] = asyncio.get_running_loop().create_future()
        self.waiting.append((body, said))
        self.some.set()
        return await said

    async def _start(self, job: Submission) -> str | None:
        """Start a job in a free slot of its kind and return the job's id; None without a slot. Raises InputError."""
        slot = slot_for(job)
        if slot is None:
            return None
        kind = msgspec.json.encode(slot)
        self._arrivals[kind] += 1
        self.news.set()
        slots = self.slots.get(kind)
        if slots:
            checked(job, ())
        while slots:
            found = slots.pop()
            self._used.add(found.job)
            with suppress(OSError):  # the disk may be full
                if await asyncio.to_thread(give, Path(found.folder), job, digest_of(msgspec.json.encode(job))):
                    self._filled.append(found.job)
                    self.news.set()
                    return found.job
        return None

    def take(self, line: bytes) -> None:
        """Replace the list of free slots by the list in a `line` from Kant."""
        slots = msgspec.json.decode(line, type=tuple[OfferedSlot, ...])
        self._used &= {slot.job for slot in slots}
        self.slots = {}
        for slot in slots:
            if slot.job not in self._used:  # Kant does not yet know that the slot is used
                self.slots.setdefault(msgspec.json.encode(slot.asks), []).append(slot)

    async def report(self, send: Callable[[bytes], None]) -> None:
        """Report which jobs have arrived, and which slots have been filled."""
        while True:
            await self.news.wait()
            self.news.clear()
            arrivals = tuple(
                (msgspec.json.decode(kind, type=Submission), count) for kind, count in self._arrivals.items()
            )
            said = Report(tuple(self._filled), arrivals)
            self._arrivals, self._filled = Counter(), []
            send(msgspec.json.encode(said) + b"\n")
            await asyncio.sleep(REPORT_S)

    def expected_wait(self, job: Submission) -> float:
        """Return the expected wait of the job in seconds, on the less loaded of two random nodes."""
        with suppress(OSError, msgspec.DecodeError):
            written = (self.home / LOADS).stat().st_mtime_ns
            if written != self._written:
                self.nodes, self._written = read_loads(self.home), written
        if not self.nodes:
            return 0.0
        first, second = (self.draw.randrange(len(self.nodes)) for _ in range(2))
        return wait_s(self.nodes, job, first, second)

    async def run(self) -> None:
        """Pass the collected jobs on to Kant in batches, up to `BATCHES` in flight."""
        connector = aiohttp.UnixConnector(str(self.home / SOCKET))
        async with (
            aiohttp.ClientSession(connector=connector, headers=JSON, timeout=aiohttp.ClientTimeout(None)) as kant,
            asyncio.TaskGroup() as group,
        ):
            room = asyncio.Semaphore(BATCHES)
            while True:
                await room.acquire()
                await self.some.wait()
                batch, size = list[Waiting](), 0
                while len(batch) < min(MOST, len(self.waiting)) and size < MOST_BYTES:
                    size += len(self.waiting[len(batch)][0])
                    batch.append(self.waiting[len(batch)])
                del self.waiting[: len(batch)]
                if not self.waiting:
                    self.some.clear()
                group.create_task(self._carry(kant, batch)).add_done_callback(lambda _: room.release())

    async def _carry(self, kant: aiohttp.ClientSession, batch: list[Waiting]) -> None:
        while batch:
            batch = await self._hand_over(kant, batch)

    async def _hand_over(self, kant: aiohttp.ClientSession, batch: list[Waiting]) -> list[Waiting]:
        """Send a batch and answer its requests. Returns the jobs to send again, without the one that Kant rejected."""
        lines = [{"line": place, "job": Raw(body)} for place, (body, _) in enumerate(batch)]
        try:
            reply = await kant.post("http://kant/v1/batches", data=msgspec.json.encode({"lines": lines}))
            text = await reply.read()
        except aiohttp.ClientError:
            sentence = "a front end: expected an answer of Kant; check whether the job exists before you send it again"
            _answer(batch, lambda place: failure(sentence, UNKNOWN))
            return []
        if reply.status == 201:
            jobs = msgspec.json.decode(text)["jobs"]
            _answer(batch, lambda place: answer({"jobs": [jobs[place]]}, 201))
            return []
        sentence = msgspec.json.decode(text)["error"]
        place, comma, rest = sentence.removeprefix("line ").partition(", ")
        if sentence.startswith("line ") and comma and place.isdecimal():
            _answer([batch[int(place)]], lambda _: failure(rest, reply.status))
            return batch[: int(place)] + batch[int(place) + 1 :]
        if len(batch) > 1:  # the error is about one job of the batch, but does not say which
            return [*await self._hand_over(kant, batch[:1]), *batch[1:]]
        _answer(batch, lambda place: failure(sentence, reply.status))
        return []


def _answer(batch: list[Waiting], say: Callable[[int], web.Response]) -> None:
    for place, (_, said) in enumerate(batch):
        if not said.done():  # the caller may have disconnected
            said.set_result(say(place))


async def serve(home: Path, own: socket.socket) -> None:
    """Serve until the standard input ends."""
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    front = FrontEnd(home, random.Random(os.getpid()))
    slots = asyncio.StreamReader(MOST_BYTES)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(slots), sys.stdin)
    reports, _ = await loop.connect_write_pipe(asyncio.Protocol, sys.stdout)

    async def follow() -> None:
        while line := await slots.readline():
            front.take(line)
        stop.set()

    runner = web.AppRunner(front.application(), access_log=None, shutdown_timeout=1)
    await runner.setup()
    own.setblocking(False)
    await web.SockSite(runner, own, backlog=BACKLOG).start()
    work = [asyncio.create_task(each) for each in (front.run(), follow(), front.report(reports.write))]
    ended = asyncio.create_task(stop.wait())
    await asyncio.wait({*work, ended}, return_when=asyncio.FIRST_COMPLETED)
    for each in work:
        if each.done():
            each.result()
        each.cancel()
    await runner.cleanup()


if __name__ == "__main__":
    os.umask(0o077)
    asyncio.run(serve(Path(sys.argv[1]), socket.socket(fileno=int(sys.argv[2]))))
