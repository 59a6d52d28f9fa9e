"""A Node is a machine with GPUs; a ClusterSpec is the machines of a cluster and the fabric that joins them."""

from __future__ import annotations

from itertools import pairwise

from msgspec import Struct

from kant.model.fabric import Fabric
from kant.model.units import FOREVER

MAX_GPUS = 62
"""GPUs per node: a placement names its devices by the bits of one signed 64-bit integer."""

MAX_POOLS = 62
"""Pools (GPU model, dedicated queues, MIG geometry, flavor) of a cluster, for the same reason as MAX_GPUS."""


PoolKey = tuple[str, tuple[str, ...], str, str]
"""A GPU model, the queues that its nodes are dedicated to, a MIG geometry and a flavor."""


class Node(Struct, frozen=True, omit_defaults=True):
    """One machine. `cpu` (thousandths of a core) and `memory` (MiB) are FOREVER if they are not limited.

    `queues` names the queues that it is dedicated to (empty: every queue). `leaf`, `spine` and `superspine`
    name the fabric domains above it (empty: one domain for all). `hbd` names its high-bandwidth domain, inside its
    leaf: the nodes that NVLink or the like joins, such as a rack of GB200 NVL72 (empty: the node alone).

    `nvlink`, `numa` and `nic` are the sizes of blocks of close GPUs: how many are joined by NVLink (an island), belong
    to one NUMA node, and share a PCIe switch with its NICs. Devices of consecutive indices share a block, and each size
    divides the next larger one and the number of GPUs; 0: all GPUs are one block. A node in MIG mode names the geometry
    of its GPUs (`model.mig`): it takes only pods that ask for MIG slices. `flavor` is any other distinction of nodes of
    one model, such as labels and taints; the word is from Kueue's ResourceFlavor. `amounts` are named integer
    capacities that pods use (`model.rules`), sorted by name.
    """

    name: str
    gpus: int
    model: str = ""
    cpu: int = FOREVER
    memory: int = FOREVER
    queues: tuple[str, ...] = ()
    leaf: str = ""
    spine: str = ""
    superspine: str = ""
    hbd: str = ""
    nvlink: int = 0
    numa: int = 0
    nic: int = 0
    mig: str = ""
    flavor: str = ""
    amounts: tuple[tuple[str, int], ...] = ()

    @property
    def pool(self) -> PoolKey:
        """The key of the node's pool."""
        return (self.model, self.queues, self.mig, self.flavor)

    @property
    def blocks(self) -> tuple[int, ...]:
        """The GPUs in a block of each of the three kinds, from the narrowest to the widest."""
        return tuple(sorted(size or self.gpus for size in (self.nvlink, self.numa, self.nic)))

    @property
    def island(self) -> int:
        """The GPUs that NVLink joins."""
        return self.nvlink or self.gpus

    @property
    def is_regular(self) -> bool:
        """Whether each block size divides the next larger one, and the largest divides the number of GPUs."""
        sizes = (*self.blocks, self.gpus)
        return self.gpus == 0 == sum(sizes) or all(size > 0 and wider % size == 0 for size, wider in pairwise(sizes))


class ClusterSpec(Struct, frozen=True, omit_defaults=True):
    """The machines of one cluster, in index order (the order of first fit and of the last tie-break).

    `fabric` has the speed of the links between them. `grows`: nodes are expected to join, so the node table has spare
    rows from the start. Such a table is rebuilt only when these rows are used up.
    """

    name: str
    nodes: tuple[Node, ...]
    fabric: Fabric = Fabric()
    grows: bool = False

    @property
    def gpus(self) -> int:
        return sum(node.gpus for node in self.nodes)
