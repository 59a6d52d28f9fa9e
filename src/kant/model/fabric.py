"""A Fabric has the speed of links between GPUs inside a node, an HBD, a leaf, a spine, a superspine, and beyond."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

Bandwidth = Annotated[float, Meta(ge=0.001, le=1e6)]
Latency = Annotated[float, Meta(ge=0, le=1e6)]
Contention = Annotated[float, Meta(ge=1, le=1e6)]


class Link(Struct, frozen=True):
    """The link between the parts of one level, as one GPU sees it.

    `bandwidth` is GB/s (10^9 bytes) in one direction and `latency` microseconds for one step of a collective.
    `contention` is the factor by which a transfer takes longer if all traffic of a job leaves its domain.
    """

    bandwidth: Bandwidth
    latency: Latency
    contention: Contention = 1.0


class Fabric(Struct, frozen=True):
    """One link for each level, the one inside a domain of that name; `beyond` joins superspines.

    The defaults are a cluster of 8-GPU H100 nodes with one 400 Gb/s port for each GPU. Bandwidth: NVLink has 900 GB/s
    in both directions together (NVIDIA H100 data sheet), so 450 in each; a port of 400 Gb/s has 50. An HBD of several
    nodes is a GB200 NVL72: 1,800 GB/s in both directions for each GPU, one hop over its switches (NVIDIA GB200 NVL72
    data sheet); no level is faster than those inside it, so a fabric that sets it must set the node's link too.
    Latency: NCCL's own tuning table for a step of a large ring, 3.4 us over NVLink and 9.6 over the network (NCCL,
    src/graph/tuning.cc); a microsecond for the two more switches of each level (ours). Contention: none inside a leaf,
    where the ports of a rail meet in one switch. 2 inside a spine: Ethernet hashes few large flows onto the same link,
    and two that collide get half of it each (ours; Gangidi et al., SIGCOMM 2024, built twice the uplinks for that
    reason). 7 above it, as Llama 3's cluster of 24,000 GPUs is oversubscribed above its pods (arXiv 2407.21783, section
    3.3.1). 15 beyond, as Alibaba's HPN is above its pods (Qian et al., SIGCOMM 2024).
    """

    node: Link = Link(450.0, 3.4)
    hbd: Link = Link(900.0, 3.4)
    leaf: Link = Link(50.0, 9.6)
    spine: Link = Link(50.0, 10.6, 2.0)
    superspine: Link = Link(50.0, 11.6, 7.0)
    beyond: Link = Link(50.0, 12.6, 15.0)

    @property
    def links(self) -> tuple[Link, Link, Link, Link, Link, Link]:
        """The links from the node outwards."""
        return self.node, self.hbd, self.leaf, self.spine, self.superspine, self.beyond
