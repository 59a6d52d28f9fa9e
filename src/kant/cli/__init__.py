"""The command line: one file per verb. Verbs import heavy modules only when they run, so that `--help` is fast."""

from __future__ import annotations

import gc
import sys

__all__ = ["main"]


def main(arguments: list[str] | None = None) -> None:
    """Run `kant`, by default with the arguments of the process, and exit with its code."""
    # loading modules creates few reference cycles, and with default settings collections take a sixth of the start-up
    # time
    gc.set_threshold(20_000)
    try:  # it includes the imports, so that Ctrl-C shows no traceback while they load
        from kant.cli.app import main as run

        run(arguments)
    except KeyboardInterrupt:
        sys.exit(130)
