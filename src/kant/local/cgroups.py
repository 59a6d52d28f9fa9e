"""Where runs may have cgroups of their own: a branch of the second version that was given to Kant, or nowhere.

Given is the top of a container's branch, and what systemd has delegated (`systemd-run --scope -p Delegate=yes`). Other
branches have another writer, and are left alone. A branch that limits memory below it may have no processes of its own,
so Kant moves itself, and those that started it, into a leaf.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from pathlib import Path

from kant.local.memory import remove
from kant.local.processes import PROC

LEAF = "kant"
DELEGATED = ("user.delegate", "trusted.delegate")  # attributes that systemd gives


def branch(mounts: str, path: str) -> Path | None:
    """The folder of a cgroup, as /proc/self/mountinfo says; None where there is none."""
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        if after.split(" ")[0] == "cgroup2":
            root, folder = before.split(" ")[3:5]
            inside = os.path.relpath(path, root)
            if inside != ".." and not inside.startswith("../"):
                return Path(folder) / inside
    return None


def is_delegated(folder: Path) -> bool:
    """Whether systemd has given the branch away."""
    for name in DELEGATED:
        with contextlib.suppress(OSError):
            if os.getxattr(folder, name) == b"1":
                return True
    return False


def prepare() -> Path | None:
    """The folder in which cgroups with a limit of memory can be made; None where that cannot be."""
    try:
        lines = (PROC / "self/cgroup").read_text().splitlines()
        path = next((line[3:] for line in lines if line.startswith("0::/")), "")
        path = path.removesuffix(f"/{LEAF}") or "/" if path else ""  # where another Kant, or this one, has been
        folder = branch((PROC / "self/mountinfo").read_text(), path) if path else None
        if folder is None or not (path == "/" or is_delegated(folder)):
            return None
        return folder if divided(folder) else None
    except OSError:
        return None


def divided(folder: Path) -> bool:
    """Let the branch limit the memory of those below it, if it does not yet. False, and all is as it was, if not."""
    if "memory" not in (folder / "cgroup.controllers").read_text().split():
        return False
    if "memory" in (folder / "cgroup.subtree_control").read_text().split():
        return os.access(folder, os.W_OK)
    try:
        _put(folder / "cgroup.subtree_control", "+memory")
        return True
    except OSError:  # it has processes of its own
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
    """The cgroup of the run that has this folder, `runs/JOB/ATTEMPT`."""
    return base / f"{_prefix(folder.parent.parent)}{folder.parent.name}-{folder.name}"


def sweep(base: Path, runs: Path, living: set[Path]) -> None:
    """Remove what the runs of a home have left behind, but for the cgroups of those that live."""
    for folder in base.glob(f"{_prefix(runs)}*"):
        if folder not in living:
            remove(str(folder))


def _prefix(runs: Path) -> str:
    return f"kant-{hashlib.blake2b(os.fsencode(runs.absolute()), digest_size=6).hexdigest()}-"


def _line_of(pid: int) -> list[int]:
    """A process and those from which it comes."""
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
