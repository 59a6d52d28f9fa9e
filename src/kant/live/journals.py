"""Journals of a live cluster: a folder of files, one for each time that a state was built.

The names of the files sort in the order of their creation, even if the clock goes back. People and `kant replay` read
the files, but Kant does not depend on them: a full disk ends the recording, not the scheduling. Recording continues in
a new file once the disk can be written again.
"""

from __future__ import annotations

import calendar
import re
import time
from collections.abc import Callable
from contextlib import suppress
from io import FileIO
from pathlib import Path

from kant.model.errors import InputError

NAME = re.compile(r"([0-9]{8}T[0-9]{6})\.([0-9]{6})\.jsonl")
BUFFER = 1 << 16  # bytes
PROBE = 1 << 20  # bytes that the disk must accept before the record continues
RETRY = 30.0  # seconds between two checks of a disk that could not be written


def name_at(time_us: int) -> str:
    """Return the name of a journal that begins at a time (microseconds since the Unix epoch)."""
    seconds, rest = divmod(time_us, 10**6)
    return f"{time.strftime('%Y%m%dT%H%M%S', time.gmtime(seconds))}.{rest:06}.jsonl"


def time_of(name: str) -> int:
    """Return the time in the name of a journal, in microseconds since the Unix epoch."""
    seconds, rest = name.split(".")[:2]
    return calendar.timegm(time.strptime(seconds, "%Y%m%dT%H%M%S")) * 10**6 + int(rest)


class Journals:
    """A folder of journals, of which one file at a time is written.

    `trouble` says why nothing is recorded now ("": all is well); `on_trouble` is called when trouble begins. The files
    take at most `most_bytes` (0: no limit): the oldest are removed, and `wants_new_file` is true once the current file
    has a quarter of `most_bytes`.
    """

    def __init__(
        self,
        folder: Path,
        on_trouble: Callable[[Exception], None] = lambda error: None,
        most_bytes: int = 0,
    ) -> None:
        self.folder = folder
        self.on_trouble = on_trouble
        self.most_bytes = most_bytes
        self.trouble = ""
        self._file: FileIO | None = None
        self._buffer = bytearray()
        self._written = 0
        self._retry_at = 0.0

    @property
    def path(self) -> Path | None:
        """The current file; None if nothing is recorded."""
        return Path(self._file.name) if self._file is not None else None

    def open(self) -> Callable[[bytes], object]:
        """Close the current file, if any, and open a new one; return the new file's write function."""
        self.close()
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            earlier = self._files()
            last = earlier[-1].name if earlier else ""
            name = name_at(time.time_ns() // 1000)
            if name <= last:
                name = name_at(time_of(last) + 1)
            self._remove_oldest(earlier, self.most_bytes * 3 // 4)
            self._file = FileIO(self.folder / name, "xb")
            self._written, self.trouble = 0, ""
        except OSError as error:
            self._give_up(error)
        return self._write

    def wants_new_file(self) -> bool:
        """Return whether a new file should be opened: the current file is long, or a full disk has room again."""
        if self._file is not None:
            return 0 < self.most_bytes <= 4 * self._written
        now = time.monotonic()
        if not self.trouble or now < self._retry_at:
            return False
        self._retry_at = now + RETRY
        return self._has_room()

    def flush(self) -> None:
        """Write the buffer to the file, so that other processes can read it."""
        if self._file is not None:
            try:
                while self._buffer:
                    count = self._file.write(self._buffer)
                    del self._buffer[:count]
                    self._written += count
            except OSError as error:
                self._give_up(error)

    def close(self) -> None:
        """End the current file, if any."""
        self.flush()
        self._close()

    def _write(self, line: bytes) -> None:
        if self._file is not None:
            self._buffer += line
            if len(self._buffer) >= BUFFER:
                self.flush()

    def _close(self) -> None:
        file, self._file = self._file, None
        self._buffer.clear()
        if file is not None:
            with suppress(OSError):  # a network disk may report only now that it is full
                file.close()

    def _files(self) -> list[Path]:
        return sorted(path for path in self.folder.glob("*.jsonl") if NAME.fullmatch(path.name))

    def _remove_oldest(self, files: list[Path], most: int) -> None:
        """Remove the oldest files until the others take at most `most` bytes; with 0 no file is removed."""
        sizes = [path.stat().st_size for path in files]
        for path, left in zip(files, [sum(sizes[at:]) for at in range(len(sizes))], strict=True):
            if not 0 < most < left:
                break
            path.unlink()

    def _has_room(self) -> bool:
        """Return whether the disk has room; if not, remove the oldest file, so that the next check may succeed."""
        probe = self.folder / "probe.tmp"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            probe.write_bytes(bytes(PROBE))
            return True
        except OSError:
            files = self._files()
            if self.most_bytes and files:
                with suppress(OSError):
                    files[0].unlink()
            return False
        finally:
            with suppress(OSError):
                probe.unlink(missing_ok=True)

    def _give_up(self, error: OSError) -> None:
        self._close()
        self._retry_at = time.monotonic() + RETRY
        self.trouble = f"the journal in {self.folder}: {error.strerror}"
        where = f"the journal in {self.folder}"
        self.on_trouble(
            InputError(where, f"a disk that can be written ({error.strerror}); nothing is recorded until then")
        )
