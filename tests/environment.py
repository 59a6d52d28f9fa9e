"""A fresh virtual environment in which Kant is installed, for tests that install something beside it."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path


def fresh_environment(home: Path) -> dict[str, str]:
    """Make one at `home`; returns the variables of a process in it. Nothing asks the network or compiles kernels."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", home], check=True)
    site = Path(sysconfig.get_path("purelib", vars={"base": str(home)}))
    (site / "kant.pth").write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
    for program in ("pip", "kant"):
        script = home / "bin" / program
        script.write_text(f'#!/bin/sh\nexec "{home}/bin/python" -m {program} "$@"\n')
        script.chmod(0o755)
    return os.environ | {
        "PATH": f"{home / 'bin'}{os.pathsep}{os.environ['PATH']}", "PIP_NO_INDEX": "1", "PIP_NO_BUILD_ISOLATION": "0",
        "NUMBA_DISABLE_JIT": "1", "PYTHONPATH": "", "PYTEST_ADDOPTS": "-p no:cacheprovider",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # those of the tests of Kant are not installed beside a policy
    }  # fmt: skip
