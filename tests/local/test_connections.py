"""Connections that say nothing, or too many of them, change nothing for those who ask."""

from __future__ import annotations

import asyncio
import errno
import json
import resource
import selectors
import socket
import ssl
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
import trustme
from tests.local.up import Up, eventually
from tests.patience import PATIENCE_S

from kant.service import http, listener, server
from kant.service.callers import page_token
from kant.service.connections import Connections
from kant.service.reload import Files
from kant.service.socket_access import Certificate

OPEN_FILES = 256
MANY = 300
AT_ONCE = 10
"""Connections of a crowd that are opened again at once: as many as it could would take the processor from all."""
SMALL_LOG = 1 << 15  # bytes
PARTS = (b"", b"GET / HTTP/1.1\r\nHost: localhost\r\n", b"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nX: ")


WRONG = (b"\x16\x03\x01\x02\x00\r\n\r\n", b"GET / HTTP/1.1\r\nHost: a\r\n: x\r\n\r\n", b"GET\r\n\r\n")


def few_files(most: int = OPEN_FILES) -> Callable[[], None]:
    """What limits the open files of a Kant."""

    def prepare() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115 - pytest's own goes elsewhere

    return prepare


def short(name: str, value: float, and_files: int = OPEN_FILES) -> Callable[[], None]:
    """What makes a time of the server short, and limits its open files."""

    def prepare() -> None:
        setattr(http if name == "BODY_S" else server, name, value)
        few_files(and_files)()

    return prepare


def address_of(kant: Up) -> tuple[str, int]:
    host, _, port = kant.client.get("/v1/whoami")["address"].removeprefix("https://").rpartition(":")
    return host, int(port)


class Crowd:
    """`count` connections that never finish a request. One that is closed is opened again until the end."""

    def __init__(self, connect: Callable[[], socket.socket], count: int) -> None:
        self.connect = connect
        self.looks = selectors.DefaultSelector()
        self.opened, self.closed = 0, 0
        self._missing = 0
        self._stop = threading.Event()
        for _ in range(count):
            self._open()
        self._thread = threading.Thread(target=self._go, daemon=True)

    def _open(self) -> None:
        own = self.connect()
        with suppress(OSError):
            own.sendall(PARTS[self.opened % len(PARTS)])
        own.setblocking(False)
        self.looks.register(own, selectors.EVENT_READ)
        self.opened += 1

    def _go(self) -> None:
        while not self._stop.is_set():
            for key, _ in self.looks.select(0.05):
                own: Any = key.fileobj
                with suppress(BlockingIOError, OSError):
                    if own.recv(4096):
                        continue
                self.looks.unregister(own)
                own.close()
                self.closed += 1
                self._missing += 1
            for _ in range(min(self._missing, AT_ONCE)):
                with suppress(OSError):
                    self._open()
                    self._missing -= 1
            time.sleep(0.02)

    def __enter__(self) -> Crowd:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        for key in list(self.looks.get_map().values()):
            key.fileobj.close()  # type: ignore[union-attr]


def by_tcp(kant: Up) -> Callable[[], socket.socket]:
    place = address_of(kant)
    return lambda: socket.create_connection(place, PATIENCE_S)


def by_socket(kant: Up) -> Callable[[], socket.socket]:
    def connect() -> socket.socket:
        own = socket.socket(socket.AF_UNIX)
        own.connect(str(kant.home / "kant.sock"))  # it waits while the backlog is full
        own.settimeout(PATIENCE_S)
        return own

    return connect


def ask_page(kant: Up, path: str) -> Any:
    """What the address answers to the token of the page."""
    line = HTTPConnection(*address_of(kant), timeout=PATIENCE_S)
    try:
        line.request("GET", path, headers={"Authorization": f"Bearer {page_token(kant.home)}"})
        return json.loads(line.getresponse().read())
    finally:
        line.close()


def works_for_its_owner(kant: Up) -> None:
    """Jobs are queued, start and end, and are shown, over the socket and by the address."""
    for _ in range(3):
        jobs = [kant.submit("echo here") for _ in range(4)]
        assert kant.over(*jobs) == ["finished"] * 4
        assert kant.log(jobs[0]) == "here\n"
        assert {job["id"] for job in ask_page(kant, "/v1/jobs")["jobs"]} >= set(jobs)


@contextmanager
def up(home: Path, **options: Any) -> Iterator[Up]:
    with Up(home, listen="127.0.0.1:0", **({"prepare": few_files()} | options)) as kant:
        yield kant


def log_of(kant: Up) -> str:
    return (kant.home / "kant.log").read_text()


@pytest.mark.parametrize("way", [by_tcp, by_socket])
def test_a_crowd_that_asks_nothing_changes_nothing_for_the_owner(way: Any, tmp_path: Path) -> None:
    with up(tmp_path / "home") as kant:
        before = len(log_of(kant))
        with Crowd(way(kant), MANY) as crowd:
            works_for_its_owner(kant)
            assert eventually(lambda: crowd.closed > 0), "some were closed for others"
            works_for_its_owner(kant)
        said = log_of(kant)[before:]
        assert "level=info" in log_of(kant)
        assert len(said) < SMALL_LOG and "could not be started" not in said, said[:4000]
        assert said.count("connections are closed for others") <= 1


def test_a_head_that_dribbles_is_cut_off_and_who_only_waits_is_not(tmp_path: Path) -> None:
    with up(tmp_path / "home", prepare=short("HEAD_S", 1.0)) as kant:
        token = page_token(kant.home)
        head = f"GET /v1/events HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n\r\n"
        with socket.create_connection(address_of(kant), PATIENCE_S) as events:
            events.sendall(head.encode())
            assert events.recv(4096).startswith(b"HTTP/1.1 200")
            with socket.create_connection(address_of(kant), PATIENCE_S) as loris:
                loris.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nX: ")
                assert eventually(lambda: dribbled(loris))
            job = kant.submit("true")
            kant.over(job)
            seen = b""
            while f'"{job}"'.encode() not in seen:
                got = events.recv(4096)
                assert got, "the stream was cut"
                seen += got


def dribbled(loris: socket.socket) -> bool:
    """Send one more letter of a head; whether it was cut off."""
    try:
        loris.sendall(b"X")
        loris.settimeout(0.05)
        return loris.recv(1) == b""
    except TimeoutError:
        return False
    except OSError:
        return True


def test_a_second_head_that_dribbles_is_cut_off_too(tmp_path: Path) -> None:
    with up(tmp_path / "home", prepare=short("IDLE_S", 1.0)) as kant, by_tcp(kant)() as loris:
        loris.sendall(b"GET /icon.svg HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert loris.recv(1 << 16).startswith(b"HTTP/1.1 200")
        loris.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nX: ")
        assert eventually(lambda: dribbled(loris))


def test_a_body_that_never_comes_is_cut_off(tmp_path: Path) -> None:
    with up(tmp_path / "home", prepare=short("BODY_S", 1.0)) as kant, by_socket(kant)() as own:
        own.sendall(
            b"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Content-Length: 100\r\n\r\n{"
        )
        assert own.recv(1 << 16).startswith(b"HTTP/1.1 408")


def test_handshakes_that_never_end_are_cut_off(tmp_path: Path) -> None:
    authority = trustme.CA()
    leaf = authority.issue_cert("localhost", "127.0.0.1")
    chain, key = tmp_path / "chain.pem", tmp_path / "key.pem"
    chain.write_bytes(b"".join(each.bytes() for each in leaf.cert_chain_pems))
    key.write_bytes(leaf.private_key_pem.bytes())
    trust = ssl.create_default_context()
    authority.configure_trust(trust)
    with up(tmp_path / "home", prepare=short("HEAD_S", 1.0), files=Files(certificate=Certificate(chain, key))) as kant:
        with Crowd(by_tcp(kant), 100) as crowd:
            assert eventually(lambda: crowd.closed > 100), "each was cut off"
            assert eventually(lambda: greets(kant, trust)), "who ends the handshake has an answer"
        assert len(log_of(kant)) < SMALL_LOG, log_of(kant)[:4000]


def greets(kant: Up, trust: ssl.SSLContext) -> bool:
    """Whether it answers over TLS; where this machine is so busy that the handshake takes too long, it does not."""
    host, port = address_of(kant)
    try:
        with trust.wrap_socket(socket.create_connection((host, port), PATIENCE_S), server_hostname=host) as own:
            own.sendall(b"GET /icon.svg HTTP/1.0\r\nHost: localhost\r\n\r\n")
            return own.recv(64).startswith(b"HTTP/1.0 200")
    except OSError:
        return False


def test_what_is_no_http_is_not_written_into_the_log(tmp_path: Path) -> None:
    with up(tmp_path / "home") as kant:
        before = len(log_of(kant))
        for text in WRONG * 100:
            with by_tcp(kant)() as own:
                own.sendall(text)
                own.recv(1 << 16)
        assert len(log_of(kant)) == before, log_of(kant)[before:][:2000]


def test_one_caller_cannot_take_every_place(tmp_path: Path) -> None:
    """Somebody with a token holds streams open; the owner's address answers all the same."""
    from kant.service.roles import Role
    from kant.service.tokens import TOKENS, change_keys, fresh_token, make_key

    with up(tmp_path / "home") as kant:
        token = fresh_token()
        change_keys(kant.home / TOKENS, lambda keys: (*keys, make_key(token, "ann", Role.VIEWER, ())))
        head = f"GET /v1/events HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n\r\n"
        lines = []
        answers = set()
        for _ in range(100):
            own = by_tcp(kant)()
            own.sendall(head.encode())
            answers.add(own.recv(4096).split(b"\r\n")[0])
            lines.append(own)
        assert answers == {b"HTTP/1.1 200 OK", b"HTTP/1.1 503 Service Unavailable"}
        works_for_its_owner(kant)
        for own in lines:
            own.close()


def test_more_runs_than_descriptors_are_all_seen_to_their_end(tmp_path: Path) -> None:
    with up(tmp_path / "home", prepare=few_files(128), cluster="8x16") as kant:
        job = kant.submit("sleep 4", array=list(range(120)), gpus=1)
        assert eventually(lambda: kant.client.get("/v1/health")["running"] == 120)
        works_for_its_owner_in_full(kant)
        assert eventually(lambda: kant.client.get("/v1/health")["running"] == 0), kant.job(job)
        assert "could not be started" not in log_of(kant)


def works_for_its_owner_in_full(kant: Up) -> None:
    """It answers by both doors while no GPU is free."""
    assert ask_page(kant, "/v1/health")["pid"] == kant.pid


def test_accepts_that_fail_are_said_once_and_tried_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(listener, "PAUSE_S", 0.001)
    monkeypatch.setattr(listener.log, "propagate", True)
    monkeypatch.setattr(listener.log.parent, "propagate", True)
    asked = []

    class Full(socket.socket):
        def accept(self) -> Any:
            asked.append(1)
            raise OSError(errno.EMFILE, "Too many open files")

    async def wait() -> None:
        with Full() as own, socket.socket() as caller:
            own.bind(("127.0.0.1", 0))
            own.listen()
            caller.connect(own.getsockname())
            found = listener.Listener(own, asyncio.Protocol, [Connections(1)], lambda found: (0, 8), 1.0)
            while len(asked) < 20:
                await asyncio.sleep(0.001)
            found.close()

    with caplog.at_level("WARNING"):
        asyncio.run(wait())
    assert [record.getMessage() for record in caplog.records] == ["connections cannot be accepted"]
