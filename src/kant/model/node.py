"""A Node is a machine with GPUs; a ClusterSpec is the machines there are and how the fabric joins them."""

from __future__ import annotations

from msgspec import Struct

from kant.model.fabric import Fabric
from kant.model.units import FOREVER

MAX_GPUS = 62
"""GPUs per node: a placement names its devices by the bits of one signed 64-bit integer."""

MAX_POOLS = 62
"""Pools (a GPU model and the queues that its nodes are dedicated to) of one cluster, for the same reason."""


class Node(Struct, frozen=True, omit_defaults=True):
    """One machine. `cpu` (thousandths of a core) and `memory` (MiB) are FOREVER where they are not limited.

    `queues` names the queues that it is dedicated to (empty: every queue). `leaf`, `spine` and `superspine`
    name the fabric domains above it (empty: one domain for all). `hbd` names its high-bandwidth domain, inside its
    leaf: the nodes that NVLink or the like joins, such as a rack of GB200 NVL72 (empty: the node alone).
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
