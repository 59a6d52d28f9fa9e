"""A Job is what a person submits; its gang is one or more PodGroups of identical Pods."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from kant.model.preference import Preferences
from kant.model.rules import PodRules
from kant.model.training import Training
from kant.model.units import GPU

Level = Literal["", "node", "hbd", "leaf", "spine", "superspine"]
"""A level of the fabric; empty: none in particular."""

LEVELS: tuple[Level, ...] = ("node", "hbd", "leaf", "spine", "superspine")
"""The levels from the narrowest to the widest. An HBD is nodes whose GPUs reach each other as inside a node (NVL72)."""


class Demand(Struct, frozen=True, array_like=True):
    """What one pod asks of one node.

    `gpus` devices with `milli` thousandths of each: (2, 1000) is two whole GPUs, (1, 470) a share of one. With
    `island` they must all lie in one NVLink island of the node. With `mig` it is one MIG instance of that profile on a
    node in MIG mode: one device, and `milli` its part of the GPU's memory slices (`model.mig.profile_on`).
    Without `gpus` a `mig` names parts of GPUs that the node itself has cut and counts: `milli` (here also above 1000)
    is what they are worth to quotas and shares, and no device of the model is taken.
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
        """Milli-GPUs that it counts for in quotas and shares: `gpu_milli`, or what the parts are worth."""
        return self.milli if self.mig and not self.gpus else self.gpu_milli

    @property
    def profile(self) -> str:
        """The MIG profile of the instance that it takes of a GPU of the model; "" for none."""
        return self.mig if self.gpus else ""


class PodGroup(Struct, frozen=True, array_like=True):
    """`count` identical pods of one gang. With a `floor` below `count` it runs with any number between.

    With `within` each `segment` pods in a row have to lie in one domain of that level of the fabric, the last ones also
    where they are fewer; with `segment` 0 all of them: a child gang. So it is required; `Job.within` is that of all.
    `inner` cuts each segment further, by narrower levels from outside to inside, each with the length of its segments:
    then each length divides the one around it, and the first divides `count`.
    """

    count: int
    demand: Demand
    within: Level = ""
    segment: int = 0
    floor: int = 0  # 0, like `count`: neither more nor fewer
    inner: tuple[tuple[Level, int], ...] = ()

    @property
    def least(self) -> int:
        """The pods that it cannot do without."""
        return self.floor or self.count


class Role(Struct, frozen=True, array_like=True):
    """What the pods of one group accept where the groups of a gang are unlike: GPU models, flavors and a set of nodes.

    Empty: what the whole job accepts.
    """

    models: tuple[str, ...] = ()
    flavors: tuple[str, ...] = ()
    node_set: str = ""


class Job(Struct, frozen=True, omit_defaults=True, rename={"base_job": "core"}):
    """One submission. It runs when every pod of every group is placed, and not before.

    `models` lists the GPU models it accepts, the best liked first, and `flavors` those of nodes (empty: any); `roles`
    has what the pods of each group accept, where the groups are unlike (empty: they are alike). A higher `priority`
    goes first; it says nothing about `preemptible`, whether the scheduler may stop the job. Times are microseconds, -1
    for none: `estimate` is the run time that policies may use, `limit` the longest that it may run, `due` the moment by
    which its owner wants it done, `checkpoint` how often it saves its work. It may fail or time out `retries` times and
    go back to its queue. Jobs of one owner and `name` are likely to run alike. A burst replica names its base job, and
    runs only while that does. `within` is the level of the fabric of which one domain should hold all its pods; with
    `within_required` the job waits until one does, else the pods then go to as few domains as can be.
    `apart` is the level of which no domain should hold two of its pods, nor one beside a pod of another job of its
    `affinity_group`; with `apart_required` it waits for that. `near` is the level of which it likes best a domain where
    its affinity group runs already. Jobs without a level only take part in the group. Without `preempts` nobody is
    stopped for it. `training` says what it trains: how much slower it runs where it lies follows from that. With a
    `reservation` it runs on the GPUs that this has booked, while it has them, and nowhere else. With a `node_set` it
    runs on nodes of that set alone. `rules` say what the pods of each group count as and what they demand of the pods
    around them, `preferences` what they like of their nodes without insisting on it; one alone is that of all groups.
    So long as `node_wait`, from when it comes to wait, it stops nobody for want of a node, or longer if its queue says.
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
        """Of all its pods, an elastic gang's as many as it may have."""
        return sum(group.count * group.demand.gpu_milli for group in self.groups)

    @property
    def pods(self) -> int:
        return sum(group.count for group in self.groups)
