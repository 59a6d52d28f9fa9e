"""The processes beside a Kant that tests start, forked from one that has loaded everything.

Each Kant asks a solver and a forecaster, and a new interpreter needs half a second of CPU before it answers: more than
many a test of Kant takes. Here a small program hands its open files to a server, and ends with the process that the
server forks for it. Tests of these processes themselves start the real ones.
"""

from __future__ import annotations

import atexit
import os
import select
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import NoReturn

from kant.ops import past_question
from kant.service import forecaster, solver_process

ROOT = Path(__file__).parents[1]

CLIENT = """
import socket, sys
with socket.socket(socket.AF_UNIX) as server:
    server.connect(sys.argv[1])
    socket.send_fds(server, [sys.argv[2].encode()], [0, 1, 2])
    sys.exit(sum(server.recv(1)))
"""


@cache
def server() -> str:
    """The address of the server, which is started when first asked for and ends with this process."""
    folder = tempfile.mkdtemp(prefix="kant-side-")
    address = f"{folder}/socket"
    process = subprocess.Popen(
        [sys.executable, "-m", __name__, address], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT
    )
    assert process.stdout is not None and process.stdout.readline() == b"ready\n"
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    atexit.register(process.kill)
    return address


def use(address: str) -> None:
    """Let the Kants of this process have their solver and their forecaster from the server."""
    command = (sys.executable, "-I", "-S", "-c", CLIENT, address)
    solver_process.SolverProcess.__init__.__defaults__ = ((*command, "solver"),)  # type: ignore[attr-defined]
    past_question.PROCESS = (*command, "journal")
    forecaster.ForecastProcess.__init__.__defaults__ = ((*command, "forecaster"), forecaster.LONGEST)  # type: ignore[attr-defined]


def serve(address: str) -> None:
    """Load everything, and fork a process for each connection, until whoever has started this one is gone."""
    from kant.live.warm import warm
    from kant.ops import journal_process  # noqa: F401
    from kant.scheduler.profile import builtin_profile
    from kant.service import forecast_process  # noqa: F401

    warm(builtin_profile("kant"))
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen(64)
        print("ready", flush=True)
        while listener in select.select([listener, 0], [], [])[0]:
            connection, _ = listener.accept()
            if os.fork() == 0:
                listener.close()
                be_the_process(connection)
            connection.close()
            with suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass


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
            from kant.ops import journal_process
            from kant.service.whatif_process import main

            sys.stdin, sys.stdout = os.fdopen(0), os.fdopen(1, "w")
            code = main(past_question.PastQuestion, journal_process.answer_of)
            sys.stdout.flush()
            sys.stdout.close()
            connection.send(bytes([code]))
            return
        from kant.service import forecast_process
        from kant.service.side_process import answer_all

        sys.stdin, sys.stdout = os.fdopen(0), os.fdopen(1, "w")
        answer_all({b"solver": solver_process.answer, b"forecaster": forecast_process.answer}[name])
    finally:
        os._exit(0)


def end_with(connection: socket.socket) -> None:
    connection.recv(1)
    os._exit(1)


if __name__ == "__main__":
    serve(sys.argv[1])
