"""Builders: a small cluster, job, workload or profile in one call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from kant.model.event import JobSubmitted
from kant.model.job import Demand, Job, PodGroup
from kant.model.node import ClusterSpec, Node
from kant.model.tenant import Queue, Quota
from kant.model.units import FOREVER, GPU, SECOND
from kant.placement.policy import NodePolicy
from kant.queueing.discipline import Discipline
from kant.queueing.growth import Elastic
from kant.queueing.order import Order
from kant.queueing.preemption.policy import Preemption
from kant.queueing.requeue import Requeue
from kant.scheduler.profile import Profile
from kant.scheduler.registry import make_policy
from kant.scheduler.strategies import parse_strategies
from kant.workload.workload import Workload, make_workload

Choice = str | dict[str, Any] | Order | Discipline | NodePolicy
"""A policy: an object, its name, or its name and fields as in a profile."""


def make_cluster(*gpus: int, cpu: int = FOREVER, memory: int = FOREVER, leaf: int = 4) -> ClusterSpec:
    """One node for each number of GPUs, `n0` and so on, with `leaf` nodes under each leaf."""
    nodes = tuple(Node(f"n{i}", count, cpu=cpu, memory=memory, leaf=f"leaf{i // leaf}") for i, count in enumerate(gpus))
    return ClusterSpec("test", nodes)


def make_group(
    gpus: int = 1,
    pods: int = 1,
    *,
    floor: int = 0,
    milli: int = GPU,
    cpu: int = 0,
    memory: int = 0,
    island: bool = False,
) -> PodGroup:
    """`pods` pods of `gpus` devices each; with a `floor` the group can run with that many of them."""
    return PodGroup(pods, Demand(gpus, milli, cpu, memory, island), floor=floor)


def make_job(
    name: str,
    gpus: int = 1,
    pods: int = 1,
    *,
    floor: int = 0,
    milli: int = GPU,
    cpu: int = 0,
    memory: int = 0,
    island: bool = False,
    groups: Sequence[PodGroup] = (),
    submit: int = 0,
    **fields: Any,
) -> Job:
    """A job of one group of `pods` pods, or of the given `groups`; `fields` are further fields of Job."""
    own = tuple(groups) or (make_group(gpus, pods, floor=floor, milli=milli, cpu=cpu, memory=memory, island=island),)
    return Job(name, submit, own, **fields)


def submitted(job: Job, runtime: int = -1, at: int | None = None) -> JobSubmitted:
    """The submission of `job`, at its own time unless `at` says otherwise."""
    return JobSubmitted(job.submit if at is None else at, job, runtime)


def make_jobs(name: str = "test", **columns: Sequence[float] | np.ndarray) -> Workload:
    """A workload from columns: `submit` and `runtime` in seconds, `gpus`, and any other columns of Workload."""
    seconds = {
        key: np.round(np.asarray(columns.pop(key), dtype=np.float64) * SECOND).astype(np.int64)
        for key in ("submit", "runtime", "limit", "overhead")
        if key in columns
    }
    names = {key: columns.pop(key) for key in ("affinities",) if key in columns}
    filled: dict[str, Any] = seconds | {key: np.asarray(column, dtype=np.int64) for key, column in columns.items()}
    filled |= names
    filled.setdefault("gpus", np.ones(len(filled["submit"]), dtype=np.int64))
    return make_workload(name, **filled)


def make_queue(name: str, gpus: float | None = None, **fields: Any) -> Queue:
    """A queue with a nominal quota of `gpus` over all models, or with `quotas` and other fields as given.

    `borrowing`, `lending` and `user` limit the quota of `gpus`, in GPUs.
    """
    limits = {
        f"{kind}_limit": round(fields.pop(kind) * GPU) for kind in ("borrowing", "lending", "user") if kind in fields
    }
    if gpus is not None:
        fields["quotas"] = (Quota(nominal=round(gpus * GPU), **limits), *fields.get("quotas", ()))
    return Queue(name, **fields)


def make_named_policy(kind: str, choice: Choice) -> Any:
    """The policy of a kind (`order`, `discipline`, `placement`) that `choice` denotes."""
    if isinstance(choice, (Order, Discipline, NodePolicy)):
        return choice
    return make_policy(kind, {"policy": choice} if isinstance(choice, str) else choice, kind)


def make_profile(
    order: Choice = "fifo",
    discipline: Choice = "best-effort",
    placement: Choice = "best-fit",
    preemption: Preemption | None = None,
    requeue: Requeue | None = None,
    workloads: Sequence[dict[str, Any]] = (),
    elastic: Elastic | None = None,
    **simulation: Any,
) -> Profile:
    """A profile of three policies, with or without preemption; `workloads` and `simulation` are its tables."""
    where = make_named_policy("placement", placement)
    return Profile(
        name="test",
        about="",
        order=make_named_policy("order", order),
        discipline=make_named_policy("discipline", discipline),
        placement=where,
        strategies=parse_strategies(list(workloads), where, "test"),
        preemption=preemption,
        requeue=requeue or Requeue(),
        elastic=elastic or Elastic(),
        simulation=simulation,
    )
