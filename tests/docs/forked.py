"""`kant` as a process that is forked from one which has loaded everything, for pages with many commands.

A command of the shell named `kant` hands its arguments, folder, environment and open files to a server, and exits as
the process that the server forks for it. That process runs what the real command runs, only it need not load Kant's
libraries and kernels first, which is most of the time of a small command. A Kant that `kant up --detach` starts is
forked too, with the processes beside it; `tests/cli/test_extras.py` starts a new interpreter, as users do.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import socket
import subprocess
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import IO, NoReturn

from tests import side_processes
from tests.docs.session import answer

ROOT = Path(__file__).parents[2]

LOADED = (
    "kant.api", "kant.cli.verbs", "kant.client.kant", "kant.report", "kant.service.daemon", "kant.sim.run",
    "kant.workload.read", "ortools.sat.python.cp_model", "rich.progress", "rich.table",
)  # fmt: skip

CLIENT = """#!{python} -IS
import json, os, socket, sys
with socket.socket(socket.AF_UNIX) as server:
    server.connect({address!r})
    asked = json.dumps([sys.argv, os.getcwd(), dict(os.environ)]).encode()
    socket.send_fds(server, [len(asked).to_bytes(4, "big")], [0, 1, 2])
    server.sendall(asked)
    code = server.recv(1)
sys.exit(code[0] if code else 70)
"""


@contextmanager
def forked_kant(folder: Path) -> Iterator[Path]:
    """A folder with a program `kant`, for the front of PATH, and a program `session` for blocks of Python."""
    address = folder / "socket"
    with subprocess.Popen(
        [sys.executable, "-m", "tests.docs.forked", address], stdout=subprocess.PIPE, cwd=ROOT
    ) as server:
        try:
            assert server.stdout is not None and server.stdout.readline() == b"ready\n"
            for program in (folder / "kant", folder / "session"):
                program.write_text(CLIENT.format(python=sys.executable, address=str(address)))
                program.chmod(0o700)
            yield folder
        finally:
            server.kill()


def serve(address: str) -> None:
    """Load what starts no threads and looks at no terminal, and fork a process for each connection."""
    for module in LOADED:
        importlib.import_module(module)
    from kant.live.warm import warm
    from kant.scheduler.profile import builtin_profile

    warm(builtin_profile("kant"))
    beside = side_processes.server()
    gc.freeze()  # memory that no collection looks at stays shared
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen(64)
        print("ready", flush=True)
        while True:
            connection, _ = listener.accept()
            if os.fork() == 0:
                listener.close()
                be_the_command(connection, beside)
            connection.close()
            with suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:  # `pytest --cost` counts who was waited for
                    pass


def be_the_command(connection: socket.socket, beside: str) -> NoReturn:
    """Take the place of who has connected, and tell the exit code. Processes beside a Kant come from `beside`."""
    code = 1
    try:
        head, files, _, _ = socket.recv_fds(connection, 4, 3)
        with connection.makefile("rb") as sent:
            sys.argv, folder, variables = json.loads(sent.read(int.from_bytes(head, "big")))
        for number, file in enumerate(files):
            os.dup2(file, number)
            os.close(file)
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(variables)
        if Path(sys.argv[0]).name == "session":
            sys.path[0] = ""
            answer()
        else:
            from kant.cli import main, up

            side_processes.use(beside)
            vars(up)["subprocess"] = SimpleNamespace(Popen=Detached, DEVNULL=subprocess.DEVNULL)
            main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        connection.send(bytes([code]))
        os._exit(code)


class Detached:
    """What `subprocess.Popen` is to `kant up --detach`: the command in a session of its own, forked from here."""

    def __init__(self, command: list[str], *, stdout: IO[bytes], **_: object) -> None:
        self.pid = os.fork()
        if self.pid == 0:
            code: object = 1
            try:
                os.setsid()
                nothing = os.open(os.devnull, os.O_RDONLY)
                for file, number in ((nothing, 0), (stdout.fileno(), 1), (stdout.fileno(), 2)):
                    os.dup2(file, number)
                sys.argv = ["kant", *command[3:]]
                from kant.cli import main

                main()
            except SystemExit as end:
                code = end.code
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code if isinstance(code, int) else int(code is not None))

    def poll(self) -> int | None:
        """The exit code; None while it runs."""
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        return os.waitstatus_to_exitcode(status) if pid else None


if __name__ == "__main__":
    serve(sys.argv[1])
