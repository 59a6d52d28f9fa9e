"""Converts a submission to the core's job, and to the spec of a process at its place."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from socket import gethostname
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

from msgspec import structs

from kant.local.patterns import check_pattern, filled
from kant.local.power import power_rules, usable
from kant.local.record import JobRecord
from kant.local.runs import MARK, Spec
from kant.local.settings import LocalSettings
from kant.local.slurm import slurm_env
from kant.model.cut import blocks_for, pods_of
from kant.model.errors import InputError
from kant.model.job import Demand, Job, PodGroup
from kant.model.node import ClusterSpec, Node
from kant.model.placement import MASK, MEMORY, NODE, PODS
from kant.model.submission import Notice, Submission
from kant.model.tenant import QueueConfig
from kant.model.units import FOREVER, GPU, SECOND, show_duration
from kant.workload.training_text import parse_training

NOTHING: dict[str, str] = {}


class Host(NamedTuple):
    """A machine: the name by which other machines reach it ("": there are no others), and the CUDA names of its devices
    (empty if their indices suffice).
    """

    name: str = ""
    visible: tuple[str, ...] = ()


HERE = Host()

if TYPE_CHECKING:
    from pathlib import Path

    from kant.local.accounts import Account


def limited(submission: Submission, queue_config: QueueConfig) -> Submission:
    """Return the submission, with its queue's time limit if it has no limit. Raises InputError for a longer limit."""
    most, where = queue_config.max_time(submission.queue)
    if not most:
        return submission
    if submission.time_s is None:
        return structs.replace(submission, time_s=most / SECOND)
    if round(submission.time_s * SECOND) > most:
        raise InputError("time_s", f"at most {show_duration(most)} in queue {where}", submission.time_s)
    return submission


def checked(submission: Submission, queues: tuple[str, ...]) -> Submission:
    """Validate a submission beyond its types, and return it. Raises InputError."""
    if submission.gpus != int(submission.gpus) and (submission.gpus > 1 or round(submission.gpus * GPU) < 1):
        raise InputError("gpus", "a whole number, or a share of one GPU of at least 0.001", submission.gpus)
    for text in (submission.workdir, *submission.command, *submission.env, *submission.env.values()):
        if "\0" in text:
            raise InputError("command, workdir and env", "text without a zero byte", text)
    if not submission.workdir.startswith("/"):
        raise InputError("workdir", "an absolute path", submission.workdir)
    if not submission.command[0]:
        raise InputError("command", "a program", "")
    for name in submission.env:
        if not name or "=" in name:
            raise InputError("env", "names without `=`", name)
    if submission.contract is not None:
        if submission.nodes or submission.exclusive or submission.array:
            raise InputError("contract", "a single job without nodes, exclusive or array")
        submission.contract.check(submission.gpus)
    if submission.nodes > 1 and submission.gpus % submission.nodes:
        raise InputError("gpus", f"a multiple of the {submission.nodes:,} nodes", submission.gpus)
    if submission.tasks and submission.tasks < submission.nodes:
        raise InputError("tasks", f"at least {submission.nodes:,}, one for each node", submission.tasks)
    for job in submission.after_started:
        if not re.fullmatch(r"[^+]+(\+[0-9]{1,9})?", job):
            raise InputError("after_started", "the id of a job, also with seconds after its start: 12+600", job)
    if queues and submission.queue not in queues:
        named = f"one of {', '.join(queues)}"
        if submission.queue == "default":  # the queue of submissions that name no queue
            raise InputError("queue", f"--queue with {named}, since there is no queue named default")
        raise InputError("queue", named, submission.queue)
    for where, text in (("output", submission.output), ("error", submission.error)):
        check_pattern(text, where, bool(submission.array))
    if submission.error and submission.terminal is not None:
        raise InputError("error", "no file for errors, since a terminal has only one stream", submission.error)
    for notice in submission.notices:
        check_notice(notice)
    if submission.terminal is not None and submission.array:
        raise InputError("terminal", "a single job, not an array")
    parse_training("training", submission.training)
    if len(set(submission.array)) < len(submission.array):
        raise InputError("array", "each index once")
    return submission


def check_room(submission: Submission, settings: LocalSettings) -> None:
    """Raise InputError if even the empty cluster could not run the job, regardless of quotas."""
    cluster, shared = settings.cluster, settings.shared_power
    nodes, count = usable(cluster.nodes), submission.nodes
    gpus, widest = sum(node.gpus for node in nodes), max(node.gpus for node in nodes)
    if submission.gpus > gpus:
        why = "all GPUs of the cluster" if gpus == cluster.gpus else "the limit of the power cap"
        raise InputError("gpus", f"at most {gpus:,}, {why}", submission.gpus)
    if count > 1 and submission.gpus > count * widest:
        raise InputError("gpus", f"at most {widest:,} on each of {count:,} nodes", submission.gpus)
    if 0 <= shared < submission.gpus * GPU:
        most = f"at most {shared // GPU:,}, the limit of the power cap of all machines"
        raise InputError("gpus", most, submission.gpus)
    cpu, memory = (max(getattr(node, name) for node in cluster.nodes) for name in ("cpu", "memory"))
    if (submission.cpus or 0) * 1000 > cpu:
        raise InputError("cpus", f"at most {cpu / 1000:g}, as many as the largest node has", submission.cpus)
    if submission.memory_mib > memory:
        raise InputError("memory", f"at most {memory:,} MiB, as much as the largest node has", submission.memory_mib)


def _widest(nodes: Sequence[Node]) -> Node:
    return max(usable(nodes), key=lambda node: (node.gpus, node.cpu))


def counted(submission: Submission, nodes: Sequence[Node]) -> Submission:
    """Return the submission with the number of GPUs that the job gets: all GPUs of its nodes if it is exclusive."""
    if not submission.exclusive:
        return submission
    return structs.replace(submission, gpus=max(submission.nodes, 1) * _widest(nodes).gpus)


def groups_of(submission: Submission, nodes: Sequence[Node]) -> tuple[PodGroup, ...]:
    """Return the pods of a job: one pod, or several among which its GPUs are split so that each pod fits a node."""
    milli = round(submission.gpus * GPU)
    cores = submission.cpus if submission.cpus is not None else 0 if milli else 1
    cpu, memory = round(cores * 1000), submission.memory_mib
    count = max(submission.nodes, 1)
    if (contract := submission.contract) is not None:
        pod, least = contract.step_gpus, contract.least_gpus // contract.step_gpus
        pods = milli // GPU // pod
        return (PodGroup(pods, Demand(pod, GPU, cpu, memory), floor=least if least < pods else 0),)
    if submission.exclusive:
        widest = _widest(nodes)
        whole = widest.cpu if widest.cpu < FOREVER else cpu
        return (PodGroup(count, Demand(widest.gpus, GPU, whole, memory)),)
    if milli == 0:
        return (PodGroup(count, Demand(0, cpu=cpu, memory=memory)),)
    if submission.nodes > 1:
        return (PodGroup(count, Demand(milli // GPU // count, GPU, cpu, memory)),)
    if milli < GPU:
        return (PodGroup(1, Demand(1, milli, cpu, memory)),)
    blocks = blocks_for(usable(nodes), queue=submission.queue, cpu=cpu, memory=memory)
    return tuple(PodGroup(count, Demand(each, GPU, cpu, memory)) for count, each in pods_of(milli // GPU, blocks))


def job_of(record: JobRecord, name: str, submit: int, nodes: Sequence[Node], shared_power: int = -1) -> Job:
    """Return the core's job, submitted at `submit` on the core's clock, for a cluster of `nodes`. In the cluster at
    most `shared_power` milli-GPUs may be in use (-1: no limit).
    """
    submission = record.submission
    limit = round(submission.time_s * SECOND) if submission.time_s is not None else -1
    groups = groups_of(submission, nodes)
    return Job(
        name,
        submit,
        groups,
        queue=submission.queue,
        user=record.user,
        priority=submission.priority,
        estimate=limit,
        preemptible=submission.preemptible,
        name=submission.name,
        limit=limit,
        retries=max(submission.retries - record.failures, 0),
        training=parse_training("training", submission.training),
        reservation=submission.reservation,
        rules=power_rules(groups, nodes, shared_power),
    )


def devices(place: list[list[int]]) -> dict[int, int]:
    """Return the devices of an allocation by node, as bit masks."""
    found: dict[int, int] = {}
    for piece in place:
        found[piece[NODE]] = found.get(piece[NODE], 0) | piece[MASK]
    return found


def slots_of(record: JobRecord) -> list[tuple[int, int]]:
    """Return (cluster node, bit mask of devices) for each task node of `srun`: one for each pod if the job asks for
    several `nodes`, otherwise one for each cluster node that the job uses.
    """
    submission = record.submission
    if submission.nodes <= 1:
        return list(devices(record.place).items())
    found = []
    for piece in record.place:
        own = [bit for bit in range(piece[MASK].bit_length()) if piece[MASK] >> bit & 1]
        each = len(own) // piece[PODS]
        for pod in range(piece[PODS]):
            found.append((piece[NODE], sum(1 << bit for bit in own[pod * each : (pod + 1) * each])))
    return found


def most_memory(place: list[list[int]]) -> int:
    """Return the memory in MiB that a run with this allocation may use, over all nodes; 0: no limit."""
    return sum(piece[MEMORY] for piece in place)


def indices(mask: int, names: tuple[str, ...] = ()) -> str:
    """Return the devices of a node for CUDA_VISIBLE_DEVICES: their `names`, or their indices."""
    return ",".join(names[bit] if names else str(bit) for bit in range(mask.bit_length()) if mask >> bit & 1)


def check_notice(notice: Notice) -> None:
    """Raise InputError unless the notice has exactly one valid way of delivery."""
    if bool(notice.webhook) == bool(notice.command):
        raise InputError("notices", "either a webhook or a command for each", notice.webhook or None)
    parts = urlsplit(notice.webhook)
    if notice.webhook and (parts.scheme not in ("http", "https") or not parts.hostname):
        raise InputError("webhook", "an address that begins with http:// or https://", notice.webhook)
    if any("\0" in word for word in notice.command):
        raise InputError("notices", "a command without a zero byte")


def file_of(record: JobRecord, pattern: str, host: str = "") -> str:
    """Return the file that a pattern names for a job on `host` (by default this machine); "" without a pattern."""
    if not pattern:
        return ""
    values = {
        "A": str(record.array) if record.array >= 0 else record.id, "a": str(max(record.index, 0)), "j": record.id,
        "N": (host or gethostname()).partition(".")[0], "u": record.user, "x": record.submission.name,
    }  # fmt: skip
    return filled(pattern, values)


def spec_of(
    record: JobRecord,
    folder: Path,
    cluster: ClusterSpec,
    log_bytes: int,
    cores: tuple[int, ...] = (),
    cgroup: str = "",
    account: Account | None = None,
    host_of: Callable[[int], Host] = lambda node: HERE,
    shims: str = "",
    elastic: dict[str, str] = NOTHING,
) -> Spec:
    """Return the input of the supervisor: the command, with only the job's GPUs visible, its cores and its user.

    `host_of` returns the machine of a node (index in the cluster).
    """
    submission, held, slots = record.submission, devices(record.place), slots_of(record)
    hosts = [host_of(node) for node, _ in slots]
    host = hosts[0].name if hosts else ""
    names = [cluster.nodes[node].name for node in held]
    env = (
        submission.env
        | elastic
        | {
            MARK: str(folder),
            "KANT_JOB_ID": record.id,
            "KANT_JOB_NAME": submission.name,
            "KANT_QUEUE": submission.queue,
            "KANT_ATTEMPT": str(record.attempt),
            "KANT_GPUS": f"{submission.gpus:g}",
            "KANT_NODES": ",".join(names),
            "KANT_DEVICES": ";".join(
                f"{name}:{indices(mask)}" for name, mask in zip(names, held.values(), strict=True)
            ),
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
            "CUDA_VISIBLE_DEVICES": indices(slots[0][1], hosts[0].visible) if slots else "",
        }
    )
    for name, value in (("ACCOUNT", submission.account), ("QOS", submission.qos), ("COMMENT", submission.comment)):
        if value:
            env[f"KANT_{name}"] = value
    if cores:
        env = {"OMP_NUM_THREADS": str(len(cores))} | env
    if record.index >= 0:
        env |= {"KANT_ARRAY_ID": str(record.array), "KANT_ARRAY_INDEX": str(record.index)}
    if submission.slurm:
        lists = [indices(mask, host.visible) for (_, mask), host in zip(slots, hosts, strict=True)]
        names = [host.name for host in hosts]
        env |= slurm_env(record, cluster, [(node, gpus) for (node, _), gpus in zip(slots, lists, strict=True)], names)
        if shims:
            env |= {"PATH": f"{shims}:{env.get('PATH', os.defpath)}", "KANT_SHIMS": shims}
            env.setdefault("KANT_HOME", str(folder.parents[2]))  # for Slurm's commands
    return Spec(
        submission.command, env, submission.workdir, submission.umask, log_bytes, submission.grace_s, submission.time_s,
        submission.warn_s, most_memory(record.place), cores, cgroup, submission.terminal, account,
        file_of(record, submission.output, host), file_of(record, submission.error, host), record.attempt > 1,
        submission.warn_signal,
    )  # fmt: skip
