"""What a simulated run does to its jobs: they arrive, start, are stopped, end. Each change is one event."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import msgspec

from kant.cluster import columns as c
from kant.cluster.journal import Journal
from kant.cluster.state import ClusterState
from kant.metrics.recorder import Recorder, began
from kant.model.decision import (
    Demote,
    Expire,
    Grow,
    Hold,
    Plan,
    Preempt,
    Reject,
    Release,
    Reorder,
    Reserve,
    Route,
    Shrink,
    Start,
    sentence,
)
from kant.model.event import (
    DevicesChanged,
    Event,
    JobCancelled,
    JobDemoted,
    JobEvicted,
    JobFailed,
    JobFinished,
    JobGrown,
    JobPreempted,
    JobProgressed,
    JobRejected,
    JobReleased,
    JobReserved,
    JobShrunk,
    JobStarted,
    JobSubmitted,
    NodeChanged,
    NodeDescribed,
    NodesJoined,
    NodesLeft,
    PolicyRouted,
    QueueOrdered,
)
from kant.model.placement import Allocation
from kant.model.status import NodeStatus
from kant.model.units import GPU, SECOND
from kant.placement.cost.communication import FULL
from kant.sim.options import SimOptions
from kant.sim.speed import Endless, ResumeCost, Speed, Steady
from kant.workload.faults_file import NodeHealth


class Execution:
    """The state of one run, and the operations that change it. Journal, metrics and job speed follow each change.

    With `placed` a job runs slower on a worse placement. `rejected` counts the rejected jobs by reason.
    """

    def __init__(
        self, state: ClusterState, journal: Journal, recorder: Recorder, speed: Speed, placed: bool = False
    ) -> None:
        self.state = state
        self.journal = journal
        self.recorder = recorder
        self.speed = speed
        self.placed = placed
        self.rejected: Counter[str] = Counter()
        self.happen: Callable[[Event], None] = state.apply if journal.sink is None else self._write_and_apply
        """Write an event to the journal, if there is one, and apply it."""

    def _write_and_apply(self, event: Event) -> None:
        self.journal.write(event)
        self.state.apply(event)

    def arrive(self, event: JobSubmitted) -> None:
        """Submit a job. A burst replica whose base job has already left is withdrawn at once."""
        state, base = self.state, event.job.base_job
        if base and state.rows.get(base) not in state.live:
            alone = msgspec.structs.replace(event.job, base_job="")
            self.happen(JobSubmitted(event.time, alone, event.runtime, event.overhead))
            self.happen(JobCancelled(event.time, event.job.id))
            return
        self.happen(event)
        row = len(state.ids) - 1
        if row in state.elastic:
            self.admit(row, event.runtime, event.overhead)
        else:
            self.speed.submitted(row, event.runtime, event.overhead)

    def admit(self, row: int, runtime: int, overhead: int, done: int = 0) -> None:
        """Register a new job with the speed. `done`: pod-microseconds an elastic gang has already done."""
        progress = self.state.elastic.get(row)
        if progress is None:
            self.speed.submitted(row, runtime, overhead)
        else:
            self.speed.submitted(row, runtime, overhead, progress.ceiling, done)

    def external_event(self, event: Event) -> None:
        """Apply an external event: a job is withdrawn, if it is still live, queues change, or nodes change."""
        if isinstance(event, NodesJoined | NodesLeft | NodeDescribed | NodeChanged | DevicesChanged):
            self._change_by_name(event)
            return
        if not isinstance(event, JobCancelled):
            self.happen(event)
            return
        row = self.state.rows.get(event.job, -1)
        if row in self.state.running:
            self._leave(row, event.time)
            self.speed.dropped(row)
        if row in self.state.live:
            self.happen(event)
            self._withdraw_replicas(row, event.time)

    def _change_by_name(self, event: NodesJoined | NodesLeft | NodeDescribed | NodeChanged | DevicesChanged) -> None:
        """Change nodes by name, as an event from another run states; jobs that cannot stay there are evicted."""
        state, now = self.state, event.time
        index, health = state.node_index, state.health
        if isinstance(event, NodesJoined):
            nodes = tuple(node for node in event.nodes if node.name not in index)
            if nodes:
                self.happen(NodesJoined(now, nodes))
                for node in nodes:
                    self.recorder.serviced(index[node.name], now)
        elif isinstance(event, NodesLeft):
            for row in [index[name] for name in event.nodes if name in index]:
                self.change_node(NodeHealth(now, row, NodeStatus.RETIRED), now)
        elif isinstance(event, NodeDescribed):
            if event.node.name in index:
                row = index[event.node.name]
                for job in () if state.stays_on(event.node) else state.jobs_on(row):
                    reason = f"node {event.node.name} has changed"
                    self.happen(JobEvicted(now, state.ids[job], reason, self._stop(job, now), event.node.name))
                self.happen(event)
                self.recorder.serviced(row, now)
        elif event.node in index:
            row = index[event.node]
            stands = NodeHealth(now, row, NodeStatus(state.table.item(row, c.STATUS)), health.lost.get(row, 0))
            if isinstance(event, NodeChanged):
                stands = stands._replace(status=NodeStatus(event.status), until=event.until)
            else:
                stands = stands._replace(lost=event.lost, until=health.drains.get(row, -1))
            self.change_node(stands, now)

    def preempt(self, row: int, now: int) -> None:
        """Stop a running job at a user's request; it then waits again."""
        self.happen(JobPreempted(now, self.state.ids[row], self._stop(row, now)))

    def withdraw(self, row: int, now: int) -> int:
        """Withdraw a waiting job for now; return its remaining work."""
        left = self.speed.left(row)
        self.external_event(JobCancelled(now, self.state.ids[row]))
        return left

    def end_jobs(self, now: int) -> None:
        """End the jobs whose work is done, and with each base job its running burst replicas."""
        state, ended = self.state, self.speed.take_ended(now)
        for base in ended if state.burst_replicas else ():
            for replica in state.burst_replicas.get(base, ()):
                if replica in state.running and replica not in ended:
                    self.speed.dropped(replica)
                    ended.append(replica)
        for row in ended:
            if self.recorder.keep_intervals:
                self._leave(row, now)
            self.happen(JobFinished(now, state.ids[row]))
            if state.burst_replicas:
                self._withdraw_replicas(row, now)

    def report_progress(self, now: int) -> None:
        """Report the remaining work of running jobs that the scheduler cannot know."""
        for row, left in self.speed.progress(now):
            self.happen(JobProgressed(now, self.state.ids[row], left))

    def _withdraw_replicas(self, base: int, now: int) -> None:
        """Withdraw the waiting burst replicas of a base job that has left."""
        for replica in list(self.state.burst_replicas.get(base, ())):
            if replica in self.state.pending:
                self.happen(JobCancelled(now, self.state.ids[replica]))

    def _stop(self, row: int, now: int) -> int:
        """Stop a running job; return the extra work that this costs it, µs."""
        self._leave(row, now)
        self._report_lag(row, now)
        return self._interrupt(row, now)

    def _interrupt(self, row: int, now: int, saves: bool = False) -> int:
        """Return the cost of a stop or resize, µs. The job's progress must already be in the journal."""
        cost = self.speed.stopped(row, -(-int(self.state.jobs[row, c.J_MILLI]) // GPU), now, saves)
        self.recorder.lost(row, cost)
        return cost

    def _resize(self, job: str, now: int, pieces: Allocation, by: str | None) -> None:
        """Shrink a gang (for job `by`), losing unsaved work, or grow it (`by` None), which saves its work first."""
        row = self.state.rows[job]
        self._leave(row, now)
        self._report_lag(row, now)
        cost = self._interrupt(row, now, saves=by is None)
        self.happen(JobGrown(now, job, pieces, cost) if by is None else JobShrunk(now, job, pieces, cost, by))
        self.run(row, now)

    def run(self, row: int, now: int) -> None:
        """Run a job with the allocation that the state has for it; an elastic gang with its present pods."""
        state = self.state
        self.recorder.started(row, state.running[row])
        slowdown = self._slowdown(row) if self.placed else FULL
        progress = state.elastic.get(row)
        self.speed.started(row, now, slowdown, 1 if progress is None else progress.pods)

    def _report_lag(self, row: int, now: int) -> None:
        """Report the remaining work of a job that ran slower than planned, when it stops."""
        behind, remaining = self.speed.behind(row, now), int(self.state.jobs[row, c.J_REMAINING])
        if behind and remaining >= 0:
            done = now - int(self.state.jobs[row, c.J_SINCE]) - behind
            left = max(remaining - done, 0)
            if row in self.state.elastic:  # as run time with all pods
                progress = self.state.elastic[row]
                left = -(-max(progress.left - done * progress.pods, 0) // progress.ceiling)
            self.happen(JobProgressed(now, self.state.ids[row], left))

    def _leave(self, row: int, now: int) -> None:
        if self.recorder.keep_intervals:
            self.recorder.ended(row, self.state.running[row], began(self.state, row), now)

    def change_node(self, health: NodeHealth, now: int) -> None:
        """Change the health of a node: jobs that hold lost devices are evicted first."""
        state, spec = self.state, self.state.nodes[health.node]
        gone, there = health.status == NodeStatus.RETIRED, spec.name in state.node_index
        failed = gone or health.status == NodeStatus.FAILED
        for row in state.jobs_on(health.node, -1 if failed else health.lost):
            reason = f"node {spec.name} {'left' if gone else 'failed' if failed else 'lost a GPU'}"
            self.happen(JobEvicted(now, state.ids[row], reason, self._stop(row, now), spec.name))
        if gone == there:
            self.happen(NodesLeft(now, (spec.name,)) if gone else NodesJoined(now, (spec,)))
            self.recorder.serviced(health.node, now)
        if gone:
            return
        if health.lost != state.health.lost.get(health.node, 0):
            self.happen(DevicesChanged(now, spec.name, health.lost))
            self.recorder.serviced(health.node, now)
        known = int(state.table[health.node, c.STATUS]), state.health.drains.get(health.node, -1)
        if (health.status.value, health.until) != known:
            self.happen(NodeChanged(now, spec.name, health.status.value, health.until))
            self.recorder.serviced(health.node, now)

    def carry_out(self, plan: Plan) -> bool:
        """Carry out the plan; in simulated time everything succeeds at once.

        Returns whether to cycle again at once, to retry a stopped job and jobs that may fit in the freed capacity.
        """
        state, now, gone, again = self.state, plan.time, list[int](), False
        for decision in plan.decisions:
            match decision:
                case Start(job=job, allocation=allocation, kept=kept):
                    row = state.rows[job]
                    self.recorder.replaced += kept > 0
                    self.happen(JobStarted(now, job, allocation))
                    self.run(row, now)
                case Hold():
                    pass
                case Reject(job=job, reason=reason):
                    self.rejected[sentence(reason)] += 1
                    self.happen(JobRejected(now, job, sentence(reason)))
                    gone.append(state.rows[job])
                case Preempt(job=job, moved=moved, by=by):
                    self.happen(JobPreempted(now, job, self._stop(state.rows[job], now), moved, by))
                    again = again or bool(by)
                case Shrink(job=job, allocation=pieces, by=by):
                    self._resize(job, now, pieces, by)
                    again = again or bool(by)
                case Grow(job=job, allocation=pieces):
                    self._resize(job, now, pieces, None)
                case Expire(job=job):
                    self.happen(JobFailed(now, job, "limit", self._stop(state.rows[job], now)))
                    again = True
                case Reserve(job=job, start=start, end=end, allocation=allocation):
                    self.happen(JobReserved(now, job, start, end, allocation))
                case Release(job=job):
                    self.happen(JobReleased(now, job))
                case Demote(job=job, level=level):
                    self.happen(JobDemoted(now, job, level))
                case Reorder(jobs=jobs):
                    self.happen(QueueOrdered(now, jobs))
                case Route(policy=policy, why=why):
                    self.happen(PolicyRouted(now, policy, why))
        for row in gone:
            self._withdraw_replicas(row, now)
        return again

    def _slowdown(self, row: int) -> int:
        """Return the slowdown of a job that has just been placed, in thousandths."""
        return self.recorder.model.of(self.recorder.shape_at(row), self.recorder.spans[row])


def speed_of(options: SimOptions) -> Speed:
    """Return the speed model that the options select."""
    if options.static:
        return Endless()
    if options.speed == "interval-overhead":
        from kant.reproduce.interval_overhead import IntervalOverhead

        return IntervalOverhead(options.merge_ends)
    saves = options.checkpoint_s
    return Steady(ResumeCost(options.resume_cost), None if saves is None else max(saves, 0) * SECOND)
