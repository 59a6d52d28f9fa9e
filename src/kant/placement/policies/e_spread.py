"""E-Spread: small replicas spread inside an inference zone, all other jobs binpacked outside it."""

from __future__ import annotations

from typing import Annotated, ClassVar

from msgspec import Meta

from kant.model.taxonomy import Tags, tagged
from kant.placement.policies.e_binpack import EBinpack
from kant.placement.policy import NodePolicy

Percent = Annotated[int, Meta(ge=1, le=100)]


class ESpread(EBinpack, frozen=True, tag="e-spread"):
    """Pods below a whole node spread in an inference zone of a few leaves that follows their demand; others e-binpack.

    The zone has no less than `least` leaves. It grows when the running and waiting replicas need more than `grow_at`
    percent of its capacity for them, and shrinks when they need less than `shrink_at`. Its leaves have at most `most`
    percent of a pool's GPUs. In the zone a replica goes to the node with the fewest pods of its service; among equals,
    to the leaf with the fewest, then to the fullest. Other pods enter the zone only if they fit nowhere else.
    """

    least: Annotated[int, Meta(ge=1, le=1 << 20)] = 2
    grow_at: Percent = 90
    shrink_at: Percent = 60
    most: Percent = 50

    source: ClassVar[str] = "E-Spread of Kant, arXiv 2510.01256; the rule by which the zone grows and shrinks is ours"
    tags: ClassVar[Tags] = tagged(NodePolicy.tags, objective="availability fragmentation", resources="1-d topology")
    spreads: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.shrink_at >= self.grow_at:
            raise ValueError("`shrink_at` must be less than `grow_at`")
