"""Webhooks, and commands on events: who is told what, how often, and where nothing is posted."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import threading
from collections.abc import Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cli.command import kant as verb
from tests.local.up import Up, eventually

from kant.local.record import JobPhase, JobRecord
from kant.model.errors import InputError
from kant.model.submission import Notice, Submission
from kant.service import notices
from kant.service.notices import (
    MOST_WAITING,
    NoticeFile,
    NoticeSender,
    OwnNotice,
    happenings,
    is_elsewhere,
    leads_out,
    read_notices,
)
from kant.service.roles import Role
from kant.service.tokens import TOKENS, change_keys, fresh_token, make_key


def in_a_hurry(log: Path) -> None:
    """The next try comes at once, and what the log says is kept."""
    notices.PAUSE = 0.01
    log.touch()

    def said(logger: object, what: str, level: int = 0, **more: object) -> None:
        with log.open("a") as file:
            file.write(f"{what} {more}\n")

    notices.log_event = said  # type: ignore[assignment]


class Hook:
    """An address that is posted to. `answers` has the status of the next answers; 200 after them."""

    def __init__(self) -> None:
        self.told: list[dict[str, Any]] = []
        self.answers: list[int] = []
        hook = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                hook.told.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                self.send_response(hook.answers.pop(0) if hook.answers else 200)
                self.send_header("Content-Length", "0")
                self.send_header("Location", f"http://127.0.0.1:{hook.port}/elsewhere")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/here"

    def events(self) -> list[tuple[str, str]]:
        return [(each["job"]["id"], each["event"]) for each in self.told]


@pytest.fixture
def hook() -> Iterator[Hook]:
    found = Hook()
    yield found
    found.server.shutdown()
    found.server.server_close()


def test_of_a_job_who_it_asks_for_and_of_all_whom_the_owner_asks_for(tmp_path: Path, hook: Hook) -> None:
    told = tmp_path / "told"
    script = f'said=$(cat); echo "$said $KANT_EVENT $KANT_JOB_ID" >> {told}'  # at once: others write there too
    file = tmp_path / "notices.toml"
    file.write_text(f"""
[[notice]]
on = ["started", "failed"]
queue = "default"
command = ["sh", "-c", {json.dumps(script)}]
[[notice]]
queue = "another"
command = ["sh", "-c", "echo never >> {told}"]
""")
    hook.answers = [500, 302]
    hurry = partial(in_a_hurry, tmp_path / "said")
    with Up(tmp_path / "home", notices=read_notices(file), prepare=hurry) as kant:
        asked = [{"webhook": hook.url, "on": ["submitted", "finished"]}]
        one = kant.submit("true", notices=asked)
        assert kant.over(one) == ["finished"]
        assert eventually(lambda: hook.events().count((one, "finished")) >= 1)
        assert eventually(lambda: hook.events().count((one, "submitted")) + hook.events().count((one, "finished")) > 2)
        other = kant.submit("exit 3", notices=[{"command": ["sh", "-c", f"echo own $MINE >> {told}"]}], env={
            "PATH": os.environ["PATH"], "MINE": "yes"})  # fmt: skip
        assert kant.over(other) == ["failed"]
        assert eventually(lambda: told.exists() and told.read_text().count("\n") == 4)
        lines = told.read_text().splitlines()
        assert "own yes" in lines
        begins = [line for line in lines if line.endswith(f"failed {other}")]
        (said,) = [json.loads(line.rpartition("}")[0] + "}") for line in begins]
        assert (said["event"], said["job"]["id"], said["job"]["code"]) == ("failed", other, 3)
        bad = kant.submit("true", notices=[{"webhook": "http://127.0.0.1:1/"}, {"command": ["/nowhere/it"]}])
        kant.over(bad)
        log = tmp_path / "said"
        assert eventually(lambda: "notice failed" in log.read_text() and "/nowhere/it" in log.read_text())


def test_what_a_tenant_gives_is_not_posted_to_this_machine_unless_it_is_allowed(
    tmp_path: Path, hook: Hook, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, token, hurry = tmp_path / "home", fresh_token(), partial(in_a_hurry, tmp_path / "said")
    with Up(home, listen="127.0.0.1:0", notices=NoticeFile(allow=("localhost",)), prepare=hurry) as kant:
        key = make_key(token, "ann", Role.TENANT, ("default",))
        change_keys(home / TOKENS, lambda keys: (*keys, key))
        monkeypatch.setenv("KANT_URL", f"http://{kant.client.get('/v1/whoami')['address']}")
        monkeypatch.setenv("KANT_TOKEN", token)
        monkeypatch.setenv("KANT_HOME", str(tmp_path / "none"))
        refused = [hook.url, hook.url.replace("127.0.0.1", "127.1"), hook.url.replace("127.0.0.1", "0x7f000001")]
        for url in refused:
            assert verb("submit", "--webhook", url, "--", "true").code == 0
        log = tmp_path / "said"
        assert eventually(lambda: log.read_text().count("which only operators may use") == len(refused))
        fine = verb("submit", "--webhook", hook.url.replace("127.0.0.1", "localhost"), "--", "true").out.strip()
        assert eventually(lambda: hook.events() == [(fine, "finished")])


WORLD = st.sampled_from(["8.8.8.8", "1.1.1.1", "2606:4700:4700::1111", "::ffff:8.8.8.8"])
INSIDE = st.one_of(
    st.sampled_from(["0.0.0.0", "::1", "::", "169.254.169.254", "fe80::1%eth0", "::ffff:127.0.0.1", "224.0.0.1"]),
    st.integers(0, 2**24 - 1).map(lambda n: socket.inet_ntoa((127 << 24 | n).to_bytes(4, "big"))),
    st.integers(0, 2**24 - 1).map(lambda n: socket.inet_ntoa((10 << 24 | n).to_bytes(4, "big"))),
)


@given(WORLD, INSIDE)
def test_addresses_of_this_machine_and_its_networks_are_not_elsewhere(world: str, inside: str) -> None:
    assert is_elsewhere(world) and leads_out(world) and leads_out("hooks.example.com")
    assert not is_elsewhere(inside) and not leads_out(inside)
    assert not any(map(leads_out, ("127.1", "2130706433", "[::1]")))


@given(st.lists(st.sampled_from(list(JobPhase)), min_size=1, max_size=8))
def test_each_change_has_one_name_and_no_change_has_none(phases: list[JobPhase]) -> None:
    before, told = None, list[str]()
    for phase in phases:
        told += happenings(before, phase)
        assert happenings(phase, phase) == []
        before = phase
    changes = [phase for at, phase in enumerate(phases) if at == 0 or phase is not phases[at - 1]]
    assert told[0] == "submitted" and told.count("submitted") == 1
    assert told.count("started") == changes.count(JobPhase.RUNNING)
    for over in (JobPhase.FINISHED, JobPhase.FAILED, JobPhase.CANCELLED, JobPhase.REJECTED):
        assert told.count(over) == changes.count(over)


def test_a_flood_is_bounded_and_what_is_given_up_is_said(caplog: pytest.LogCaptureFixture) -> None:
    async def flood() -> NoticeSender:
        notifier = NoticeSender(NoticeFile((OwnNotice(on=("submitted",), command=("true",)),)))
        for seq in range(MOST_WAITING + 3):
            notifier.changed(
                JobRecord(seq, str(seq), Submission(command=("true",), workdir="/"), b"", "ann", 0, JobPhase.WAITING)
            )
        return notifier

    with caplog.at_level("WARNING", "kant.service"):
        assert len(asyncio.run(flood()).waiting) == MOST_WAITING
    assert sum("notice failed" in str(each.msg) for each in caplog.records) == 3


def test_what_is_no_notice_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "notices.toml"
    for text, word in (
        ("notice = 3", "notice: expected .* tables, got 3"),
        ("[[notice]]\non = ['failed']", "a webhook or a command"),
        ("x", "expected TOML"),
        ("[[notice]]\nwebhook = 'ftp://x'", "http://"),
        ("[[notice]]\non = ['odd']\nwebhook = 'http://x'", "1, on 1: expected one of"),
    ):  # fmt: skip
        file.write_text(text)
        with pytest.raises(InputError, match=word):
            read_notices(file)
    with pytest.raises(InputError, match="can be read"):
        read_notices(tmp_path / "none")
    assert "--webhook or --on-event as well" in verb("submit", "--events", "failed", "--", "true").refusal()
    assert Notice().on == ("finished", "failed", "cancelled", "rejected")
