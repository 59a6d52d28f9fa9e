"""Slurm's commands for Kant: `kant slurm-shims DIR` writes them, and jobs of `#SBATCH` scripts use them.

Each supports common options: `sbatch`, `srun`, `salloc`, `squeue`, `scancel`, `scontrol`, `sacct` and `sinfo`. A
request that Kant does not support is refused with its name.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from kant.local.slurm_commands import COMMANDS, write_shims


def slurm_shims(folder: Annotated[Path, Parameter(help="The folder to write to.")], /) -> int:
    """Write sbatch, srun, squeue and other Slurm commands that call Kant into a folder for the PATH."""
    write_shims(folder.expanduser(), sys.executable)
    print(f"{', '.join(COMMANDS)} are in {folder}: export PATH={folder.expanduser().absolute()}:$PATH")
    return 0
