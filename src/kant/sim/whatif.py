"""What if: two futures from one time of a journal, unchanged and with a change, and the difference for every job."""

from __future__ import annotations

import dataclasses
import re
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from msgspec.structs import replace

from kant.cluster import columns as c
from kant.cluster.state import ClusterState
from kant.insight.diagnosis import Diagnosis
from kant.metrics.effect import NO_NAMES, curve, most_changed, only, pairs, ratios, waits
from kant.metrics.result import RunResult
from kant.metrics.statistics import spread
from kant.model.decision import Reason, sentence
from kant.model.errors import InputError
from kant.model.event import Event, JobCancelled, JobReleased, JobSubmitted, QueuesChanged
from kant.model.status import JobStatus
from kant.model.tenant import QueueConfig
from kant.model.units import FOREVER, GPU, SECOND, clock
from kant.sim.checks import check_profile
from kant.sim.fork import Fork, fork
from kant.sim.past import Past
from kant.sim.run import RunHooks
from kant.sim.whatif_changes import Changes, with_nodes, with_quotas

BEFORE, AFTER = "as it is", "with the change"


@dataclass(frozen=True, slots=True)
class WhatIf:
    """The results of both futures for the jobs that were live or arrived later; `answer`: the content of `--json`."""

    before: RunResult
    after: RunResult
    answer: dict[str, Any]


Hooks = Callable[[str], RunHooks]
"""Returns a caller's hooks for the future of this name: BEFORE or AFTER."""


def what_if(
    past: Past,
    changes: Changes,
    *,
    arrivals: bool = True,
    until: int = FOREVER,
    hooks: Hooks = lambda name: RunHooks(),
    act: Callable[[Fork], Mapping[str, str]] = lambda second: NO_NAMES,
) -> WhatIf | None:
    """Simulate both futures from the end of `past`; None if the caller's `stop` ended one of them.

    `act` makes changes in the second future that `changes` cannot express, and returns the new ids of jobs it renamed.
    Without `arrivals` no more jobs arrive. Both stop at `until` (microseconds on the run's clock). Raises InputError
    for a change that cannot be made.
    """
    if until <= past.now:
        raise InputError("--until", f"a time after {clock(past.now)}, when both futures begin", clock(until))
    check(past, changes)
    cluster = with_nodes(past.header.cluster, changes.nodes)
    first = fork(past, arrivals=arrivals, until=until, hooks=_keeping(hooks(BEFORE)))
    second = fork(
        past, cluster=cluster, profile=changes.profile, work=first.work,
        drains=changes.drains, arrivals=arrivals, until=until, hooks=_keeping(hooks(AFTER)),
    )  # fmt: skip
    waited = {first.state.ids[row]: int(first.state.jobs[row, c.J_WAITED]) for row in first.state.running}
    reasons = change(second, changes)
    renamed = act(second)
    before = _future(first, first.coming, BEFORE)
    after = _future(second, second.coming, AFTER) if before is not None else None
    if before is None or after is None:
        return None
    found = pairs(before, after, waited, renamed)
    quantile, horizon = past.options.quantile, min(before.end, after.end)
    answer = {
        "time_us": past.now,
        "zero_us": past.header.zero,
        "change": changes.sentences(),
        "run_times": dict(sorted(first.work.sources.items())),
        "coming": len(first.coming),
        "submitted": [_submitted(event, after, reasons[event.job.id]) for event in changes.jobs],
        "waits": waits(found, quantile),
        "curve": curve(found),
        **{name: [row | {"job": _public_id(row["job"])} for row in rows] for name, rows in most_changed(found).items()},
        "ratios": {
            "until_us": horizon,
            "before": ratios(before.series, horizon),
            "after": ratios(after.series, horizon),
        },
        "before": before.summary,
        "after": after.summary,
    }
    return WhatIf(before, after, answer)


def check(past: Past, changes: Changes) -> None:
    """Raise InputError for a change that cannot be made in the state at the end of `past`."""
    submitted = [event for event in (*past.events, *past.later) if isinstance(event, JobSubmitted)]
    queue_config = next((e.queue_config for e in reversed(past.events) if isinstance(e, QueuesChanged)), QueueConfig())
    with_quotas(queue_config, changes.quotas)
    if changes.profile is not None:
        check_profile(changes.profile, queue_config, burst_replicas=any(event.job.base_job for event in submitted))
    known = [queue.name for queue in queue_config.queues] or sorted({event.job.queue for event in submitted})
    taken = {event.job.id for event in submitted}
    for event in changes.jobs:
        if event.job.queue not in known:
            raise InputError("--submit: queue", f"one of the queues {', '.join(known)}", event.job.queue)
        if event.job.id in taken:
            raise InputError("--submit: id", f"an id that no other job of {past.path} has", event.job.id)
        taken.add(event.job.id)
    if any(drain.start < past.now for drain in changes.drains):
        raise InputError("--drain", f"a time from {clock(past.now)} on, when both futures begin")


def change(second: Fork, changes: Changes) -> dict[str, Reason | None]:
    """Make the changes in a fork, which then cycles at once.

    Returns why each submitted job cannot start at once, judged before this cycle starts any (None: it can).
    """
    run, now = second.run, second.past.now
    execution, state = run.execution, run.state
    if changes.profile is not None and not changes.profile.discipline.forecasts:
        for row in list(state.reserved):
            execution.happen(JobReleased(now, state.ids[row]))
    if changes.quotas:
        execution.happen(QueuesChanged(now, with_quotas(state.quota_usage.queue_config, changes.quotas)))
        run.external = deque(_with_quotas(event, changes) for event in run.external)
    for job in changes.cancelled:
        execution.external_event(JobCancelled(now, _live(state, job)))
    for health in run.faults.take(now):
        execution.change_node(health, now)
    for event in changes.jobs:
        execution.arrive(replace(event, time=now))
    run.wake = now
    diagnosis = Diagnosis(run.scheduler, now)
    return {event.job.id: diagnosis.why(state.rows[event.job.id]) for event in changes.jobs}


def _live(state: ClusterState, job: str) -> str:
    """Return the state's id of a live job: in a live run it may have been submitted more than once."""
    found = [state.ids[row] for row in state.live if job in (state.ids[row], _public_id(state.ids[row]))]
    if not found:
        raise InputError("--cancel", "a waiting or running job", job)
    return found[0]


def _public_id(job: str) -> str:
    """Return the id that users know: when a live run submits a job again, it appends a number to the id."""
    return re.sub(r"~\d+$", "", job)


def _with_quotas(event: Event, changes: Changes) -> Event:
    """Apply the changed quotas to a later change of the queues, too."""
    if not isinstance(event, QueuesChanged):
        return event
    return replace(event, queue_config=with_quotas(event.queue_config, changes.quotas))


def _keeping(hooks: RunHooks) -> RunHooks:
    return dataclasses.replace(hooks, keep_intervals=True)


def _future(own: Fork, coming: Iterable[JobSubmitted], name: str) -> RunResult | None:
    """Run a future to its end. The result has only the jobs live at its start or later, and the profile name `name`."""
    run, state = own.run, own.state
    counted = run.state.jobs[: len(state.ids), [c.J_PREEMPTIONS, c.J_FAILURES]].sum(axis=0).tolist()
    faults, evicted = state.health.faults, state.health.evictions
    result = run.result(iter(coming), len(state.ids) + len(own.coming))
    if result.interrupted:
        return None
    rows = np.setdiff1d(np.arange(len(result.jobs.id)), run.gone)
    jobs = only(result.jobs, rows)
    stays = np.isin(result.intervals[:, 0], rows) & (result.intervals[:, 5] > run.begin)
    intervals = result.intervals[stays].copy()
    intervals[:, 0] = np.searchsorted(rows, intervals[:, 0])
    intervals[:, 4] = np.maximum(intervals[:, 4], run.begin)
    summary = {key: value for key, value in result.summary.items() if key not in ("fairness", "wait_by_cause")}
    summary["preemptions"] -= counted[0]
    summary["evictions"] -= counted[0] + evicted
    summary["failures"] -= counted[1]
    summary["node_faults"] -= faults
    stayed = (jobs.status != JobStatus.REJECTED) & (jobs.status != JobStatus.CANCELLED)
    summary["by_queue"] = {
        queue: {
            "jobs": int((jobs.queue == code).sum()),
            "wait_s": spread(jobs.wait[(jobs.queue == code) & stayed], run.options.quantile),
        }
        for code, queue in enumerate(result.queues)
    }
    return dataclasses.replace(result, profile=name, jobs=jobs, intervals=intervals, summary=summary)


def _submitted(event: JobSubmitted, after: RunResult, reason: Reason | None) -> dict[str, Any]:
    """Return the fate of a submitted job, and why it waited when it arrived."""
    row = after.jobs.id.index(event.job.id)
    start, end = int(after.jobs.first_start[row]), int(after.jobs.end[row])
    return {
        "job": event.job.id,
        "queue": event.job.queue,
        "gpus": event.job.gpu_milli / GPU,
        "pods": event.job.pods,
        "submitted_us": event.time,
        "start_us": start if start >= 0 else None,
        "end_us": end if end >= 0 else None,
        "wait_s": int(after.jobs.wait[row]) / SECOND,
        "status": JobStatus(int(after.jobs.status[row])).name.lower(),
        "why": "ready" if reason is None else str(reason.__struct_config__.tag),
        "sentence": sentence(reason) if reason is not None else "",
    }
