"""Kubeconfig files, read as kubectl reads them.

Source: https://kubernetes.io/docs/concepts/configuration/organize-cluster-access-kubeconfig
"""

from __future__ import annotations

import base64
import binascii
from pathlib import Path
from typing import Any

import yaml

from kant.kube.connect.config import Config, text_of
from kant.kube.connect.credentials import Bearer, Credentials, Password, TokenFile
from kant.kube.connect.exec_plugin import Exec
from kant.model.errors import InputError


def from_kubeconfig(paths: list[Path], context: str | None = None) -> Config:
    """Return the connection of `context` (None: the current one). The first file with an entry of a name defines it."""
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
        raise InputError(where, "a current-context in the file, or --context NAME", "neither")
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
        document = yaml.safe_load(text_of(path, "kubeconfig"))
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
    """Return PEM text from the kubeconfig itself (…-data, base64) or from a file that it names; None for neither."""
    if entry.get(f"{key}-data"):
        try:
            return base64.b64decode("".join(str(entry[f"{key}-data"]).split()), validate=True).decode()
        except (binascii.Error, ValueError) as error:
            raise InputError(f"{path}: {key}-data", "PEM text in base64", str(error)) from error
    return text_of(path.parent / str(entry[key]), f"{path}: {key}") if entry.get(key) else None
