"""The TOML file of tenants: the tree of queues with their quotas, and the prices of GPU models.

[[queue]]
name = "research"
gpus = 64                   # short for one quota of 64 GPUs of any model

[[queue]]
name = "vision"
parent = "research"
weight = 2
min_run = "10m"
node_wait = "5m"

[[queue.quota]]
model = "H100"
nominal = 16                # GPUs; with resource = "cpu" cores, with "memory" MiB or text such as 512GiB
borrowing_limit = 8         # leave a limit out for none

[queue.budget]              # GPU-hours of a month
hard = 2000                 # beyond this nothing more starts
soft = 1600                 # beyond this its jobs go after all others
user_hard = 400             # of each of its users

[prices]
H100 = 4.2                  # for one GPU and hour
"""

from __future__ import annotations

import re
from fractions import Fraction
from pathlib import Path

from msgspec import Struct, structs

from kant.files import open_text
from kant.model.errors import InputError
from kant.model.tenant import MAX_AMOUNT, Budget, Fallback, Queue, QueueConfig, QueueState, Quota, Resource, validated
from kant.model.units import parse_duration
from kant.toml_file import mebibytes_of, parse_toml
from kant.workload.cluster_toml import A_NAME, is_name, is_text


class QuotaTable(Struct, frozen=True, forbid_unknown_fields=True):
    """One `[[queue.quota]]` table. None: no limit."""

    model: str = ""
    resource: Resource = "gpu"
    nominal: int | float | str = 0
    borrowing_limit: int | float | str | None = None
    lending_limit: int | float | str | None = None
    user_limit: int | float | str | None = None


class BudgetTable(Struct, frozen=True, forbid_unknown_fields=True):
    """A `[queue.budget]` table, in GPU-hours of a month. None: no limit."""

    hard: int | float | None = None
    soft: int | float | None = None
    user_hard: int | float | None = None
    user_soft: int | float | None = None


class QueueTable(Struct, frozen=True, forbid_unknown_fields=True):
    """One `[[queue]]` table."""

    name: str
    parent: str = ""
    weight: int = 1
    isolated: bool = False
    state: QueueState = "open"
    min_run: str = "0s"
    node_wait: str = "0s"
    user_queues: bool = False
    max_time: str = "0s"
    fallback: Fallback = "listed"
    gpus: int | float | None = None
    budget: BudgetTable | None = None
    quota: tuple[QuotaTable, ...] = ()


class QueueFile(Struct, frozen=True, forbid_unknown_fields=True):
    """A whole file of tenants."""

    queue: tuple[QueueTable, ...] = ()
    prices: dict[str, int | float] = {}


_GPUS = "GPUs as a number from 0 with at most three decimals"
_AMOUNT = {
    "gpu": _GPUS,
    "cpu": "cores as a number from 0 with at most three decimals",
    "memory": "memory as whole MiB from 0, or text such as 512GiB or 2TiB",
}
_PRICE = "a price from 0 with at most three decimals"
_HOURS = "GPU-hours as a number above 0 with at most three decimals"
_NUMBER = "a number, or text such as 512GiB for memory"
_EXPECTED = {
    "queue": "[[queue]] tables",
    "name": A_NAME,
    "parent": "the name of a queue",
    "weight": "a whole number from 1",
    "isolated": "true or false",
    "state": "one of open, hold, stop, drain",
    "min_run": "a duration such as 90s, 12h or 27d",
    "node_wait": "a duration such as 90s, 12h or 27d",
    "user_queues": "true or false",
    "max_time": "a duration such as 90s, 12h or 27d",
    "fallback": "one of listed, cheapest",
    "gpus": _GPUS,
    "budget": "a [queue.budget] table",
    **dict.fromkeys(("hard", "soft", "user_hard", "user_soft"), _HOURS),
    "quota": "[[queue.quota]] tables",
    "model": "text of 1 to 253 printable characters",
    "resource": "one of gpu, cpu, memory",
    "nominal": _NUMBER,
    "borrowing_limit": _NUMBER,
    "lending_limit": _NUMBER,
    "user_limit": _NUMBER,
    "prices": "a table of a price for each GPU model",
    "prices.*": _PRICE,
}


def read_tenants(path: Path) -> QueueConfig:
    """Return the tenants in a file. Raises InputError if the file is invalid."""
    with open_text(path) as stream:
        text = stream.read()
    return parse_tenants(str(path), text)


def parse_tenants(where: str, text: str) -> QueueConfig:
    """Return the tenants that `text` describes. `where` is its path, for error messages. Raises InputError."""
    file = parse_toml(where, text, QueueFile, _EXPECTED)
    queues = tuple(_queue(f"{where}, [[queue]] {number}", table) for number, table in enumerate(file.queue, start=1))
    prices: list[tuple[str, int]] = []
    for model, price in file.prices.items():
        if not is_text(model):
            raise InputError(f"{where}, prices", _EXPECTED["model"], model)
        prices.append((model, _thousandths(f"{where}, prices, {model}", _PRICE, price)))
    return validated(QueueConfig(queues, tuple(prices)), where)


def _queue(where: str, table: QueueTable) -> Queue:
    if not is_name(table.name):
        raise InputError(f"{where}, name", A_NAME, table.name)
    quotas = [_quota(f"{where}, [[queue.quota]] {number}", quota) for number, quota in enumerate(table.quota, start=1)]
    if table.gpus is not None:
        if any((quota.model, quota.resource) == ("", "gpu") for quota in quotas):
            raise InputError(f"{where}, gpus", "either this or a quota of the GPUs of all models, not both")
        quotas.insert(0, Quota(nominal=_thousandths(f"{where}, gpus", _GPUS, table.gpus)))
    return Queue(
        name=table.name,
        parent=table.parent,
        weight=table.weight,
        isolated=table.isolated,
        state=table.state,
        min_run=parse_duration(table.min_run, f"{where}, min_run"),
        node_wait=parse_duration(table.node_wait, f"{where}, node_wait"),
        quotas=tuple(quotas),
        fallback=table.fallback,
        user_queues=table.user_queues,
        max_time=parse_duration(table.max_time, f"{where}, max_time"),
        budget=_budget(f"{where}, [queue.budget]", table.budget) if table.budget is not None else None,
    )


def _budget(where: str, table: BudgetTable) -> Budget:
    said = {field: value for field, value in structs.asdict(table).items() if value is not None}
    found = {field: _thousandths(f"{where}, {field}", _HOURS, value) for field, value in said.items()}
    if not found or not all(found.values()):
        field = next((field for field, value in found.items() if not value), "hard")
        raise InputError(f"{where}, {field}", _HOURS, said.get(field))
    return Budget(**found)


def _quota(where: str, table: QuotaTable) -> Quota:
    if table.model and not is_text(table.model):
        raise InputError(f"{where}, model", _EXPECTED["model"], table.model)

    def amount(field: str, value: int | float | str | None) -> int:
        if value is None:
            return -1
        place = f"{where}, {field}"
        return _mib(place, value) if table.resource == "memory" else _thousandths(place, _AMOUNT[table.resource], value)

    return Quota(
        resource=table.resource,
        model=table.model,
        nominal=amount("nominal", table.nominal),
        borrowing_limit=amount("borrowing_limit", table.borrowing_limit),
        lending_limit=amount("lending_limit", table.lending_limit),
        user_limit=amount("user_limit", table.user_limit),
    )


def parse_amount(where: str, resource: Resource, text: str) -> int:
    """Parse an amount in milli-GPUs, milli-cores or MiB: `64` GPUs, `0.5` cores, `512GiB`. Raises InputError."""
    number: int | float | str = text
    if re.fullmatch(r"[0-9]{1,16}", text, re.ASCII):
        number = int(text)
    elif re.fullmatch(r"[0-9]{1,12}\.[0-9]{1,3}", text, re.ASCII):
        number = float(text)
    return _mib(where, number) if resource == "memory" else _thousandths(where, _AMOUNT[resource], number)


def _thousandths(where: str, expected: str, value: int | float | str) -> int:
    """Return a value in thousandths of its unit. Raises InputError unless this is a whole number below 2^53."""
    milli = Fraction(-1)
    if not isinstance(value, str) and abs(value) < MAX_AMOUNT:  # infinity and NaN compare false
        milli = Fraction(str(value)) * 1000
    if milli.denominator != 1 or not 0 <= milli < MAX_AMOUNT:
        raise InputError(where, expected, value)
    return int(milli)


def _mib(where: str, value: int | float | str) -> int:
    mib = mebibytes_of(value) if isinstance(value, str) else value if isinstance(value, int) else None
    if mib is None or mib.denominator != 1 or not 0 <= mib < MAX_AMOUNT:
        raise InputError(where, _AMOUNT["memory"], value)
    return int(mib)
