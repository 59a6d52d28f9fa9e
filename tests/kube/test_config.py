"""Where the API server is: as kubectl reads it, and one sentence for what cannot be used."""

from __future__ import annotations

import asyncio
import base64
import json
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from kant.kube.connect.config import Config, load
from kant.kube.connect.credentials import Credentials, TokenFile
from kant.kube.connect.exec_plugin import Exec
from kant.kube.connect.kubeconfig import from_kubeconfig
from kant.model.errors import InputError


def kubeconfig(path: Path, user: dict[str, Any], cluster: dict[str, Any] | None = None, **more: Any) -> Path:
    document = {
        "current-context": "here",
        "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u", "namespace": "team"}}],
        "clusters": [{"name": "c", "cluster": {"server": "https://api:6443/"} | (cluster or {})}],
        "users": [{"name": "u", "user": user}],
    }
    path.write_text(yaml.safe_dump(document | more))
    return path


def header(credentials: Credentials) -> str | None:
    if not credentials.fresh():
        asyncio.run(credentials.renew())
    return credentials.header


def test_a_kubeconfig_says_where_and_who(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("CA")
    (tmp_path / "token").write_text("secret\n")
    key = base64.b64encode(b"KEY").decode()
    user = {"tokenFile": "token", "client-certificate-data": base64.b64encode(b"CERT").decode(), "client-key-data": key}
    cluster = {"certificate-authority": "ca.pem", "tls-server-name": "kubernetes", "proxy-url": "http://proxy:1"}
    config = load(kubeconfig(tmp_path / "config", user, cluster))
    assert (config.server, config.ca, config.certificate, config.key) == ("https://api:6443", "CA", "CERT", "KEY")
    assert (config.server_name, config.proxy, config.namespace) == ("kubernetes", "http://proxy:1", "team")
    assert header(config.credentials) == "Bearer secret"
    assert header(load(kubeconfig(tmp_path / "b", {"username": "me", "password": "x"})).credentials) == "Basic bWU6eA=="


def test_files_are_looked_for_in_the_order_of_kubectl(tmp_path: Path) -> None:
    pod = tmp_path / "account"
    pod.mkdir()
    for name, text in (("token", "t"), ("ca.crt", "CA"), ("namespace", "kant-system\n")):
        (pod / name).write_text(text)
    (tmp_path / ".kube").mkdir()
    home = kubeconfig(tmp_path / ".kube" / "config", {"token": "home"})
    one, two = kubeconfig(tmp_path / "one", {"token": "one"}), kubeconfig(tmp_path / "two", {"token": "two"})
    inside = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "443", "HOME": str(tmp_path)}
    listed = inside | {"KUBECONFIG": f"{tmp_path}/absent:{two}:{one}"}

    def found(environment: dict[str, str], path: Path | None = None, context: str | None = None) -> Config:
        return load(path, context, environment=environment, service_account=pod)

    assert header(found(listed, one).credentials) == "Bearer one"
    assert header(found(listed).credentials) == "Bearer two", "the first file that names a thing decides"
    account = found(inside)
    assert (account.server, account.ca, account.namespace) == ("https://[fd00::1]:443", "CA", "kant-system")
    assert header(account.credentials) == "Bearer t"
    assert header(found(inside, context="here").credentials) == "Bearer home", "a context means a file"
    assert str(home) in found({"HOME": str(tmp_path)}).source


def test_a_token_that_rotates_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "token").write_text("one")
    now = 1000.0
    monkeypatch.setattr("kant.kube.connect.credentials.time.monotonic", lambda: now)
    credentials = TokenFile(tmp_path / "token")
    assert header(credentials) == "Bearer one"
    (tmp_path / "token").write_text("two")
    now += 59
    assert header(credentials) == "Bearer one"
    now += 2
    assert header(credentials) == "Bearer two"
    (tmp_path / "token").unlink()
    credentials.forget()
    with pytest.raises(InputError, match="the token: expected a file that can be read"):
        header(credentials)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("a: [", "config, line 1: expected a kubeconfig in YAML"),
        ("just words", "expected a kubeconfig with clusters"),
        ("clusters: 7", "clusters: expected a list of entries with a name, got 7"),
        ("{}", "expected a current-context in the file, or --context NAME, got 'neither'"),
        ("current-context: x", r"expected one of its contexts \(it has none\), got 'x'"),
    ],
)
def test_a_kubeconfig_that_cannot_be_used_is_one_sentence(tmp_path: Path, text: str, sentence: str) -> None:
    (tmp_path / "config").write_text(text)
    with pytest.raises(InputError, match=sentence):
        from_kubeconfig([tmp_path / "config"])


def test_what_stands_wrong_in_an_entry_is_named(tmp_path: Path) -> None:
    path = tmp_path / "config"
    for user, cluster, sentence in (
        ({}, {"server": "api:6443"}, "server of cluster c: expected https://HOST"),
        ({}, {"certificate-authority": "nowhere"}, "certificate-authority: expected a file that can be read"),
        ({"client-key-data": "!"}, {}, "client-key-data: expected PEM text in base64"),
        ({"exec": {}}, {}, "exec: expected a plugin with a command"),
        ({"auth-provider": {"name": "gcp"}}, {}, "expected an exec plugin"),
    ):
        with pytest.raises(InputError, match=sentence):
            load(kubeconfig(path, user, cluster))
    with pytest.raises(InputError, match="none of them"):
        load(environment={"HOME": str(tmp_path)}, service_account=tmp_path)
    with pytest.raises(InputError, match="KUBECONFIG: expected at least one file"):
        load(environment={"KUBECONFIG": "/nowhere/x"})
    with pytest.raises(InputError, match="certificate-authority: expected certificates in PEM form"):
        Config("https://x", "F", ca="nonsense").tls()
    with pytest.raises(InputError, match="client-certificate and client-key: expected a certificate and its key"):
        Config("https://x", "F", certificate="a", key="b").tls()
    assert Config("http://x").tls() is None


def plugin(path: Path, body: str) -> str:
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return f"./{path.name}"


def test_an_exec_plugin_gives_a_token_until_it_ends(tmp_path: Path) -> None:
    soon = (datetime.now(UTC) + timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
    answer = json.dumps({"kind": "ExecCredential", "status": {"token": "T", "expirationTimestamp": soon}})
    count = f'echo "$WORD $1 $KUBERNETES_EXEC_INFO" >> {tmp_path}/calls'
    command = plugin(tmp_path / "login", f"{count}\necho '{answer}'")
    user = {"exec": {"command": command, "args": ["go"], "env": [{"name": "WORD", "value": "w"}], "apiVersion": "v"}}
    credentials = load(kubeconfig(tmp_path / "config", user)).credentials
    assert header(credentials) == header(credentials) == "Bearer T"
    calls = (tmp_path / "calls").read_text().splitlines()
    assert len(calls) == 1 and calls[0].startswith('w go {"apiVersion": "v"')
    credentials.forget()
    assert header(credentials) == "Bearer T" and len((tmp_path / "calls").read_text().splitlines()) == 2


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ("echo please log in >&2; exit 3", r"expected a credential \(get it from us\), got 'please log in'"),
        ("echo words", "expected an ExecCredential in JSON"),
        ("echo '{}'", "expected a status with a token or a client certificate"),
    ],
)
def test_an_exec_plugin_that_fails_is_one_sentence(tmp_path: Path, body: str, sentence: str) -> None:
    command = plugin(tmp_path / "login", body)
    with pytest.raises(InputError, match=sentence):
        header(Exec({"command": command, "installHint": "get it from us"}, tmp_path, {}))
    with pytest.raises(InputError, match="expected a program that can be started"):
        header(Exec({"command": "./absent"}, tmp_path, {}))
