"""Which pods belong to which workload: those of one group to one gang, any other pod to a workload of its own."""

from __future__ import annotations

from contextlib import suppress

from kant.kube.follow.mirror import Mirror
from kant.kube.objects.views import Pod
from kant.kube.reconcile.translation import Translation
from kant.kube.reconcile.workload import Workload
from kant.kube.translate.groups import GroupRef, group_of
from kant.model.errors import InputError


class Membership:
    """All workloads by key; the key of each pod, and the pods of each key, by uid.

    `unlike` has the keys of gangs whose pods say different numbers of pods that have to run. The largest counts; True
    while it has changed and nobody has taken that in.
    """

    def __init__(self, mirror: Mirror, translation: Translation) -> None:
        self.mirror = mirror
        self.translation = translation
        self.by_key: dict[str, Workload] = {}
        self.key_of: dict[str, str] = {}
        self.pods_of: dict[str, dict[str, None]] = {}
        self.unlike: dict[str, bool] = {}

    def note(self, uid: str, pod: Pod) -> str | None:
        """The key of the workload that a pod belongs to; None for a pod that is none of our business."""
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
                known.reason = ""  # this pod has not been told
                if group is not None and known.group is not None and group.least != known.group.least:
                    self._take_larger(known, group)
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
        """A pod of a gang says another number than those before it."""
        larger = workload.group is None or group.least > workload.group.least
        self.unlike[workload.key] = self.unlike.get(workload.key, False) or larger
        if larger:
            workload.group = group

    def _count_largest(self, key: str) -> None:
        """Pods of a gang are gone: whichever are left say what counts."""
        found: list[GroupRef] = []
        for pod in self.pods(key):
            with suppress(InputError):  # its annotations have been changed since it came
                found += [one for one in (group_of(pod),) if one is not None]
        largest, workload = max(found, key=lambda one: one.least, default=None), self.by_key[key]
        if largest is not None:
            self.unlike[key] = self.unlike[key] or largest != workload.group
            workload.group = largest

    def take_change(self, key: str) -> bool:
        """Whether the number of pods of a gang that have to run has changed, which is so only once."""
        changed = self.unlike.get(key, False)
        if changed:
            self.unlike[key] = False
        return changed

    def split_off(self, uid: str) -> str:
        """Make a pod of a gang a workload of its own; its key."""
        self.move(uid, uid, None)
        return uid

    def move(self, uid: str, key: str, group: GroupRef | None) -> None:
        """Make a pod one of the workload of this key, be it a new one."""
        self.pods_of[self.key_of.pop(uid)].pop(uid)
        self._join(uid, key)
        if key not in self.by_key:
            self.by_key[key] = Workload(key, group)
