"""The output of a run as one stream of bytes, whose oldest part may have been deleted."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Output:
    """A part of the output: `data` from `offset` on; `end` is the current end of the stream. If `offset` is higher than
    requested, the bytes in between have been deleted."""

    offset: int
    data: bytes
    end: int


def parts(folder: Path) -> list[tuple[int, Path]]:
    """Return the files of a run's output, each with its first offset."""
    found = ((path.name.partition(".")[2], path) for path in folder.glob("log.*"))
    return sorted((int(offset), path) for offset, path in found if offset.isdigit())


def read_output(folder: Path, offset: int = 0, most: int = 1 << 20) -> Output:
    """Read at most `most` bytes from `offset` on; a negative offset counts from the end."""
    files = parts(folder)
    sizes = [(begin, path, _size(path)) for begin, path in files]
    end = max((begin + size for begin, _, size in sizes), default=0)
    at = max(end + offset, 0) if offset < 0 else min(offset, end)
    if sizes:
        at = max(at, sizes[0][0])
    data, first = b"", at
    for begin, path, size in sizes:
        if begin <= at < begin + size and len(data) < most:
            try:
                with path.open("rb") as file:
                    file.seek(at - begin)
                    data += file.read(most - len(data))
            except FileNotFoundError:  # the file has just been deleted
                return read_output(folder, begin + size, most)
            at = first + len(data)
    return Output(first, data, end)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
