"""Journals of a live cluster: a folder of files, one for each time that a state was built.

Their names are in the order in which they were begun, whatever the clock did. They are for people and for
`kant replay`, not for truth: a disk that is full ends the record, not the scheduling.
"""

from __future__ import annotations

import calendar
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from kant.model.errors import InputError

NAME = re.compile(r"([0-9]{8}T[0-9]{6})\.([0-9]{6})\.jsonl")


def name_at(time_us: int) -> str:
    """The name of a journal that begins at a time (microseconds since the Unix epoch)."""
    seconds, rest = divmod(time_us, 10**6)
    return f"{time.strftime('%Y%m%dT%H%M%S', time.gmtime(seconds))}.{rest:06}.jsonl"


def time_of(name: str) -> int:
    """The time that the name of a journal says."""
    seconds, rest = name.split(".")[:2]
    return calendar.timegm(time.strptime(seconds, "%Y%m%dT%H%M%S")) * 10**6 + int(rest)


class Journals:
    """Writes to one file at a time. `on_trouble` is told once when a file cannot be written any more."""

    def __init__(self, folder: Path, on_trouble: Callable[[Exception], None] = lambda error: None) -> None:
        self.folder = folder
        self.on_trouble = on_trouble
        self._file: BinaryIO | None = None

    @property
    def path(self) -> Path | None:
        """The file that is written to; None where nothing is recorded."""
        return Path(self._file.name) if self._file is not None else None

    def open(self) -> Callable[[bytes], object]:
        """A new file, which ends the one before."""
        self.close()
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            last = max((path.name for path in self.folder.glob("*.jsonl") if NAME.fullmatch(path.name)), default="")
            name = name_at(time.time_ns() // 1000)
            if name <= last:
                name = name_at(time_of(last) + 1)
            self._file = (self.folder / name).open("xb", buffering=1 << 16)
        except OSError as error:
            self._give_up(error)
        return self._write

    def _write(self, line: bytes) -> None:
        if self._file is not None:
            try:
                self._file.write(line)
            except OSError as error:
                self._give_up(error)

    def flush(self) -> None:
        """What has been written can be read by others."""
        if self._file is not None:
            try:
                self._file.flush()
            except OSError as error:
                self._give_up(error)

    def close(self) -> None:
        self.flush()
        if self._file is not None:
            self._file.close()
            self._file = None

    def _give_up(self, error: OSError) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.detach() if hasattr(file, "detach") else None
        where = f"the journal in {self.folder}"
        self.on_trouble(
            InputError(where, f"a disk that can be written ({error.strerror}); nothing is recorded from now on")
        )
