"""Services of a real cluster: how many replicas they need now, and in the coming hours."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kant.model.errors import InputError
from kant.serving.capacity import CapacityCurve
from kant.serving.columns import Times
from kant.serving.forecast import Forecast, Rhythm, Seen, Written
from kant.serving.rates import read_rates
from kant.serving.scaling import Foresight, Scaler, Static, Utilisation
from kant.serving.services_file import ServiceTable, read_tables, replicas_of
from kant.serving.traffic import Traffic

NAME = re.compile("[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")


@dataclass(frozen=True, slots=True)
class LiveService:
    """A service with real replicas: its table, its capacity curve, the number of GPUs per replica, and its traffic.

    `expected` is a written forecast that starts in minute `begins` of the Unix epoch, and repeats (None: no forecast).
    `traffic` has the counted requests.
    """

    table: ServiceTable
    curve: CapacityCurve
    gpus: int
    traffic: Traffic
    expected: Times | None = None
    begins: int = 0

    @property
    def name(self) -> str:
        return self.table.name

    @property
    def counts_requests(self) -> bool:
        """Whether its number of replicas depends on counted requests."""
        table = self.table
        return table.scale == "utilisation" or bool(table.history or (table.forecast and table.operators))

    def wanted(self, now: float, count: int) -> int:
        """Return the number of replicas for `now` (seconds of the epoch): at least the core, at most the maximum."""
        scaler, minute = self._scaler(int(now // 60))
        return self._bounded(scaler.wanted(minute, count))

    def overrun(self, now: float, count: int) -> bool:
        """Whether to call `wanted` early: more requests arrived in the last minute than `count` replicas can serve."""
        scaler, minute = self._scaler(int(now // 60))
        return isinstance(scaler, Foresight) and count < self.table.most and scaler.overrun(minute, count)

    def rates(self, now: float) -> dict[str, float]:
        """Return the rates on which `wanted` depends, in requests a second; empty without a forecast.

        `expected` is the highest rate of the forecast until replicas requested now could serve; `seen` is the rate of
        the last minute.
        """
        if self.table.scale != "forecast":
            return {}
        found, at = self._forecast(int(now // 60))
        expected, seen = found.forecast.most(at, at, at + found.lead), found.latest(at)
        return {"expected": round(expected, 3), "seen": round(seen, 3)}

    def ahead(self, now: float, hours: int) -> list[dict[str, Any]]:
        """Return, for each of the next hours, the highest forecast rate (requests a second) and the replicas for it.

        Raises InputError if there is no forecast.
        """
        minute = int(now // 60)
        if self.table.scale == "utilisation":
            where = f"service {self.name}: scale"
            raise InputError(where, "forecast, or static, which tell how many replicas it will have", self.table.scale)
        found = []
        for hour in range(hours):
            begin, end = hour * 60, hour * 60 + 60
            if self.table.scale == "static":
                rate, needed = math.nan, self.table.replicas
            else:
                forecast, at = self._forecast(minute)
                rate = forecast.most(at, at + begin, at + end)
                needed = self.curve.needed(rate)
            row: dict[str, Any] = {"from_s": (minute + begin) * 60, "replicas": self._bounded(needed)}
            found.append(row if math.isnan(rate) else {**row, "requests_per_s": rate})
        return found

    def _bounded(self, replicas: int) -> int:
        return min(max(replicas, self.table.core), self.table.most)

    def _scaler(self, minute: int) -> tuple[Scaler, int]:
        """Return the scaler, and the present minute on the scaler's clock."""
        table = self.table
        if table.scale == "static":
            return Static(table.replicas), 0
        if table.scale == "utilisation":
            seen = self.traffic.rates(minute)
            return Utilisation(self.curve.rates[-1] / self.curve.replicas[-1], seen, table.target), len(seen)
        forecast, at = self._forecast(minute)
        return Foresight(self.curve, forecast, table.start_s, table.every_s, table.hold_s), at

    def _forecast(self, minute: int) -> tuple[Seen, int]:
        """Return the forecast, corrected by recent traffic, and the present minute on the forecast's clock."""
        table = self.table
        seen = self.traffic.rates(minute)
        lead = math.ceil((table.start_s + table.every_s) / 60)
        forecast: Forecast
        if self.expected is not None:
            forecast, now = Written(self.expected, table.margin, again=True), minute - self.begins
        else:
            forecast, now = Rhythm(seen, len(seen), table.cover, lead, table.margin), 0
        return Seen(forecast, seen, now - len(seen), table.cover, lead), now


def read_live_services(path: Path, now: float, kept: Path) -> tuple[LiveService, ...]:
    """Read the services with real replicas from a file. Counts of their requests are kept in the folder `kept`.

    Raises InputError if the file is invalid or lacks something that scaling needs.
    """
    found = []
    for table in read_tables(path):
        where = f"{path}: service {table.name}"
        if not NAME.fullmatch(table.name):
            raise InputError(f"{where}: name", "letters, digits, dots, _ and -, 63 at most", table.name)
        begins = table.begins
        if begins is None and (table.forecast or table.history):
            raise InputError(
                f"{where}: begins", "the TOML time at which the first row of its forecast or history begins"
            )
        if begins is not None and not (table.forecast or table.history):
            raise InputError(f"{where}: begins", "a forecast or a history with it")
        start = int(begins.timestamp() // 60) if begins is not None else 0
        _, curve, gpus = replicas_of(table, path)
        before = read_rates(path.parent / table.history) if table.history else None
        if before is not None and start + len(before) > now // 60:
            raise InputError(f"{where}: history", "only past days")
        expected = read_rates(path.parent / table.forecast) if table.forecast else None
        service = LiveService(
            table, curve, gpus, Traffic(kept / f"{table.name}.csv", before, start), expected, start
        )  # fmt: skip
        if service.counts_requests and not table.operators:
            expected_text = "the operator addresses of the routers that count its requests"
            raise InputError(f"{where}: operators", expected_text)
        try:
            service.wanted(now, table.core)
        except InputError as error:
            raise InputError(f"{where}: {error.where}", error.expected, error.got) from None
        found.append(service)
    return tuple(found)
