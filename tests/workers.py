"""Workers of pytest-xdist that are forked from a process which has imported all modules of tests.

A worker that is a new interpreter imports them for three seconds of CPU, and loads the kernels of the default profile
for one more. Here it is a small program, which hands its open files to a server and ends with the process that the
server forks for it.
"""

from __future__ import annotations

import atexit
import os
import shlex
import shutil
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import execnet
import pytest
from _pytest.pathlib import ImportMode, import_path
from tests.kube.processes import fork_server
from tests.side_processes import CLIENT, end_with

from kant.live.warm import warm
from kant.scheduler.profile import builtin_profile
from kant.sim.warm import warm_up

CALM_CLIENT = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\n" + CLIENT
"""Ctrl-C is for the worker, which clears up."""

NOT_FORKED = ("polars-0", "tokio")
"""Threads without which Polars waits for ever: a worker that is forked once they run has none of them."""


def fork_workers(config: pytest.Config, specs: list[execnet.XSpec], modules: Sequence[Path]) -> None:
    """Have pytest-xdist fork the workers of `specs` from a server that imports `modules`, and ends with this process.

    Raises execnet errors where the server has ended.
    """

    def import_all() -> None:
        profile = builtin_profile("kant")
        warm_up(profile)
        warm(profile)
        for path in modules:
            import_one(path, config.rootpath)
            if any(name.startswith(NOT_FORKED) for name in threads()):
                sentence = f"{path}: expected no use of Polars at import, as workers lack its threads\n"
                capture: Any = config.pluginmanager.getplugin("capturemanager")
                capture.suspend_global_capture()
                os.write(2, sentence.encode())
                os._exit(1)

    folder = Path(tempfile.mkdtemp(prefix="kant-workers-"))
    pid = fork_server(folder / "socket", be_a_worker, import_all)
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    atexit.register(os.kill, pid, signal.SIGKILL)
    python = shlex.join([sys.executable, "-I", "-S", "-c", CALM_CLIENT, str(folder / "socket"), "worker"])
    for number, spec in enumerate(specs):
        specs[number] = execnet.XSpec(f"execmodel=main_thread_only//popen//id={spec.id}//python={python}")


def import_one(path: Path, root: Path) -> None:
    """Import a module of tests as pytest does. One that skips itself or cannot be imported is left to the workers."""
    try:
        import_path(path, mode=ImportMode.importlib, root=root, consider_namespace_packages=False)
    except (Exception, pytest.skip.Exception):
        sys.modules.pop(".".join(path.relative_to(root).with_suffix("").parts), None)


def threads() -> list[str]:
    """The names of the threads of this process, where the machine tells them."""
    return [file.read_text() for file in Path("/proc/self/task").glob("*/comm")]


def be_a_worker(connection: socket.socket) -> NoReturn:
    """Take the place of who has connected, and run what pytest-xdist sends as a new interpreter would."""
    atexit._clear()  # what this process would end belongs to its parent
    try:
        _, files, _, _ = socket.recv_fds(connection, 64, 3)
        for number, file in enumerate(files):
            os.dup2(file, number)
            os.close(file)
        threading.Thread(target=end_with, args=(connection,), daemon=True).start()
        exec(eval(sys.stdin.readline()), {})
        atexit._run_exitfuncs()
    finally:
        os._exit(0)
