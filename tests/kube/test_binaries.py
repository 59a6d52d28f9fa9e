"""Where the binaries of the control plane are looked for, and what is said when there are none."""

from __future__ import annotations

import multiprocessing
import os
import re
import stat
from pathlib import Path

import pytest
from tests.kube import binaries
from tests.kube.binaries import CONTROL_PLANE, HELM, NoBinariesError, find, find_helm

VARIABLES = ("KUBEBUILDER_ASSETS", "TEST_ASSET_ETCD", "TEST_ASSET_KUBE_APISERVER", "TEST_ASSET_KUBE_SCHEDULER")
GO = """#!/bin/sh
echo built >> "$COUNT"
while [ "$1" != -o ]; do shift; done
sleep 0.3
echo "#!/bin/sh" > "$2"
chmod +x "$2"
"""


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine with nothing on it."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("KANT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    return tmp_path


def program(path: Path, text: str = "#!/bin/sh\n") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def test_without_any_one_sentence_says_how_to_get_them(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(machine))
    with pytest.raises(NoBinariesError, match=r"^no kube-apiserver, etcd .* run \.ci/controlplane.*\)$"):
        find()


def test_the_folder_of_envtest_comes_first(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(machine / "cache" / "kant" / "controlplane" / CONTROL_PLANE.key() / "controlplane")
    assert find().combined
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(machine / "assets"))
    with pytest.raises(NoBinariesError, match=r"expected an executable file .*/assets/etcd"):
        find()
    etcd, apiserver = (program(machine / "assets" / name) for name in ("etcd", "kube-apiserver"))
    found = find()
    assert (found.etcd, found.apiserver, found.scheduler) == ((str(etcd),), (str(apiserver),), None)
    command = found.run_etcd(Path("data"), "http://client", "http://peer")
    assert command[0] == str(etcd) and "--listen-client-urls=http://client" in command


def test_the_cache_of_the_user_counts_beside_the_one_named(machine: Path) -> None:
    built = program(machine / "home" / ".cache" / "kant" / "controlplane" / CONTROL_PLANE.key() / "controlplane")
    assert find().apiserver == (str(built), "kube-apiserver")


def test_one_process_builds_and_the_others_wait(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(machine / "bin" / "go", GO)
    monkeypatch.setenv("PATH", f"{machine / 'bin'}:/usr/bin:/bin")
    monkeypatch.setenv("COUNT", str(machine / "count"))
    with multiprocessing.get_context("spawn").Pool(3) as pool:
        found = [done.get(60) for done in [pool.apply_async(find) for _ in range(3)]]
    assert found[0] == found[1] == found[2]
    assert (machine / "count").read_text() == "built\n"


def test_a_build_that_fails_says_its_last_line_and_leaves_nothing(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(machine / "bin" / "go", "#!/bin/sh\necho first >&2\necho 'no route to the proxy' >&2\nexit 1\n")
    monkeypatch.setenv("PATH", f"{machine / 'bin'}:/usr/bin:/bin")
    with pytest.raises(NoBinariesError, match=r"^go build failed: no route to the proxy \(install"):
        find()
    assert not list((machine / "cache").rglob("controlplane*/controlplane"))


def test_a_build_says_what_it_builds_how_long_it_takes_and_how_far_it_is(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = GO.replace("sleep 0.3", "echo 'go: downloading a v1' >&2; echo b >&2; echo c >&2; cat \"$GATE\"")
    program(machine / "bin" / "go", slow)
    monkeypatch.setenv("PATH", f"{machine / 'bin'}:/usr/bin:/bin")
    monkeypatch.setenv("COUNT", str(machine / "count"))
    gate = machine / "gate"
    os.mkfifo(gate)
    monkeypatch.setenv("GATE", str(gate))
    monkeypatch.setattr(binaries, "PROGRESS_S", 0.05)
    said: list[str] = []

    def say(line: str) -> None:
        is_far = line.endswith("1 modules fetched, 2 packages compiled")
        if is_far and not any(line.endswith("2 packages compiled") for line in said):
            gate.write_text("")  # and so it goes on
        said.append(line)

    find(say=say)
    assert re.fullmatch("building kube-apiserver, etcd and kube-scheduler .*: about 5 minutes .*, once .*", said[0])
    assert CONTROL_PLANE.key() in said[1] and re.fullmatch(r"built in \d+ s", said[-1])
    assert all(re.fullmatch(r"  \d+ s: \d+ modules fetched, \d+ packages compiled", line) for line in said[2:-1])
    assert len(said) > 3
    said.clear()
    find(say=say)
    assert not said, "it is there now"


def test_helm_is_that_of_the_machine_or_built_once(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(machine / "bin"))
    with pytest.raises(NoBinariesError, match=r"^no helm to test against .*, or install helm\)$"):
        find_helm()
    program(machine / "bin" / "go", GO)
    monkeypatch.setenv("PATH", f"{machine / 'bin'}:/usr/bin:/bin")
    monkeypatch.setenv("COUNT", str(machine / "count"))
    built = machine / "cache" / "kant" / "helm" / HELM.key() / "helm"
    assert find_helm() == find_helm() == str(built)
    assert (machine / "count").read_text() == "built\n"
    own = program(machine / "bin" / "helm")
    assert find_helm() == str(own)
