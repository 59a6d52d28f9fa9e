"""CSI volumes of pods to be placed: checks the attach limits of nodes, and the storage capacity of drivers.

Both are checked for all pods of a workload at once, and a start that would exceed a limit or a capacity is refused.
After a refusal, nodes with too few attachments left fail a node filter. So do nodes that reach only storage that was
too small for a whole gang, until capacities or volumes change.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator

from kant.kube.objects.views import Pod
from kant.kube.reconcile.promises import NO_PODS, Placed, Promises
from kant.kube.translate.csi import (
    Attached,
    CapacityName,
    VolumeRequest,
    attached_by,
    handle_of,
    requested_by,
    requests_of,
)
from kant.kube.translate.volumes import claims_of, selected_node


class CsiVolumes:
    """`short` has, by driver, the numbers of volumes per pod for which some node had too few attachments left."""

    def __init__(self, promises: Promises) -> None:
        self.promises = promises
        self.mirror = promises.mirror
        self.short: dict[str, set[int]] = {}
        self._overdrawn: dict[str, tuple[CapacityName, ...]] = {}  # by pod uid: storage too small for its gang
        self._known_at = (-1, -1)

    # --- volumes that nodes attach --------------------------------------------------------------------------------

    def wanted(self, pod: Pod) -> dict[str, list[Attached]]:
        """Return the volumes that must be attached for a pod, by driver; {} if no node has a limit."""
        if not self.mirror.csi.limits or not pod.spec.volumes:
            return {}
        found: dict[str, list[Attached]] = {}
        for one in sorted(set(attached_by(pod, self.mirror.storage))):
            found.setdefault(one[0], []).append(one)
        return found

    def room(self, node: str, pods: Iterable[Pod], going: Collection[str] = NO_PODS) -> Iterator[tuple[str, int, int]]:
        """Yield each driver with too few attachments left on the node for these pods: name, number left, number needed.

        Pods in `going` are not counted.
        """
        limits = self.mirror.csi.limits.get(node)
        if not limits:
            return
        pods = list(pods)
        wanted = {one for pod in pods for volumes in self.wanted(pod).values() for one in volumes if one[0] in limits}
        if not wanted:
            return
        own = {pod.metadata.uid for pod in pods}
        there = set(self._attached(node, going))
        for other in self.promises.on(node, {*own, *going}):
            there.update(attached_by(other, self.mirror.storage) if other.spec.volumes else ())
        taken, more = Counter(driver for driver, _ in there), Counter(driver for driver, _ in wanted - there)
        for driver, number in sorted(more.items()):
            if taken[driver] + number > limits[driver]:
                yield driver, max(limits[driver] - taken[driver], 0), number

    def _attached(self, node: str, going: Collection[str]) -> Iterator[Attached]:
        """Yield the volumes that are attached to a node, except those of leaving pods (their uids are `going`)."""
        csi, storage, pods = self.mirror.csi, self.mirror.storage, self.mirror.pods
        leaving = {one for uid in going if uid in pods for one in attached_by(pods[uid], storage)}
        for name in csi.attached.get(node, ()):
            spec = csi.attachments[name].spec
            found = handle_of(self.mirror.volumes.get(spec.source.persistent_volume_name or ""))
            if found is not None and found[0] == spec.attacher and found not in leaving:
                yield found

    def too_many(self, node: str, pods: list[Pod], going: Collection[str]) -> str:
        """Return why a node cannot attach the volumes of these pods, and note the shortage in `short`; "" if it can."""
        for driver, left, number in self.room(node, pods, going):
            for pod in pods:
                if own := self.wanted(pod).get(driver):
                    self.short.setdefault(driver, set()).add(len(own))
            return f"node {node} may attach {left} more volumes of {driver}, and the pod needs {number}"
        return ""

    def limits_of(self, pod: Pod) -> Iterator[str]:
        """Yield, for each driver in `short`: its name, how many volumes the pod needs, and the pod's claims in use."""
        if not self.short:
            return
        claims = [f"{pod.metadata.namespace}/{name}" for name in claims_of(pod)]
        for driver, volumes in self.wanted(pod).items():
            if len(volumes) in self.short.get(driver, ()):
                yield " ".join([driver, str(len(volumes)), *filter(self._is_used, claims)])

    def _is_used(self, claim: str) -> bool:
        """Whether the volume of a claim may already be attached to a node, which then needs no further attachment."""
        space, _, name = claim.partition("/")
        found = self.mirror.claims.get((space, name))
        if found is not None and found.spec.volume_name in self.mirror.csi.attached_volumes:
            return True
        users = (self.mirror.pods.get(uid) for uid in self.mirror.users.get((space, name), ()))
        return any(pod is not None and pod.spec.node_name for pod in users)

    # --- storage for volumes that are to be provisioned -----------------------------------------------------------

    def requests(self, placed: Placed) -> list[VolumeRequest]:
        """Return the volumes to be provisioned for pods on nodes (`placed`), of drivers that report their capacity."""
        nodes, storage, drivers = self.mirror.nodes, self.mirror.storage, self.mirror.csi.drivers
        if not drivers:
            return []
        return [
            request
            for node, pod in placed
            if pod.spec.volumes and node in nodes
            for request in requested_by(pod, nodes[node], storage, drivers)
        ]

    def lacks_storage(self, placed: Placed) -> VolumeRequest | None:
        """Return the largest volume of these pods for which too little storage is left; None if all of them fit."""
        requests = self.requests(placed)
        if not requests:
            return None
        lacking = self.mirror.csi.capacities.shared_out(
            requests, self._granted({request.claim for request in requests})
        )
        return lacking[0] if lacking else None

    def _granted(self, but_for: Collection[tuple[str, str]]) -> list[VolumeRequest]:
        """Return the volumes that are or will be provisioned for placed pods, except those of the claims `but_for`."""
        mirror, pods = self.mirror, self.mirror.pods
        placed = [(node, pods[uid]) for node, uids in self.promises.promised.items() for uid in uids if uid in pods]
        found = self.requests(placed)
        for claim in (mirror.claims[name] for name in mirror.selected):
            node = mirror.nodes.get(selected_node(claim, mirror.storage))
            if node is not None:
                found += requests_of((claim,), node, mirror.storage, mirror.csi.drivers)
        return [request for request in found if request.claim not in but_for]

    def spreads(self, node: str, pods: list[Pod]) -> bool:
        """Whether a node lacks storage for these pods together, and other nodes draw on the same storage."""
        lacking = self.lacks_storage([(node, pod) for pod in pods])
        if lacking is None:
            return False
        names = set(self.mirror.csi.capacities.reached(lacking))
        others = (view for name, view in self.mirror.nodes.items() if name != node)
        return any(names & set(self.mirror.csi.capacities.reached(lacking._replace(node=view))) for view in others)

    def overdraw(self, placed: Placed, lacking: VolumeRequest) -> None:
        """Note the storage that was too small for all these pods: `fails` then excludes nodes that reach no other."""
        self._refresh()
        names = tuple(self.mirror.csi.capacities.reached(lacking))
        for _, pod in placed:
            known = self._overdrawn.get(pod.metadata.uid, ())
            self._overdrawn[pod.metadata.uid] = tuple(sorted({*known, *names}))

    def asks(self, pod: Pod) -> str:
        """Return a key of the storage that a pod requests, and that was too small for its gang; "" for none."""
        drivers = self.mirror.csi.drivers
        if not drivers or not pod.spec.volumes:
            return ""
        node = next(iter(self.mirror.nodes.values()), None)
        requests = list(requested_by(pod, node, self.mirror.storage, drivers)) if node is not None else []
        if not requests:
            return ""
        self._refresh()
        asked = sorted((request.storage_class, request.size) for request in requests)
        return repr((asked, self._overdrawn.get(pod.metadata.uid, ())))

    def fails(self, pod: Pod, node: str) -> bool:
        """Whether a node lacks the storage for the volumes of a pod."""
        if self.lacks_storage([(node, pod)]) is not None:
            return True
        self._refresh()
        avoided = set(self._overdrawn.get(pod.metadata.uid, ()))
        reached = self.mirror.csi.capacities.reached
        return bool(avoided) and any(avoided >= set(reached(request)) for request in self.requests([(node, pod)]))

    def _refresh(self) -> None:
        """Forget which storage was too small for gangs, if capacities or volumes have changed."""
        now = self.mirror.csi.version, self.mirror.volume_version
        if now != self._known_at:
            self._known_at = now
            self._overdrawn.clear()
