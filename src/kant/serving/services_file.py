"""The TOML file of services: what each runs, its objectives, its forecast, and its limits in the cluster.

[[service]]
name = "chat"
model = "llama-3-8b"          # what a replica runs, and on what: `kant serve policies` lists both
gpu = "a100"
ttft_s = 2.0                  # objectives, P99 of each minute
tpot_s = 0.1
core = 2                      # replicas that are never stopped; the others are bursts
traffic = "chat.csv"          # the actual traffic: hour,rate or minute,rate
history = "chat-before.csv"   # past days, from which the daily pattern is learned; or
# forecast = "chat-plan.csv"  # a written forecast
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Literal

import numpy as np
from msgspec import Struct

from kant.model.errors import InputError
from kant.serving.capacity import CapacityCurve
from kant.serving.columns import Times
from kant.serving.engine import EngineSettings
from kant.serving.forecast import Forecast, Rhythm, Seen, Written
from kant.serving.kept import kept_curve, kept_shares
from kant.serving.latency import kv_tokens, latency_model
from kant.serving.rates import drawn_counts, read_rates
from kant.serving.removal_price import RemovalPrice
from kant.serving.scaling import Foresight, Scaler, Static, Utilisation
from kant.serving.service import Service, mix_named
from kant.serving.summary import Objectives
from kant.toml_file import read_toml

BLOCK_SIZE = 16
ROUTER = "shortest-queue"


class OnMachine(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A replica on a single machine: a command, in which `{port}` stands for the replica's port.

    Replica k listens on `port` + k of `host`.
    """

    command: tuple[str, ...]
    port: int
    host: str = "127.0.0.1"
    workdir: str = ""
    cpus: float | None = None
    memory_mib: int = 0


class OnKubernetes(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The object that Kant scales on Kubernetes. It has a `scale` subresource, and its replicas are the bursts.
    `bursts` is PLURAL/NAME for the group apps/v1, such as deployments/chat-burst, or GROUP/VERSION/PLURAL/NAME.
    """

    bursts: str
    namespace: str = "default"


class ServiceTable(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One `[[service]]` table; docs/serving.md describes each field."""

    name: str
    model: str
    gpu: str
    ttft_s: float
    tpot_s: float
    traffic: str = ""
    tensor_parallel: int | None = None
    max_seqs: int = 128
    max_tokens: int = 2048
    mix: str = "conversation"
    router: str = ROUTER
    policy: str = "fcfs"
    core: int = 1
    most: int = 1000
    queue: str = "default"
    user: str = ""
    priority: int = 100
    burst_priority: int = 50
    gpu_models: tuple[str, ...] = ()
    scale: Literal["forecast", "utilisation", "static"] = "forecast"
    forecast: str = ""
    history: str = ""
    cover: float = 0.98
    margin: float = 1.0
    target: float = 0.7
    replicas: int = 0
    start_s: int = 120
    drain_s: int = 30
    every_s: int = 300
    hold_s: int = 900
    capacity: tuple[tuple[int, float], ...] = ()
    price: Literal["work", "removal"] = "work"
    begins: datetime | None = None
    operators: tuple[str, ...] = ()
    local: OnMachine | None = None
    kubernetes: OnKubernetes | None = None


class ServicesFile(Struct, frozen=True, forbid_unknown_fields=True):
    service: tuple[ServiceTable, ...] = ()


@dataclass(frozen=True, slots=True)
class Declared:
    """A service of a simulated cluster: its table, settings and capacity, and the number of requests in each minute.

    `gpus` is the number of GPUs of a replica. `counts` are the arriving requests; a scaler sees those before the
    present. `price` is the cost of stopping a replica; None: the cost is its lost work.
    """

    table: ServiceTable
    service: Service
    curve: CapacityCurve
    gpus: int
    counts: Times
    scaler: Scaler
    price: RemovalPrice | None = None

    @property
    def name(self) -> str:
        return self.table.name

    def wanted(self, now: int, count: int) -> int:
        """Return the replicas from minute `now` on: at least the core, at most the maximum."""
        return min(max(self.scaler.wanted(now, count), self.table.core), self.table.most)

    def overrun(self, now: int, count: int) -> bool:
        """Whether to call `wanted` early in minute `now`: more requests arrived than `count` replicas can serve."""
        return isinstance(self.scaler, Foresight) and count < self.table.most and self.scaler.overrun(now, count)

    def rate(self, now: int) -> float:
        """Return the requests a second of the next minutes: by the forecast, or without a forecast the rate of the last
        minute.
        """
        if isinstance(self.scaler, Foresight):
            soon = now + math.ceil((self.table.start_s + self.scaler.every_s) / 60)
            return self.scaler.forecast.most(now, now, soon)
        return float(self.counts[now - 1]) / 60 if now else 0.0


def read_services(path: Path, seed: int = 0) -> tuple[Declared, ...]:
    """Read the services of a file; raises InputError naming the file and the field of an error.

    Paths in the file are relative to the file's folder. Requests of each minute are drawn with the seed. Capacities
    that the file does not give are measured on the simulated engine, and cached.
    """
    tables = read_tables(path)
    for table in tables:
        if not table.traffic:
            raise InputError(f"{path}: service {table.name}: traffic", "a file of the requests to simulate")
    return tuple(_declared(table, path, seed + i) for i, table in enumerate(tables))


def read_tables(path: Path) -> tuple[ServiceTable, ...]:
    """Read the tables of a file; raises InputError if one is invalid."""
    tables = read_toml(path, ServicesFile).service
    if not tables:
        raise InputError(str(path), "at least one [[service]]")
    names = [table.name for table in tables]
    if len(set(names)) < len(names):
        raise InputError(str(path), "services with different names", next(n for n in names if names.count(n) > 1))
    for table in tables:
        _check(table, f"{path}: service {table.name}")
    return tables


def _check(table: ServiceTable, where: str) -> None:
    checks = (
        ("name", bool(table.name) and len(table.name) <= 100 and table.name.isprintable(), "a name", table.name),
        ("core", 1 <= table.core <= 10_000, "1 to 10000 replicas", table.core),
        ("most", table.core <= table.most <= 10_000, "at least `core`, at most 10000 replicas", table.most),
        ("replicas", 0 <= table.replicas <= 10_000, "0 to 10000 replicas", table.replicas),
        ("cover", 0 < table.cover < 1, "a share above 0 and below 1", table.cover),
        ("margin", 0.1 <= table.margin <= 10, "a factor from 0.1 to 10", table.margin),
        ("target", 0.01 <= table.target <= 1, "a utilisation from 0.01 to 1", table.target),
        ("start_s", 0 <= table.start_s <= 86_400, "0 to 86400 seconds", table.start_s),
        ("drain_s", 0 <= table.drain_s <= 86_400, "0 to 86400 seconds", table.drain_s),
        ("every_s", table.every_s in range(60, 21_601, 60), "whole minutes up to 6 hours", table.every_s),
        ("hold_s", 0 <= table.hold_s <= 43_200, "0 to 43200 seconds", table.hold_s),
        ("priority", abs(table.priority) <= 10**9, "-10^9 to 10^9", table.priority),
        ("burst_priority", abs(table.burst_priority) <= 10**9, "-10^9 to 10^9", table.burst_priority),
    )  # fmt: skip
    for field, holds, expected, value in checks:
        if not holds:
            raise InputError(f"{where}: {field}", expected, value)
    if table.scale == "forecast" and bool(table.forecast) == bool(table.history):
        raise InputError(where, "either a forecast or a history, to scale by a forecast")
    if table.scale != "forecast" and (table.forecast or table.history):
        raise InputError(f"{where}: scale", "forecast, as a forecast or a history is given", table.scale)
    if (table.scale == "static") != bool(table.replicas):
        raise InputError(f"{where}: replicas", "a number if scale is static, and only then", table.replicas)


def replicas_of(table: ServiceTable, path: Path) -> tuple[Service, CapacityCurve, int]:
    """Return the service that the replicas run, their capacity, and the GPUs per replica. Raises InputError."""
    where, folder = f"{path}: service {table.name}", path.parent
    try:
        latency, gpus = latency_model(table.model, table.gpu, table.tensor_parallel)
        blocks = kv_tokens(table.model, table.gpu, gpus) // BLOCK_SIZE + 1
        settings = EngineSettings(latency, blocks, BLOCK_SIZE, table.max_seqs, table.max_tokens)
        file = folder / table.mix
        mix = mix_named(str(file) if file.is_file() else table.mix)
        service = Service(settings, mix, Objectives(table.ttft_s, table.tpot_s), table.router, table.policy)
        curve = _given_curve(table) if table.capacity else kept_curve(service)
    except InputError as error:
        raise InputError(f"{where}: {error.where.lstrip('-').replace('-', '_')}", error.expected, error.got) from None
    return service, curve, gpus


def _declared(table: ServiceTable, path: Path, seed: int) -> Declared:
    where, folder = f"{path}: service {table.name}", path.parent
    service, curve, gpus = replicas_of(table, path)
    counts = drawn_counts(read_rates(folder / table.traffic), seed)
    price = None
    if table.price == "removal":
        try:
            price = RemovalPrice(kept_shares(service, curve), curve, gpus, table.start_s + table.every_s)
        except InputError as error:
            raise InputError(f"{where}: price", f"work, as removal needs {error.expected}", table.price) from None
    return Declared(table, service, curve, gpus, counts, _scaler(table, curve, counts, folder, where, seed), price)


def _given_curve(table: ServiceTable) -> CapacityCurve:
    numbers, rates = [n for n, _ in table.capacity], [rate for _, rate in table.capacity]
    if numbers[0] != 1 or sorted(set(numbers)) != numbers or not all(0 < rate < math.inf for rate in rates):
        raise InputError("capacity", "pairs of replicas, starting with 1 and rising, and requests a second above 0")
    return CapacityCurve(tuple(numbers), tuple(rates))


def _scaler(table: ServiceTable, curve: CapacityCurve, counts: Times, folder: Path, where: str, seed: int) -> Scaler:
    seen = counts / 60.0
    if table.scale == "static":
        return Static(table.replicas)
    if table.scale == "utilisation":
        return Utilisation(curve.rates[-1] / curve.replicas[-1], seen, table.target)
    forecast: Forecast
    lead = math.ceil((table.start_s + table.every_s) / 60)
    if table.forecast:
        forecast = Written(read_rates(folder / table.forecast), table.margin)
    else:
        before = drawn_counts(read_rates(folder / table.history), seed + 1_000_003) / 60.0
        try:
            forecast = Rhythm(np.concatenate([before, seen]), len(before), table.cover, lead, table.margin)
        except InputError as error:
            raise InputError(f"{where}: {error.where}", error.expected, error.got) from None
    forecast = Seen(forecast, seen, 0, table.cover, lead)
    return Foresight(curve, forecast, table.start_s, table.every_s, table.hold_s)
