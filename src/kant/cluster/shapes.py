"""Shapes: jobs that ask for the very same thing share one Shape, and what fits one fits the others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from kant.cluster.columns import DEMAND_WIDTH, Table
from kant.model.errors import StateError
from kant.model.job import LEVELS, Demand, Job, PodGroup
from kant.model.matching import Match
from kant.model.mig import PROFILES, profile_on
from kant.model.node import Node, PoolKey
from kant.model.training import Training
from kant.model.units import GPU

# --- columns of `Shapes.facts` -----------------------------------------------------------------------------------
S_POOLS = 0  # that admit it, as bits
S_SHARES = 1  # 1: some of its pods take a share of a GPU, or a MIG slice
S_ELASTIC = 2  # 1: its jobs have pods above their floor
FACT_WIDTH = 3


class Affinity(NamedTuple):
    """What a job wishes of others: its affinity group ("": none), and as indices in LEVELS, -1 for none, the level of
    which a domain should hold one pod of the group alone, and that of which it likes one that hosts the group.
    """

    group: str
    apart: int = -1
    apart_required: bool = False
    near: int = -1


class Ask(NamedTuple):
    """All that tells shapes apart: `pools` as bits; `level`, `required` and `affinity` as the shape has them.

    `workload` is the first of the profile's workloads that matches the job, counted from 1; 0 for none. `preempts`:
    whether somebody may be stopped for it. `training`: what it trains, where it says so. `roles` has the pools of each
    group, where the groups are unlike; `pools` are then those of all together.
    """

    groups: tuple[PodGroup, ...]
    pools: int
    level: int = -1
    required: bool = False
    affinity: Affinity | None = None
    workload: int = 0
    preempts: bool = True
    training: Training | None = None
    roles: tuple[int, ...] = ()

    @property
    def gpu_roles(self) -> tuple[int, ...]:
        """The pools of each group that asks for GPUs, where the groups are unlike."""
        return tuple(pools for group, pools in zip(self.groups, self.roles, strict=False) if group.demand.gpus)


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
    cuts: tuple[tuple[int, int], ...] = ()
    """For each group the pods of a segment and the level (index in LEVELS) of which one domain must hold each segment;
    (0, -1) for a group that is not cut. Empty where no group is."""

    affinity: Affinity | None = None
    """Its affinity group and what it wishes of it; None where it has none and its pods may lie together."""

    ceiling: tuple[int, ...] = ()
    """The most pods of each group of an elastic gang; empty where the gang is rigid."""

    @property
    def most_milli(self) -> int:
        """Milli-GPUs at the ceiling."""
        if not self.ceiling:
            return self.gpu_milli
        return sum(most * group.demand.gpu_milli for most, group in zip(self.ceiling, self.groups, strict=True))

    @property
    def has_affinity(self) -> bool:
        """Whether it matters to it where its affinity group runs, or its own pods."""
        return self.affinity is not None and (self.affinity.apart >= 0 or self.affinity.near >= 0)

    @property
    def order_dependent(self) -> bool:
        """Whether it may come to fit though nothing comes free in its pools.

        Groups are placed one after the other: a node taken elsewhere may change the first one's place. A domain that
        has to be free of an affinity group may become so on nodes of another pool.
        """
        return len(self.parts) > 1 or (self.affinity is not None and self.affinity.apart_required)

    @property
    def reservable(self) -> bool:
        """Whether the timeline can promise it a place: it knows neither segments nor who has to stay apart."""
        return not self.cuts and not (self.affinity is not None and self.affinity.apart_required)


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
        and (not demand.mig or (demand.mig in PROFILES and demand.gpus == 1))
        and 0 <= group.segment <= MAX_PODS
    )


def _affinity(job: Job) -> Affinity | None:
    for level in (job.apart, job.near):
        if level not in ("", *LEVELS):
            raise StateError(f"job {job.id!r} asks for the level {level!r}; expected one of {', '.join(LEVELS)}")
    if job.near and not job.affinity_group:
        raise StateError(f"job {job.id!r} wants to be near an affinity group; expected the name of one")
    if job.apart and any(group.within for group in job.groups):
        raise StateError(f"job {job.id!r} wants its pods apart and in segments; expected one of these")
    apart = job.apart if job.pods > 1 or job.affinity_group else ""
    if not job.affinity_group and not apart:
        return None
    return Affinity(
        job.affinity_group,
        LEVELS.index(apart) if apart else -1,
        bool(apart) and job.apart_required,
        LEVELS.index(job.near) if job.near else -1,
    )


def _roles(job: Job) -> list[tuple[tuple[PodGroup, ...], tuple[str, ...], tuple[str, ...]]]:
    """Each group alone, with the GPU models and the flavors of nodes that its pods accept."""
    if len(job.roles) != len(job.groups):
        raise StateError(
            f"job {job.id!r} has {len(job.roles)} roles for {len(job.groups)} groups; expected one for each"
        )
    if len({group.demand for group in job.groups}) < len(job.groups):
        raise StateError(f"job {job.id!r} has groups that only their roles tell apart; expected other requests in each")
    return [
        ((group,), role.models or job.models, role.flavors or job.flavors)
        for group, role in zip(job.groups, job.roles, strict=True)
    ]


def _distinct(groups: tuple[PodGroup, ...]) -> bool:
    """Whether GPUs tell different pods apart: on a node those with as many are one piece of an allocation."""
    demands = {group.demand for group in groups}
    return len({(demand.gpus, demand.milli if demand.gpus else 0) for demand in demands}) == len(demands)


def _check_elastic(job: Job, ask: Ask) -> None:
    """Raise StateError where it would not be known which pods of a gang may go, or which more may come."""
    if not _distinct(job.groups):
        raise StateError(f"elastic gang {job.id!r} has groups that only CPU or memory tells apart: {job.groups}")
    if ask.affinity is not None or any(group.within or group.demand.mig for group in job.groups):
        raise StateError(
            f"elastic gang {job.id!r} asks for segments, MIG slices, its pods apart or an affinity group; "
            "expected none of these beside a floor"
        )


def _level(job: Job) -> int:
    """The level that the job asks for; -1 for a single pod, which is in one domain of every level anyway."""
    if job.within not in LEVELS:
        raise StateError(f"job {job.id!r} asks for the level {job.within!r}; expected one of {', '.join(LEVELS)}")
    return LEVELS.index(job.within) if job.pods > 1 else -1


def _cuts(groups: tuple[PodGroup, ...]) -> tuple[tuple[int, int], ...]:
    """As `Shape.cuts`; segments of one pod are no wish."""
    cuts = []
    for group in groups:
        pods = min(group.segment or group.count, group.count)
        cuts.append((pods, LEVELS.index(group.within)) if group.within and pods > 1 else (0, -1))
    return tuple(cuts) if any(pods for pods, _ in cuts) else ()


class Shapes:
    """Interns the shapes of jobs, and their demands as rows of `demands` (columns D_*).

    `facts` has a row for each shape (columns S_*), for what is asked of many jobs at once.
    """

    def __init__(self, nodes: tuple[Node, ...], workloads: tuple[Match, ...] = ()) -> None:
        self.workloads = workloads
        self.pool_keys: list[PoolKey] = sorted({node.pool for node in nodes})
        self.pool_of = {key: pool for pool, key in enumerate(self.pool_keys)}
        self.shapes: list[Shape] = []
        self.demands: Table = np.zeros((8, DEMAND_WIDTH), dtype=np.int64)
        self.demand_count = 0
        self.facts: Table = np.zeros((8, FACT_WIDTH), dtype=np.int64)
        self._by_request: dict[tuple[object, ...], Shape] = {}  # by all that a job without wishes of others says
        self._by_ask: dict[Ask, Shape] = {}
        self._by_planned_ask: dict[Ask, Shape] = {}
        self._planned_shapes: list[Shape] = []
        self._demand_rows: dict[tuple[Demand, int], int] = {}
        self._pools_by_job: dict[tuple[tuple[str, ...], tuple[str, ...], str, frozenset[tuple[str, int]]], int] = {}

    def of(self, job: Job) -> Shape:
        """The shape of `job`."""
        if self.workloads or job.affinity_group or job.apart or job.near:
            return self._find(job)
        request = (
            job.groups, job.queue, job.models, job.flavors, job.within, job.within_required, job.preempts,
            job.training, job.roles,
        )  # fmt: skip
        shape = self._by_request.get(request)
        if shape is None:
            shape = self._by_request[request] = self._find(job)
        return shape

    def _find(self, job: Job) -> Shape:
        level = _level(job) if job.within else -1
        affinity = _affinity(job) if job.affinity_group or job.apart or job.near else None
        workload = self._workload(job) if self.workloads else 0
        groups = job.groups
        if any(group.floor for group in groups):
            groups = tuple(replace(group, floor=0) if group.floor == group.count else group for group in groups)
        required = level >= 0 and job.within_required
        roles = tuple(self._pools(job, *one) for one in _roles(job)) if job.roles else ()
        pools = reduce(or_, roles) if roles else self._pools(job, job.groups, job.models, job.flavors)
        ask = Ask(groups, pools, level, required, affinity, workload, job.preempts, job.training, roles)
        return self._by_ask.get(ask) or self._make(job, ask)

    def _workload(self, job: Job) -> int:
        return next((number for number, match in enumerate(self.workloads, 1) if match.admits(job)), 0)

    def pool_name(self, pool: int) -> str:
        """`model` of the pool, with its MIG geometry, its flavor and the queues it is dedicated to."""
        model, queues, mig, flavor = self.pool_keys[pool]
        name = (model or "gpu") + (f" as MIG {mig}" if mig else "") + (f" of {flavor}" if flavor else "")
        return name + (f" for {','.join(queues)}" if queues else "")

    def _pools(self, job: Job, groups: tuple[PodGroup, ...], models: tuple[str, ...], flavors: tuple[str, ...]) -> int:
        """The pools that admit these groups of `job`, as bits: of GPU models and flavors, and of nodes dedicated to its
        queue or to none.

        Pools in MIG mode admit only those who ask for MIG slices, and only if they have them in that size.
        """
        asked = frozenset((group.demand.mig, group.demand.milli if group.demand.mig else 0) for group in groups)
        key = (models, flavors, job.queue, asked)
        bits = self._pools_by_job.get(key)
        if bits is None:
            if len({bool(mig) for mig, _ in asked}) > 1:
                raise StateError(f"job {job.id!r} asks for MIG slices in some of its groups and not in others")
            bits = self.pools_admitting(models)
            for pool, (_, queues, _, flavor) in enumerate(self.pool_keys):
                kept = (not queues or job.queue in queues) and (not flavors or flavor in flavors)
                if not kept or not all(self._offers(pool, *one) for one in asked):
                    bits &= ~(1 << pool)
            self._pools_by_job[key] = bits
        return bits

    def _offers(self, pool: int, mig: str, milli: int) -> bool:
        """Whether a pool has MIG instances of this profile and size; or, where none is named, is not in MIG mode."""
        geometry = self.pool_keys[pool][2]
        found = profile_on(geometry, mig)
        return not geometry if not mig else found is not None and found[0] == milli

    def pools_admitting(self, models: tuple[str, ...], mig: tuple[str, int] | None = None) -> int:
        """The pools of these GPU models (empty: of any), as bits; with `mig` those with that profile and size."""
        return sum(
            1 << pool
            for pool, (model, _, _, _) in enumerate(self.pool_keys)
            if (not models or model in models) and (mig is None or self._offers(pool, *mig))
        )

    def _make(self, job: Job, ask: Ask) -> Shape:
        if not job.groups or not all(_sensible(group) for group in job.groups):
            raise StateError(f"job {job.id!r} asks for what cannot be counted: {job.groups}")
        for group in job.groups:
            if group.within not in ("", *LEVELS) or (group.segment and not group.within):
                expected = f"one of {', '.join(LEVELS)} for its segments"
                raise StateError(f"a group of job {job.id!r} asks for the level {group.within!r}; expected {expected}")
        if any(group.floor for group in ask.groups):
            _check_elastic(job, ask)
        return self._intern(ask)

    def _intern(self, ask: Ask) -> Shape:
        shape = self._make_shape(ask, len(self.shapes))
        self.shapes.append(shape)
        if len(self.shapes) > len(self.facts):
            self.facts = np.concatenate([self.facts, np.zeros_like(self.facts)])
        shares = any(group.demand.gpus and group.demand.milli < GPU for group in ask.groups)
        self.facts[shape.index] = shape.pool_bits, shares, bool(shape.ceiling)
        self._by_ask[ask] = shape
        return shape

    def _make_shape(self, ask: Ask, index: int) -> Shape:
        pools = ask.pools
        elastic = any(group.floor for group in ask.groups)
        groups = tuple(PodGroup(group.least, group.demand) for group in ask.groups) if elastic else ask.groups
        roles = ask.roles or (pools,) * len(groups)
        own = reduce(or_, ask.gpu_roles, 0) or pools  # CPU nodes beside them are of no model
        models = {model for pool, (model, _, _, _) in enumerate(self.pool_keys) if (own >> pool) & 1}
        return Shape(
            index=index,
            ask=ask,
            groups=groups,
            parts=tuple((group.count, self._demand(group.demand, of)) for group, of in zip(groups, roles, strict=True)),
            pools=tuple(pool for pool in range(len(self.pool_keys)) if (pools >> pool) & 1),
            pool_bits=pools,
            gpu_milli=sum(group.count * group.demand.gpu_milli for group in groups),
            cpu=sum(group.count * group.demand.cpu for group in groups),
            memory=sum(group.count * group.demand.memory for group in groups),
            pods=sum(group.count for group in groups),
            model=models.pop() if len(models) == 1 else None,
            level=ask.level,
            required=ask.required,
            cuts=_cuts(groups),
            affinity=ask.affinity,
            ceiling=tuple(group.count for group in ask.groups) if elastic else (),
        )

    def on_model(self, shape: Shape, model: str) -> Shape:
        """`shape` kept to the pools of one GPU model. Of unlike groups those that ask for no GPU stay as they are."""
        admitted, ask = self.pools_admitting((model,)), shape.ask
        if ask.roles:
            kept = zip(ask.groups, ask.roles, strict=True)
            roles = tuple(pools & admitted if group.demand.gpus else pools for group, pools in kept)
            ask = ask._replace(pools=reduce(or_, roles), roles=roles)
        else:
            ask = ask._replace(pools=ask.pools & admitted)
        return self._by_ask.get(ask) or self._intern(ask)

    def part(self, shape: Shape, pods: Mapping[int, int]) -> Shape:
        """So many pods of some groups of `shape`, which may lie anywhere."""
        groups = tuple(PodGroup(count, shape.groups[group].demand) for group, count in pods.items())
        roles = tuple(shape.ask.roles[group] for group in pods) if shape.ask.roles else ()
        ask = Ask(groups, reduce(or_, roles) if roles else shape.pool_bits, roles=roles)
        return self._by_ask.get(ask) or self._intern(ask)

    def sized(self, shape: Shape, counts: tuple[int, ...]) -> Shape:
        """A rigid shape like `shape` with so many pods of each group; groups without any are left out.

        No job is of it, so its index is below zero: what is made while planning does not number the shapes of jobs.
        """
        groups = tuple(
            PodGroup(count, group.demand) for count, group in zip(counts, shape.groups, strict=True) if count
        )
        roles = tuple(pools for count, pools in zip(counts, shape.ask.roles, strict=False) if count)
        return self._planned(shape.ask._replace(groups=groups, roles=roles))

    def anywhere(self, shape: Shape) -> Shape:
        """The pods of `shape` without what it asks of the topology and of its affinity group; itself for nothing.

        No job is of it, so its index is below zero.
        """
        if shape.level < 0 and not shape.cuts and shape.affinity is None:
            return shape
        groups = tuple(PodGroup(group.count, group.demand) for group in shape.groups)
        return self._planned(shape.ask._replace(groups=groups, level=-1, required=False, affinity=None))

    def _planned(self, ask: Ask) -> Shape:
        found = self._by_planned_ask.get(ask)
        if found is None:
            found = self._by_planned_ask[ask] = self._make_shape(ask, -1 - len(self._planned_shapes))
            self._planned_shapes.append(found)
        return found

    def at(self, index: int) -> Shape:
        """The shape of this index: of jobs, or below zero one that was made while planning."""
        return self.shapes[index] if index >= 0 else self._planned_shapes[-1 - index]

    def _demand(self, demand: Demand, pools: int) -> int:
        row = self._demand_rows.get((demand, pools))
        if row is None:
            row = self.demand_count
            if row == len(self.demands):
                self.demands = np.concatenate([self.demands, np.zeros_like(self.demands)])
            tag = -1 if demand.gpus == 0 else (demand.gpus if demand.milli == 1000 and not demand.mig else 0)
            slices, starts = self._places(demand, pools)
            self.demands[row] = (
                demand.gpus, demand.milli, demand.cpu, demand.memory, pools, tag, demand.island, slices, starts,
            )  # fmt: skip
            self._demand_rows[(demand, pools)] = row
            self.demand_count += 1
        return row

    def _places(self, demand: Demand, pools: int) -> tuple[int, int]:
        """Memory slices of the MIG instance asked for, and where it may begin; pools that offer it agree on both."""
        for pool, (_, _, geometry, _) in enumerate(self.pool_keys):
            found = profile_on(geometry, demand.mig) if (pools >> pool) & 1 else None
            if found is not None:
                return found[1].size, found[1].starts
        return 0, 0
