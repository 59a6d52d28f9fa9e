"""Runs: a run is one attempt of a job, under a supervisor (local/supervisor.py). Its state survives restarts of Kant.

A run begins at most once. First the intent is stored; then the run's folder is created, and the fork server
(local/forks.py) creates the supervisor, which claims the folder. If Kant was killed in between, its next process claims
the folder. If that fails, the run exists and is adopted; if it succeeds, no supervisor will ever begin the run.
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
from kant.local.forks import Answer, ForkedProcess, ForkServer
from kant.local.memory import remove
from kant.local.processes import boot_id, kill_marked, started
from kant.model.submission import Terminal

MARK = "KANT_RUN"
REBOOTED = "the machine was restarted"
POLL = 0.2  # seconds between two checks of a process without a pidfd


class Exit(Struct, frozen=True):
    """How a run ended: by an exit code or a signal. `why` is `limit`, `memory` or `stopped` if Kant ended the run, or
    `lease` if its machine could no longer reach Kant; otherwise "".

    `swept` counts the processes that the run left behind; `began` and `ended` are microseconds since boot. `cpu_us` is
    the CPU time of all processes, `rss_kib` the peak memory of one process, `dropped` the bytes of output lost to a
    full disk. If the end is unknown, `lost` says in one sentence what happened; `unborn`: the run never began.
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
        """Whether the run was lost with its machine, through no fault of its own."""
        return self.lost == REBOOTED or self.why == "lease"


class SupervisorClaim(Struct, frozen=True):
    """The supervisor of a run; if `pid` is 0, there will never be a supervisor."""

    pid: int = 0
    start: int = 0
    boot: str = ""


NO_CLAIM = SupervisorClaim()


class Spec(Struct, frozen=True):
    """The input of a supervisor. Times are in seconds. No limit is None for the time, 0 for memory, () for cores.

    `cgroup` is the path of the run's cgroup ("": none). Without a `terminal`, standard input is empty. `account` is the
    user of the run (None: Kant's owner). `output` and `error` are files for its output besides the log ("": none);
    `append`: they are not truncated. `warn_signal` is sent `warn_s` before the limit to processes that handle it.
    `lease` is a file with the time until which the run may continue, in seconds since boot ("": no lease). `cleanup` is
    a command that runs when all processes of the run have ended (empty: none).
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
    cleanup: tuple[str, ...] = ()


@dataclass(slots=True, eq=False)
class SupervisedRun:
    """A run with its supervisor, which lives or has been requested from `server`. The event loop calls `over` once,
    when the supervisor has exited or will never exist.
    """

    folder: Path
    claim: SupervisorClaim = NO_CLAIM
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
        """The parts of the run, one for each machine: only this run."""
        return [self]

    def watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Call `over` from the loop when the supervisor has exited."""
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
            if started(self.claim.pid) != self.claim.start:  # the supervisor has exited, and its id was reused
                self._close()
                loop.call_soon(self._gone)
                return
        if is_scarce(self._handle, KEPT_FROM_RUNS):
            self._close()
            self._poll()
            return
        loop.add_reader(self._handle, self._gone)

    def answered(self, answer: Answer) -> None:
        """Process the response of the fork server; None: the server has exited."""
        self.server = None
        if isinstance(answer, ForkedProcess):
            self.claim, self._handle = SupervisorClaim(answer.pid, answer.start), answer.handle
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
        """Find out from the run's folder what became of a request to which the fork server did not respond."""
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
        """Stop watching; the run continues."""
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
        """Tell the supervisor to stop the job; repeated calls have no effect."""
        self._is_stopped = True
        self._tell(signal.SIGTERM)

    def limit(self, seconds: float | None) -> None:
        """Set the time limit of the run, counted from its start. Raises OSError, and then nothing has changed."""
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
        """Return how the run ended; call it after the supervisor has exited."""
        if self._refused:
            return Exit(lost=self._refused, unborn=True)
        found = read_exit(self.folder)
        if found is not None:
            return found
        clear(self.folder)
        if read_claim(self.folder) is None:
            return Exit(lost="its supervisor ended before the run began", unborn=True)
        return Exit(lost="its supervisor was killed")


def mark(folder: Path) -> str:
    """Return the environment variable, as `NAME=value`, of all processes of a run."""
    return f"{MARK}={folder}"


def begin(folder: Path, spec: Spec, server: ForkServer) -> SupervisedRun:
    """Request a run with this folder and spec. If this raises OSError, nothing runs."""
    folder.mkdir(parents=True, mode=0o700, exist_ok=True)
    write_spec(folder, spec)
    run = SupervisedRun(folder, server=server)
    server.ask(folder, run.answered)
    return run


def find(folder: Path) -> SupervisedRun | Exit | None:
    """Return the state of a run that was to begin: a live run, the `Exit` of an ended run, or None: it never begins.

    Raises OSError if the disk prevents a definite answer.
    """
    claim = read_claim(folder)
    if claim is None:
        folder.mkdir(parents=True, mode=0o700, exist_ok=True)
        if supervisor.claim(str(folder), msgspec.json.encode(SupervisorClaim()).decode()):
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
    """Kill all processes of a run whose supervisor has been killed, and remove its cgroup."""
    kill_marked(mark(folder))
    spec = read_spec(folder)
    if spec is not None and spec.cgroup:
        for _ in range(20):  # until the killed processes have gone; otherwise the next start removes the cgroup
            if remove(spec.cgroup):
                break
            time.sleep(0.01)


def write_spec(folder: Path, spec: Spec) -> None:
    """Write the spec atomically. Raises OSError."""
    own = folder / "spec.json.new"
    with os.fdopen(os.open(own, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as out:
        out.write(msgspec.json.encode(spec))
    own.replace(folder / "spec.json")


def read_spec(folder: Path) -> Spec | None:
    """Read the spec of a run; None if there is none."""
    try:
        return msgspec.json.decode((folder / "spec.json").read_bytes(), type=Spec)
    except (OSError, msgspec.MsgspecError):
        return None


def read_claim(folder: Path) -> SupervisorClaim | None:
    """Read the claim of a run; None if there is none yet."""
    try:
        return msgspec.json.decode((folder / "claim").read_bytes(), type=SupervisorClaim)
    except FileNotFoundError:
        return None


def read_exit(folder: Path) -> Exit | None:
    """Read how the run ended; None if it has not."""
    try:
        raw: Any = json.loads((folder / "exit").read_bytes() or b"{}")
        return msgspec.convert(raw, Exit) if raw else None
    except (FileNotFoundError, ValueError):  # the file is blank until the run ends
        return None
