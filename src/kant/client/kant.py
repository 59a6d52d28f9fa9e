"""A Kant and its jobs as objects, for programs and notebooks, synchronous or asynchronous."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from kant.model.errors import InputError
from kant.model.submission import Submission
from kant.service.client import ServiceClient, home_of
from kant.service.route import AtOnce, Awaited, Request
from kant.service.routes import Routes
from kant.service.shown import fields_html, table_html
from kant.service.views import JobDetail, JobOutcome, JobRow, Usage, Why

AT_A_TIME = 30  # seconds for which one request waits for the end of a job
PAGE = 1000


class Api(Routes, AtOnce):
    """Every route of the service as a method. Each raises `InputError` with the message of a refusal."""


class AsyncApi(Routes, Awaited):
    """Every route of the service as an async method. Each raises `InputError` with the message of a refusal."""


class Jobs(list[JobRow]):
    """Jobs, the latest first; a table in a notebook."""

    def _repr_html_(self) -> str:
        return table_html(self)


class _Asked:
    """A connection to a Kant: over its socket, or to an address with a token."""

    def __init__(self, home: str | Path | None, url: str | None, token: str | None) -> None:
        where = Path(home) if home is not None else None
        self.client = ServiceClient(home_of(where), here=home is not None and url is None)
        if url is not None:
            self.client.url = url
        self.client.token = token or ""

    def ask(self, request: Request) -> Any:
        """Send a request and return the response as an object of the expected type. Raises InputError."""
        query = request.query.items()
        given = {name: str(value).lower() if isinstance(value, bool) else value for name, value in query}
        sent = msgspec.to_builtins(request.body) if request.body is not None else None
        text = b"".join(self.client.parts(request.method, request.path, given, sent))
        if request.gives is bytes:
            return text
        if request.gives is str:
            return text.decode()
        try:
            return msgspec.json.decode(text, type=request.gives)
        except msgspec.MsgspecError as error:
            raise InputError(request.path, f"an answer that this version of the client can read ({error})") from None

    def events(self) -> Iterator[JobRow]:
        """Yield jobs as they change, from now on, until Kant stops."""
        return self._changes(self.client.parts("GET", "/v1/events", {}, None))  # the request is sent now

    def _changes(self, parts: Iterator[bytes]) -> Iterator[JobRow]:
        left = b""
        for part in parts:
            *events, left = (left + part).split(b"\n\n")
            for event in events:
                lines = dict(line.split(b": ", 1) for line in event.split(b"\n") if b": " in line and line[:1] != b":")
                if lines.get(b"event") == b"job":
                    yield msgspec.json.decode(lines[b"data"], type=JobRow)


def submission(command: str | Sequence[str], fields: Mapping[str, Any]) -> Submission:
    """Build a submission: a program with its arguments, or a shell command, in the current environment and folder."""
    words = ["sh", "-c", command] if isinstance(command, str) else [str(word) for word in command]
    given: dict[str, Any] = {"workdir": str(Path.cwd()), "name": Path(words[0]).name, **fields}
    env = {name: value for name, value in os.environ.items() if not name.startswith(("KANT_RUN", "KANT_ARRAY"))}
    given["env"] = env | dict(fields.get("env", {}))
    try:
        return msgspec.convert({"command": words, **given}, Submission)
    except msgspec.ValidationError as error:
        raise InputError("submission", f"the fields of `Submission` ({error})") from None


class Job:
    """A job of a Kant. Each call asks Kant for its current state."""

    def __init__(self, kant: Kant, id: str) -> None:
        self.kant = kant
        self.id = id

    def __repr__(self) -> str:
        return f"Job({self.id!r})"

    def _repr_html_(self) -> str:
        found = self.detail()
        return fields_html(f"job {self.id}", {name: getattr(found.job, name) for name in found.job.__struct_fields__})

    def detail(self) -> JobDetail:
        """Return all details of the job."""
        return self.kant.api.job(self.id)

    @property
    def phase(self) -> str:
        """The phase of the job, such as `waiting` or `running`."""
        return self.detail().job.phase

    def why(self) -> Why:
        """Return why the job waits, and what would help."""
        return self.kant.api.why(self.id)

    def output(self, attempt: int = 0) -> str:
        """Return the output of a run of the job: `attempt` from 1 on; 0: the last run."""
        return self.kant.api.log(self.id, attempt=attempt).decode(errors="replace")

    def wait(self) -> JobOutcome:
        """Wait until the job has ended; return how it ended."""
        while True:
            found = self.kant.api.outcome(self.id, wait=AT_A_TIME)
            if found.over:
                return found.jobs[0]

    def cancel(self) -> None:
        """Cancel the job, waiting or running."""
        self.kant.api.cancel(self.id)


class Kant:
    """The Kant of this machine (of `home`, by default KANT_HOME), or the one at `url` with a `token`.

    `api` has every route of the service, typed. Every call raises `kant.model.errors.InputError` with one sentence.

    >>> kant = Kant()                                          # doctest: +SKIP
    >>> job = kant.submit("python train.py", gpus=2)           # doctest: +SKIP
    >>> job.wait().phase                                       # doctest: +SKIP
    'finished'
    """

    def __init__(self, home: str | Path | None = None, url: str | None = None, token: str | None = None) -> None:
        self._asked = _Asked(home, url, token)
        self.api = Api(self._asked.ask)

    def submit(self, command: str | Sequence[str], **fields: Any) -> Job:
        """Submit a command: a list of words, or a shell command. `fields` are those of `Submission`."""
        return Job(self, self.api.submit(submission(command, fields)).jobs[0])

    def job(self, id: str) -> Job:
        """Return a job by its id. Raises InputError if there is none."""
        return Job(self, self.api.job(id).job.id)

    def jobs(self, state: str = "held,blocked,waiting,running,stopping", queue: str = "", user: str = "") -> Jobs:
        """Return the jobs that have not ended, or those in the given states ("": all), the latest first."""
        found, before = Jobs(), None
        while True:
            page = self.api.jobs(state=state, queue=queue, user=user, limit=PAGE, before=before)
            found += page.jobs
            if (before := page.next) is None:
                return found

    def usage(self, by: str = "user") -> Usage:
        """Return the usage of ended jobs, grouped by any of user, queue, day and job (comma-separated)."""
        return self.api.usage(by=by)

    def events(self) -> Iterator[JobRow]:
        """Yield jobs as they change, from now on, until Kant stops."""
        return self._asked.events()


class AsyncJob:
    """A job of a Kant, with async methods."""

    def __init__(self, kant: AsyncKant, id: str) -> None:
        self.kant = kant
        self.id = id

    def __repr__(self) -> str:
        return f"AsyncJob({self.id!r})"

    async def detail(self) -> JobDetail:
        """Return all details of the job."""
        return await self.kant.api.job(self.id)

    async def why(self) -> Why:
        """Return why the job waits, and what would help."""
        return await self.kant.api.why(self.id)

    async def output(self, attempt: int = 0) -> str:
        """Return the output of a run of the job: `attempt` from 1 on; 0: the last run."""
        return (await self.kant.api.log(self.id, attempt=attempt)).decode(errors="replace")

    async def wait(self) -> JobOutcome:
        """Wait until the job has ended; return how it ended."""
        while True:
            found = await self.kant.api.outcome(self.id, wait=AT_A_TIME)
            if found.over:
                return found.jobs[0]

    async def cancel(self) -> None:
        """Cancel the job, waiting or running."""
        await self.kant.api.cancel(self.id)


class AsyncKant:
    """`Kant` with async methods: each call runs in its own thread."""

    def __init__(self, home: str | Path | None = None, url: str | None = None, token: str | None = None) -> None:
        self._asked = _Asked(home, url, token)
        self.api = AsyncApi(self._ask)

    async def _ask(self, request: Request) -> Any:
        return await asyncio.to_thread(self._asked.ask, request)

    async def submit(self, command: str | Sequence[str], **fields: Any) -> AsyncJob:
        """Submit a command: a list of words, or a shell command. `fields` are those of `Submission`."""
        return AsyncJob(self, (await self.api.submit(submission(command, fields))).jobs[0])

    async def job(self, id: str) -> AsyncJob:
        """Return a job by its id. Raises InputError if there is none."""
        return AsyncJob(self, (await self.api.job(id)).job.id)

    async def events(self) -> AsyncIterator[JobRow]:
        """Yield jobs as they change, from now on, until Kant stops."""
        found = self._asked.events()
        while (row := await asyncio.to_thread(next, found, None)) is not None:
            yield row
