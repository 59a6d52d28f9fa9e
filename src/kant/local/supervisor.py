"""The supervisor of one run of a job: a small separate process, so that the job outlives Kant.

The fork server (fork_server.py) creates a supervisor for the folder of a run. It needs only the standard library, and
the files memory.py and terminals.py beside it. The run's folder holds `spec.json`; the supervisor adds

- `claim`: the process that owns the run (pid, start time, boot), which is the first to create this file. To cancel a
  start, Kant creates the file with pid 0, so that a late supervisor does nothing.
- `log.<offset>`: the job's output, in files of half of the allowed size; the oldest is deleted.
- `given`: for a slot, the job that it gets, or null (slots.py). The first process to create this file decides.
- `terminal`: the socket for attached clients, while the job runs (terminals.py).
- `exit`: blank while the job runs, then how it ended. Its disk space is allocated before the job starts.

SIGHUP means that `spec.json` has a new limit. SIGTERM stops the job: SIGTERM to its process group, and SIGKILL after
the grace period. On a joined machine, `spec.json` names a lease file: when the lease expires, all processes are killed.
The supervisor reaps every process that the job leaves behind, in any session, and exits only when all have ended.

Long: it is loaded by itself, file by file, in every run.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import select
import signal
import time
from _thread import get_native_id
from collections.abc import Callable, Iterator

if __name__ == "supervisor":  # imported by the fork server, from its folder
    from memory import EVERY, Cgroup, below, pause, taken  # type: ignore[import-not-found]
    from terminals import Ends, Streams, Terminals, enter, how  # type: ignore[import-not-found]
else:
    from kant.local.memory import EVERY, Cgroup, below, pause, taken
    from kant.local.terminals import Ends, Streams, Terminals, enter, how

LIBC = ctypes.CDLL(None, use_errno=True)
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 1, 36, 38
SWEEP = 2.0  # seconds between SIGTERM and SIGKILL for processes left behind
AGAIN = 0.2  # seconds between two rounds of SIGKILL
CLEANUP = 10.0  # seconds for the command that cleans up
FOR_CHILDREN = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGCHLD)  # children get the default handlers
LONGEST = 3600.0
WIDTH = 256  # bytes of the file `exit`
BACKSTOP = 2.0  # seconds after the limit until the supervisor stops the run itself


def boot_id() -> str:
    with open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()


def now() -> float:
    """Return the seconds since boot, including sleep; setting a clock does not affect it."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def fields(pid: int | str) -> list[str]:
    """Return the fields of /proc/PID/stat from the third (state) on; empty if there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b") ")[2].decode().split()
    except OSError:
        return []


def claim(folder: str, content: str, name: str = "claim") -> bool:
    """Create a file with this content atomically. Return False if the file exists already."""
    own = f"{folder}/{name}.{get_native_id()}"
    with open(own, "w") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    try:
        os.link(own, f"{folder}/{name}")
    except FileExistsError:
        return False
    finally:
        os.unlink(own)
    return True


class Log:
    """The output of a job, in files of `cap` / 2 bytes. If the disk is full, output is lost but nothing else. `dropped`
    counts all lost bytes, `lost` the bytes that the log does not mention yet. `show` is called with new output and its
    offset (-1: it is not in the log).
    """

    def __init__(self, folder: str, cap: int, show: Callable[[int, bytes], None] = lambda offset, data: None) -> None:
        self.folder = folder
        self.show = show
        self.part = max(cap // 2, 1)
        self.offset = 0
        self.lost = 0
        self.dropped = 0
        self.names: list[str] = []
        self.file = -1
        self.left = 0

    def write(self, data: bytes) -> None:
        missing = len(data)
        if self.note():
            missing -= self._put(data)
        if missing:
            self.show(-1, data[len(data) - missing :])
        self.lost += missing
        self.dropped += missing

    def note(self) -> bool:
        """Write a note into the log about lost bytes. Return False if there is no room for it."""
        if self.lost:
            note = f"\n[kant: {self.lost} bytes of output are lost: the disk was full]\n".encode()
            if self._put(note) < len(note):
                return False
            self.lost = 0
        return True

    def _put(self, data: bytes) -> int:
        view, done = memoryview(data), 0
        try:
            while done < len(view):
                if self.left == 0:
                    self._turn()
                count = os.write(self.file, view[done : done + self.left])
                self.show(self.offset, data[done : done + count])
                done += count
                self.left -= count
                self.offset += count
        except OSError:
            pass
        return done

    def _turn(self) -> None:
        name = f"{self.folder}/log.{self.offset:020}"
        file = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        if self.file >= 0:
            os.close(self.file)
        self.file, self.left = file, self.part
        self.names.append(name)
        while len(self.names) > 2:
            with contextlib.suppress(OSError):
                os.unlink(self.names.pop(0))


class Copy:
    """A file for the output of a job, besides the log. Output that cannot be written to the file is only in the log,
    which says so. The file is opened as the job would: from the job's folder, under its umask. Raises OSError.
    """

    def __init__(self, path: str, spec: dict, log: Log) -> None:  # type: ignore[type-arg]
        self.path = os.path.join(spec["workdir"], path)
        self.log = log
        kind = os.O_APPEND if spec["append"] else os.O_TRUNC
        with acting_as(spec.get("account"), spec["umask"]):  # a pipe without a reader must not block
            self.file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK | kind, 0o666)

    def write(self, data: bytes) -> None:
        while data and self.file >= 0:
            try:
                data = data[os.write(self.file, data) :]
            except OSError as error:
                os.close(self.file)
                self.file = -1
                self.log.write(f"\n[kant: {self.path}: {error.strerror}; later output is only here]\n".encode())


class Supervisor:
    """Supervises one run, from fork to the end of its last process."""

    def __init__(self, folder: str, spec: dict) -> None:  # type: ignore[type-arg]
        self.folder = folder
        self.spec = spec
        said = spec.get("terminal")
        self.ends = Ends(said["pty"], said["rows"], said["columns"]) if said else None
        self.terminals = Terminals(folder, self.ends, self._beside)
        self.log = Log(folder, spec["log_bytes"], self.terminals.show)
        self.terminals.logged = lambda: self.log.offset
        self.sources: dict[int, Copy | None] = {}
        self.child = 0
        self.status: int | None = None
        self.why = ""
        self.kill_at = self.limit_at = self.warn_at = self.look_at = float("inf")
        self.lease_at = held_until(spec.get("lease"))
        self.swept = 0
        self.began = now()
        self.most = spec["memory_mib"] << 20
        self.cgroup = Cgroup(spec["cgroup"], self.most)

    def run(self, wake: int) -> None:
        if self.spec["cores"]:
            with contextlib.suppress(OSError):  # some of the cores may be offline now
                os.sched_setaffinity(0, self.spec["cores"])
        self._start()
        began = self.began
        if self.most:
            self.look_at = began + EVERY
        self._limit(self.spec["limit_s"])
        while True:
            wait = min(self.kill_at, self.limit_at, self.warn_at, self.look_at, self.lease_at) - now()
            wants = self.terminals.wants()
            wants[wake] = select.POLLIN
            for output in self.sources:
                wants[output] = wants.get(output, 0) | select.POLLIN
            waits = select.poll()
            for file, events in wants.items():
                waits.register(file, events)
            ready = dict(waits.poll(max(0.0, min(wait, LONGEST)) * 1000))
            for output in self.sources.keys() & ready:
                if not self._read(output):
                    del self.sources[output]
            self.terminals.act(ready)
            received = os.read(wake, 4096) if wake in ready else b""
            if signal.SIGTERM in received:
                self._stop("stopped")
            if signal.SIGHUP in received:
                self._other_limit()
            if not self._reap() and not self._cleans_up():
                break
            self._act_on_time()
        for output in self.sources:
            while self._read(output):
                pass
        self._end()

    def _cleans_up(self) -> bool:
        """Start, once, the command that removes what the run leaves behind; return False if there is none left."""
        command = self.spec.pop("cleanup", None)
        if not command:
            return False
        nothing = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
        self._fork(command, self.spec["env"], (nothing, nothing, nothing), False)
        os.close(nothing)
        self.kill_at = now() + CLEANUP
        return True

    def _limit(self, limit: float | None) -> None:
        warn = self.spec["warn_s"]
        if limit is not None:
            self.limit_at = self.began + limit + BACKSTOP
            self.warn_at = self.began + limit - warn if 0 < warn < limit else float("inf")

    def _other_limit(self) -> None:
        """Apply the time limit in `spec.json`, if it has changed."""
        with open(f"{self.folder}/spec.json") as file:
            limit = json.load(file)["limit_s"]
        if limit != self.spec["limit_s"] and self.status is None:
            self.spec["limit_s"] = limit
            self._limit(limit)

    def _start(self) -> None:
        LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        command, env, refused = self.spec["command"], self.spec["env"], ""
        if now() >= self.lease_at:  # the lease has been extended too late
            self.why, refused = "lease", "kant: this machine lost the connection to Kant\n"
        both: list[Copy | None] = [None, None]
        for at, name in enumerate(("output", "error")):
            try:
                if self.spec.get(name):
                    both[at] = Copy(self.spec[name], self.spec, self.log)
            except (OSError, ValueError) as error:
                refused = f"kant: {self.spec[name]}: {getattr(error, 'strerror', None) or error}\n"
        if self.ends is not None:
            self.child = self._fork(command, env, self.ends.within, self.ends.pty, refused)
            self.ends.release()
            self.sources[self.ends.output] = both[0]
            return
        output, into = os.pipe2(os.O_CLOEXEC)
        self.sources[output] = both[0]
        errors, aside = os.pipe2(os.O_CLOEXEC) if both[1] is not None else (output, into)
        self.sources[errors] = both[1] if errors != output else both[0]
        nothing = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
        self.child = self._fork(command, env, (nothing, into, aside), False, refused)
        for each in {into, aside, nothing}:
            os.close(each)
        for each in self.sources:
            os.set_blocking(each, False)

    def _beside(self, command: list[str], env: dict[str, str], ends: Ends) -> int:
        """Start a shell next to the job, with its user, limits and environment. Raises OSError."""
        if self.status is not None or self.why:
            raise OSError(0, "the run is ending")
        return self._fork(command, self.spec["env"] | env, ends.within, ends.pty)

    def _fork(self, command: list[str], env: dict[str, str], streams: Streams, pty: bool, refused: str = "") -> int:
        """Start a command; with a reason in `refused`, start a process that prints the reason and exits. Signals are
        blocked until the child no longer has the supervisor's handlers."""
        own = os.getpid()
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, FOR_CHILDREN)
        child = os.fork()
        if child == 0:
            try:
                os.setsid()
                self.cgroup.enter()
                os.dup2(streams[2], 2)
                become(self.spec["account"], streams[0] if pty else None)
                LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)  # a change of user clears this setting
                if os.getppid() != own:
                    os._exit(1)
                signal.set_wakeup_fd(-1)
                for each in (*FOR_CHILDREN, signal.SIGPIPE, signal.SIGXFSZ):
                    signal.signal(each, signal.SIG_DFL)
                signal.pthread_sigmask(signal.SIG_SETMASK, ())
                enter(streams, pty)
                if refused:
                    os.write(2, refused.encode())
                    os._exit(126)
                self._exec(command, env)
            finally:
                os._exit(126)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        return child

    def _exec(self, command: list[str], env: dict[str, str]) -> None:
        spec = self.spec
        os.umask(spec["umask"])
        try:
            os.chdir(spec["workdir"])
            os.execvpe(command[0], command, env)
        except (OSError, ValueError) as error:
            there = os.getcwd() == os.path.realpath(spec["workdir"])
            what = command[0] if there else spec["workdir"]
            os.write(2, f"kant: {what}: {getattr(error, 'strerror', None) or error}\n".encode())
            os._exit(127 if isinstance(error, FileNotFoundError) else 126)

    def _read(self, output: int) -> bool:
        """Read output and pass it on; return False if no more output can come."""
        try:
            data = os.read(output, 1 << 16)
        except BlockingIOError:
            return self.status is None
        except OSError:  # no process has the terminal open
            return False
        if data:
            self.log.write(data)
            copy = self.sources[output]
            if copy is not None:
                copy.write(data)
        return bool(data)

    def _reap(self) -> bool:
        """Collect ended children. Return False when none are left."""
        ended = False
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                break
            if pid == self.child:
                self.status, ended = status, True
            else:
                self.terminals.ended(pid, status)
        if ended:
            self.terminals.hang_up()
            self.limit_at = self.warn_at = self.look_at = float("inf")
            left = self._descendants()
            self.swept = len(left)
            self._signal(left, signal.SIGTERM)
            self.kill_at = min(self.kill_at, now() + SWEEP)
        return True

    def _act_on_time(self) -> None:
        moment = now()
        if moment >= self.warn_at:
            self.warn_at = float("inf")
            number = signal.Signals[f"SIG{self.spec.get('warn_signal', 'USR1')}"]
            self._signal([pid for pid in self._group() if catches(pid, number)], number)
        if moment >= self.limit_at:
            self.limit_at = float("inf")
            self._stop("limit")
        if moment >= self.look_at:
            self._look()
        if moment >= self.lease_at:
            self.lease_at = held_until(self.spec["lease"])
            if now() >= self.lease_at:  # Kant will soon consider the run dead
                self.why = self.why or ("lease" if self.status is None else "")
                self.lease_at, self.kill_at = float("inf"), moment
        if moment >= self.kill_at:
            self._signal(self._descendants(), signal.SIGKILL)
            self.kill_at = moment + AGAIN

    def _look(self) -> None:
        """Check memory use, and kill the run at once if it is too high, as Linux does in a cgroup."""
        began = time.process_time()
        inside = below(os.getpid())
        if taken(self._descendants() if inside is None else inside, self.most) > self.most:
            self.why = self.why or "memory"
            self.kill_at = now()
        self.look_at = now() + pause(time.process_time() - began)

    def _stop(self, why: str) -> None:
        if self.status is None and not self.why:
            self.why = why
            self.kill_at = now() + self.spec["grace_s"]
            signals = [signal.SIGTERM, signal.SIGCONT]
            if self.ends is not None and self.ends.pty:  # a shell with a terminal ignores SIGTERM
                signals.insert(1, signal.SIGHUP)
            for each in signals:
                try:
                    os.killpg(self.child, each)
                except OSError:  # the child has no process group yet
                    self._signal([self.child], each)

    def _group(self) -> list[int]:
        return [pid for pid in pids() if (fields(pid)[2:3] or [""])[0] == str(self.child)]

    def _descendants(self) -> list[int]:
        """Return all living descendants of this process."""
        parents: dict[int, list[int]] = {}
        for pid in pids():
            found = fields(pid)
            if found and found[0] != "Z":
                parents.setdefault(int(found[1]), []).append(pid)
        below = list(parents.get(os.getpid(), ()))
        for pid in below:
            below += parents.get(pid, ())
        return below

    def _signal(self, who: list[int], number: signal.Signals) -> None:
        for pid in who:
            with contextlib.suppress(OSError):
                os.kill(pid, number)

    def _end(self) -> None:
        assert self.status is not None
        if self.status and not self.why and self.cgroup.killed():
            self.why = "memory"
        self.cgroup.remove()
        self.log.note()
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        ended = {
            **how(self.status),
            "why": self.why,
            "swept": self.swept,
            "began": int(self.began * 1e6),
            "ended": int(now() * 1e6),
            "cpu_us": int((used.ru_utime + used.ru_stime) * 1e6),
            "rss_kib": used.ru_maxrss,
            "dropped": self.log.dropped,
        }
        write_exit(self.folder, ended)
        self.terminals.close()


def write_exit(folder: str, ended: dict[str, object]) -> None:
    """Write how a run ended."""
    file = os.open(f"{folder}/exit", os.O_WRONLY | os.O_CREAT, 0o600)
    os.pwrite(file, json.dumps(ended).encode().ljust(WIDTH), 0)
    os.fsync(file)


def awaited(folder: str, wake: int, seconds: float) -> dict | None:  # type: ignore[type-arg]
    """Wait for the job of a slot and return its spec (slots.py); None if the slot is stopped first, or gets no job in
    time.
    """
    end, waits, received = now() + seconds, select.poll(), b""
    waits.register(wake, select.POLLIN)
    while True:
        if signal.SIGTERM in received or now() >= end:
            claim(folder, "null", "given")
        try:
            with open(f"{folder}/given") as file:
                given = json.load(file)
        except FileNotFoundError:
            received = os.read(wake, 4096) if waits.poll(max(0.0, end - now()) * 1000) else b""
            continue
        if given is None:
            return None
        own = f"{folder}/spec.json.given"
        with open(own, "w") as file:
            json.dump(given["spec"], file)
        os.replace(own, f"{folder}/spec.json")
        if signal.SIGTERM in received:  # stop the job as soon as it has started, like any other job
            os.kill(os.getpid(), signal.SIGTERM)
        found: dict = given["spec"]  # type: ignore[type-arg]
        return found


@contextlib.contextmanager
def acting_as(account: dict | None, umask: int) -> Iterator[None]:  # type: ignore[type-arg]
    """Create files as this user for the duration of the block; None: as the current user. Raises OSError."""
    groups, mask = os.getgroups(), os.umask(umask)
    try:
        if account is not None:
            os.setgroups(account["groups"])
            os.setegid(account["gid"])
            os.seteuid(account["uid"])
        yield
    finally:
        if account is not None:
            os.seteuid(os.getuid())
            os.setegid(os.getgid())
            os.setgroups(groups)
        os.umask(mask)


def become(account: dict | None, terminal: int | None) -> None:  # type: ignore[type-arg]
    """Become the user of an `account` (`local/accounts.py`) with its limits (None: stay the current user), and the
    owner of this terminal. On failure this process exits.
    """
    if account is None:
        return
    try:
        for number, soft, hard in account["limits"]:
            before = resource.getrlimit(number)
            most = before[1] if hard is None else hard
            least = before[0] if soft is None else soft
            if most != resource.RLIM_INFINITY and (least == resource.RLIM_INFINITY or least > most):
                least = most
            resource.setrlimit(number, (least, most))
        if account["nice"] is not None:
            os.setpriority(os.PRIO_PROCESS, 0, account["nice"])
        if terminal is not None:
            os.fchown(terminal, account["uid"], -1)
        os.setgroups(account["groups"])
        os.setresgid(account["gid"], account["gid"], account["gid"])
        os.setresuid(account["uid"], account["uid"], account["uid"])
        if account["no_new_privs"] and LIBC.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
            raise OSError(ctypes.get_errno(), "no_new_privs")
    except (OSError, ValueError) as error:
        os.write(2, f"kant: cannot run the job as {account['name']}: {error}\n".encode())
        os._exit(126)


def pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def held_until(lease: str | None) -> float:
    """Return the end of a run's lease, in seconds since boot; infinite without a lease."""
    if not lease:
        return float("inf")
    try:
        with open(lease, "rb") as file:
            return float(file.read())
    except (OSError, ValueError):
        return 0.0


def catches(pid: int, number: int) -> bool:
    """Return whether the process has a handler for the signal, which would otherwise kill the process."""
    try:
        with open(f"/proc/{pid}/status") as file:
            caught = next(int(line.split()[1], 16) for line in file if line.startswith("SigCgt:"))
    except (OSError, StopIteration):
        return False
    return bool(caught >> (number - 1) & 1)


def main(folder: str) -> int:
    os.umask(0o077)
    wake, into = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    signal.set_wakeup_fd(into, warn_on_full_buffer=False)
    for number in (signal.SIGTERM, signal.SIGCHLD, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    with open(f"{folder}/spec.json") as file:
        spec = json.load(file)
    room = os.open(f"{folder}/exit", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    os.write(room, b" " * WIDTH)
    os.close(room)
    mine = {"pid": os.getpid(), "start": int(fields("self")[19]), "boot": boot_id()}
    if not claim(folder, json.dumps(mine)):
        return 3
    if spec["command"] == [""]:
        spec = awaited(folder, wake, spec["limit_s"])
    if spec is None:
        write_exit(folder, {"signal": int(signal.SIGTERM), "why": "stopped", "ended": int(now() * 1e6)})
    else:
        Supervisor(folder, spec).run(wake)
    return 0
