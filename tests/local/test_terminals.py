"""Terminals: `kant run`, `alloc`, `attach` and `shell` as somebody at a real terminal has them."""

from __future__ import annotations

import asyncio
import os
import pty
import re
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from fcntl import ioctl
from itertools import pairwise
from pathlib import Path
from termios import TIOCSCTTY, TIOCSWINSZ
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cli.command import kant as verb
from tests.local.up import Up, eventually
from tests.patience import PATIENCE_S

from kant.cli.terminal import Conversation, Escapes, SessionEnd
from kant.local.processes import marked
from kant.local.record import JobPhase
from kant.local.runs import mark
from kant.local.terminals import Frames, frame
from kant.service import terminals
from kant.service.roles import Role
from kant.service.tokens import TOKENS, change_keys, fresh_token, make_key
from kant.service.websocket import BINARY, LAST, PING, PONG, OpenWebSocket, Packets, masked, packet

ASKS = 'stty -echo; echo ready; while read line; do echo "got <$line>"; done'


class Screen:
    """A command of Kant at a terminal of its own."""

    def __init__(self, kant: Up, *words: str, rows: int = 30, columns: int = 100, **env: str) -> None:
        self.file, inner = pty.openpty()
        self.seen = b""
        self.resize(rows, columns)
        self.process = subprocess.Popen(
            [sys.executable, "-c", "from kant.cli.app import main; main()", *words],
            stdin=inner, stdout=inner, stderr=inner, start_new_session=True,
            env={**os.environ, "KANT_HOME": str(kant.home), "SHELL": "/bin/sh", "ENV": "", "PS1": "$ "} | env,
            preexec_fn=lambda: ioctl(0, TIOCSCTTY, 0) and None,
        )  # fmt: skip
        os.close(inner)

    def resize(self, rows: int, columns: int) -> None:
        ioctl(self.file, TIOCSWINSZ, struct.pack("4H", rows, columns, 0, 0))

    def type(self, text: str) -> None:
        os.write(self.file, text.encode())

    def shows(self, pattern: str) -> str:
        """Wait until what it shows has this, and go on after it; what was found."""
        end = time.monotonic() + PATIENCE_S
        while (found := re.search(pattern.encode(), self.seen)) is None:
            assert time.monotonic() < end, self.seen
            if select.select([self.file], [], [], 0.2)[0]:
                try:
                    data = os.read(self.file, 1 << 16)
                except OSError:
                    data = b""
                assert data, (pattern, self.seen)
                self.seen += data
        self.seen = self.seen[found.end() :]
        return found[found.lastindex or 0].decode()

    def code(self) -> int:
        return self.process.wait(PATIENCE_S)

    def __enter__(self) -> Screen:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.file)


def test_a_terminal_on_the_gpus_of_a_job_and_its_exit_code(kant: Up) -> None:
    with Screen(
        kant, "run", "--gpus", "2", "--", "sh", "-c", "tty; stty size; echo $CUDA_VISIBLE_DEVICES; exit 7"
    ) as it:
        job = it.shows(r"kant: job (\d+)")
        it.shows("/dev/pts/[0-9]+\r\n30 100\r\n0,1\r\n")
        it.shows(f"kant: job {job}: failed: exit code 7")
        assert it.code() == 7


def test_the_window_changes_and_ctrl_c_goes_to_the_job(kant: Up) -> None:
    script = "trap 'stty size' WINCH; trap 'echo stopped; exit 5' INT; echo ready; while :; do sleep 0.05; done"
    with Screen(kant, "run", "--", "sh", "-c", script) as it:
        it.shows("ready")
        it.resize(41, 123)
        it.shows("41 123")
        it.type("\x03")
        it.shows("stopped")
        assert it.code() == 5


def test_whoever_detaches_comes_back_to_a_job_that_has_gone_on(kant: Up) -> None:
    with Screen(kant, "run", "--", "sh", "-c", ASKS) as it:
        job = it.shows(r"kant: job (\d+)")
        it.shows("ready")
        it.type("one\n~~two\n")
        it.shows("got <one>\r\ngot <~two>")
        it.type("~.")
        it.shows(f"kant: job {job} continues to run: kant attach {job}")
        assert it.code() == 0
    with Screen(kant, "attach", job, rows=20, columns=60) as it:
        it.shows("got <one>\r\ngot <~two>")
        it.type("three\n")
        it.shows("got <three>")
        it.type("\x04")
        assert it.code() == 0


def test_a_client_that_is_killed_leaves_the_job_running_and_attachable(kant: Up) -> None:
    with Screen(kant, "run", "--", "sh", "-c", ASKS) as it:
        job = it.shows(r"kant: job (\d+)")
        it.shows("ready")
        it.process.send_signal(signal.SIGKILL)
        it.code()
    with Screen(kant, "attach", job) as one, Screen(kant, "attach", job) as other:
        one.shows("ready")
        other.shows("ready")
        one.type("still here\n")
        one.shows("got <still here>")
        other.shows("got <still here>")
        assert verb("cancel", job, "--home", kant.home).code == 0
        one.shows("cancelled")
        assert (one.code(), other.code()) == (1, 1)


def test_what_it_writes_is_whole_however_long_and_input_ends(kant: Up, tmp_path: Path) -> None:
    text = "".join(f"{number}\n" for number in range(200_000))
    done = subprocess.run(
        [sys.executable, "-c", "from kant.cli.app import main; main()", "run", "--", "cat"],
        input=text, env={**os.environ, "KANT_HOME": str(kant.home)}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout == text


def test_an_allocation_is_kept_while_its_shell_is_and_goes_with_it(kant: Up) -> None:
    with Screen(kant, "alloc", "--gpus", "4", "--time", "1h") as it:
        job = it.shows(r"kant: job (\d+)")
        it.shows("[$#] ")
        it.type("echo on $CUDA_VISIBLE_DEVICES of job $KANT_JOB_ID\n")
        it.shows(f"on 0,1,2,3 of job {job}\r\n")
        assert kant.job(job)["job"]["name"] == "alloc"
        it.type("exit\n")
        assert it.code() == 0
    assert kant.phase(job) == "finished"


def test_an_allocation_without_a_shell_is_for_other_shells(kant: Up) -> None:
    with Screen(kant, "alloc", "--gpus", "1", "--no-shell") as it:
        job = it.shows(r"\n(\d+)\r")
        assert it.code() == 0
    seen = verb("show", job, "--home", kant.home, "--json").json()["job"]
    assert seen["phase"] == "running"
    with Screen(kant, "shell", job, TERM="vt100", rows=33) as it:
        it.shows("[$#] ")
        it.type("echo $KANT_JOB_ID $TERM $(stty size); exit 9\n")
        it.shows(f"{job} vt100 33 100")
        assert it.code() == 9
    verb("cancel", job, "--home", kant.home)


def test_a_shell_has_what_the_job_has_and_ends_with_it(kant: Up) -> None:
    job = kant.submit("cd /; sleep 600", gpus=2, env={"PATH": os.environ["PATH"], "MINE": "yes"}, grace_s=0.1)
    assert eventually(lambda: kant.phase(job) == "running" and bool(marked(mark(kant.home / "runs" / job / "1"))))
    line = [sys.executable, "-c", "from kant.cli.app import main; main()", "shell", job, "--"]
    env = {**os.environ, "KANT_HOME": str(kant.home)}
    done = subprocess.run(
        [*line, "sh", "-c", "wc -c; echo $MINE $CUDA_VISIBLE_DEVICES; pwd; kill -9 $$"],
        input=b"x" * 300_000, env=env, capture_output=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout.decode().split()) == (137, ["300000", "yes", "0,1", str(kant.home)])
    with Screen(kant, "shell", job) as it:
        it.shows("[$#] ")
        it.type("sleep 500 & echo on\n")
        it.shows("on\r\n")
        kant.client.post(kant.client.job(job, "cancel"))
        it.shows(f"kant: job {job} has ended")
        assert it.code() == 1
    assert kant.over(job) == ["cancelled"]
    assert marked(mark(kant.home / "runs" / job / "1")) == []


def test_a_shell_whose_client_is_killed_ends_and_the_job_goes_on(kant: Up) -> None:
    job = kant.submit("sleep 600", grace_s=0.1)
    assert eventually(lambda: kant.phase(job) == "running")
    with Screen(kant, "shell", job) as it:
        it.shows("[$#] ")
        it.type("MARK=$(echo here) exec sleep 555\n")
        assert eventually(lambda: _runs(kant, job, b"sleep\x00555"))
        it.process.kill()
    assert eventually(lambda: not _runs(kant, job, b"sleep\x00555"))
    assert kant.phase(job) == "running" and _runs(kant, job, b"sleep\x00600")
    kant.client.post(kant.client.job(job, "cancel"))


def _runs(kant: Up, job: str, command: bytes) -> bool:
    return any(
        command in Path(f"/proc/{pid}/cmdline").read_bytes() for pid in marked(mark(kant.home / "runs" / job / "1"))
    )


def test_whoever_waits_for_gpus_is_told_why_and_gives_up_by_ctrl_c(kant: Up) -> None:
    full = kant.submit("sleep 600", gpus=8, grace_s=0.1)
    assert eventually(lambda: kant.phase(full) == "running")
    with Screen(kant, "run", "--gpus", "1", "--", "true") as it:
        job = it.shows(r"kant: job (\d+)")
        it.shows(f"job {job} waits: not enough free capacity")
        it.type("\x03")
        it.shows("kant: interrupted")
        assert it.code() == 130
    assert kant.over(job) == ["cancelled"]
    with Screen(kant, "run", "--gpus", "1", "--", "echo", "at", "last") as it:
        it.shows("not enough free capacity")
        kant.client.post(kant.client.job(full, "cancel"))
        it.shows("at last")
        assert it.code() == 0


def test_a_run_that_is_requeued_is_followed_into_the_next(kant: Up) -> None:
    with Screen(kant, "run", "--", "sh", "-c", "echo try $KANT_ATTEMPT; read line; echo $line") as it:
        job = it.shows(r"kant: job (\d+)")
        it.shows("try 1")
        assert verb("requeue", job, "--home", kant.home).code == 0
        it.shows("waits again")
        it.shows("try 2")
        it.type("done\n")
        it.shows("done\r\ndone")
        assert it.code() == 0


def test_a_terminal_is_there_across_a_restart_of_kant(tmp_path: Path) -> None:
    home = tmp_path / ("h" * (94 - len(str(tmp_path))))  # the socket of a run has a path that is too long for a socket
    with Up(home) as kant, Screen(kant, "run", "--", "sh", "-c", ASKS) as it:
        job = it.shows(r"kant: job (\d+)")
        it.shows("ready")
        kant.kill()
        it.shows("kant: ")
        assert it.code() == 2
    with Up(home) as kant, Screen(kant, "attach", job) as it:
        it.shows("ready")
        it.type("again\n")
        it.shows("got <again>")
        it.type("\x04")
        assert it.code() == 0


def test_by_an_address_a_terminal_is_for_who_has_submitted_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    with Up(home, listen="127.0.0.1:0") as kant:
        monkeypatch.setenv("KANT_URL", f"http://{kant.client.get('/v1/whoami')['address']}")
        tokens = {name: fresh_token() for name in ("ann", "ben", "eve")}
        for name, token in tokens.items():
            role, queues = (Role.VIEWER, ()) if name == "eve" else (Role.TENANT, ("default",))
            key = make_key(token, name, role, queues)
            change_keys(home / TOKENS, lambda keys, key=key: (*keys, key))  # type: ignore[misc]
        monkeypatch.setenv("KANT_TOKEN", tokens["ann"])
        elsewhere = {"KANT_HOME": str(tmp_path / "none")}
        with Screen(kant, "run", "--", "sh", "-c", ASKS, **elsewhere) as it:
            job = it.shows(r"kant: job (\d+)")
            it.shows("ready")
            it.type("~.")
            assert it.code() == 0
        monkeypatch.setenv("KANT_HOME", str(tmp_path / "none"))
        for name, words in (("ben", "a job of ben for `.*`, got 'a job of ann'"), ("eve", "role tenant or higher")):
            monkeypatch.setenv("KANT_TOKEN", tokens[name])
            for verb_ in ("attach", "shell"):
                assert re.search(words, verb(verb_, job).refusal())
        with Screen(kant, "attach", job, KANT_TOKEN=tokens["ann"]) as it:
            it.type("mine\n")
            it.shows("got <mine>")
            change_keys(home / TOKENS, lambda keys: ())  # whose token is revoked is shown nothing any more
            it.shows("kant: ")
            assert it.code() == 2
        deeds = [(deed["user"], deed["verb"], bool(deed["refused"])) for deed in kant.client.get("/v1/audit")["deeds"]]
        assert {("ann", "attach", False), ("ben", "attach", True), ("ben", "shell", True)} <= set(deeds)
        kant.client.post(kant.client.job(job, "cancel"))


def test_what_cannot_be_is_refused(kant: Up) -> None:
    plain = kant.submit("sleep 600", grace_s=0.1)
    assert eventually(lambda: kant.phase(plain) == "running")
    at = ("--home", kant.home)
    assert "a job with a terminal" in verb("attach", plain, *at).refusal()
    assert "the id of a job" in verb("attach", "99999", *at).refusal()
    assert "one ASCII letter" in verb("attach", plain, "--escape", "ab", *at).refusal()
    assert "a program" in verb("run", *at).refusal()
    kant.client.post(kant.client.job(plain, "cancel"))
    assert kant.over(plain) == ["cancelled"]
    assert "a job that runs" in verb("shell", plain, *at).refusal()
    with pytest.raises(Exception, match="not an array"):
        kant.submit("true", array=[0, 1], terminal={"pty": True})
    assert "gpus: expected at most 8" in verb("run", "--gpus", "64", *at, "--", "true").refusal()


@given(st.lists(st.tuples(st.sampled_from(b"OIEWDLXN").map(lambda n: bytes([n])), st.binary(max_size=300))), st.data())
def test_frames_and_messages_come_whole_however_they_are_cut(
    said: list[tuple[bytes, bytes]], data: st.DataObject
) -> None:
    stream = b"".join(frame(kind, payload) for kind, payload in said)
    answers = b"".join(_unmasked(kind + payload) for kind, payload in said)
    cuts = sorted(data.draw(st.lists(st.integers(0, max(len(stream), len(answers))), max_size=8)))
    places = [0, *cuts, max(len(stream), len(answers))]
    frames, packets = Frames(), Packets()
    heard = [each for a, b in pairwise(places) for each in frames.feed(stream[a:b])]
    told = [each for a, b in pairwise(places) for each in packets.feed(answers[a:b])]
    assert heard == said
    assert told == [(BINARY, kind + payload) for kind, payload in said]


def _unmasked(payload: bytes) -> bytes:
    """A frame as a server sends it: as a client does, without the mask."""
    size = len(payload)
    head = bytes([LAST | BINARY, size]) if size < 126 else bytes([LAST | BINARY, 126]) + size.to_bytes(2, "big")
    return head + payload


def test_a_run_that_is_over_while_somebody_connects_is_shown_from_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "log.0").write_bytes(b"all that it wrote\n")
    said: list[tuple[bytes, bytes]] = []
    running = SimpleNamespace(phase=JobPhase.RUNNING, is_over=False, attempt=1)

    class Silent:
        """Somebody who says nothing and stays."""

        def __aiter__(self) -> Silent:
            return self

        async def __anext__(self) -> None:
            await asyncio.Event().wait()

    async def gone(_: Path) -> terminals.SupervisorWire:
        ours, theirs = socket.socketpair()
        wire = terminals.SupervisorWire(*await asyncio.open_unix_connection(sock=ours))
        theirs.close()
        return wire

    async def send(kind: bytes, payload: bytes) -> None:
        said.append((kind, payload))

    monkeypatch.setattr(terminals.SupervisorWire, "to", gone)
    asyncio.run(
        terminals.attach(lambda: running, lambda _: tmp_path, str, asyncio.Event().wait, {}, 0, send, Silent())  # type: ignore[arg-type]
    )
    assert said == [(b"R", b"1"), (b"D", b"all that it wrote\n")]


def test_what_was_said_before_the_other_end_went_is_shown(
    capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    ours, theirs = socket.socketpair()
    theirs.send(_unmasked(b"R3"))

    class Late(OpenWebSocket):
        """Its other end says something and goes, just before this one speaks."""

        def flush(self) -> None:
            if self.out:
                theirs.send(_unmasked(b"Dlast words\n"))
                theirs.close()
            super().flush()

    line = Late(ours)
    conversation = Conversation(line, pty=False, said=print, interrupt=bool)
    line.send(b"E")
    assert conversation.hold() == SessionEnd(attempt=3)
    assert capfdbinary.readouterr().out == b"last words\n"


def test_whoever_waits_says_that_they_are_still_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    ours, theirs = socket.socketpair()
    theirs.settimeout(PATIENCE_S)
    answers: list[bytes] = []

    def daemon() -> None:
        for asked in (b"1", b"2"):
            theirs.send(bytes([LAST | PING, len(asked)]) + asked)
            answers.append(theirs.recv(64))
        theirs.close()

    beside = threading.Thread(target=daemon)
    beside.start()
    assert Conversation(OpenWebSocket(ours), pty=False, said=print, interrupt=bool).hold() == SessionEnd()
    beside.join()
    assert [(answer[0], masked(answer[6:], answer[2:6])) for answer in answers] == [
        (LAST | PONG, b"1"), (LAST | PONG, b"2")
    ]  # fmt: skip


@given(st.binary(max_size=70_000), st.binary(min_size=4, max_size=4))
def test_a_mask_changes_every_byte_by_its_key(payload: bytes, key: bytes) -> None:
    assert masked(payload, key) == bytes(byte ^ key[at % 4] for at, byte in enumerate(payload))
    assert packet(BINARY, payload, key).endswith(key + masked(payload, key))


@given(st.lists(st.binary(max_size=6), max_size=6))
def test_keys_go_on_as_they_are_but_for_escapes_after_enter(parts: list[bytes]) -> None:
    plain = Escapes(b"")
    assert [plain.feed(part) for part in parts] == [(part, "") for part in parts]
    keys = [part.replace(b"~", b"-") for part in parts]
    escapes = Escapes()
    assert [escapes.feed(part) for part in keys] == [(part, "") for part in keys]


def test_escapes_are_heard_after_enter_alone() -> None:
    for typed, sent, asked in (
        (b"~.", b"", "detach"), (b"a~.", b"a~.", ""), (b"a\r~.", b"a\r", "detach"), (b"~~.", b"~.", ""),
        (b"~x", b"~x", ""), (b"\n~?", b"\n", "help"), (b"~\r~.", b"~\r", "detach"),
    ):  # fmt: skip
        escapes = Escapes()
        found = [escapes.feed(typed[at : at + 1]) for at in range(len(typed))]
        assert (b"".join(part for part, _ in found), found[-1][1]) == (sent, asked), typed
