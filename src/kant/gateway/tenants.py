"""Who may ask how much: a file of tenants, known by their keys, with limits for each.

[default]                # who has no key of the file; without this part such requests are refused
in_flight = 64           # requests at once
requests_per_s = 20.0    # in the mean
burst = 40               # requests at once above the mean

[tenants.research]
key_sha256 = "9f86d0…"   # of the bearer token, in hexadecimal
in_flight = 512
"""

from __future__ import annotations

import hashlib
import math
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kant.gateway.ask import RefusedError
from kant.model.errors import InputError

MOST = 1_000_000
KEYS = {"key_sha256", "in_flight", "requests_per_s", "burst"}


@dataclass(slots=True)
class Tenant:
    """A tenant, its limits, and what it uses: requests in flight, and what is left of its bucket of requests."""

    name: str
    in_flight: int = MOST
    requests_per_s: float = math.inf
    burst: float = 1.0
    used: int = 0
    level: float = math.inf
    filled: float = 0.0

    def take(self, now: float) -> None:
        """Count one more request at `now`, seconds; raises RefusedError with 429 where it is too many."""
        if self.used >= self.in_flight:
            raise RefusedError(
                429, f"tenant {self.name}: at most {self.in_flight} requests at once", "rate_limit_error", 1
            )
        if self.requests_per_s < math.inf:
            level = min(self.burst, self.level + (now - self.filled) * self.requests_per_s)
            self.level, self.filled = level, now
            if level < 1:
                wait = math.ceil((1 - level) / self.requests_per_s)
                raise RefusedError(
                    429, f"tenant {self.name}: at most {self.requests_per_s:g} requests a second", "rate_limit_error",
                    min(wait, 3600),
                )  # fmt: skip
            self.level -= 1
        self.used += 1

    def give_back(self) -> None:
        """One of its requests is over."""
        self.used -= 1


@dataclass(slots=True)
class Tenants:
    """All tenants: those with a key by its digest, and who has none."""

    by_digest: dict[str, Tenant]
    default: Tenant | None

    @property
    def keyed(self) -> bool:
        """Whether there are keys: then the engines do not see them."""
        return bool(self.by_digest)

    def of(self, authorization: str) -> Tenant:
        """The tenant of an `Authorization` header; raises RefusedError with 401 where there is none."""
        if self.by_digest and authorization[:7].lower() == "bearer ":
            digest = hashlib.sha256(authorization[7:].strip().encode("utf-8", "surrogateescape")).hexdigest()
            if digest in self.by_digest:
                return self.by_digest[digest]
        if self.default is None:
            raise RefusedError(401, "expected a bearer token that this router knows", "authentication_error")
        return self.default


def everybody() -> Tenants:
    """No file: one tenant without limits."""
    return Tenants({}, Tenant("default"))


def read_tenants(path: Path) -> Tenants:
    """The tenants of a file; raises InputError where it is not as this module says."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(str(path), f"a file that can be read ({error.strerror or error})") from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InputError(str(path), f"TOML ({error})") from None
    named = content.get("tenants", {})
    if unknown := sorted(set(content) - {"default", "tenants"}):
        raise InputError(f"{path}: {unknown[0]}", "[default] or [tenants.NAME]")
    if not isinstance(named, dict) or not all(isinstance(row, dict) for row in named.values()):
        raise InputError(f"{path}: tenants", "a table for each tenant, [tenants.NAME]")
    by_digest: dict[str, Tenant] = {}
    for name, row in named.items():
        where = f"{path}: tenants.{name}"
        digest = row.get("key_sha256")
        if not isinstance(digest, str) or len(digest) != 64 or set(digest.lower()) - set("0123456789abcdef"):
            raise InputError(f"{where}.key_sha256", "the SHA-256 of its bearer token, 64 hexadecimal digits", digest)
        if digest.lower() in by_digest:
            raise InputError(f"{where}.key_sha256", "a key that no other tenant has")
        by_digest[digest.lower()] = _tenant(where, name, row)
    default = content.get("default")
    if default is not None and not isinstance(default, dict):
        raise InputError(f"{path}: default", "a table, [default]")
    return Tenants(by_digest, None if default is None else _tenant(f"{path}: default", "default", default))


def _tenant(where: str, name: str, row: dict[str, Any]) -> Tenant:
    if unknown := sorted(set(row) - KEYS):
        raise InputError(f"{where}.{unknown[0]}", f"one of {', '.join(sorted(KEYS))}")
    rate = _number(where, row, "requests_per_s", math.inf, 1e-6)
    burst = _number(where, row, "burst", max(1.0, rate if rate < math.inf else 1.0), 1.0)
    in_flight = _number(where, row, "in_flight", MOST, 1.0)
    return Tenant(name, int(in_flight), rate, burst, level=burst)


def _number(where: str, row: dict[str, Any], key: str, default: float, least: float) -> float:
    value = row.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not (value == default or least <= value < 1e12):
        raise InputError(f"{where}.{key}", f"a number from {least:g} on", value)
    return float(value)
