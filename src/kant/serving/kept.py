"""Caches measurements of a service on the simulated engine, in the user's cache, keyed by everything they depend on."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kant.serving.capacity import CapacityCurve, capacity_curve
from kant.serving.removal_price import LateShares, late_shares
from kant.serving.service import Service

MEASURED = (1, 2, 4, 8)
"""The numbers of replicas whose capacity is measured."""

MINUTES = 100
"""The minutes of the trials that measure it."""


def kept_curve(service: Service, replicas: Sequence[int] = MEASURED) -> CapacityCurve:
    """Return the capacity curve of a service, measured once."""

    def measure() -> dict[str, Any]:
        curve = capacity_curve(service, replicas, minutes=MINUTES)
        return {"replicas": curve.replicas, "rates": curve.rates}

    kept = _kept(service, (tuple(replicas), MINUTES), measure)
    return CapacityCurve(tuple(kept["replicas"]), tuple(kept["rates"]))


def kept_shares(service: Service, curve: CapacityCurve) -> LateShares:
    """Return the share of late requests while a replica is away, measured once."""

    def measure() -> dict[str, Any]:
        found = late_shares(service, curve)
        return {"replicas": found.loads, "rates": found.shares}

    kept = _kept(service, ("late", curve.replicas, curve.rates), measure)
    return LateShares(tuple(kept["replicas"]), tuple(kept["rates"]))


def _kept(service: Service, of: tuple[object, ...], measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return the cached measurement, or measure now: two lists of numbers, `replicas` and `rates`."""
    file = _kept_at(service, of)
    try:
        kept: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        if all(isinstance(number, int | float) for key in ("replicas", "rates") for number in kept[key]):
            return kept
    except (OSError, ValueError, KeyError, TypeError):
        pass  # it is measured now
    found = measure()
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        draft = file.with_suffix(f".{os.getpid()}")
        draft.write_text(json.dumps(found), encoding="utf-8")
        draft.replace(file)
    except OSError:
        pass  # it is measured again next time
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
