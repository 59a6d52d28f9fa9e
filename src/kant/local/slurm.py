"""The environment variables that Slurm sets for a batch script, as far as they apply to Kant, for jobs whose scripts
have `#SBATCH` lines.

Source of the names and of their meaning: sbatch(1), OUTPUT ENVIRONMENT VARIABLES
(https://slurm.schedmd.com/sbatch.html#SECTION_OUTPUT-ENVIRONMENT-VARIABLES). As in Slurm, variables of options that
were not given are not set. Each task of `srun` has its own ranks (`kant.cli.srun`).
"""

from __future__ import annotations

import math
import os
from itertools import pairwise
from typing import TYPE_CHECKING

from kant.model.placement import CPU, NODE
from kant.model.units import FOREVER

if TYPE_CHECKING:
    from kant.local.record import JobRecord
    from kant.model.node import ClusterSpec

OF_SUBMISSION = frozenset({"SLURM_SUBMIT_DIR", "SLURM_SUBMIT_HOST"})
"""Variables that the command-line client sets, since only it knows where it was called."""

NAMES = OF_SUBMISSION | {
    "SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_COUNT", "SLURM_ARRAY_TASK_ID", "SLURM_ARRAY_TASK_MAX",
    "SLURM_ARRAY_TASK_MIN", "SLURM_ARRAY_TASK_STEP", "SLURM_CLUSTER_NAME", "SLURM_CPUS_ON_NODE",
    "SLURM_CPUS_PER_TASK", "SLURM_GPUS", "SLURM_GPUS_ON_NODE", "SLURM_GPUS_PER_NODE", "SLURM_GPUS_PER_TASK",
    "SLURM_JOBID", "SLURM_JOB_ACCOUNT", "SLURM_JOB_COMMENT", "SLURM_JOB_START_TIME",
    "SLURM_JOB_END_TIME", "SLURM_JOB_QOS", "SLURM_NTASKS_PER_NODE",
    "SLURM_JOB_CPUS_PER_NODE",
    "SLURM_JOB_GPUS", "SLURM_JOB_ID", "SLURM_JOB_NAME", "SLURM_JOB_NODELIST", "SLURM_JOB_NUM_NODES",
    "SLURM_JOB_PARTITION", "SLURM_JOB_RESERVATION", "SLURM_JOB_USER", "SLURM_LOCALID", "SLURM_MEM_PER_NODE",
    "SLURM_NNODES", "SLURM_NODEID", "SLURM_NODELIST", "SLURM_NPROCS", "SLURM_NTASKS", "SLURM_PROCID",
    "SLURM_RESTART_COUNT", "SLURM_TASKS_PER_NODE", "SLURMD_NODENAME",
}  # fmt: skip
"""All variables that a job may have."""


def spread(tasks: int, nodes: int) -> list[int]:
    """Return the number of tasks of each node: equal, with the remainder on the first nodes."""
    each, rest = divmod(tasks, nodes)
    return [each + (at < rest) for at in range(nodes)]


def slurm_env(
    record: JobRecord, cluster: ClusterSpec, slots: list[tuple[int, str]], hosts: list[str]
) -> dict[str, str]:
    """Return Slurm's variables for a run; `slots` has, for each Slurm node of the run, the cluster's node and the
    devices.

    On several machines the nodes have the names of these machines (`hosts`). If a job requests a number of nodes,
    several may be on one machine. Their names are then addresses of this machine, so that processes reach each other.
    """
    submission = record.submission
    names, parts = [cluster.nodes[node].name for node, _ in slots], list(dict.fromkeys(hosts))
    if len(parts) > 1:
        names = hosts
    elif submission.nodes > 1:
        names = [f"127.0.{at // 250}.{at % 250 + 1}" for at in range(len(slots))]
    counts = spread(max(submission.tasks, len(slots), 1), max(len(slots), 1))
    cpus = [_cpus(record, cluster, node) for node, _ in slots]
    found = {
        "SLURM_JOB_ID": str(record.seq),
        "SLURM_JOB_NAME": submission.name,
        "SLURM_JOB_PARTITION": submission.queue,
        "SLURM_JOB_USER": record.user,
        "SLURM_CLUSTER_NAME": cluster.name,
        "SLURM_JOB_NODELIST": ",".join(names),
        "SLURM_JOB_NUM_NODES": str(len(slots)),
        "SLURMD_NODENAME": names[0] if names else "",
        "SLURM_CPUS_ON_NODE": str(cpus[0]) if cpus else "",
        "SLURM_JOB_CPUS_PER_NODE": _repeated(cpus),
        "SLURM_NTASKS": str(sum(counts)), "SLURM_TASKS_PER_NODE": _repeated(counts),
        "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NODEID": "0",
        "KANT_SLOTS": ";".join(gpus for _, gpus in slots),
    }  # fmt: skip
    if len(parts) > 1:  # tasks start on these hosts, and the first node is their rendezvous
        found |= {"KANT_HOSTS": ",".join(hosts)}
    found |= {
        "SLURM_JOBID": found["SLURM_JOB_ID"],
        "SLURM_NODELIST": found["SLURM_JOB_NODELIST"],
        "SLURM_NNODES": found["SLURM_JOB_NUM_NODES"],
        "SLURM_NPROCS": found["SLURM_NTASKS"],
    }
    said = {
        "ACCOUNT": submission.account,
        "QOS": submission.qos,
        "COMMENT": submission.comment,
        "RESERVATION": submission.reservation,
    }
    found |= {f"SLURM_JOB_{name}": value for name, value in said.items() if value}
    if submission.cpus is not None and submission.cpus == int(submission.cpus):
        found["SLURM_CPUS_PER_TASK"] = str(max(int(submission.cpus) // counts[0], 1))
    if submission.memory_mib:
        found["SLURM_MEM_PER_NODE"] = str(submission.memory_mib)
    if submission.tasks and len(set(counts)) == 1:
        found["SLURM_NTASKS_PER_NODE"] = str(counts[0])
    if submission.task_gpus:
        found["SLURM_GPUS_PER_TASK"] = str(submission.task_gpus)
    if submission.gpus:
        here = slots[0][1] if slots else ""
        found |= {
            "SLURM_GPUS": str(math.ceil(submission.gpus)),
            "SLURM_GPUS_ON_NODE": str(len(here.split(","))),
            "SLURM_JOB_GPUS": here,
        }
        found["SLURM_GPUS_PER_NODE"] = found["SLURM_GPUS_ON_NODE"]
    found["SLURM_JOB_START_TIME"] = str(record.started // 1_000_000)
    if submission.time_s is not None:
        found["SLURM_JOB_END_TIME"] = str(round(record.started / 1e6 + submission.time_s))
    if record.attempt > 1:
        found["SLURM_RESTART_COUNT"] = str(record.attempt - 1)
    if record.index >= 0:
        found |= {"SLURM_ARRAY_JOB_ID": str(record.array), "SLURM_ARRAY_TASK_ID": str(record.index)}
        found |= _of_array(submission.array)
    return found


def _cpus(record: JobRecord, cluster: ClusterSpec, node: int) -> int:
    """Return the number of cores of a job on a node: as requested, or all cores if none were requested."""
    counted = sum(piece[CPU] for piece in record.place if piece[NODE] == node) or cluster.nodes[node].cpu
    return -(-counted // 1000) if counted < FOREVER else len(os.sched_getaffinity(0))


def _repeated(counts: list[int]) -> str:
    """Format counts as Slurm does, with repeated counts joined: `4(x2),8`."""
    runs: list[list[int]] = []
    for count in counts:
        if runs and runs[-1][0] == count:
            runs[-1][1] += 1
        else:
            runs.append([count, 1])
    return ",".join(f"{count}(x{times})" if times > 1 else str(count) for count, times in runs)


def _of_array(indices: tuple[int, ...]) -> dict[str, str]:
    """Return the variables of a whole array; its step is 1 unless all indices are equally spaced."""
    ordered = sorted(indices)
    steps = {after - before for before, after in pairwise(ordered)}
    return {
        "SLURM_ARRAY_TASK_COUNT": str(len(ordered)),
        "SLURM_ARRAY_TASK_MIN": str(ordered[0]),
        "SLURM_ARRAY_TASK_MAX": str(ordered[-1]),
        "SLURM_ARRAY_TASK_STEP": str(steps.pop() if len(steps) == 1 else 1),
    }
