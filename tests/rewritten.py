"""Rewrite the assertions of all modules of tests once, where each worker of pytest-xdist would do it at the same time.

It is what pytest does when it imports such a module, and writes the same files.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest
from _pytest.assertion import rewrite


def rewrite_new(config: pytest.Config, modules: Sequence[Path]) -> None:
    """Rewrite those that are new or changed, on two cores."""
    state = config.stash[rewrite.assertstate_key]
    new = [(path, pyc) for path in modules if rewrite._read_pyc(path, pyc := _cached(path)) is None]
    child = os.fork() if len(new) > 1 else None
    for path, pyc in new[bool(child) :: 2] if child is not None else new:
        if rewrite.try_makedirs(pyc.parent):
            stat, code = rewrite._rewrite_test(path, config)
            rewrite._write_pyc(state, code, stat, pyc)
    if child == 0:
        os._exit(0)
    if child:
        os.waitpid(child, 0)


def _cached(path: Path) -> Path:
    return Path(rewrite.get_cache_dir(path)) / f"{path.stem}{rewrite.PYC_TAIL}"
