"""The command line: one file per verb. Verbs import heavy modules only when they run, so that `--help` is fast."""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> None:
    """Run `kant` and exit with its code."""
    try:  # it includes the imports, so that Ctrl-C shows no traceback while they load
        from kant.cli.app import main as run

        run()
    except KeyboardInterrupt:
        sys.exit(130)
