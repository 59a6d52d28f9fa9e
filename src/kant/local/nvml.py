"""The GPUs of this machine by NVML, the library of NVIDIA's driver, with ctypes alone.

Indices are in the order of the PCI bus, as CUDA counts them too with the CUDA_DEVICE_ORDER that jobs get.
Source: NVIDIA's NVML API Reference Guide (device queries, multi-instance GPU management).
"""

from __future__ import annotations

import ctypes
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from kant.model.errors import InputError

LIBRARY = "libnvidia-ml.so.1"
SUCCESS, NOT_SUPPORTED, NOT_FOUND = 0, 3, 6
WIDTH = 96  # bytes of a name or a UUID, as NVML's second version of both has


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU. `mig`: it is divided (multi-instance), into `slices` devices with UUIDs of their own."""

    model: str
    uuid: str = ""
    mig: bool = False
    slices: tuple[str, ...] = ()


def load() -> Any:
    """The library; None where there is none."""
    try:
        return ctypes.CDLL(LIBRARY)
    except OSError:
        return None


def list_gpus(library: Any) -> list[Gpu] | None:
    """The GPUs in the order of their indices. None where NVML cannot begin: no driver, or another version of it.

    Raises InputError for a GPU that does not answer.
    """
    if library.nvmlInit_v2() != SUCCESS:
        return None
    try:
        count = ctypes.c_uint()
        _ask(library, "the GPUs of this machine", library.nvmlDeviceGetCount_v2, ctypes.byref(count))
        return [_gpu(library, index) for index in range(count.value)]
    finally:
        library.nvmlShutdown()


def _gpu(library: Any, index: int) -> Gpu:
    where, device = f"GPU {index}", ctypes.c_void_p()
    _ask(library, where, library.nvmlDeviceGetHandleByIndex_v2, ctypes.c_uint(index), ctypes.byref(device))
    model = _text(library, where, library.nvmlDeviceGetName, device)
    uuid = _text(library, where, library.nvmlDeviceGetUUID, device)
    now, later = ctypes.c_uint(), ctypes.c_uint()
    mode = getattr(library, "nvmlDeviceGetMigMode", None)  # a library older than MIG has none
    code = mode(device, ctypes.byref(now), ctypes.byref(later)) if mode is not None else NOT_SUPPORTED
    if code == NOT_SUPPORTED or (code == SUCCESS and not now.value):
        return Gpu(model, uuid)
    _check(library, where, code)
    return Gpu(model, uuid, True, _slices(library, where, device))


def _slices(library: Any, where: str, device: ctypes.c_void_p) -> tuple[str, ...]:
    """The UUIDs of the devices into which a GPU is divided."""
    most, found = ctypes.c_uint(), []
    _ask(library, where, library.nvmlDeviceGetMaxMigDeviceCount, device, ctypes.byref(most))
    for number in range(most.value):
        part = ctypes.c_void_p()
        code = library.nvmlDeviceGetMigDeviceHandleByIndex(device, ctypes.c_uint(number), ctypes.byref(part))
        if code == NOT_FOUND:
            continue
        _check(library, where, code)
        found.append(_text(library, where, library.nvmlDeviceGetUUID, part))
    return tuple(found)


def _text(library: Any, where: str, function: Any, device: ctypes.c_void_p) -> str:
    buffer = ctypes.create_string_buffer(WIDTH)
    _ask(library, where, function, device, buffer, ctypes.c_uint(WIDTH))
    return buffer.value.decode(errors="replace")


def _ask(library: Any, where: str, function: Any, *arguments: Any) -> None:
    _check(library, where, function(*arguments))


def _check(library: Any, where: str, code: int) -> None:
    if code != SUCCESS:
        why = str(code)
        with suppress(AttributeError):
            library.nvmlErrorString.restype = ctypes.c_char_p
            why = library.nvmlErrorString(code).decode(errors="replace")
        raise InputError(where, f"an answer of NVML ({why}); `nvidia-smi` may say more")
