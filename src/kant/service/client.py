"""The client of Kant's API: over Kant's Unix socket, or at KANT_URL with a token. Uses only the standard library."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode, urlsplit

from kant.model.errors import InputError, SentenceError
from kant.service.socket_http import BrokenAnswerError, HttpResponse, exchange

if TYPE_CHECKING:
    import socket
    from http.client import HTTPResponse

    from kant.service.websocket import OpenWebSocket

SOCKET = "kant.sock"
FRONT_SOCKET = "front.sock"
"""The socket at which front ends accept short jobs (`kant up --front-ends N`)."""


def home_of(given: Path | None) -> Path:
    """Return Kant's home directory: `given`, else KANT_HOME, else ~/.local/share/kant."""
    if given is not None:
        return given.absolute()
    if os.environ.get("KANT_HOME"):
        return Path(os.environ["KANT_HOME"]).absolute()
    base = os.environ.get("XDG_DATA_HOME")
    return (Path(base) if base else Path.home() / ".local" / "share") / "kant"


def _place_of(url: str) -> tuple[bool, str, int | None]:
    """Split a URL into whether it uses TLS, its host and its port. Raises InputError."""
    parts = urlsplit(url)
    try:
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if parts.scheme not in ("http", "https") or host is None or parts.path.strip("/"):
        raise InputError("KANT_URL", "an address such as http://127.0.0.1:5268", url)
    return parts.scheme == "https", host, port


def _ask_at(url: str, method: str, target: str, body: bytes | None, headers: dict[str, str]) -> HTTPResponse:
    """Send a request to a URL and return the response. Raises InputError; OSError or ValueError without a response."""
    import http.client

    safe, host, port = _place_of(url)
    kind = http.client.HTTPSConnection if safe else http.client.HTTPConnection
    connection = kind(host, port)
    try:
        connection.request(method, target, body, headers)
        return connection.getresponse()
    except http.client.HTTPException as error:
        raise BrokenAnswerError(type(error).__name__) from None


def _connected(url: str, path: str) -> tuple[socket.socket, str]:
    """Connect to `url` or, if that is empty, to the socket at `path`. Return the connection and its Host header."""
    import socket

    if not url:
        own = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        own.connect(path)
        return own, "localhost"
    safe, host, port = _place_of(url)
    own = socket.create_connection((host, port or (443 if safe else 80)))
    if safe:
        import ssl

        own = ssl.create_default_context().wrap_socket(own, server_hostname=host)
    return own, urlsplit(url).netloc


def _breaks() -> tuple[type[Exception], ...]:
    """Return the exceptions that a truncated response raises. The call imports `http.client`."""
    from http.client import HTTPException

    return OSError, HTTPException


def _token() -> str:
    """Return the token from KANT_TOKEN, or from the file KANT_TOKEN_FILE. Raises InputError."""
    if os.environ.get("KANT_TOKEN"):
        return os.environ["KANT_TOKEN"].strip()
    if os.environ.get("KANT_TOKEN_FILE"):
        try:
            return Path(os.environ["KANT_TOKEN_FILE"]).read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise InputError("KANT_TOKEN_FILE", f"a readable file with a token ({error})") from None
    raise InputError("KANT_TOKEN", "a token for KANT_URL, here or in a file that KANT_TOKEN_FILE names")


class ServiceClient:
    """Client of the Kant in one home. For the default home KANT_URL, if set, is used instead, unless `here` is true.

    Every method raises InputError with the message that Kant returned.
    """

    def __init__(self, home: Path, here: bool = False) -> None:
        self.home = home
        self.token = ""  # overrides the token of the environment
        self.url = "" if here or home != home_of(None) else os.environ.get("KANT_URL", "")

    def own_token(self) -> str:
        """Return the token to send to an address. Raises InputError if there is none."""
        return self.token or _token()

    def get(self, path: str, **query: Any) -> Any:
        """Send a GET request and return the decoded JSON."""
        return json.loads(b"".join(self._parts(self._ask("GET", path, query))))

    def post(self, path: str, body: Any = None) -> Any:
        """Send a POST request and return the decoded JSON."""
        return json.loads(b"".join(self._parts(self._ask("POST", path, {}, body))))

    def post_short(self, path: str, body: Any) -> Any:
        """Send a POST request to a front end, if there is one. If the front end does not accept the request, send it to
        Kant itself.
        """
        front = self.home / FRONT_SOCKET
        if not self.url and front.exists():
            try:
                text = json.dumps(body).encode()
                reply = exchange(str(front), "POST", path, text, {"Content-Type": "application/json"})
                if reply.status < 400:
                    return json.loads(reply.read())
                if reply.status not in (421, 503):  # 421 and 503: send the request to Kant itself
                    raise RefusedError(_said(reply, f"POST {path}"))
            except (ConnectionRefusedError, FileNotFoundError):
                pass
            except (OSError, ValueError, BrokenAnswerError) as error:
                what = f"an answer from a front end ({error}); check whether the job exists before you send it again"
                raise InputError(str(front), what) from None
        return self.post(path, body)

    def parts(self, method: str, path: str, query: dict[str, Any], body: Any = None) -> Iterator[bytes]:
        """Send a request to any route and yield the response body as it arrives."""
        return self._parts(self._ask(method, path, query, body))

    def job(self, job: str, *rest: str) -> str:
        """Return the URL path of a job."""
        return "/".join(["/v1/jobs", quote(job, safe=""), *rest])

    def stream(self, path: str, **query: Any) -> tuple[dict[str, str], Iterator[bytes]]:
        """Send a GET request; return the response headers, and an iterator over the body as it arrives."""
        response = self._ask("GET", path, query)
        return dict(response.getheaders()), self._parts(response)

    def line(self, path: str, **query: Any) -> OpenWebSocket:
        """Open a WebSocket. Raises InputError with Kant's message if Kant refuses."""
        from kant.service.websocket import OpenWebSocket, open_line

        given = {name: value for name, value in query.items() if value not in (None, "", ())}
        target = f"{path}?{urlencode(given, doseq=True)}" if given else path
        headers = {"Authorization": f"Bearer {self.own_token()}"} if self.url else {}
        with self._telling():
            own, host = _connected(self.url, str(self.home / SOCKET))
            try:
                found = open_line(own, host, target, headers)
            except BaseException:
                own.close()
                raise
        if isinstance(found, OpenWebSocket):
            return found
        own.close()
        raise RefusedError(_said(found, f"GET {path}"))

    def _parts(self, response: HttpResponse | HTTPResponse) -> Iterator[bytes]:
        try:
            while part := response.read1(1 << 16):
                yield part
        except _breaks():
            raise InputError(self.url or str(self.home), "the rest of its answer, but Kant has stopped") from None

    def _ask(self, method: str, path: str, query: dict[str, Any], body: Any = None) -> HttpResponse | HTTPResponse:
        """Send a request and return Kant's response. Raises RefusedError."""
        given = {name: value for name, value in query.items() if value not in (None, "")}
        url = f"{path}?{urlencode(given)}" if given else path
        text = json.dumps(body).encode() if body is not None else None
        headers = {"Content-Type": "application/json"} if text is not None else {}
        with self._telling():
            if self.url:
                headers["Authorization"] = f"Bearer {self.own_token()}"
                response: HttpResponse | HTTPResponse = _ask_at(self.url, method, url, text, headers)
            else:
                response = exchange(str(self.home / SOCKET), method, url, text, headers)
        if response.status >= 400:
            raise RefusedError(_said(response, f"{method} {path}"))
        return response

    @contextmanager
    def _telling(self) -> Iterator[None]:
        """Turn connection errors into an InputError, which says that Kant does not answer, or not as expected."""
        try:
            yield
        except BrokenAnswerError as error:
            raise InputError(self.url or str(self.home), f"an answer from Kant ({error})") from None
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or error
            if self.url:
                raise InputError("KANT_URL", f"the address of a running Kant ({why})", self.url) from None
            what = "the home of a running Kant (start one with `kant up`)"
            if isinstance(error, PermissionError):
                what = "the home of a Kant that you may use: your own, or one of your group (kant up --users)"
            raise InputError(str(self.home), f"{what} ({why})") from None


def _said(answer: HttpResponse | HTTPResponse, what: str) -> str:
    """Return the error message of a refusal."""
    try:
        return str(json.loads(answer.read())["error"])
    except (ValueError, KeyError):
        return f"{what}: expected an answer from Kant, got {answer.status} {answer.reason}"


class RefusedError(SentenceError):
    """Kant refused the request; the message is Kant's own sentence, unchanged."""
