"""Tokens of an identity provider, played by a small one on this machine, beside Kant's own."""

from __future__ import annotations

import asyncio
import json
import os
import pwd
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jwt
import pytest
from aiohttp import web
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from kant.model.errors import InputError
from kant.service.callers import Callers
from kant.service.oidc import Oidc, read_oidc
from kant.service.roles import Caller, Role

FILE = """issuer = "{}"
audience = "kant"
user = "preferred_username"
[[group]]
name = "ml"
role = "tenant"
queues = ["vision"]
[[group]]
name = "speech-people"
role = "tenant"
queues = ["speech"]
[[group]]
name = "ops"
role = "operator"
"""
FIRST, OTHER = (rsa.generate_private_key(65537, 2048) for _ in range(2))
EC = ec.generate_private_key(ec.SECP256R1())


class Issuer:
    """Publishes `keys` by their ids, and counts how often they are asked for."""

    def __init__(self) -> None:
        self.keys: dict[str, Any] = {"one": FIRST, "two": EC}
        self.asked, self.named = 0, ""
        issuer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                found: Any = {"issuer": issuer.named or issuer.url, "jwks_uri": f"{issuer.url}/keys"}
                if self.path == "/keys":
                    issuer.asked += 1
                    found = {"keys": [published(key, name) for name, key in issuer.keys.items()]}
                body = json.dumps(found).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    def token(self, key: Any = FIRST, kid: str = "one", algorithm: str = "RS256", **other: Any) -> str:
        claims = {
            "iss": self.url,
            "aud": "kant",
            "exp": time.time() + 300,
            "preferred_username": "ann",
            "groups": ["ml"],
        }
        claims = {name: value for name, value in (claims | other).items() if value is not None}
        return jwt.encode(claims, key, algorithm, {"kid": kid})


def published(key: Any, name: str) -> dict[str, Any]:
    kind = jwt.algorithms.RSAAlgorithm if isinstance(key, rsa.RSAPrivateKey) else jwt.algorithms.ECAlgorithm
    return dict(kind.to_jwk(key.public_key(), as_dict=True)) | {"kid": name, "use": "sig"}


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    found = Issuer()
    yield found
    found.server.shutdown()
    found.server.server_close()


def oidc_of(issuer: Issuer, folder: Path) -> Oidc:
    path = folder / "oidc.toml"
    path.write_text(FILE.format(issuer.url))
    return Oidc(read_oidc(path))


async def fetched(oidc: Oidc, issuer: Issuer, times: int = 1) -> None:
    while issuer.asked < times or oidc.trouble:
        await asyncio.sleep(0.005)


def test_whose_token_is_believed(issuer: Issuer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kant.service.oidc.RARELY", 0.0)

    async def run() -> None:
        oidc = oidc_of(issuer, tmp_path)
        assert oidc.caller(issuer.token(), "") is None, "before its keys are there"
        work = asyncio.create_task(oidc.refresh_keys())
        await fetched(oidc, issuer)
        ann = Caller("ann", Role.TENANT, ("vision",), "here")
        assert oidc.caller(issuer.token(), "here") == ann
        assert oidc.caller(issuer.token(EC, "two", "ES256"), "here") == ann
        both = oidc.caller(issuer.token(groups=["speech-people", "ml", "x"], preferred_username="ben"), "")
        assert both == Caller("ben", Role.TENANT, ("vision", "speech"))
        assert oidc.caller(issuer.token(exp=time.time() - 10), "here") == ann, "clocks differ by some seconds"
        top = oidc.caller(issuer.token(groups=["ml", "ops"], aud=["other", "kant"]), "")
        assert top is not None and top.role is Role.OPERATOR
        public = published(FIRST, "one")["n"]  # what everybody knows is no secret of an HMAC
        owner = pwd.getpwuid(os.getuid()).pw_name
        for wrong in (
            issuer.token(OTHER), issuer.token(EC, "one", "ES256"), issuer.token(public, "one", "HS256"),
            issuer.token(exp=time.time() - 60), issuer.token(exp=None), issuer.token(aud="grafana"),
            issuer.token(aud=None),
            issuer.token(iss="https://else.example"), issuer.token(nbf=time.time() + 90), issuer.token(groups=["x"]),
            issuer.token(groups=None), issuer.token(groups="ml"), issuer.token(preferred_username=None),
            issuer.token(preferred_username="a b"), issuer.token(preferred_username="root"),
            issuer.token(preferred_username=owner), issuer.token()[:-2] + "xx", "kant_word", "", "a.b.c",
            jwt.encode({"iss": issuer.url, "aud": "kant"}, None, "none", {"kid": "one"}),
        ):  # fmt: skip
            assert oidc.caller(wrong, "") is None, wrong
        before, issuer.keys = issuer.asked, {"new": OTHER}
        assert oidc.caller(issuer.token(OTHER, "new"), "here") is None, "its key is asked for"
        await fetched(oidc, issuer, before + 1)
        while oidc.caller(issuer.token(OTHER, "new"), "here") is None:
            await asyncio.sleep(0.005)
        assert oidc.caller(issuer.token(), "") is None, "a key that is published no longer"
        issuer.named = "https://else.example"
        oidc.caller(issuer.token(kid="older"), "")
        while not oidc.trouble:
            await asyncio.sleep(0.005)
        assert oidc.caller(issuer.token(OTHER, "new"), "here") == ann and "in its configuration" in oidc.trouble
        work.cancel()

    asyncio.run(asyncio.wait_for(run(), 30))


class Asking:
    """A request by an address, as far as callers look at one."""

    def __init__(self, token: str) -> None:
        self.headers = {"Authorization": f"Bearer {token}"}
        known = {"socket": SimpleNamespace(family=socket.AF_INET), "peername": ("10.0.0.7", 1)}
        self.transport = SimpleNamespace(get_extra_info=known.get)


async def test_both_kinds_of_tokens_are_known_by_an_address(issuer: Issuer, tmp_path: Path) -> None:
    oidc = oidc_of(issuer, tmp_path)
    oidc._keys = oidc._fetch()
    own = tmp_path / "word"
    own.write_text("a-token-of-one-word")
    own.chmod(0o600)
    callers = Callers(tmp_path, own, oidc)
    assert callers.is_shared and Callers(tmp_path, None, oidc).is_shared and not Callers(tmp_path).is_shared
    found = [callers.of(as_request(Asking(token))) for token in (issuer.token(), "a-token-of-one-word", "neither")]
    assert found[0] == Caller("ann", Role.TENANT, ("vision",), "from 10.0.0.7") and found[2] is None
    assert found[1] is not None and found[1].role is Role.OPERATOR


def as_request(asking: Any) -> web.Request:
    found: web.Request = asking
    return found


@pytest.mark.parametrize(
    "old, new, said",
    [
        ('issuer = "http://127', 'issuer = "http://idp.example/', "an https:// address"),
        ('queues = ["vision"]', "", "expected queues, as for every tenant"),
        ('role = "operator"', 'role = "operator"\nqueues = ["a"]', "expected no queues, which only tenants have"),
        ('role = "operator"', 'role = "king"', "one of viewer, tenant, operator"),
        ("audience", "audiences", "only the keys issuer, audience, group, user, groups"),
    ],
)  # fmt: skip
def test_a_wrong_file_is_refused(tmp_path: Path, old: str, new: str, said: str) -> None:
    path = tmp_path / "oidc.toml"
    path.write_text(FILE.format("http://127.0.0.1:1").replace(old, new))
    with pytest.raises(InputError, match=said):
        read_oidc(path)
