"""Sweeps for tests: a small one, and processes that run it."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import polars as pl
import pytest
from tests.cli.command import trace

SMALL = """
profiles = ["fifo", "srtf"]
clusters = ["4x8"]
seeds = 2

[[workloads]]
trace = "small.csv"

[[workloads]]
name = "drawn"
generate = "seren"
jobs = 60
days = 1
gpus = 32
"""


def write(folder: Path, text: str = SMALL, jobs: int = 60) -> Path:
    """The file of a sweep, with its trace beside it."""
    folder.mkdir(exist_ok=True)
    trace(folder / "small.csv", jobs=jobs)
    file = folder / "sweep.toml"
    file.write_text(text)
    return file


def fill_disk(patch: pytest.MonkeyPatch) -> None:
    """Let the fourth file that is written to the disk find it full."""
    fsync, calls = os.fsync, [0]

    def full(file: int) -> None:
        calls[0] += 1
        if calls[0] == 4:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        fsync(file)

    patch.setattr(os, "fsync", full)


def table(out: Path) -> pl.DataFrame:
    """The table of a sweep."""
    return pl.read_parquet(out / "runs.parquet")


def without_machine(frame: pl.DataFrame) -> pl.DataFrame:
    """The table without what is about the machine that ran it."""
    return frame.drop("cpu_s")
