"""HAMi: which devices its device plugin has registered on a node, what containers request, and what to allocate.

The plugin registers the devices of a node in an annotation of the node. In annotations of a pod the plugin reads how
much of which devices each container gets, and enforces it. Kant writes these annotations with the binding.

Sources: HAMi, docs/develop/protocol.md; pkg/device/devices.go (DecodeNodeDevices, UnMarshalNodeDevices,
EncodePodSingleDevice); pkg/device/nvidia/device.go (GenerateResourceRequests);
pkg/device-plugin/nvidiadevice/nvinternal/plugin/server.go (Allocate) and util.go (popNextContainerDevices: init
containers first); pkg/util/util.go (GetPendingPod).
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

import msgspec

from kant.kube.objects import views as k
from kant.kube.objects.quantity import count
from kant.kube.translate.hami_devices import NVIDIA, Device, Registered
from kant.kube.translate.resources import amounts_of
from kant.model.errors import InputError
from kant.model.units import GPU

MEMORY, PERCENT, CORES = "nvidia.com/gpumem", "nvidia.com/gpumem-percentage", "nvidia.com/gpucores"
TO_ALLOCATE, ALLOCATED = "hami.io/vgpu-devices-to-allocate", "hami.io/vgpu-devices-allocated"
NODE, TIME = "hami.io/vgpu-node", "hami.io/vgpu-time"
PHASE, BIND_TIME = "hami.io/bind-phase", "hami.io/bind-time"
ALLOCATING = "allocating"


class Part(NamedTuple):
    """What a container requests of each of its `gpus`: MiB or percent of memory (both 0: all), percent of the cores."""

    gpus: int = 0
    memory: int = 0
    percent: int = 0
    cores: int = 0

    @property
    def is_whole(self) -> bool:
        return not (self.memory or self.percent or self.cores)

    def memory_of(self, device: Device) -> int:
        """Return the MiB that the container gets of the device."""
        return self.memory or device.memory * (self.percent or 100) // 100

    def milli_of(self, device: Device) -> int:
        """Return the used thousandths of the device: the largest share of memory, cores and slots. Can be over 1000."""
        if self.is_whole:
            return GPU
        memory = _up(self.memory * GPU, device.memory) if self.memory else 10 * (self.percent or 100)
        return max(memory, _up(self.cores * GPU, device.cores), device.slot)


def parts_of(spec: k.PodSpec, where: str = "spec") -> tuple[Part, ...]:
    """Return the request of each container, in order. Raises InputError for a request that cannot be served."""
    for number, container in enumerate(spec.init_containers):
        asked = amounts_of(container.resources, f"{where}.initContainers[{number}]")
        shares = [name for name in (MEMORY, PERCENT, CORES) if asked.get(name)]
        if shares:
            raise InputError(f"{where}.initContainers[{number}]", "no share of a GPU in an init container", shares[0])
    parts = tuple(_part(one, f"{where}.containers[{number}]") for number, one in enumerate(spec.containers))
    unlike = {part._replace(gpus=0) for part in parts if part.gpus}
    if len(unlike) > 1:
        raise InputError(f"{where}.containers", "equal shares of GPUs in all containers that request one")
    return parts


def notes_of(spec: k.PodSpec, node: str, devices: tuple[Device, ...], mask: int, seconds: int) -> dict[str, str]:
    """Return the annotations by which HAMi's plugin gives containers the devices in the bit mask, in their order."""
    own = [device for number, device in enumerate(devices) if mask >> number & 1]
    words = ";" * len(spec.init_containers)
    for part in parts_of(spec):
        given, own = own[: part.gpus], own[part.gpus :]
        words += "".join(f"{one.uuid},NVIDIA,{part.memory_of(one)},{part.cores}:" for one in given) + ";"
    when = str(seconds)
    return {
        TO_ALLOCATE: words, ALLOCATED: words, NODE: node, TIME: when, PHASE: ALLOCATING, BIND_TIME: when
    }  # fmt: skip


def held(pod: k.Pod, devices: tuple[Device, ...]) -> dict[int, int]:
    """Return, by device number, how many thousandths a pod holds by its annotations: the largest of its shares."""
    notes = pod.metadata.annotations or {}
    if notes.get(NODE) != pod.spec.node_name:
        return {}
    numbers = {device.uuid: number for number, device in enumerate(devices)}
    sums: dict[int, list[int]] = {}
    for entry in notes.get(ALLOCATED, "").replace(";", ":").split(":"):
        uuid, _, memory, cores = (*entry.split(","), "", "", "", "")[:4]
        if uuid in numbers and all(re.fullmatch("[0-9]{1,9}", one) for one in (memory, cores)):
            own = sums.setdefault(numbers[uuid], [0, 0, 0])
            own[0], own[1], own[2] = own[0] + int(memory), own[1] + int(cores), own[2] + 1
    found = {}
    for number, (mebibytes, percent, pods) in sums.items():
        one = devices[number]
        dearest = max(_up(mebibytes * GPU, one.memory), _up(percent * GPU, one.cores), pods * one.slot)
        found[number] = min(dearest, GPU)
    return found


def _part(container: k.Container, where: str) -> Part:
    asked = amounts_of(container.resources, where)
    gpus, memory, percent, cores = (
        count(asked[name], f"{where}, {name}") if name in asked else 0 for name in (NVIDIA, MEMORY, PERCENT, CORES)
    )
    share = next((name for name in (MEMORY, PERCENT, CORES) if asked.get(name)), "")
    if share and not gpus:
        raise InputError(where, f"{NVIDIA} beside {share}: without it the kubelet does not ask HAMi's device plugin")
    if memory and percent:
        raise InputError(where, f"{MEMORY} or {PERCENT}, not both")
    for name, amount in ((PERCENT, percent), (CORES, cores)):
        if amount > 100:
            raise InputError(f"{where}, {name}", "at most 100 percent", amount)
    return Part(gpus, memory, percent, cores)


class _Registration(msgspec.Struct):
    """A device in the JSON form in which newer releases of HAMi register it."""

    id: str
    count: int
    devmem: int
    devcore: int = 100
    index: int = 0
    mode: str = "hami-core"
    health: bool = False


@lru_cache(maxsize=4096)
def decoded(text: str) -> Registered:
    """Return the devices in the text of the annotation REGISTER. Raises ValueError or other parser errors."""
    if text.lstrip().startswith("["):
        found = msgspec.json.decode(text, type=list[_Registration])
    else:
        found = [
            _registration(number, entry.split(",")) for number, entry in enumerate(text.split(":")) if "," in entry
        ]
    found.sort(key=lambda one: one.index)
    for one in found:
        if (one.mode or "hami-core") != "hami-core" or min(one.count, one.devmem) < 1 or one.devcore < 0:
            raise ValueError(f"device {one.id}: mode {one.mode}, {one.count} slots, {one.devmem} MiB")
    if len({one.id for one in found}) < len(found):
        raise ValueError("a device is listed twice")
    devices = tuple(Device(one.id, one.count, one.devmem, one.devcore) for one in found)
    return Registered(devices, sum(1 << number for number, one in enumerate(found) if not one.health))


def _registration(number: int, fields: list[str]) -> _Registration:
    """Parse a device in the older form: seven fields, or nine with the index and mode."""
    if len(fields) not in (7, 9):
        raise ValueError(f"{len(fields)} fields")
    index, mode = (int(fields[7]), fields[8]) if len(fields) == 9 else (number, "hami-core")
    return _Registration(
        fields[0], int(fields[1]), int(fields[2]), int(fields[3]), index, mode, fields[6].lower() == "true"
    )


def _up(amount: int, whole: int) -> int:
    """Return the quotient `amount / whole` rounded up; 0 if `whole` is 0."""
    return -(-amount // whole) if whole else 0
