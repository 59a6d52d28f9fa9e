"""Who calls: the owner of the other end of the socket, or whose token it is. Files are read anew when they change."""

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
from kant.service.door import peer
from kant.service.roles import RANK, Caller, Role
from kant.service.tokens import TOKENS, Key, digest, fresh_token, read_keys, write_private

if TYPE_CHECKING:
    from kant.service.oidc import Oidc

log = logging.getLogger("kant.service")
PAGE_TOKEN = "page.token"
Stamp = tuple[int, int, int, int]


def name_of(uid: int) -> str:
    """The name of a user of this machine."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def page_token(home: Path, fresh: bool = False) -> str:
    """The token of Kant's owner, made where there is none yet. It is in clear, so that its owner sees it again."""
    path = home / PAGE_TOKEN
    if fresh or not path.exists():
        home.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_private(path, fresh_token() + "\n")
    read_keys(path, "owner")  # it may be read by nobody else, and is one
    return path.read_text(encoding="utf-8").strip()


class Keys:
    """The keys of one file as it is now. A file that is gone has none; of one that is wrong the last good ones stay."""

    def __init__(self, path: Path, owner: str) -> None:
        self.path = path
        self.owner = owner
        self.found: tuple[Key, ...] = ()
        self._stamp: Stamp | None = None

    def now(self) -> tuple[Key, ...]:
        """The keys."""
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
                log_event(log, f"{error}; the tokens from before stay", logging.ERROR)
        return self.found


class Callers:
    """All who may come by an address: by the page's token, the home's tokens, those of `--token-file`, and of OIDC."""

    def __init__(self, home: Path, token_file: Path | None = None, oidc: Oidc | None = None) -> None:
        self.oidc = oidc
        self.owner = name_of(os.getuid())
        self.files = [Keys(home / name, self.owner) for name in (PAGE_TOKEN, TOKENS)]
        self.pages: dict[int, str] = {}  # tokens of the pages of users of this machine, until Kant stops
        if token_file is not None:
            read_keys(token_file, self.owner)  # a start with a wrong file is refused; a change of it is not followed
            self.files.append(Keys(token_file, self.owner))

    def of(self, request: web.Request) -> Caller | None:
        """Who calls now; None for somebody unknown. Over the socket it is a user of this machine."""
        if request.transport is None:  # they have gone
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
        key, uid = self.key(token.strip()), self._uid(token.strip())
        if key is None and uid is None and self.oidc is not None:
            return self.oidc.caller(token.strip(), origin)
        if key is None:
            return self._of_user(uid, origin) if uid is not None else None
        return Caller(key.user, key.role, key.queues, origin)

    def page_of(self, request: web.Request, fresh: bool) -> str:
        """A token for the page of the user at the other end of the socket, who has the same rights by it.

        It is the same until Kant stops, or until a `fresh` one is made. Raises InputError for a caller by an address.
        """
        own = request.transport.get_extra_info("socket") if request.transport is not None else None
        if own is None or own.family != socket.AF_UNIX:
            raise InputError("page", "a user of this machine, over the socket: by an address a token has been shown")
        _, uid = peer(own)
        if fresh or uid not in self.pages:
            self.pages[uid] = fresh_token()
        return self.pages[uid]

    def _uid(self, token: str) -> int | None:
        """The user whose page has this token. It looks at all of them, so that time tells nothing."""
        found = None
        for uid, known in self.pages.items():
            if hmac.compare_digest(known.encode(), token.encode()):
                found = uid
        return found

    def _of_user(self, uid: int, origin: str) -> Caller:
        """A user of this machine. Others than root and Kant's owner have the role of the tokens of their name, if any.

        Without a token of their name they are tenants who may submit to every queue."""
        name = name_of(uid)
        if uid in (0, os.getuid()):
            return Caller(name, Role.OPERATOR, (), origin)
        keys = [key for file in self.files for key in file.now() if key.user == name]
        role = max((key.role for key in keys), key=RANK.__getitem__, default=Role.TENANT)
        return Caller(name, role, tuple(queue for key in keys for queue in key.queues), origin, is_unix=True)

    def key(self, token: str) -> Key | None:
        """Whose token this is. It looks at all of them, whichever it is, so that time tells nothing."""
        shown, found = digest(token), None
        for file in self.files:
            for key in file.now():
                if hmac.compare_digest(key.sha256, shown):
                    found = key
        return found

    @property
    def is_shared(self) -> bool:
        """Whether anybody was given a token, beside the page's."""
        return self.oidc is not None or any(file.now() for file in self.files[1:])
