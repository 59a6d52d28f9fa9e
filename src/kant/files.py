"""Reads plain or gzip files, with a clear error if a file is unreadable, and replaces files atomically."""

from __future__ import annotations

import errno
import gzip
import io
import os
import signal
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from kant.model.errors import InputError

if TYPE_CHECKING:
    from polars import DataFrame

GZIP_MAGIC = b"\x1f\x8b"
HEAD = 64 * 1024
"""How many bytes are read to detect the format of a file."""


@contextmanager
def open_bytes(path: Path) -> Iterator[BinaryIO]:
    """The content of `path`, unpacked if it begins with the gzip magic bytes (regardless of its name).

    Raises InputError, also from inside the block, when the file is missing, is no regular file, cannot be read, or is a
    broken gzip stream.
    """
    try:
        if not path.exists():
            raise InputError(str(path), "a file that exists")
        if not path.is_file():
            raise InputError(str(path), "a regular file")
        with path.open("rb") as raw:
            packed = raw.read(2) == GZIP_MAGIC
            raw.seek(0)
            if packed:
                with gzip.GzipFile(fileobj=raw) as plain, io.BufferedReader(plain) as stream:
                    yield stream
            else:
                yield raw
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InputError(str(path), "a whole gzip file", str(error)) from error
    except OSError as error:
        raise InputError(str(path), "a file that can be read", error.strerror or str(error)) from error
    except ValueError as error:
        if "null" not in str(error):
            raise
        raise InputError(str(path), "a path without NUL characters") from error


def read_bytes(path: Path) -> bytes:
    """The whole content of `path`. Raises InputError as `open_bytes` does."""
    with open_bytes(path) as stream:
        return stream.read()


@contextmanager
def open_text(path: Path) -> Iterator[io.TextIOWrapper]:
    """Open `path` as UTF-8 text, less a byte-order mark. Raises InputError as `open_bytes`, or if it is not UTF-8."""
    with open_bytes(path) as stream:
        text = io.TextIOWrapper(stream, encoding="utf-8-sig", newline="")
        try:
            yield text
        except UnicodeDecodeError as error:
            raise InputError(str(path), "text in UTF-8", error.reason) from error


def head(path: Path) -> bytes:
    """The first 64 KiB of the content, to detect the format. Raises InputError as `open_bytes` does."""
    with open_bytes(path) as stream:
        return stream.read(HEAD)


@contextmanager
def full_disk_named(place: Path) -> Iterator[None]:
    """Raise InputError that names the file or folder, if its disk is full, or has an error, when the block writes."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO):
            raise
        raise InputError(str(place), f"a place that can be written ({error.strerror or error})") from None


def write_parquet(frame: DataFrame, out: BinaryIO) -> None:
    """Write a table as Parquet. Raises OSError if the disk is full, instead of polars' own kind of error."""
    while True:
        whole = io.BytesIO()
        try:
            frame.write_parquet(whole)
            break
        except KeyboardInterrupt:  # polars has its own handler of Ctrl-C, also where the process ignores Ctrl-C
            if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
                raise
    out.write(whole.getbuffer())


def write_bytes(path: Path, content: bytes, mode: int = 0o666) -> None:
    """Write a whole file with `replacing`."""
    with replacing(path, mode) as out:
        out.write(content)


@contextmanager
def replacing(path: Path, mode: int = 0o666) -> Iterator[BinaryIO]:
    """Yield a new file with permissions `mode`, less the umask, which replaces `path` as a whole when the block ends.

    The file is then on disk and survives a crash; if the block fails, `path` stays as it was. A pipe or a device is
    written directly, and a symbolic link stays. Raises OSError.
    """
    if path.exists() and not path.is_file():
        with path.open("wb") as out:
            yield out
        return
    path = Path(os.path.realpath(path))
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        number = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
        try:
            with os.fdopen(number, "wb") as out:
                yield out
                out.flush()
                os.fsync(out.fileno())
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)
    except OSError as error:
        if error.filename == str(part):
            error.filename = str(path)
        raise
