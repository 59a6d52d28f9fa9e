"""Kant under a system clock that a test sets forward and back while it runs.

`python -m tests.kube.wandering FILE kube run …`: FILE has the seconds by which the clock is ahead. The clock is
replaced before Kant is imported.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path


def main(file: Path, arguments: list[str]) -> int:
    """One command of Kant."""
    system = time.time
    time.time = lambda: system() + float(file.read_text())
    from kant.cli.app import run

    return run(arguments)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
