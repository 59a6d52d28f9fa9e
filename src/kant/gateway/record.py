"""The record of a router: one line for each finished request, with what arrived, where it went, and its times.

It is both an access log and a trace for replay. The format is that of Mooncake's traces (Qin et al., FAST'25), with
lengths and hashes of prompt blocks, and more fields. It contains no text. Blocks are numbered in order of arrival, so
equal numbers show only that prompts begin with the same text.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import OrderedDict
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from kant.gateway.backend import Placement
from kant.gateway.spans import LONGEST_NAME, Span
from kant.live.logs import log_event
from kant.model.errors import InputError
from kant.serving.prefix_index import BLOCK_TOKENS

log = logging.getLogger("kant.gateway")

FLUSH_S = 1.0
"""The number of seconds after the end of a request until its line is in the file."""

KNOWN = 1 << 20
"""The maximum number of blocks whose numbers are remembered. A forgotten block that returns counts as new."""


@dataclass(slots=True)
class RequestRecord:
    """A request and its outcome. `began` is in monotonic seconds. Status 499: the client has disconnected."""

    id: str
    path: str
    began: float
    tenant: str = ""
    placed: Placement | None = None
    status: int = 499
    prompt: int = 0
    """Tokens of its prompt as reported by the engine; 0 if not reported."""
    output: int = 0
    held_s: float = 0.0
    first_s: float | None = None
    backend: int | None = None
    """The last backend that it was sent to."""
    attempts: int = 0
    span: Span | None = None


class Record:
    """The record file, open for appending. Raises InputError if it cannot be written or is another kind of file."""

    def __init__(self, path: Path, router: str, policy: str, shadow: str = "") -> None:
        self.path, self.router, self.policy, self.shadow = path, router, policy, shadow
        self.lines: list[bytes] = []
        self.flushing: asyncio.TimerHandle | None = None
        self.numbers: OrderedDict[int, int] = OrderedDict()
        self.next = random.getrandbits(47)
        """Random, so that the numbers of two runs differ."""
        self._open()

    def _open(self) -> None:
        try:
            file = self.path.open("ab")
        except OSError as error:
            raise InputError(f"--record {self.path}", "a file that can be written", error.strerror) from None
        began = _began(self.path) if file.tell() else None
        self.file = file
        self.offset_s = time.time() - time.monotonic()
        self.zero_s = time.time() if began is None else began

    def reopen(self) -> None:
        """Continue in a new file of the same name, since the old file has been moved (log rotation)."""
        self.flush()
        old = self.file
        self._open()
        old.close()

    def close(self) -> None:
        """Write pending lines and close the file."""
        self.flush()
        self.file.close()

    def write(self, entry: RequestRecord, bytes_per_token: float) -> None:
        """Add the line of a finished request."""
        self.lines.append(self._line(entry, bytes_per_token))
        if self.flushing is None:
            self.flushing = asyncio.get_running_loop().call_later(FLUSH_S, self.flush)

    def flush(self) -> None:
        """Write pending lines. If the disk is full they are lost, with a warning in the log: requests continue."""
        if self.flushing is not None:
            self.flushing.cancel()
            self.flushing = None
        lines, self.lines = self.lines, []
        try:
            self.file.write(b"".join(lines))
            self.file.flush()
        except OSError as error:
            log_event(log, "lines of the record are lost", logging.WARNING, lines=len(lines), error=error.strerror)

    def _line(self, entry: RequestRecord, bytes_per_token: float) -> bytes:
        placed, came_s = entry.placed, entry.began + self.offset_s
        line: dict[str, Any] = {"timestamp": max(0.0, round(1e3 * (came_s - self.zero_s), 3))}
        if placed is None:
            line |= {"input_length": 0, "output_length": 0, "hash_ids": []}
        else:
            prompt = entry.prompt or placed.prompt
            blocks = list(placed.blocks[placed.adapter :]) or placed.ask.blocks("", bytes_per_token)[0]
            line |= {"input_length": prompt, "output_length": entry.output, "hash_ids": self._named(blocks, prompt)}
        line |= {
            "block_size": BLOCK_TOKENS,
            "time": datetime.fromtimestamp(came_s, UTC).isoformat(timespec="milliseconds"),
            "id": entry.id,
            "path": entry.path,
            "status": entry.status,
            "tenant": entry.tenant,
            "whole_s": round(time.monotonic() - entry.began, 6),
            "first_s": None if entry.first_s is None else round(entry.first_s, 6),
            "held_s": round(entry.held_s, 6),
            "backend": entry.backend,
            "attempts": entry.attempts,
            "router": self.router,
            "policy": self.policy,
        }
        if placed is not None:
            line |= {
                "model": placed.ask.model[:LONGEST_NAME],
                "stream": placed.ask.stream,
                "program": placed.program,
                "level": placed.level,
            }
            if placed.opinion is not None:
                other, later_s, agrees = placed.opinion
                line |= {"shadow": self.shadow, "shadow_backend": other, "shadow_later_s": round(later_s, 6)}
                line["shadow_agrees"] = agrees
        return msgspec.json.encode(line) + b"\n"

    def _named(self, blocks: list[int], prompt: int) -> list[int]:
        """Return a number for each block of a prompt. A partial block at the end gets a new number."""
        numbers, found = self.numbers, []
        for block in blocks[: prompt // BLOCK_TOKENS]:
            number = numbers.get(block)
            if number is None:
                number = numbers[block] = self._new()
                if len(numbers) > KNOWN:
                    numbers.popitem(last=False)
            else:
                numbers.move_to_end(block)
            found.append(number)
        return found + [self._new() for _ in range(-(-prompt // BLOCK_TOKENS) - len(found))]

    def _new(self) -> int:
        self.next += 1
        return self.next


class _First(msgspec.Struct):
    timestamp: float
    time: str


def _began(path: Path) -> float:
    """Return the time zero of a record, in seconds since 1970. Raises InputError if the file is not a record."""
    try:
        with path.open("rb") as file:
            first = msgspec.json.decode(file.readline(1 << 20), type=_First)
        return datetime.fromisoformat(first.time).timestamp() - first.timestamp / 1e3
    except (msgspec.MsgspecError, UnicodeDecodeError, ValueError):
        raise InputError(f"--record {path}", "a new file, or the record of a router", "another file") from None
