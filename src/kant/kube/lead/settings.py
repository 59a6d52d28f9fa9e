"""Settings of a driver: which pods it schedules, and how."""

from __future__ import annotations

from dataclasses import dataclass

from kant.live.journals import Journals
from kant.live.solver import Solver
from kant.live.start_forecasts import Forecaster, no_forecaster
from kant.scheduler.profile import Profile


@dataclass(frozen=True, slots=True)
class DriverSettings:
    """`journals` writes the journals (None: there are none). In shadow mode, `shadow` names other schedulers: Kant
    decides for their GPU pods, but carries out nothing. Empty: Kant schedules its own pods.

    `recovery`, `staleness`: seconds for which a gang may be partially bound (see `PartiallyBound.overdue`). `namespace`
    is that of the Lease. `solver` is used if the profile has `[fallback]` or `[defragment]`; `forecaster` answers pods
    that only ask when they would start. With `once` the cluster is read once and not watched.
    """

    profile: Profile
    journals: Journals | None = None
    scheduler_name: str = "kant"
    shadow: tuple[str, ...] = ()
    recovery: float = 30.0
    staleness: float = 60.0
    seed: int = 0
    namespace: str = "kant-system"
    solver: Solver | None = None
    forecaster: Forecaster = no_forecaster
    once: bool = False
