"""Recount: what the run behind a journal leaves, from its events alone. Nothing is decided again."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from kant.cluster.journal import Footer, Journal
from kant.metrics.ledger import Ledger, wait_by_cause
from kant.metrics.recorder import Recorder, began
from kant.metrics.result import RunResult
from kant.metrics.summary import job_table, summarise
from kant.model.decision import Plan
from kant.model.errors import InputError, Violation
from kant.model.event import DevicesChanged, JobGrown, JobRejected, JobShrunk, JobStarted, NodeChanged
from kant.sim.options import read_options
from kant.sim.replay import read_journal, record_end, scheduler_of


@dataclass(frozen=True, slots=True)
class Recount:
    """What a journal tells, and when its clock was at zero (microseconds since 1970; None: simulated time)."""

    result: RunResult
    zero: int | None


def recount(path: Path) -> Recount:
    """The journal of a run, live or simulated, that is over or still goes on. Raises InputError for a broken one."""
    header, lines = read_journal(path)
    scheduler = scheduler_of(header, path)
    state, profile, begins = scheduler.state, scheduler.profile, header.begins
    options = read_options(profile.simulation, f"{path}:1: profile")
    recorder, ledger, journal = Recorder(state, keep_intervals=True), Ledger(scheduler), Journal()
    rejected: Counter[str] = Counter()
    footer: Footer | None = None
    last = begins
    if begins == 0:
        recorder.observe(0)
    for number, line in enumerate(lines, start=2):
        if line.time < last and last > begins:
            raise InputError(f"{path}:{number}", f"a time that is not before {last}", line.time)
        if line.time > last:
            recorder.observe(last)
            ledger.observe(last)
            last = line.time
        if isinstance(line, Footer):
            footer = line
        elif isinstance(line, Plan):
            journal.plan(line, True)
        else:
            try:
                record_end(state, recorder, line)
                state.apply(line)
            except (Violation, OverflowError) as violation:
                raise InputError(f"{path}:{number}", f"an event that fits the state: {violation}") from None
            if isinstance(line, JobRejected):
                rejected[line.reason] += 1
            elif isinstance(line, NodeChanged | DevicesChanged):
                recorder.serviced(state.node_index[line.node], line.time)
            elif isinstance(line, JobStarted | JobGrown | JobShrunk):
                recorder.started(state.rows[line.job], state.running[state.rows[line.job]])
    recorder.observe(last)
    ledger.observe(last)
    for row, allocation in state.running.items():
        recorder.ended(row, allocation, began(state, row), last)
    table = job_table(state, last, recorder)
    causes, queues = ledger.columns(last), tuple(state.queues)
    interrupted = footer is not None and footer.interrupted
    summary = summarise(state, recorder, table, last, options.quantile) | {
        "profile": profile.name, "workload": header.workload, "cluster": header.cluster.name, "seed": header.seed,
        "decisions": journal.decisions, "digest": journal.digest, "interrupted": interrupted,
        "rejected_because": dict(rejected.most_common()), "wait_by_cause": wait_by_cause(causes, table, queues),
    }  # fmt: skip
    result = RunResult(
        profile=profile.name, workload=header.workload, cluster=header.cluster, summary=summary,
        series=recorder.series(), jobs=table, queues=queues, end=last, interrupted=interrupted,
        intervals=recorder.intervals(), service=recorder.service(), wait_by_cause=causes,
    )  # fmt: skip
    return Recount(result, header.zero or None)
