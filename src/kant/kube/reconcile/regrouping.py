"""Regrouping: the object of a group may say that its pods start with other groups, as several gangs, or in sequence."""

from __future__ import annotations

from collections.abc import Sequence

from kant.kube.follow.mirror import is_over
from kant.kube.objects.views import Pod
from kant.kube.reconcile.membership import Membership
from kant.kube.reconcile.transitions import Transitions
from kant.kube.reconcile.workload import Workload
from kant.kube.translate.group_spec import GroupSpec, Part
from kant.kube.translate.groups import COMPOSITE, GroupRef, composite_of, part_of


class Regrouping:
    """Moves pods to the workloads with which they start. The keys that it returns are those of workloads to settle."""

    def __init__(self, transitions: Transitions, members: Membership) -> None:
        self.transitions = transitions
        self.translation = transitions.translation
        self.members = members

    def regroup(self, workload: Workload, spec: GroupSpec) -> dict[str, None] | GroupRef:
        """Move the pods of a workload to the workloads with which they start. Returns the keys of those ({} if nothing
        moves), or a group whose object must be read first. Raises InputError."""
        if spec.parent and (found := self._into_outer(workload, spec)):
            return found
        return self._into_gangs(workload, spec.gangs) if spec.gangs else {}

    def _into_outer(self, workload: Workload, spec: GroupSpec) -> dict[str, None] | GroupRef:
        """Move the pods of a group within composite groups into one gang."""
        from kant.kube.reconcile.composites import chain_of, needed  # few groups are nested

        assert workload.group is not None
        if workload.group.source == COMPOSITE:
            return {}
        chain = chain_of(self.translation, workload.group, spec)
        if not isinstance(chain, list):
            return workload.group._replace(paths=chain.paths)  # settled again once that group is read
        if not chain:
            return {}
        outer = composite_of(workload.group.namespace, chain[-1][0])
        key = "/".join(outer.key)
        self._move(workload, {pod.metadata.uid: outer for pod in self.members.pods(workload.key)})
        least, tasks = needed(self.translation, outer.namespace, self.members.pods(key))
        whole = self.members.by_key[key]
        before, whole.group = whole.group, outer._replace(least=least, tasks=tuple(tasks))
        if before != whole.group and not self.transitions.is_in_flight(whole):
            self.transitions.end(whole)
        return {key: None}

    def _into_gangs(self, workload: Workload, gangs: Sequence[Sequence[str]]) -> dict[str, None]:
        """Split the pods of an object into gangs, named by their first parts. A part in no gang forms its own gang."""
        assert workload.group is not None
        first, found = {name: gang[0] for gang in gangs for name in gang}, dict[str, GroupRef]()
        for pod in self.members.pods(workload.key):
            part = first.get(part_of(pod), part_of(pod))
            found[pod.metadata.uid] = workload.group._replace(name=f"{workload.group.name}/{part}", part=part)
        self._move(workload, found)
        return {"/".join(own.key): None for own in found.values()}

    def _move(self, workload: Workload, groups: dict[str, GroupRef]) -> None:
        """Move the pods (uids) of a workload to these groups, and forget the workload."""
        for uid, group in groups.items():
            self.members.move(uid, "/".join(group.key), group)
        self.drop(workload)

    def drop(self, workload: Workload) -> None:
        """Forget a workload without pods."""
        self.transitions.drop(workload)
        self.members.drop_empty(workload.key)

    # --- pods that are not yet created -----------------------------------------------------------------------------

    def expected(self, workload: Workload, later: Sequence[Part], there: Sequence[Pod]) -> list[Pod]:
        """Return stand-ins for pods that will be created once other pods of the gang are ready. Raises InputError."""
        from kant.kube.translate.parts import stand_ins  # few groups are created in parts

        assert workload.group is not None
        counted = [
            pod for pod in self.members.pods(workload.key) if not is_over(pod) or pod.status.phase == "Succeeded"
        ]
        found: list[Pod] = []
        for part in later:
            own = [pod for pod in counted if part_of(pod) == part.name]
            same = next((pod for pod in there if part_of(pod) == part.name), None)
            found += stand_ins(part, part.pods - len(own), workload.group.name, there[0], same)
        return found
