"""Credentials of requests, renewed before they expire."""

from __future__ import annotations

import base64
import time
from pathlib import Path

from kant.model.errors import InputError

REREAD = 60.0  # seconds after which a file is read again; the kubelet renews a token long before it expires


class Credentials:
    """No `Authorization` header: anonymous, or identified by a client certificate."""

    _header: str | None = None
    _until: float = float("inf")  # in seconds on the monotonic clock
    pair: tuple[str, str] | None = None
    """The client certificate and its key, both PEM text, from the last renewal; None for none."""
    refused = False
    """Whether the server rejected the last renewed credentials."""

    def fresh(self) -> bool:
        return time.monotonic() < self._until

    @property
    def header(self) -> str | None:
        """The value of the header `Authorization` from the last renewal. None: no such header is sent."""
        return self._header

    async def renew(self) -> None:
        """Renew `header` and `pair`. If that fails, leaves both as they were and raises InputError."""

    def forget(self) -> None:
        """Note that the server rejected the credentials: renew them before the next request."""


class Bearer(Credentials):
    """A token from the configuration."""

    def __init__(self, token: str) -> None:
        self._header = f"Bearer {token}"


class Password(Credentials):
    """A name and a password."""

    def __init__(self, name: str, password: str) -> None:
        self._header = "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()


class TokenFile(Credentials):
    """A token in a file that another program updates."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._until = 0.0

    async def renew(self) -> None:
        try:
            text = self.path.read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "text in another encoding"
            raise InputError("the token", f"a file that can be read at {self.path}", reason) from error
        self._header = bearer(text, f"the token in {self.path}")
        self._until, self.refused = time.monotonic() + REREAD, False

    def forget(self) -> None:
        self._until, self.refused = 0.0, True


def bearer(token: str, where: str) -> str:
    """Return the value of `Authorization` for a token. Raises InputError, naming `where`, unless it is one line."""
    if not token or not token.isprintable():
        raise InputError(where, "one line of text", "nothing" if not token else "line breaks within it")
    return f"Bearer {token}"
