"""The fork server: a small process that forks itself to create supervisors, at a tenth of the cost of a new
interpreter.

It is started as `python -I -S -E fork_server.py` with a socket as its standard input. A request is the folder of a run;
the response is `PID START` (ticks since boot) with a pidfd of the new supervisor, or `-ERRNO` on failure. The server
exits when the other end of the socket is closed. Its supervisors then continue.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import signal
import socket
import sys

if __name__ == "__main__":
    sys.path.append(os.path.dirname(os.path.abspath(__file__)))  # -I leaves it out
    from supervisor import boot_id, fields, main  # type: ignore[import-not-found]
else:
    from kant.local.supervisor import boot_id, fields, main

MOST = 1 << 13  # bytes of a message
HELD_BACK = {signal.SIGTERM, signal.SIGCHLD, signal.SIGHUP}  # blocked until a new supervisor can handle them


def serve(asked: socket.socket) -> None:
    """Create a supervisor for each requested folder, until the other end is closed."""
    signal.signal(signal.SIGCHLD, _reap)
    json.loads(json.dumps([boot_id(), fields("self"), os.get_exec_path({})]))  # forks share what is loaded now
    gc.freeze()
    with contextlib.suppress(ConnectionError):
        while folder := asked.recv(MOST):
            signal.pthread_sigmask(signal.SIG_BLOCK, HELD_BACK)
            try:
                pid = os.fork()
            except OSError as error:
                asked.send(b"-%d" % (error.errno or 0))
            else:
                if pid == 0:
                    _supervise(asked, folder.decode(errors="surrogateescape"))
                _tell(asked, pid)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, HELD_BACK)


def _supervise(asked: socket.socket, folder: str) -> None:
    """Run this process as the supervisor of a run until it exits."""
    code = 1
    try:
        os.setsid()
        os.dup2(1, asked.detach())  # standard input becomes empty
        with contextlib.suppress(OSError), open("/proc/self/comm", "w") as file:
            file.write("kant " + "/".join(folder.rsplit("/", 2)[-2:]))
        code = main(folder)
    finally:
        os._exit(code)


def _tell(asked: socket.socket, pid: int) -> None:
    """Send the supervisor's process id. Call this while SIGCHLD is blocked, so that the id cannot be reused."""
    answer = b"%d %d" % (pid, int((fields(pid) or ["0"] * 20)[19]))
    try:
        handle = os.pidfd_open(pid)
    except OSError:  # this Linux may have no pidfds
        asked.send(answer)
        return
    try:
        socket.send_fds(asked, [answer], [handle])
    finally:
        os.close(handle)


def _reap(*_: object) -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


if __name__ == "__main__":
    serve(socket.socket(fileno=0))
