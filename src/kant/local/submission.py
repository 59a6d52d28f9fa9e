"""From what a person submits to what the core takes, and to what a process is told of its place."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from socket import gethostname
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from msgspec import structs

from kant.local.patterns import check_pattern, filled
from kant.local.record import JobRecord
from kant.local.runs import MARK, Spec
from kant.local.slurm import slurm_env
from kant.model.cut import blocks_for, pods_of
from kant.model.errors import InputError
from kant.model.job import Demand, Job, PodGroup
from kant.model.node import ClusterSpec, Node
from kant.model.placement import MASK, MEMORY, NODE, PODS
from kant.model.submission import Notice, Submission
from kant.model.units import FOREVER, GPU, SECOND
from kant.workload.training_text import parse_training

if TYPE_CHECKING:
    from pathlib import Path

    from kant.local.accounts import Account


def checked(wish: Submission, queues: tuple[str, ...]) -> Submission:
    """The submission itself. Raises InputError for what no type can say."""
    if wish.gpus != int(wish.gpus) and (wish.gpus > 1 or round(wish.gpus * GPU) < 1):
        raise InputError("gpus", "a whole number, or a share of one GPU of at least 0.001", wish.gpus)
    for text in (wish.workdir, *wish.command, *wish.env, *wish.env.values()):
        if "\0" in text:
            raise InputError("command, workdir and env", "texts without a zero byte", text)
    if not wish.workdir.startswith("/"):
        raise InputError("workdir", "an absolute path", wish.workdir)
    if not wish.command[0]:
        raise InputError("command", "a program", "")
    for name in wish.env:
        if not name or "=" in name:
            raise InputError("env", "names without `=`", name)
    if wish.nodes > 1 and wish.gpus % wish.nodes:
        raise InputError("gpus", f"as many on each of {wish.nodes:,} nodes", wish.gpus)
    if wish.tasks and wish.tasks < wish.nodes:
        raise InputError("tasks", f"one for each of {wish.nodes:,} nodes at least", wish.tasks)
    for job in wish.after_started:
        if not re.fullmatch(r"[^+]+(\+[0-9]{1,9})?", job):
            raise InputError("after_started", "a job, and seconds after its start where they are said: 12+600", job)
    if queues and wish.queue not in queues:
        raise InputError("queue", f"one of {', '.join(queues)}", wish.queue)
    for where, text in (("output", wish.output), ("error", wish.error)):
        check_pattern(text, where, bool(wish.array))
    if wish.error and wish.terminal is not None:
        raise InputError("error", "no file of its own with a terminal, which has one stream for both", wish.error)
    for notice in wish.notices:
        check_notice(notice)
    if wish.terminal is not None and wish.array:
        raise InputError("terminal", "a job of its own, no array")
    parse_training("training", wish.training)
    if len(set(wish.array)) < len(wish.array):
        raise InputError("array", "each index once")
    return wish


def check_room(wish: Submission, cluster: ClusterSpec) -> None:
    """Raise InputError for what the empty cluster could not hold, whatever the quotas."""
    if wish.gpus > cluster.gpus:
        raise InputError("gpus", f"at most {cluster.gpus:,}, as many as there are", wish.gpus)
    cpu, memory = (max(getattr(node, name) for node in cluster.nodes) for name in ("cpu", "memory"))
    if (wish.cpus or 0) * 1000 > cpu:
        raise InputError("cpus", f"at most {cpu / 1000:g}, as many as a node has", wish.cpus)
    if wish.memory_mib > memory:
        raise InputError("memory", f"at most {memory:,} MiB, as much as a node has", wish.memory_mib)


def _widest(nodes: Sequence[Node]) -> Node:
    return max(nodes, key=lambda node: (node.gpus, node.cpu))


def counted(wish: Submission, nodes: Sequence[Node]) -> Submission:
    """The submission with the GPUs that it gets: all of its nodes where these are to be its own."""
    if not wish.exclusive:
        return wish
    return structs.replace(wish, gpus=max(wish.nodes, 1) * _widest(nodes).gpus)


def groups_of(wish: Submission, nodes: Sequence[Node]) -> tuple[PodGroup, ...]:
    """The gang: one pod, or a total of GPUs that is cut by those of `nodes` that the job may use."""
    milli = round(wish.gpus * GPU)
    cores = wish.cpus if wish.cpus is not None else 0 if milli else 1
    cpu, memory = round(cores * 1000), wish.memory_mib
    count = max(wish.nodes, 1)
    if wish.exclusive:
        widest = _widest(nodes)
        whole = widest.cpu if widest.cpu < FOREVER else cpu
        return (PodGroup(count, Demand(widest.gpus, GPU, whole, memory)),)
    if milli == 0:
        return (PodGroup(count, Demand(0, cpu=cpu, memory=memory)),)
    if wish.nodes > 1:
        return (PodGroup(count, Demand(milli // GPU // count, GPU, cpu, memory)),)
    if milli < GPU:
        return (PodGroup(1, Demand(1, milli, cpu, memory)),)
    blocks = blocks_for(nodes, queue=wish.queue, cpu=cpu, memory=memory)
    return tuple(PodGroup(count, Demand(each, GPU, cpu, memory)) for count, each in pods_of(milli // GPU, blocks))


def job_of(record: JobRecord, name: str, submit: int, nodes: Sequence[Node]) -> Job:
    """The job of the core, submitted at `submit` on its clock, to a cluster of `nodes`."""
    wish = record.submission
    limit = round(wish.time_s * SECOND) if wish.time_s is not None else -1
    return Job(
        name,
        submit,
        groups_of(wish, nodes),
        queue=wish.queue,
        user=record.user,
        priority=wish.priority,
        estimate=limit,
        preemptible=wish.preemptible,
        name=wish.name,
        limit=limit,
        retries=max(wish.retries - record.failures, 0),
        training=parse_training("training", wish.training),
        reservation=wish.reservation,
    )


def devices(place: list[list[int]]) -> dict[int, int]:
    """The devices of a place by node, as bits."""
    found: dict[int, int] = {}
    for piece in place:
        found[piece[NODE]] = found.get(piece[NODE], 0) | piece[MASK]
    return found


def slots_of(record: JobRecord) -> list[tuple[int, int]]:
    """The node of the cluster and the devices, as bits, of each node that the job has for `srun`: of each of its pods
    where it asks for `nodes`, else all that it holds of a node."""
    wish = record.submission
    if wish.nodes <= 1:
        return list(devices(record.place).items())
    found = []
    for piece in record.place:
        own = [bit for bit in range(piece[MASK].bit_length()) if piece[MASK] >> bit & 1]
        each = len(own) // piece[PODS]
        for pod in range(piece[PODS]):
            found.append((piece[NODE], sum(1 << bit for bit in own[pod * each : (pod + 1) * each])))
    return found


def most_memory(place: list[list[int]]) -> int:
    """MiB that a run at this place may take, on all nodes together; 0: as many as it likes."""
    return sum(piece[MEMORY] for piece in place)


def indices(mask: int, names: tuple[str, ...] = ()) -> str:
    """The devices of a node as CUDA_VISIBLE_DEVICES lists them: by their `names`, or their indices."""
    return ",".join(names[bit] if names else str(bit) for bit in range(mask.bit_length()) if mask >> bit & 1)


def check_notice(notice: Notice) -> None:
    """Raise InputError unless it says one way in which somebody is told."""
    if bool(notice.webhook) == bool(notice.command):
        raise InputError("notices", "each with a webhook or a command", notice.webhook or None)
    parts = urlsplit(notice.webhook)
    if notice.webhook and (parts.scheme not in ("http", "https") or not parts.hostname):
        raise InputError("webhook", "an address that begins with http:// or https://", notice.webhook)
    if any("\0" in word for word in notice.command):
        raise InputError("notices", "a command without a zero byte")


def file_of(record: JobRecord, pattern: str) -> str:
    """The file that a pattern names for a job; empty where there is none."""
    if not pattern:
        return ""
    values = {
        "A": str(record.array) if record.array >= 0 else record.id, "a": str(max(record.index, 0)), "j": record.id,
        "N": gethostname().partition(".")[0], "u": record.user, "x": record.submission.name,
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
    visible: tuple[str, ...] = (),
    shims: str = "",
) -> Spec:
    """What the supervisor has to know: the command with just its GPUs visible, its cores, and as whom it runs."""
    wish, held, slots = record.submission, devices(record.place), slots_of(record)
    names = [cluster.nodes[node].name for node in held]
    env = wish.env | {
        MARK: str(folder),
        "KANT_JOB_ID": record.id,
        "KANT_JOB_NAME": wish.name,
        "KANT_QUEUE": wish.queue,
        "KANT_ATTEMPT": str(record.attempt),
        "KANT_GPUS": f"{wish.gpus:g}",
        "KANT_NODES": ",".join(names),
        "KANT_DEVICES": ";".join(f"{name}:{indices(mask)}" for name, mask in zip(names, held.values(), strict=True)),
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": indices(slots[0][1] if slots else 0, visible),
    }
    for name, value in (("ACCOUNT", wish.account), ("QOS", wish.qos), ("COMMENT", wish.comment)):
        if value:
            env[f"KANT_{name}"] = value
    if cores:
        env = {"OMP_NUM_THREADS": str(len(cores))} | env
    if record.index >= 0:
        env |= {"KANT_ARRAY_ID": str(record.array), "KANT_ARRAY_INDEX": str(record.index)}
    if wish.slurm:
        env |= slurm_env(record, cluster, [(node, indices(mask, visible)) for node, mask in slots])
        env["PATH"] = f"{shims}:{env.get('PATH', os.defpath)}"
        env.setdefault("KANT_HOME", str(folder.parents[2]))  # of these commands
    return Spec(
        wish.command, env, wish.workdir, wish.umask, log_bytes, wish.grace_s, wish.time_s, wish.warn_s,
        most_memory(record.place), cores, cgroup, wish.terminal, account, file_of(record, wish.output),
        file_of(record, wish.error), record.attempt > 1, wish.warn_signal,
    )  # fmt: skip
