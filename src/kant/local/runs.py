"""Runs: one try of a job to run, under a supervisor (local/supervisor.py), and what is known of it after a restart.

A run begins exactly once. Before it, its intent is in the store; then its folder is made, and the fork server
(local/forks.py) makes its supervisor, which claims the folder. If Kant was killed in between, the next Kant claims the
folder itself: either it is too late, and the run is there to be adopted, or no supervisor will ever begin it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from kant.local import supervisor
from kant.local.accounts import Account
from kant.local.descriptors import KEPT_FROM_RUNS, is_scarce
from kant.local.forks import Answer, Fork, ForkServer
from kant.local.memory import remove
from kant.local.processes import boot_id, kill_marked, started
from kant.model.submission import Terminal

MARK = "KANT_RUN"
REBOOTED = "the machine was started anew"
POLL = 0.2  # seconds between two looks at a process that cannot be watched


class Exit(Struct, frozen=True):
    """How a run ended: by an exit code, or by a signal. `why`: `limit`, `memory` or `stopped` where it was made to, or
    `lease` where its machine could not reach Kant any more.

    `swept` counts the processes that it had left behind; `began` and `ended` are microseconds since the boot. `cpu_us`
    is what all its processes took of cores, `rss_kib` the most memory that one of them had at a time, and `dropped` the
    bytes of output for which the disk had no room. `lost` says in one sentence what happened to a run of which
    nobody knows how it ended; `unborn`: it never began.
    """

    code: int | None = None
    signal: int | None = None
    why: str = ""
    swept: int = 0
    began: int = -1
    ended: int = -1
    cpu_us: int = 0
    rss_kib: int = 0
    dropped: int = 0
    lost: str = ""
    unborn: bool = False

    @property
    def is_of_machine(self) -> bool:
        """Whether the run is gone with its machine, through no fault of its own."""
        return self.lost == REBOOTED or self.why == "lease"


class Claim(Struct, frozen=True):
    """Who supervises a run; nobody ever will where `pid` is 0."""

    pid: int = 0
    start: int = 0
    boot: str = ""


NOBODY = Claim()


class Spec(Struct, frozen=True):
    """What a supervisor has to know. Times in seconds; no limit: None. Of memory and cores: 0 and none.

    `cgroup` is the path of the one to make for the run, empty where there can be none. Without a `terminal` its
    standard input is empty. `account` is the user as whom it runs; None: as Kant's owner. `output` and `error` are the
    files for what it writes, empty where the log is enough; `append`: what is there stays. `warn_signal` is
    sent `warn_s` before the limit to those that handle it. `lease` is a file that says until when the run may go on, in
    seconds since the boot; empty: for as long as it likes.
    """

    command: tuple[str, ...]
    env: dict[str, str]
    workdir: str
    umask: int
    log_bytes: int
    grace_s: float
    limit_s: float | None
    warn_s: float
    memory_mib: int = 0
    cores: tuple[int, ...] = ()
    cgroup: str = ""
    terminal: Terminal | None = None
    account: Account | None = None
    output: str = ""
    error: str = ""
    append: bool = False
    warn_signal: str = "USR1"
    lease: str = ""


@dataclass(slots=True, eq=False)
class SupervisedRun:
    """A run with its supervisor: one that lives, or one that has been asked for (`server`) and is not there yet.

    `over` is called once from the loop, when the supervisor has gone or will never come."""

    folder: Path
    claim: Claim = NOBODY
    server: ForkServer | None = None
    over: Callable[[SupervisedRun], None] = lambda run: None
    _refused: str = ""
    _is_stopped: bool = False
    _is_limited: bool = False
    _handle: int = -1
    _loop: asyncio.AbstractEventLoop | None = field(default=None, repr=False)
    _timer: asyncio.TimerHandle | None = field(default=None, repr=False)

    @property
    def parts(self) -> list[SupervisedRun]:
        """What it consists of, machine by machine."""
        return [self]

    def watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Call `over` from the loop when the supervisor has gone."""
        self._loop = loop
        if self.server is not None:
            self.server.watch(loop)
            return
        if self._handle < 0:
            try:
                self._handle = os.pidfd_open(self.claim.pid)
            except OSError:
                self._poll()
                return
            if started(self.claim.pid) != self.claim.start:  # gone, and another has its number
                self._close()
                loop.call_soon(self._gone)
                return
        if is_scarce(self._handle, KEPT_FROM_RUNS):
            self._close()
            self._poll()
            return
        loop.add_reader(self._handle, self._gone)

    def answered(self, answer: Answer) -> None:
        """The fork server has answered, or has gone."""
        self.server = None
        if isinstance(answer, Fork):
            self.claim, self._handle = Claim(answer.pid, answer.start), answer.handle
        elif isinstance(answer, OSError):
            self._refused = answer.strerror or str(answer)
        else:
            self._look()
        if self._is_limited:
            self._tell(signal.SIGHUP)
        if self._is_stopped:
            self.stop()
        if self._loop is not None:
            self.watch(self._loop) if self.claim.pid else self._loop.call_soon(self._gone)

    def _look(self) -> None:
        """Find out what became of a question to which there is no answer."""
        try:
            found = find(self.folder)
        except OSError as error:
            self._refused = error.strerror or str(error)
            return
        if isinstance(found, SupervisedRun):
            self.claim = found.claim
        elif found is None:
            self._refused = "the fork server was killed"

    def _poll(self) -> None:
        assert self._loop is not None
        if started(self.claim.pid) == self.claim.start:
            self._timer = self._loop.call_later(POLL, self._poll)
        else:
            self._loop.call_soon(self._gone)

    def _gone(self) -> None:
        self.forget()
        self.over(self)

    def forget(self) -> None:
        """Watch it no longer; it runs on."""
        if self._timer is not None:
            self._timer.cancel()
        if self._handle >= 0 and self._loop is not None:
            self._loop.remove_reader(self._handle)
        self._loop = None
        self._close()

    def _close(self) -> None:
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1

    def stop(self) -> None:
        """Tell the supervisor to stop the job; telling it again does nothing."""
        self._is_stopped = True
        self._tell(signal.SIGTERM)

    def limit(self, seconds: float | None) -> None:
        """Let the run last so long from its start on. Raises OSError, and then nothing has changed."""
        spec = read_spec(self.folder)
        if spec is not None and spec.limit_s != seconds:
            write_spec(self.folder, msgspec.structs.replace(spec, limit_s=seconds))
            self._is_limited = True
            self._tell(signal.SIGHUP)

    def _tell(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            if self._handle >= 0:
                signal.pidfd_send_signal(self._handle, number)
            elif self.claim.pid and started(self.claim.pid) == self.claim.start:
                os.kill(self.claim.pid, number)

    def exit(self) -> Exit:
        """How it ended, once it has gone."""
        if self._refused:
            return Exit(lost=self._refused, unborn=True)
        found = read_exit(self.folder)
        if found is not None:
            return found
        clear(self.folder)
        if read_claim(self.folder) is None:
            return Exit(lost="its supervisor ended before it began", unborn=True)
        return Exit(lost="its supervisor was killed")


def mark(folder: Path) -> str:
    """The line of the environment that all processes of a run have."""
    return f"{MARK}={folder}"


def begin(folder: Path, spec: Spec, server: ForkServer) -> SupervisedRun:
    """Ask for the run whose folder this is to be. Raises OSError, and then nothing runs."""
    folder.mkdir(parents=True, mode=0o700, exist_ok=True)
    write_spec(folder, spec)
    run = SupervisedRun(folder, server=server)
    server.ask(folder, run.answered)
    return run


def find(folder: Path) -> SupervisedRun | Exit | None:
    """What has become of a run that was meant to begin: it lives, it has ended, or (None) it never will begin.

    Raises OSError where the disk does not let us make sure.
    """
    claim = read_claim(folder)
    if claim is None:
        folder.mkdir(parents=True, mode=0o700, exist_ok=True)
        if supervisor.claim(str(folder), msgspec.json.encode(Claim()).decode()):
            return None
        claim = read_claim(folder)
    if claim is None or claim.pid == 0:
        return None
    ended = read_exit(folder)
    if ended is not None:
        return ended
    if claim.boot != boot_id():
        return Exit(lost=REBOOTED)
    if started(claim.pid) == claim.start:
        return SupervisedRun(folder, claim)
    ended = read_exit(folder)
    if ended is None:
        clear(folder)
    return ended or Exit(lost="its supervisor was killed")


def clear(folder: Path) -> None:
    """Let nothing be left of a run whose supervisor has gone before its time."""
    kill_marked(mark(folder))
    spec = read_spec(folder)
    if spec is not None and spec.cgroup:
        for _ in range(20):  # until what was killed has gone; else the next start of Kant sweeps
            if remove(spec.cgroup):
                break
            time.sleep(0.01)


def write_spec(folder: Path, spec: Spec) -> None:
    """Write it whole, or leave what is there. Raises OSError."""
    own = folder / "spec.json.new"
    with os.fdopen(os.open(own, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as out:
        out.write(msgspec.json.encode(spec))
    own.replace(folder / "spec.json")


def read_spec(folder: Path) -> Spec | None:
    """What the supervisor of a run was told; None where that is not there."""
    try:
        return msgspec.json.decode((folder / "spec.json").read_bytes(), type=Spec)
    except (OSError, msgspec.MsgspecError):
        return None


def read_claim(folder: Path) -> Claim | None:
    """Who has the run; None while nobody has."""
    try:
        return msgspec.json.decode((folder / "claim").read_bytes(), type=Claim)
    except FileNotFoundError:
        return None


def read_exit(folder: Path) -> Exit | None:
    """How the run ended; None while it has not."""
    try:
        raw: Any = json.loads((folder / "exit").read_bytes() or b"{}")
        return msgspec.convert(raw, Exit) if raw else None
    except (FileNotFoundError, ValueError):  # it is blank until then
        return None
