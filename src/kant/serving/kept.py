"""Caches measurements of a service on the simulated engine, in the user's cache, keyed by everything they depend on."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import msgspec
import numpy as np

from kant.files import write_bytes
from kant.serving.capacity import CapacityCurve, capacity_curve
from kant.serving.removal_price import LateShares, late_shares
from kant.serving.service import Service

T = TypeVar("T", CapacityCurve, LateShares)
MEASURED = (1, 2, 4, 8)
"""The numbers of replicas whose capacity is measured."""

MINUTES = 100
"""The minutes of each trial by which a capacity is measured."""


def kept_curve(service: Service, replicas: Sequence[int] = MEASURED) -> CapacityCurve:
    """Return the capacity curve of a service. It is measured once, then cached."""
    key = tuple(replicas), MINUTES
    return _kept(service, key, CapacityCurve, lambda: capacity_curve(service, replicas, minutes=MINUTES))


def kept_shares(service: Service, curve: CapacityCurve) -> LateShares:
    """Return the share of late requests while a replica is away. It is measured once, then cached."""
    return _kept(service, ("late", curve.replicas, curve.rates), LateShares, lambda: late_shares(service, curve))


def _kept(service: Service, of: tuple[object, ...], kind: type[T], measure: Callable[[], T]) -> T:
    """Return the cached measurement; if there is none, measure now."""
    file = _kept_at(service, of)
    with suppress(OSError, msgspec.MsgspecError, UnicodeDecodeError):  # otherwise it is measured now
        return msgspec.json.decode(file.read_bytes(), type=kind)
    found = measure()
    with suppress(OSError):  # otherwise it is measured again next time
        file.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(file, msgspec.json.encode(found))
    return found


def _kept_at(service: Service, of: tuple[object, ...]) -> Path:
    from kant import __version__

    probe = service.mix.requests(1024, 1.0, 0)
    found = hashlib.sha256(repr((__version__, service.settings, service.objectives, service.router, service.policy,
                                 service.mix.burstiness, *of)).encode())  # fmt: skip
    for column in (probe.arrival, probe.prompt, probe.output):
        found.update(np.ascontiguousarray(column).tobytes())
    given = os.environ.get("KANT_CACHE_DIR") or os.environ.get("XDG_CACHE_HOME")
    folder = (Path(given) if given else Path.home() / ".cache") / "kant" / "capacity"
    return folder / f"{found.hexdigest()[:32]}.json"
