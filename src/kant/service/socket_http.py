"""One question and its answer over HTTP on a Unix socket, with nothing but `socket`.

`http.client` of the standard library would do; loading it takes longer than all else that a short command does. The
question says HTTP/1.0, so the server closes the connection at the end of its answer and never sends it in chunks.
"""

from __future__ import annotations

import socket
from contextlib import suppress
from typing import BinaryIO

MOST_HEADERS = 1 << 16  # bytes


class BrokenAnswerError(Exception):
    """What came is no answer of HTTP."""


class Answer:
    """An answer whose head has been read: the parts of `http.client.HTTPResponse` that are needed."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        words = self._line().split(" ", 2)
        if len(words) < 2 or not words[0].startswith("HTTP/1.") or not words[1].isdigit():
            raise BrokenAnswerError("no status")
        self.status, self.reason = int(words[1]), words[2] if len(words) > 2 else ""
        self._headers: dict[str, tuple[str, str]] = {}
        while line := self._line():
            name, colon, value = line.partition(":")
            if not colon:
                raise BrokenAnswerError("a header without a name")
            self._headers[name.lower()] = (name, value.strip())
        length = self.getheader("Content-Length")
        self._left = int(length) if length is not None and length.isdigit() else None

    def _line(self) -> str:
        line = self._stream.readline(MOST_HEADERS)
        if not line.endswith(b"\n"):
            raise BrokenAnswerError("it ends too early")
        return line.decode("latin-1").rstrip("\r\n")

    def getheader(self, name: str) -> str | None:
        """The value of a header, None where there is none."""
        found = self._headers.get(name.lower())
        return found[1] if found is not None else None

    def getheaders(self) -> list[tuple[str, str]]:
        """All headers, as they are written."""
        return list(self._headers.values())

    def read(self) -> bytes:
        """All that is left. Raises ConnectionError where it ends before the length that was said."""
        return b"".join(iter(lambda: self.read1(1 << 20), b""))

    def read1(self, most: int) -> bytes:
        """What has come, at most so much; nothing at the end. Raises ConnectionError where it ends too early."""
        if self._left == 0:
            return b""
        part = self._stream.read1(most if self._left is None else min(most, self._left))  # type: ignore[attr-defined]
        if self._left is not None:
            if not part:
                raise ConnectionError("it ends too early")
            self._left -= len(part)
        return bytes(part)


def exchange(path: str, method: str, target: str, body: bytes | None, headers: dict[str, str]) -> Answer:
    """Ask the server at a socket. Raises OSError where nobody listens, BrokenAnswerError for what is no answer."""
    head = [f"{method} {target} HTTP/1.0", "Host: localhost", *(f"{name}: {value}" for name, value in headers.items())]
    if body is not None or method == "POST":
        head.append(f"Content-Length: {len(body or b'')}")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
        line.connect(path)
        with suppress(BrokenPipeError):  # it may answer before it has read everything
            line.sendall("\r\n".join([*head, "", ""]).encode("latin-1") + (body or b""))
        return Answer(line.makefile("rb"))
