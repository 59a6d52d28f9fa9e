"""Errors between Kant and the API server, and how a person can fix them."""

from __future__ import annotations

import re


class ApiError(Exception):
    """A rejection by the API server, or no response (`code` 0: it is unknown whether a write happened).

    `reason` is the server's reason (Conflict, Forbidden, …). For code 0 it is set by Kant: Unreachable, Certificate,
    Lost, Timeout or Malformed. `retry_after`: the seconds that the server asks the client to wait; None: unspecified.
    """

    def __init__(self, code: int, reason: str, message: str, retry_after: float | None = None) -> None:
        super().__init__(f"{message} ({code} {reason})" if code else message)
        self.code = code
        self.reason = reason
        self.message = message
        self.retry_after = retry_after

    @property
    def heals(self) -> bool:
        """Whether the error may be transient: an overload, a restart or a lost connection."""
        return self.code in (0, 408, 410, 429) or self.code >= 500


class ExpiredError(ApiError):
    """The server no longer has the requested resourceVersion (410): the caller must list again."""


class FencedError(Exception):
    """The guard of a request refused it when it was about to be sent: nothing was sent."""


INSTALL = "apply the output of `kant kube manifests`"
"""Where to get the definitions of Kant's own kinds."""

FORBIDDEN = re.compile(
    r'cannot (?P<verb>\w+) resource "(?P<resource>[^"]+)" in API group "(?P<group>[^"]*)"'
    r'(?: in the namespace "(?P<namespace>[^"]+)")?'
)


UNKNOWN_FIELD = re.compile(r'unknown field "(?P<field>[^"]+)"')


def is_unserved(error: ApiError) -> bool:
    """Whether the API server does not know the kind of the object. Any other 404 means that no object has the name."""
    return error.code == 404 and not error.message.endswith('" not found')


def advice(error: ApiError, source: str) -> str:
    """Return one sentence for the person who runs Kant: the error, or how to fix it. `source`: see `Config`."""
    if error.code == 401:
        return f"the API server does not accept the credentials of {source}: they are wrong or have expired (401)"
    if error.code != 403:
        return str(error)
    if (denied := denied_by(error)) is None:
        return f"{error.message} (403): compare the account's roles with the output of `kant kube manifests`"
    what, namespace = denied
    role = f"Role kant in namespace {namespace}" if namespace else "ClusterRole kant"
    return f"no permission to {what}: add it to {role}, as in the output of `kant kube manifests` (403)"


def denied_by(error: ApiError) -> tuple[str, str] | None:
    """Return what Kant's roles forbid, such as `list pods`, and the namespace ("": cluster-wide); None if unclear."""
    found = FORBIDDEN.search(error.message) if error.code == 403 else None
    if found is None:
        return None
    resource = found["resource"] + (f".{found['group']}" if found["group"] else "")
    return f"{found['verb']} {resource}", found["namespace"] or ""
