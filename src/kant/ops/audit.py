"""The audit: an append-only file of what was planned, ordered, done and refused, by whom and why.

Each line has the digest of the line before it, so a line that was changed or taken out shows. Before an order is
carried out the file says that it will be, and afterwards what it did; so after a kill it says how far a transaction
came. What a simulated world is follows from its scenario and this file alone.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import Struct

from kant.model.errors import InputError
from kant.ops.orders import Order
from kant.ops.world import Done

What = Literal["plan", "apply", "done", "applied", "failed", "interrupted", "refused", "step"]
BEGINNING = "0" * 32


class BusyError(InputError):
    """Somebody else carries a change out at the same moment."""

    def __init__(self, who: str) -> None:
        super().__init__("", "")
        self.args = (f"{who} carries out a change now; look in a moment, and plan anew",)


class Entry(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One line. `time_us` is on the clock of the world; `chain` is the digest of the line before.

    A plan has its `orders`, the `version` of the state that it is bound to, and what was `shown` of its effects; a
    transaction (`txn`) has what was `done`, and the version after it. `undoes` is the transaction that it takes back,
    `key` that of a submission.
    `approved` says who was asked beyond the limits. Of a refusal `code` is one word for why.
    """

    seq: int
    time_us: int
    what: What
    who: str = ""
    role: str = ""
    via: str = ""
    reason: str = ""
    plan: str = ""
    txn: str = ""
    undoes: str = ""
    key: str = ""
    orders: tuple[Order, ...] = ()
    done: Done | None = None
    version: str = ""
    lost_gpu_s: float = 0.0
    approved: str = ""
    shown: dict[str, Any] = {}
    code: str = ""
    sentence: str = ""
    chain: str = BEGINNING


class Audit:
    """The entries of a folder, or where there is none of this process alone. `entries` are those that were read,
    `plans` and `txns` the same by the plan that they make and by their transaction."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder
        self.name = "the audit"
        self.entries: list[Entry] = []
        self.plans: dict[str, Entry] = {}
        self.txns: dict[str, list[Entry]] = {}
        self._last = BEGINNING
        self._at = 0
        self._depth = 0
        self._mutex = threading.RLock()
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self.path = folder / "audit.jsonl"
            self.name = str(self.path)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Nobody else writes meanwhile: no other thread of this server, and no other process of the folder."""
        with self._mutex:
            handle = -1
            if self.folder is not None and not self._depth:
                handle = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                if handle >= 0:
                    fcntl.flock(handle, fcntl.LOCK_EX)
                self._depth += 1
                try:
                    yield
                finally:
                    self._depth -= 1
            finally:
                if handle >= 0:
                    os.close(handle)

    def news(self) -> list[Entry]:
        """What others have written since it was read last. Raises InputError for a file that was changed."""
        if self.folder is None or not self.path.exists():
            return []
        with self.path.open("rb") as file:
            file.seek(self._at)
            text = file.read()
        found = []
        for line in text.splitlines(keepends=True):
            if not line.endswith(b"\n"):  # written by a process that was killed
                os.truncate(self.path, self._at)
                break
            found.append(self._read(line))
            self._at += len(line)
        return found

    def _read(self, line: bytes) -> Entry:
        where = f"{self.name}:{self.next_seq}"
        try:
            entry = msgspec.json.decode(line, type=Entry)
        except msgspec.MsgspecError as error:
            raise InputError(where, f"a line of an audit ({error})") from None
        if entry.chain != self._last:
            raise InputError(where, "the line that was written after the one before it: the file was changed")
        self._last = digest(line)
        self._keep(entry)
        return entry

    def _keep(self, entry: Entry) -> None:
        self.entries.append(entry)
        if entry.what == "plan":
            self.plans[entry.plan] = entry
        elif entry.txn and entry.what != "refused":
            self.txns.setdefault(entry.txn, []).append(entry)

    def write(self, what: What, time_us: int, **fields: object) -> Entry:
        """Add a line. It is on the disk when this returns."""
        while True:
            entry = Entry(seq=self.next_seq, time_us=time_us, what=what, chain=self._last, **fields)  # type: ignore[arg-type]
            line = msgspec.json.encode(entry) + b"\n"
            if self._stored(entry, line):
                break
        self._last = digest(line)
        self._keep(entry)
        return entry

    def is_cut_off(self, last: Entry, now_us: int) -> bool:
        """Whether nobody goes on with a transaction whose last line this is: who does has the lock."""
        return True

    @property
    def next_seq(self) -> int:
        """The number of the next entry."""
        return self.entries[-1].seq + 1 if self.entries else 1

    def _stored(self, entry: Entry, line: bytes) -> bool:
        """Keep a line. False: another has been written meanwhile, and is known by now."""
        if self.folder is not None:
            handle = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                os.write(handle, line)
                os.fsync(handle)
            except OSError as error:
                raise InputError(str(self.path), f"a disk that can be written ({error})") from None
            finally:
                os.close(handle)
            self._at += len(line)
        return True


def digest(line: bytes) -> str:
    """What the line after this one has as its `chain`."""
    return hashlib.blake2b(line, digest_size=16).hexdigest()
