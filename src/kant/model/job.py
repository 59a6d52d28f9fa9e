"""A Job is what a user submits; its gang is one or more PodGroups of identical Pods."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from kant.model.preference import Preferences
from kant.model.rules import PodRules
from kant.model.training import Training
from kant.model.units import GPU

Level = Literal["", "node", "hbd", "leaf", "spine", "superspine"]
"""A level of the fabric; "": no particular level."""

LEVELS: tuple[Level, ...] = ("node", "hbd", "leaf", "spine", "superspine")
"""The levels from the narrowest to the widest. An HBD (high-bandwidth domain) is a set of nodes joined by NVLink."""


class Demand(Struct, frozen=True, array_like=True):
    """What one pod asks of one node.

    `gpus` devices with `milli` thousandths of each: (2, 1000) is two whole GPUs, (1, 470) a share of one. With `island`
    they must all be in one NVLink island of the node. With `mig` the pod gets one MIG instance of that profile on a
    GPU in MIG mode: `gpus` is 1, and `milli` its part of the memory slices (`model.mig.profile_on`). Without `gpus`,
    `mig` names parts of GPUs that the node itself has partitioned and counts: `milli` (here also above 1000) is their
    value for quotas and shares, and the pod takes no device of the node.
    """

    gpus: int = 0
    milli: int = GPU
    cpu: int = 0  # thousandths of a core
    memory: int = 0  # MiB
    island: bool = False
    mig: str = ""

    @property
    def gpu_milli(self) -> int:
        return self.gpus * self.milli

    @property
    def charged_milli(self) -> int:
        """The milli-GPUs charged to quotas and shares: `gpu_milli`, or the value of the GPU parts."""
        return self.milli if self.mig and not self.gpus else self.gpu_milli

    @property
    def profile(self) -> str:
        """The MIG profile of the instance that the pod takes from a GPU in MIG mode; "" for none."""
        return self.mig if self.gpus else ""


class PodGroup(Struct, frozen=True, array_like=True):
    """`count` identical pods of one gang. With a `floor` below `count`, any number from `floor` to `count` may run.

    With `within`, every `segment` consecutive pods must be in one domain of that level of the fabric, also the last
    ones if they are fewer; with `segment` 0 all of them: a child gang. `Job.within` is for all groups. `inner` divides
    each segment further, by ever narrower levels, each with the length of its segments. Each length divides the one
    before it, and the first divides the segment.
    """

    count: int
    demand: Demand
    within: Level = ""
    segment: int = 0
    floor: int = 0  # 0 or `count`: a fixed number of pods
    inner: tuple[tuple[Level, int], ...] = ()

    @property
    def least(self) -> int:
        """The fewest pods of the group with which the gang runs."""
        return self.floor or self.count


class Role(Struct, frozen=True, array_like=True):
    """What the pods of one group accept if the groups of a gang differ: GPU models, flavors and a node set.

    Empty: as for the whole job.
    """

    models: tuple[str, ...] = ()
    flavors: tuple[str, ...] = ()
    node_set: str = ""


class Job(Struct, frozen=True, omit_defaults=True, rename={"base_job": "core"}):
    """One submission. It starts only when every pod of every group is placed.

    `models` lists the accepted GPU models, the preferred first, and `flavors` those of nodes (empty: any); `roles` has
    what the pods of each group accept, if the groups differ (empty: they do not). A higher `priority` goes first; it is
    independent of `preemptible`, whether the scheduler may stop the job. Times are microseconds, -1 for none:
    `estimate` is the run time that policies may use, `limit` the time limit of a run, `due` its due date, `checkpoint`
    the interval of its checkpoints. It may fail or time out `retries` times and return to its queue. Jobs of one owner
    and `name` probably have similar run times. A burst replica names its `base_job`, and runs only while that runs.
    `within` is the level of the fabric at which one domain should hold all its pods; with `within_required` the job
    waits until one can, else the pods go to as few domains as possible. `apart` is the level at which no domain should
    hold two of its pods, nor one of its pods and a pod of another job of its `affinity_group`; with `apart_required`
    the job waits until that is possible. `near` is the level at which the job prefers a domain where its affinity group
    already runs; a job with neither is only a member of the group. Without `preempts` no job is stopped for this one.
    `training` describes its model, from which its slowdown at a placement follows. With a `reservation` it runs only on
    GPUs of that reservation, while it lasts. With a `node_set` it runs only on nodes of that set. `rules` say how the
    pods of each group count and what they require of pods around them, `preferences` which nodes they prefer; a single
    entry is for all groups. A waiting job first waits for `node_wait` (or longer, if its queue says so) for a node from
    an autoscaler before it preempts others.
    """

    id: str
    submit: int
    groups: tuple[PodGroup, ...]
    queue: str = "default"
    user: str = ""
    priority: int = 0
    models: tuple[str, ...] = ()
    estimate: int = -1
    preemptible: bool = True
    name: str = ""
    limit: int = -1
    due: int = -1
    checkpoint: int = -1
    retries: int = 0
    base_job: str = ""
    within: Level = ""
    within_required: bool = False
    affinity_group: str = ""
    apart: Level = ""
    apart_required: bool = False
    near: Level = ""
    flavors: tuple[str, ...] = ()
    preempts: bool = True
    training: Training | None = None
    roles: tuple[Role, ...] = ()
    reservation: str = ""
    node_set: str = ""
    rules: tuple[PodRules, ...] = ()
    preferences: tuple[Preferences, ...] = ()
    node_wait: int = 0

    @property
    def gpu_milli(self) -> int:
        """The milli-GPUs of all pods of the job; for an elastic gang, of the most pods."""
        return sum(group.count * group.demand.gpu_milli for group in self.groups)

    @property
    def pods(self) -> int:
        return sum(group.count for group in self.groups)
