"""The loads of the nodes, from which front ends decide whether to admit short jobs.

Front ends send no query. Kant writes the loads to a file periodically, and a front end adds the jobs that it admits,
like the schedulers of Dodoor (arXiv 2510.12889). Loads decide only on admission: the core, which knows all jobs, places
the jobs.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec
from msgspec import Struct

from kant.local.record import JobPhase, JobRecord
from kant.model.choice import ALPHA, anti_affinity, second_is_lighter
from kant.model.node import ClusterSpec
from kant.model.placement import NODE
from kant.model.submission import Submission
from kant.model.units import FOREVER, SECOND

LOADS = "front.json"
SHORT_S = 300.0
"""The longest limit of a short job, in seconds."""
LONGEST_WAIT_S = 600.0
"""A short job whose expected wait is longer than this, in seconds, is not admitted."""
UNLIMITED_S = 3600.0
"""The assumed run time of a job without a limit, in seconds."""


class NodeLoad(Struct):
    """The load of a node: its GPUs and cores, how many of these are held, and its pending work, which is the seconds
    for which its running jobs and its share of the waiting jobs would use the whole node.
    """

    gpus: float
    cores: float
    held_gpus: float = 0.0
    held_cores: float = 0.0
    pending_s: float = 0.0


class OfferedSlot(Struct, frozen=True):
    """A slot (allocated resources without a job) that a front end may give to a job: `folder` is the folder of its run,
    `asks` has its resources as a submission (`slot_for`).
    """

    job: str
    folder: str
    asks: Submission


class Report(Struct, frozen=True):
    """A report of a front end: the slots that it filled, and how many jobs arrived, by the kind of slot they need."""

    filled: tuple[str, ...] = ()
    arrivals: tuple[tuple[Submission, int], ...] = ()


def short_fault(job: Submission) -> str:
    """Return why a submission is not a short job, as the end of a sentence; "" if it is one.

    A short job has a limit of at most five minutes, runs on one node, and waits for nothing but free resources.
    """
    if job.time_s is None or job.time_s > SHORT_S:
        return f"a time_s of at most {SHORT_S:g}"
    ahead = (*job.after, *job.after_ok, *job.after_not_ok, *job.after_started, *job.after_each)
    if ahead or job.array or job.nodes > 1 or job.hold or job.reservation or job.terminal is not None:
        return "one node, and no array, dependencies, hold, reservation or terminal"
    return ""


def part_of(job: Submission, node: NodeLoad) -> float:
    """Return the fraction of a node that a job uses: that of its GPUs or of its cores, whichever is larger."""
    gpus = job.gpus / node.gpus if node.gpus else 0.0
    return min(1.0, max(gpus, (job.cpus or 0) / node.cores if node.cores else 0.0))


def loads_of(records: Iterable[JobRecord], cluster: ClusterSpec, now: int) -> list[NodeLoad]:
    """Return the loads of all nodes from the jobs that have not ended. Waiting jobs are spread over all nodes."""
    nodes = [NodeLoad(node.gpus, node.cpu / 1000 if node.cpu < FOREVER else 0.0) for node in cluster.nodes]
    for record in records:
        job = record.submission
        lasts = job.time_s if job.time_s is not None else UNLIMITED_S
        if record.phase in (JobPhase.RUNNING, JobPhase.STOPPING) and record.place:
            left = max(lasts - (now - record.started) / SECOND, 0.0)
            held = {piece[NODE] for piece in record.place}
            for index in held:
                node = nodes[index]
                node.pending_s += left * min(1.0, part_of(job, node) / len(held))
                node.held_gpus += job.gpus / len(held)
                node.held_cores += (job.cpus or 0) / len(held)
        elif record.phase in (JobPhase.WAITING, JobPhase.BLOCKED):
            for node in nodes:
                node.pending_s += lasts * part_of(job, node) / len(nodes)
    return nodes


def wait_s(nodes: list[NodeLoad], job: Submission, first: int, second: int) -> float:
    """Return the expected wait of a job in seconds, on the less loaded of two nodes. If the job can be admitted, add it
    to the load of that node.
    """
    load, pending = [], []
    for node in (nodes[first], nodes[second]):
        gpus = anti_affinity(job.gpus, node.held_gpus, node.gpus)
        load.append(gpus + anti_affinity(job.cpus or 0, node.held_cores, node.cores))
        pending.append(node.pending_s)
    lighter = second_is_lighter((load[0], load[1]), (pending[0], pending[1]), ALPHA)
    chosen = nodes[second if lighter else first]
    room = chosen.held_gpus + job.gpus <= chosen.gpus and (
        not chosen.cores or chosen.held_cores + (job.cpus or 0) <= chosen.cores
    )
    waits = 0.0 if room else chosen.pending_s
    if waits <= LONGEST_WAIT_S:
        chosen.held_gpus += job.gpus
        chosen.held_cores += job.cpus or 0
        chosen.pending_s += (job.time_s or 0.0) * part_of(job, chosen)
    return waits


def write_loads(home: Path, nodes: list[NodeLoad]) -> None:
    """Write the loads for the front ends, atomically. Raises OSError."""
    new = home / f"{LOADS}.new"
    new.write_bytes(msgspec.json.encode(nodes))
    new.replace(home / LOADS)


def read_loads(home: Path) -> list[NodeLoad]:
    """Read the loads that were last written. Raises OSError or msgspec.DecodeError."""
    return msgspec.json.decode((home / LOADS).read_bytes(), type=list[NodeLoad])
