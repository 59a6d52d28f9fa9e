"""Credentials from a program that a kubeconfig names."""

from __future__ import annotations

import asyncio
import json
import os
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from kant.kube.connect.credentials import Credentials, bearer
from kant.model.errors import InputError

EXEC_LIMIT = 60.0  # seconds that a plugin may take; it may open a browser for a person


class Exec(Credentials):
    """A program that prints an ExecCredential (client.authentication.k8s.io/v1): a token, a certificate, or both."""

    def __init__(self, plugin: dict[str, Any], folder: Path, cluster: dict[str, Any]) -> None:
        self.plugin = plugin
        self.folder = folder
        self.cluster = cluster
        self._until = 0.0

    async def renew(self) -> None:
        credential = await self._run()
        status = credential.get("status") or {}
        token, certificate, key = (status.get(name) for name in ("token", "clientCertificateData", "clientKeyData"))
        if not token and not (certificate and key):
            raise self._fault("a status with a token or a client certificate", "neither")
        self._header = bearer(str(token), f"the token of exec plugin {self.plugin['command']}") if token else None
        self.pair = (str(certificate), str(key)) if certificate and key else None
        self._until, self.refused = _monotonic(status.get("expirationTimestamp")), False

    def forget(self) -> None:
        self._until, self.refused = 0.0, True

    def _fault(self, expected: str, got: object) -> InputError:
        hint = str(self.plugin.get("installHint") or "").strip()
        return InputError(f"exec plugin {self.plugin['command']}", expected + (f" ({hint})" if hint else ""), got)

    async def _run(self) -> dict[str, Any]:
        command = str(self.plugin["command"])
        if "/" in command:  # a path is relative to the kubeconfig, as in kubectl
            command = str(self.folder / command)
        version = self.plugin.get("apiVersion", "client.authentication.k8s.io/v1")
        spec: dict[str, Any] = {"interactive": False}
        if self.plugin.get("provideClusterInfo"):
            spec["cluster"] = {key: value for key, value in self.cluster.items() if key != "extensions"}
        asked = {"apiVersion": version, "kind": "ExecCredential", "spec": spec}
        extra = {str(entry["name"]): str(entry["value"]) for entry in self.plugin.get("env") or []}
        try:
            process = await asyncio.create_subprocess_exec(
                command,
                *[str(argument) for argument in self.plugin.get("args") or []],
                env={**os.environ, **extra, "KUBERNETES_EXEC_INFO": json.dumps(asked)},
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
            )
        except OSError as error:
            raise self._fault("a program that can be started", error.strerror) from error
        try:
            out, err = await asyncio.wait_for(process.communicate(), EXEC_LIMIT)
        except TimeoutError as error:
            process.kill()
            raise self._fault(f"an answer within {EXEC_LIMIT:.0f} s", "none") from error
        if process.returncode:
            last = err.decode(errors="replace").strip().splitlines()[-1:] or [f"exit code {process.returncode}"]
            raise self._fault("a credential", last[0])
        try:
            credential = json.loads(out)
        except ValueError:
            credential = None
        if not isinstance(credential, dict):
            raise self._fault("an ExecCredential in JSON", out[:40])
        return credential


def _monotonic(timestamp: str | None) -> float:
    """Return when (monotonic seconds) to renew credentials: 30 s before `timestamp`; without one never (inf)."""
    if not timestamp:
        return float("inf")
    try:
        end = datetime.fromisoformat(timestamp)
    except ValueError:
        return 0.0
    left = (end if end.tzinfo else end.replace(tzinfo=UTC)) - datetime.now(UTC)
    return time.monotonic() + max(left.total_seconds() - 30.0, 1.0)
