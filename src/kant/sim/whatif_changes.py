"""Changes of a what-if: how the second future differs, checked before anything runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from kant.model.errors import InputError
from kant.model.event import JobSubmitted
from kant.model.growth import with_more
from kant.model.node import ClusterSpec, Node
from kant.model.tenant import QueueConfig, Quota, Resource, validated
from kant.model.units import FOREVER, GPU, clock, show_duration
from kant.scheduler.profile import Profile
from kant.sim.drains import Drain


@dataclass(frozen=True, slots=True)
class QuotaChange:
    """Sets a queue's nominal quota on nodes of `model` ("": all) to `amount` or, if `relative`, changes it by `amount`.

    Amounts are milli-GPUs, milli-cores or MiB.
    """

    queue: str
    resource: Resource
    model: str
    amount: int
    relative: bool


@dataclass(frozen=True, slots=True)
class AddedNodes:
    """`count` further nodes like the node `like`; empty: like the most frequent kind of node."""

    count: int
    like: str = ""


@dataclass(frozen=True, slots=True)
class Changes:
    """All changes in the second future."""

    jobs: tuple[JobSubmitted, ...] = ()
    drains: tuple[Drain, ...] = ()
    quotas: tuple[QuotaChange, ...] = ()
    nodes: tuple[AddedNodes, ...] = ()
    profile: Profile | None = None
    cancelled: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.jobs or self.drains or self.quotas or self.nodes or self.profile or self.cancelled)

    def sentences(self) -> list[str]:
        """Return the changes for people, one sentence each."""
        jobs = (
            f"{e.job.id} is submitted ({_gpus(e.job.gpu_milli)} in {_pods(e.job.pods)}, {show_duration(e.runtime)}, "
            f"queue {e.job.queue})"
            for e in self.jobs
        )
        quotas = (f"queue {q.queue}: its quota of {_amount(q)}" for q in self.quotas)
        nodes = map(_more, self.nodes)
        profile = [f"the profile is {self.profile.name}"] if self.profile is not None else []
        cancelled = (f"job {job} is cancelled" for job in self.cancelled)
        return [*jobs, *map(_drain, self.drains), *quotas, *nodes, *cancelled, *profile]


def _more(more: AddedNodes) -> str:
    nodes = "1 more node" if more.count == 1 else f"{more.count} more nodes"
    return f"{nodes} like {more.like}" if more.like else nodes


def _gpus(milli: int) -> str:
    return "1 GPU" if milli == GPU else f"{milli / GPU:g} GPUs"


def _pods(pods: int) -> str:
    return "1 pod" if pods == 1 else f"{pods} pods"


def _drain(drain: Drain) -> str:
    nodes = "1 node" if len(drain.nodes) == 1 else f"{len(drain.nodes)} nodes"
    stopped = ", and jobs there are stopped" if drain.evicts else ""
    return f"{drain.name} ({nodes}) is drained from {clock(drain.start)} {_until(drain.end)}{stopped}"


def _until(end: int) -> str:
    return "on" if end >= FOREVER else f"until {clock(end)}"


def _amount(change: QuotaChange) -> str:
    shown = _gpus(change.amount) if change.resource == "gpu" else f"{change.amount / GPU:g} cores"
    if change.resource == "memory":
        shown = f"{change.amount} MiB"
    of = f" of model {change.model}" if change.model else ""
    kind = {"gpu": "GPUs", "cpu": "CPU", "memory": "memory"}[change.resource]
    sign = "+" if change.relative and change.amount >= 0 else ""
    return f"{kind}{of} {'changes by' if change.relative else 'becomes'} {sign}{shown}"


def with_quotas(queue_config: QueueConfig, changes: Sequence[QuotaChange]) -> QueueConfig:
    """Return the queues with changed quotas. Raises InputError for an unknown queue or quota, or a negative one."""
    for change in changes:
        names = [queue.name for queue in queue_config.queues]
        if change.queue not in names:
            known = f"one of the queues {', '.join(names)}" if names else "a journal with queues that have quotas"
            raise InputError("--quota", known, change.queue)
        queue = queue_config.queues[names.index(change.queue)]
        at = next(
            (i for i, q in enumerate(queue.quotas) if (q.resource, q.model) == (change.resource, change.model)), -1
        )
        if at < 0:
            has = " or ".join(q.resource + (f":{q.model}" if q.model else "") for q in queue.quotas)
            kind = change.resource + (f":{change.model}" if change.model else "")
            raise InputError("--quota", f"a quota that queue {queue.name} has ({has or 'it has none'})", kind)
        quotas = list(queue.quotas)
        quotas[at] = _changed(quotas[at], change)
        queues = list(queue_config.queues)
        queues[names.index(change.queue)] = replace(queue, quotas=tuple(quotas))
        queue_config = replace(queue_config, queues=tuple(queues))
    return validated(queue_config, "--quota") if changes else queue_config


def _changed(quota: Quota, change: QuotaChange) -> Quota:
    nominal = quota.nominal + change.amount if change.relative else change.amount
    if nominal < 0:
        unit = 1 if change.resource == "memory" else GPU
        raise InputError("--quota", f"a quota of {change.queue} that is not below 0", f"{nominal / unit:g}")
    return replace(quota, nominal=nominal)


def with_nodes(cluster: ClusterSpec, changes: Sequence[AddedNodes]) -> ClusterSpec:
    """Return the cluster with further nodes, in leaves of their own (`model/growth.py`).

    Raises InputError for an unknown node.
    """
    known = cluster
    for more in changes:
        cluster = with_more(cluster, _like(known, more.like), more.count)
    return cluster


def _like(cluster: ClusterSpec, name: str) -> Node:
    if name:
        found = next((node for node in cluster.nodes if node.name == name), None)
        if found is None:
            raise InputError("--nodes", f"the name of a node of {cluster.name} after the x", name)
        return found
    kinds = Counter((node.pool, node.gpus, node.cpu, node.memory) for node in cluster.nodes)
    most = kinds.most_common(1)[0][0]  # the first of them on ties
    return next(node for node in cluster.nodes if (node.pool, node.gpus, node.cpu, node.memory) == most)
