"""Finished runs on disk: a file for each key, complete or absent."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from kant.files import write_bytes
from kant.model.errors import InputError

Record = dict[str, Any]


class RunStore:
    """The folder of finished runs. A record has the `summary` of a run, and its `key`, `kant` version and wall time."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def get(self, key: str) -> Record | None:
        """The record of a run, or None if it has not finished. An incomplete file counts as none."""
        try:
            found = msgspec.json.decode(self._path(key).read_bytes())
        except (OSError, msgspec.DecodeError):
            return None
        whole = isinstance(found, dict) and found.get("key") == key and isinstance(found.get("summary"), dict)
        return found if whole else None

    def put(self, key: str, record: Record) -> None:
        """Store a record so that it survives a crash of the machine. Raises OSError if nothing was stored."""
        self.folder.mkdir(parents=True, exist_ok=True)
        write_bytes(self._path(key), msgspec.json.encode(record))

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Lock the folder. Raises InputError if another process holds it."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / ".lock").open("ab") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise InputError(str(self.folder), "a folder into which no other command writes runs now") from None
            for rest in self.folder.glob(".*.part"):  # left by a process that was killed
                rest.unlink(missing_ok=True)
            yield

    def _path(self, key: str) -> Path:
        return self.folder / f"{key}.json"
