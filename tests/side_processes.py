"""The processes beside a Kant that tests start, forked from one that has loaded everything.

Each Kant asks a solver and a forecaster, and a new interpreter needs half a second of CPU before it answers: more than
many a test of Kant takes. Here a small program hands its open files to a server, and ends with the process that the
server forks for it. The server itself is forked from the tests. Tests of these processes themselves start the real
ones.
"""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import socket
import sys
import tempfile
import threading
from functools import cache
from pathlib import Path
from typing import NoReturn

from tests.kube.processes import fork_server

from kant.live.warm import warm
from kant.ops import journal_process, past_question
from kant.scheduler.profile import builtin_profile
from kant.service import forecaster, solver_process, whatif_process
from kant.service.side_process import answer_all

CLIENT = """
import socket, sys
with socket.socket(socket.AF_UNIX) as server:
    server.connect(sys.argv[1])
    socket.send_fds(server, [sys.argv[2].encode()], [0, 1, 2])
    sys.exit(sum(server.recv(1)))
"""


@cache
def server() -> str:
    """The address of the server. It is forked when first asked for, and ends with this process."""
    warm(builtin_profile("kant"))
    folder = Path(tempfile.mkdtemp(prefix="kant-side-"))
    pid = fork_server(folder / "socket", be_the_process)
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    atexit.register(os.kill, pid, signal.SIGKILL)
    return str(folder / "socket")


def use(address: str) -> None:
    """Let the Kants of this process have their solver and their forecaster from the server."""
    command = (sys.executable, "-I", "-S", "-c", CLIENT, address)
    solver_process.SolverProcess.__init__.__defaults__ = ((*command, "solver"),)  # type: ignore[attr-defined]
    past_question.PROCESS = (*command, "journal")
    forecaster.ForecastProcess.__init__.__defaults__ = ((*command, "forecaster"), forecaster.LONGEST)  # type: ignore[attr-defined]


def be_the_process(connection: socket.socket) -> NoReturn:
    """Take the place of who has connected, and end with it."""
    try:
        os.setsid()
        name, files, _, _ = socket.recv_fds(connection, 64, 3)
        for number, file in enumerate(files):
            os.dup2(file, number)
            os.close(file)
        threading.Thread(target=end_with, args=(connection,), daemon=True).start()
        if name == b"journal":
            code = whatif_process.main(past_question.PastQuestion, journal_process.answer_of)
            sys.stdout.flush()
            sys.stdout.close()
            connection.send(bytes([code]))
            return
        answer_all({b"solver": solver_process.answer, b"forecaster": forecaster.answer}[name])
    finally:
        os._exit(0)


def end_with(connection: socket.socket) -> None:
    connection.recv(1)
    os._exit(1)
