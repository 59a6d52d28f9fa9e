"""MIG devices of NVIDIA's device plugin (strategy `mixed`): what share of a GPU each device is.

The plugin has partitioned the GPUs, counts the devices by profile, and chooses among them. A node has a number of each
profile. In quotas and shares a device counts by its memory slices (`kant.model.mig`). No memory slice is allocated
twice, so the devices of a GPU never add up to more than the GPU.

Sources: NVIDIA's k8s-device-plugin, README, and its gpu-feature-discovery (labels `nvidia.com/gpu.memory` and
`nvidia.com/mig-PROFILE.replicas`); MIG User Guide, "Supported MIG Profiles".
"""

from __future__ import annotations

import re
from contextlib import suppress

from kant.kube.objects.validation import whole
from kant.model.errors import InputError
from kant.model.mig import PROFILES, usual_milli
from kant.model.units import GPU

RESOURCE = re.compile(r"(nvidia\.com/mig-(([1-9])g\.([0-9]{1,4})gb)(?:\.me)?)[.\w]*")
"""Regex groups: the resource without suffix, the MIG profile, its compute slices (of seven), its memory in GB."""

MEMORY = "nvidia.com/gpu.memory"
"""The label with the MiB of a whole GPU of the node."""

SLICES = 8
"""Number of memory slices of a GPU. An A30 has four, each of which counts as two of these."""

BY_COMPUTE = {1: 1, 2: 2, 3: 4, 4: 4, 7: 8}
"""Memory slices by the number of compute slices, used if nothing more exact is known."""


def milli_of(resource: str, labels: dict[str, str] | None) -> int:
    """Return how many thousandths of a GPU a MIG device is on a node with these labels; 0 for any other resource."""
    found = RESOURCE.fullmatch(resource)
    if found is None:
        return 0
    base, profile, compute, gb = found.groups()
    own = labels or {}
    return max(_slices(profile, int(compute), int(gb), _number(own, MEMORY)) // _number(own, f"{base}.replicas", 1), 1)


def _slices(profile: str, compute: int, gb: int, total: int) -> int:
    """Return the share (thousandths) of a GPU with `total` MiB (0: unknown), rounded to eighths of its memory."""
    if total:
        return GPU // SLICES * min(max((gb * 1024 * SLICES * 2 + total) // (2 * total), 1), SLICES)
    if profile in PROFILES:
        return usual_milli(profile)
    return GPU // SLICES * BY_COMPUTE.get(compute, SLICES)


def _number(labels: dict[str, str], key: str, least: int = 0) -> int:
    """Return the value of a numeric label, at least `least`; `least` if it is not a number."""
    with suppress(InputError):
        return max(whole("label", labels.get(key, str(least)), 0, 1 << 40), least)
    return least
