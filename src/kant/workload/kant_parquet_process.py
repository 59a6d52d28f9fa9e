"""Reads Parquet in a child process, because a damaged file can crash the library that decodes it.

Decoders trust the lengths in the pages of a Parquet file. One flipped bit can make Polars request exabytes and abort
the process, which no `except` catches. The child decodes and checks the table, and returns plain columns. If the child
dies, the file is invalid, and the caller gets an InputError like any other.
"""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import msgspec
import numpy as np

from kant.files import open_bytes
from kant.model.errors import InputError
from kant.workload.table import Table

MEMORY = 16 << 30
"""Maximum bytes of the child's address space."""
PATIENCE_S = 600


class _Answer(msgspec.Struct):
    """The child's answer: columns (integers as bytes), or the parts of an InputError."""

    rows: int = 0
    numbers: dict[str, bytes] = {}
    texts: dict[str, list[str]] = {}
    error: tuple[str, str, str | int | float | None] | None = None


def read_parquet(path: Path) -> Table:
    """Return the table of a file. Raises InputError if it is not a complete Parquet file, or not Kant's table."""
    with open_bytes(path):
        pass
    command = [sys.executable, "-P", "-m", __name__, str(path)]
    environment = os.environ | {"POLARS_MAX_THREADS": "2", "RUST_BACKTRACE": "0"}
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, env=environment, timeout=PATIENCE_S
        )
        answer = msgspec.msgpack.decode(done.stdout, type=_Answer) if done.returncode == 0 else None
    except subprocess.TimeoutExpired:
        answer = None
    if answer is None:
        raise InputError(str(path), "a whole Parquet file", "one that can be decoded")
    if answer.error is not None:
        raise InputError(*answer.error)
    numbers = {name: np.frombuffer(column, dtype=np.int64) for name, column in answer.numbers.items()}
    return Table(answer.rows, numbers, answer.texts)


def main(path: str) -> None:
    """Run the child: decode `path`, and write the answer to standard output."""
    with suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    from kant.workload.kant_parquet import decode

    try:
        table = decode(Path(path))
        answer = _Answer(table.rows, {k: v.tobytes() for k, v in table.numbers.items()}, table.texts)
    except InputError as error:
        got = error.got if isinstance(error.got, str | int | float | None) else str(error.got)
        answer = _Answer(error=(error.where, error.expected, got))
    sys.stdout.buffer.write(msgspec.msgpack.encode(answer))
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main(sys.argv[1])
