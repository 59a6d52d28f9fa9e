"""Shapes: jobs that ask for the very same thing share one Shape, and what fits one fits the others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from kant.cluster.columns import DEMAND_WIDTH, Table
from kant.model.errors import Violation
from kant.model.job import LEVELS, Demand, Job, PodGroup
from kant.model.node import Node
from kant.model.units import GPU


class Ask(NamedTuple):
    """All that tells shapes apart: `pools` as bits; `level` and `required` as the shape has them."""

    groups: tuple[PodGroup, ...]
    pools: int
    level: int = -1
    required: bool = False


@dataclass(frozen=True, slots=True)
class Shape:
    """What a gang asks for. `parts` has (pods, row in the demand table) for each group, in the job's order.

    Of an elastic gang it is what it needs to start: all that follows is of its floor, but for `ceiling`.
    """

    index: int
    ask: Ask
    groups: tuple[PodGroup, ...]
    parts: tuple[tuple[int, int], ...]
    pools: tuple[int, ...]
    pool_bits: int
    gpu_milli: int
    cpu: int
    memory: int
    pods: int
    model: str | None
    """The one GPU model of its pools; None where there are several, or none."""
    level: int = -1
    """Of the fabric (its index in LEVELS): one domain of it should hold all pods. -1: anywhere, or a single pod."""
    required: bool = False
    """One domain of `level` must hold all pods."""
    ceiling: tuple[int, ...] = ()
    """The most pods of each group of an elastic gang; empty where the gang is rigid."""

    @property
    def most_milli(self) -> int:
        """Milli-GPUs at the ceiling."""
        if not self.ceiling:
            return self.gpu_milli
        return sum(most * group.demand.gpu_milli for most, group in zip(self.ceiling, self.groups, strict=True))


MAX_PODS = 10_000_000
MAX_AMOUNT = 1 << 53
"""Of CPU or memory for one pod: far beyond any node, and far from the end of 64 bits."""


def _sensible(group: PodGroup) -> bool:
    demand = group.demand
    return (
        1 <= group.count <= MAX_PODS
        and 0 <= group.floor <= group.count
        and 0 <= demand.gpus <= MAX_PODS
        and 1 <= demand.milli <= GPU
        and 0 <= demand.cpu <= MAX_AMOUNT
        and 0 <= demand.memory <= MAX_AMOUNT
    )


def _distinct(groups: tuple[PodGroup, ...]) -> bool:
    """Whether GPUs tell different pods apart: on a node those with as many are one piece of an allocation."""
    demands = {group.demand for group in groups}
    return len({(demand.gpus, demand.milli if demand.gpus else 0) for demand in demands}) == len(demands)


def _level(job: Job) -> int:
    """The level that the job asks for; -1 for a single pod, which is in one domain of every level anyway."""
    if job.within not in LEVELS:
        raise Violation(f"job {job.id!r} asks for the level {job.within!r}; expected one of {', '.join(LEVELS)}")
    return LEVELS.index(job.within) if job.pods > 1 else -1


class Shapes:
    """Interns the shapes of jobs, and their demands as rows of `demands` (columns D_*)."""

    def __init__(self, nodes: tuple[Node, ...]) -> None:
        self.pool_keys: list[tuple[str, tuple[str, ...]]] = sorted({(node.model, node.queues) for node in nodes})
        self.pool_of = {key: pool for pool, key in enumerate(self.pool_keys)}
        self.shapes: list[Shape] = []
        self.demands: Table = np.zeros((8, DEMAND_WIDTH), dtype=np.int64)
        self.demand_count = 0
        self._by_ask: dict[Ask, Shape] = {}
        self._by_size: dict[Ask, Shape] = {}
        self._sizes: list[Shape] = []
        self._demand_rows: dict[tuple[Demand, int], int] = {}
        self._pools_by_job: dict[tuple[tuple[str, ...], str], int] = {}

    def of(self, job: Job) -> Shape:
        """The shape of `job`."""
        level = _level(job) if job.within else -1
        groups = job.groups
        if any(group.floor for group in groups):
            groups = tuple(replace(group, floor=0) if group.floor == group.count else group for group in groups)
        ask = Ask(groups, self._pools(job), level, level >= 0 and job.within_required)
        return self._by_ask.get(ask) or self._make(job, ask)

    def pool_name(self, pool: int) -> str:
        """`model` of the pool, with the queues it is dedicated to."""
        model, queues = self.pool_keys[pool]
        return (model or "gpu") + (f" for {','.join(queues)}" if queues else "")

    def _pools(self, job: Job) -> int:
        """The pools that admit `job`, as bits: its GPU models, and nodes dedicated to its queue or to none."""
        key = (job.models, job.queue)
        bits = self._pools_by_job.get(key)
        if bits is None:
            open_to = [not queues or job.queue in queues for _, queues in self.pool_keys]
            bits = self.pools_admitting(job.models) & sum(1 << pool for pool, is_open in enumerate(open_to) if is_open)
            self._pools_by_job[key] = bits
        return bits

    def pools_admitting(self, models: tuple[str, ...]) -> int:
        """The pools of these GPU models (empty: of any), as bits."""
        return sum(1 << pool for pool, (model, _) in enumerate(self.pool_keys) if not models or model in models)

    def _make(self, job: Job, ask: Ask) -> Shape:
        if not job.groups or not all(_sensible(group) for group in job.groups):
            raise Violation(f"job {job.id!r} asks for what cannot be counted: {job.groups}")
        if any(group.floor for group in job.groups) and not _distinct(job.groups):
            raise Violation(f"elastic gang {job.id!r} has groups that only CPU or memory tells apart: {job.groups}")
        return self._intern(ask)

    def _intern(self, ask: Ask) -> Shape:
        shape = self._make_shape(ask, len(self.shapes))
        self.shapes.append(shape)
        self._by_ask[ask] = shape
        return shape

    def _make_shape(self, ask: Ask, index: int) -> Shape:
        pools = ask.pools
        elastic = any(group.floor for group in ask.groups)
        groups = tuple(PodGroup(group.least, group.demand) for group in ask.groups) if elastic else ask.groups
        models = {model for pool, (model, _) in enumerate(self.pool_keys) if (pools >> pool) & 1}
        return Shape(
            index=index,
            ask=ask,
            groups=groups,
            parts=tuple((group.count, self._demand(group.demand, pools)) for group in groups),
            pools=tuple(pool for pool in range(len(self.pool_keys)) if (pools >> pool) & 1),
            pool_bits=pools,
            gpu_milli=sum(group.count * group.demand.gpu_milli for group in groups),
            cpu=sum(group.count * group.demand.cpu for group in groups),
            memory=sum(group.count * group.demand.memory for group in groups),
            pods=sum(group.count for group in groups),
            model=models.pop() if len(models) == 1 else None,
            level=ask.level,
            required=ask.required,
            ceiling=tuple(group.count for group in ask.groups) if elastic else (),
        )

    def on_model(self, shape: Shape, model: str) -> Shape:
        """`shape` kept to the pools of one GPU model."""
        ask = shape.ask._replace(pools=shape.pool_bits & self.pools_admitting((model,)))
        return self._by_ask.get(ask) or self._intern(ask)

    def sized(self, shape: Shape, counts: tuple[int, ...]) -> Shape:
        """A rigid shape like `shape` with so many pods of each group; groups without any are left out.

        No job is of it, so its index is below zero: what is made while planning does not number the shapes of jobs.
        """
        groups = tuple(
            PodGroup(count, group.demand) for count, group in zip(counts, shape.groups, strict=True) if count
        )
        ask = shape.ask._replace(groups=groups)
        found = self._by_size.get(ask)
        if found is None:
            found = self._by_size[ask] = self._make_shape(ask, -1 - len(self._sizes))
            self._sizes.append(found)
        return found

    def at(self, index: int) -> Shape:
        """The shape of this index, of jobs or of a size."""
        return self.shapes[index] if index >= 0 else self._sizes[-1 - index]

    def _demand(self, demand: Demand, pools: int) -> int:
        row = self._demand_rows.get((demand, pools))
        if row is None:
            row = self.demand_count
            if row == len(self.demands):
                self.demands = np.concatenate([self.demands, np.zeros_like(self.demands)])
            tag = -1 if demand.gpus == 0 else (demand.gpus if demand.milli == 1000 else 0)
            self.demands[row] = (demand.gpus, demand.milli, demand.cpu, demand.memory, pools, tag)
            self._demand_rows[(demand, pools)] = row
            self.demand_count += 1
        return row
