"""The volume binder: claims that are bound when a pod first uses them get its node, and the pod waits for its volumes.

The pods of a workload are bound once the claims of all of them are: a gang is whole, or not there. What a provisioner
has made may lie elsewhere than was hoped; then the workload waits again, and goes where its volumes are.

Source: kube-scheduler's plugin VolumeBinding (AssumePodVolumes, BindPodVolumes), for volumes that a provisioner makes.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from kant.kube.connect.client import ApiClient, ApiError, FencedError
from kant.kube.connect.errors import advice
from kant.kube.follow.mirror import Mirror
from kant.kube.objects import views as k
from kant.kube.reconcile.slots import Slot
from kant.kube.reconcile.workload import Workload
from kant.kube.translate.local_volumes import chosen_claims, fits, is_kept_for, key_of
from kant.kube.translate.node_facts import admits
from kant.kube.translate.selectors import Selection
from kant.kube.translate.volumes import SELECTED_NODE, ClaimName, claims_of, demanded, is_bound, selected_node

PATIENCE = 600.0  # seconds for a volume to be made, as for kube-scheduler (bindTimeoutSeconds)
BOUND_BY_CONTROLLER = "pv.kubernetes.io/bound-by-controller"
"""The annotation of a volume whose claim was chosen by a program: without its claim it is anybody's again."""

TAKEN = "volume-taken"
PAUSE = 0.5  # seconds before a request that may heal is sent again
ELSEWHERE = "volume-elsewhere"
ANY_TAINT = (k.Toleration(operator="Exists"),)


class VolumeRefusedError(Exception):
    """The pod of a slot cannot have its volumes at its node, in one sentence; `word` says in short why.

    With `ELSEWHERE` they are there, and other nodes reach them.
    """

    def __init__(self, slot: Slot, sentence: str, word: str = "volume") -> None:
        super().__init__(sentence)
        self.slot = slot
        self.word = word


@dataclass(slots=True)
class Asked:
    """A volume is to be made for a claim at `node`. `seen`: the API server says so. `wrong`: it has refused."""

    node: str
    since: float
    seen: bool = False
    wrong: str = ""


class VolumeBinder:
    """`wake` is called when something is known; `holds` guards every request.

    `asked` has, by the uid of its claim, each volume that is to be made and is not known to be there.
    """

    def __init__(
        self,
        client: ApiClient,
        mirror: Mirror,
        wake: Callable[[], None],
        holds: Callable[[], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.client = client
        self.mirror = mirror
        self.wake = wake
        self.holds = holds
        self.clock = clock
        self.asked: dict[str, Asked] = {}
        self.chosen: Callable[[], dict[ClaimName, str]] = dict  # the local volumes of claims, as they were chosen
        self._tasks: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        """Take back what has not been sent."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def prepare(self, workload: Workload) -> bool:
        """Whether its pods have their volumes; those that are not bound are asked for. Raises VolumeRefusedError."""
        ready = True
        for slot in workload.slots:
            pod = self.mirror.pods.get(slot.pod) if slot.pod and not slot.bound else None
            for name in claims_of(pod) if pod is not None else ():
                assert pod is not None
                claim = self.mirror.claims.get((pod.metadata.namespace, name))
                if claim is None:
                    raise VolumeRefusedError(slot, f"its claim {name} is not there any more")
                ready = self._is_ready(claim, slot) and ready
        return ready

    def _is_ready(self, claim: k.Claim, slot: Slot) -> bool:
        uid, name = claim.metadata.uid, claim.metadata.name
        if is_bound(claim):
            self.asked.pop(uid, None)
            return self._reaches(claim, slot)
        if key_of(claim) in self.chosen():
            return self._is_kept(claim, slot)
        selected = selected_node(claim, self.mirror.storage)
        asked = self.asked.get(uid)
        if asked is None:
            self._ask(claim, slot.node, selected)
            return False
        asked.seen = asked.seen or selected == asked.node
        late = self.clock() - asked.since > PATIENCE
        if asked.wrong or late or (asked.seen and not selected):
            del self.asked[uid]
            gave_up = f"no volume could be made for its claim {name} at node {asked.node}"
            raise VolumeRefusedError(slot, asked.wrong or gave_up + (f" in {PATIENCE:g} s" if late else ""))
        return False

    def _reaches(self, claim: k.Claim, slot: Slot) -> bool:
        storage, node = self.mirror.storage, self.mirror.nodes.get(slot.node)
        if claim.spec.volume_name not in storage.volumes or node is None:
            return False  # the watch has not come so far
        terms = demanded(claim, storage)
        if terms is None or admits(Selection((), terms, ANY_TAINT), node):
            return True
        where = f"volume {claim.spec.volume_name} of its claim {claim.metadata.name}"
        raise VolumeRefusedError(slot, f"node {slot.node} does not reach the {where}", ELSEWHERE)

    # --- local volumes, which somebody has made --------------------------------------------------------------------

    def _is_kept(self, claim: k.Claim, slot: Slot) -> bool:
        """Keep the volume that was chosen for a claim; the volume controller then binds the claim. False: not yet."""
        uid, name = claim.metadata.uid, self.chosen()[key_of(claim)]
        asked, volume = self.asked.get(uid), self.mirror.volumes.get(name)
        if asked is None:
            if volume is None or not fits(volume, claim):
                raise VolumeRefusedError(slot, f"the volume {name} of its claim {claim.metadata.name} is taken", TAKEN)
            asked = self.asked[uid] = Asked(slot.node, self.clock())
            if not is_kept_for(volume, claim):
                self._spawn(self._keep(claim, volume, asked))
            return False
        late = self.clock() - asked.since > PATIENCE
        if asked.wrong or late:
            del self.asked[uid]
            why = asked.wrong or f"the volume {name} was not bound to its claim {claim.metadata.name} in {PATIENCE:g} s"
            raise VolumeRefusedError(slot, why, TAKEN)
        return False

    async def _keep(self, claim: k.Claim, volume: k.PersistentVolume, asked: Asked) -> None:
        """Write into a volume whose it is."""
        meta, own = claim.metadata, volume.metadata
        ref = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": meta.namespace, "name": meta.name}
        change = {
            "metadata": {"resourceVersion": own.resource_version, "annotations": {BOUND_BY_CONTROLLER: "yes"}},
            "spec": {"claimRef": ref | {"uid": meta.uid}},
        }
        await self._write(f"/api/v1/persistentvolumes/{own.name}", change, meta.name, asked)

    def give_back(self, workload: Workload) -> None:
        """Volumes that were kept for claims of a workload that does not get its places are anybody's again."""
        for slot in workload.slots:
            pod = self.mirror.pods.get(slot.pod) if slot.pod and not slot.bound else None
            for claim in chosen_claims(pod, self.mirror.storage) if pod is not None else ():
                self.asked.pop(claim.metadata.uid, None)
                volume = self.mirror.volumes.get(self.chosen().pop(key_of(claim), ""))
                if volume is not None and is_kept_for(volume, claim):
                    own = volume.metadata
                    change = {
                        "metadata": {
                            "resourceVersion": own.resource_version,
                            "annotations": {BOUND_BY_CONTROLLER: None},
                        },
                        "spec": {"claimRef": None},
                    }
                    path = f"/api/v1/persistentvolumes/{own.name}"
                    self._spawn(self._write(path, change, claim.metadata.name, Asked(slot.node, self.clock())))

    # --- volumes that a provisioner makes --------------------------------------------------------------------------

    def _ask(self, claim: k.Claim, node: str, selected: str) -> None:
        now = self.clock()
        for uid in [uid for uid, one in self.asked.items() if now - one.since > 2 * PATIENCE]:
            del self.asked[uid]  # nobody waits for it any more
        asked = self.asked[claim.metadata.uid] = Asked(selected or node, now, bool(selected))
        if not selected:
            self._spawn(self._select(claim, asked))

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _select(self, claim: k.Claim, asked: Asked) -> None:
        """Tell the provisioner of a claim at which node its first pod is going to be."""
        meta = claim.metadata
        path = f"/api/v1/namespaces/{meta.namespace}/persistentvolumeclaims/{meta.name}"
        change = {"metadata": {"uid": meta.uid, "annotations": {SELECTED_NODE: asked.node}}}
        await self._write(path, change, meta.name, asked)

    async def _write(self, path: str, change: dict[str, Any], claim: str, asked: Asked) -> None:
        while True:
            try:
                await self.client.patch(path, change, guard=self.holds)
                return
            except FencedError:
                return
            except ApiError as error:
                if not error.heals:
                    asked.wrong = f"its claim {claim} cannot be bound: {advice(error, self.client.config.source)}"
                    self.wake()
                    return
            await asyncio.sleep(PAUSE)
