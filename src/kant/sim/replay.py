"""Replay: run the events of a journal through the core again, and compare every decision."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

from kant.cluster import columns as c
from kant.cluster.journal import Header, Journal
from kant.cluster.state import ClusterState
from kant.live.journal_walk import read_journal
from kant.metrics.result import RunResult
from kant.model.decision import Plan, Start
from kant.model.event import (
    BookingEnded,
    Event,
    GpusBooked,
    JobSubmitted,
    QueuesChanged,
    TypicalPodsGiven,
)
from kant.model.status import JobStatus
from kant.model.tenant import QueueConfig
from kant.model.units import FOREVER
from kant.scheduler.profile import Profile
from kant.sim.checks import check_profile
from kant.sim.journal_metrics import JournalMetrics
from kant.sim.node_stands import NODE_EVENTS, NodeStands
from kant.sim.options import read_options
from kant.sim.run import Run, RunHooks
from kant.sim.unsaid_cycles import UnsaidCycles, is_recorded
from kant.workload.faults_file import NodeHealth


@dataclass(slots=True)
class Replay:
    """A journal that was run again.

    `queue_config` has the first queues, `faults` the node faults, `booked` the bookings that users made and cancelled,
    and the node changes after other nodes had joined. `recorded` and `replayed` are the digests; `difference` is the
    first plan that differs, if any.
    """

    header: Header
    profile: Profile
    recorded: str
    replayed: str
    result: RunResult
    submissions: list[JobSubmitted] = field(default_factory=list)
    mix: TypicalPodsGiven | None = None
    queue_config: QueueConfig | None = None
    faults: list[NodeHealth] = field(default_factory=list)
    booked: list[Event] = field(default_factory=list)
    difference: tuple[Plan, Plan] | None = None
    until: int = FOREVER  # µs: when the record was cut off; FOREVER: it was not

    @property
    def lacks_cycles(self) -> bool:
        """Return whether the journal omits cycles without saying when they ran, so that a replay may differ."""
        return self.header.zero > 0 and not is_recorded(self.header)

    @property
    def equal(self) -> bool:
        return self.recorded == self.replayed


def replay(path: Path) -> Replay:
    """Apply the events of a journal again, and cycle when its run did. Raises InputError for a broken journal."""
    walk = read_journal(path)
    metrics = JournalMetrics(walk)
    state, recorded, replayed = metrics.state, metrics.recorded, Journal()
    submissions: list[JobSubmitted] = []
    mix: TypicalPodsGiven | None = None
    queue_config: QueueConfig | None = None
    faults: list[NodeHealth] = []
    difference: tuple[Plan, Plan] | None = None
    booked, stands = list[Event](), NodeStands(walk.header.cluster)

    def cycle(line: Plan, always: bool = True) -> None:
        nonlocal difference
        plan = walk.decide_again(metrics.scheduler, line)
        replayed.plan(plan, always)
        if unsaid is not None:
            unsaid.decided(plan)
        if difference is None and recorded.digest != replayed.digest:
            difference = (line, plan)

    def look(time: int) -> None:
        cycle(Plan(time, []), always=False)

    unsaid = UnsaidCycles() if not is_recorded(walk.header) and not walk.header.zero else None
    walk.cycled = look
    for line in walk:
        for time in unsaid.before(line) if unsaid is not None else ():
            look(time)
        if isinstance(line, Plan):
            metrics.recorder.replaced += sum(isinstance(d, Start) and d.kept > 0 for d in line.decisions)
            metrics.decided(line)
            cycle(line)
            continue
        metrics.happened(line)
        if isinstance(line, JobSubmitted):
            submissions.append(line)
        elif isinstance(line, TypicalPodsGiven):
            mix = line
        elif isinstance(line, QueuesChanged) and queue_config is None:
            queue_config = line.queue_config
        elif isinstance(line, NODE_EVENTS):
            faults += stands.after(line)
            booked += [line] if stands.by_name else []
        elif isinstance(line, GpusBooked | BookingEnded):
            booked.append(line)
    footer = walk.footer  # missing if the record is cut short
    digests = {
        "decisions": replayed.decisions, "digest": replayed.digest, "recorded_digest": recorded.digest,
    }  # fmt: skip
    result = metrics.result(digests, footer is None or footer.interrupted)
    observed = [_with_truth(state, event) for event in submissions]
    return Replay(
        walk.header, metrics.profile, recorded.digest, replayed.digest, result,
        [event for event in observed if event is not None], mix, queue_config, faults, booked, difference,
        FOREVER if footer is not None and not footer.cut else result.end,
    )  # fmt: skip


def _with_truth(state: ClusterState, event: JobSubmitted) -> JobSubmitted | None:
    """Return the submission with its run time, from the journal or else as observed; None if it is unknown."""
    row = state.rows[event.job.id]
    if state.jobs[row, c.J_STATUS] == JobStatus.CANCELLED and state.jobs[row, c.J_END] == event.time:
        return None  # a burst replica that arrived after its base job had left
    if event.runtime >= 0:
        return event
    if state.jobs[row, c.J_END] < 0 or state.jobs[row, c.J_ATTAINED] == 0:
        return None
    return JobSubmitted(event.time, event.job, int(state.jobs[row, c.J_ATTAINED]), event.overhead)


def rerun(again: Replay, profile: Profile, hooks: RunHooks | None = None) -> RunResult:
    """Simulate what `profile` would have done with a journal's jobs, on the same cluster and from the same seed."""
    options = read_options(profile.simulation, f"profile {profile.name}")
    check_profile(profile, again.queue_config, burst_replicas=any(event.job.base_job for event in again.submissions))
    header = again.header
    run = Run(
        header.workload,
        header.cluster,
        profile,
        options,
        header.seed,
        again.until,
        hooks or RunHooks(),
        again.queue_config,
        again.faults,
    )
    run.external = deque(again.booked)
    if again.mix is not None:
        run.typical(again.mix.rows)
    return run.result(iter(again.submissions), len(again.submissions))
