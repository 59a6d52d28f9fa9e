"""A file of tenants, identified by keys, with the limits and the priority of each.

[default]                # requests without a key of the file; without this part they are refused
in_flight = 64           # requests at once
requests_per_s = 20.0    # on average
burst = 40               # requests at once above the average
tokens_per_minute = 1e6  # of prompts and outputs, on average; a minute's worth at once
priority = 10            # lower first; a client may ask for less urgency, not for more

[tenants.research]
key_sha256 = "9f86d0…"   # of the bearer token, in hexadecimal
in_flight = 512
trusted = true           # what its clients say about outputs and programs affects the order

[metrics]
key_sha256 = "2c26b4…"   # the key for /metrics; without this part any tenant's key works
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from msgspec import Meta, Struct

from kant.gateway.ask import PRIORITIES, Ask, RefusedError
from kant.model.errors import InputError
from kant.toml_file import read_toml

MOST = 1_000_000


@dataclass(slots=True)
class Tenant:
    """A tenant, its limits, and its usage: requests in flight, and the fill level of its rate-limit bucket.

    `priority` is the most urgent priority of its requests, lower first. `trusted`: what its clients say about outputs
    and programs is believed, since policies order by it.
    """

    name: str
    in_flight: int = MOST
    requests_per_s: float = math.inf
    burst: float = 1.0
    priority: int = 0
    trusted: bool = False
    tokens_per_minute: float = math.inf
    used: int = 0
    level: float = math.inf
    filled: float = 0.0
    budget: float = math.inf
    """The tokens left of the budget; negative if requests have used more."""
    granted: float = 0.0

    def take(self, now: float) -> None:
        """Count one more request at `now`, in seconds; raises RefusedError with 429 if a limit is exceeded."""
        if self.used >= self.in_flight:
            raise RefusedError(
                429, f"tenant {self.name}: at most {self.in_flight} requests at once", "rate_limit_error", 1
            )
        if self.tokens_per_minute < math.inf:
            each_s = self.tokens_per_minute / 60
            self.budget = min(self.tokens_per_minute, self.budget + (now - self.granted) * each_s)
            self.granted = now
            if self.budget <= 0:
                raise RefusedError(
                    429, f"tenant {self.name}: at most {self.tokens_per_minute:g} tokens a minute", "rate_limit_error",
                    min(math.ceil(-self.budget / each_s) + 1, 3600),
                )  # fmt: skip
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

    def limit_as(self, fresh: Tenant) -> Tenant:
        """Use the limits of `fresh` from now on. A new limit starts full."""
        spent = self.tokens_per_minute - self.budget if self.tokens_per_minute < math.inf else 0.0
        self.level = min(self.level, fresh.burst) if self.requests_per_s < math.inf else fresh.level
        for name in ("in_flight", "requests_per_s", "burst", "priority", "trusted", "tokens_per_minute"):
            setattr(self, name, getattr(fresh, name))
        self.budget = self.tokens_per_minute - spent
        return self

    def rank(self, ask: Ask) -> None:
        """Limit a request's urgency to its tenant's priority. Remove its program if the tenant is not trusted."""
        if not self.trusted:
            ask.forget_program()
        ask.yield_to(self.priority)

    def spend(self, tokens: int) -> None:
        """Charge the tokens of a request, prompt and output together, to the budget."""
        self.budget -= tokens

    def give_back(self) -> None:
        """Record that one of its requests has ended."""
        self.used -= 1


@dataclass(slots=True)
class Tenants:
    """Tenants by the SHA-256 of their key, the tenant of other requests (None: refused), and the metrics key's hash."""

    by_digest: dict[str, Tenant]
    default: Tenant | None
    metrics: str | None = None

    def become(self, fresh: Tenants) -> None:
        """Apply another file. Tenants of the same name keep their usage and their remaining budget."""
        known = {
            tenant.name: tenant for tenant in (*self.by_digest.values(), *([self.default] if self.default else []))
        }

        def merged(tenant: Tenant) -> Tenant:
            old = known.get(tenant.name)
            return tenant if old is None else old.limit_as(tenant)

        self.by_digest = {digest: merged(tenant) for digest, tenant in fresh.by_digest.items()}
        self.default = None if fresh.default is None else merged(fresh.default)
        self.metrics = fresh.metrics

    @property
    def keyed(self) -> bool:
        """Whether keys are configured. If they are, they are not forwarded to engines."""
        return bool(self.by_digest)

    def of(self, authorization: str) -> Tenant:
        """Return the tenant of an `Authorization` header; raises RefusedError with 401 if there is none."""
        tenant = self.by_digest.get(_digest(authorization)) if self.by_digest else None
        if tenant is not None:
            return tenant
        if self.default is None:
            raise _unknown()
        return self.default

    def named(self, name: str) -> Tenant | None:
        """Return the tenant of that name; None if there is none."""
        known = (*self.by_digest.values(), *([self.default] if self.default else []))
        return next((tenant for tenant in known if tenant.name == name), None)

    def read_metrics(self, authorization: str) -> None:
        """Check access to the metrics. Raises RefusedError with 401 if keys are configured and this is not one of them.

        If the metrics have their own key, only that key is accepted; otherwise the key of any tenant.
        """
        if self.metrics is None and not self.by_digest:
            return
        digest = _digest(authorization)
        if digest != self.metrics if self.metrics is not None else digest not in self.by_digest:
            raise _unknown()


def _digest(authorization: str) -> str:
    """Return the digest of a bearer token; "" if there is none."""
    if authorization[:7].lower() != "bearer ":
        return ""
    return hashlib.sha256(authorization[7:].strip().encode("utf-8", "surrogateescape")).hexdigest()


def _unknown() -> RefusedError:
    return RefusedError(401, "expected a valid bearer token", "authentication_error")


def single_tenant() -> Tenants:
    """Return the tenants to use without a file: one tenant, without limits and trusted."""
    return Tenants({}, Tenant("default", trusted=True))


Digest = Annotated[str, Meta(pattern=r"\A[0-9a-fA-F]{64}\Z")]
Amount = Annotated[float, Meta(ge=1, lt=1e12)]


class TenantTable(Struct, frozen=True, forbid_unknown_fields=True):
    """A table `[tenants.NAME]` or `[default]`. The default of `burst` is the requests of one second, at least one."""

    key_sha256: Digest | None = None
    in_flight: Amount = MOST
    requests_per_s: Annotated[float, Meta(ge=1e-6)] = math.inf
    burst: Amount | None = None
    tokens_per_minute: Annotated[float, Meta(ge=1)] = math.inf
    priority: Annotated[int, Meta(gt=-PRIORITIES, lt=PRIORITIES)] = 0
    trusted: bool = False

    def tenant(self, name: str) -> Tenant:
        """Return a tenant with these limits, of which nothing is used."""
        rate, tokens = self.requests_per_s, self.tokens_per_minute
        burst = self.burst if self.burst is not None else max(1.0, rate if rate < math.inf else 1.0)
        return Tenant(
            name, int(self.in_flight), rate, burst, self.priority, self.trusted, tokens, level=burst, budget=tokens
        )


class MetricsTable(Struct, frozen=True, forbid_unknown_fields=True):
    """The table `[metrics]`."""

    key_sha256: Digest


class TenantsFile(Struct, frozen=True, forbid_unknown_fields=True):
    """The whole file of tenants."""

    default: TenantTable | None = None
    tenants: dict[str, TenantTable] = {}
    metrics: MetricsTable | None = None


_A_KEY = "the SHA-256 of its bearer token, 64 hexadecimal digits"
_EXPECTED = {"key_sha256": _A_KEY, "priority": "a whole number, lower for more urgent"}


def read_tenants(path: Path) -> Tenants:
    """Read the tenants of a file; raises InputError if it does not match this module's description."""
    file = read_toml(path, TenantsFile, _EXPECTED)
    by_digest: dict[str, Tenant] = {}
    for name, table in file.tenants.items():
        if table.key_sha256 is None:
            raise InputError(f"{path}, tenants, {name}", f"the key key_sha256, {_A_KEY}")
        digest = table.key_sha256.lower()
        if digest in by_digest:
            raise InputError(f"{path}, tenants, {name}, key_sha256", "a key that no other tenant has")
        by_digest[digest] = table.tenant(name)
    return Tenants(
        by_digest,
        None if file.default is None else file.default.tenant("default"),
        None if file.metrics is None else file.metrics.key_sha256.lower(),
    )
