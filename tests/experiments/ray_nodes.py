"""A real Ray cluster on this machine, and what befalls it: workers that are killed, a node that is cut off."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from tests.patience import PATIENCE_S

STORE = 80 << 20
HEALTH = {
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 500,
    "health_check_timeout_ms": 500,
    "health_check_failure_threshold": 3,
}
"""Ray finds after seconds that a node is gone, and not after half a minute."""


@contextmanager
def ray_cluster() -> Iterator[Any]:
    """A head with one core, in a folder of its own. Where Ray is absent the test is skipped, or fails if CI=true."""
    try:
        from ray.cluster_utils import Cluster
    except ImportError:
        sentence = "no Ray here (pip install 'kant-scheduler[ray]')"
        pytest.fail(sentence, pytrace=False) if os.environ.get("CI") == "true" else pytest.skip(sentence)
    home = tempfile.mkdtemp(prefix="kray", dir="/tmp")  # the names of its sockets must be short
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_TMPDIR", home)  # all of it: what is not told a folder would write to /tmp/ray
        patch.delenv("RAY_ADDRESS", raising=False)
        cluster = Cluster()
        try:
            cluster.add_node(num_cpus=1, object_store_memory=STORE, include_dashboard=False, _system_config=HEALTH)
            yield cluster
        finally:
            cluster.shutdown()
            shutil.rmtree(home, ignore_errors=True)


def workers(node: int | None = None) -> dict[int, str]:
    """The workers of our clusters in the middle of a run, by process, with the name of the run; those of one raylet."""
    found = {}
    for entry in Path("/proc").iterdir():
        with suppress(OSError, ValueError):
            pid = int(entry.name)
            title = (entry / "cmdline").read_bytes().rstrip(b"\0").decode()
            if title.startswith("ray::") and ", seed " in title and _is_ours(pid, node):
                found[pid] = title.removeprefix("ray::")
    return found


def _is_ours(pid: int, node: int | None) -> bool:
    """Whether a worker is of this raylet, or of one that this process has started: others may test here, too."""
    raylet = parent(pid)
    return raylet == node if node is not None else parent(raylet) == os.getpid()


def parent(pid: int) -> int:
    """The process that started another."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def family(pid: int) -> list[int]:
    """A process and those that it has started, and so on."""
    children = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError, ValueError):
            if parent(int(entry.name)) == pid:
                children += family(int(entry.name))
    return [pid, *children]


@contextmanager
def meanwhile(act: Callable[[dict[int, str]], bool], node: int | None = None) -> Iterator[None]:
    """While the block runs, show `act` the workers in the middle of a run, again and again until it says True."""
    over = threading.Event()
    failed: list[BaseException] = []
    done = threading.Event()

    def watch() -> None:
        try:
            deadline = time.monotonic() + PATIENCE_S
            while not over.is_set() and time.monotonic() < deadline:
                if act(workers(node)):
                    done.set()
                    return
                time.sleep(0.002)
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
    assert not failed, failed
    assert done.is_set(), "it did not come to that"


def send(pids: list[int], number: signal.Signals) -> None:
    """Send a signal to processes that may have gone."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)
