"""Notifications about jobs: posts to a webhook, or runs a command. The scheduler does not wait for either.

Notices of the owner's file (`kant up --notices`) apply to all matching jobs; those of a submission apply to its own
jobs. A webhook of a tenant must lead to the public internet, or to a host that the owner allows: never to this machine.
A failed delivery is retried, then dropped with a line in the log.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import os
import signal
import socket
from collections import deque
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import msgspec
from aiohttp.abc import AbstractResolver, ResolveResult
from msgspec import Struct

from kant.live.logs import log_event
from kant.local.accounts import account_of
from kant.local.record import OVER, JobPhase, JobRecord
from kant.local.submission import check_notice
from kant.model.errors import InputError
from kant.model.submission import Notice
from kant.service.store import shown
from kant.toml_file import read_toml

log = logging.getLogger("kant.service")
MOST_WAITING = 1_000
AT_ONCE = 4
TRIES = 4
PAUSE = 1.0  # seconds before the second try; doubled before each further try
PATIENCE = 10.0  # seconds for one try
OUTPUT_SHOWN = 200  # characters of a command's output in an error


class OwnNotice(Notice, frozen=True, forbid_unknown_fields=True):
    """A notice of Kant's owner, for the jobs of a queue and of a user ("": any queue, any user)."""

    queue: str = ""
    user: str = ""


class NoticeFile(Struct, frozen=True, forbid_unknown_fields=True):
    """The file of `kant up --notices`. `allow`: hosts that tenants' webhooks may use, whatever their addresses are."""

    notice: tuple[OwnNotice, ...] = ()
    allow: tuple[str, ...] = ()


NONE = NoticeFile()


def read_notices(path: Path) -> NoticeFile:
    """Read the file of `kant up --notices`. Raises InputError."""
    found = read_toml(path, NoticeFile)
    try:
        for notice in found.notice:
            check_notice(notice)
    except InputError as error:
        raise InputError(f"{path}, {error.where}", error.expected, error.got) from None
    return found


class Elsewhere(AbstractResolver):
    """Resolves host names only to addresses outside this machine and its networks."""

    def __init__(self) -> None:
        self.inner = aiohttp.ThreadedResolver()

    async def resolve(self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET) -> Any:
        found: list[ResolveResult] = await self.inner.resolve(host, port, family)
        fine = [each for each in found if is_elsewhere(each["host"])]
        if not fine:
            raise OSError(0, "its address is on this machine or a private network, which only operators may use")
        return fine

    async def close(self) -> None:
        await self.inner.close()


def is_elsewhere(address: str) -> bool:
    """Whether an address is public and not one of this machine."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    inner = getattr(found, "ipv4_mapped", None) or found
    return inner.is_global and not inner.is_multicast and not _is_own(str(inner))


def _is_own(address: str) -> bool:
    """Return whether this machine has the address: only then a socket can be bound to it."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as own:
        try:
            own.bind((address, 0))
        except OSError:
            return False
    return True


class DeliveryError(Exception):
    """A delivery failed. `again`: a retry may succeed."""

    def __init__(self, why: str, again: bool = True) -> None:
        super().__init__(why)
        self.again = again


class NoticeSender:
    """Delivers notices. `changed` queues the notices of a changed job and returns at once; `run` delivers them. With
    `as_users`, the commands of a job run as the job's user."""

    def __init__(self, file: NoticeFile = NONE, as_users: bool = False) -> None:
        self.file = file
        self.as_users = as_users
        self.phases: dict[str, JobPhase] = {}
        self.waiting: deque[tuple[Notice, bool, str, JobRecord, bytes]] = deque()
        self._awake = asyncio.Event()

    def know(self, record: JobRecord) -> None:
        """Record the phase of a job that existed before Kant started."""
        self.phases[record.id] = record.phase

    def changed(self, record: JobRecord) -> None:
        """Queue the notices of a changed job."""
        before = self.phases.get(record.id)
        if record.phase in OVER:
            self.phases.pop(record.id, None)
        else:
            self.phases[record.id] = record.phase
        for happening in happenings(before, record.phase):
            self._add(happening, record)

    def _add(self, happening: str, record: JobRecord) -> None:
        submission = record.submission
        own = [
            (notice, True) for notice in self.file.notice
            if notice.queue in ("", submission.queue) and notice.user in ("", record.user)
        ]  # fmt: skip
        asked = [(notice, notice.anywhere) for notice in submission.notices]
        wanted = [(notice, free) for notice, free in [*own, *asked] if happening in notice.on]
        text = msgspec.json.encode({"event": happening, "job": shown(record)}) if wanted else b""
        for notice, free in wanted:
            if len(self.waiting) >= MOST_WAITING:
                self._give_up(self.waiting.popleft(), f"more than {MOST_WAITING:,} notices wait")
            self.waiting.append((notice, free, happening, record, text))
            self._awake.set()

    async def run(self) -> None:
        """Deliver queued notices until cancelled."""
        busy: set[asyncio.Task[None]] = set()
        try:
            while True:
                while self.waiting and len(busy) < AT_ONCE:
                    busy.add(asyncio.create_task(self._tell(self.waiting.popleft())))
                self._awake.clear()
                waking = asyncio.create_task(self._awake.wait())
                done, _ = await asyncio.wait({waking, *busy}, return_when=asyncio.FIRST_COMPLETED)
                waking.cancel()
                busy -= done
        finally:
            for task in busy:
                task.cancel()
            await asyncio.gather(*busy, return_exceptions=True)

    async def _tell(self, one: tuple[Notice, bool, str, JobRecord, bytes]) -> None:
        notice, free, happening, record, text = one
        for attempt in range(TRIES):
            try:
                async with asyncio.timeout(PATIENCE):
                    if notice.webhook:
                        await self._post(notice.webhook, free, text)
                    else:
                        await self._run(notice, record, happening, text)
            except (DeliveryError, TimeoutError) as error:
                why = str(error) or f"not delivered within {PATIENCE:g} s"
                if attempt + 1 == TRIES or not getattr(error, "again", True):
                    self._give_up(one, why)
                    return
                await asyncio.sleep(PAUSE * 2**attempt)
            else:
                log_event(log, "notified", logging.DEBUG, job=record.id, of=happening)
                return

    def _give_up(self, one: tuple[Notice, bool, str, JobRecord, bytes], why: str) -> None:
        notice, _, happening, record, _ = one
        what = urlsplit(notice.webhook).hostname if notice.webhook else notice.command[0]
        log_event(log, "notice failed", logging.WARNING, job=record.id, of=happening, to=what, error=why)

    async def _run(self, notice: Notice, record: JobRecord, happening: str, text: bytes) -> None:
        """Run a command: the owner's as Kant's own user, a job's as the job's user in its folder and environment."""
        submission, own = record.submission, isinstance(notice, OwnNotice)
        env = (dict(os.environ) if own else submission.env) | {
            "KANT_EVENT": happening, "KANT_JOB_ID": record.id, "KANT_JOB_NAME": submission.name,
            "KANT_QUEUE": submission.queue,
        }  # fmt: skip
        if own:
            await _command(notice.command, env, {}, text)
            return
        who: dict[str, Any] = {}
        if self.as_users:
            try:
                account = account_of(record.user)
            except InputError as error:
                raise DeliveryError(str(error), again=False) from None
            who = {"user": account.uid, "group": account.gid, "extra_groups": list(account.groups)}
        inside = ("sh", "-c", 'cd "$0" && exec "$@"', submission.workdir, *notice.command)
        await _command(inside, env, who, text)

    async def _post(self, url: str, free: bool, text: bytes) -> None:
        host = urlsplit(url).hostname or ""
        free = free or host in self.file.allow
        if not free and not leads_out(host):
            raise DeliveryError("its address is local or private, which only operators may use", again=False)
        connector = aiohttp.TCPConnector(resolver=None if free else Elsewhere())
        headers = {"Content-Type": "application/json", "User-Agent": "kant"}
        try:
            async with (
                aiohttp.ClientSession(connector=connector) as session,
                session.post(url, data=text, headers=headers, allow_redirects=False) as answer,
            ):
                if not 200 <= answer.status < 300:
                    raise DeliveryError(
                        f"the answer has status {answer.status}", answer.status in (408, 429) or answer.status >= 500
                    )
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise DeliveryError(str(error)) from None


def leads_out(host: str) -> bool:
    """Return whether a tenant may use a host: a public address, or a name, which `Elsewhere` then resolves. Numbers in
    other forms, such as 127.1, are refused, since they are addresses that this check does not recognise."""
    try:
        return is_elsewhere(str(ipaddress.ip_address(host)))
    except ValueError:
        return ":" not in host and not host.replace(".", "").isdigit()


async def _command(command: tuple[str, ...], env: dict[str, str], who: dict[str, Any], text: bytes) -> None:
    """Run a command with `text` on its input. Raises DeliveryError."""
    try:
        process = await asyncio.create_subprocess_exec(
            *command, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
            cwd="/", env=env, start_new_session=True, **who,
        )  # fmt: skip
    except OSError as error:
        raise DeliveryError(f"{error.filename or command[0]}: {error.strerror or error}", again=False) from None
    try:
        said, _ = await process.communicate(text)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    if process.returncode:
        raise DeliveryError(f"exit code {process.returncode}: {said[-OUTPUT_SHOWN:].decode(errors='replace').strip()}")


def happenings(before: JobPhase | None, after: JobPhase) -> list[str]:
    """Return the names of the events between two phases of a job; `before` is None for a new job."""
    found = ["submitted"] if before is None else []
    if before is after:
        return []
    if after in OVER:
        found.append(str(after))
    elif after is JobPhase.RUNNING:
        found.append("started")
    elif after is JobPhase.WAITING and before in (JobPhase.RUNNING, JobPhase.STOPPING):
        found.append("requeued")
    return found
