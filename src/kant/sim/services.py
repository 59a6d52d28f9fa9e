"""Services of a simulated cluster: replicas are requested and returned through the queue, like any other job.

A service is a base job, its guaranteed core, and burst replicas. This module acts as a user with a forecast: every few
minutes it submits or withdraws bursts. The scheduler knows nothing of objectives.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from kant.cluster.columns import Table
from kant.model.errors import InputError
from kant.model.event import JobCancelled, JobPriced, JobSubmitted
from kant.model.job import Demand, Job, PodGroup
from kant.model.tenant import QueueConfig
from kant.model.units import FOREVER, HOUR, MINUTE, SECOND
from kant.scheduler.profile import Profile
from kant.serving.judging import by_capacity, judged
from kant.serving.removal_price import RemovalPrice, prices
from kant.serving.services_file import Declared
from kant.sim.execution import Execution
from kant.sim.options import SimOptions
from kant.workload.workload import Workload

SAMPLE = 60
"""Minutes of each service that are simulated in the engine."""


class _Replicas:
    """The replicas that one service has requested, and when they ran."""

    def __init__(self, declared: Declared) -> None:
        self.declared = declared
        self.end = len(declared.counts) * MINUTE
        self.bursts: list[str] = []  # names of the requested bursts, in order, without those given back
        self.leaving: list[tuple[int, str]] = []  # (end in µs, name) of bursts given back that finish their requests
        self.made = 0
        self.begun = False
        self.due = self.looked = 0  # µs: when the autoscaler acts next; the next check for an overrun
        self.priced = 0 if declared.price is not None else FOREVER  # when prices are due, µs
        self.held: dict[str, tuple[int, int, Any]] = {}  # name -> since when (µs), pods, pieces
        self.spans: list[tuple[int, int, int, int]] = []  # held from, served to, held to, pods
        self.silent: dict[str, int] = {}  # name -> since when (µs) it accepts no requests

    @property
    def count(self) -> int:
        """Replicas that run or wait, without those that are leaving."""
        return self.declared.table.core + len(self.bursts)


class ServiceReplicas:
    """Keeps the number of replicas of all services of a run at what their autoscalers want. `due` is when to call
    `step` next.
    """

    def __init__(self, services: Sequence[Declared], execution: Execution) -> None:
        self.execution = execution
        self.fleets = [_Replicas(declared) for declared in services]
        self.due = 0

    def step(self, now: int) -> None:
        """Submit base jobs at the beginning; then request and return bursts when due."""
        for fleet in self.fleets:
            while fleet.leaving and fleet.leaving[0][0] <= now:
                self._withdraw(fleet.leaving.pop(0)[1], now)
            if not fleet.begun:
                fleet.begun = True
                self._submit(fleet, fleet.declared.name, fleet.declared.table.core, now)
            if fleet.looked <= now < fleet.end:
                if now >= fleet.due or fleet.declared.overrun(now // MINUTE, fleet.count):
                    self._follow(fleet, fleet.declared.wanted(now // MINUTE, fleet.count), now)
                if now >= fleet.due:
                    fleet.due = now + fleet.declared.scaler.every_s * SECOND
                fleet.looked = now + MINUTE if now + MINUTE < fleet.end else FOREVER
            if fleet.declared.price is not None and fleet.priced <= now < fleet.end:
                self._price(fleet, fleet.declared.price, now)
                fleet.priced = now + MINUTE if now + MINUTE < fleet.end else FOREVER
        coming = [min(fleet.looked, fleet.priced) for fleet in self.fleets] + [
            fleet.leaving[0][0] for fleet in self.fleets if fleet.leaving
        ]
        self.due = min(coming, default=FOREVER)

    def _follow(self, fleet: _Replicas, wanted: int, now: int) -> None:
        """Adjust to `wanted` replicas: waiting ones are withdrawn first, then the last to arrive."""
        state = self.execution.state
        # Rejected replicas are no longer live.
        fleet.bursts = [name for name in fleet.bursts if state.rows[name] in state.live]
        for _ in range(wanted - fleet.count):
            fleet.made += 1
            name = f"{fleet.declared.name}-burst-{fleet.made}"
            fleet.bursts.append(name)
            self._submit(fleet, name, 0, now)
        surplus = fleet.count - wanted
        last_first = sorted(enumerate(fleet.bursts), key=lambda at: (state.rows[at[1]] in state.running, -at[0]))
        for _, name in last_first[: max(surplus, 0)]:
            fleet.bursts.remove(name)
            if state.rows[name] in state.running:
                fleet.silent[name] = now
                fleet.leaving.append((now + fleet.declared.table.drain_s * SECOND, name))
            else:
                self._withdraw(name, now)

    def _price(self, fleet: _Replicas, price: RemovalPrice, now: int) -> None:
        """Set the removal cost of each running burst: the cost of serving without it until a new burst could serve."""
        state = self.execution.state
        run = [name for name in reversed(fleet.bursts) if state.rows[name] in state.running]
        replicas = fleet.declared.table.core + len(run)
        each = prices(price.at, replicas, len(run), fleet.declared.rate(now // MINUTE))
        for name, cost in zip(run, each, strict=True):
            if state.prices.get(state.rows[name]) != cost:
                self.execution.external_event(JobPriced(now, name, cost))

    def _submit(self, fleet: _Replicas, name: str, core: int, now: int) -> None:
        """Submit the base job with `core` replicas, or for `core` 0 one burst replica."""
        table = fleet.declared.table
        job = Job(
            name,
            now,
            (PodGroup(core or 1, Demand(fleet.declared.gpus)),),
            table.queue,
            table.user,
            table.priority if core else table.burst_priority,
            table.gpu_models,
            estimate=fleet.end - now,
            preemptible=not core,
            name=table.name,
            base_job="" if core else table.name,
        )
        self.execution.arrive(JobSubmitted(now, job, fleet.end - now, 0))

    def _withdraw(self, name: str, now: int) -> None:
        self.execution.external_event(JobCancelled(now, name))

    def observe(self, now: int) -> None:
        """Record since when replicas run, at the end of an instant."""
        state = self.execution.state
        for fleet in self.fleets:
            names = [fleet.declared.name, *fleet.bursts, *(name for _, name in fleet.leaving)]
            runs = {name: state.running.get(state.rows[name]) for name in names if name in state.rows}
            for name, (since, pods, held) in list(fleet.held.items()):
                if runs.get(name) is not held:
                    fleet.spans.append((since, fleet.silent.get(name, now), now, pods))
                    del fleet.held[name]
            for name, held in runs.items():
                if held is not None and name not in fleet.held:
                    pods = fleet.declared.table.core if name == fleet.declared.name else 1
                    fleet.held[name] = (now, pods, held)

    def serving(self, fleet: _Replicas) -> Table:
        """Return how many replicas serve throughout each minute: they have started, and need not leave yet."""
        minutes = len(fleet.declared.counts)
        change = np.zeros(minutes + 1, dtype=np.int64)
        for since, until, _, pods in fleet.spans:
            first = -(-(since + fleet.declared.table.start_s * SECOND) // MINUTE)
            last = min(until // MINUTE, minutes)
            if first < last:
                change[first] += pods
                change[last] -= pods
        found: Table = np.cumsum(change)[:-1]
        return found

    def summary(self, end: int, seed: int, sample: int = SAMPLE) -> list[dict[str, Any]]:
        """Summarise each service up to the end of the run: replicas, GPU-hours, minutes within objectives.

        A minute is judged by the capacity of the replicas that serve throughout it, and for a sample by the engine.
        """
        found = []
        for fleet in self.fleets:
            for name, (since, pods, _) in fleet.held.items():
                fleet.spans.append((since, fleet.silent.get(name, end), end, pods))
            declared, minutes = fleet.declared, min(end // MINUTE, len(fleet.declared.counts))
            counts, serving = declared.counts[:minutes], self.serving(fleet)[:minutes]
            held = sum((until - since) * pods for since, _, until, pods in fleet.spans)
            row: dict[str, Any] = {"service": declared.name, "minutes": minutes, "requests": int(counts.sum())}
            if minutes:
                row["replicas"] = {
                    "mean": float(serving.mean()), "min": int(serving.min()), "max": int(serving.max())
                }  # fmt: skip
                row["gpu_hours"] = held * declared.gpus / HOUR
                row["bursts"] = fleet.made
                row["kept_by_capacity"] = float(by_capacity(counts, serving, declared.curve).mean())
            if minutes and sample:
                verdict = judged(declared.service, declared.curve, counts, serving, sample, seed)
                row["engine"] = asdict(verdict)
            found.append(row)
        return found


def check_services(
    services: Sequence[Declared],
    workload: Workload,
    profile: Profile,
    options: SimOptions,
    queue_config: QueueConfig | None,
) -> None:
    """Raise InputError if services conflict with the jobs, the queues, or the profile's simulation options."""
    if options.static or options.speed == "interval-overhead":
        name = f"a profile without the options static and interval-overhead, unlike {profile.name}"
        raise InputError("services", name)
    known = {queue.name for queue in queue_config.queues} if queue_config is not None else set()
    for declared in services:
        if known and declared.table.queue not in known:
            where = f"service {declared.name}: queue"
            raise InputError(where, f"one of the queues {', '.join(sorted(known))}", declared.table.queue)
    mine = {declared.name for declared in services}
    for name in workload.ids:
        if name in mine or name.split("-burst-")[0] in mine:
            raise InputError(f"{workload.name}: id", "jobs with other names than services and their bursts", name)
