"""Runs the replicas of a service as jobs of Kant on this machine.

Each replica is a separate job, so that queues, quotas and preemption treat it as any other job. The job is an array
with one index, the replica's number. So nothing has to be stored: after a restart, replicas are found by their jobs.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kant.gateway.operators import Operators
from kant.model.errors import InputError
from kant.service.client import ServiceClient
from kant.serving.live_services import LiveService
from kant.serving.services_file import OnMachine

LIVE = "held,blocked,waiting,running,stopping"
PAGE = 1000


@dataclass(frozen=True, slots=True)
class ServiceReplica:
    """A replica: its number, its job and the job's phase. A later job has a higher `seq`."""

    number: int
    job: str
    seq: int
    phase: str


def surplus(replicas: Sequence[ServiceReplica], core: int, wanted: int) -> list[ServiceReplica]:
    """Return the replicas to remove, from number `core` on, to keep `wanted`: first waiting, then the newest ones."""
    bursts = [replica for replica in replicas if replica.number >= core]
    bursts.sort(key=lambda replica: (replica.phase == "running", -replica.seq))
    return bursts[: max(len(replicas) - wanted, 0)]


def missing(replicas: Sequence[ServiceReplica], taken: Sequence[int], core: int, wanted: int) -> list[int]:
    """Return the numbers of replicas to start: all missing core replicas, then the lowest numbers not in `taken`."""
    there = {replica.number for replica in replicas}
    found = [number for number in range(core) if number not in there and number not in taken]
    bursts = max(wanted, core) - core - sum(number >= core for number in there)
    number = core
    while bursts > 0:
        if number not in there and number not in taken:
            found.append(number)
            bursts -= 1
        number += 1
    return found


class LocalReplicas:
    """The replicas of one service on one Kant. Raises InputError if that Kant cannot run the service."""

    def __init__(self, service: LiveService, client: ServiceClient, folder: Path) -> None:
        table = service.table
        where = f"service {table.name}"
        if table.local is None:
            raise InputError(f"{where}: local", "a table [service.local] with the command of a replica")
        if table.user or table.gpu_models:
            field = "user" if table.user else "gpu_models"
            raise InputError(f"{where}: {field}", "none with [service.local], where the machine determines it")
        if not 1 <= table.local.port <= 65_536 - table.most:
            raise InputError(f"{where}: local.port", f"1 to {65_536 - table.most}, for `most` ports", table.local.port)
        if not table.local.command:
            raise InputError(f"{where}: local.command", "a program and its arguments")
        self.service, self.client, self.local = service, client, table.local
        self.folder = (folder / self.local.workdir).absolute()
        self.operators = Operators(table.operators)
        self.tried: dict[int, float] = {}  # when each number was last submitted
        self.leaving: dict[str, float] = {}  # by draining job: the time at which it is ended at the latest
        if table.operators:
            try:
                known = self.operators.known()
            except InputError as error:
                raise InputError(f"{where}: {error.where}", error.expected, error.got) from None
            own = self._urls(range(table.most))
            if not own <= known:
                first = min(own - known, key=lambda url: int(url.rpartition(":")[2]))
                raise InputError(f"{where}: operators", f"routers with the backend {first} (one for each of `most`)")

    @property
    def name(self) -> str:
        """The name of the service's jobs, by which policies that spread replicas recognize them."""
        return f"service-{self.service.name}"

    def count(self) -> int:
        """Return the number of replicas that run or wait, without those that are leaving."""
        return len(self._staying(self._look()))

    def have(self, wanted: int, now: float) -> None:
        """Scale to `wanted`: submit missing replicas, remove surplus replicas, and end drained replicas."""
        there = self._look()
        staying, core = self._staying(there), self.service.table.core
        for replica in surplus(staying, core, wanted):
            if replica.phase == "running":
                self.leaving[replica.job] = now + self.service.table.drain_s
            else:
                self._cancel(replica)
        staying = self._staying(there)
        self._end_drained(there, now)
        taken = [replica.number for replica in there]
        for number in missing(staying, taken, core, wanted):
            # At most one start per `every_s`, even if the replica ends at once.
            if now >= self.tried.get(number, -math.inf) + self.service.table.every_s:
                self.tried[number] = now
                self._submit(number)

    def _end_drained(self, there: Sequence[ServiceReplica], now: float) -> None:
        """Let routers send no requests to leaving replicas, and end each that has none left or whose time is up."""
        leaving = [replica for replica in there if replica.job in self.leaving and replica.phase == "running"]
        running = self._urls([replica.number for replica in there if replica.phase == "running"])
        closed = self._urls([replica.number for replica in leaving])
        has = self.operators.close(closed, running) if self.operators.addresses else {}
        for replica in leaving:
            (url,) = self._urls([replica.number])
            is_empty = self.operators.addresses and has.get(url) == 0
            # Without routers, the engine finishes its requests after SIGTERM, within the drain time.
            if is_empty or not self.operators.addresses or now >= self.leaving[replica.job]:
                self._cancel(replica)

    def _look(self) -> list[ServiceReplica]:
        """Return all replicas whose jobs have not ended."""
        found: list[ServiceReplica] = []
        before: int | None = None
        user = self.client.get("/v1/whoami")["user"]
        while True:
            page: dict[str, Any] = self.client.get("/v1/jobs", state=LIVE, user=user, limit=PAGE, before=before)
            found += [
                ServiceReplica(row["array_index"], row["id"], row["seq"], row["phase"])
                for row in page["jobs"]
                if row["name"] == self.name and row["array_index"] >= 0
            ]
            before = page["next"]
            if before is None:
                break
        self.leaving = {job: end for job, end in self.leaving.items() if any(job == r.job for r in found)}
        return sorted(found, key=lambda replica: replica.seq)

    def _staying(self, there: Sequence[ServiceReplica]) -> list[ServiceReplica]:
        return [replica for replica in there if replica.phase != "stopping" and replica.job not in self.leaving]

    def _submit(self, number: int) -> None:
        table = self.service.table
        port = str(self.local.port + number)
        is_core = number < table.core
        job = {
            "command": [word.replace("{port}", port) for word in self.local.command],
            "workdir": str(self.folder),
            "env": {**os.environ, "KANT_SERVICE": table.name, "KANT_PORT": port},
            "name": self.name,
            "queue": table.queue,
            "priority": table.priority if is_core else table.burst_priority,
            "gpus": self.service.gpus,
            "cpus": self.local.cpus,
            "memory_mib": self.local.memory_mib,
            "array": [number],
            "grace_s": float(table.drain_s),
            "preemptible": not is_core,
        }
        self.client.post("/v1/jobs", job)

    def _cancel(self, replica: ServiceReplica) -> None:
        self.client.post(self.client.job(replica.job, "cancel"))

    def _urls(self, numbers: Sequence[int] | range) -> frozenset[str]:
        return frozenset(address_of(self.local, number) for number in numbers)


def address_of(local: OnMachine, number: int) -> str:
    """Return the URL of a replica, as in a router's `--backends`."""
    return f"http://{local.host}:{local.port + number}"
