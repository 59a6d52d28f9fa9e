"""The events. Only events change the state of a cluster.

Times are microseconds on the run's clock. Jobs are named by id, nodes by name. In an allocation a node is a row number:
rows are in the order of the journal's header, then in the order in which nodes join (`kant.cluster.node_rows`).
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from kant.model.job import Job, PodGroup, Role
from kant.model.node import Node
from kant.model.rules import PodRules
from kant.model.tenant import QueueConfig


class _Event(Struct, frozen=True, omit_defaults=True, tag_field="event"):
    time: int


class JobSubmitted(_Event, frozen=True, tag="submitted"):
    """A user submitted a job. `runtime` and `overhead` (µs) are for the simulator only: no policy sees them."""

    job: Job
    runtime: int = -1
    overhead: int = 0


class JobStarted(_Event, frozen=True, tag="started"):
    """The driver carried out the placement: from now on the job holds these devices (`model.placement` columns)."""

    job: str
    allocation: np.ndarray


class JobGrown(_Event, frozen=True, tag="grown"):
    """A running elastic gang has got `allocation` in addition. The resize adds `cost` µs to its work."""

    job: str
    allocation: np.ndarray
    cost: int = 0


class JobShrunk(_Event, frozen=True, tag="shrunk"):
    """A running elastic gang has given `allocation` back and runs on with the rest, with `cost` µs more work."""

    job: str
    allocation: np.ndarray
    cost: int = 0
    by: str = ""  # the job that gets the capacity, if any


class JobScaled(_Event, frozen=True, tag="scaled"):
    """The owner of a running job has added or removed pods: from now on these are its groups.

    Their requests and their order do not change; floors and counts may. The job holds at least the floors and at most
    the counts. `models`, `flavors`, `roles` and `node_set` are what its pods accept from now on (as in `Job`). The job
    may grow at once, without the delay of `Elastic.grow_s`.
    """

    job: str
    groups: tuple[PodGroup, ...]
    models: tuple[str, ...] = ()
    flavors: tuple[str, ...] = ()
    roles: tuple[Role, ...] = ()
    node_set: str = ""


class JobRuled(_Event, frozen=True, tag="ruled"):
    """The rules of a waiting or running job (as in `Job`) are replaced by these.

    A running job stays where it is, and its pods count by the new rules.
    """

    job: str
    rules: tuple[PodRules, ...]


class JobFinished(_Event, frozen=True, tag="finished"):
    """The job ended on its own and freed everything."""

    job: str


class JobPreempted(_Event, frozen=True, tag="preempted"):
    """The driver stopped the job as decided by the scheduler. The job waits again, with `cost` µs more work."""

    job: str
    cost: int = 0
    moved: bool = False  # stopped only to run on other devices at the same instant
    by: str = ""  # the job that gets the capacity, if any


class JobEvicted(_Event, frozen=True, tag="evicted"):
    """The job lost its devices for a reason outside the scheduler and waits again.

    `node` is the node at fault, if any: the job holds devices there, and avoids this node later. The other devices of
    the job are still good, and the gang may get them back with another node in place of this one.
    """

    job: str
    reason: str
    cost: int = 0
    node: str = ""


class JobRefused(_Event, frozen=True, tag="refused"):
    """The driver could not carry out the start: the job never ran and waits as before.

    `blameless`: the devices no longer exist, and others may be tried at once.
    """

    job: str
    reason: str
    blameless: bool = False


class JobFound(_Event, frozen=True, tag="found"):
    """Some or all pods of a waiting gang already hold `allocation`: a driver bound them, and did not finish.

    Until the gang starts, these devices count as free. So a driver sends this event only before it asks to complete the
    gang (`scheduler/partial_gangs.py`), and carries out no other decision before the gang has started or left.
    """

    job: str
    allocation: np.ndarray


class JobFailed(_Event, frozen=True, tag="failed"):
    """The job failed: by its own fault, or at its limit. The job waits again, to be retried.

    `node` is one of its nodes, which it should avoid from now on.
    """

    job: str
    reason: str
    cost: int = 0
    node: str = ""


class JobReserved(_Event, frozen=True, tag="reserved"):
    """`allocation` is reserved for the waiting job from `start` to `end`, in place of its former reservation."""

    job: str
    start: int
    end: int
    allocation: np.ndarray


class JobReleased(_Event, frozen=True, tag="released"):
    """The reservation of the waiting job is withdrawn."""

    job: str


class JobRejected(_Event, frozen=True, tag="rejected"):
    """The job leaves without having run: it can never fit, or its discipline drops blocked jobs."""

    job: str
    reason: str


class JobCancelled(_Event, frozen=True, tag="cancelled"):
    """A user withdrew the job, waiting or running."""

    job: str


class JobProgressed(_Event, frozen=True, tag="progressed"):
    """A running job reports how much work is left (microseconds at full speed)."""

    job: str
    remaining: int


class JobDemoted(_Event, frozen=True, tag="demoted"):
    """The job moved to a lower level of a multi-level queue."""

    job: str
    level: int


class JobProtected(_Event, frozen=True, tag="protected"):
    """From now on the scheduler may not stop the job, because of `by`; "": it may stop the job again."""

    job: str
    by: str = ""


class JobPriced(_Event, frozen=True, tag="priced"):
    """From now on the cost of stopping the job is `price` milli-GPU-seconds; -1: the work that the job would lose."""

    job: str
    price: int = -1


class JobAwaitsNode(_Event, frozen=True, tag="awaits-node"):
    """From now on the waiting job may preempt others at once, since no autoscaler adds a node for it. If `awaits` is
    True, it waits for a node first, for the time that its queue or the job itself sets."""

    job: str
    awaits: bool = False


class JobLimited(_Event, frozen=True, tag="limited"):
    """From now on the run of the job may last `limit` microseconds from its start. If its estimate was its old limit,
    the estimate is now the new one."""

    job: str
    limit: int


class PolicyRouted(_Event, frozen=True, tag="routed"):
    """From now on the router (`kant.queueing.router`) uses `policy`; `why` says the reason in one sentence.

    A proposal that the look-ahead rejects is recorded too, with the router's default (`floor`) as `policy`.
    """

    policy: str
    why: str = ""


class QueueOrdered(_Event, frozen=True, tag="ordered"):
    """`jobs` has all live jobs in the order of the last cycle, for queue orders that depend on the previous order."""

    jobs: tuple[str, ...]


class QueuesChanged(_Event, frozen=True, tag="queues", rename={"queue_config": "tenancy"}):
    """The new tree of queues and their quotas, in place of the former one."""

    queue_config: QueueConfig


class NodeChanged(_Event, frozen=True, tag="node"):
    """A node entered or left service (a `NodeStatus` value). Its jobs are evicted by events of their own.

    Jobs on a draining node run to their end, or to `until` if it is given (-1: not): then the scheduler stops them.
    """

    node: str
    status: int
    until: int = -1


class NodesJoined(_Event, frozen=True, tag="joined"):
    """These new nodes are in service from now on.

    A node that returns gets its old row, and is in its old node sets; any other node is in none, and gets a row by the
    rule in `kant.cluster.node_rows`.
    """

    nodes: tuple[Node, ...]


class NodesLeft(_Event, frozen=True, tag="left"):
    """These nodes have left. Jobs there were stopped before by events of their own.

    Reservations on these nodes are void. The nodes may return: a job that fits nowhere else waits for them.
    """

    nodes: tuple[str, ...]


class NodeDescribed(_Event, frozen=True, tag="described"):
    """`node` replaces the description of the node of this name: another size, pool, or place in the fabric.

    Jobs there stay; if they would not fit, the event is refused. The node keeps its status and its node sets.
    Reservations that no longer fit there are void.
    """

    node: Node


class NodeSetChanged(_Event, frozen=True, tag="node-set"):
    """The node set `node_set` gains the nodes `added`, and loses those `removed`.

    A set that no event has named is empty. Jobs on a node that leaves the set run on.
    """

    node_set: str
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()


class TopologyChanged(_Event, frozen=True, tag="topology"):
    """From now on these nodes are in these domains of a topology, by name; "": in none.

    A topology that no event has named has no domains. Running pods stay, and count in the new domain. A node that
    leaves the cluster is in no domain, also after its return.
    """

    topology: str
    domains: dict[str, str]


class PodsCounted(_Event, frozen=True, tag="counted"):
    """The counts of the pods on a node that belong to no job, in place of its former counts.

    `classes` counts them by class, and `amounts` is what they use of each exact amount.
    """

    node: str
    classes: dict[str, int] = {}
    amounts: dict[str, int] = {}


class DevicesChanged(_Event, frozen=True, tag="devices"):
    """From now on the node lacks the devices `lost` (as bits), and has all others.

    Jobs on lost devices were evicted before by events of their own.
    """

    node: str
    lost: int


class GpusBooked(_Event, frozen=True, tag="booked"):
    """`user` has booked the GPUs of `allocation` from `start` to before `end`, for jobs that name the `reservation`.

    Before a reservation begins, another event with its name may replace it.
    """

    reservation: str
    start: int
    end: int
    allocation: np.ndarray
    user: str = ""


class BookingEnded(_Event, frozen=True, tag="unbooked"):
    """The reservation was cancelled, or has ended."""

    reservation: str


class QueueUse(Struct, frozen=True, array_like=True):
    """GPU time that a queue has used: `present` milli-GPU-microseconds in the current clock hour; and for each earlier
    hour its age (from 1) and milli-GPU-seconds.
    """

    present: int
    hours: tuple[tuple[int, int], ...] = ()


class QueuesUsed(_Event, frozen=True, tag="used"):
    """What queues have used until now, in place of the recorded use: this journal continues an earlier one.

    The present clock hour began `phase` microseconds ago. A queue that is not named has used nothing. Fair shares with
    any half life then are as if the journal had not been split (`kant.cluster.usage`).
    """

    phase: int
    queues: dict[str, QueueUse]


class BudgetsUsed(_Event, frozen=True, tag="budgets"):
    """The use of the current month's budgets until now, in place of the recorded use, and when months end.

    `used` has the milli-GPU-microseconds by queue and user. After the last of `ends` (microseconds) a month has 30
    days.
    """

    ends: tuple[int, ...]
    used: dict[str, dict[str, int]] = {}


class ProposedPlace(Struct, frozen=True, array_like=True):
    """The proposed place of a job: the number of pods on each node."""

    job: str
    pods: dict[str, int]


class PlanProposed(_Event, frozen=True, tag="proposed"):
    """The proposal of a solver: running jobs move, and waiting ones start in their place.

    The solver worked on an earlier state. The core now decides whether the proposal is carried out, whole or not at all
    (`scheduler/proposals.py`). `by` is the part of the profile that asked: `fallback` or `defragment`.
    """

    by: str
    moves: tuple[ProposedPlace, ...] = ()
    starts: tuple[ProposedPlace, ...] = ()


class TypicalPodsGiven(_Event, frozen=True, tag="mix"):
    """The typical pods: rows (cpu, gpus, milli, pool mask, weight). Fragmentation is measured against them."""

    rows: np.ndarray


Event = (
    JobSubmitted
    | JobStarted
    | JobGrown
    | JobShrunk
    | JobScaled
    | JobRuled
    | JobFinished
    | JobPreempted
    | JobEvicted
    | JobRefused
    | JobFound
    | JobFailed
    | JobReserved
    | JobReleased
    | JobRejected
    | JobCancelled
    | JobProgressed
    | JobDemoted
    | JobProtected
    | PolicyRouted
    | JobPriced
    | JobAwaitsNode
    | JobLimited
    | QueueOrdered
    | QueuesChanged
    | QueuesUsed
    | BudgetsUsed
    | NodeChanged
    | NodesJoined
    | NodesLeft
    | NodeDescribed
    | NodeSetChanged
    | TopologyChanged
    | PodsCounted
    | DevicesChanged
    | GpusBooked
    | BookingEnded
    | PlanProposed
    | TypicalPodsGiven
)
