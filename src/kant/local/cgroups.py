"""Finds the cgroup v2 branch, if any, in which Kant may create a cgroup for each run.

Kant may use the root of a container's branch, and what systemd has delegated (`systemd-run --scope -p Delegate=yes`).
Other branches belong to another writer, so Kant does not change them. A cgroup that limits the memory of its children
must not contain processes, so Kant moves itself and its ancestors into a child cgroup.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from pathlib import Path

from kant.local.memory import remove
from kant.local.processes import PROC

LEAF = "kant"
DELEGATED = ("user.delegate", "trusted.delegate")  # attributes that systemd sets


def branch(mounts: str, path: str) -> Path | None:
    """Return the folder of the cgroup at `path`, given the text of /proc/self/mountinfo; None if it is not mounted."""
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        if after.split(" ")[0] == "cgroup2":
            root, folder = before.split(" ")[3:5]
            inside = os.path.relpath(path, root)
            if inside != ".." and not inside.startswith("../"):
                return Path(folder) / inside
    return None


def is_delegated(folder: Path) -> bool:
    """Whether systemd has delegated the branch."""
    for name in DELEGATED:
        with contextlib.suppress(OSError):
            if os.getxattr(folder, name) == b"1":
                return True
    return False


def prepare() -> Path | None:
    """Return the folder in which cgroups with a memory limit can be created; None if that is not possible."""
    try:
        lines = (PROC / "self/cgroup").read_text().splitlines()
        path = next((line[3:] for line in lines if line.startswith("0::/")), "")
        path = path.removesuffix(f"/{LEAF}") or "/" if path else ""  # an earlier Kant may have moved itself there
        folder = branch((PROC / "self/mountinfo").read_text(), path) if path else None
        if folder is None or not (path == "/" or is_delegated(folder)):
            return None
        return folder if divided(folder) else None
    except OSError:
        return None


def divided(folder: Path) -> bool:
    """Enable the memory controller for children of the branch. Return False, with nothing changed, if that fails."""
    if "memory" not in (folder / "cgroup.controllers").read_text().split():
        return False
    if "memory" in (folder / "cgroup.subtree_control").read_text().split():
        return os.access(folder, os.W_OK)
    try:
        _put(folder / "cgroup.subtree_control", "+memory")
        return True
    except OSError:  # the branch contains processes of its own
        pass
    leaf, moved = folder / LEAF, list[int]()
    try:
        leaf.mkdir(exist_ok=True)
        for pid in _line_of(os.getpid()):
            if str(pid) in (folder / "cgroup.procs").read_text().split():
                _put(leaf / "cgroup.procs", str(pid))
                moved.append(pid)
        _put(folder / "cgroup.subtree_control", "+memory")
        return True
    except OSError:
        for pid in moved:
            with contextlib.suppress(OSError):
                _put(folder / "cgroup.procs", str(pid))
        with contextlib.suppress(OSError):
            leaf.rmdir()
        return False


def of_run(base: Path, folder: Path) -> Path:
    """Return the cgroup of a run from its folder `runs/JOB/ATTEMPT`."""
    return base / f"{_prefix(folder.parent.parent)}{folder.parent.name}-{folder.name}"


def sweep(base: Path, runs: Path, living: set[Path]) -> None:
    """Remove the cgroups of a home's runs, except those in `living`."""
    for folder in base.glob(f"{_prefix(runs)}*"):
        if folder not in living:
            remove(str(folder))


def _prefix(runs: Path) -> str:
    return f"kant-{hashlib.blake2b(os.fsencode(runs.absolute()), digest_size=6).hexdigest()}-"


def _line_of(pid: int) -> list[int]:
    """Return the ids of a process and its ancestors."""
    line = []
    while pid > 0:
        line.append(pid)
        pid = int((PROC / str(pid) / "stat").read_bytes().rpartition(b") ")[2].split()[1])
    return line


def _put(path: Path, text: str) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(file, text.encode())
    finally:
        os.close(file)
