"""A Node is a machine with GPUs; a ClusterSpec is the machines there are and how the fabric joins them."""

from __future__ import annotations

from itertools import pairwise

from msgspec import Struct

from kant.model.fabric import Fabric
from kant.model.units import FOREVER

MAX_GPUS = 62
"""GPUs per node: a placement names its devices by the bits of one signed 64-bit integer."""

MAX_POOLS = 62
"""Pools (a GPU model, the queues that its nodes are dedicated to, a MIG geometry, a flavor) of one cluster, for that
reason."""


PoolKey = tuple[str, tuple[str, ...], str, str]
"""A GPU model, the queues that its nodes are dedicated to, a MIG geometry and a flavor."""


class Node(Struct, frozen=True, omit_defaults=True):
    """One machine. `cpu` (thousandths of a core) and `memory` (MiB) are FOREVER where they are not limited.

    `queues` names the queues that it is dedicated to (empty: every queue). `leaf`, `spine` and `superspine`
    name the fabric domains above it (empty: one domain for all). `hbd` names its high-bandwidth domain, inside its
    leaf: the nodes that NVLink or the like joins, such as a rack of GB200 NVL72 (empty: the node alone).

    `nvlink`, `numa` and `nic` say which of its GPUs are close: how many are joined by NVLink (an island), belong to one
    NUMA node, and share a PCIe switch with its NICs. Devices of neighbouring indices share a block, and each size
    divides the next larger and the number of GPUs; 0: all of them are one block. A node in MIG mode names the geometry
    of its GPUs (`model.mig`): it takes pods that ask for MIG slices, and no others. `flavor` is what else tells nodes
    of one model apart for those who choose among them, such as labels and taints; the word is Kueue's ResourceFlavor.
    `amounts` are named integers of which pods take some (`model.rules`), in the order of their names.
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
        """What tells the pools of a cluster apart."""
        return (self.model, self.queues, self.mig, self.flavor)

    @property
    def blocks(self) -> tuple[int, ...]:
        """GPUs in a block of each of the three kinds, from the narrowest to the widest."""
        return tuple(sorted(size or self.gpus for size in (self.nvlink, self.numa, self.nic)))

    @property
    def island(self) -> int:
        """GPUs that NVLink joins."""
        return self.nvlink or self.gpus

    @property
    def is_regular(self) -> bool:
        """Whether the sizes of its blocks are such as described above."""
        sizes = (*self.blocks, self.gpus)
        return self.gpus == 0 == sum(sizes) or all(size > 0 and wider % size == 0 for size, wider in pairwise(sizes))


class ClusterSpec(Struct, frozen=True, omit_defaults=True):
    """The machines of one cluster, in index order (the order of first fit and of the last tie-break).

    `fabric` is how fast what joins them is.
    """

    name: str
    nodes: tuple[Node, ...]
    fabric: Fabric = Fabric()

    @property
    def gpus(self) -> int:
        return sum(node.gpus for node in self.nodes)
