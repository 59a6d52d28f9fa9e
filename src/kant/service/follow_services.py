"""`kant serve run`: keeps the replicas of services at the number that their forecasts require, until stopped.

It runs next to the scheduler and uses the same API requests as any user. It stores no state: after a restart it
continues from the replicas that it finds.
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
"""Seconds between two checks of a service, which restart ended replicas and end drained ones."""


class ReplicaPlace(Protocol):
    """Where the replicas of a service run: this machine or Kubernetes."""

    def count(self) -> int:
        """Return the number of current and requested replicas, without those that are leaving. Raises InputError."""
        ...

    def have(self, wanted: int, now: float) -> None:
        """Scale to `wanted` replicas. Raises InputError; the caller retries."""
        ...


class ScaledReplicas:
    """The burst replicas of one service on Kubernetes. Its core replicas are another workload, which is not scaled."""

    def __init__(self, service: LiveService, workload: ScaledWorkload) -> None:
        self.core = service.table.core
        self.workload = workload

    def count(self) -> int:
        return self.core + asyncio.run(self.workload.replicas())

    def have(self, wanted: int, now: float) -> None:
        asyncio.run(self.workload.have(wanted - self.core))


class ServiceFollower:
    """Follows one service: counts its requests, computes its number of replicas, and scales it."""

    def __init__(self, service: LiveService, place: ReplicaPlace) -> None:
        self.service, self.place = service, place
        self.wanted = service.table.core
        self.due = self.looked = 0.0  # Unix times (s): the next regular decision, and the next check
        self.trouble = ""

    def turn(self, now: float) -> None:
        """Check and scale the service at `now` (Unix seconds). An error is logged once; the next call tries again."""
        service, trouble = self.service, ""
        try:
            if service.counts_requests:
                trouble = self._count(now)
            if now >= self.looked:
                had = self.place.count()
                if now >= self.due or service.overrun(now, had):
                    self.wanted = service.wanted(now, had)
                    every = service.table.every_s
                    self.due = (now // every + 1) * every
                    log_event(
                        log, "replicas", logging.INFO, service=service.name, had=had, wanted=self.wanted,
                        gpus=service.gpus, **service.rates(now),
                    )  # fmt: skip
                self.looked = (now // 60 + 1) * 60
            self.place.have(self.wanted, now)
        except (InputError, OSError) as error:
            trouble = str(error)
        if trouble and trouble != self.trouble:
            log_event(log, trouble, logging.WARNING, service=service.name)
        self.trouble = trouble

    def _count(self, now: float) -> str:
        """Count requests. If the routers do not answer but a forecast works without them, return the error message."""
        try:
            self.service.traffic.note(now, Operators(self.service.table.operators).total())
        except InputError as error:
            if not self.service.table.forecast:
                raise
            return str(error)
        return ""


def follow(followers: Sequence[ServiceFollower], stop: Event, tick_s: float = TICK_S) -> None:
    """Check all services every `tick_s` seconds until `stop` is set. The replicas then stay as they are."""
    while not stop.is_set():
        for follower in followers:
            follower.turn(time.time())
        stop.wait(tick_s)


def plan(services: Sequence[LiveService], now: float, hours: int) -> list[dict[str, Any]]:
    """Return the planned replicas of each service for the next `hours`. Raises InputError without a forecast."""
    return [
        {"service": service.name, "gpus": service.gpus, "core": service.table.core, "hours": service.ahead(now, hours)}
        for service in services
    ]


@contextmanager
def alone(folder: Path, names: Sequence[str]) -> Iterator[None]:
    """Lock these services by files in a folder, so that no other process scales them. Raises InputError."""
    files: list[int] = []
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        for name in names:
            files.append(os.open(folder / f"{name}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
            try:
                fcntl.flock(files[-1], fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise InputError(
                    f"service {name}", "no other process that scales it (its lock in this folder is held)", str(folder)
                ) from None
        yield
    except OSError as error:
        raise InputError(str(folder), f"a folder that can be written ({error.strerror})") from None
    finally:
        for file in files:
            os.close(file)
