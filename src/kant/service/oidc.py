"""OIDC: bearer tokens of an identity provider, accepted beside Kant's own and checked against the provider's keys.

    issuer = "https://login.example.com"
    audience = "kant"                 # what its tokens for Kant say in `aud`
    user = "preferred_username"       # the claim with the user's name; "sub" by default
    groups = "groups"                 # the claim with the groups

    [[group]]
    name = "vision"
    role = "tenant"
    queues = ["vision"]

A token is accepted if it has not expired, is for this audience, and is signed with one of the issuer's keys by an
asymmetric algorithm. Keys are fetched in the background: a token with an unknown key starts a fetch, and is refused
until the key is known. Source: OpenID Connect Core 1.0, 3.1.3.7; RFC 8725 (the algorithm is not the token's choice).
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import pwd
import time
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import jwt
import msgspec
from msgspec import Struct

from kant.live.logs import log_event
from kant.model.errors import InputError
from kant.service.roles import RANK, Caller, Role
from kant.service.tokens import Word
from kant.toml_file import read_toml

log = logging.getLogger("kant.service")
ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
LEEWAY = 30
"""The tolerated clock skew between the issuer and this machine, in seconds."""
EVERY = 600.0
"""Seconds between two fetches of the keys. If a token names an unknown key, they may be only RARELY seconds apart."""
RARELY = 10.0
MOST = 1 << 20
"""Maximum number of bytes that are read of an answer of the issuer."""


class ProviderGroup(Struct, frozen=True, forbid_unknown_fields=True):
    """The rights of the members of a group of the provider."""

    name: str
    role: Role
    queues: tuple[Word, ...] = ()


class OidcFile(Struct, frozen=True, forbid_unknown_fields=True):
    """The file of `kant up --oidc`."""

    issuer: str
    audience: str
    group: tuple[ProviderGroup, ...]
    user: str = "sub"
    groups: str = "groups"


def read_oidc(path: Path) -> OidcFile:
    """Read the file of `kant up --oidc`. Raises InputError."""
    expected = {"group": "[[group]] tables", "role": f"one of {', '.join(Role)}", "queues": "names of queues"}
    file = read_toml(path, OidcFile, expected)
    _check_url(f"{path}, issuer", file.issuer)
    if not file.group:
        raise InputError(f"{path}, group", "at least one [[group]], since users without a group have no rights")
    for group in file.group:
        if (group.role is Role.TENANT) != bool(group.queues):
            what = "queues, as for every tenant" if group.role is Role.TENANT else "no queues, which only tenants have"
            raise InputError(f"{path}, [[group]] {group.name!r}, queues", what, ", ".join(group.queues) or "none")
    return file


def _check_url(where: str, url: str) -> None:
    parts = urlsplit(url)
    if parts.scheme != "https" and not (parts.scheme == "http" and parts.hostname in ("127.0.0.1", "localhost", "::1")):
        raise InputError(where, "an https:// address (http:// only on this machine)", url)


class Oidc:
    """Identifies callers by their tokens. `refresh_keys` runs in the background and fetches the keys."""

    def __init__(self, file: OidcFile) -> None:
        self.file = file
        self.trouble = "its keys have not been fetched yet"
        self._keys: dict[str, jwt.PyJWK] = {}
        self._wanted = asyncio.Event()

    async def refresh_keys(self) -> None:
        """Fetch the keys now, then periodically and when a token names an unknown key, until cancelled."""
        while True:
            self._wanted.clear()
            try:
                self._keys, self.trouble = await asyncio.to_thread(self._fetch), ""
            except (OSError, ValueError, InputError, jwt.PyJWTError, msgspec.MsgspecError) as error:
                self.trouble = str(error)  # the earlier keys stay
                log_event(log, "the keys of the OIDC issuer cannot be fetched", logging.WARNING, error=self.trouble)
            since = time.monotonic()
            try:
                await asyncio.wait_for(self._wanted.wait(), EVERY)
            except TimeoutError:
                continue
            await asyncio.sleep(max(RARELY - (time.monotonic() - since), 0))

    def caller(self, token: str, origin: str) -> Caller | None:
        """Return the caller with a token, with the highest role and all queues of its groups; None: invalid token."""
        try:
            header = jwt.get_unverified_header(token)
            key = self._keys.get(str(header.get("kid", "")))
            if key is None:
                self._wanted.set()
                return None
            claims = jwt.decode(
                token, key, algorithms=[each for each in ALGORITHMS if each == header.get("alg")], leeway=LEEWAY,
                audience=self.file.audience, issuer=self.file.issuer, options={"require": ["exp", "iss", "aud"]},
            )  # fmt: skip
            user = msgspec.convert(claims.get(self.file.user), Word)
            names = msgspec.convert(claims.get(self.file.groups, []), list[str])
        except (jwt.PyJWTError, msgspec.ValidationError, ValueError):
            return None
        own = [group for group in self.file.group if group.name in names]
        if not own or _is_owner(user):
            return None
        role = max((group.role for group in own), key=RANK.__getitem__)
        return Caller(user, role, tuple(queue for group in own for queue in group.queues), origin)

    def _fetch(self) -> dict[str, jwt.PyJWK]:
        about = _get(self.file.issuer.rstrip("/") + "/.well-known/openid-configuration")
        if about.get("issuer") != self.file.issuer:
            raise InputError("the issuer", f"the name {self.file.issuer!r} in its configuration", about.get("issuer"))
        _check_url("jwks_uri of the issuer", str(about.get("jwks_uri")))
        keys = _get(str(about["jwks_uri"])).get("keys", [])
        found = {}
        for key in keys:
            if key.get("kid") and key.get("use", "sig") == "sig" and key.get("kty") in ("RSA", "EC", "OKP"):
                found[str(key["kid"])] = jwt.PyJWK(key)
        return found


def _is_owner(user: str) -> bool:
    """Return whether a name is root's or that of Kant's owner. External providers cannot vouch for these."""
    try:
        return pwd.getpwnam(user).pw_uid in (0, os.getuid())
    except KeyError:
        return False


def _get(url: str) -> dict[str, Any]:
    with urllib.request.urlopen(url, timeout=10) as answer:
        found = json.loads(answer.read(MOST))
    if not isinstance(found, dict):
        raise InputError(url, "a JSON object")
    return found
