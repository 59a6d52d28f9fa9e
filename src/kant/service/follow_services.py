"""`kant serve run`: keeps the replicas of services as their forecasts want them, until told to stop.

What a person with a forecast would do is done beside the scheduler, by the same orders as anybody's. Nothing is
remembered that could not be seen again: whoever takes over after a crash goes on from what is there.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any, Protocol

from kant.gateway.operators import Operators
from kant.live.logs import log_event
from kant.model.errors import InputError
from kant.serving.live_services import LiveService

if TYPE_CHECKING:
    from kant.kube.user.scale import ScaledWorkload

log = logging.getLogger("kant.services")
TICK_S = 5.0
"""Between two looks at a service: what has ended is begun again, and what is drained is ended."""


class Place(Protocol):
    """Where the replicas of a service are."""

    def count(self) -> int:
        """Replicas that there are or shall be, without those that leave. Raises InputError."""
        ...

    def have(self, wanted: int, now: float) -> None:
        """Have so many. Raises InputError; it is tried again."""
        ...


class ScaledReplicas:
    """The bursts of one service on Kubernetes. Its core is a workload of its own, which is nobody's to scale."""

    def __init__(self, service: LiveService, workload: ScaledWorkload) -> None:
        self.core = service.table.core
        self.workload = workload

    def count(self) -> int:
        return self.core + asyncio.run(self.workload.replicas())

    def have(self, wanted: int, now: float) -> None:
        asyncio.run(self.workload.have(wanted - self.core))


class Follower:
    """Follows one service: counts its requests, asks how many replicas it should have, and has them."""

    def __init__(self, service: LiveService, place: Place) -> None:
        self.service, self.place = service, place
        self.wanted = service.table.core
        self.due = 0.0
        self.trouble = ""

    def turn(self, now: float) -> None:
        """Do what is to be done at `now`, in seconds of the epoch. Trouble is logged once, and tried again."""
        service, trouble = self.service, ""
        try:
            if service.counts_requests:
                trouble = self._count(now)
            if now >= self.due:
                had = self.place.count()
                self.wanted = service.wanted(now, had)
                every = service.table.every_s
                self.due = (now // every + 1) * every
                log_event(log, "replicas", service=service.name, had=had, wanted=self.wanted, gpus=service.gpus)
            self.place.have(self.wanted, now)
        except (InputError, OSError) as error:
            trouble = str(error)
        if trouble and trouble != self.trouble:
            log_event(log, trouble, logging.WARNING, service=service.name)
        self.trouble = trouble

    def _count(self, now: float) -> str:
        """Count its requests; where its routers do not say and a forecast does without, returns what they said."""
        try:
            self.service.traffic.note(now, Operators(self.service.table.operators).total())
        except InputError as error:
            if not self.service.table.forecast:
                raise
            return str(error)
        return ""


def follow(followers: Sequence[Follower], stop: Event, tick_s: float = TICK_S) -> None:
    """Take turns until told to stop. Replicas stay as they are then."""
    while not stop.is_set():
        for follower in followers:
            follower.turn(time.time())
        stop.wait(tick_s)


def plan(services: Sequence[LiveService], now: float, hours: int) -> list[dict[str, Any]]:
    """What each service is to have in the next hours. Raises InputError where nobody forecasts."""
    return [
        {"service": service.name, "gpus": service.gpus, "core": service.table.core, "hours": service.ahead(now, hours)}
        for service in services
    ]


@contextmanager
def alone(folder: Path, names: Sequence[str]) -> Iterator[None]:
    """Be the only one who follows these services from this folder. Raises InputError."""
    files: list[int] = []
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        for name in names:
            files.append(os.open(folder / f"{name}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
            try:
                fcntl.flock(files[-1], fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise InputError(f"service {name}", "nobody else who follows it (see its lock)", str(folder)) from None
        yield
    except OSError as error:
        raise InputError(str(folder), f"a folder that can be written ({error.strerror})") from None
    finally:
        for file in files:
            os.close(file)
