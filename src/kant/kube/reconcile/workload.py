"""A workload: what is scheduled as one, a gang, or a pod that belongs to none."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum

from kant.kube.objects.views import Pod
from kant.kube.reconcile.elastic_jobs import Kind
from kant.kube.reconcile.slots import Member, Slot
from kant.kube.translate.groups import GroupRef


class Phase(Enum):
    """Where a workload stands."""

    INCOMPLETE = "incomplete"  # not a job yet: pods are missing, or something is wrong with it
    WAITING = "waiting"
    PLACED = "placed"  # its pods are bound, or being bound
    LEAVING = "leaving"  # its pods are being evicted
    REJECTED = "rejected"  # it can never run as things are


@dataclass(slots=True, eq=False)
class Workload:
    """One gang or pod. `job` is its id in the state, "" while it is none there.

    `slots` are the places of a placed one, `members` the pods of one that waits, and of one that runs those that may
    join it. `least` is the smallest minimum that its group has had since it started. `floor` pods of an elastic gang
    have to run (0: all): so many, but for those that have `ended` well. `kinds` tells the pods of the groups of its
    job apart. `partial` is when (seconds) it came to be bound in part, -1 while it is not. `reason` is what was said
    last about why it waits. A `foreign` one belongs to another scheduler: it is counted and never touched.
    """

    key: str
    group: GroupRef | None = None
    foreign: bool = False
    phase: Phase = Phase.INCOMPLETE
    job: str = ""
    members: list[Member] = field(default_factory=list)
    slots: list[Slot] = field(default_factory=list)
    reason: str = ""
    queued: bool = False  # it waits for its quota or its queue, and more nodes would not help it
    held: str = ""  # by what name people know its job, while somebody holds it
    wrong: str = ""  # what its pod says of its group, where that makes no sense
    refused: str = ""  # why it loses its places, once all of its bindings have been answered
    blameless: bool = False  # and whether that was not its fault
    adopted: bool = False  # its job is what its pods hold, and says nothing of what they ask of their nodes
    unread: bool = False  # it was adopted before it was known what its group says
    lacking: int = 0  # pods of a gang in part for which there is no place yet
    partial: float = -1.0
    after: frozenset[str] = frozenset()  # pods that have to be gone before its own are bound, wherever they are
    whole: bool = False  # every pod has been bound at once, at some time
    protected_until: float = -1.0  # (seconds) nobody may stop it so long, because its eviction was refused
    protected: tuple[str, str] = ("", "")  # a job, and why the state was told that it may not be stopped
    least: int = 0
    floor: int = 0
    ended: int = 0
    kinds: list[Kind] = field(default_factory=list)
    asked: frozenset[str] = frozenset()  # the pods that it had when its group was looked up last

    @property
    def is_bound(self) -> bool:
        """Whether all of its pods are bound, or have been, or are yet to be made; of an elastic gang those of its
        floor."""
        if self.floor and not self.lacking:
            return sum(slot.settled for slot in self.slots) >= self.floor
        return not self.lacking and all(slot.settled for slot in self.slots)


def give_up(slots: Iterable[Slot]) -> None:
    """Places that nobody shall be bound to any more, though somebody may be about to be."""
    for slot in slots:
        if not slot.bound:
            slot.pod = ""


def maker(pod: Pod) -> str:
    """The uid of the object that has made a pod; "" for nobody."""
    return next((owner.uid for owner in pod.metadata.owner_references if owner.controller), "")


def waits(pod: Pod) -> bool:
    """Whether a pod is there and has no node."""
    return not pod.spec.node_name and pod.metadata.deletion_timestamp is None
