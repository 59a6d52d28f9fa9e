"""The volume binder: writes a pod's node into its claims that are bound on first use; the pod waits for its volumes.

The pods of a workload are bound only once the claims of all of them are bound: no gang is bound in part. A provisioner
may create a volume elsewhere than requested; then the workload waits again, to be placed near the volume.

Source: kube-scheduler's plugin VolumeBinding (AssumePodVolumes, BindPodVolumes), for volumes that a provisioner
creates.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from kant.kube.act.effects import ELSEWHERE, Effects, RefusedError, Step, Work
from kant.kube.follow.mirror import Mirror
from kant.kube.objects import views as k
from kant.kube.reconcile.chosen_volumes import ChosenVolumes
from kant.kube.reconcile.slots import Slot, coming
from kant.kube.reconcile.workload import Workload
from kant.kube.translate.local_volumes import fits, is_kept_for
from kant.kube.translate.node_facts import meets
from kant.kube.translate.volumes import (
    SELECTED_NODE,
    chosen_claims,
    claims_of,
    demanded,
    is_bound,
    key_of,
    selected_node,
)

PATIENCE = 600.0  # seconds to provision a volume, as for kube-scheduler (bindTimeoutSeconds)
BOUND_BY_CONTROLLER = "pv.kubernetes.io/bound-by-controller"
"""The annotation of a volume that a controller matched with a claim. Such a volume is free once the claim is gone."""

TAKEN = "volume-taken"


@dataclass(slots=True)
class Asked:
    """A request for a claim's volume at `node`, made at `since` (monotonic seconds). `seen`: the watch has shown it."""

    node: str
    since: float
    seen: bool = False


class VolumeBinder:
    """Requests volumes for claims. `asked` has, by the uid of the claim, each volume that may not exist yet."""

    def __init__(self, effects: Effects, mirror: Mirror, local: ChosenVolumes) -> None:
        self.effects = effects
        self.step: Step[str] = effects.step()  # by the uid of a claim, or the name of a volume to release
        self.mirror = mirror
        self.asked: dict[str, Asked] = {}
        self.local = local

    def prepare(self, workload: Workload) -> bool:
        """Return whether the workload's pods have their volumes; request missing ones. Raises RefusedError."""
        ready = True
        for slot, pod in coming(workload.slots, self.mirror.pods):
            for name in claims_of(pod):
                claim = self.mirror.claims.get((pod.metadata.namespace, name))
                if claim is None:
                    raise RefusedError(slot, f"its claim {name} no longer exists", "volume")
                ready = self._is_ready(claim, slot) and ready
        return ready

    def _is_ready(self, claim: k.Claim, slot: Slot) -> bool:
        uid, name = claim.metadata.uid, claim.metadata.name
        if is_bound(claim):
            self.asked.pop(uid, None)
            return self._reaches(claim, slot)
        if key_of(claim) in self.local.chosen:
            return self._is_kept(claim, slot)
        selected = selected_node(claim, self.mirror.storage)
        asked = self._asked(claim, selected or slot.node)
        asked.seen = asked.seen or selected == asked.node
        gave_up = f"no volume could be created for its claim {name} on node {asked.node}"
        self._give_up_if_late(claim, slot, asked, gave_up, "volume")
        if asked.seen and not selected:
            del self.asked[uid]
            raise RefusedError(slot, gave_up, "volume")
        if not asked.seen:
            change = {"metadata": {"uid": uid, "annotations": {SELECTED_NODE: asked.node}}}
            path = f"/api/v1/namespaces/{claim.metadata.namespace}/persistentvolumeclaims/{name}"
            self.step.begin(uid, partial(self.effects.patch, path, change), claim.metadata.resource_version)
        return False

    def _asked(self, claim: k.Claim, node: str) -> Asked:
        """Return the request for a claim's volume; create it if there is none. Old requests are forgotten."""
        now = self.effects.clock()
        if claim.metadata.uid not in self.asked:
            self.asked = {uid: one for uid, one in self.asked.items() if now - one.since <= 2 * PATIENCE}
        return self.asked.setdefault(claim.metadata.uid, Asked(node, now))

    def _give_up_if_late(self, claim: k.Claim, slot: Slot, asked: Asked, gave_up: str, word: str) -> None:
        """Raise RefusedError if the API server has refused the request, or if it is older than PATIENCE."""
        why = self.step.refusals.pop(claim.metadata.uid, "")
        if why or self.effects.clock() - asked.since > PATIENCE:
            del self.asked[claim.metadata.uid]
            said = f"its claim {claim.metadata.name} cannot be bound: {why}" if why else f"{gave_up} in {PATIENCE:g} s"
            raise RefusedError(slot, said, word)

    def _reaches(self, claim: k.Claim, slot: Slot) -> bool:
        storage, node = self.mirror.storage, self.mirror.nodes.get(slot.node)
        if claim.spec.volume_name not in storage.volumes or node is None:
            return False  # the watch does not show the binding yet
        if meets(demanded(claim, storage), node):
            return True
        where = f"volume {claim.spec.volume_name} of its claim {claim.metadata.name}"
        raise RefusedError(slot, f"node {slot.node} cannot use the {where}", ELSEWHERE)

    # --- local volumes, created in advance -------------------------------------------------------------------------

    def _is_kept(self, claim: k.Claim, slot: Slot) -> bool:
        """Reserve the volume chosen for a claim; the volume controller binds both. Returns whether they are bound."""
        meta, name = claim.metadata, self.local.chosen[key_of(claim)]
        volume = self.mirror.volumes.get(name)
        if volume is None or not fits(volume, claim):
            self.asked.pop(meta.uid, None)
            raise RefusedError(slot, f"the volume {name} of its claim {meta.name} is in use", TAKEN)
        gave_up = f"the volume {name} was not bound to its claim {meta.name}"
        self._give_up_if_late(claim, slot, self._asked(claim, slot.node), gave_up, TAKEN)
        if not is_kept_for(volume, claim):
            ref = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": meta.namespace, "name": meta.name}
            self.step.begin(meta.uid, self._of(volume, ref | {"uid": meta.uid}), volume.metadata.resource_version)
        return False

    def _of(self, volume: k.PersistentVolume, ref: dict[str, str] | None) -> Work:
        """Return the work that makes `ref` the claim to which a volume belongs (None: the volume belongs to none)."""
        meta = volume.metadata
        marks = {BOUND_BY_CONTROLLER: "yes" if ref is not None else None}
        change = {
            "metadata": {"resourceVersion": meta.resource_version, "annotations": marks},
            "spec": {"claimRef": ref},
        }
        return partial(self.effects.patch, f"/api/v1/persistentvolumes/{meta.name}", change)

    def give_back(self, workload: Workload) -> None:
        """Release the volumes reserved for the claims of a workload that loses its allocation."""
        for _, pod in coming(workload.slots, self.mirror.pods):
            for claim in chosen_claims(pod, self.mirror.storage):
                self.asked.pop(claim.metadata.uid, None)
                volume = self.mirror.volumes.get(self.local.chosen.pop(key_of(claim), ""))
                if volume is not None and is_kept_for(volume, claim):
                    self.step.begin(volume.metadata.name, self._of(volume, None))
