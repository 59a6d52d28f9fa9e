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

    INCOMPLETE = "incomplete"  # no job yet: pods are missing, or something is wrong
    WAITING = "waiting"
    PLACED = "placed"  # its pods are bound or being bound
    LEAVING = "leaving"  # its pods are being evicted
    REJECTED = "rejected"  # it can never run on the present nodes


@dataclass(slots=True, eq=False)
class Workload:
    """One gang or pod. `job` is its id in the state, "" while it has no job there.

    `slots` are the places of a placed workload. `members` has the pods of a waiting workload, or those that may join a
    running one. `least` is the lowest minimum number of pods that its group has required since the start. `floor` pods
    of an elastic gang have to run (0: all), not counting the `ended` ones, which succeeded. `kinds` distinguish the
    groups of its job. `partial` is when (seconds) it became partially bound, -1 while it is not. `reason` is the last
    report on why it waits. A `foreign` workload belongs to another scheduler: it is counted and never changed.
    """

    key: str
    group: GroupRef | None = None
    foreign: bool = False
    phase: Phase = Phase.INCOMPLETE
    job: str = ""
    members: list[Member] = field(default_factory=list)
    slots: list[Slot] = field(default_factory=list)
    reason: str = ""
    queued: bool = False  # it waits for quota or for its queue, and more nodes would not help
    held: str = ""  # the public id of its job while a user holds it; "" otherwise
    wrong: str = ""  # the error in the group that its pods name
    refused: str = ""  # why it loses its places once all of its bindings have been answered
    blameless: bool = False  # whether the refusal was not its fault
    adopted: bool = False  # its job states what its pods hold, but not their constraints on nodes
    unread: bool = False  # it was adopted before its group had been read
    lacking: int = 0  # pods of a partially bound gang that have no place yet
    partial: float = -1.0
    after: frozenset[str] = frozenset()  # pods on any node that have to be gone before its own pods are bound
    whole: bool = False  # all of its pods have been bound at the same time
    protected_until: float = -1.0  # (seconds) not preempted until then, since its eviction was refused
    protected: tuple[str, str] = ("", "")  # its job, and the reported reason why that may not be preempted
    least: int = 0
    floor: int = 0
    ended: int = 0
    kinds: list[Kind] = field(default_factory=list)
    asked: frozenset[str] = frozenset()  # the pods that it had when its group was last read

    @property
    def is_bound(self) -> bool:
        """Whether all pods (of an elastic gang: its floor) are or were bound, or are yet to be created."""
        if self.floor and not self.lacking:
            return sum(slot.settled for slot in self.slots) >= self.floor
        for slot in self.slots:
            if not slot.settled:
                return False
        return not self.lacking


def give_up(slots: Iterable[Slot]) -> None:
    """Clear the slots without a bound pod, even if their pods are about to be bound."""
    for slot in slots:
        if not slot.bound:
            slot.pod = ""


def waits(pod: Pod) -> bool:
    """Whether a pod exists, is not being deleted and has no node."""
    return not pod.spec.node_name and pod.metadata.deletion_timestamp is None
