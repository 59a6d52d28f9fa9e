"""Devices that HAMi's device plugin has registered on a node. `hami` has the code for clusters that run HAMi."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from kant.kube.objects import views as k
from kant.model.errors import InputError
from kant.model.units import GPU

NVIDIA = "nvidia.com/gpu"
REGISTER = "hami.io/node-nvidia-register"
"""The annotation of a node in which the plugin registers its devices."""


class Device(NamedTuple):
    """A GPU as HAMi registers it. `slots` pods may share it; `memory` is in MiB, `cores` in percent."""

    uuid: str
    slots: int
    memory: int
    cores: int

    @property
    def slot(self) -> int:
        """The smallest share, in thousandths of the GPU, of which no more than `slots` fit on the GPU."""
        return GPU // (self.slots + 1) + 1


class Registered(NamedTuple):
    """The devices of a node in the order of their indices, and a bit mask of the unhealthy devices."""

    devices: tuple[Device, ...] = ()
    unhealthy: int = 0


def registered(view: k.Node) -> Registered:
    """Return the devices that HAMi has registered on a node, if any. Raises InputError if they are malformed."""
    text = (view.metadata.annotations or {}).get(REGISTER, "")
    if not text:
        return Registered()
    from kant.kube.translate.hami import decoded

    try:
        return decoded(text)
    except (ValueError, KeyError, TypeError, msgspec.MsgspecError) as error:
        where = f"node {view.metadata.name}, annotation {REGISTER}"
        raise InputError(where, f"devices as HAMi registers them, in mode hami-core ({error})") from None
