"""`kant up`: one Kant on one home, from the lock to the last answer."""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from kant.live.journals import Journals
from kant.live.logs import said, set_up
from kant.live.warm import warm
from kant.local.clock import Offset, steady_clock
from kant.local.driver import NO_QUEUES, Driver, Settings
from kant.local.machine import this_machine
from kant.model.errors import InputError
from kant.model.node import ClusterSpec
from kant.model.tenant import Tenancy
from kant.scheduler.profile import Profile
from kant.service.api import Api
from kant.service.client import SOCKET
from kant.service.events import Events
from kant.service.http import Server, Service, address
from kant.service.store import Store

log = logging.getLogger("kant.service")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """`cluster`: None for this machine. `token_file`: where the token is that callers from an address have to show."""

    home: Path
    profile: Profile
    cluster: ClusterSpec | None = None
    tenancy: Tenancy = NO_QUEUES
    listen: str = ""
    token_file: Path | None = None
    log_bytes: int = 1 << 30
    log_format: str = "logfmt"
    log_level: str = "info"


def serve(options: Options) -> int:
    """Schedule until SIGTERM, SIGINT or `kant down`. Raises InputError."""
    if sys.platform != "linux":
        raise InputError("this machine", "Linux: Kant looks after processes by its /proc and pidfds", sys.platform)
    set_up(options.log_format, options.log_level)
    if options.tenancy.queues and not options.profile.discipline.quotas:
        name = options.profile.discipline.__struct_config__.tag
        raise InputError(f"profile {options.profile.name}: discipline", "one that heeds the quotas of queues", name)
    token = read_token(options.token_file)
    if options.listen:
        address(options.listen, token)
    mask = os.umask(0o077)  # what people submit has secrets in its environment
    try:
        with locked(options.home):
            store = Store(options.home / "kant.db")
            try:
                asyncio.run(_serve(options, store, token))
            finally:
                store.close()
    finally:
        os.umask(mask)
    return 0


async def _serve(options: Options, store: Store, token: str) -> None:
    began = time.monotonic()
    kept = store.kept("clock")
    if store.last()[0] == 0 and any((options.home / "runs").glob("*")):
        raise InputError(str(store.path), "the store that knows the runs beside it (or move them away too)", "none")
    clock = steady_clock(msgspec.json.decode(kept, type=Offset) if kept is not None else None, store.last()[1])
    store.keep("clock", msgspec.json.encode(clock.offset))
    journals = Journals(options.home / "journal", lambda error: said(log, str(error), logging.WARNING))
    cluster = options.cluster or this_machine()
    settings = Settings(
        cluster, options.profile, options.home / "runs", options.tenancy, journals, options.log_bytes
    )  # fmt: skip
    warm(options.profile)
    driver = Driver(settings, store, clock)
    driver.adopt(store.live())
    events, stop = Events(), asyncio.Event()
    driver.on_change = events.changed
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    service = Service(Api(driver, store), events, stop, token)
    async with Server(service, options.home / SOCKET, options.listen) as server:
        said(
            log, "up", home=str(options.home), cluster=cluster.name, nodes=len(cluster.nodes), gpus=cluster.gpus,
            profile=options.profile.name, jobs=len(driver.records), seconds=round(time.monotonic() - began, 3),
            listen=f"{server.host}:{server.port}" if server.host else "",
        )  # fmt: skip
        await driver.run(stop)
    said(log, "down", running=len(driver.launcher.runs))


@contextmanager
def locked(home: Path) -> Iterator[None]:
    """Have the home for ourselves; it is let go when the process ends, however that may be. Raises InputError."""
    try:
        home.mkdir(parents=True, exist_ok=True, mode=0o700)
        file = os.open(home / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise InputError(f"--home {home}", f"a folder that can be written ({error.strerror})") from None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        other = os.read(file, 32).decode(errors="replace").strip()
        os.close(file)
        raise InputError(f"--home {home}", f"a home on which no other Kant runs (process {other} does)") from None
    try:
        os.ftruncate(file, 0)
        os.pwrite(file, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(file)


def read_token(path: Path | None) -> str:
    """The token in a file that nobody else may read. Raises InputError."""
    if path is None:
        return ""
    try:
        token = path.read_text(encoding="ascii").strip()
        open_to_others = path.stat().st_mode & 0o077
    except (OSError, UnicodeDecodeError) as error:
        raise InputError("--token-file", f"a file with a token that can be read ({error})") from None
    if open_to_others:
        raise InputError("--token-file", "a file that only its owner may read (chmod 600)", str(path))
    if len(token) < 16 or any(ch.isspace() for ch in token):
        raise InputError("--token-file", "one word of at least 16 characters")
    return token
