"""Replay: the events of a journal through the core again, comparing every decision."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from kant.cluster import columns as c
from kant.cluster.journal import Footer, Header, Journal, read_lines
from kant.cluster.state import ClusterState
from kant.metrics.recorder import Recorder, began
from kant.metrics.result import RunResult
from kant.metrics.summary import job_table, summarise
from kant.model.decision import Plan, Start
from kant.model.errors import InputError, Violation
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
    JobRejected,
    JobShrunk,
    JobStarted,
    JobSubmitted,
    MixObserved,
    NodeChanged,
    QueuesChanged,
)
from kant.model.status import JobStatus, NodeStatus
from kant.model.tenant import Tenancy
from kant.model.units import FOREVER
from kant.scheduler.cycle import Scheduler
from kant.scheduler.mend import decide
from kant.scheduler.profile import Profile, builtin_profile, builtin_texts, parse_profile
from kant.sim.options import read_options
from kant.sim.run import Run, RunHooks
from kant.sim.tenants import check_profile
from kant.workload.faults_file import NodeHealth

LAST_BYTES = 1 << 20
"""A journal's last line is looked for in so many bytes."""


@dataclass(slots=True)
class Replay:
    """A journal that was run again.

    `tenancy` has the queues as they were first, `faults` what happened to nodes. `recorded` and `replayed` are the
    digests; `difference` is the first plan that came out otherwise, if any.
    """

    header: Header
    profile: Profile
    recorded: str
    replayed: str
    result: RunResult
    submissions: list[JobSubmitted] = field(default_factory=list)
    mix: MixObserved | None = None
    tenancy: Tenancy | None = None
    faults: list[NodeHealth] = field(default_factory=list)
    difference: tuple[Plan, Plan] | None = None
    until: int = FOREVER  # when the record was cut

    @property
    def equal(self) -> bool:
        return self.recorded == self.replayed


def end_of(path: Path) -> int:
    """The time of the last whole line of a journal; 0 where that cannot be told from its last lines."""
    try:
        with path.open("rb") as file:
            file.seek(max(file.seek(0, 2) - LAST_BYTES, 0))
            lines = file.read().split(b"\n")
        return max(int(msgspec.json.decode(lines[-2], type=_Timed).time), 0)
    except (OSError, IndexError, msgspec.DecodeError):
        return 0


class _Timed(msgspec.Struct):
    time: int


def read_journal(path: Path) -> tuple[Header, Iterator[Event | Plan | Footer]]:
    """The header of a journal and, lazily, its lines. Raises InputError for anything that is not one."""
    try:
        file = path.open("rb")
    except OSError as error:
        raise InputError(str(path), f"a journal that can be read ({error.strerror})") from None
    lines = read_lines(iter(file), str(path))
    header = next(lines, None)
    if not isinstance(header, Header):
        raise InputError(f"{path}:1", "the header of a Kant journal")
    return header, (line for line in lines if not isinstance(line, Header))


def profile_of(header: Header, path: Path) -> Profile:
    """The profile that a journal was written under. Raises InputError."""
    if header.profile in builtin_texts():
        return builtin_profile(header.profile)
    return parse_profile(header.profile, f"{path}:1: profile")


def scheduler_of(header: Header, path: Path) -> Scheduler:
    """The header's profile before the header's cluster, to which nothing has happened yet. Raises InputError."""
    profile = profile_of(header, path)
    try:
        state = ClusterState(header.cluster, learn=profile.estimates.learns, workloads=profile.matches)
    except Violation as violation:
        raise InputError(f"{path}:1: cluster", f"a cluster that can be counted: {violation}") from None
    return Scheduler(state, profile, header.seed)


def replay(path: Path) -> Replay:
    """Take the events of the journal in again and cycle where it cycled. Raises InputError for a broken journal."""
    header, lines = read_journal(path)
    scheduler = scheduler_of(header, path)
    state, profile = scheduler.state, scheduler.profile
    options = read_options(profile.simulation, f"{path}:1: profile")
    recorder = Recorder(state, keep_intervals=True)
    recorded, replayed = Journal(), Journal()
    submissions: list[JobSubmitted] = []
    mix: MixObserved | None = None
    tenancy: Tenancy | None = None
    faults: list[NodeHealth] = []
    difference: tuple[Plan, Plan] | None = None
    footer: Footer | None = None  # missing where the record breaks off
    rejected: Counter[str] = Counter()
    begins = header.begins
    if begins == 0:
        recorder.observe(0)
    for number, line in enumerate(lines, start=2):
        try:
            if isinstance(line, Footer):
                footer = line
                continue
            if isinstance(line, Plan):
                plan = decide(scheduler, line)
                recorder.replaced += sum(isinstance(d, Start) and d.kept > 0 for d in line.decisions)
                recorded.plan(line, True)
                replayed.plan(plan, True)
                if difference is None and recorded.digest != replayed.digest:
                    difference = (line, plan)
                continue
            if line.time > state.now and line.time > begins:
                recorder.observe(max(state.now, begins))
            record_end(state, recorder, line)
            state.apply(line)
        except (Violation, OverflowError) as violation:
            raise InputError(f"{path}:{number}", f"an event that fits the state: {violation}") from None
        if isinstance(line, JobSubmitted):
            submissions.append(line)
        elif isinstance(line, JobRejected):
            rejected[line.reason] += 1
        elif isinstance(line, MixObserved):
            mix = line
        elif isinstance(line, QueuesChanged) and tenancy is None:
            tenancy = line.tenancy
        elif isinstance(line, NodeChanged | DevicesChanged):
            faults.append(_health_of(state, line))
        elif isinstance(line, JobStarted | JobGrown | JobShrunk):
            recorder.started(state.rows[line.job], state.running[state.rows[line.job]])
    recorder.observe(state.now)
    end = state.now if footer is None else max(footer.time, state.now)
    recorder.observe(end)
    for row, allocation in state.running.items():
        recorder.ended(row, allocation, began(state, row), end)
    table = job_table(state, end, recorder)
    summary = summarise(state, recorder, table, end, options.quantile)
    summary |= {
        "profile": profile.name, "workload": header.workload, "cluster": header.cluster.name, "seed": header.seed,
        "decisions": replayed.decisions, "digest": replayed.digest, "recorded_digest": recorded.digest,
        "interrupted": footer is None or footer.interrupted, "rejected_because": dict(rejected.most_common()),
    }  # fmt: skip
    result = RunResult(
        profile=profile.name, workload=header.workload, cluster=header.cluster, summary=summary,
        series=recorder.series(), jobs=table, queues=tuple(state.queues), end=end,
        intervals=recorder.intervals(), interrupted=footer is None or footer.interrupted,
    )  # fmt: skip
    observed = [_with_truth(state, event) for event in submissions]
    return Replay(
        header, profile, recorded.digest, replayed.digest, result,
        [event for event in observed if event is not None], mix, tenancy, faults, difference,
        FOREVER if footer is not None and not footer.cut else end,
    )  # fmt: skip


def record_end(state: ClusterState, recorder: Recorder, event: Event) -> None:
    """Tell the recorder what ends, or is lost, by an event that the state has not taken in yet."""
    if isinstance(
        event,
        JobCancelled | JobEvicted | JobFailed | JobFinished | JobGrown | JobPreempted | JobRefused | JobShrunk,
    ):
        row = state.rows.get(event.job, -1)
        if isinstance(event, JobEvicted | JobFailed | JobGrown | JobPreempted | JobShrunk):
            recorder.lost(row, event.cost)
        if row in state.running:
            recorder.ended(row, state.running[row], began(state, row), event.time)


def _health_of(state: ClusterState, event: NodeChanged | DevicesChanged) -> NodeHealth:
    """How the node stands now that the event has been taken in."""
    node, health = state.node_index[event.node], state.health
    status = NodeStatus(int(state.table[node, c.STATUS]))
    return NodeHealth(event.time, node, status, health.lost.get(node, 0), health.drains.get(node, -1))


def _with_truth(state: ClusterState, event: JobSubmitted) -> JobSubmitted | None:
    """The submission with its run time: what the journal knows, else what was seen; None where neither says."""
    row = state.rows[event.job.id]
    if state.jobs[row, c.J_STATUS] == JobStatus.CANCELLED and state.jobs[row, c.J_END] == event.time:
        return None  # a burst that came after its core had left
    if event.runtime >= 0:
        return event
    if state.jobs[row, c.J_END] < 0 or state.jobs[row, c.J_ATTAINED] == 0:
        return None
    return JobSubmitted(event.time, event.job, int(state.jobs[row, c.J_ATTAINED]), event.overhead)


def rerun(again: Replay, profile: Profile, hooks: RunHooks | None = None) -> RunResult:
    """What `profile` would have done with the jobs of a journal, on the same cluster and from the same seed."""
    options = read_options(profile.simulation, f"profile {profile.name}")
    check_profile(profile, again.tenancy, bursts=any(event.job.core for event in again.submissions))
    header = again.header
    run = Run(
        header.workload,
        header.cluster,
        profile,
        options,
        header.seed,
        again.until,
        hooks or RunHooks(),
        again.tenancy,
        again.faults,
    )
    if again.mix is not None:
        run.typical(again.mix.rows)
    return run.result(iter(again.submissions), len(again.submissions))
