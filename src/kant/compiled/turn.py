"""A lock between processes: a process that needs a kernel waits while another one compiles it."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

PATIENCE_S = 60.0
"""The longest wait in seconds: the other process may have been stopped."""
LOOK_S = 0.02


class Turn:
    """The lock on compiling the kernel of `file`, from creation until `end`."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._lock = os.open(file, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end:
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                time.sleep(LOOK_S)
            except OSError:  # not every file system has locks
                break
            else:
                break

    def end(self) -> None:
        """Release the lock."""
        self._file.unlink(missing_ok=True)
        fcntl.flock(self._lock, fcntl.LOCK_UN)  # closing is not enough if this process has forked
        os.close(self._lock)
