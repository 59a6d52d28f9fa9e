"""Watch streams of the API server, and all requests through a proxy: they use a general HTTP client.

Errors are those of `wire`: TimeoutError, UnreachableError with its cause, OSError, GuardRefusedError.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from typing import Any

import aiohttp

from kant.kube.connect.config import Config
from kant.kube.connect.wire import GuardRefusedError, Response, UnreachableError

Guard = Callable[[], bool]
_GUARD: ContextVar[Guard | None] = ContextVar("guard", default=None)


class Session:
    """A session with the server of `config`, which sends headers and paths exactly as given."""

    def __init__(self, config: Config, context: ssl.SSLContext | None) -> None:
        self.server = config.server
        self._extra: dict[str, Any] = {"proxy": config.proxy} if config.proxy else {}
        self._extra |= {"server_hostname": config.server_name} if config.server_name else {}
        self._client = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, ssl=context or True, socket_factory=_socket),
            request_class=_Request,
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            skip_auto_headers=("Accept-Encoding", "User-Agent", "Content-Type"),
            headers={"User-Agent": "kant", "Accept": "application/json"},
            read_bufsize=1 << 20,
        )

    async def close(self) -> None:
        await self._client.close()

    @asynccontextmanager
    async def stream(
        self, path: str, headers: dict[str, str], connect: float, silence: float | None
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Send a GET that may last forever. TimeoutError: no connection in `connect` s, or no byte for `silence` s."""
        limit = aiohttp.ClientTimeout(total=None, sock_connect=connect, sock_read=silence)
        with _translated():
            async with self._client.get(self.server + path, headers=headers, timeout=limit, **self._extra) as response:
                yield response

    async def request(
        self, method: str, path: str, body: bytes | None, headers: dict[str, str], timeout: float, guard: Guard | None
    ) -> Response:
        """Send one request and return its whole response within `timeout` seconds, unless `guard` refuses it."""
        token = _GUARD.set(guard)
        try:
            with _translated():
                async with self._client.request(
                    method,
                    self.server + path,
                    data=body,
                    headers=headers,
                    timeout=aiohttp.ClientTimeout(total=timeout),
                    allow_redirects=False,
                    **self._extra,
                ) as response:
                    return Response(response.status, await response.read(), response.headers.get("Retry-After"))
        finally:
            _GUARD.reset(token)


class _Request(aiohttp.ClientRequest):
    """A request that calls the guard when there is a connection, right before it is written."""

    async def send(self, conn: aiohttp.connector.Connection) -> aiohttp.ClientResponse:
        guard = _GUARD.get()
        if guard is not None and not guard():
            raise GuardRefusedError
        return await super().send(conn)


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except aiohttp.ClientConnectorCertificateError as error:
        raise UnreachableError(str(error)) from error.certificate_error
    except aiohttp.ClientConnectorError as error:
        raise UnreachableError(str(error)) from error.os_error
    except TimeoutError:
        raise
    except aiohttp.ClientError as error:
        raise OSError(str(error) or type(error).__name__) from error


def _socket(address: tuple[Any, ...]) -> socket.socket:
    """Return a socket that detects within half a minute that the peer is gone, even if it only reads."""
    made = socket.socket(address[0], address[1], address[2])
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("TCP_KEEPIDLE", 15), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, option):
            made.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
    return made
