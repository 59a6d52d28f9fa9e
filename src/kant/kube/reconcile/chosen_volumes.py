"""Chosen volumes: which existing local volumes the claims of placed, unbound pods get.

The volumes are chosen for all pods of a workload at once, before any choice is written. No other claim gets a chosen
volume as long as a pod that uses the claim exists and is placed. Once written, a volume's `claimRef` names its claim.
"""

from __future__ import annotations

from kant.kube.follow.mirror import is_over
from kant.kube.objects import views as k
from kant.kube.reconcile.promises import Placed, Promises
from kant.kube.translate.local_volumes import match
from kant.kube.translate.volumes import ClaimName, chosen_claims, is_bound, key_of


class ChosenVolumes:
    """`chosen` has, by claim, the name of the volume that has been chosen for it."""

    def __init__(self, promises: Promises) -> None:
        self.promises = promises
        self.mirror = promises.mirror
        self.chosen: dict[ClaimName, str] = {}

    def match(self, placed: Placed) -> dict[ClaimName, str] | None:
        """Return volumes for the claims of pods on nodes (`placed`), by claim; None if there are too few volumes."""
        wants: dict[ClaimName, tuple[k.Claim, list[k.Node]]] = {}
        for node, pod in placed:
            for claim in chosen_claims(pod, self.mirror.storage) if pod.spec.volumes else ():
                view = self.mirror.nodes.get(node)
                if view is None:
                    return None
                wants.setdefault(key_of(claim), (claim, []))[1].append(view)
        if not wants:
            return {}
        for key, (_, nodes) in wants.items():  # other pods may use the same claim on other nodes
            nodes += [view for name in self._nodes_of(key) if (view := self.mirror.nodes.get(name)) is not None]
        taken = {volume for key, volume in self.chosen.items() if key not in wants and self._stands(key)}
        return match(list(wants.values()), self.mirror.volumes.values(), taken)

    def promise(self, placed: Placed) -> None:
        """Choose volumes for the claims of these pods; call this only if `match` finds enough."""
        self.chosen = {key: volume for key, volume in self.chosen.items() if self._stands(key)}
        self.chosen |= self.match(placed) or {}

    def _stands(self, key: ClaimName) -> bool:
        """Whether a claim has no volume yet, and some pod that uses it is placed or bound."""
        claim = self.mirror.claims.get(key)
        return claim is not None and not is_bound(claim) and bool(self._nodes_of(key))

    def _nodes_of(self, key: ClaimName) -> list[str]:
        """Return the nodes to which pods that use a claim are bound, or are about to be bound."""
        found = []
        for uid in self.mirror.users.get(key, ()):
            pod = self.mirror.pods.get(uid)
            if pod is None or is_over(pod):
                continue
            if pod.spec.node_name:
                found.append(pod.spec.node_name)
            found += [node for node, uids in self.promises.promised.items() if uid in uids]
        return found
