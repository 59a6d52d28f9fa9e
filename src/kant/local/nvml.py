"""The GPUs of this machine according to NVML, the library of NVIDIA's driver, called through ctypes alone.

Indices are in PCI bus order, as in CUDA with the CUDA_DEVICE_ORDER that jobs get. Source: NVIDIA's NVML API Reference
Guide (device queries, multi-instance GPU management). A GPU is unfit if NVIDIA's DCGM would report a health failure.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

from kant.model.errors import InputError

LIBRARY = "libnvidia-ml.so.1"
SUCCESS, NOT_SUPPORTED, NOT_FOUND, GPU_IS_LOST, RESET_REQUIRED = 0, 3, 6, 15, 16
UNCORRECTED, VOLATILE = 1, 0  # ECC errors since the driver was loaded
SLOWDOWN = 1  # the temperature at which the hardware slows a GPU down
HOT = "it is too hot"
COOLER = 5  # degrees Celsius below that temperature at which a hot GPU gets work again
USED, MOST_SAMPLES = 1, 1000  # NVML's type of utilization samples, and the maximum read (NVML keeps a few hundred)
WIDTH = 96  # bytes of a name or a UUID in NVML's v2 functions


class _Sample(ctypes.Structure):
    _fields_ = (("time", ctypes.c_ulonglong), ("value", ctypes.c_uint), ("rest", ctypes.c_uint))


class _Memory(ctypes.Structure):
    """NVML's struct nvmlMemory_v2_t: memory that the driver keeps for itself is in `reserved`, and not in `used`."""

    _fields_ = (
        ("version", ctypes.c_uint), ("total", ctypes.c_ulonglong), ("reserved", ctypes.c_ulonglong),
        ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong),
    )  # fmt: skip


class Use(NamedTuple):
    """The use of a GPU since the last call: the fraction of time in which a CUDA kernel ran, and its memory in use and
    in total (MiB). `until`: the time of the latest sample, by NVML's clock.
    """

    busy: float
    memory_mib: int
    total_mib: int
    until: int = 0


class MigDevice(NamedTuple):
    """A MIG device: its name with the profile, such as `… MIG 1g.10gb`, its UUID, and its memory (MiB; 0: unknown)."""

    model: str
    uuid: str
    memory: int = 0


@dataclass(frozen=True, slots=True)
class NvmlGpu:
    """One GPU. `mig`: it is divided (multi-instance) into `slices`, which have their own models and UUIDs.

    `memory` is in MiB; 0: unknown.
    """

    model: str
    uuid: str = ""
    mig: bool = False
    slices: tuple[MigDevice, ...] = ()
    memory: int = 0


def load() -> Any:
    """Load and return NVML; None if this machine does not have the library."""
    try:
        return ctypes.CDLL(LIBRARY)
    except OSError:
        return None


def list_gpus(library: Any) -> list[NvmlGpu] | None:
    """Return the GPUs in order of their indices. None if NVML cannot start, because there is no driver or its version
    differs.

    Raises InputError for a GPU that does not respond.
    """
    if library.nvmlInit_v2() != SUCCESS:
        return None
    try:
        count = ctypes.c_uint()
        _ask(library, "the GPUs of this machine", library.nvmlDeviceGetCount_v2, ctypes.byref(count))
        return [_gpu(library, index) for index in range(count.value)]
    finally:
        library.nvmlShutdown()


def power_limits(library: Any, count: int) -> list[int]:
    """Return the enforced power limit of each of `count` GPUs in watts; empty if any GPU does not report its limit."""
    if library.nvmlInit_v2() != SUCCESS:
        return []
    try:
        found = [_power_limit(library, index) for index in range(count)]
    finally:
        library.nvmlShutdown()
    return found if all(found) else []


def _power_limit(library: Any, index: int) -> int:
    device, limit = ctypes.c_void_p(), ctypes.c_uint()
    if library.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(index), ctypes.byref(device)) != SUCCESS:
        return 0
    code = _call(library, "nvmlDeviceGetEnforcedPowerLimit", device, ctypes.byref(limit))
    return limit.value // 1000 if code == SUCCESS else 0  # NVML reports milliwatts


def ailments(library: Any, count: int, before: Mapping[int, str]) -> dict[int, str]:
    """Return which of `count` GPUs are unfit for new work, by index, with the reason; `before` is the last result.

    A GPU is unfit if it is lost or must be reset; if it has uncorrected ECC errors, or a memory row that could not be
    remapped; or if it is so hot that the hardware slows it down, until it is `COOLER` degrees below that temperature.
    """
    found = {index: _ailment(library, index, before.get(index, "")) for index in range(count)}
    return {index: why for index, why in found.items() if why}


def _ailment(library: Any, index: int, before: str) -> str:
    device = ctypes.c_void_p()
    code = library.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(index), ctypes.byref(device))
    if code != SUCCESS:
        return f"it does not answer ({_why(library, code)})"
    errors = ctypes.c_ulonglong()
    asked = (ctypes.c_uint(UNCORRECTED), ctypes.c_uint(VOLATILE), ctypes.byref(errors))
    code = _call(library, "nvmlDeviceGetTotalEccErrors", device, *asked)
    if code in (GPU_IS_LOST, RESET_REQUIRED):
        return f"it does not answer ({_why(library, code)})"
    if code == SUCCESS and errors.value:
        return f"uncorrected ECC errors: {errors.value}"
    rows = [ctypes.c_uint() for _ in range(4)]  # corrected, uncorrected, pending, failed
    if _call(library, "nvmlDeviceGetRemappedRows", device, *map(ctypes.byref, rows)) == SUCCESS and rows[3].value:
        return "a faulty row of its memory could not be remapped"
    heat, most = ctypes.c_uint(), ctypes.c_uint()
    known = (
        _call(library, "nvmlDeviceGetTemperature", device, ctypes.c_uint(0), ctypes.byref(heat)) == SUCCESS
        and _call(library, "nvmlDeviceGetTemperatureThreshold", device, ctypes.c_uint(SLOWDOWN), ctypes.byref(most))
        == SUCCESS
    )
    hot = before.startswith(HOT) and heat.value > most.value - COOLER
    return f"{HOT} (it slows down at {most.value} °C)" if known and (hot or heat.value >= most.value) else ""


def uses(library: Any, count: int, before: Mapping[int, Use]) -> dict[int, Use]:
    """Return the use of each of `count` GPUs since the last call. GPUs without samples are left out, such as all GPUs
    in MIG mode.
    """
    found = {index: _use(library, index, before[index].until if index in before else 0) for index in range(count)}
    return {index: use for index, use in found.items() if use is not None}


def _use(library: Any, index: int, since: int) -> Use | None:
    device, memory = ctypes.c_void_p(), _Memory(version=ctypes.sizeof(_Memory) | 2 << 24)
    if library.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(index), ctypes.byref(device)) != SUCCESS:
        return None
    if _call(library, "nvmlDeviceGetMemoryInfo_v2", device, ctypes.byref(memory)) != SUCCESS:
        return None
    kind, many, samples = ctypes.c_int(), ctypes.c_uint(MOST_SAMPLES), (_Sample * MOST_SAMPLES)()
    asked = (ctypes.c_int(USED), ctypes.c_ulonglong(since), ctypes.byref(kind), ctypes.byref(many), samples)
    code = _call(library, "nvmlDeviceGetSamples", device, *asked)
    if code not in (SUCCESS, NOT_FOUND):
        return None
    taken = samples[: many.value] if code == SUCCESS else []
    busy = sum(each.value for each in taken) / len(taken) / 100 if taken else 0.0
    until = max([since, *(each.time for each in taken)])
    return Use(busy, memory.used >> 20, memory.total >> 20, until)


def _call(library: Any, name: str, *arguments: Any) -> int:
    """Call a function and return its code; NOT_SUPPORTED if the library is too old to have it."""
    function = getattr(library, name, None)
    return int(function(*arguments)) if function is not None else NOT_SUPPORTED


def _gpu(library: Any, index: int) -> NvmlGpu:
    where, device = f"GPU {index}", ctypes.c_void_p()
    _ask(library, where, library.nvmlDeviceGetHandleByIndex_v2, ctypes.c_uint(index), ctypes.byref(device))
    model = _text(library, where, library.nvmlDeviceGetName, device)
    uuid = _text(library, where, library.nvmlDeviceGetUUID, device)
    now, later = ctypes.c_uint(), ctypes.c_uint()
    mode = getattr(library, "nvmlDeviceGetMigMode", None)  # a library older than MIG lacks the function
    code = mode(device, ctypes.byref(now), ctypes.byref(later)) if mode is not None else NOT_SUPPORTED
    if code == NOT_SUPPORTED or (code == SUCCESS and not now.value):
        return NvmlGpu(model, uuid, memory=_total(library, device))
    _check(library, where, code)
    return NvmlGpu(model, uuid, True, _slices(library, where, device), _total(library, device))


def _slices(library: Any, where: str, device: ctypes.c_void_p) -> tuple[MigDevice, ...]:
    """Return the MIG devices of a GPU."""
    most, found = ctypes.c_uint(), []
    _ask(library, where, library.nvmlDeviceGetMaxMigDeviceCount, device, ctypes.byref(most))
    for number in range(most.value):
        part = ctypes.c_void_p()
        code = library.nvmlDeviceGetMigDeviceHandleByIndex(device, ctypes.c_uint(number), ctypes.byref(part))
        if code == NOT_FOUND:
            continue
        _check(library, where, code)
        name, uuid = library.nvmlDeviceGetName, library.nvmlDeviceGetUUID
        found.append(
            MigDevice(_text(library, where, name, part), _text(library, where, uuid, part), _total(library, part))
        )
    return tuple(found)


def _total(library: Any, device: ctypes.c_void_p) -> int:
    """Return the memory of a device in MiB; 0 if the device does not report it."""
    memory = _Memory(version=ctypes.sizeof(_Memory) | 2 << 24)
    code = _call(library, "nvmlDeviceGetMemoryInfo_v2", device, ctypes.byref(memory))
    return memory.total >> 20 if code == SUCCESS else 0


def _text(library: Any, where: str, function: Any, device: ctypes.c_void_p) -> str:
    buffer = ctypes.create_string_buffer(WIDTH)
    _ask(library, where, function, device, buffer, ctypes.c_uint(WIDTH))
    return buffer.value.decode(errors="replace")


def _ask(library: Any, where: str, function: Any, *arguments: Any) -> None:
    _check(library, where, function(*arguments))


def _check(library: Any, where: str, code: int) -> None:
    if code != SUCCESS:
        raise InputError(where, f"an answer from NVML ({_why(library, code)}); `nvidia-smi` may say more")


def _why(library: Any, code: int) -> str:
    with suppress(AttributeError):
        library.nvmlErrorString.restype = ctypes.c_char_p
        return str(library.nvmlErrorString(code).decode(errors="replace"))
    return str(code)
