"""JournalMetrics: the metrics of the run behind a journal, folded from its events as they are read."""

from __future__ import annotations

from collections import Counter
from typing import Any

from kant.cluster.journal import Journal
from kant.live.journal_walk import JournalWalk
from kant.metrics.recorder import Recorder, began
from kant.metrics.result import RunResult
from kant.metrics.summary import job_table, summarise
from kant.metrics.wait_ledger import WaitLedger, wait_by_cause
from kant.model.decision import Plan
from kant.model.event import (
    Event,
    JobCancelled,
    JobEvicted,
    JobFailed,
    JobFinished,
    JobGrown,
    JobPreempted,
    JobRefused,
    JobRejected,
    JobShrunk,
    JobStarted,
    NodesLeft,
)
from kant.sim.node_stands import NODE_EVENTS, names_of
from kant.sim.options import read_options

_COSTS = JobEvicted | JobFailed | JobGrown | JobPreempted | JobShrunk
_ENDS = _COSTS | JobCancelled | JobFinished | JobRefused


class JournalMetrics:
    """The metrics of a journal, from every event and plan in it. With `keep_ledger` waits are split by cause."""

    def __init__(self, walk: JournalWalk, keep_ledger: bool = False) -> None:
        self.walk = walk
        self.scheduler = walk.new_scheduler()
        self.state, self.profile = self.scheduler.state, self.scheduler.profile
        self.options = read_options(self.profile.simulation, f"{walk.path}:1: profile")
        self.recorder = Recorder(self.state, keep_intervals=True)
        self.ledger = WaitLedger(self.scheduler) if keep_ledger else None
        self.recorded = Journal()
        self.rejected: Counter[str] = Counter()
        if walk.header.begins == 0:
            self.recorder.observe(0)
        walk.observe, walk.observed_from = self._observe, walk.header.begins

    def _observe(self, now: int) -> None:
        self.recorder.observe(now)
        if self.ledger is not None:
            self.ledger.observe(now)

    def decided(self, plan: Plan) -> None:
        """Apply a plan of the journal."""
        self.recorded.plan(plan, True)

    def happened(self, event: Event) -> None:
        """Apply an event of the journal. Raises InputError if it contradicts the state."""
        state, recorder = self.state, self.recorder
        if isinstance(event, _ENDS):
            row = state.rows.get(event.job, -1)
            if isinstance(event, _COSTS):
                recorder.lost(row, event.cost)
            if row in state.running:
                recorder.ended(row, state.running[row], began(state, row), event.time)
        before = {name: state.node_index[name] for name in event.nodes} if isinstance(event, NodesLeft) else {}
        self.walk.apply(state, event)
        if isinstance(event, JobRejected):
            self.rejected[event.reason] += 1
        elif isinstance(event, NODE_EVENTS):
            for name in names_of(event):
                row = state.node_index.get(name, before.get(name, -1))
                recorder.serviced(row, event.time)
        elif isinstance(event, JobStarted | JobGrown | JobShrunk):
            row = state.rows[event.job]
            recorder.started(row, state.running[row])

    def result(self, digests: dict[str, Any], interrupted: bool) -> RunResult:
        """Return the metrics up to the end of the journal. `digests` has the count and the digest of decisions, for the
        summary.
        """
        state, recorder, header = self.state, self.recorder, self.walk.header
        end = max(self.walk.time, header.begins)
        self._observe(end)
        for row, allocation in state.running.items():
            recorder.ended(row, allocation, began(state, row), end)
        table, queues = job_table(state, end, recorder).apart(), tuple(state.queues)
        summary = summarise(state, recorder, table, end, self.options.quantile) | {
            "profile": self.profile.name, "workload": header.workload, "cluster": header.cluster.name,
            "seed": header.seed, **digests, "interrupted": interrupted,
            "rejected_because": dict(self.rejected.most_common()),
        }  # fmt: skip
        causes = self.ledger.columns(end) if self.ledger is not None else None
        if causes is not None:
            summary["wait_by_cause"] = wait_by_cause(causes, table, queues)
        return RunResult(
            profile=self.profile.name, workload=header.workload, cluster=state.cluster, summary=summary,
            series=recorder.series(), jobs=table, queues=queues, end=end, interrupted=interrupted,
            intervals=recorder.intervals(), service=recorder.service(), wait_by_cause=causes,
        )  # fmt: skip
