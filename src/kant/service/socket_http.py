"""One HTTP request and its response on a Unix socket, with only the module `socket`.

`http.client` of the standard library would work, but importing it takes longer than the rest of a short command. The
request is HTTP/1.0, so the server closes the connection after its response and never sends it in chunks.
"""

from __future__ import annotations

import socket
from contextlib import suppress
from typing import BinaryIO

MOST_HEADERS = 1 << 16  # bytes


class BrokenAnswerError(Exception):
    """The response is not valid HTTP."""


class HttpResponse:
    """A response whose head has been read: the needed parts of `http.client.HTTPResponse`."""

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
        """Return the value of a header, or None."""
        found = self._headers.get(name.lower())
        return found[1] if found is not None else None

    def getheaders(self) -> list[tuple[str, str]]:
        """Return all headers, with their names as written."""
        return list(self._headers.values())

    def read(self) -> bytes:
        """Return the rest of the body. Raises ConnectionError if it is shorter than its Content-Length."""
        return b"".join(iter(lambda: self.read1(1 << 20), b""))

    def read1(self, most: int) -> bytes:
        """Return at most `most` bytes of the body; b"" at its end. Raises ConnectionError if it ends too early."""
        if self._left == 0:
            return b""
        part = self._stream.read1(most if self._left is None else min(most, self._left))  # type: ignore[attr-defined]
        if self._left is not None:
            if not part:
                raise ConnectionError("it ends too early")
            self._left -= len(part)
        return bytes(part)


def exchange(path: str, method: str, target: str, body: bytes | None, headers: dict[str, str]) -> HttpResponse:
    """Send a request to the socket at `path`. Raises OSError if nobody listens, BrokenAnswerError for invalid HTTP."""
    head = [f"{method} {target} HTTP/1.0", "Host: localhost", *(f"{name}: {value}" for name, value in headers.items())]
    if body is not None or method == "POST":
        head.append(f"Content-Length: {len(body or b'')}")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
        line.connect(path)
        with suppress(BrokenPipeError):  # the server may respond before it has read everything
            line.sendall("\r\n".join([*head, "", ""]).encode("latin-1") + (body or b""))
        return HttpResponse(line.makefile("rb"))
