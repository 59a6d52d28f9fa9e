"""A WebSocket client (RFC 6455) for Kant, with only the standard library. A message is a letter and bytes.

Sending and receiving never block: the owner of an `OpenWebSocket` waits for its descriptor.
"""

from __future__ import annotations

import os
import socket
from base64 import b64encode
from collections.abc import Iterator
from hashlib import sha1
from io import BytesIO

from kant.service.socket_http import BrokenAnswerError, HttpResponse

GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"  # RFC 6455, 1.3
MOST_HEAD = 1 << 16
CONTINUED, BINARY, CLOSE, PING, PONG = 0, 2, 8, 9, 10
LAST, MASKED = 0x80, 0x80
PIECE = 1 << 16


def masked(data: bytes, key: bytes) -> bytes:
    """Mask data as a client must: XOR with the four bytes of the key in turn."""
    size = len(data)
    stream = (key * (size // 4 + 1))[:size]
    return (int.from_bytes(data, "big") ^ int.from_bytes(stream, "big")).to_bytes(size, "big")


def packet(operation: int, payload: bytes, key: bytes) -> bytes:
    """Encode a client's frame."""
    size = len(payload)
    if size < 126:
        head = bytes([LAST | operation, MASKED | size])
    elif size < 1 << 16:
        head = bytes([LAST | operation, MASKED | 126]) + size.to_bytes(2, "big")
    else:
        head = bytes([LAST | operation, MASKED | 127]) + size.to_bytes(8, "big")
    return head + key + masked(payload, key)


class Packets:
    """Decodes a server's frames from a stream of chunks."""

    def __init__(self, left: bytes = b"") -> None:
        self._left = left
        self._parts = b""

    def feed(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """Add data, and yield the messages that are now complete: opcode and payload."""
        self._left += data
        while len(self._left) >= 2:
            first, size, at = self._left[0], self._left[1] & 0x7F, 2
            if size > 125:
                wide = 2 if size == 126 else 8
                size, at = int.from_bytes(self._left[2 : 2 + wide], "big"), 2 + wide
            if len(self._left) < at + size:
                return
            payload, self._left = self._left[at : at + size], self._left[at + size :]
            operation = first & 0x0F
            if operation > PING - 2:  # a control frame: never fragmented
                yield operation, payload
                continue
            self._parts += payload
            if first & LAST:
                whole, self._parts = self._parts, b""
                yield BINARY, whole


class OpenWebSocket:
    """An open WebSocket. `closed`: the other end has sent a close frame or disconnected."""

    def __init__(self, own: socket.socket, left: bytes = b"") -> None:
        self.own = own
        self.own.setblocking(False)
        self.out = b""
        self.closed = False
        self._packets = Packets()
        self._first = left

    def fileno(self) -> int:
        """Return the file descriptor of the socket, for which the owner waits."""
        return self.own.fileno()

    def send(self, kind: bytes, payload: bytes = b"") -> None:
        """Queue a message."""
        self._put(BINARY, kind + payload)

    def _put(self, operation: int, payload: bytes) -> None:
        self.out += packet(operation, payload, os.urandom(4))

    def flush(self) -> None:
        """Send queued data without blocking."""
        try:
            while self.out:
                self.out = self.out[self.own.send(self.out[:PIECE]) :]
        except OSError as error:
            if not _again(error):
                self.closed, self.out = True, b""

    def messages(self) -> list[tuple[bytes, bytes]]:
        """Return the messages received so far."""
        found: list[tuple[bytes, bytes]] = []
        while True:
            data, self._first = self._first, b""
            try:
                data = data or self.own.recv(PIECE)
            except OSError as error:
                self.closed = self.closed or not _again(error)
                return found
            if not data:
                self.closed = True
                return found
            for operation, payload in self._packets.feed(data):
                if operation == BINARY:
                    found.append((payload[:1], payload[1:]))
                elif operation == PING:
                    self._put(PONG, payload)
                elif operation == CLOSE:
                    self._put(CLOSE, payload[:2])
                    self.flush()
                    self.closed = True
            if len(found) > 64:
                return found

    def close(self) -> None:
        """Close the socket."""
        self.own.close()


def _again(error: OSError) -> bool:
    """Return whether the error means that the operation would block; TLS has its own errors for this."""
    return isinstance(error, BlockingIOError) or type(error).__name__ in ("SSLWantReadError", "SSLWantWriteError")


def open_line(own: socket.socket, host: str, target: str, headers: dict[str, str]) -> OpenWebSocket | HttpResponse:
    """Request a WebSocket; return it, or the response that refuses it. Raises OSError and BrokenAnswerError."""
    key = b64encode(os.urandom(16))
    rows = [f"GET {target} HTTP/1.1", f"Host: {host}", "Connection: Upgrade", "Upgrade: websocket"]
    rows += [f"Sec-WebSocket-Key: {key.decode()}", "Sec-WebSocket-Version: 13"]
    rows += [f"{name}: {value}" for name, value in headers.items()]
    own.sendall("\r\n".join([*rows, "", ""]).encode("latin-1"))
    head = b""
    while b"\r\n\r\n" not in head:
        data = own.recv(PIECE)
        if not data or len(head) > MOST_HEAD:
            raise BrokenAnswerError("it ends too early")
        head += data
    head, _, left = head.partition(b"\r\n\r\n")
    answer = HttpResponse(BytesIO(head + b"\r\n\r\n" + left))
    if answer.status == 101:
        if answer.getheader("Sec-WebSocket-Accept") != b64encode(sha1(key + GUID).digest()).decode():
            raise BrokenAnswerError("a WebSocket with another key")
        return OpenWebSocket(own, left)
    length = int(answer.getheader("Content-Length") or 0)
    while len(left) < length and (data := own.recv(PIECE)):
        left += data
    return HttpResponse(BytesIO(head + b"\r\n\r\n" + left))
