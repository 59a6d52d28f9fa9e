"""Multi-Instance GPU: into which slices the GPUs of a node may be partitioned, by profile.

A GPU in MIG mode has a row of 8 memory slices (an A30: 4). An instance takes consecutive ones, and may begin only at
certain slices. A 1g instance can begin at only seven slices, since there are seven compute slices for eight of memory.
By the table, no combination of instances needs more than seven compute slices.

Sources: NVIDIA, Multi-Instance GPU User Guide, "Supported MIG Profiles" (the profiles and their parts of the memory),
and the placements of `nvidia-smi mig -lgipp` (`{0,2,4}:2` for 2g of an A100 or H100). The placements of the A30 are
aligned in the same way.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from kant.model.units import GPU


class MigProfile(NamedTuple):
    """A kind of instance: `size` memory slices, which begin at a slice of `starts` (as bits)."""

    name: str
    size: int
    starts: int


class Geometry(NamedTuple):
    """How one GPU model can be partitioned: `slices` memory slices, and the profiles."""

    slices: int
    profiles: tuple[MigProfile, ...]

    @property
    def milli(self) -> int:
        """Thousandths of a GPU in one memory slice."""
        return GPU // self.slices


EIGHTHS = ((1, 0b1111111), (2, 0b1010101), (2, 0b10101), (4, 0b10001), (4, 0b1), (8, 0b1))
"""(size, starts) of 1g, 1g with twice the memory, 2g, 3g, 4g and 7g."""

QUARTERS = ((1, 0b1111), (2, 0b101), (4, 0b1))
"""(size, starts) of 1g, 2g and 4g of an A30."""


def _cut(slices: int, places: tuple[tuple[int, int], ...], names: str) -> Geometry:
    kinds = zip(names.split(), places, strict=True)
    return Geometry(slices, tuple(MigProfile(name, size, starts) for name, (size, starts) in kinds))


GEOMETRIES = {
    "a30-24gb": _cut(4, QUARTERS, "1g.6gb 2g.12gb 4g.24gb"),
    "a100-80gb": _cut(8, EIGHTHS, "1g.10gb 1g.20gb 2g.20gb 3g.40gb 4g.40gb 7g.80gb"),
    "h100-80gb": _cut(8, EIGHTHS, "1g.10gb 1g.20gb 2g.20gb 3g.40gb 4g.40gb 7g.80gb"),
    "h100-96gb": _cut(8, EIGHTHS, "1g.12gb 1g.24gb 2g.24gb 3g.48gb 4g.48gb 7g.96gb"),
    "h100-94gb": _cut(8, EIGHTHS, "1g.12gb 1g.24gb 2g.24gb 3g.47gb 4g.47gb 7g.94gb"),
    "h200-141gb": _cut(8, EIGHTHS, "1g.18gb 1g.35gb 2g.35gb 3g.71gb 4g.71gb 7g.141gb"),
    "b200-180gb": _cut(8, EIGHTHS, "1g.23gb 1g.45gb 2g.45gb 3g.90gb 4g.90gb 7g.180gb"),
    "a100-40gb": _cut(8, EIGHTHS, "1g.5gb 1g.10gb 2g.10gb 3g.20gb 4g.20gb 7g.40gb"),
}
"""The geometries by their names in cluster files."""

PROFILES = frozenset(profile.name for geometry in GEOMETRIES.values() for profile in geometry.profiles)
"""The names of all profiles."""


def profile_on(mig: str, name: str) -> tuple[int, MigProfile] | None:
    """Return the thousandths of a GPU that profile `name` takes on geometry `mig`, and the profile; None if unknown."""
    geometry = GEOMETRIES.get(mig)
    for profile in geometry.profiles if geometry else ():
        if profile.name == name:
            return profile.size * GEOMETRIES[mig].milli, profile
    return None


@cache
def usual_milli(name: str) -> int:
    """Return the thousandths of a GPU that an instance of profile `name` takes on the first geometry that has it."""
    found = (profile_on(mig, name) for mig in GEOMETRIES)
    return next(offer[0] for offer in found if offer is not None)
