"""Queues in a tree, what each of them may use, and what GPUs cost: how tenants share one cluster.

Source: the tree of queues, nominal quotas, and borrowing and lending limits are those of Kueue (ClusterQueue, Cohort).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Literal, get_args

from msgspec import Struct, structs

from kant.model.errors import InputError
from kant.model.units import FOREVER

MAX_AMOUNT = 1 << 53
"""Amounts, weights and prices stay below this: a JSON reader that knows only doubles still gets them exactly."""

Resource = Literal["gpu", "cpu", "memory"]
QueueState = Literal["open", "hold", "stop", "drain"]
Fallback = Literal["listed", "cheapest"]

RESOURCES: tuple[Resource, ...] = get_args(Resource)


class Quota(Struct, frozen=True, omit_defaults=True):
    """What a queue may use of one resource on the nodes of one GPU model ("": of all models together).

    Amounts are milli-GPUs, milli-cores or MiB; -1 is no limit. `nominal` is the queue's own part. Together with all
    queues below, it may use `borrowing_limit` more than its quota, and lends at most `lending_limit` of it to its
    siblings. `user_limit` is the most that one user may hold in this queue and below.
    """

    resource: Resource = "gpu"
    model: str = ""
    nominal: int = 0
    borrowing_limit: int = -1
    lending_limit: int = -1
    user_limit: int = -1


class Budget(Struct, frozen=True, omit_defaults=True):
    """GPU time that a queue, with all queues below it, may use in a month, and that each of its users may use there.

    Amounts are thousandths of GPU-hours, from 1; -1 is no limit. Beyond a hard limit no job starts until the month
    ends, and running jobs run on. Beyond a soft limit jobs rank behind all others.
    """

    hard: int = -1
    soft: int = -1
    user_hard: int = -1
    user_soft: int = -1

    @property
    def limits_users(self) -> bool:
        return self.user_hard >= 0 or self.user_soft >= 0


class Queue(Struct, frozen=True, omit_defaults=True):
    """A node of the tree of queues, under the queue `parent` ("": a root, which shares with no other root).

    `weight` is its share of what its siblings leave unused. `isolated`: it lends nothing and borrows nothing, whatever
    its quotas say. `min_run` is how long (microseconds) its jobs run before they may be preempted. `node_wait` is how
    long (microseconds, from the start of its wait) a job within quota waits for a node from an autoscaler before it
    preempts others. `max_time` is the longest run (microseconds, 0: no limit) of jobs in it and in queues below: a job
    with a longer limit is rejected, and a job without a limit gets this one. `user_queues`: each of its users has a
    queue below it, named `QUEUE/USER`, so that fair-share orders and preemption rules apply among users too. If not
    declared, it is created with the user's first job, with weight 1. `fallback` is the order in which the accepted GPU
    models of a job are tried: as the job lists them, or by price.

    `state` applies to all queues below too. open: as usual. hold: no job starts, and running jobs run on. stop: no job
    starts, and running jobs are stopped and wait. drain: no new jobs are accepted, and present ones still run.
    """

    name: str
    parent: str = ""
    weight: int = 1
    isolated: bool = False
    state: QueueState = "open"
    min_run: int = 0
    quotas: tuple[Quota, ...] = ()
    fallback: Fallback = "listed"
    node_wait: int = 0
    user_queues: bool = False
    max_time: int = 0
    budget: Budget | None = None


class QueueConfig(Struct, frozen=True, omit_defaults=True):
    """All queues, in index order (the order of the last tie-break), and prices of GPU models.

    A price is (model, thousandths of the currency for an hour of one GPU).
    """

    queues: tuple[Queue, ...] = ()
    prices: tuple[tuple[str, int], ...] = ()

    def lineage(self, name: str) -> tuple[str, ...]:
        """Return a queue and its ancestors up to the root, by name; the name alone if there is no such queue."""
        above = {queue.name: queue.parent for queue in self.queues}
        path = [name]
        while above.get(path[-1]):
            path.append(above[path[-1]])
        return tuple(path)

    def max_time(self, name: str) -> tuple[int, str]:
        """Return the longest run in a queue, microseconds, and the queue that sets it; (0, "") if none does."""
        path = self.lineage(name)
        said = [(queue.max_time, queue.name) for queue in self.queues if queue.max_time and queue.name in path]
        return min(said, default=(0, ""))


def owner_of(name: str, shared: Collection[str]) -> str:
    """Return the queue of `shared` that the user queue `name` belongs to; "" if `name` is no user queue."""
    cuts = (place for place, letter in enumerate(name) if letter == "/")
    return next((name[:cut] for cut in cuts if name[:cut] in shared), "")


# --- What a queue does, by the states on its path to the root: all of them apply -------------------------------


def starts(states: Iterable[QueueState]) -> bool:
    """Return whether waiting jobs may start."""
    return not any(state in ("hold", "stop") for state in states)


def accepts(states: Iterable[QueueState]) -> bool:
    """Return whether new jobs may be submitted."""
    return "drain" not in states


def runs(states: Iterable[QueueState]) -> bool:
    """Return whether running jobs may run on."""
    return "stop" not in states


# --- Validation ------------------------------------------------------------------------------------------------


def validated(queue_config: QueueConfig, where: str = "tenants") -> QueueConfig:
    """Return `queue_config`. Raises InputError if it is not a forest of queues or has a number out of range."""
    by_name: dict[str, Queue] = {}
    for queue in queue_config.queues:
        if not queue.name:
            raise InputError(f"{where}, queue {len(by_name) + 1}, name", "a name", queue.name)
        if queue.name in by_name:
            raise InputError(f"{where}, queue {queue.name!r}, name", "a name that no other queue has", queue.name)
        by_name[queue.name] = queue
    shared = {queue.name for queue in queue_config.queues if queue.user_queues}
    for queue in queue_config.queues:
        _check_queue(f"{where}, queue {queue.name!r}", queue)
        if shared and (above := owner_of(queue.name, shared)) and queue.parent != above:
            what = f"{above!r}, which reserves such names for the queues of its users"
            raise InputError(f"{where}, queue {queue.name!r}, parent", what, queue.parent)
        if queue.parent and queue.parent not in by_name:
            raise InputError(f"{where}, queue {queue.name!r}, parent", "the name of another queue", queue.parent)
    _check_roots(where, by_name)
    priced: set[str] = set()
    for model, price in queue_config.prices:
        if model in priced:
            raise InputError(f"{where}, prices, {model}", "one price for each model")
        priced.add(model)
        _check_range(f"{where}, prices, {model}", price, 0)
    return queue_config


def _check_roots(where: str, queues: Mapping[str, Queue]) -> None:
    """Raise InputError unless the parents of every queue lead to a root."""
    rooted = {""}
    for queue in queues.values():
        path: dict[str, None] = {}
        name = queue.name
        while name not in rooted:
            if name in path:
                raise InputError(
                    f"{where}, queue {name!r}, parent", "a queue that is not below this one", queues[name].parent
                )
            path[name] = None
            name = queues[name].parent
        rooted |= path.keys()


def _check_queue(where: str, queue: Queue) -> None:
    _check_range(f"{where}, weight", queue.weight, 1)
    _check_word(f"{where}, state", queue.state, get_args(QueueState))
    _check_word(f"{where}, fallback", queue.fallback, get_args(Fallback))
    for field in ("min_run", "node_wait", "max_time"):
        if not 0 <= getattr(queue, field) < FOREVER:
            raise InputError(f"{where}, {field}", "microseconds from 0 to less than 2^62", getattr(queue, field))
    for field, value in structs.asdict(queue.budget).items() if queue.budget is not None else ():
        _check_range(f"{where}, budget, {field}", value or -2, -1)
    if queue.budget is not None:
        for whose in ("", "user_"):
            hard, soft = getattr(queue.budget, f"{whose}hard"), getattr(queue.budget, f"{whose}soft")
            if 0 <= hard < soft:
                place = f"{where}, budget, {whose}soft"
                raise InputError(place, f"at most {whose}hard ({hard / 1000:g} GPU-hours)", soft / 1000)
    known: set[tuple[str, str]] = set()
    for number, quota in enumerate(queue.quotas, start=1):
        place = f"{where}, quota {number}"
        _check_word(f"{place}, resource", quota.resource, RESOURCES)
        if (quota.model, quota.resource) in known:
            of = f" of model {quota.model!r}" if quota.model else ""
            raise InputError(place, f"one quota for {quota.resource}{of} in each queue")
        known.add((quota.model, quota.resource))
        _check_range(f"{place}, nominal", quota.nominal, 0)
        for field in ("borrowing_limit", "lending_limit", "user_limit"):
            _check_range(f"{place}, {field}", getattr(quota, field), -1)


def _check_range(where: str, value: int, low: int) -> None:
    if not low <= value < MAX_AMOUNT:
        none = " (-1: no limit)" if low == -1 else ""
        raise InputError(where, f"a whole number from {low} to less than 2^53{none}", value)


def _check_word(where: str, word: str, words: tuple[str, ...]) -> None:
    if word not in words:
        raise InputError(where, f"one of {', '.join(words)}", word)
