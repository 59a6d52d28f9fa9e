"""The groups of workloads, as objects of the API server define them. An object is read when a pod first names it."""

from __future__ import annotations

from kant.kube.objects.refusals import MalformedError
from kant.kube.objects.views import Pod
from kant.kube.reconcile.transitions import Transitions
from kant.kube.reconcile.workload import Phase, Workload
from kant.kube.translate.group_spec import GroupSpec
from kant.kube.translate.groups import ORDERED, GroupRef
from kant.model.errors import InputError

ALONE = GroupSpec(1)


class GroupReading:
    """`awaited` has the groups whose objects must be read before their workloads can start."""

    def __init__(self, transitions: Transitions) -> None:
        self.transitions = transitions
        self.awaited: dict[GroupRef, None] = {}
        self.unread: dict[Workload, None] = {}  # gangs of which some pods were bound before their group was read

    def spec(self, workload: Workload) -> GroupSpec | None:
        """Return the group of a workload; None while its object is unread. Raises InputError if it is malformed."""
        if workload.wrong:
            raise MalformedError(workload.wrong)
        if workload.group is None or workload.foreign:
            return ALONE
        spec = self.transitions.translation.group_spec(workload.group)
        if spec is None:
            self.awaited[workload.group] = None
        return spec

    def is_read(self, workload: Workload) -> bool:
        """Whether the group of a workload has been read, even if its object is malformed."""
        try:
            return self.spec(workload) is not None
        except InputError:
            return True

    def wait_for_group(self, workload: Workload, bound: list[Pod], waiting: list[Pod]) -> None:
        """Handle a gang whose group has not been read: count its bound pods, and let its other pods wait."""
        if bound:
            self.transitions.adopt(workload, bound, known=False)
            if workload.phase is Phase.PLACED:
                workload.unread = True
                self.unread[workload] = None
                workload.lacking, workload.whole = len(waiting), not waiting

    def may_lack_places(self) -> bool:
        """Whether a gang with bound pods may need more capacity than it has, because its group has not been read."""
        self.unread = {one: None for one in self.unread if one.unread and one.phase is Phase.PLACED}
        return any(one.lacking or (one.group and one.group.source in ORDERED) for one in self.unread)
