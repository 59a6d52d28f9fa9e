"""The audit: an append-only file of what was planned, ordered, done and refused, by whom and why.

Each line has the digest of the line before it, so that a changed or missing line is detected. The file announces each
order before it is carried out and records its effect afterwards: after a kill it shows how far a transaction got. The
state of a simulated world can be reproduced from its scenario and this file.
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

from kant.model.errors import InputError, SentenceError
from kant.ops.orders import Order
from kant.ops.world import Done

What = Literal["plan", "apply", "done", "applied", "failed", "interrupted", "refused", "step"]
BEGINNING = "0" * 32


class AuditBusyError(SentenceError):
    """Another caller is carrying out a change at the same moment."""

    def __init__(self, who: str) -> None:
        super().__init__(f"{who} is carrying out a change; wait a moment, and plan again")


class OpsEntry(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One line. `time_us` is on the clock of the world; `chain` is the digest of the line before.

    A plan has its `orders`, the `version` of the state to which it is bound, and the effects that were `shown` to the
    caller. A transaction (`txn`) has what was `done`, and the version of the state after it. `undoes` is the
    transaction that this one reverts, `key` the idempotency key of a submission. `approved` names who approved a plan
    beyond the limits. `code` is one word for the reason of a refusal.
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
    """The audit in a folder or, without a folder, of this process only. `entries` holds the entries read so far,
    `plans` the plan entries by plan id, `txns` the entries of each transaction by its id.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder
        self.name = "the audit"
        self.entries: list[OpsEntry] = []
        self.plans: dict[str, OpsEntry] = {}
        self.txns: dict[str, list[OpsEntry]] = {}
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
        """Exclude other writers: other threads of this server, and other processes that use the folder."""
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

    def news(self) -> list[OpsEntry]:
        """Return the entries that others have written since the last read. Raises InputError if old lines changed."""
        if self.folder is None or not self.path.exists():
            return []
        with self.path.open("rb") as file:
            file.seek(self._at)
            text = file.read()
        found = []
        for line in text.splitlines(keepends=True):
            if not line.endswith(b"\n"):  # partly written by a process that was killed
                os.truncate(self.path, self._at)
                break
            found.append(self._read(line))
            self._at += len(line)
        return found

    def _read(self, line: bytes) -> OpsEntry:
        where = f"{self.name}:{self.next_seq}"
        try:
            entry = msgspec.json.decode(line, type=OpsEntry)
        except msgspec.MsgspecError as error:
            raise InputError(where, f"an entry of an audit log ({error})") from None
        if entry.chain != self._last:
            raise InputError(where, "an unchanged file: the digest of the line before differs")
        self._last = digest(line)
        self._keep(entry)
        return entry

    def _keep(self, entry: OpsEntry) -> None:
        self.entries.append(entry)
        if entry.what == "plan":
            self.plans[entry.plan] = entry
        elif entry.txn and entry.what != "refused":
            self.txns.setdefault(entry.txn, []).append(entry)

    def write(self, what: What, time_us: int, **fields: object) -> OpsEntry:
        """Append an entry and return it once it is on disk."""
        while True:
            entry = OpsEntry(seq=self.next_seq, time_us=time_us, what=what, chain=self._last, **fields)  # type: ignore[arg-type]
            line = msgspec.json.encode(entry) + b"\n"
            if self._stored(entry, line):
                break
        self._last = digest(line)
        self._keep(entry)
        return entry

    def is_cut_off(self, last: OpsEntry, now_us: int) -> bool:
        """Whether a transaction with this last entry was abandoned. Always true for a file, since a writer at work
        would hold the lock."""
        return True

    @property
    def next_seq(self) -> int:
        """The sequence number of the next entry."""
        return self.entries[-1].seq + 1 if self.entries else 1

    def _stored(self, entry: OpsEntry, line: bytes) -> bool:
        """Store a line. Returns False if another writer was first; the other's entries have then been read."""
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
    """Return the digest of a line, which is the `chain` of the next line."""
    return hashlib.blake2b(line, digest_size=16).hexdigest()
