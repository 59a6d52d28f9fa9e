"""Slurm's commands (such as `srun`), as shell scripts that call Kant."""

from __future__ import annotations

import os
from pathlib import Path
from shlex import quote

from kant.files import replacing
from kant.model.errors import InputError

COMMANDS = ("sacct", "salloc", "sbatch", "scancel", "scontrol", "sinfo", "squeue", "srun")


def write_shims(folder: Path, python: str) -> None:
    """Write the commands into a folder. Raises InputError if a file there is not Kant's."""
    if not folder.exists():
        folder.mkdir(parents=True)
        folder.chmod(0o755)  # jobs of other users call them, too
    texts = {
        name: f'#!/bin/sh\n# {name}, as Kant has it\nexec {quote(python)} -m kant.cli.slurm {name} "$@"\n'
        for name in COMMANDS
    }
    for name in COMMANDS:
        path = folder / name
        if path.exists() and "as Kant has it" not in path.read_text(encoding="utf-8", errors="replace"):
            raise InputError(str(path), "no other file of this name, since Kant overwrites only its own")
    for name, text in texts.items():
        path = folder / name
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            with replacing(path) as out:
                out.write(text.encode())
                os.fchmod(out.fileno(), 0o755)  # regardless of the umask
