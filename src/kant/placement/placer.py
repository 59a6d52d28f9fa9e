"""The Placer: one shape in, one placement out, on the trial of the current cycle.

How jobs of a shape are placed is decided once, when the shape comes first: by the scores of its policy on all nodes
(`scored.py`), beside what its pods prefer (`preferred.py`), in a domain of the topology (`topology/`), or spread
(`spreading/`). That route is kept.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Protocol, TypeVar

from kant.cluster.columns import Table, devices_of
from kant.cluster.shapes import Shape
from kant.cluster.snapshot import NO_TYPICAL_PODS, Snapshot, Trial
from kant.model.decision import NeverFits, NoFit
from kant.model.placement import Allocation
from kant.placement.calendar.calendar import Calendar
from kant.placement.capacity import NodeScores, tie_order
from kant.placement.draft import Draft
from kant.placement.node_replacement import ReplacedGang, replace_nodes
from kant.placement.pieces import PieceBuffer
from kant.placement.policies.e_spread import ESpread
from kant.placement.policy import NodePolicy
from kant.placement.preference_scores import PreferenceWeights
from kant.placement.preferred import PreferredPlacement, Preferring
from kant.placement.ruled import RuledPlacement, is_entangled
from kant.placement.scored import ScoredPlacement
from kant.placement.topology.domain_capacity import DomainCapacity
from kant.placement.topology.domain_placement import DomainPlacement
from kant.placement.topology.domain_policy import DomainPolicy
from kant.placement.topology.index import Topology

if TYPE_CHECKING:
    from kant.placement.spreading.inference_zone import InferenceZone
    from kant.placement.spreading.spread import SpreadPlacer

Scored = TypeVar("Scored", ScoredPlacement, RuledPlacement)


class Route(Protocol):
    """How jobs of one shape are placed."""

    def place(self, job_row: int) -> Allocation | NoFit:
        """The whole gang placed and taken, or why not."""
        ...

    def may_fit(self) -> bool:
        """False where `place` is known to fail."""
        ...

    def missing(self) -> int | None:
        """How many pods do not fit, where counting tells without placing; None where it does not."""
        ...


def ignores_topology(policy: NodePolicy, shape: Shape, table: Table) -> bool:
    """Whether the job fills a hole, wherever that is: one pod without GPUs, or with fewer than a node has."""
    return policy.ignores_topology and shape.pods == 1 and shape.groups[0].demand.gpus < max(devices_of(table), 1)


class Placer:
    """Places gangs on a snapshot. What it places stays taken until the trial is rolled back.

    `policy` places whatever no workload of the profile matches, `strategies` the jobs of each workload; `preferences`
    says what counts of what pods prefer. With `empty` the snapshot is that of the empty cluster, on which nobody runs
    and nothing is spread or preferred.
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
        self._cycle = -1  # of the trial, when the typical pods were read
        self._routes: dict[int, Route] = {}
        self._by_domain: dict[int, DomainPlacement] = {}
        self._scores: dict[NodePolicy, NodeScores] = {}
        self._orders: dict[str, tuple[Table, Topology]] = {}
        self._capacities: dict[tuple[str, bool], DomainCapacity] = {}
        self._domains: dict[tuple[NodePolicy, bool], DomainPolicy] = {}
        self._spreadings: dict[str, SpreadPlacer] = {}
        self._preferring = Preferring(snapshot, preferences or PreferenceWeights(), seed, self.scores_of)
        self._empty: Placer | None = None
        self._never: dict[int, NeverFits | None] = {}
        self._known = (
            0,
            0,
            0,
        )  # the versions of the fleet, of node sets and of what counts there, for which this is known
        self._fleet, self._moves = snapshot.state.fleet_version, snapshot.state.moves

    @cached_property
    def calendar(self) -> Calendar:
        """Commitments in time on the nodes of this snapshot; made when somebody first plans ahead."""
        state = self.snapshot.state
        return Calendar(state.empty, self.snapshot.table, state.shapes)

    @property
    def zone(self) -> InferenceZone | None:
        """The inference zone; None where no policy of the profile has one."""
        return self._spread_placer(self._zone).zone if self._zone is not None else None

    def policy_of(self, shape: Shape) -> NodePolicy:
        """Who places jobs of this shape."""
        return self.policies[shape.ask.workload]

    # --- what is asked -----------------------------------------------------------------------------------------

    def place(self, shape: Shape, job_row: int = 0) -> Allocation | NoFit:
        """The whole gang placed and taken, or the first group that does not fit and how much of it would.

        `job_row` is the row of the job.
        """
        if self._cycle != self.trial.cycles:
            self._read_typical_pods()
        return (self._routes.get(shape.index) or self._choose_route(shape)).place(job_row)

    def kept(self, policies: Sequence[NodePolicy]) -> tuple[list[NodeScores], DomainCapacity | None]:
        """What is kept of the nodes under these policies, and of the domains where the profile's policy prefers one."""
        if self._cycle != self.trial.cycles:
            self._read_typical_pods()
        found = [self.scores_of(one) for one in policies]
        return found, self._domain_policy(self.policy, False).capacity if self.policy.preferred_level else None

    def kernel_groups(self, shape: Shape, scores: Sequence[NodeScores]) -> list[tuple[int, ...]] | None:
        """How each group of `shape` is placed by one of two policies, as a row of `group_kernel.py`.

        None where more than the scores of single nodes decides or one domain, or a score that is drawn.
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
        """An equal place for a gang that is not `booked`, as far as there is one (`clear_of_bookings.py`).

        The trial is as before the gang was placed.
        """
        route = self._routes[shape.index]
        if shape.ask.preferences or not isinstance(route, ScoredPlacement | DomainPlacement):
            return allocation
        from kant.placement.clear_of_bookings import clear_of_bookings

        anywhere = isinstance(route, ScoredPlacement)
        return clear_of_bookings(self.trial.table, allocation, booked, anywhere, without)

    def missing(self, shape: Shape, job_row: int = 0) -> int:
        """How many pods of a group do not fit now; 0 where `place` finds a place. Nothing is taken."""
        if self._cycle != self.trial.cycles:
            self._read_typical_pods()
        missing = (self._routes.get(shape.index) or self._choose_route(shape)).missing()
        if missing is None:
            mark = self.trial.checkpoint()
            result = self.place(shape, job_row)
            self.trial.rollback(mark)
            missing = result.pods - result.fits if isinstance(result, NoFit) else 0
        return missing

    def may_fit(self, shape: Shape) -> bool:
        """False where `place` would find no place for the shape now. It may be True for a shape that finds none.

        It asks for what each group needs alone: as many free places as it has pods, in one domain where the shape
        requires one. The cost is that of the nodes that have changed. Nothing is taken.
        """
        if self._cycle != self.trial.cycles:
            self._read_typical_pods()
        return (self._routes.get(shape.index) or self._choose_route(shape)).may_fit()

    def extend(self, shape: Shape, held: Allocation, job_row: int = 0) -> Allocation | NoFit:
        """Place the further pods of a gang that holds `held` and stays: near them, as its level asks.

        `shape` is that of the further pods.
        """
        if shape.level < 0 and not self.policy_of(shape).preferred_level:
            return self.place(shape, job_row)
        route = (self._routes.get(shape.index) or self._choose_route(shape)) if shape.ask.rules else None
        if isinstance(route, RuledPlacement):
            return route.place(job_row, held)
        if self._cycle != self.trial.cycles:
            self._read_typical_pods()
        return self._domain_placement(shape).place(job_row, held)

    def draft(self) -> Draft:
        """A copy of the nodes as the trial leaves them."""
        return Draft(self.trial.table, self.snapshot.state.shapes.demands)

    def replace_nodes(
        self, shape: Shape, held: Allocation, bad: tuple[int, ...], job_row: int, bound: bool
    ) -> ReplacedGang | None:
        """What is left of `held` and near it what is missing, taken on the trial (`node_replacement.py`)."""
        if self._cycle != self.trial.cycles:
            self._read_typical_pods()
        domains = self._domain_policy(self.policy_of(shape), False)
        return replace_nodes(domains, shape, held, bad, job_row, self.trial, bound)

    def never_fits(self, shape: Shape) -> NeverFits | None:
        """Why `shape` could not start even on the empty cluster with every node in service; None where it could."""
        state = self.snapshot.state
        versions = state.fleet_version, state.shapes.node_sets.version, state.counter_tables.version
        if versions != self._known:
            self._known = versions
            self._never.clear()
            if self._empty is not None:
                self._empty.snapshot.refresh(state.now)
        if shape.index not in self._never:
            if self._empty is None:
                snapshot = self.snapshot.of_empty_cluster()
                self._empty = Placer(snapshot, self.policy, self.seed, self.policies[1:], empty=True)
            self._empty.trial.begin()
            found = self._empty.place(self.snapshot.state.shapes.alone(shape) if shape.wide else shape)
            self._empty.trial.rollback(0)
            self._never[shape.index] = (
                NeverFits(*(getattr(found, field) for field in found.__struct_fields__))
                if isinstance(found, NoFit)
                else None
            )
        return self._never[shape.index]

    # --- what is chosen once for each shape ---------------------------------------------------------------------

    def _choose_route(self, shape: Shape) -> Route:
        self._pieces.reserve(shape)
        policy = self.policy_of(shape)
        entangled = bool(shape.ask.rules) and not (shape.cuts or shape.has_affinity) and is_entangled(shape.ask.rules)
        if shape.wide or entangled:
            self._routes[shape.index] = found = self._scored(shape, RuledPlacement)
            if shape.ask.preferences:
                found.greedy = self._preferred(shape, found.greedy)
            return found
        free = shape.level < 0 and not shape.cuts and not shape.has_affinity  # to lie anywhere
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
        """Who places jobs of a shape that prefers something; where there is an inference zone, who would otherwise."""
        groups = self._preferring.groups(shape, self.policy_of(shape))
        if groups is None or self._is_empty or self._zone is not None:
            return otherwise
        return PreferredPlacement(self.snapshot, self.trial, shape, groups, self.seed, self._pieces, otherwise)

    def scores_of(self, policy: NodePolicy) -> NodeScores:
        """What each node is worth under a policy, to the demands that have been asked for."""
        if policy not in self._scores:
            order = self._order(policy)[0]
            self._scores[policy] = NodeScores(policy, order, self._typical_pods, self.snapshot.state.empty)
        return self._scores[policy]

    def _domain_placement(self, shape: Shape) -> DomainPlacement:
        """Who places jobs of this shape by domains: outside the inference zone, if they fit there, else anywhere."""
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
        """Once a cycle, if some policy asks. With other typical pods every score may be another one."""
        self._cycle = self.trial.cycles
        typical_pods = self.snapshot.typical_pods if self._reads_typical_pods else NO_TYPICAL_PODS
        if self._fleet != self.snapshot.state.fleet_version:
            self._read_fleet()
        if typical_pods is not self._typical_pods:
            self._typical_pods = typical_pods
            self._forget_scores()

    def _read_fleet(self) -> None:
        """Nodes have joined, left or changed: what depends on all of them together may be otherwise."""
        state = self.snapshot.state
        self._fleet = state.fleet_version
        self._pieces.has_gpus(state.gpus)
        if self._moves != state.moves:
            self._moves = state.moves
            self._orders.clear()
            self._capacities.clear()
            self._spreadings.clear()
            self._forget_domains()
        if self._zone is not None:
            self._spreadings.clear()
        outdated = any(one.is_outdated(state.empty) for one in self._scores.values())
        if self._zone is not None or outdated or any(one.is_outdated(state.empty) for one in self._domains.values()):
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
        """The nodes in the order in which the policy takes equals, and the topology in that order."""
        if policy.ties not in self._orders:
            order = tie_order(policy, len(self.snapshot.table), self.seed)
            self._orders[policy.ties] = order, Topology(self.snapshot.table, order)
        return self._orders[policy.ties]

    def _domain_policy(self, policy: NodePolicy, outside: bool) -> DomainPolicy:
        """Who places by domains under a policy; with `outside` on the nodes outside the inference zone."""
        if (policy, outside) not in self._domains:
            topology = self._order(policy)[1]
            if (policy.ties, outside) not in self._capacities:
                self._capacities[policy.ties, outside] = DomainCapacity(topology)
            capacity = self._capacities[policy.ties, outside]
            preferring = None if self._is_empty else self._preferring
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
