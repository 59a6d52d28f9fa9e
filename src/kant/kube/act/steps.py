"""The kinds of requests by which a leader carries out its plans; all are effects of one queue."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kant.kube.act.binder import Binder
from kant.kube.act.effects import Effects
from kant.kube.act.evictor import Evictor
from kant.kube.follow.mirror import Mirror
from kant.kube.reconcile.translation import Translation
from kant.kube.translate.hami_devices import REGISTER

if TYPE_CHECKING:
    from kant.kube.act.claim_binder import ClaimBinder
    from kant.kube.act.device_locks import DeviceLocks
    from kant.kube.act.volume_binder import VolumeBinder


class Steps:
    """The kinds of requests. A pod is bound once it has its volumes, claims and device lock; evictions do not wait."""

    def __init__(self, effects: Effects, mirror: Mirror, translation: Translation) -> None:
        self.effects = effects
        self.mirror = mirror
        self.translation = translation
        self._claims: ClaimBinder | None = None
        self._locks: DeviceLocks | None = None
        self._volumes: VolumeBinder | None = None
        self.binder = Binder(effects, mirror, lambda: self.volumes, lambda: self.claims, self.locks)
        self.evictor = Evictor(effects, mirror)

    @property
    def claims(self) -> ClaimBinder | None:
        """The binder of ResourceClaims, imported when the first claim exists; None before."""
        if self._claims is None and self.mirror.has_devices and self.mirror.devices.claims:
            from kant.kube.act.claim_binder import ClaimBinder

            self._claims = ClaimBinder(self.effects, self.mirror, self.translation.devices.allocations)
        return self._claims

    @property
    def volumes(self) -> VolumeBinder | None:
        """The binder of volumes, imported when the first pod uses a volume claim; None before."""
        if self._volumes is None and self.mirror.users:
            from kant.kube.act.volume_binder import VolumeBinder

            self._volumes = VolumeBinder(self.effects, self.mirror, self.translation.filters.chosen_volumes)
        return self._volumes

    def locks(self, node: str) -> DeviceLocks | None:
        """Return the device locks if HAMi has registered devices on `node`, else None. Imported on first use."""
        view = self.mirror.nodes.get(node)
        if view is None or not (view.metadata.annotations or {}).get(REGISTER):
            return None
        if self._locks is None:
            from kant.kube.act.device_locks import DeviceLocks

            self._locks = DeviceLocks(self.effects, self.mirror, self.translation.scheduler)
        return self._locks

    def is_binding(self) -> bool:
        """Whether bindings are in flight; less urgent requests wait until none is."""
        return bool(self.binder.step.in_flight)

    @property
    def is_busy(self) -> bool:
        """Whether a request is in flight, so that a state built now would lack its outcome."""
        writes = self._claims is not None and self._claims.is_busy
        return self.is_binding() or bool(self.binder.results) or self.evictor.is_busy or writes
