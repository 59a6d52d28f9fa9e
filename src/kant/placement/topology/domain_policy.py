"""A policy applied to the domains of a topology: which level it prefers, and how it places pods inside a domain."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from kant.cluster.columns import Table
from kant.cluster.shapes import Shape
from kant.cluster.snapshot import Snapshot
from kant.model.job import LEVELS
from kant.placement.kernels import Kernel, slice_kernel
from kant.placement.policy import NodePolicy
from kant.placement.topology.domain_capacity import DomainCapacity
from kant.placement.topology.gang_kernel import gang_kernel
from kant.placement.topology.index import CLUSTER, LEAF_LEVEL, Topology

if TYPE_CHECKING:
    from kant.placement.preferred import Preferring


class GroupKernel(NamedTuple):
    """The kernel that places a group on given nodes, the kernel for a whole gang, and the parameters of both.

    `by_node` fills a node before the next.
    """

    run: Kernel
    gang: Kernel
    params: Table
    by_node: bool
    fresh: bool


class DomainPolicy:
    """Data shared by all gangs whose pods one policy places by domains. Valid while the typical pods do not change."""

    def __init__(
        self,
        snapshot: Snapshot,
        policy: NodePolicy,
        topology: Topology,
        capacity: DomainCapacity,
        seed: int,
        typical_pods: Table,
        preferring: Callable[[], Preferring] | None = None,
    ) -> None:
        self.snapshot = snapshot
        self.policy = policy
        self.topology = topology
        self.capacity = capacity
        self.seed = seed
        self.typical_pods = typical_pods
        self.preferring = preferring
        self._kernels: dict[tuple[int, int, int], GroupKernel] = {}
        self.params: dict[NodePolicy, Table] = {}

    def narrowest(self, shape: Shape) -> int:
        """Return the level at which the search for a domain begins."""
        if shape.level >= 0:
            return shape.level
        if not self.policy.preferred_level:
            return CLUSTER
        # One pod is always on one node: its leaf is chosen first.
        return LEAF_LEVEL if shape.pods == 1 else LEVELS.index(self.policy.preferred_level)

    def kernel(self, group: int, groups: int, pods: int) -> GroupKernel:
        """Return the kernel that places `pods` pods of group number `group` of `groups`."""
        key = (group, groups, pods)
        if key not in self._kernels:
            policy, by_node = self.policy.policy_for(*key)
            params = self.params.get(policy)
            if params is None:
                params = self.params[policy] = policy.numbers(self.typical_pods, self.snapshot.state.empty)
            self._kernels[key] = GroupKernel(
                slice_kernel(type(policy)), gang_kernel(type(policy)), params, by_node, policy.fresh
            )
        return self._kernels[key]
