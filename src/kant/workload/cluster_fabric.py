"""The `[fabric]` table of a TOML cluster file: how fast the levels of the fabric are (docs/clusters.md)."""

from __future__ import annotations

from msgspec import Struct

from kant.model.fabric import Bandwidth, Contention, Fabric, Latency, Link


class LevelWire(Struct, frozen=True, forbid_unknown_fields=True):
    """One level of the fabric; omitted fields have the values of the default fabric."""

    bandwidth_gb_s: Bandwidth | None = None
    latency_us: Latency | None = None
    contention: Contention | None = None


class Wires(Struct, frozen=True, forbid_unknown_fields=True):
    """The whole `[fabric]` table."""

    node: LevelWire = LevelWire()
    hbd: LevelWire = LevelWire()
    leaf: LevelWire = LevelWire()
    spine: LevelWire = LevelWire()
    superspine: LevelWire = LevelWire()
    beyond: LevelWire = LevelWire()


EXPECTED = {
    "fabric": "a table of node, hbd, leaf, spine, superspine and beyond",
    **dict.fromkeys(Wires.__struct_fields__, "a table of bandwidth_gb_s, latency_us and contention"),
    "bandwidth_gb_s": "GB/s of one GPU, 0.001 to 10^6",
    "latency_us": "microseconds, 0 to 10^6",
    "contention": "a factor from 1 to 10^6",
}


def fabric_of(wires: Wires) -> Fabric:
    """Return the fabric that the table describes. Omitted values get their defaults."""
    default = Fabric()
    links = {name: _link(getattr(wires, name), getattr(default, name)) for name in wires.__struct_fields__}
    return Fabric(**links)


def _link(wire: LevelWire, default: Link) -> Link:
    given = (wire.bandwidth_gb_s, wire.latency_us, wire.contention)
    known = (default.bandwidth, default.latency, default.contention)
    return Link(*(float(old if new is None else new) for new, old in zip(given, known, strict=True)))
