"""The steps by which a leader carries out its plans, on one queue of effects."""

from __future__ import annotations

from kant.kube.act.binder import Binder
from kant.kube.act.claim_binder import ClaimBinder
from kant.kube.act.device_locks import DeviceLocks
from kant.kube.act.effects import Effects
from kant.kube.act.evictor import Evictor
from kant.kube.act.volume_binder import VolumeBinder
from kant.kube.follow.mirror import Mirror
from kant.kube.reconcile.translation import Translation


class Steps:
    """Volumes, claims and device locks precede bindings; evictions are independent of them."""

    def __init__(self, effects: Effects, mirror: Mirror, translation: Translation) -> None:
        self.effects = effects
        self.volumes = VolumeBinder(effects, mirror, translation.filters.chosen_volumes)
        self.claims = ClaimBinder(effects, mirror, translation.devices)
        locks = DeviceLocks(effects, mirror, translation.scheduler)
        self.binder = Binder(effects, mirror, self.volumes, self.claims, locks)
        self.evictor = Evictor(effects, mirror)

    def is_binding(self) -> bool:
        """Whether bindings are in flight, for which everything else waits."""
        return bool(self.binder.step.in_flight)

    @property
    def is_busy(self) -> bool:
        """Whether something is in flight that a state built now would miss."""
        return self.is_binding() or bool(self.binder.results) or self.evictor.is_busy or self.claims.is_busy
