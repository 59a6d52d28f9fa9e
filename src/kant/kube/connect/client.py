"""The client of the API server: few verbs, partial views of objects, and exceptions with the server's message.

The client retries no write. If a response was lost, the write may have happened: the caller must read to find out.

Long: one method for each verb of the API server.
"""

from __future__ import annotations

import asyncio
import errno
import os
import re
import ssl
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypedDict, TypeVar, Unpack
from urllib.parse import urlencode, urlsplit

import msgspec

from kant.kube.connect.config import Config
from kant.kube.connect.decoding import OnMalformed, decoded, decoder, page_of
from kant.kube.connect.errors import ApiError, ExpiredError, FencedError
from kant.kube.connect.renewal import Renewal
from kant.kube.connect.wire import GuardRefusedError, Pool, UnreachableError
from kant.kube.objects.views import Status, View
from kant.model.errors import InputError

if TYPE_CHECKING:
    from kant.kube.connect.session import Session

__all__ = ["ApiClient", "ApiError", "ExpiredError", "FencedError", "require_version"]

T = TypeVar("T")
Guard = Callable[[], bool]

PATCHES = {
    "merge": "application/merge-patch+json",
    "strategic": "application/strategic-merge-patch+json",
    "json": "application/json-patch+json",
    "apply": "application/apply-patch+yaml",
}


PROTOBUF = "application/vnd.kubernetes.protobuf"

READY = "/readyz"
STARTING = 30.0  # seconds after an outage during which a server that rejects even /readyz counts as starting
STARTS = "the API server starts, and does not know its roles yet"
BY_ROLES = re.compile(r"cannot \w+ (resource|path) ")


class RequestOptions(TypedDict, total=False):
    """Options of a request. `timeout`: seconds for the whole request (None: the client's default).

    `guard` is called when a connection is available, right before the request is written; if it returns False, nothing
    is written and FencedError is raised. The API server drops a guarded request after `timeout` seconds, too.
    """

    content_type: str
    params: dict[str, str] | None
    timeout: float | None
    guard: Guard | None


class _Refusal(Status, frozen=True):
    details: dict[str, Any] | None = None


class ApiClient:
    """A session with one API server. Use as `async with ApiClient(config) as client`.

    Without credentials the first request raises InputError. Later failures to renew them go to `on_trouble`.
    """

    def __init__(
        self,
        config: Config,
        *,
        concurrency: int = 64,
        timeout: float = 10.0,
        on_trouble: Callable[[ApiError], None] = lambda error: None,
    ) -> None:
        self.config = config
        self.concurrency = concurrency
        self.timeout = timeout
        self._renewal = Renewal(config, on_trouble)
        self._away = time.monotonic()  # when the server was last unavailable; unknown at first, so the time of creation
        self._unanswered_at = float("-inf")  # when a guarded request that was sent last ended without a response

    async def __aenter__(self) -> Self:
        parts = urlsplit(self.config.server)
        tls = parts.scheme == "https"
        self._context = self.config.tls()
        self._host, self._prefix = parts.netloc, parts.path
        self._heads: dict[str | None, tuple[str | None, str]] = {}  # header lines by content type, and their token
        self._pool = Pool(
            parts.hostname or "",
            parts.port or (443 if tls else 80),
            self._context,
            self.config.server_name,
            self.concurrency,
        )
        self._opened: Session | None = None
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.close()
        if self._opened is not None:
            await self._opened.close()

    async def call(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        content_type: str = "application/json",
        params: dict[str, str] | None = None,
        timeout: float | None = None,
        guard: Guard | None = None,
    ) -> bytes:
        """Send one request and return the response's body (see `RequestOptions`). Raises ApiError and FencedError."""
        kind, timeout = content_type if body is not None else None, timeout or self.timeout
        path = _with(path, params if guard is None else {**(params or {}), "timeout": f"{timeout * 1000:.0f}ms"})
        if not path.isascii() or not path.isprintable() or " " in path:
            raise ValueError(f"not the path of a request: {path!r}")
        try:
            if self.config.proxy:
                headers = await self._headers(kind)
                answer = await self._session().request(method, path, body, headers, timeout, guard)
            else:
                content, lines = body or b"", await self._head(kind)
                request = (
                    f"{method} {self._prefix}{path} HTTP/1.1\r\nContent-Length: {len(content)}\r\n{lines}".encode()
                )
                async with asyncio.timeout(timeout):
                    answer = await self._pool.request(request + content, again=method == "GET", guard=guard)
        except GuardRefusedError:
            raise FencedError(f"{method} {path}: not sent, we may no longer lead") from None
        except BaseException as error:
            if guard is not None and not isinstance(error, UnreachableError):
                self._unanswered_at = time.monotonic()
            if isinstance(error, (TimeoutError, OSError)):
                raise self._lost(method, path, error) from error
            raise
        if answer.code >= 300:
            raise await self._judged(path, self._refusal(answer.code, answer.body, answer.retry_after))
        return answer.body

    def may_be_carried_out(self, within: float) -> bool:
        """Whether the API server may still carry out a guarded request that ended without a response: by a timeout, a
        lost connection or a cancellation in the last `within` seconds.
        """
        return time.monotonic() - self._unanswered_at < within

    async def get(self, path: str, view: type[T], **options: Unpack[RequestOptions]) -> T:
        """Return the object at `path`. Raises ApiError."""
        return decoded(await self.call("GET", path, **options), view, f"GET {path}")

    async def create(self, path: str, obj: object, **options: Unpack[RequestOptions]) -> bytes:
        return await self.call("POST", path, encoded(obj), **options)

    async def patch(self, path: str, obj: object, kind: str = "merge", **options: Unpack[RequestOptions]) -> bytes:
        """Change an object by a patch of `kind` merge, strategic, json or apply (server-side, as manager "kant")."""
        if kind == "apply":
            options["params"] = {"fieldManager": "kant", "force": "true", **(options.get("params") or {})}
        options["content_type"] = PATCHES[kind]
        return await self.call("PATCH", path, encoded(obj), **options)

    async def change_metadata(
        self,
        path: str,
        version: str,
        annotations: Mapping[str, str | None],
        finalizers: Sequence[str] | None,
        guard: Guard | None = None,
        timeout: float | None = None,
    ) -> str:
        """Change only the metadata of an object, if it has this resourceVersion. Returns the new resourceVersion."""
        from kant.kube.connect.protobuf import version_of, with_metadata  # imported here, since few objects need it

        raw = await self.call("GET", path, b"", content_type=PROTOBUF)
        if version_of(raw) != version:
            raise ApiError(409, "Conflict", f"{path}: it has been changed")
        changed = with_metadata(raw, annotations, finalizers)
        return version_of(await self.call("PUT", path, changed, content_type=PROTOBUF, guard=guard, timeout=timeout))

    async def delete(
        self, path: str, *, uid: str | None = None, propagation: str = "", **options: Unpack[RequestOptions]
    ) -> bytes:
        """Delete the object, if it still has this uid (None: whatever its uid).

        `propagation`: Foreground (owned objects first), Background or Orphan; "": the default of the object's kind.
        """
        body = {"kind": "DeleteOptions", **_deletion(uid)}
        body |= {"propagationPolicy": propagation} if propagation else {}
        return await self.call("DELETE", path, encoded(body), **options)

    async def bind(
        self,
        namespace: str,
        pod: str,
        uid: str,
        node: str,
        annotations: dict[str, str] | None = None,
        **options: Unpack[RequestOptions],
    ) -> None:
        """Bind the pod with this uid to the node. The response is a Status that only confirms the binding."""
        binding = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": pod, "namespace": namespace, "uid": uid, "annotations": annotations or {}},
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }
        path = f"/api/v1/namespaces/{namespace}/pods/{pod}/binding"
        await self.call("POST", path, encoded(binding), **options)

    async def evict(
        self,
        namespace: str,
        pod: str,
        uid: str,
        annotations: dict[str, str] | None = None,
        *,
        dry_run: bool = False,
        **options: Unpack[RequestOptions],
    ) -> None:
        """Request the eviction of a pod. Raises ApiError 429 if the pod's PodDisruptionBudgets do not allow it.

        If the pod has another uid, the server itself retries for about 10 s before it returns 409.
        """
        eviction = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": pod, "namespace": namespace, "annotations": annotations or {}},
            "deleteOptions": _deletion(uid) | ({"dryRun": ["All"]} if dry_run else {}),
        }
        path = f"/api/v1/namespaces/{namespace}/pods/{pod}/eviction"
        await self.call("POST", path, encoded(eviction), **options)

    async def pages(
        self, path: str, view: type[T], limit: int = 500, *, on_malformed: OnMalformed | None = None, fields: str = ""
    ) -> AsyncIterator[tuple[list[T], str]]:
        """Yield pages of the list at `path`, each with the resourceVersion of the whole list. May raise ExpiredError
        between two pages.

        An object that cannot be decoded is passed to `on_malformed` and left out. `fields` is a field selector, but not
        on `metadata.namespace`: the API server (1.36) then ends the list with its first page; use the path instead.
        """
        params = {"limit": str(limit)} | ({"fieldSelector": fields} if fields else {})
        while True:
            raw = await self.call("GET", path, params=params, timeout=max(self.timeout, 60.0))
            page = page_of(raw, view, on_malformed)
            yield page.items, page.metadata.resource_version
            if not page.metadata.continue_:
                return
            params["continue"] = page.metadata.continue_

    async def list(self, path: str, view: type[T]) -> list[T]:
        """Return all objects of the list at `path`."""
        return [one async for items, _ in self.pages(path, view) for one in items]

    async def stream(self, path: str, params: dict[str, str], silence: float | None) -> AsyncIterator[bytes]:
        """Yield the bytes of a watch until the server ends it; ApiError after `silence` seconds without a byte."""
        headers = await self._headers(None)
        try:
            async with self._session().stream(_with(path, params), headers, self.timeout, silence) as answer:
                if answer.status >= 400:
                    wait = answer.headers.get("Retry-After")
                    raise await self._judged(path, self._refusal(answer.status, await answer.read(), wait))
                async for chunk in answer.content.iter_any():
                    yield chunk
        except (TimeoutError, OSError) as error:
            raise self._lost("GET", path, error) from error

    def _session(self) -> Session:
        """Return the session for watches and proxies. Imported on first use, since short commands need none."""
        if self._opened is None:
            from kant.kube.connect.session import Session

            self._opened = Session(self.config, self._context)
        return self._opened

    async def _judged(self, path: str, error: ApiError) -> ApiError:
        """Return the error. A 403 of a server that has just started and has no roles yet becomes a transient error."""
        if error.code != 403 or path.startswith(READY) or not BY_ROLES.search(error.message):
            return error
        try:
            await self.call("GET", READY)
            return error
        except ApiError as unready:
            lately = time.monotonic() - self._away < STARTING
            if not (unready.heals or (unready.code == 403 and lately)):
                return error
        return ApiError(503, "Starting", f"{self.config.server}: {STARTS}")

    async def _head(self, content_type: str | None) -> str:
        """Return the header lines that all requests of this content type share, and the empty line that ends them."""
        headers = await self._headers(content_type)
        known = self._heads.get(content_type)
        if known is None or known[0] != headers.get("Authorization"):
            lines = {"Host": self._host, "User-Agent": "kant", "Accept": "application/json"} | headers
            text = "".join(f"{name}: {value}\r\n" for name, value in lines.items()) + "\r\n"
            known = self._heads[content_type] = headers.get("Authorization"), text
        return known[1]

    async def _headers(self, content_type: str | None) -> dict[str, str]:
        shown = await self._renewal.header(self._context)
        headers = {"Content-Type": content_type} if content_type else {}
        if content_type == PROTOBUF:
            headers["Accept"] = PROTOBUF
        if shown:
            headers["Authorization"] = shown
        return headers

    def _refusal(self, code: int, raw: bytes, retry_after: str | None) -> ApiError:
        if code >= 500:
            self._away = time.monotonic()
        if code == 401:
            self.config.credentials.forget()
        try:
            status = decoder(_Refusal).decode(raw)
        except msgspec.DecodeError:
            status = _Refusal(code, "Unknown", raw[:200].decode(errors="replace").strip() or "no message")
        wait = retry_after if retry_after is not None else (status.details or {}).get("retryAfterSeconds")
        seconds = float(wait) if wait is not None and str(wait).isdigit() else None
        kind = ExpiredError if code == 410 else ApiError
        return kind(code, status.reason or "Unknown", status.message, seconds)

    def _lost(self, method: str, path: str, error: Exception) -> ApiError:
        server, self._away = self.config.server, time.monotonic()
        if isinstance(error, UnreachableError) and isinstance(error.__cause__, ssl.SSLCertVerificationError):
            error = error.__cause__
        if isinstance(error, ssl.SSLCertVerificationError):
            why = getattr(error, "verify_message", None) or str(error)
            return ApiError(
                0, "Certificate", f"{server}: its certificate is not trusted by {self.config.source}: {why}"
            )
        if isinstance(error, TimeoutError):
            return ApiError(0, "Timeout", f"{method} {path}: no answer in time")
        if isinstance(error, UnreachableError):
            return ApiError(0, "Unreachable", f"{server}: no connection: {_words(error.__cause__)}")
        return ApiError(0, "Lost", f"{method} {path}: the connection broke: {error or type(error).__name__}")


def encoded(obj: object) -> bytes:
    return obj if isinstance(obj, bytes) else msgspec.json.encode(obj)


def _words(error: BaseException | None) -> str:
    """Return the operating system's message for a failed connection, without error numbers."""
    number = getattr(error, "errno", None) or 0
    text = os.strerror(number) if number in errno.errorcode else getattr(error, "strerror", None) or str(error)
    return text.rpartition("] ")[2] or type(error).__name__


def _deletion(uid: str | None) -> dict[str, Any]:
    return {"preconditions": {"uid": uid}} if uid else {}


def _with(path: str, params: dict[str, str] | None) -> str:
    return path + ("&" if "?" in path else "?") + urlencode(params) if params else path


class _Version(View, frozen=True):
    major: str = ""
    minor: str = ""
    git_version: str = ""


async def require_version(client: ApiClient, least: tuple[int, int] = (1, 29)) -> str:
    """Return the server's version, such as v1.36.2. Raises InputError if it is older than `least`; ApiError."""
    version = await client.get("/version", _Version)
    minor = "".join(char for char in version.minor if char.isdigit())  # some clouds report 29+
    if not (version.major.isdigit() and minor) or (int(version.major), int(minor)) < least:
        raise InputError(client.config.server, f"Kubernetes {least[0]}.{least[1]} or later", version.git_version)
    return version.git_version
