"""What this machine has: its NVIDIA GPUs, as nvidia-smi (which asks NVML) lists them, its cores and its memory."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from kant.model.errors import InputError
from kant.model.node import MAX_GPUS, ClusterSpec, Node

QUERY = ("--query-gpu=index,name,mig.mode.current", "--format=csv,noheader")
PATIENCE = 60.0


def this_machine() -> ClusterSpec:
    """The machine as a cluster of one node. Raises InputError where its GPUs cannot be listed."""
    names = gpus()
    if len(set(names)) > 1:
        raise InputError("this machine", "GPUs of one model (or --cluster FILE to describe them)", ", ".join(names))
    model = names[0] if names else ""
    node = Node(os.uname().nodename, len(names), model, cpu=1000 * cores(), memory=memory())
    return ClusterSpec(node.name, (node,))


def cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0))


def memory() -> int:
    """MiB of main memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 20


def gpus() -> list[str]:
    """The models of the GPUs by index; none where there is no driver."""
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


def listed(text: str) -> list[str]:
    """The models in the lines `index, name, MIG mode` of nvidia-smi. Raises InputError."""
    found: list[str] = []
    for line in filter(None, (line.strip() for line in text.splitlines())):
        parts = [part.strip() for part in line.split(",")]
        if len(parts) != 3 or parts[0] != str(len(found)):
            raise InputError("nvidia-smi", "lines such as `0, NVIDIA H100 80GB HBM3, Disabled` in order", line)
        if parts[2] == "Enabled":
            raise InputError(f"GPU {parts[0]}", "a GPU that is not in MIG mode (or --cluster FILE)")
        found.append(parts[1])
    if len(found) > MAX_GPUS:
        raise InputError("this machine", f"at most {MAX_GPUS} GPUs", len(found))
    return found
