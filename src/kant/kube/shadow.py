"""What Kant would have done differently, from one pass over a journal written while another scheduler acted.

For each job: when Kant first decided to start it, given the real state at that time, and when it really started. No
decision builds on an earlier one, since none took effect. In `kant replay JOURNAL --profile kant` they do.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from kant.live.journal_walk import read_journal
from kant.model.decision import Plan, Start
from kant.model.event import JobRefused, JobStarted, JobSubmitted
from kant.model.node import ClusterSpec
from kant.model.placement import NODE, Allocation


@dataclass(slots=True)
class Compared:
    """One job. Times are in microseconds on the journal's clock; -1: Kant never decided, or the job never started."""

    job: str
    gpus: float
    submitted: int
    decided: int = -1
    started: int = -1
    decided_nodes: int = 0
    decided_leaves: int = 0
    started_nodes: int = 0
    started_leaves: int = 0


def compared(path: Path) -> tuple[list[Compared], int]:
    """Return the jobs that waited during a journal, and its duration in microseconds. Raises InputError."""
    walk = read_journal(path)
    header = walk.header
    jobs: dict[str, Compared] = {}
    tried: dict[str, JobStarted] = {}
    for line in walk:
        if isinstance(line, JobSubmitted):
            jobs[line.job.id] = Compared(line.job.id, line.job.gpu_milli / 1000, line.time)
        elif isinstance(line, Plan):
            _decide(jobs, line, header.cluster)
        elif isinstance(line, JobRefused):
            tried.pop(line.job, None)
        elif isinstance(line, JobStarted):
            tried[line.job] = line
    for job, event in tried.items():
        jobs[job].started = event.time
        jobs[job].started_nodes, jobs[job].started_leaves = _spans(event.allocation, header.cluster)
    begins = header.begins
    return [job for job in jobs.values() if job.started < 0 or job.started >= begins], walk.time - begins


def _decide(jobs: dict[str, Compared], plan: Plan, cluster: ClusterSpec) -> None:
    for decision in plan.decisions:
        if isinstance(decision, Start) and jobs[decision.job].decided < 0:
            known = jobs[decision.job]
            known.decided = plan.time
            known.decided_nodes, known.decided_leaves = _spans(decision.allocation, cluster)


def _spans(allocation: Allocation, cluster: ClusterSpec) -> tuple[int, int]:
    nodes = set(allocation[:, NODE].tolist())
    return len(nodes), len({(cluster.nodes[node].spine, cluster.nodes[node].leaf) for node in nodes})


def summary(jobs: list[Compared], end: int) -> dict[str, object]:
    """Return counts and waits (seconds) of the jobs that asked for GPUs. `end`: the duration in microseconds."""
    came = [job for job in jobs if job.gpus]
    both = [job for job in came if job.decided >= 0 and job.started >= 0]
    gangs = [job for job in both if job.started_nodes > 1 or job.decided_nodes > 1]
    theirs = np.array([job.started - job.submitted for job in both]) / 1e6
    ours = np.array([job.decided - job.submitted for job in both]) / 1e6
    return {
        "jobs": len(came),
        "started": sum(job.started >= 0 for job in came),
        "decided": sum(job.decided >= 0 for job in came),
        "decided_but_waiting": sum(job.decided >= 0 and job.started < 0 for job in came),
        "wait_s": _quantiles(theirs),
        "wait_s_kant": _quantiles(ours),
        "gangs_on_several_nodes": len(gangs),
        "nodes": sum(job.started_nodes for job in gangs),
        "nodes_kant": sum(job.decided_nodes for job in gangs),
        "leaves": sum(job.started_leaves for job in gangs),
        "leaves_kant": sum(job.decided_leaves for job in gangs),
        "recorded_s": end / 1e6,
    }


def _quantiles(waits: np.ndarray) -> dict[str, float]:
    if not len(waits):
        return {}
    p50, p90 = np.percentile(waits, [50, 90])
    return {"mean": round(float(waits.mean()), 3), "p50": round(float(p50), 3), "p90": round(float(p90), 3)}
