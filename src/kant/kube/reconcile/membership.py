"""Which pods belong to which workload: those of one group to one gang, any other pod to a workload of its own."""

from __future__ import annotations

from kant.kube.follow.mirror import Mirror
from kant.kube.objects.views import Pod
from kant.kube.reconcile.refusals import MalformedError
from kant.kube.reconcile.translation import Translation
from kant.kube.reconcile.workload import Workload


class Membership:
    """All workloads by key; the key of each pod, and the pods of each key, by uid."""

    def __init__(self, mirror: Mirror, translation: Translation) -> None:
        self.mirror = mirror
        self.translation = translation
        self.by_key: dict[str, Workload] = {}
        self.key_of: dict[str, str] = {}
        self.pods_of: dict[str, dict[str, None]] = {}

    def note(self, uid: str, pod: Pod) -> str | None:
        """The key of the workload that a pod belongs to; None for a pod that is none of our business."""
        key = self.key_of.get(uid)
        if key is None:
            ours = self.translation.is_ours(pod)
            if uid not in self.mirror.pods or (not ours and not pod.spec.node_name):
                return None
            group, wrong = None, ""
            try:
                group = self.translation.group_of(pod) if ours else None
            except MalformedError as error:
                wrong = str(error)
            key = "/".join(group.key) if group is not None else uid
            self._join(uid, key)
            if key in self.by_key:
                self.by_key[key].reason = ""  # this pod has not been told
            else:
                self.by_key[key] = Workload(key, group, foreign=not ours, wrong=wrong)
        return key

    def _join(self, uid: str, key: str) -> None:
        self.key_of[uid] = key
        self.pods_of.setdefault(key, {})[uid] = None

    def pods(self, key: str) -> list[Pod]:
        """The pods of a workload that are there."""
        pods = self.mirror.pods
        return [pods[uid] for uid in self.pods_of.get(key, ()) if uid in pods]

    def drop_deleted(self, key: str) -> None:
        """Forget the pods of a workload that are not there any more."""
        for uid in [uid for uid in self.pods_of.get(key, ()) if uid not in self.mirror.pods]:
            del self.pods_of[key][uid], self.key_of[uid]

    def drop_empty(self, key: str) -> None:
        """Forget a workload without pods."""
        if not self.pods_of.get(key):
            self.by_key.pop(key, None)
            self.pods_of.pop(key, None)

    def split_off(self, uid: str) -> str:
        """Make a pod of a gang a workload of its own; its key."""
        self.pods_of[self.key_of.pop(uid)].pop(uid)
        self._join(uid, uid)
        self.by_key[uid] = Workload(uid)
        return uid
