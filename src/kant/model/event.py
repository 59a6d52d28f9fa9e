"""What happened: a closed union. Events are the only way in which the state of a cluster changes.

Times are microseconds on the run's clock. Jobs are named by id, nodes by name; a node inside an allocation is its
row: as the header of the journal lists the nodes, and from then on as they join (`kant.cluster.node_rows`).
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
    """A person submitted a job. `runtime` and `overhead` are the simulator's truth, which no policy ever sees."""

    job: Job
    runtime: int = -1
    overhead: int = 0


class JobStarted(_Event, frozen=True, tag="started"):
    """The driver took the placement on: from now on these devices are the job's (`model.placement` columns)."""

    job: str
    allocation: np.ndarray


class JobGrown(_Event, frozen=True, tag="grown"):
    """An elastic gang that runs has got `allocation` in addition. To take it in costs it `cost` more work."""

    job: str
    allocation: np.ndarray
    cost: int = 0


class JobShrunk(_Event, frozen=True, tag="shrunk"):
    """An elastic gang that runs has given `allocation` back and runs on with the rest, with `cost` more work to do."""

    job: str
    allocation: np.ndarray
    cost: int = 0
    by: str = ""  # the job that takes its place, where one does


class JobScaled(_Event, frozen=True, tag="scaled"):
    """The owner of a job that runs has made pods of it, or taken some away: from now on these are its groups.

    They ask for what they asked for before, in the same order; floors and counts may be others. What it holds lies
    between them. `models`, `flavors`, `roles` and `node_set` are what its pods accept from now on (as in `Job`). It may
    grow at once, without the time that `Elastic.grow_s` puts between two sizes.
    """

    job: str
    groups: tuple[PodGroup, ...]
    models: tuple[str, ...] = ()
    flavors: tuple[str, ...] = ()
    roles: tuple[Role, ...] = ()
    node_set: str = ""


class JobRuled(_Event, frozen=True, tag="ruled"):
    """From now on these are the rules of a job that waits or runs (as in `Job`), in place of those before.

    What runs stays where it is, and counts as they say.
    """

    job: str
    rules: tuple[PodRules, ...]


class JobFinished(_Event, frozen=True, tag="finished"):
    """The job ended by itself and gave everything back."""

    job: str


class JobPreempted(_Event, frozen=True, tag="preempted"):
    """The scheduler's order to stop was carried out. The job waits again, with `cost` more work to do."""

    job: str
    cost: int = 0
    moved: bool = False  # stopped only to run on other devices at this same instant
    by: str = ""  # the job that takes its place, where one does


class JobEvicted(_Event, frozen=True, tag="evicted"):
    """The job lost its place for a reason outside the scheduler and waits again.

    `node` is the one whose fault it was, where it was one's: the job holds devices there and remembers it. Then the
    others of its devices are still good, and the gang may have them back with another node in place of this one.
    """

    job: str
    reason: str
    cost: int = 0
    node: str = ""


class JobRefused(_Event, frozen=True, tag="refused"):
    """The driver could not carry out the start: the job was never running and waits as before.

    `blameless`: what it was given is gone, and another place may be tried at once.
    """

    job: str
    reason: str
    blameless: bool = False


class JobFound(_Event, frozen=True, tag="found"):
    """Pods of a waiting gang hold `allocation` already, in part or whole: bound by somebody who did not finish.

    Until it starts it is free on paper, so a driver says this only before it asks for the gang to be mended
    (`scheduler/partial_gangs.py`), and takes no other decision before the gang has started, or left.
    """

    job: str
    allocation: np.ndarray


class JobFailed(_Event, frozen=True, tag="failed"):
    """The job ended otherwise than it should: by its own fault, or at its limit. It waits again, to be tried anew.

    `node` is one of its nodes that it should rather not have again.
    """

    job: str
    reason: str
    cost: int = 0
    node: str = ""


class JobReserved(_Event, frozen=True, tag="reserved"):
    """The waiting job is promised `allocation` from `start` to `end`, in place of what it was promised before."""

    job: str
    start: int
    end: int
    allocation: np.ndarray


class JobReleased(_Event, frozen=True, tag="released"):
    """What the waiting job was promised is promised no longer."""

    job: str


class JobRejected(_Event, frozen=True, tag="rejected"):
    """The job leaves without having run: it can never fit, or its discipline drops what is blocked."""

    job: str
    reason: str


class JobCancelled(_Event, frozen=True, tag="cancelled"):
    """A person withdrew the job, waiting or running."""

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
    """From now on the scheduler may not stop the job, because of `by`; where that is "", it may as ever."""

    job: str
    by: str = ""


class JobPriced(_Event, frozen=True, tag="priced"):
    """From now on stopping the job costs `price` milli-GPU-seconds, in place of the work that it would lose; with -1,
    that again."""

    job: str
    price: int = -1


class JobAwaitsNode(_Event, frozen=True, tag="awaits-node"):
    """The waiting job waits for no node from now on before it stops others, since no autoscaler adds one for it; with
    `awaits` it does again, as long as its queue and the job itself say."""

    job: str
    awaits: bool = False


class JobLimited(_Event, frozen=True, tag="limited"):
    """From now on the run of the job may last `limit` microseconds since it started. Where that was all that was known
    of its run time, it is what policies expect now."""

    job: str
    limit: int


class PolicyRouted(_Event, frozen=True, tag="routed"):
    """From now on this policy of a router acts (`kant.queueing.router`); `why` in one sentence."""

    policy: str
    why: str = ""


class QueueOrdered(_Event, frozen=True, tag="ordered"):
    """The live jobs in the order of the last cycle, for orders that remember it."""

    jobs: tuple[str, ...]


class QueuesChanged(_Event, frozen=True, tag="queues", rename={"queue_config": "tenancy"}):
    """The tree of queues and their quotas as they are from now on, in place of those before."""

    queue_config: QueueConfig


class NodeChanged(_Event, frozen=True, tag="node"):
    """A node entered or left service (a `NodeStatus` value). Its jobs are evicted by events of their own.

    What runs on a draining node runs to its end, or to `until` if that is a time: then the scheduler stops it.
    """

    node: str
    status: int
    until: int = -1


class NodesJoined(_Event, frozen=True, tag="joined"):
    """Nodes that were not there are in service from now on.

    One that was there before has its old row, and is in the node sets in which it was; another is in none. Which row
    that gets is a rule (`kant.cluster.node_rows`).
    """

    nodes: tuple[Node, ...]


class NodesLeft(_Event, frozen=True, tag="left"):
    """These nodes are there no longer. What ran there was stopped before by events of its own.

    Promises on them are void. They may come back: a job that fits nowhere else waits for them.
    """

    nodes: tuple[str, ...]


class NodeDescribed(_Event, frozen=True, tag="described"):
    """The node of this name is from now on as `node` says: of another size, in another pool, elsewhere in the fabric.

    What runs there stays: where that would not fit, the event is refused. So does the node's status, and its place in
    node sets. Promises on it that it can no longer keep are void.
    """

    node: Node


class NodeSetChanged(_Event, frozen=True, tag="node-set"):
    """From now on the node set `node_set` has the nodes `added`, and no longer has those `removed`.

    A set that no event has named is empty. What runs on a node that leaves the set runs on.
    """

    node_set: str
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()


class TopologyChanged(_Event, frozen=True, tag="topology"):
    """From now on these nodes are in these domains of a topology, by name; with "" in none.

    A topology that no event has named has no domains. What runs stays, and counts in the new domain. A node that leaves
    is in none, and comes back so.
    """

    topology: str
    domains: dict[str, str]


class PodsCounted(_Event, frozen=True, tag="counted"):
    """Pods on a node that are of no job count so, in place of what was said of the node before.

    `classes` is how many are of each class, and `amounts` what they take of the exact amounts.
    """

    node: str
    classes: dict[str, int] = {}
    amounts: dict[str, int] = {}


class DevicesChanged(_Event, frozen=True, tag="devices"):
    """From now on the devices `lost` of the node (as bits) are not there, and all its others are.

    Their jobs were evicted before by events of their own.
    """

    node: str
    lost: int


class GpusBooked(_Event, frozen=True, tag="booked"):
    """`user` has the GPUs of `allocation` from `start` to before `end`, for jobs that name the `reservation`.

    It may move before it has begun: then this is in place of what was booked under its name before.
    """

    reservation: str
    start: int
    end: int
    allocation: np.ndarray
    user: str = ""


class BookingEnded(_Event, frozen=True, tag="unbooked"):
    """The reservation is no longer there: it was cancelled, or it is over."""

    reservation: str


class QueueUse(Struct, frozen=True, array_like=True):
    """GPU time that a queue has used: `present` milli-GPU-microseconds in the present clock hour, and of each earlier
    hour that has some its age in hours, from 1 on, and its milli-GPU-seconds."""

    present: int
    hours: tuple[tuple[int, int], ...] = ()


class QueuesUsed(_Event, frozen=True, tag="used"):
    """What queues have used up to now, in place of what is known of it: the record goes on from an earlier one.

    The present clock hour began `phase` microseconds ago. A queue that is not named has used nothing. Shares that
    forget weigh it by any half-life, as if no record had ended (`kant.cluster.usage`).
    """

    phase: int
    queues: dict[str, QueueUse]


class BudgetsUsed(_Event, frozen=True, tag="budgets"):
    """What was used of the present month's budgets up to now, in place of what is known of it, and when months end.

    `used` has by queue and user the milli-GPU-microseconds. After the last of `ends` (microseconds) each month has 30
    days.
    """

    ends: tuple[int, ...]
    used: dict[str, dict[str, int]] = {}


class ProposedPlace(Struct, frozen=True, array_like=True):
    """Where a job is to run: so many pods on each node."""

    job: str
    pods: dict[str, int]


class PlanProposed(_Event, frozen=True, tag="proposed"):
    """A solver says what would be better: running jobs move, and waiting ones start where these were.

    It worked on an earlier moment. The core decides now whether it is carried out, whole or not at all
    (`scheduler/proposals.py`). `by` is the part of the profile that asked: `fallback` or `defragment`.
    """

    by: str
    moves: tuple[ProposedPlace, ...] = ()
    starts: tuple[ProposedPlace, ...] = ()


class TypicalPodsGiven(_Event, frozen=True, tag="mix"):
    """The typical pods: rows (cpu, gpus, milli, pool mask, weight); what fragmentation is measured against."""

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
