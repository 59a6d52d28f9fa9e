"""Identifies callers by token, or by the user at the other end of the socket. Changed token files are read again."""

from __future__ import annotations

import hmac
import logging
import os
import pwd
import socket
from pathlib import Path
from typing import TYPE_CHECKING

from aiohttp import web

from kant.live.logs import log_event
from kant.model.errors import InputError
from kant.service.roles import RANK, Caller, Role
from kant.service.socket_access import peer
from kant.service.tokens import TOKENS, Key, fresh_token, key_of, read_keys, write_private

if TYPE_CHECKING:
    from kant.service.oidc import Oidc

log = logging.getLogger("kant.service")
PAGE_TOKEN = "page.token"
Stamp = tuple[int, int, int, int]


def name_of(uid: int) -> str:
    """Return the name of a user of this machine, or the number as text if the user has no name."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def page_token(home: Path, fresh: bool = False) -> str:
    """Return the owner's token; create it if there is none or with `fresh`. Its file is plain text for the owner."""
    path = home / PAGE_TOKEN
    if fresh or not path.exists():
        home.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_private(path, fresh_token() + "\n")
    read_keys(path, "owner")  # check that only the owner can read it and that it is valid
    return path.read_text(encoding="utf-8").strip()


class Keys:
    """The keys in one file. A missing file has no keys; if it becomes invalid, its last valid keys stay in use."""

    def __init__(self, path: Path, owner: str) -> None:
        self.path = path
        self.owner = owner
        self.found: tuple[Key, ...] = ()
        self._stamp: Stamp | None = None

    def now(self) -> tuple[Key, ...]:
        """Return the current keys; read the file again if it has changed."""
        try:
            stat = self.path.stat()
        except FileNotFoundError:
            self._stamp, self.found = None, ()
            return ()
        stamp = (stat.st_mtime_ns, stat.st_size, stat.st_ino, stat.st_mode)
        if stamp != self._stamp:
            self._stamp = stamp
            try:
                self.found = read_keys(self.path, self.owner)
            except InputError as error:
                log_event(log, f"{error}; the previous tokens stay in use", logging.ERROR)
        return self.found


class Callers:
    """The callers that Kant knows: by the page's token, the home's tokens, `--token-file`, OIDC or the Unix socket."""

    def __init__(self, home: Path, token_file: Path | None = None, oidc: Oidc | None = None) -> None:
        self.oidc = oidc
        self.owner = name_of(os.getuid())
        self.files = [Keys(home / name, self.owner) for name in (PAGE_TOKEN, TOKENS)]
        self.pages: dict[int, str] = {}  # page tokens of this machine's users, until Kant stops
        if token_file is not None:
            read_keys(token_file, self.owner)  # a wrong file prevents a start; a later wrong version is ignored
            self.files.append(Keys(token_file, self.owner))

    def of(self, request: web.Request) -> Caller | None:
        """Return the caller of a request, or None if unknown. Over the socket, the caller is a user of this machine."""
        if request.transport is None:  # the caller has disconnected
            return None
        own = request.transport.get_extra_info("socket")
        if own is not None and own.family == socket.AF_UNIX:
            pid, user = peer(own)
            return self._of_user(user, f"uid {user}, pid {pid}")
        kind, _, token = request.headers.get("Authorization", "").partition(" ")
        if kind.lower() != "bearer":
            return None
        there = request.transport.get_extra_info("peername")
        origin = f"from {there[0] if there else 'nowhere'}"
        token = token.strip()
        key, uid = key_of(token, (one for file in self.files for one in file.now())), self._uid(token)
        if key is None and uid is None and self.oidc is not None:
            return self.oidc.caller(token, origin)
        if key is None:
            return self._of_user(uid, origin) if uid is not None else None
        return Caller(key.user, key.role, key.queues, origin)

    def page_of(self, request: web.Request, fresh: bool) -> str:
        """Return a page token for the user at the other end of the Unix socket. The token has the user's own rights.

        The token stays the same until Kant stops, or a call with `fresh`. Raises InputError for callers over TCP.
        """
        own = request.transport.get_extra_info("socket") if request.transport is not None else None
        if own is None or own.family != socket.AF_UNIX:
            raise InputError("page", "a request over the socket of this machine; over an address, use a token")
        _, uid = peer(own)
        if fresh or uid not in self.pages:
            self.pages[uid] = fresh_token()
        return self.pages[uid]

    def _uid(self, token: str) -> int | None:
        """Return the user whose page has this token. Compares with every token, so timing reveals nothing."""
        found = None
        for uid, known in self.pages.items():
            if hmac.compare_digest(known.encode(), token.encode()):
                found = uid
        return found

    def _of_user(self, uid: int, origin: str) -> Caller:
        """Return a user of this machine as a caller. Root and Kant's owner are operators; other users have the highest
        role of the tokens with their name. Without such a token they are tenants who may submit to every queue."""
        name = name_of(uid)
        if uid in (0, os.getuid()):
            return Caller(name, Role.OPERATOR, (), origin)
        keys = [key for file in self.files for key in file.now() if key.user == name]
        role = max((key.role for key in keys), key=RANK.__getitem__, default=Role.TENANT)
        return Caller(name, role, tuple(queue for key in keys for queue in key.queues), origin, is_unix=True)

    @property
    def is_shared(self) -> bool:
        """Whether any token other than the owner's page token exists, or OIDC is configured."""
        return self.oidc is not None or any(file.now() for file in self.files[1:])
