"""What this machine has: its NVIDIA GPUs, as NVML or else nvidia-smi lists them, its cores and its memory."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
from pathlib import Path

from kant.live.logs import log_event
from kant.local.nvml import Gpu, list_gpus, load
from kant.model.errors import InputError
from kant.model.node import MAX_GPUS, ClusterSpec, Node

log = logging.getLogger("kant.local")
QUERY = ("--query-gpu=index,name,uuid,mig.mode.current", "--format=csv,noheader")
PATIENCE = 60.0


def this_machine() -> ClusterSpec:
    """The machine as a cluster of one node. Raises InputError where its GPUs cannot be listed."""
    names = [gpu.model for gpu in gpus()]
    if len(set(names)) > 1:
        raise InputError("this machine", "GPUs of one model (or --cluster FILE to describe them)", ", ".join(names))
    model = names[0] if names else ""
    node = Node(os.uname().nodename, len(names), model, cpu=1000 * len(own_cores()), memory=memory())
    return ClusterSpec(node.name, (node,))


def own_cores() -> tuple[int, ...]:
    """The cores that this process may use."""
    return tuple(sorted(os.sched_getaffinity(0)))


def memory() -> int:
    """MiB of main memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 20


def gpus() -> list[Gpu]:
    """The GPUs by index, as NVML lists them or else nvidia-smi; none where there is no driver. Raises InputError."""
    library = load()
    found = list_gpus(library) if library is not None else None
    if found is None:
        found = by_program()
    for index, gpu in enumerate(found):
        log_event(log, "GPU", index=index, model=gpu.model, uuid=gpu.uuid, mig=gpu.mig)
    return checked(found)


def checked(found: list[Gpu]) -> list[Gpu]:
    """The GPUs, if jobs can have them as they are. Raises InputError."""
    for index, gpu in enumerate(found):
        if gpu.mig:
            into = f"divided into {len(gpu.slices)} devices" if gpu.slices else "in MIG mode"
            raise InputError(f"GPU {index}", "a GPU that is not in MIG mode (or --cluster FILE)", into)
    if len(found) > MAX_GPUS:
        raise InputError("this machine", f"at most {MAX_GPUS} GPUs", len(found))
    return found


def by_program() -> list[Gpu]:
    """The GPUs as nvidia-smi lists them; none where there is no driver. Raises InputError."""
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


def listed(text: str) -> list[Gpu]:
    """The GPUs in the lines `index, name, UUID, MIG mode` of nvidia-smi. Raises InputError."""
    found: list[Gpu] = []
    for line in filter(None, (line.strip() for line in text.splitlines())):
        parts = [part.strip() for part in line.split(",")]
        if len(parts) != 4 or parts[0] != str(len(found)):
            raise InputError(
                "nvidia-smi", "lines such as `0, NVIDIA H100 80GB HBM3, GPU-1a2b, Disabled` in order", line
            )
        found.append(Gpu(parts[1], parts[2], parts[3] == "Enabled"))
    return found
