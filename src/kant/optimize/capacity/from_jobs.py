"""An instance from past jobs: it asks how many nodes would have kept all waits below a limit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from kant.model.errors import InputError
from kant.model.job import Job
from kant.model.node import ClusterSpec
from kant.model.units import GPU
from kant.optimize.capacity.instance import MOST, Instance, Process, ProcessTask, Resource

UNNAMED = "gpus"
"""The resource of nodes that do not name their GPU model."""


class JobRun(NamedTuple):
    """A job and its total run time in microseconds; -1 if unknown."""

    job: Job
    ran: int


class JobsAsInstance(NamedTuple):
    """The instance: each job is a process of one task; each GPU model is a resource, counted in GPUs.

    `node_gpus` has the GPUs per node of each resource; `left_out`, the jobs without GPUs or with unknown run time.
    """

    instance: Instance
    node_gpus: dict[str, int]
    left_out: tuple[str, ...]


def asked_of(runs: Sequence[JobRun], cluster: ClusterSpec, wait: int, tick: int) -> JobsAsInstance:
    """The instance of these jobs. A job may start up to `wait` microseconds after its arrival, or later if it still
    ends by its due time. Run times are rounded up to ticks.

    A job uses its most preferred GPU model in the cluster; without a preference, the model with the most GPUs. A pod of
    more than half a node counts as a whole node, since no other such pod fits beside it.
    """
    total, sizes = Counter[str](), dict[str, Counter[int]]()
    for node in cluster.nodes:
        if node.gpus:
            total[node.model or UNNAMED] += node.gpus
            sizes.setdefault(node.model or UNNAMED, Counter())[node.gpus] += 1
    if not total:
        raise InputError("the cluster", "nodes with GPUs", "none")
    node_gpus = {name: max(sizes[name], key=lambda gpus: (sizes[name][gpus], gpus)) for name in sorted(total)}
    usual = max(sorted(total), key=lambda name: total[name])
    processes, left_out = [], []
    for job, ran in runs:
        pool = next((model for model in job.models if model in node_gpus), usual)
        gpus = _gpus(job, node_gpus[pool])
        if ran < 0 or gpus == 0:
            left_out.append(job.id)
            continue
        release, duration = max(job.submit, 0) // tick, max(-(-ran // tick), 1)
        latest = release + duration + wait // tick
        if job.due >= 0:
            latest = max(job.due // tick, release + duration)
        if latest > MOST:
            raise InputError("--tick", f"a span so long that the journal has at most {MOST:,}", tick)
        processes.append(Process(job.id, release, latest, (ProcessTask("run", duration, {pool: gpus}),)))
    used = {name for process in processes for task in process.tasks for name in task.demand}
    resources = tuple(Resource(name) for name in node_gpus if name in used)
    if not processes:
        raise InputError("the journal", "jobs with GPUs whose run times are known", "none")
    return JobsAsInstance(Instance(resources, tuple(processes), tick), node_gpus, tuple(left_out))


def _gpus(job: Job, node: int) -> int:
    """The number of GPUs for which a job counts on nodes of `node` GPUs."""
    found = 0
    for group in job.groups:
        gpus, milli = group.demand.gpus, group.demand.milli
        if milli < GPU or group.demand.mig:
            found += -(-group.count * group.demand.gpu_milli // GPU)
        else:
            found += group.count * (-(-gpus // node) * node if 2 * gpus > node else gpus)
    return found


def nodes_for(gpus: int, node: int) -> int:
    """The number of nodes that hold `gpus` GPUs."""
    return -(-gpus // node)
