"""Token files: the users who have access, each with the SHA-256 of a token that was shown only once.

    [[token]]
    user = "ann"
    role = "tenant"
    queues = ["vision"]
    sha256 = "…"                  # of the token, which is nowhere

A token has 256 random bits, so it cannot be guessed from its digest. Instead, a file may contain a single word: the
token of an operator.
"""

from __future__ import annotations

import fcntl
import hashlib
import hmac
import json
import os
import secrets
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from kant.files import write_bytes
from kant.model.errors import InputError
from kant.service.roles import Role
from kant.toml_file import parse_toml, parse_tree

TOKENS = "tokens.toml"
SHORTEST = 16
PREFIX = "kant_"
HEAD = "# Tokens, written by `kant token`. Kant reads this file again when it changes.\n"
Word = Annotated[str, Meta(pattern=r"^[^\s\"'\\\x00-\x1f\x7f]{1,64}$")]


class Key(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One token: its user and its rights. A tenant has at least one queue; other roles have none."""

    user: Word
    role: Role
    sha256: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
    queues: tuple[Word, ...] = ()
    made: str = ""

    @property
    def id(self) -> str:
        """The short id of the token, which users see."""
        return self.sha256[:8]


class _File(Struct, forbid_unknown_fields=True):
    token: tuple[Key, ...] = ()


def fresh_token() -> str:
    """Return a new random token."""
    return PREFIX + secrets.token_urlsafe(32)


def digest(token: str) -> str:
    """Return the digest under which a token is stored."""
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()


def key_of(token: str, keys: Iterable[Key]) -> Key | None:
    """Return the key of a token, or None. Compares with every key, so that timing reveals nothing."""
    shown, found = digest(token), None
    for key in keys:
        if hmac.compare_digest(key.sha256, shown):
            found = key
    return found


def make_key(token: str, user: str, role: Role, queues: tuple[str, ...]) -> Key:
    """Return the key of a new token. Raises InputError."""
    made = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    raw = {"user": user, "role": str(role), "sha256": digest(token), "queues": queues, "made": made}
    return _checked(_converted(raw, Key, "the token"), "the token")


def _converted(raw: Any, type: Any, where: str) -> Any:
    try:
        return msgspec.convert(raw, type)
    except msgspec.ValidationError as error:
        raise InputError(where, f"a user, a role ({', '.join(Role)}) and a SHA-256 ({error})") from None


def _checked(key: Key, where: str) -> Key:
    if (key.role is Role.TENANT) != bool(key.queues):
        what = "queues for a tenant (--queue)" if key.role is Role.TENANT else "no queues, which only tenants have"
        raise InputError(f"{where} of {key.user}", what, ", ".join(key.queues) or "none")
    return key


def parse_keys(text: str, where: str, owner: str) -> tuple[Key, ...]:
    """Parse the keys of a file. A single word is the token of the operator `owner`. Raises InputError."""
    words = text.split()
    if len(words) == 1:
        if len(words[0]) < SHORTEST:
            raise InputError(where, f"one word of at least {SHORTEST} characters, or tables [[token]]")
        return (Key(owner, Role.OPERATOR, digest(words[0])),)
    try:
        parse_tree(where, text)
    except InputError as error:
        expected = f"one word of at least {SHORTEST} characters, or tables [[token]] in {error.expected}"
        raise InputError(where, expected) from None
    tables = parse_toml(where, text, _File, {"sha256": "a SHA-256: 64 hexadecimal digits"}).token
    keys = tuple(_checked(key, f"{where}: the token") for key in tables)
    if len({key.sha256 for key in keys}) < len(keys):
        raise InputError(where, "no token twice")
    return keys


def read_keys(path: Path, owner: str = "") -> tuple[Key, ...]:
    """Read the keys of a file. Raises InputError if the file does not exist or others than its owner can read it."""
    try:
        text, open_to_others = path.read_text(encoding="utf-8"), path.stat().st_mode & 0o077
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(str(path), f"a readable file with tokens ({error})") from None
    if open_to_others:
        raise InputError(str(path), "a file that only its owner can read (chmod 600)")
    return parse_keys(text, str(path), owner)


def show_keys(keys: tuple[Key, ...]) -> str:
    """Return the text of a token file. Words contain no quotes or control characters, so JSON strings are TOML."""
    parts = [HEAD]
    for key in keys:
        rows = {name: value for name, value in msgspec.to_builtins(key).items() if value not in ("", [], ())}
        lines = [f"{name} = {json.dumps(value, ensure_ascii=False)}" for name, value in rows.items()]
        parts.append("\n".join(["[[token]]", *lines]) + "\n")
    return "\n".join(parts)


def change_keys(path: Path, change: Callable[[tuple[Key, ...]], tuple[Key, ...]]) -> None:
    """Change the keys of a file, atomically and with one writer at a time. Raises InputError."""
    with _alone(path.parent):
        old: tuple[Key, ...] = ()
        if path.exists():
            old = read_keys(path)
            if any(not key.user for key in old):
                raise InputError(str(path), "[[token]] tables instead of a single token")
        write_private(path, show_keys(change(old)))


def write_private(path: Path, text: str) -> None:
    """Write a file that only its owner can read, atomically. Raises InputError."""
    try:
        write_bytes(path, text.encode(), 0o600)
    except OSError as error:
        raise InputError(str(path), f"a file that can be written ({error.strerror})") from None


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise InputError(str(folder), f"a folder that can be written ({error.strerror})") from None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
