"""A client of the operators' API of routers (`kant serve route --operators`), with only the standard library."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from kant.model.errors import InputError

PATIENCE_S = 5.0
ARRIVALS = re.compile(
    r'^(?:kant_router_arrivals_total|envoy_http_downstream_rq_total\{envoy_http_conn_manager_prefix="clients"\})'
    r" ([0-9.eE+]+)$",
    re.MULTILINE,
)
"""The number of arrived requests, as counted by a router, or by an Envoy configured as in deploy/envoy.yaml.
"""


@dataclass(frozen=True, slots=True)
class RouterBackend:
    """A backend as its router sees it; a `draining` one gets no new requests, and `in_flight` counts its requests."""

    number: int
    url: str
    draining: bool
    in_flight: int


@dataclass(frozen=True, slots=True)
class Operators:
    """The addresses of the operators' APIs of routers in front of the same backends. All methods raise InputError."""

    addresses: Sequence[str]

    def total(self) -> float:
        """Return how many requests arrived at all routers; an address with a path is that of the metrics themselves."""
        found = 0.0
        for address in self.addresses:
            path = "" if urlsplit(address).path.strip("/") else "/metrics"
            numbers = ARRIVALS.findall(self._ask(address, "GET", path).decode("utf-8", "replace"))
            if not numbers:
                raise InputError("operators", "a router whose metrics count arrivals", address)
            found += sum(map(float, numbers))
        return found

    def known(self) -> frozenset[str]:
        """Return the backends that every router knows."""
        urls = [frozenset(backend.url for backend in self._backends(address)) for address in self.addresses]
        return frozenset.intersection(*urls) if urls else frozenset()

    def close(self, closed: frozenset[str], among: frozenset[str]) -> dict[str, int]:
        """Of the backends `among`, drain those in `closed` and resume the others.

        Returns the requests in flight of each backend, plus one for each router where its state has just changed.
        """
        has = dict.fromkeys(among, 0)
        for address in self.addresses:
            for backend in self._backends(address):
                if backend.url in among:
                    has[backend.url] += backend.in_flight
                    if backend.draining != (backend.url in closed):
                        has[backend.url] += 1
                        word = "drain" if backend.url in closed else "resume"
                        self._ask(address, "POST", f"/backends/{backend.number}/{word}")
        return has

    def _backends(self, address: str) -> list[RouterBackend]:
        try:
            rows: list[dict[str, Any]] = json.loads(self._ask(address, "GET", "/backends"))
            return [
                RouterBackend(int(row["backend"]), str(row["url"]), bool(row["draining"]), int(row["in_flight"]))
                for row in rows
            ]
        except (ValueError, KeyError, TypeError):
            raise InputError("operators", "the operators' address of a router", address) from None

    @staticmethod
    def _ask(address: str, method: str, path: str) -> bytes:
        try:
            with urlopen(Request(address.rstrip("/") + path, method=method), timeout=PATIENCE_S) as answer:
                found: bytes = answer.read(8 << 20)
                return found
        except HTTPError as error:
            raise InputError("operators", f"the operators' address of a router ({error.code})", address) from None
        except (URLError, OSError, ValueError) as error:
            why = getattr(error, "reason", error)
            raise InputError("operators", f"the operators' address of a router that runs ({why})", address) from None
