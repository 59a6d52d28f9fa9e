"""Runs: one try of a job to run, under a supervisor (local/supervisor.py), and what is known of it after a restart.

A run begins exactly once. Before it, its intent is in the store; then its folder is made and its supervisor started,
which claims the folder. If Kant was killed in between, the next Kant claims the folder itself: either it is too late,
and the run is there to be adopted, or no supervisor will ever begin it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from kant.local import supervisor
from kant.local.memory import remove
from kant.local.processes import boot_id, kill_marked, started

MARK = "KANT_RUN"
REBOOTED = "the machine was started anew"
LOADER = ("LD_LIBRARY_PATH",)  # what an interpreter may need to start
POLL = 0.2  # seconds between two looks at a process that cannot be watched


class Exit(Struct, frozen=True):
    """How a run ended: by an exit code, or by a signal. `why`: `limit`, `memory` or `stopped` where it was made to.

    `swept` counts the processes that it had left behind. `lost` says in one sentence what happened to a run of which
    nobody knows how it ended; `unborn`: it never began.
    """

    code: int | None = None
    signal: int | None = None
    why: str = ""
    swept: int = 0
    ended: int = -1
    lost: str = ""
    unborn: bool = False


class Claim(Struct, frozen=True):
    """Who supervises a run; nobody ever will where `pid` is 0."""

    pid: int = 0
    start: int = 0
    boot: str = ""


class Spec(Struct, frozen=True):
    """What a supervisor has to know. Times in seconds; no limit: None. Of memory and cores: 0 and none.

    `cgroup` is the path of the one to make for the run, empty where there can be none.
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


@dataclass(slots=True, eq=False)
class SupervisedRun:
    """A supervisor that lives, ours or one that was adopted. `over` is called once when it has gone."""

    folder: Path
    claim: Claim
    own: subprocess.Popen[bytes] | None = None
    over: Callable[[SupervisedRun], None] = lambda run: None
    _handle: int = -1
    _timer: asyncio.TimerHandle | None = field(default=None, repr=False)

    def watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Call `over` from the loop when the supervisor has gone."""
        try:
            self._handle = os.pidfd_open(self.pid)
        except OSError:
            self._poll(loop)
            return
        if self.own is None and started(self.pid) != self.claim.start:  # gone, and another has its number
            self._close()
            loop.call_soon(self._gone, loop)
            return
        loop.add_reader(self._handle, self._gone, loop)

    @property
    def pid(self) -> int:
        return self.own.pid if self.own is not None else self.claim.pid

    def _poll(self, loop: asyncio.AbstractEventLoop) -> None:
        alive = self.own.poll() is None if self.own is not None else started(self.pid) == self.claim.start
        if alive:
            self._timer = loop.call_later(POLL, self._poll, loop)
        else:
            loop.call_soon(self._gone, loop)

    def _gone(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._handle >= 0:
            loop.remove_reader(self._handle)
        self._close()
        if self.own is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.own.wait(1)
        self.over(self)

    def _close(self) -> None:
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1

    def forget(self, loop: asyncio.AbstractEventLoop) -> None:
        """Watch it no longer; it runs on."""
        if self._timer is not None:
            self._timer.cancel()
        if self._handle >= 0:
            loop.remove_reader(self._handle)
        self._close()

    def stop(self) -> None:
        """Tell the supervisor to stop the job; telling it again does nothing."""
        with contextlib.suppress(ProcessLookupError):
            if self._handle >= 0:
                signal.pidfd_send_signal(self._handle, signal.SIGTERM)
            elif self.own is not None or started(self.pid) == self.claim.start:
                os.kill(self.pid, signal.SIGTERM)

    def exit(self) -> Exit:
        """How it ended, once it has gone."""
        found = read_exit(self.folder)
        if found is not None:
            return found
        clear(self.folder)
        status = self.own.returncode if self.own is not None else None
        if read_claim(self.folder) is None:
            return Exit(lost=f"its supervisor ended with {status}", unborn=True)
        return Exit(lost="its supervisor was killed")


def mark(folder: Path) -> str:
    """The line of the environment that all processes of a run have."""
    return f"{MARK}={folder}"


def begin(folder: Path, spec: Spec) -> SupervisedRun:
    """Start the run whose folder this is to be. Raises OSError, and then nothing runs."""
    folder.mkdir(parents=True, mode=0o700, exist_ok=True)
    file = os.open(folder / "spec.json", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(file, "wb") as out:
        out.write(msgspec.json.encode(spec))
    own = subprocess.Popen(
        [sys.executable, "-I", "-S", supervisor.__file__, str(folder)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        cwd="/",
        env={MARK: str(folder)} | {name: os.environ[name] for name in LOADER if name in os.environ},
    )
    return SupervisedRun(folder, Claim(own.pid), own)


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
