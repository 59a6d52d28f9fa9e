"""The address of the API server and Kant's credentials: from kubeconfig files, or from the service account of a pod.

A kubeconfig is read as kubectl reads it
(https://kubernetes.io/docs/concepts/configuration/organize-cluster-access-kubeconfig):
`--kubeconfig`, else the files of `KUBECONFIG`, else the service account of the pod, else `~/.kube/config`. Users may
have a client certificate, a token, a token file, a password, or an exec plugin (client.authentication.k8s.io).
"""

from __future__ import annotations

import os
import ssl
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from kant.kube.connect.credentials import Credentials, TokenFile
from kant.model.errors import InputError

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


@dataclass(frozen=True)
class Config:
    """An API server, and how to connect to it and authenticate.

    `source` says in messages where the configuration was read. `ca` is PEM text; None: the CAs of the system.
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
        """Return the TLS context; None for plain HTTP. Raises InputError if a certificate or key is invalid."""
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
    """Make new connections with `context` use this client certificate. Raises InputError if it is invalid."""
    with tempfile.NamedTemporaryFile("w") as file:  # OpenSSL reads a chain only from a file
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
    """Return the connection to use, by the rules of this module. Raises InputError if there is none or it is invalid.

    Code that reads kubeconfigs is imported on first use: a pod with a service account has none.
    """
    if kubeconfig is not None:
        return _from_files([kubeconfig], context)
    listed = [Path(part) for part in environment.get("KUBECONFIG", "").split(os.pathsep) if part]
    if listed:
        present_files = [path for path in listed if path.is_file()]
        if not present_files:
            raise InputError("KUBECONFIG", "at least one file that exists", environment["KUBECONFIG"])
        return _from_files(present_files, context)
    if context is None and (service_account / "token").is_file() and "KUBERNETES_SERVICE_HOST" in environment:
        return in_cluster(environment, service_account)
    home = Path(environment.get("HOME", "~")).expanduser() / ".kube" / "config"
    if home.is_file():
        return _from_files([home], context)
    raise InputError(
        "the API server", f"--kubeconfig FILE, KUBECONFIG, {home}, or a pod with a service account", "none of them"
    )


def _from_files(paths: list[Path], context: str | None) -> Config:
    from kant.kube.connect.kubeconfig import from_kubeconfig  # imports PyYAML

    return from_kubeconfig(paths, context)


def in_cluster(environment: Mapping[str, str] = os.environ, folder: Path = SERVICE_ACCOUNT) -> Config:
    """Return the connection of the pod that runs this process. The token rotates, so its file is read again."""
    host, port = environment["KUBERNETES_SERVICE_HOST"], environment.get("KUBERNETES_SERVICE_PORT", "443")
    host = f"[{host}]" if ":" in host else host
    namespace = folder / "namespace"
    return Config(
        server=f"https://{host}:{port}",
        source=f"the service account in {folder}",
        credentials=TokenFile(folder / "token"),
        ca=text_of(folder / "ca.crt", "the service account: ca.crt"),
        namespace=namespace.read_text().strip() if namespace.is_file() else "default",
    )


def text_of(path: Path, where: str) -> str:
    """Return the text of a file. Raises an InputError that names `where` if it cannot be read."""
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "text in another encoding"
        raise InputError(where, f"a file that can be read at {path}", reason) from error
