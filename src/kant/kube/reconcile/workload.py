"""A workload: the unit of scheduling, a gang or a single pod."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum

from kant.kube.objects.views import Pod
from kant.kube.reconcile.elastic_jobs import Kind
from kant.kube.reconcile.slots import Member, Slot
from kant.kube.translate.groups import GroupRef


class Phase(Enum):
    """The phase of a workload."""

    INCOMPLETE = "incomplete"  # no job yet: pods are missing, or there is an error
    WAITING = "waiting"
    PLACED = "placed"  # the pods are bound or being bound
    LEAVING = "leaving"  # the pods are being evicted
    REJECTED = "rejected"  # the job can never run on the present nodes


@dataclass(slots=True, eq=False)
class Workload:
    """One gang or pod. `job` is the id of its job in the core, "" while it has none.

    `slots` has a slot for each pod once placed. `members` has the pods of a waiting workload, or those that may join a
    running one. `least` is the lowest minimum number of pods that its group has required since the start. `floor` pods
    of an elastic gang must run (0: all), besides the `ended` pods, which have succeeded. `kinds` has the kind of pods
    of each group of its job. `partial` is when (seconds) it became partially bound, -1 while it is not. `reason` is the
    last report on why it waits. A `foreign` workload belongs to another scheduler: it is counted, and never changed.
    """

    key: str
    group: GroupRef | None = None
    foreign: bool = False
    phase: Phase = Phase.INCOMPLETE
    job: str = ""
    members: list[Member] = field(default_factory=list)
    slots: list[Slot] = field(default_factory=list)
    reason: str = ""
    queued: bool = False  # waits for quota or its queue: more nodes would not help
    held: str = ""  # the public id of its job while a user holds it; "" otherwise
    wrong: str = ""  # the error in the group that its pods name
    refused: str = ""  # why it must wait again once all its bindings are answered
    blameless: bool = False  # whether, after `refused`, it may be placed elsewhere at once
    adopted: bool = False  # its job was made from bound pods, without their constraints on nodes
    unread: bool = False  # adopted before its group's object had been read
    lacking: int = 0  # number of pods of a partially bound gang that are not placed
    partial: float = -1.0
    after: frozenset[str] = frozenset()  # uids of pods that must be gone before its pods are bound
    whole: bool = False  # whether all pods have been bound at the same time
    protected_until: float = -1.0  # after a refused eviction: not preempted before this time (s)
    protected: tuple[str, str] = ("", "")  # the job, and the reported reason why it may not be preempted
    least: int = 0
    floor: int = 0
    ended: int = 0
    kinds: list[Kind] = field(default_factory=list)
    asked: frozenset[str] = frozenset()  # uids of its pods when its group was last read

    @property
    def is_bound(self) -> bool:
        """Whether all pods (or the floor of an elastic gang) are bound, have succeeded, or are not yet created."""
        if self.floor and not self.lacking:
            return sum(slot.settled for slot in self.slots) >= self.floor
        for slot in self.slots:
            if not slot.settled:
                return False
        return not self.lacking


def give_up(slots: Iterable[Slot]) -> None:
    """Clear the slots that have no bound pod, even those whose pods are about to be bound."""
    for slot in slots:
        if not slot.bound:
            slot.pod = ""


def waits(pod: Pod) -> bool:
    """Whether a pod has no node, and is not being deleted."""
    return not pod.spec.node_name and pod.metadata.deletion_timestamp is None
