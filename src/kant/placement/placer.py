"""The Placer: takes a shape, and returns a placement on the trial, the current cycle's copy of the nodes.

How jobs of a shape are placed is decided once, when the shape first appears: by its policy's scores of all nodes
(`scored.py`), combined with its pods' preferences (`preferred.py`), in a domain of the topology (`topology/`), or
spread (`spreading/`). That route is cached.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import NDArray

from kant.cluster.asks import is_entangled
from kant.cluster.columns import D_ENTRIES, D_SLICES, POOL, STATUS, Table, devices_of
from kant.cluster.shapes import Shape
from kant.cluster.snapshot import NO_TYPICAL_PODS, Snapshot, Trial
from kant.model.decision import NeverFits, NoFit
from kant.model.placement import NODE, Allocation
from kant.model.status import NodeStatus
from kant.model.units import GPU
from kant.placement.capacity import NodeScores, tie_order
from kant.placement.draft import Draft
from kant.placement.pieces import PieceBuffer
from kant.placement.policies.e_spread import ESpread
from kant.placement.policy import NodePolicy
from kant.placement.preference_weights import PreferenceWeights
from kant.placement.scored import Route, ScoredPlacement
from kant.placement.topology.domain_capacity import DomainCapacity
from kant.placement.topology.domain_placement import DomainPlacement
from kant.placement.topology.domain_policy import DomainPolicy
from kant.placement.topology.index import Topology

if TYPE_CHECKING:
    from kant.placement.calendar.calendar import Calendar
    from kant.placement.node_replacement import ReplacedGang
    from kant.placement.preferred import Preferring
    from kant.placement.ruled import RuledPlacement
    from kant.placement.spreading.inference_zone import InferenceZone
    from kant.placement.spreading.spread import SpreadPlacer

Scored = TypeVar("Scored", ScoredPlacement, "RuledPlacement")
Never = tuple[tuple[int, int, int], NeverFits | None, tuple[Table, Table] | None]
"""A cached answer: the versions of fleet, node sets and counters for which it holds; why the shape never fits (None: it
fits); and nodes of the empty cluster on which it fits, with copies of their rows: it fits until these rows change.
"""


def ignores_topology(policy: NodePolicy, shape: Shape, table: Table) -> bool:
    """Return whether the policy ignores the fabric for this job: one pod with fewer GPUs than the largest node."""
    return policy.ignores_topology and shape.pods == 1 and shape.groups[0].demand.gpus < max(devices_of(table), 1)


class Placer:
    """Places gangs on a snapshot. What it places stays taken until the trial is rolled back.

    `policy` places jobs that match no workload of the profile, `strategies` the jobs of each workload; `preferences`
    are the weights of pods' preferences. With `empty` the snapshot is the empty cluster, without running jobs,
    spreading or preferences.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        policy: NodePolicy,
        seed: int,
        strategies: tuple[NodePolicy, ...] = (),
        empty: bool = False,
        preferences: PreferenceWeights | None = None,
    ) -> None:
        self.snapshot = snapshot
        self.policy = policy
        self.policies = (policy, *strategies)
        self.seed = seed
        self.trial = Trial(snapshot)
        self._is_empty = empty
        self._zone = None if empty else next((one for one in self.policies if isinstance(one, ESpread)), None)
        self._pieces = PieceBuffer(snapshot.state.gpus)
        self._reads_typical_pods = any(one.reads_typical_pods for one in self.policies)
        self._typical_pods = NO_TYPICAL_PODS
        self._cycle = -1  # the trial cycle in which the typical pods were read
        self._routes: dict[int, Route] = {}
        self._ruled: dict[int, RuledPlacement] = {}  # for the routes that affinity rules need
        self._by_domain: dict[int, DomainPlacement] = {}
        self._scores: dict[NodePolicy, NodeScores] = {}
        self._orders: dict[str, tuple[int, Table, Topology]] = {}  # by tie order, with the `moves` they hold for
        self._capacities: dict[tuple[str, bool], DomainCapacity] = {}
        self._domains: dict[tuple[NodePolicy, bool], DomainPolicy] = {}
        self._spreadings: dict[str, SpreadPlacer] = {}
        self._weights = preferences or PreferenceWeights()
        self._empty: Placer | None = None
        self._never: dict[int, Never] = {}
        self._known = 0, 0, 0  # the versions reflected in the empty cluster
        self._fleet, self._moves = snapshot.state.fleet_version, snapshot.state.moves

    @cached_property
    def calendar(self) -> Calendar:
        """The calendar of this snapshot's nodes, created on first use."""
        from kant.placement.calendar.calendar import Calendar  # loaded on first use: few disciplines plan ahead

        state = self.snapshot.state
        return Calendar(state.empty, self.snapshot.table, state.shapes)

    @cached_property
    def _preferring(self) -> Preferring:
        """Makes groups of pods that prefer nodes; imported with the first of them."""
        from kant.placement.preferred import Preferring

        return Preferring(self.snapshot, self._weights, self.seed, self.scores_of)

    @property
    def zone(self) -> InferenceZone | None:
        """The inference zone; None if no policy of the profile has one."""
        return self._spread_placer(self._zone).zone if self._zone is not None else None

    def policy_of(self, shape: Shape) -> NodePolicy:
        """Return the policy that places jobs of this shape."""
        return self.policies[shape.ask.workload]

    # --- queries and placement ---------------------------------------------------------------------------------

    def place(self, shape: Shape, job_row: int = 0) -> Allocation | NoFit:
        """Place and take the whole gang, or return the first group that does not fit and how many of its pods do.

        `job_row` is the row of the job.
        """
        if self._cycle != self.trial.cycles:
            self._read_typical_pods()
        return (self._routes.get(shape.index) or self._choose_route(shape)).place(job_row)

    def kept(self, policies: Sequence[NodePolicy]) -> tuple[list[NodeScores], DomainCapacity | None]:
        """Return the cached node scores under these policies, and the domain capacity if the policy uses it."""
        if self._cycle != self.trial.cycles:
            self._read_typical_pods()
        found = [self.scores_of(one) for one in policies]
        return found, self._domain_policy(self.policy, False).capacity if self.policy.preferred_level else None

    def kernel_groups(self, shape: Shape, scores: Sequence[NodeScores]) -> list[tuple[int, ...]] | None:
        """Return how each group of `shape` is placed by one of two policies, as a row of `group_kernel.py`.

        None if other rules decide, such as several domains or a random score.
        """
        if self._cycle != self.trial.cycles:
            self._read_typical_pods()
        route = self._routes.get(shape.index) or self._choose_route(shape)
        if isinstance(route, DomainPlacement):
            gang = route.at_once()
            own = [nodes for nodes in scores if gang is not None and gang.puts == nodes.policy and not nodes.fresh]
            return None if gang is None or not own else [gang.row(scores.index(own[0]))]
        if not isinstance(route, ScoredPlacement) or any(n.fresh or n not in scores for _, _, n, _ in route.groups):
            return None
        return [
            (pods, demand, scores.index(nodes), by_node, nodes.slots([demand])[0], number, 0, 0, 0)
            for (pods, demand, nodes, by_node), number in zip(route.groups, shape.numbers, strict=True)
        ]

    def clear_of_bookings(
        self, shape: Shape, allocation: Allocation, booked: Mapping[int, int], without: Collection[int]
    ) -> Allocation:
        """Return `allocation` moved to equal devices that are not `booked`, if there are any (`clear_of_bookings.py`).

        The trial is in the state before the gang was placed.
        """
        route = self._routes[shape.index]
        if shape.ask.preferences or not isinstance(route, ScoredPlacement | DomainPlacement):
            return allocation
        from kant.placement.clear_of_bookings import clear_of_bookings

        anywhere = isinstance(route, ScoredPlacement)
        return clear_of_bookings(self.trial.table, allocation, booked, anywhere, without)

    def missing(self, shape: Shape, job_row: int = 0) -> int:
        """Return how many pods of a group do not fit now; 0 if `place` finds a place. Takes nothing."""
        if self._cycle != self.trial.cycles:
            self._read_typical_pods()
        missing = (self._routes.get(shape.index) or self._choose_route(shape)).missing()
        if missing is None:
            mark = self.trial.checkpoint()
            result = self.place(shape, job_row)
            self.trial.rollback(mark)
            missing = result.pods - result.fits if isinstance(result, NoFit) else 0
        return missing

    def counted_domains(self, shape: Shape) -> Table | None:
        """Return the domain of each node, if a gang fits exactly when one domain has as many free places as it has
        pods. All nodes are in one domain if it requires no level. None if only placing the gang tells whether it fits.
        """
        demand, state = shape.groups[0].demand, self.snapshot.state
        alone = len(shape.parts) == 1 and not (shape.wide or shape.cuts or shape.affinity or shape.ask.preferences)
        own = state.shapes.demands[shape.parts[0][1]]
        # A policy may choose slices or shares of several GPUs, so that fewer pods fit than are counted.
        if not alone or own[D_ENTRIES] or own[D_SLICES] or (demand.gpus > 1 and demand.milli < GPU):
            return None
        if not shape.required:
            return np.zeros(len(self.trial.table), dtype=np.int64)
        topology = self._domain_policy(self.policy_of(shape), False).topology
        domains: Table = topology.domain_of[topology.position, shape.level] - topology.offsets[shape.level]
        return domains

    def nodes_of(self, shape: Shape) -> NDArray[np.bool_]:
        """Return a mask of the nodes in service that a pod of a shape may use."""
        table = self.trial.table
        own = self.snapshot.state.shapes.admitting(shape, table[:, POOL])
        own &= table[:, STATUS] == NodeStatus.IN_SERVICE
        return own

    def fits_without(self, shape: Shape, rows: Table) -> bool | None:
        """Return whether a gang fits once these running jobs have left; None if it must be placed to find out.

        Takes nothing.
        """
        domains, state = self.counted_domains(shape), self.snapshot.state
        if domains is None:
            return None
        from kant.placement.counted_search import fits_without

        return bool(
            fits_without(
                self.trial.table, rows, state.jobs, state.pieces, state.shapes.demands,
                np.array(shape.parts, dtype=np.int64), self.nodes_of(shape), domains,
            )
        )  # fmt: skip

    def may_fit(self, shape: Shape) -> bool:
        """Return False if `place` certainly finds no place for the shape now; True proves nothing.

        It checks each group alone: whether there are as many free places as it has pods, in one domain if the shape
        requires one. Its cost is linear in the changed nodes. Takes nothing.
        """
        if self._cycle != self.trial.cycles:
            self._read_typical_pods()
        return (self._routes.get(shape.index) or self._choose_route(shape)).may_fit()

    def extend(self, shape: Shape, held: Allocation, job_row: int = 0) -> Allocation | NoFit:
        """Place additional pods of a gang that keeps `held`, near the pods that it has and as its level requires.

        `shape` is the shape of the additional pods.
        """
        if shape.level < 0 and not self.policy_of(shape).preferred_level:
            return self.place(shape, job_row)
        if shape.ask.rules and shape.index not in self._routes:
            self._choose_route(shape)
        ruled = self._ruled.get(shape.index)
        if ruled is not None:
            return ruled.place(job_row, held)
        if self._cycle != self.trial.cycles:
            self._read_typical_pods()
        return self._domain_placement(shape).place(job_row, held)

    def draft(self) -> Draft:
        """Return a copy of the nodes in the state of the trial."""
        return Draft(self.trial.table, self.snapshot.state.shapes.demands)

    def replace_nodes(
        self, shape: Shape, held: Allocation, bad: tuple[int, ...], job_row: int, bound: bool
    ) -> ReplacedGang | None:
        """Take the remaining part of `held` on the trial, and replacements near it (`node_replacement.py`)."""
        from kant.placement.node_replacement import replace_nodes  # loaded with the first lost or drained node

        if self._cycle != self.trial.cycles:
            self._read_typical_pods()
        domains = self._domain_policy(self.policy_of(shape), False)
        return replace_nodes(domains, shape, held, bad, job_row, self.trial, bound)

    def never_fits(self, shape: Shape) -> NeverFits | None:
        """Return why `shape` could not start even on the empty cluster with all nodes in service; None: it could."""
        state = self.snapshot.state
        versions = state.fleet_version, state.shapes.node_sets.version, state.counter_tables.version
        known = self._never.get(shape.index)
        if known is not None and known[0] == versions:
            return known[1]
        if known is not None and known[2] is not None and np.array_equal(state.with_left[known[2][0]], known[2][1]):
            self._never[shape.index] = versions, None, known[2]
            return None
        if self._empty is None:
            snapshot = self.snapshot.of_empty_cluster()
            self._empty = Placer(snapshot, self.policy, self.seed, self.policies[1:], empty=True)
            self._empty._orders = self._orders  # the fabric is the same
        elif versions != self._known:
            self._empty.snapshot.refresh(state.now)
        self._known = versions
        self._empty.trial.begin()
        found = self._empty.place(self.snapshot.state.shapes.alone(shape) if shape.wide else shape)
        self._empty.trial.rollback(0)
        never, place = None, None
        if isinstance(found, NoFit):
            never = NeverFits(*(getattr(found, field) for field in found.__struct_fields__))
        elif not (shape.order_dependent or shape.cuts):  # such shapes may miss a place that exists
            place = found[:, NODE], state.with_left[found[:, NODE]]
        self._never[shape.index] = versions, never, place
        return never

    # --- what is chosen once for each shape ---------------------------------------------------------------------

    def _choose_route(self, shape: Shape) -> Route:
        self._pieces.reserve(shape)
        policy = self.policy_of(shape)
        entangled = bool(shape.ask.rules) and not (shape.cuts or shape.has_affinity) and is_entangled(shape.ask.rules)
        if shape.wide or entangled:
            from kant.placement.ruled import RuledPlacement  # loaded with the first shape that needs it

            found = self._routes[shape.index] = self._ruled[shape.index] = self._scored(shape, RuledPlacement)
            if shape.ask.preferences:
                found.greedy = self._preferred(shape, found.greedy)
            return found
        free = shape.level < 0 and not shape.cuts and not shape.has_affinity  # may be placed anywhere
        prefers = policy.preferred_level and not (
            self._zone is None and ignores_topology(policy, shape, self.snapshot.table)
        )
        route: Route = self._scored(shape, ScoredPlacement) if free and not prefers else self._domain_placement(shape)
        if free and policy.spreads and not self._is_empty:
            zone = self.zone
            packed = isinstance(policy, ESpread)
            if not packed or (zone is not None and zone.admits(shape)):
                from kant.placement.spreading.spread import SpreadPlacement  # with the first shape that is spread

                route = SpreadPlacement(self._spread_placer(policy), shape, packed, self._pieces, route)
        if free and shape.ask.preferences:
            route = self._preferred(shape, route)
        self._routes[shape.index] = route
        return route

    def _scored(self, shape: Shape, route: type[Scored]) -> Scored:
        policy, groups = self.policy_of(shape), len(shape.parts)
        chosen = [policy.policy_for(group, groups, pods) for group, (pods, _) in enumerate(shape.parts)]
        known = self._scores
        found = [(known[own] if own in known else self.scores_of(own), by_node) for own, by_node in chosen]
        return route(self.snapshot, self.trial, shape, found, self.seed, self._pieces)

    def _preferred(self, shape: Shape, otherwise: Route) -> Route:
        """Return the route for a shape with preferences; `otherwise` if there is an inference zone."""
        from kant.placement.preferred import PreferredPlacement

        groups = self._preferring.groups(shape, self.policy_of(shape))
        if groups is None or self._is_empty or self._zone is not None:
            return otherwise
        return PreferredPlacement(self.snapshot, self.trial, shape, groups, self.seed, self._pieces, otherwise)

    def scores_of(self, policy: NodePolicy) -> NodeScores:
        """Return the node scores under a policy; a demand is scored when its scores are first needed."""
        if policy not in self._scores:
            order = self._order(policy)[0]
            self._scores[policy] = NodeScores(policy, order, self._typical_pods, self.snapshot.state.empty)
        return self._scores[policy]

    def _domain_placement(self, shape: Shape) -> DomainPlacement:
        """Return the route by domains for this shape: outside the inference zone if it fits, otherwise anywhere."""
        found = self._by_domain.get(shape.index)
        if found is None:
            self._pieces.reserve(shape)
            policy, outside = self.policy_of(shape), None
            zone = self.zone
            if zone is not None:
                outside = self._domain_policy(policy, True), zone
            found = self._by_domain[shape.index] = DomainPlacement(
                self._domain_policy(policy, False), outside, shape, self.trial, self._pieces, self._is_empty
            )
        return found

    def _read_typical_pods(self) -> None:
        """Read the typical pods, once a cycle, if a policy uses them. If they change, every score may change."""
        self._cycle = self.trial.cycles
        typical_pods = self.snapshot.typical_pods if self._reads_typical_pods else NO_TYPICAL_PODS
        if self._fleet != self.snapshot.state.fleet_version:
            self._read_fleet()
        if typical_pods is not self._typical_pods:
            self._typical_pods = typical_pods
            self._forget_scores()

    def _read_fleet(self) -> None:
        """Update everything that depends on all nodes, after nodes have joined, left or changed."""
        state = self.snapshot.state
        self._fleet = state.fleet_version
        self._pieces.has_gpus(state.gpus)
        if self._moves != state.moves:
            self._moves = state.moves
            self._spreadings.clear()
            self._forget_domains()
        if self._zone is not None:
            self._spreadings.clear()
        known = {policy: scores.params for policy, scores in self._scores.items()}
        for domains in self._domains.values():
            known |= domains.params
        numbers = ((policy.numbers(self._typical_pods, state.empty), params) for policy, params in known.items())
        if self._zone is not None or any(not np.array_equal(now, params) for now, params in numbers):
            self._forget_scores()

    def _forget_scores(self) -> None:
        self._scores.clear()
        self._forget_domains()

    def _forget_domains(self) -> None:
        self._domains.clear()
        self._by_domain.clear()
        self._routes.clear()

    # --- what shapes share --------------------------------------------------------------------------------------

    def _order(self, policy: NodePolicy) -> tuple[Table, Topology]:
        """Return the nodes in the policy's tie order, and the topology that this order gives."""
        moves, order, topology = self._orders.get(policy.ties, (-1, None, None))
        if order is None or topology is None or moves != self._moves:
            order = tie_order(policy, len(self.snapshot.table), self.seed) if order is None else order
            topology = Topology(self.snapshot.table, order)
            self._orders[policy.ties] = self._moves, order, topology
        return order, topology

    def _domain_policy(self, policy: NodePolicy, outside: bool) -> DomainPolicy:
        """Return the domain policy for a policy; with `outside` for the nodes outside the inference zone."""
        if (policy, outside) not in self._domains:
            topology = self._order(policy)[1]
            capacity = self._capacities.get((policy.ties, outside))
            if capacity is None:
                capacity = self._capacities[policy.ties, outside] = DomainCapacity(topology)
            elif capacity.fabric is not topology.fabric:
                capacity.move(topology)
            preferring = None if self._is_empty else lambda: self._preferring
            self._domains[policy, outside] = DomainPolicy(
                self.snapshot, policy, topology, capacity, self.seed, self._typical_pods, preferring
            )
        return self._domains[policy, outside]

    def _spread_placer(self, policy: NodePolicy) -> SpreadPlacer:
        if policy.ties not in self._spreadings:
            from kant.placement.spreading.spread import SpreadPlacer

            order, topology = self._order(policy)
            self._spreadings[policy.ties] = SpreadPlacer(
                self.snapshot, self.trial, order, topology, self._zone, self.policy_of
            )
        return self._spreadings[policy.ties]
