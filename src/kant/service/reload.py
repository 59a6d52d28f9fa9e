"""Reloads profile, queues, certificate and notices without a restart, if their files change or on SIGHUP.

An invalid file changes nothing: the old settings stay, and one sentence in the log and in /v1/health says why.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from kant.live.logs import log_event
from kant.live.warm import warm
from kant.local.driver import LocalDriver
from kant.model.errors import InputError
from kant.model.tenant import QueueConfig
from kant.scheduler.profile import Profile, parse_profile
from kant.service.notices import NoticeSender, read_notices
from kant.service.socket_access import Certificate
from kant.toml_file import read_text
from kant.workload.tenants_file import read_tenants

log = logging.getLogger("kant.service")
EVERY = 2.0  # seconds between two checks
Stamp = tuple[int, int, int] | None


@dataclass(frozen=True, slots=True)
class Files:
    """The files given to `kant up`; None: not given."""

    profile: Path | None = None
    queues: Path | None = None
    cluster: Path | None = None
    certificate: Certificate | None = None
    notices: Path | None = None


def check_quotas(profile: Profile, queue_config: QueueConfig) -> None:
    """Raise InputError if there are queues but the profile ignores quotas."""
    if queue_config.queues and not profile.quotas:
        what = "one that respects the quotas of queues"
        raise InputError(f"profile {profile.name}: discipline", what, profile.without_quotas)


class Reloader:
    """Applies changed files to a driver and to its `notifier`. `complaint` says why the last change was not applied.

    `tls` is the context of new connections.
    """

    def __init__(
        self, driver: LocalDriver, notifier: NoticeSender, files: Files, tls: ssl.SSLContext | None = None
    ) -> None:
        self.driver = driver
        self.notifier = notifier
        self.files = files
        self.tls = tls
        self.complaint = ""
        self._wrong: dict[Path, str] = {}
        self._taken = {path: stamp(path) for path in self._paths()}
        self._seen = dict(self._taken)

    def _paths(self) -> Sequence[Path]:
        certificate = self.files.certificate
        pem = () if certificate is None else (certificate.chain, certificate.key)
        files = self.files
        given = (files.queues, files.profile, files.cluster, files.notices, *pem)
        return [path for path in given if path is not None]

    async def run(self, asked: asyncio.Event) -> None:
        """Check the files periodically for changes; when `asked` is set, load all of them at once."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(EVERY):
                    await asked.wait()
            everything = asked.is_set()
            asked.clear()
            for path in self._paths():
                now = stamp(path)
                quiet = now == self._seen[path]  # the file is not being written
                self._seen[path] = now
                if everything or (quiet and now != self._taken[path]):
                    self._taken[path] = now
                    await self.take(path)

    async def take(self, path: Path) -> None:
        """Read one file and apply it."""
        try:
            if path == self.files.queues:
                self._queues(path)
            elif path == self.files.profile:
                await self._profile(path)
            elif path == self.files.notices:
                self.notifier.file = read_notices(path)
                log_event(log, "other notices", path=str(path), notices=len(self.notifier.file.notice))
            elif self.files.certificate is not None and self.tls is not None and path != self.files.cluster:
                self.files.certificate.load(self.tls)
                log_event(log, "another certificate", path=str(path))
            else:
                raise InputError(str(path), "no change while Kant runs; `kant down` and `kant up` apply it")
        except InputError as error:
            self._wrong[path] = f"{error}; the previous content stays in use"
            log_event(log, self._wrong[path], logging.WARNING)
        else:
            self._wrong.pop(path, None)
        self.complaint = "; ".join(self._wrong.values())

    def _queues(self, path: Path) -> None:
        queue_config = read_tenants(path)
        check_quotas(self.driver.settings.profile, queue_config)
        names = {queue.name for queue in queue_config.queues}
        for record in self.driver.alive():
            if names and record.submission.queue not in names:
                raise InputError(str(path), f"queue {record.submission.queue} to stay while job {record.id} is in it")
        if queue_config != self.driver.settings.queue_config:
            self.driver.set_queues(queue_config)
            log_event(log, "other queues", path=str(path), queues=len(names))

    async def _profile(self, path: Path) -> None:
        profile = parse_profile(read_text(path), str(path))
        check_quotas(profile, self.driver.settings.queue_config)
        if profile.text != self.driver.settings.profile.text:
            await asyncio.to_thread(warm, profile)  # compilation may take up to a minute
            self.driver.set_profile(profile)
            log_event(log, "another profile", path=str(path), profile=profile.name)


def stamp(path: Path) -> Stamp:
    """Return a value that changes when the file changes; None if there is no file."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
