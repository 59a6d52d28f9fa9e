"""Harness: a small driver in virtual time over a state and a scheduler, for tests. It may refuse decisions.

After every event the invariants of the state are checked. A refused start is accepted and given up at once (a bound job
is assumed to run until the driver says otherwise), so the job returns to the queue as if never started. A gang that
refuses to grow gives back its new pods at once; one that refuses to shrink is stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from heapq import heappop, heappush

import numpy as np

from kant.cluster.columns import J_FIRST_START as FIRST_START
from kant.cluster.columns import J_STATUS as STATUS
from kant.cluster.journal import Journal
from kant.live.executor import PlanExecutor
from kant.model.decision import (
    Expire,
    Grow,
    Plan,
    Preempt,
    Shrink,
    Start,
)
from kant.model.event import (
    DevicesChanged,
    Event,
    JobCancelled,
    JobEvicted,
    JobFailed,
    JobFinished,
    JobGrown,
    JobPreempted,
    JobRefused,
    JobShrunk,
    JobSubmitted,
    NodeChanged,
    NodeDescribed,
    NodesJoined,
    NodesLeft,
    QueuesChanged,
)
from kant.model.job import Job
from kant.model.node import ClusterSpec, Node
from kant.model.placement import NODE
from kant.model.status import JobStatus, NodeStatus
from kant.model.tenant import Queue, QueueConfig
from kant.model.units import FOREVER, SECOND
from kant.scheduler.cycle import Scheduler
from kant.scheduler.profile import Profile
from kant.testing.builders import make_profile, submitted

Refuse = Callable[[Start | Grow | Shrink], bool]
"""Whether the driver refuses this start, or this change of size."""


def never(start: Start | Grow | Shrink) -> bool:
    """A driver that refuses nothing."""
    return False


def always(start: Start | Grow | Shrink) -> bool:
    """A driver that refuses every start."""
    return True


def at_random(share: float, seed: int = 0) -> Refuse:
    """A driver that refuses this share of the starts, at random."""
    draw = np.random.Generator(np.random.PCG64(seed))
    return lambda start: bool(draw.random() < share)


def refused(event: Event) -> bool:
    """Whether the driver reports by this event that it refused a decision."""
    return isinstance(event, JobRefused) or (isinstance(event, JobShrunk) and not event.by)


class Harness(PlanExecutor):
    """A cluster under a profile. Call its event methods, then `cycle`; or give jobs with run times to `run`."""

    def __init__(
        self,
        cluster: ClusterSpec,
        profile: Profile | None = None,
        *,
        seed: int = 0,
        refuse: Refuse = never,
        retry: int = SECOND,
        check: bool = True,
    ) -> None:
        self.profile = profile or make_profile()
        self.state = self.profile.new_state(cluster)
        self.scheduler = Scheduler(self.state, self.profile, seed)
        self.journal = Journal()
        self.seed = seed
        self.refuse = refuse
        self.retry = retry
        self.check = check
        self.now = 0
        self.events: list[Event] = []
        self.plans: list[Plan] = []
        self.before_carrying_out: Callable[[Plan], object] = lambda plan: None
        self.after_carrying_out: Callable[[Plan], object] = lambda plan: None
        self._left: dict[str, int] = {}
        self._ends: list[tuple[int, int, str]] = []
        self._runs: dict[str, tuple[int, int]] = {}  # for each running job: the number of the run, and its start
        self._wake = FOREVER  # when to cycle again if no event comes first, µs

    # --- events ---------------------------------------------------------------------------------------------

    def happen(self, event: Event) -> None:
        """Apply one event and check every invariant."""
        self.state.apply(event)
        self.events.append(event)
        self.now = event.time
        if self.check:
            self.state.check()

    def submit(self, *jobs: Job, runtime: int = FOREVER) -> None:
        """Let jobs arrive now; in `run` each ends after it has run for `runtime` microseconds."""
        for job in jobs:
            self.happen(submitted(job, runtime, at=self.now))
            self._comes(job.id, runtime)

    def finish(self, *jobs: str) -> None:
        for job in jobs:
            self.happen(JobFinished(self.now, job))
            self._runs.pop(job, None)

    def cancel(self, *jobs: str) -> None:
        for job in jobs:
            self.happen(JobCancelled(self.now, job))
            self._runs.pop(job, None)

    def evict(self, *jobs: str, reason: str = "test", node: str = "") -> None:
        for job in jobs:
            self._stop(job)
            self.happen(JobEvicted(self.now, job, reason, node=node))

    def fail_job(self, *jobs: str, reason: str = "test", node: str = "") -> None:
        """Let jobs fail; they start from the beginning when they run again."""
        for job in jobs:
            self._runs.pop(job, None)
            self.happen(JobFailed(self.now, job, reason, node=node))

    def set_queues(self, *queues: Queue, prices: dict[str, int] | None = None) -> None:
        """Replace the queues."""
        self.happen(QueuesChanged(self.now, QueueConfig(queues, tuple((prices or {}).items()))))

    def fail(self, node: str) -> None:
        """Let a node fail; its jobs are evicted first."""
        self.evict(*self.jobs_on(node), reason=f"{node} failed", node=node)
        self.happen(NodeChanged(self.now, node, NodeStatus.FAILED))

    def lose(self, node: str, *devices: int) -> None:
        """Let the node lack exactly these devices: jobs that hold one are evicted first."""
        lost = sum(1 << device for device in devices)
        self.evict(*self.jobs_on(node, lost), reason=f"{node} lost GPUs", node=node)
        self.happen(DevicesChanged(self.now, node, lost))

    def drain(self, node: str, until: int = -1) -> None:
        self.happen(NodeChanged(self.now, node, NodeStatus.DRAINING, until))

    def cordon(self, node: str) -> None:
        self.happen(NodeChanged(self.now, node, NodeStatus.CORDONED))

    def bring_back(self, node: str) -> None:
        self.happen(NodeChanged(self.now, node, NodeStatus.IN_SERVICE))

    def join(self, *nodes: Node) -> None:
        """Add new nodes, in service."""
        self.happen(NodesJoined(self.now, nodes))

    def leave(self, *nodes: str) -> None:
        """Remove nodes: their jobs are evicted first."""
        for node in nodes:
            self.evict(*self.jobs_on(node), reason=f"{node} left", node=node)
        self.happen(NodesLeft(self.now, nodes))

    def describe(self, node: Node) -> None:
        """Replace the description of a node."""
        self.happen(NodeDescribed(self.now, node))

    # --- cycles ---------------------------------------------------------------------------------------------

    def cycle(self, now: int | None = None) -> Plan:
        """Run one cycle at `now` (or the present), and carry out its plan, except for what the driver refuses."""
        self.now = self.now if now is None else now
        plan = self.scheduler.cycle(self.now)
        self.plans.append(plan)
        self.journal.plan(plan)
        self.before_carrying_out(plan)
        known = len(self.events)
        self.execute(plan)
        self._wake = plan.review_at if plan.review_at > self.now else FOREVER
        if any(refused(event) for event in self.events[known:]):
            self._wake = min(self._wake, self.now + self.retry)
        self.after_carrying_out(plan)
        return plan

    def on_start(self, start: Start) -> None:
        super().on_start(start)
        if self.refuse(start):
            self.happen(JobRefused(self.now, start.job, "the driver of the test refuses"))
        else:
            self._begin(start.job)

    def on_preempt(self, preempt: Preempt) -> None:
        self._stop(preempt.job)
        super().on_preempt(preempt)

    def on_shrink(self, shrink: Shrink) -> None:
        if self.refuse(shrink):
            self._stop(shrink.job)
            self.happen(JobPreempted(self.now, shrink.job, 0, by=shrink.by))
        else:
            self._resize(JobShrunk(self.now, shrink.job, shrink.allocation, 0, shrink.by))

    def on_grow(self, grow: Grow) -> None:
        self._resize(JobGrown(self.now, grow.job, grow.allocation))
        if self.refuse(grow):
            self._resize(JobShrunk(self.now, grow.job, grow.allocation))

    def on_expire(self, expire: Expire) -> None:
        self.fail_job(expire.job, reason="limit")

    def _comes(self, job: str, runtime: int) -> None:
        """Set a job's work: its run time, for an elastic gang times its maximum number of pods."""
        progress = self.state.elastic.get(self.state.rows[job])
        self._left[job] = runtime * progress.ceiling if progress is not None and runtime < FOREVER else runtime

    def _pods(self, job: str) -> int:
        """The pods of an elastic gang, which share its work; 1 for other jobs."""
        progress = self.state.elastic.get(self.state.rows[job])
        return progress.pods if progress is not None else 1

    def _begin(self, job: str) -> None:
        self._runs[job] = (len(self.events), self.now)
        if self._left.get(job, FOREVER) < FOREVER:
            heappush(self._ends, (self.now - (-self._left[job] // self._pods(job)), len(self.events), job))

    def _stop(self, job: str) -> None:
        _, began = self._runs.pop(job, (0, self.now))
        if self._left.get(job, FOREVER) < FOREVER:
            self._left[job] = max(self._left[job] - (self.now - began) * self._pods(job), 1)

    def _resize(self, event: JobGrown | JobShrunk) -> None:
        self._stop(event.job)
        self.happen(event)
        self._begin(event.job)

    def _current(self, end: tuple[int, int, str]) -> bool:
        """Whether this end belongs to a run that has not been stopped."""
        return end[2] in self._runs and self._runs[end[2]][0] == end[1]

    def run(self, coming: Iterable[JobSubmitted] = (), until: int = FOREVER, most: int = 100_000) -> None:
        """Let time pass: jobs end and arrive, followed by cycles, until nothing more happens or `until`.

        At one instant jobs end first, then others arrive. Raises AssertionError after `most` cycles.
        """
        arrivals = sorted(coming, key=lambda event: event.time)
        first = 0
        for _ in range(most):
            while self._ends and not self._current(self._ends[0]):
                heappop(self._ends)
            arrives = arrivals[first].time if first < len(arrivals) else FOREVER
            now = min(arrives, self._ends[0][0] if self._ends else FOREVER, max(self._wake, self.now))
            if now == FOREVER or now > until:
                return
            self.now, ended = now, []
            while self._ends and self._ends[0][0] == now:
                end = heappop(self._ends)
                if self._current(end):
                    ended.append(end[2])
            self.finish(*ended)
            while first < len(arrivals) and arrivals[first].time == now:
                event = arrivals[first]
                self.happen(event)
                self._comes(event.job.id, event.runtime)
                first += 1
            self.cycle(now)
        raise AssertionError(f"the run has not ended within {most} cycles")

    # --- state ----------------------------------------------------------------------------------------------

    def waiting(self) -> list[str]:
        """The waiting jobs, in the order in which they began to wait."""
        return [self.state.ids[row] for row in self.state.pending]

    def running(self) -> list[str]:
        """The running jobs, in the order in which they started."""
        return [self.state.ids[row] for row in self.state.running]

    def status(self, job: str) -> JobStatus:
        return JobStatus(int(self.state.jobs[self.state.rows[job], STATUS]))

    def first_starts(self) -> dict[str, int]:
        """When each job first started; -1 if it did not."""
        return {job: int(self.state.jobs[row, FIRST_START]) for job, row in self.state.rows.items()}

    def jobs_on(self, node: str, devices: int = -1) -> list[str]:
        """The jobs that run on a node; with `devices` (bits) only those that hold one of them."""
        return [self.state.ids[row] for row in self.state.jobs_on(self.state.node_index[node], devices)]

    def nodes_of(self, job: str) -> list[str]:
        """The nodes of a running job, one name for each piece."""
        pieces = self.state.running[self.state.row_of(job)]
        return [self.state.nodes[int(node)].name for node in pieces[:, NODE]]
