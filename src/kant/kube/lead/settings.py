"""By what a replica decides, and what for."""

from __future__ import annotations

from dataclasses import dataclass

from kant.live.journals import Journals
from kant.live.solver import Solver
from kant.live.start_forecasts import Forecaster, nobody
from kant.scheduler.profile import Profile


@dataclass(frozen=True, slots=True)
class DriverSettings:
    """`journals`: where they go (None: nowhere). `shadow`: decide for the GPU pods of these schedulers, and do nothing.

    `recovery`, `staleness`: seconds for which a gang may be bound in part, see `PartiallyBound.overdue`. `namespace` is
    that of the Lease. `solver` is asked where the profile has `[fallback]` or `[defragment]`,
    `forecaster` when pods only ask when they would start. With `once` the cluster
    is read and not followed.
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
    forecaster: Forecaster = nobody
    once: bool = False
