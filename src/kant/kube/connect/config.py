"""The address of the API server and our identity: from a kubeconfig file, or from inside a pod.

A kubeconfig is read as kubectl reads it
(https://kubernetes.io/docs/concepts/configuration/organize-cluster-access-kubeconfig):
`--kubeconfig`, else the files of `KUBECONFIG`, else the service account of the pod, else `~/.kube/config`. Users may
have a client certificate, a token, a token file, a password, or an exec plugin (client.authentication.k8s.io).
"""

from __future__ import annotations

import base64
import binascii
import os
import ssl
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from kant.kube.connect.credentials import Bearer, Credentials, Exec, Password, TokenFile
from kant.model.errors import InputError

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


@dataclass(frozen=True)
class Config:
    """An API server and our identity there.

    `source` says where this was read, for messages. `ca` is PEM text; without it the system's store is used.
    `certificate` and `key` are PEM text of a client certificate.
    """

    server: str
    source: str = "the arguments"
    credentials: Credentials = field(default_factory=Credentials)
    ca: str | None = None
    certificate: str | None = None
    key: str | None = None
    insecure: bool = False
    server_name: str | None = None
    proxy: str | None = None
    namespace: str = "default"

    def tls(self) -> ssl.SSLContext | None:
        """Return the TLS context for the server, None for plain HTTP. Raises InputError for an invalid one."""
        if not self.server.startswith("https://"):
            return None
        try:
            context = ssl.create_default_context(cadata=self.ca)
        except (ssl.SSLError, ValueError) as error:
            raise InputError(f"{self.source}: certificate-authority", "certificates in PEM form", str(error)) from error
        if self.insecure:
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        if self.certificate and self.key:
            present(context, self.certificate, self.key, self.source)
        return context


def present(context: ssl.SSLContext, certificate: str, key: str, source: str) -> None:
    """Make new connections with `context` use this client certificate."""
    with tempfile.NamedTemporaryFile("w") as file:  # OpenSSL reads a chain only from a file; this one is private
        file.write(certificate.rstrip() + "\n" + key.rstrip() + "\n")
        file.flush()
        try:
            context.load_cert_chain(file.name)
        except (ssl.SSLError, OSError) as error:
            raise InputError(
                f"{source}: client-certificate and client-key", "a certificate and its key in PEM form", str(error)
            ) from error


def load(
    kubeconfig: Path | None = None,
    context: str | None = None,
    *,
    environment: Mapping[str, str] = os.environ,
    service_account: Path = SERVICE_ACCOUNT,
) -> Config:
    """Return the configuration for these arguments. Raises InputError."""
    if kubeconfig is not None:
        return from_kubeconfig([kubeconfig], context)
    listed = [Path(part) for part in environment.get("KUBECONFIG", "").split(os.pathsep) if part]
    if listed:
        present_files = [path for path in listed if path.is_file()]
        if not present_files:
            raise InputError("KUBECONFIG", "at least one file that exists", environment["KUBECONFIG"])
        return from_kubeconfig(present_files, context)
    if context is None and (service_account / "token").is_file() and "KUBERNETES_SERVICE_HOST" in environment:
        return in_cluster(environment, service_account)
    home = Path(environment.get("HOME", "~")).expanduser() / ".kube" / "config"
    if home.is_file():
        return from_kubeconfig([home], context)
    raise InputError(
        "the API server", f"--kubeconfig FILE, KUBECONFIG, {home}, or a pod with a service account", "none of them"
    )


def in_cluster(environment: Mapping[str, str] = os.environ, folder: Path = SERVICE_ACCOUNT) -> Config:
    """Return the identity of the pod that this process runs in. Its token rotates: the file is reread."""
    host, port = environment["KUBERNETES_SERVICE_HOST"], environment.get("KUBERNETES_SERVICE_PORT", "443")
    host = f"[{host}]" if ":" in host else host
    namespace = folder / "namespace"
    return Config(
        server=f"https://{host}:{port}",
        source=f"the service account in {folder}",
        credentials=TokenFile(folder / "token"),
        ca=_text(folder / "ca.crt", "the service account: ca.crt"),
        namespace=namespace.read_text().strip() if namespace.is_file() else "default",
    )


def from_kubeconfig(paths: list[Path], context: str | None = None) -> Config:
    """Return the named context of these files, or their current one. The first file that names an entry defines it."""
    found: dict[str, dict[str, tuple[Path, dict[str, Any]]]] = {"clusters": {}, "users": {}, "contexts": {}}
    current: str | None = None
    for path in paths:
        document = _document(path)
        current = current or document.get("current-context") or None
        for part in found:
            for entry in _entries(document, part, path):
                body = entry.get(part[:-1])
                found[part].setdefault(str(entry["name"]), (path, body if isinstance(body, dict) else {}))
    where = ", ".join(str(path) for path in paths)
    name = context or current
    if name is None:
        raise InputError(where, "a current-context, or --context NAME", "neither")
    _, chosen = _named(found["contexts"], "context", name, where)
    cluster_path, cluster = _named(found["clusters"], "cluster", str(chosen.get("cluster", "")), where)
    user_path, user = cluster_path, dict[str, Any]()
    if chosen.get("user"):
        user_path, user = _named(found["users"], "user", str(chosen["user"]), where)
    server = cluster.get("server")
    if not isinstance(server, str) or not server.startswith(("https://", "http://")):
        raise InputError(f"{cluster_path}: server of cluster {chosen['cluster']}", "https://HOST[:PORT]", server)
    return Config(
        server=server.rstrip("/"),
        source=f"{where}, context {name}",
        credentials=_credentials(user, user_path, cluster),
        ca=_pem(cluster, "certificate-authority", cluster_path),
        certificate=_pem(user, "client-certificate", user_path),
        key=_pem(user, "client-key", user_path),
        insecure=bool(cluster.get("insecure-skip-tls-verify", False)),
        server_name=cluster.get("tls-server-name"),
        proxy=cluster.get("proxy-url"),
        namespace=chosen.get("namespace") or "default",
    )


def _document(path: Path) -> dict[str, Any]:
    try:
        document = yaml.safe_load(_text(path, "kubeconfig"))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        at = f"{path}, line {mark.line + 1}" if mark else str(path)
        raise InputError(at, "a kubeconfig in YAML", getattr(error, "problem", str(error))) from error
    if not isinstance(document, dict):
        raise InputError(str(path), "a kubeconfig with clusters, users and contexts", document)
    return document


def _entries(document: dict[str, Any], part: str, path: Path) -> list[dict[str, Any]]:
    entries = document.get(part) or []
    if not isinstance(entries, list) or not all(isinstance(entry, dict) and "name" in entry for entry in entries):
        raise InputError(f"{path}: {part}", "a list of entries with a name", entries)
    return entries


def _named(
    entries: dict[str, tuple[Path, dict[str, Any]]], kind: str, name: str, where: str
) -> tuple[Path, dict[str, Any]]:
    if name not in entries:
        raise InputError(where, f"one of its {kind}s ({', '.join(sorted(entries)) or 'it has none'})", name)
    return entries[name]


def _credentials(user: dict[str, Any], path: Path, cluster: dict[str, Any]) -> Credentials:
    if user.get("tokenFile"):
        return TokenFile(path.parent / str(user["tokenFile"]))
    if user.get("token"):
        return Bearer(str(user["token"]))
    if user.get("username"):
        return Password(str(user["username"]), str(user.get("password", "")))
    if "exec" in user:
        plugin = user["exec"]
        if not isinstance(plugin, dict) or not plugin.get("command"):
            raise InputError(f"{path}: exec", "a plugin with a command", plugin)
        return Exec(plugin, path.parent, cluster)
    if "auth-provider" in user:
        raise InputError(f"{path}: user", "an exec plugin (kubectl has dropped auth-provider too)", "auth-provider")
    return Credentials()


def _pem(entry: dict[str, Any], key: str, path: Path) -> str | None:
    """Return PEM text that is in the file itself (…-data, base64) or in a file that it names."""
    if entry.get(f"{key}-data"):
        try:
            return base64.b64decode("".join(str(entry[f"{key}-data"]).split()), validate=True).decode()
        except (binascii.Error, ValueError) as error:
            raise InputError(f"{path}: {key}-data", "PEM text in base64", str(error)) from error
    return _text(path.parent / str(entry[key]), f"{path}: {key}") if entry.get(key) else None


def _text(path: Path, where: str) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "text in another encoding"
        raise InputError(where, f"a file that can be read at {path}", reason) from error
