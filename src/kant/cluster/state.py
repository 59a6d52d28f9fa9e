"""ClusterState: the present state of a cluster. Only `apply(event)` changes it; `check()` verifies its invariants."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kant.cluster import booking_events as booking
from kant.cluster import elastic_events as elastic
from kant.cluster import fleet_events as fleet
from kant.cluster import job_events as job
from kant.cluster import node_events as node
from kant.cluster import rule_events as rule
from kant.cluster.preemptible import PreemptibleCounts, lowest
from kant.cluster.state_data import StateData
from kant.model import event as ev
from kant.model.errors import StateError
from kant.model.node import Node

if TYPE_CHECKING:
    from kant.cluster.competing_jobs import CompetingJobs

APPLIERS: dict[type, Callable[[StateData, Any], None]] = {
    ev.JobSubmitted: job.submitted,
    ev.JobStarted: job.started,
    ev.JobGrown: elastic.grown,
    ev.JobShrunk: elastic.shrunk,
    ev.JobScaled: elastic.scaled,
    ev.JobRuled: rule.ruled,
    ev.JobFinished: job.finished,
    ev.JobPreempted: job.preempted,
    ev.JobEvicted: job.evicted,
    ev.JobRefused: job.refused,
    ev.JobFound: job.found,
    ev.JobFailed: job.failed,
    ev.JobReserved: job.reserved,
    ev.JobReleased: job.released,
    ev.JobRejected: job.rejected,
    ev.JobCancelled: job.cancelled,
    ev.JobProgressed: job.progressed,
    ev.JobDemoted: job.demoted,
    ev.JobProtected: job.protected,
    ev.JobPriced: job.priced,
    ev.JobAwaitsNode: job.awaits_node,
    ev.JobLimited: job.limited,
    ev.QueueOrdered: job.ordered,
    ev.PolicyRouted: node.policy_routed,
    ev.QueuesChanged: node.queues_changed,
    ev.QueuesUsed: node.queues_used,
    ev.BudgetsUsed: node.budgets_used,
    ev.NodeChanged: node.node_changed,
    ev.NodesJoined: fleet.joined,
    ev.NodesLeft: fleet.left,
    ev.NodeDescribed: fleet.described,
    ev.NodeSetChanged: node.node_set_changed,
    ev.TopologyChanged: rule.topology_changed,
    ev.PodsCounted: rule.pods_counted,
    ev.DevicesChanged: node.devices_changed,
    ev.GpusBooked: booking.booked,
    ev.BookingEnded: booking.unbooked,
    ev.PlanProposed: node.plan_proposed,
    ev.TypicalPodsGiven: node.typical_pods_given,
}
"""The function that applies each kind of event to the state."""


class ClusterState(StateData):
    """The state of one cluster, as the result of its events."""

    _competing: CompetingJobs | None = None

    @property
    def competing_jobs(self) -> CompetingJobs:
        """The live jobs by the pools that admit them, kept up to date from the first use on."""
        if self._competing is None:
            from kant.cluster.competing_jobs import CompetingJobs

            self._competing = CompetingJobs(self)
            self.followers.append(self._competing)
        return self._competing

    def apply(self, event: ev.Event) -> None:
        """Apply one event. Raises StateError, and changes nothing, if it contradicts the state."""
        if event.time < self.now:
            raise StateError(f"{event} is earlier than the state's time {self.now}")
        APPLIERS[type(event)](self, event)
        self.now = event.time

    def stays_on(self, node: Node) -> bool:
        """Return whether all that jobs hold on the node of this name would fit on `node` (for `NodeDescribed`)."""
        return fleet.stays_on(self, node)

    def is_in_use(self, node: str) -> bool:
        """Return whether a job holds something on the node of this name: then it may not leave (`NodesLeft`)."""
        return fleet.is_in_use(self, node)

    def lowest_preemptible(self) -> int:
        """Return the lowest priority of the preemptible running jobs; FOREVER if there is none."""
        if self.preemptible is None:
            self.preemptible = PreemptibleCounts(self.jobs, self.running)
        return int(lowest(self.preemptible.table))

    def eviction_bounds(self) -> tuple[int, bool]:
        """Return the lowest priority of a preemptible running job (FOREVER: none), and whether a queue borrows."""
        usage = self.quota_usage
        tree = usage.tree
        borrows = tree is not None and (tree.any_beyond_nominal() or (-1 in usage.node_of and usage.holds_outside()))
        known = self.preemptible
        return self.lowest_preemptible() if known is None else int(lowest(known.table)), borrows

    def check(self) -> None:
        """Raise StateError unless every invariant holds (`cluster/invariants.py`)."""
        from kant.cluster.invariants import check  # for tests and audits: no scheduler loads it

        check(self)
        if self._competing is not None:
            self._competing.check()
