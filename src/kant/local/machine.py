"""The resources of this machine: NVIDIA GPUs, as listed by NVML or otherwise by nvidia-smi, cores and memory."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kant.live.logs import log_event
from kant.local.nvml import NvmlGpu, list_gpus, load, power_limits
from kant.model.errors import InputError
from kant.model.node import MAX_GPUS, ClusterSpec, Node

log = logging.getLogger("kant.local")
QUERY = ("--query-gpu=index,name,uuid,mig.mode.current", "--format=csv,noheader")
PATIENCE = 60.0


@dataclass(frozen=True, slots=True)
class Device:
    """One device that a job sees as a GPU: a whole GPU, or a MIG device. `gpu` is the index of the physical GPU,
    `memory` is in MiB (0: unknown).
    """

    model: str
    uuid: str
    gpu: int
    memory: int = 0


def this_machine(devices: Sequence[Device]) -> ClusterSpec:
    """Return the machine with these devices as a cluster of one node."""
    model = devices[0].model if devices else ""
    node = Node(os.uname().nodename, len(devices), model, cpu=1000 * len(own_cores()), memory=memory())
    return ClusterSpec(node.name, (node,))


def found_here(cluster: ClusterSpec, devices: Sequence[Device] = ()) -> str:
    """Return in one sentence which resources this machine has for jobs, given it as a cluster, and its devices."""
    node = cluster.nodes[0]
    rest = f"{node.cpu // 1000:,} cores and {node.memory / 1024:,.0f} GiB of memory"
    if node.gpus:
        least = min((device.memory for device in devices), default=0)
        kind = f"{node.model}, {least / 1024:,.0f} GiB" if least else node.model
        return f"this machine has {node.gpus} GPU{'s' * (node.gpus > 1)} ({kind}), {rest}"
    return (
        f"this machine has no GPU that NVML or nvidia-smi lists, but {rest}: jobs with --gpus are refused "
        "(kant up --cluster 1x4 simulates GPUs)"
    )


def own_cores() -> tuple[int, ...]:
    """Return the cores that this process may use."""
    return tuple(sorted(os.sched_getaffinity(0)))


def memory() -> int:
    """Return the size of main memory in MiB."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 20


def devices() -> list[Device]:
    """Return the devices for jobs, in order, as listed by NVML or otherwise by nvidia-smi; empty without a driver.

    Raises InputError if they cannot be listed, or have different models.
    """
    library = load()
    found = list_gpus(library) if library is not None else None
    if found is None:
        found = by_program()
    for index, gpu in enumerate(found):
        log_event(log, "GPU", index=index, model=gpu.model, uuid=gpu.uuid, mig=gpu.mig, devices=len(gpu.slices) or None)
    return checked(found)


def checked(found: Sequence[NvmlGpu]) -> list[Device]:
    """Return the devices of these GPUs. Raises InputError if jobs cannot use them."""
    devices: list[Device] = []
    for index, gpu in enumerate(found):
        if gpu.mig and not gpu.slices:
            what = "MIG devices (nvidia-smi mig -cgi) that NVML lists, since the GPU is in MIG mode"
            raise InputError(f"GPU {index}", what)
        parts = [Device(part.model, part.uuid, index, part.memory) for part in gpu.slices]
        devices += parts if gpu.mig else [Device(gpu.model, gpu.uuid, index, gpu.memory)]
    models = dict.fromkeys(device.model for device in devices)
    if len(models) > 1:
        raise InputError("this machine", "GPUs of one model (or --cluster FILE to describe them)", ", ".join(models))
    if len(devices) > MAX_GPUS:
        raise InputError("this machine", f"at most {MAX_GPUS} GPUs", len(devices))
    return devices


def gpu_watts(devices: Sequence[Device]) -> int:
    """Return the maximum power of one device in watts: the largest limit of any GPU by NVML; for a MIG device, a part.

    Raises InputError without NVML, or if NVML does not know the limit.
    """
    library = load()
    limits = power_limits(library, len({device.gpu for device in devices})) if library is not None else []
    if not limits:
        raise InputError("--gpu-watts", "the power of one GPU, such as 700W, since NVML does not report it here")
    parts = Counter(device.gpu for device in devices)
    return -(-max(limits) // min(parts.values()))


def visible(devices: Sequence[Device]) -> tuple[str, ...]:
    """Return the CUDA names of the devices, by position; empty if their positions are CUDA's indices."""
    return tuple(each.uuid for each in devices) if any(each.uuid.startswith("MIG-") for each in devices) else ()


def by_program() -> list[NvmlGpu]:
    """Return the GPUs that nvidia-smi lists; [] without a driver. Raises InputError."""
    program = shutil.which("nvidia-smi")
    if program is None or not Path("/proc/driver/nvidia").exists():
        return []
    try:
        done = subprocess.run([program, *QUERY], capture_output=True, text=True, timeout=PATIENCE, check=False)
    except subprocess.TimeoutExpired:
        raise InputError(program, f"an answer within {PATIENCE:g} s") from None
    if done.returncode != 0:
        raise InputError(program, "a list of GPUs", (done.stderr or done.stdout).strip())
    return listed(done.stdout)


def listed(text: str) -> list[NvmlGpu]:
    """Parse the lines `index, name, UUID, MIG mode` of nvidia-smi into GPUs. Raises InputError."""
    found: list[NvmlGpu] = []
    for line in filter(None, (line.strip() for line in text.splitlines())):
        parts = [part.strip() for part in line.split(",")]
        if len(parts) != 4 or parts[0] != str(len(found)):
            raise InputError(
                "nvidia-smi", "GPUs in order, in lines such as `0, NVIDIA H100 80GB HBM3, GPU-1a2b, Disabled`", line
            )
        found.append(NvmlGpu(parts[1], parts[2], parts[3] == "Enabled"))
    return found
