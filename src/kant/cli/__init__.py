"""The command line: one file a verb. Verbs import what is heavy only when they run, so that `--help` is quick."""

from kant.cli.app import main

__all__ = ["main"]
