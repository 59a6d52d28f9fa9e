"""Shapes: jobs with equal requests share one Shape, so if one fits, the others fit too."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import reduce
from operator import or_

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from kant.cluster.asks import (
    NO_RULES,
    Affinity,
    Ask,
    Cuts,
    affinity_of,
    check_cuts,
    check_elastic,
    check_rules,
    cuts_of,
    is_sensible,
    is_wide,
    lasting,
    level_of,
    node_sets_of,
    preferences_of,
    roles_of,
    rules_of,
)
from kant.cluster.columns import D_COUNTED, D_LIMITED, DEMAND_WIDTH, Table
from kant.cluster.demand_rules import DemandRules
from kant.cluster.node_sets import NodeSets, admitting
from kant.model.errors import StateError
from kant.model.job import Demand, Job, PodGroup
from kant.model.matching import Match
from kant.model.mig import profile_on
from kant.model.node import Node, PoolKey
from kant.model.placement import COUNTED, GROUP, WIDTH, Allocation
from kant.model.rules import PodRules


@dataclass(frozen=True, slots=True)
class Shape:
    """The requests of a gang. `parts` has (pods, row in the demand table) for each group, in the job's order.

    For an elastic gang everything except `ceiling` describes its floor, with which it may start.
    """

    index: int
    ask: Ask
    groups: tuple[PodGroup, ...]
    parts: tuple[tuple[int, int], ...]
    pools: tuple[int, ...]
    pool_bits: int
    gpu_milli: int
    charged_milli: int
    """The milli-GPUs charged to quotas and shares: `gpu_milli`, plus GPU parts that nodes have partitioned."""
    cpu: int
    memory: int
    pods: int
    model: str | None
    """The single GPU model of its pools; None if there are several, or none."""
    level: int = -1
    """The fabric level (index in LEVELS) at which one domain should hold all pods; -1: none, or a single pod."""
    required: bool = False
    """Whether one domain of `level` must hold all pods."""
    cuts: tuple[Cuts, ...] = ()
    """The segments of each group. Empty if no group has any."""

    affinity: Affinity | None = None
    """The affinity group of the gang and its requests about that group; None without a group and such requests."""

    reach: tuple[int, tuple[str, ...]] = (0, ())
    """What determines the nodes that the gang may use: its pools as bits, and the node sets of its groups."""

    ceiling: tuple[int, ...] = ()
    """The most pods of each group of an elastic gang; empty if the gang is rigid."""

    numbers: tuple[int, ...] = ()
    """For each group its index in the job, which is the GROUP of its pods' pieces."""

    wide: bool = False
    """Whether, for some group, the number of pods that a node takes also depends on the pods on other nodes."""

    order_dependent: bool = field(init=False, compare=False)
    """Whether a job that does not fit may fit later although no capacity is freed in its pools.

    Groups are placed one after the other, so a change of another node may move the first group. A domain that must be
    free of an affinity group may become free by a change of nodes of another pool. The same holds for domains with
    rules among pods. Affinity and spread rules may be met once other pods arrive.
    """

    def __post_init__(self) -> None:
        apart = self.affinity is not None and self.affinity.apart_required
        object.__setattr__(self, "order_dependent", len(self.parts) > 1 or self.wide or apart)

    @property
    def most_milli(self) -> int:
        """Milli-GPUs at the ceiling."""
        if not self.ceiling:
            return self.gpu_milli
        return sum(most * group.demand.gpu_milli for most, group in zip(self.ceiling, self.groups, strict=True))

    @property
    def has_affinity(self) -> bool:
        """Whether the placement of the gang depends on where its affinity group, or its own pods, run."""
        return self.affinity is not None and (self.affinity.apart >= 0 or self.affinity.near >= 0)

    @property
    def reservable(self) -> bool:
        """Whether the calendar can reserve nodes for such a job. This is impossible for segments, required
        anti-affinity, rules over several nodes, and jobs that run on GPUs booked for them.
        """
        apart = self.affinity is not None and self.affinity.apart_required
        return not (self.cuts or apart or self.ask.reservation or self.wide)


class Shapes:
    """Interns the shapes of jobs, and their demands as rows of `demands` (columns D_*)."""

    def __init__(self, nodes: tuple[Node, ...], workloads: tuple[Match, ...] = ()) -> None:
        self.workloads = workloads
        self.pool_keys: list[PoolKey] = sorted({node.pool for node in nodes})
        self.pool_of = {key: pool for pool, key in enumerate(self.pool_keys)}
        self.shapes: list[Shape] = []
        self.demands: Table = np.zeros((8, DEMAND_WIDTH), dtype=np.int64)
        self.demand_count = 0
        self.pools: Table = np.zeros(8, dtype=np.int64)
        """By shape, the pools that admit it, as bits."""
        self._by_request: dict[tuple[object, ...], Shape] = {}  # by request, for jobs without affinity
        self._by_ask: dict[Ask, Shape] = {}
        self._by_planned_ask: dict[Ask, Shape] = {}
        self._planned_shapes: list[Shape] = []
        self.ask_nothing = False  # whether some demand takes nothing from its node
        self.node_sets = NodeSets([self.pool_of[node.pool] for node in nodes])
        self.rules = DemandRules()
        self.counts = False  # whether some demand has rules or exact amounts
        self.await_nodes = False  # whether some jobs wait for an autoscaler's node before they preempt others
        self._demand_rows: dict[tuple[Demand, int, str, PodRules], int] = {}
        self._limited: dict[str, list[int]] = {}  # rows of demands by the node set that they are limited to
        self._pools_by_job: dict[
            tuple[tuple[str, ...], tuple[str, ...], str, str, frozenset[tuple[str, int]]], int
        ] = {}

    def of(self, job: Job) -> Shape:
        """Return the shape of `job`."""
        if self.workloads or job.affinity_group or job.apart or job.near:
            return self._find(job)
        request = (
            job.groups, job.queue, job.models, job.flavors, job.within, job.within_required, job.preempts,
            job.training, job.roles, job.reservation, job.node_set, job.rules,
            job.preferences, job.node_wait,
        )  # fmt: skip
        shape = self._by_request.get(request)
        if shape is None:
            shape = self._by_request[request] = self._find(job)
        return shape

    def _find(self, job: Job) -> Shape:
        level = level_of(job) if job.within else -1
        affinity = affinity_of(job) if job.affinity_group or job.apart or job.near else None
        workload = self._workload(job) if self.workloads else 0
        groups = job.groups
        if any(group.floor for group in groups):
            groups = tuple(replace(group, floor=0) if group.floor == group.count else group for group in groups)
        required = level >= 0 and job.within_required
        roles = tuple(self._pools(job, *one) for one in roles_of(job)) if job.roles else ()
        pools = reduce(or_, roles) if roles else self._pools(job, job.groups, job.models, job.flavors, job.node_set)
        ask = Ask(
            groups,
            pools,
            level,
            required,
            affinity,
            workload,
            job.preempts,
            job.training,
            roles,
            job.reservation,
            node_sets_of(job) if job.node_set or job.roles else (),
            rules=rules_of(job) if job.rules else (),
            preferences=preferences_of(job) if job.preferences else (),
            node_wait=job.node_wait,
        )
        return self._by_ask.get(ask) or self._make(job, ask)

    def _workload(self, job: Job) -> int:
        return next((number for number, match in enumerate(self.workloads, 1) if match.admits(job)), 0)

    def pool_name(self, pool: int) -> str:
        """Return the name of a pool: its model, MIG geometry, flavor and the queues that it is dedicated to."""
        model, queues, mig, flavor = self.pool_keys[pool]
        name = (model or "gpu") + (f" as MIG {mig}" if mig else "") + (f" of {flavor}" if flavor else "")
        return name + (f" for {','.join(queues)}" if queues else "")

    def _pools(
        self, job: Job, groups: tuple[PodGroup, ...], models: tuple[str, ...], flavors: tuple[str, ...], node_set: str
    ) -> int:
        """Return the pools that admit these groups of `job`, as bits: by GPU models, flavors, and nodes dedicated to
        its queue or to none. With a node set, only pools that have one of its nodes.

        Pools in MIG mode admit only groups that ask for a MIG profile which their GPUs offer in that size.
        """
        demands = [group.demand for group in groups]
        asked = frozenset([(one.mig, one.milli) if one.mig and one.gpus else ("", 0) for one in demands])
        key = (models, flavors, node_set, job.queue, asked)
        bits = self._pools_by_job.get(key)
        if bits is None:
            if len({bool(mig) for mig, _ in asked}) > 1:
                raise StateError(f"job {job.id!r} asks for MIG slices in some of its groups and not in others")
            bits = self.pools_admitting(models) & (self.node_sets.pools(node_set) if node_set else -1)
            for pool, (_, queues, _, flavor) in enumerate(self.pool_keys):
                kept = (not queues or job.queue in queues) and (not flavors or flavor in flavors)
                if not kept or not all(self._offers(pool, *one) for one in asked):
                    bits &= ~(1 << pool)
            self._pools_by_job[key] = bits
        return bits

    def _offers(self, pool: int, mig: str, milli: int) -> bool:
        """Return whether a pool has MIG instances of this profile and size; or, with "", is not in MIG mode."""
        geometry = self.pool_keys[pool][2]
        found = profile_on(geometry, mig)
        return not geometry if not mig else found is not None and found[0] == milli

    def pools_admitting(self, models: tuple[str, ...], mig: tuple[str, int] | None = None) -> int:
        """Return the pools of these GPU models (empty: any), as bits; with `mig`, those with that profile and size."""
        return sum(
            1 << pool
            for pool, (model, _, _, _) in enumerate(self.pool_keys)
            if (not models or model in models) and (mig is None or self._offers(pool, *mig))
        )

    def _make(self, job: Job, ask: Ask) -> Shape:
        if not job.groups or not all(is_sensible(group) for group in job.groups):
            raise StateError(f"job {job.id!r} has requests out of range: {job.groups}")
        check_cuts(job)
        if any(group.floor for group in ask.groups):
            check_elastic(job, ask)
        if ask.rules:
            check_rules(job, ask)
        return self._intern(ask)

    def _intern(self, ask: Ask) -> Shape:
        shape = self._make_shape(ask, len(self.shapes))
        self.shapes.append(shape)
        if len(self.shapes) > len(self.pools):
            self.pools = np.concatenate([self.pools, np.zeros_like(self.pools)])
        self.pools[shape.index] = shape.pool_bits
        self.await_nodes |= ask.node_wait > 0
        self._by_ask[ask] = shape
        return shape

    def _make_shape(self, ask: Ask, index: int) -> Shape:
        for preferences in ask.preferences:
            self.rules.watch(self, preferences)
        pools = ask.pools
        elastic = any(group.floor for group in ask.groups)
        groups = tuple(PodGroup(group.least, group.demand) for group in ask.groups) if elastic else ask.groups
        roles = ask.roles or (pools,) * len(groups)
        own = reduce(or_, ask.gpu_roles, 0) or pools  # pools of groups without GPUs do not count
        models = {model for pool, (model, _, _, _) in enumerate(self.pool_keys) if (own >> pool) & 1}
        return Shape(
            index=index,
            ask=ask,
            groups=groups,
            parts=tuple(
                (group.count, self._demand(group.demand, of, node_set, rules))
                for group, of, node_set, rules in zip(
                    groups,
                    roles,
                    ask.node_sets or ("",) * len(groups),
                    ask.rules or (NO_RULES,) * len(groups),
                    strict=True,
                )
            ),
            pools=tuple(pool for pool in range(len(self.pool_keys)) if (pools >> pool) & 1),
            pool_bits=pools,
            gpu_milli=sum([group.count * group.demand.gpu_milli for group in groups]),
            charged_milli=sum([group.count * group.demand.charged_milli for group in groups]),
            cpu=sum(group.count * group.demand.cpu for group in groups),
            memory=sum(group.count * group.demand.memory for group in groups),
            pods=sum(group.count for group in groups),
            model=models.pop() if len(models) == 1 else None,
            level=ask.level,
            required=ask.required,
            cuts=cuts_of(groups),
            affinity=ask.affinity,
            reach=(pools, tuple(sorted(set(ask.node_sets)))),
            ceiling=tuple(group.count for group in ask.groups) if elastic else (),
            numbers=ask.numbers or tuple(range(len(groups))),
            wide=bool(ask.rules) and any(is_wide(rules) for rules in ask.rules),
        )

    def on_model(self, shape: Shape, model: str) -> Shape:
        """Return `shape` limited to the pools of a GPU model. If groups differ, those without GPUs keep their pools."""
        admitted, ask = self.pools_admitting((model,)), shape.ask
        if ask.roles:
            kept = zip(ask.groups, ask.roles, strict=True)
            roles = tuple(pools & admitted if group.demand.charged_milli else pools for group, pools in kept)
            ask = ask._replace(pools=reduce(or_, roles), roles=roles)
        else:
            ask = ask._replace(pools=ask.pools & admitted)
        return self._by_ask.get(ask) or self._intern(ask)

    def part(self, shape: Shape, pods: Mapping[int, int]) -> Shape:
        """Return a shape of some groups of `shape`, without topology requests. `pods`: how many pods of each group."""
        groups = tuple(PodGroup(count, shape.groups[group].demand) for group, count in pods.items())
        roles = tuple(shape.ask.roles[group] for group in pods) if shape.ask.roles else ()
        node_sets = tuple(shape.ask.node_sets[group] for group in pods) if shape.ask.node_sets else ()
        rules = tuple(shape.ask.rules[group] for group in pods) if shape.ask.rules else ()
        likes = tuple(shape.ask.preferences[group] for group in pods) if shape.ask.preferences else ()
        pool_bits, numbers = reduce(or_, roles) if roles else shape.pool_bits, _numbers(pods)
        ask = Ask(
            groups, pool_bits, roles=roles, node_sets=node_sets, numbers=numbers, rules=rules, preferences=likes
        )  # fmt: skip
        return self._by_ask.get(ask) or self._intern(ask)

    def sized(self, shape: Shape, counts: tuple[int, ...]) -> Shape:
        """Return a rigid shape like `shape` with `counts` pods of each group; groups without pods are left out.

        No job has this shape, so its index is negative: planning does not use up the indices of shapes that jobs have.
        """
        groups = tuple(
            PodGroup(count, group.demand) for count, group in zip(counts, shape.groups, strict=True) if count
        )
        roles = tuple(pools for count, pools in zip(counts, shape.ask.roles, strict=False) if count)
        node_sets = tuple(name for count, name in zip(counts, shape.ask.node_sets, strict=False) if count)
        rules = tuple(own for count, own in zip(counts, shape.ask.rules, strict=False) if count)
        likes = tuple(own for count, own in zip(counts, shape.ask.preferences, strict=False) if count)
        numbers = _numbers(number for number, count in enumerate(counts) if count)
        return self._planned(
            shape.ask._replace(
                groups=groups, roles=roles, node_sets=node_sets, numbers=numbers, rules=rules, preferences=likes
            )
        )

    def anywhere(self, shape: Shape, ruled: bool = True) -> Shape:
        """Return `shape` without requests for topology and affinity; unless `ruled`, also without rules among pods and
        exact amounts. Returns `shape` itself if it has none. A new shape belongs to no job, so its index is negative.
        """
        rules = shape.ask.rules if ruled else ()
        if shape.level < 0 and not shape.cuts and shape.affinity is None and rules == shape.ask.rules:
            return shape
        groups = tuple(PodGroup(group.count, group.demand) for group in shape.groups)
        return self._planned(shape.ask._replace(groups=groups, level=-1, required=False, affinity=None, rules=rules))

    def alone(self, shape: Shape) -> Shape:
        """Return `shape` without rules on pods of other nodes, since pods that meet these rules may still appear."""
        if not shape.wide:
            return shape
        rules = tuple(lasting(own) for own in shape.ask.rules)
        ask = shape.ask._replace(rules=rules if any(own != NO_RULES for own in rules) else ())
        return self._planned(ask)

    def _planned(self, ask: Ask) -> Shape:
        found = self._by_planned_ask.get(ask)
        if found is None:
            found = self._by_planned_ask[ask] = self._make_shape(ask, -1 - len(self._planned_shapes))
            self._planned_shapes.append(found)
        return found

    def at(self, index: int) -> Shape:
        """Return the shape of this index; a negative index is a shape made while planning."""
        return self.shapes[index] if index >= 0 else self._planned_shapes[-1 - index]

    def add_pools(self, keys: Iterable[PoolKey]) -> None:
        """Add pools. The caller must give new shapes to the jobs that a new pool admits."""
        for key in keys:
            self.pool_of[key] = len(self.pool_keys)
            self.pool_keys.append(key)
        self._pools_by_job.clear()
        self._by_request.clear()

    def grow(self, nodes: int) -> None:
        """Make room for `nodes` nodes."""
        self.node_sets.grow(nodes)
        if self._limited:
            self.widen()

    def change_node_set(self, name: str, nodes: Iterable[int], inside: bool) -> list[int]:
        """Add nodes to a node set, or remove them. Returns the nodes that changed for demands limited to it."""
        changed = self.node_sets.change(name, nodes, inside)
        rows = self._limited.get(name, [])
        for row in rows:
            self.demands[row, self.demands.item(row, D_LIMITED) :] = self.node_sets.bits(name)
        return changed if rows else []

    def is_named(self, name: str) -> bool:
        """Return whether jobs have named a node set, so that their shapes depend on it."""
        return name in self._limited

    def forget_pools(self, name: str) -> None:
        """Drop cached shapes that name a node set whose pools have changed."""
        for key in [key for key in self._pools_by_job if key[2] == name]:
            del self._pools_by_job[key]
        for request in [one for one, shape in self._by_request.items() if name in shape.ask.node_sets]:
            del self._by_request[request]

    def _demand(self, demand: Demand, pools: int, node_set: str, rules: PodRules) -> int:
        row = self._demand_rows.get((demand, pools, node_set, rules))
        if row is None:
            row = self.demand_count
            if row == len(self.demands):
                self.demands = np.concatenate([self.demands, np.zeros_like(self.demands)])
            tag = -1 if demand.gpus == 0 else (demand.gpus if demand.milli == 1000 and not demand.mig else 0)
            slices, starts = self._places(demand, pools)
            parts = demand.charged_milli if demand.gpus == 0 else 0
            self.ask_nothing |= not (demand.gpus or demand.cpu or demand.memory)
            self.demands[row, :D_LIMITED] = (
                demand.gpus, demand.milli, demand.cpu, demand.memory, pools, tag, demand.island, slices, starts, parts,
            )  # fmt: skip
            self.demand_count += 1
            if node_set:
                self._limited.setdefault(node_set, []).append(row)
                self.widen()
                self._limit(row, node_set)
            if rules != NO_RULES:
                self.counts = True
                self.rules.add(self, row, rules)
            self._demand_rows[(demand, pools, node_set, rules)] = row
        return row

    def counted(self, shape: Shape, allocation: Allocation) -> Allocation:
        """Return `allocation` of a job of this shape with the COUNTED column set; `allocation` itself if unchanged."""
        if allocation.shape[1] < WIDTH:  # from a driver, which may omit the column
            allocation = np.pad(allocation, ((0, 0), (0, WIDTH - allocation.shape[1])))
        if shape.ask.rules or allocation[:, COUNTED].any():
            group_of = {number: demand for number, (_, demand) in zip(shape.numbers, shape.parts, strict=True)}
            rows = [
                self.demands.item(group_of[group], D_COUNTED) if group in group_of else 0
                for group in allocation[:, GROUP].tolist()
            ]
            if rows != allocation[:, COUNTED].tolist():
                allocation = allocation.copy()
                allocation[:, COUNTED] = rows
        return allocation

    def admitting(self, shape: Shape, pool_of: Table) -> NDArray[np.bool_]:
        """Return a mask of the nodes to which a pod of `shape` may go. `pool_of` has the pool of each node."""
        if not shape.ask.node_sets:
            mask: NDArray[np.bool_] = (shape.pool_bits >> pool_of) & 1 == 1
            return mask
        mask = np.logical_or.reduce([admitting(self.demands[demand], pool_of) for _, demand in shape.parts])
        return mask

    def widen(self) -> None:
        """Make room in each demand row for the entries of its rules, followed by the bits of its node set."""
        begin = DEMAND_WIDTH + self.rules.width
        width = begin + (self.node_sets.words if self._limited else 0)
        if width == self.demands.shape[1]:
            return
        wider: Table = np.zeros((len(self.demands), width), dtype=np.int64)
        wider[:, : DEMAND_WIDTH + self.rules.written] = self.demands[:, : DEMAND_WIDTH + self.rules.written]
        self.demands, self.rules.written = wider, self.rules.width
        for name, rows in self._limited.items():
            for row in rows:
                self._limit(row, name)

    def _limit(self, row: int, node_set: str) -> None:
        """Limit a demand to the nodes of a set."""
        begin = DEMAND_WIDTH + self.rules.width
        self.demands[row, D_LIMITED] = begin
        self.demands[row, begin:] = self.node_sets.bits(node_set)

    def _places(self, demand: Demand, pools: int) -> tuple[int, int]:
        """Return the memory slices of the requested MIG instance, and where it may begin (bits); (0, 0) without MIG."""
        for pool, (_, _, geometry, _) in enumerate(self.pool_keys):
            found = profile_on(geometry, demand.mig) if (pools >> pool) & 1 else None
            if found is not None:
                return found[1].size, found[1].starts
        return 0, 0


def _numbers(groups: Iterable[int]) -> tuple[int, ...]:
    """Return `Ask.numbers`: empty if the groups are the first ones of the job, in its order."""
    numbers = tuple(groups)
    return () if numbers == tuple(range(len(numbers))) else numbers
