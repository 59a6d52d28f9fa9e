"""The fork server: it may die at any moment, and no run begins twice, is lost, or ends with it."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import socket
from pathlib import Path

import pytest
from tests.local.up import Up, end_jobs, eventually

from kant.local.forks import Answer, ForkServer
from kant.local.processes import PROC, started
from kant.local.runs import Exit, Spec, SupervisedRun, begin, find, read_claim, read_exit


def spec(home: Path, script: str) -> Spec:
    """A run of a script of the shell."""
    return Spec(("sh", "-c", script), {"PATH": os.environ["PATH"]}, str(home), 0o022, 1 << 20, 1.0, None, 0.0)


def parent(pid: int) -> int:
    """Whose child a process is."""
    return int((PROC / str(pid) / "stat").read_bytes().rpartition(b") ")[2].split()[1])


def test_a_run_outlives_the_server_that_has_made_it(tmp_path: Path) -> None:
    server, folder = ForkServer(), tmp_path / "1" / "1"
    run = begin(folder, spec(tmp_path, "while ! test -e go; do sleep 0.02; done; exit 3"), server)
    server.take()
    assert eventually(lambda: read_claim(folder) is not None)
    assert (PROC / str(run.claim.pid) / "comm").read_text() == "kant 1/1\n"
    server.close()
    assert started(run.claim.pid) == run.claim.start
    (tmp_path / "go").touch()
    assert eventually(lambda: read_exit(folder) is not None)
    found = read_exit(folder)
    assert found is not None and found.code == 3
    run.forget()


def test_a_server_that_was_killed_is_replaced_and_what_it_was_asked_is_found_out(tmp_path: Path) -> None:
    server, folder = ForkServer(), tmp_path / "1" / "1"
    first = begin(folder, spec(tmp_path, "while ! test -e go; do sleep 0.02; done"), server)
    server.take()
    assert eventually(lambda: read_claim(folder) is not None)
    killed = parent(first.claim.pid)
    os.kill(killed, signal.SIGSTOP)
    run = begin(tmp_path / "2" / "1", spec(tmp_path, "exit 4"), server)
    os.kill(killed, signal.SIGKILL)
    server.take()
    assert run.exit() == Exit(lost="the fork server was killed", unborn=True)
    assert find(tmp_path / "2" / "1") is None, "nobody will ever begin it"
    again = begin(tmp_path / "3" / "1", spec(tmp_path, "exit 5"), server)
    server.take()
    assert eventually(lambda: read_exit(again.folder) is not None)
    assert again.exit().code == 5
    (tmp_path / "go").touch()
    assert eventually(lambda: read_exit(folder) is not None)
    for each in (again, run, first):
        each.forget()
    server.close()


def test_a_run_that_is_stopped_before_it_is_there_ends(tmp_path: Path) -> None:
    async def one() -> Exit:
        server, over = ForkServer(), asyncio.Event()
        run = begin(tmp_path / "1" / "1", spec(tmp_path, "sleep 60"), server)
        run.over = lambda run: over.set()
        run.watch(asyncio.get_running_loop())
        run.stop()
        await asyncio.wait_for(over.wait(), 30)
        server.close()
        return run.exit()

    ended = asyncio.run(one())
    assert ended.why == "stopped" and not ended.unborn


def test_a_process_that_cannot_be_made_is_an_answer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from kant.local import fork_server

    def fork() -> int:
        raise OSError(errno.EAGAIN, "Resource temporarily unavailable")

    server, told = ForkServer(), list[Answer]()
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    monkeypatch.setattr(fork_server.os, "fork", fork)
    ours.send(b"/nowhere")
    ours.shutdown(socket.SHUT_WR)
    with theirs:
        fork_server.serve(theirs)
    server._socket = ours
    run = SupervisedRun(tmp_path, server=server)
    server._open.append(run.answered)
    server.take()
    assert run.exit() == Exit(lost="Resource temporarily unavailable", unborn=True) and not told
    ours.close()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)


def test_jobs_go_on_and_new_ones_start_where_the_server_is_killed(tmp_path: Path) -> None:
    with Up(tmp_path / "home") as kant:
        first = kant.submit("while ! test -e go; do sleep 0.02; done; echo through", gpus=1)
        assert eventually(lambda: (kant.home / "runs" / first / "1" / "claim").exists())
        claim = read_claim(kant.home / "runs" / first / "1")
        assert claim is not None
        os.kill(parent(claim.pid), signal.SIGKILL)
        second = kant.submit("echo after", gpus=1)
        assert kant.over(second) == ["finished"]
        (kant.home / "go").touch()
        assert kant.over(first) == ["finished"] and kant.log(first) == "through\n"


def test_what_the_jobs_of_a_test_run_does_not_outlive_the_tests(tmp_path: Path) -> None:
    with Up(tmp_path / "home") as kant:
        job = kant.submit("sleep 600", gpus=1)
        folder = kant.home / "runs" / job / "1"
        assert eventually(lambda: (folder / "claim").exists())
    claim = read_claim(folder)
    assert claim is not None and started(claim.pid) == claim.start, "it outlives its Kant"
    end_jobs([kant.home])
    assert eventually(lambda: started(claim.pid) is None)
