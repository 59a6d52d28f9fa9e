"""Which pod belongs to which workload: the pods of a group form one gang; any other pod is a workload by itself."""

from __future__ import annotations

from contextlib import suppress

from kant.kube.follow.mirror import Mirror, is_over
from kant.kube.objects.views import Pod
from kant.kube.reconcile.translation import Translation
from kant.kube.reconcile.workload import Workload
from kant.kube.translate.groups import GroupRef, group_of
from kant.model.errors import InputError


class Membership:
    """`by_key` has all workloads, `key_of` the key of each pod (uid), `pods_of` the uids of each key's pods.

    `unlike` has the keys of gangs whose pods state different minimum numbers of pods. The largest number counts. The
    value is True if the number has changed and the change is not handled yet.
    """

    def __init__(self, mirror: Mirror, translation: Translation) -> None:
        self.mirror = mirror
        self.translation = translation
        self.by_key: dict[str, Workload] = {}
        self.key_of: dict[str, str] = {}
        self.pods_of: dict[str, dict[str, None]] = {}
        self.unlike: dict[str, bool] = {}

    def note(self, uid: str, pod: Pod) -> str | None:
        """Return the key of the workload to which a pod belongs; None for a pod that Kant ignores."""
        key = self.key_of.get(uid)
        if key is None:
            ours = self.translation.is_ours(pod)
            if uid not in self.mirror.pods or (not ours and not pod.spec.node_name):
                return None
            group, wrong = None, ""
            try:
                group = group_of(pod) if ours else None
            except InputError as error:
                wrong = str(error)
            key = "/".join(group.key) if group is not None else uid
            self._join(uid, key)
            known = self.by_key.get(key)
            if known is None:
                self.by_key[key] = Workload(key, group, foreign=not ours, wrong=wrong)
            else:
                known.reason = ""  # the reason has not been reported for this pod yet
                if group is not None and known.group is not None and group.least != known.group.least:
                    self._take_larger(known, group)
        return key

    def _join(self, uid: str, key: str) -> None:
        self.key_of[uid] = key
        self.pods_of.setdefault(key, {})[uid] = None

    def pods(self, key: str) -> list[Pod]:
        """Return the existing pods of a workload."""
        pods = self.mirror.pods
        return [pods[uid] for uid in self.pods_of.get(key, ()) if uid in pods]

    def live(self, key: str) -> list[Pod]:
        """Return the existing pods of a workload that have not ended."""
        return [pod for pod in self.pods(key) if not is_over(pod)]

    def drop_deleted(self, key: str) -> None:
        """Forget those pods of a workload that no longer exist."""
        gone = [uid for uid in self.pods_of.get(key, ()) if uid not in self.mirror.pods]
        for uid in gone:
            del self.pods_of[key][uid], self.key_of[uid]
        if gone and key in self.unlike:
            self._count_largest(key)

    def drop_empty(self, key: str) -> None:
        """Forget a workload without pods."""
        if not self.pods_of.get(key):
            self.by_key.pop(key, None)
            self.pods_of.pop(key, None)
            self.unlike.pop(key, None)

    def _take_larger(self, workload: Workload, group: GroupRef) -> None:
        """Record that a pod of a gang states another minimum number of pods than earlier pods."""
        larger = workload.group is None or group.least > workload.group.least
        self.unlike[workload.key] = self.unlike.get(workload.key, False) or larger
        if larger:
            workload.group = group

    def _count_largest(self, key: str) -> None:
        """Determine the minimum number of pods again from the remaining pods of a gang."""
        found: list[GroupRef] = []
        for pod in self.pods(key):
            with suppress(InputError):  # the pod's annotations have become malformed since it arrived
                found += [one for one in (group_of(pod),) if one is not None]
        largest, workload = max(found, key=lambda one: one.least, default=None), self.by_key[key]
        if largest is not None:
            self.unlike[key] = self.unlike[key] or largest != workload.group
            workload.group = largest

    def take_change(self, key: str) -> bool:
        """Return whether a gang's minimum number of pods has changed since the last call."""
        changed = self.unlike.get(key, False)
        if changed:
            self.unlike[key] = False
        return changed

    def split_off(self, uid: str) -> str:
        """Make a pod of a gang a workload of its own. Returns the key of that workload."""
        self.move(uid, uid, None)
        return uid

    def move(self, uid: str, key: str, group: GroupRef | None) -> None:
        """Move a pod to the workload of this key, which is created if needed."""
        self.pods_of[self.key_of.pop(uid)].pop(uid)
        self._join(uid, key)
        if key not in self.by_key:
            self.by_key[key] = Workload(key, group)
