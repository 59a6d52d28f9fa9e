"""`kant sweep --ray`: the same runs as on one machine, each kept once, whatever happens to the cluster."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cli.command import Outcome, kant
from tests.experiments.ray_nodes import STORE, family, meanwhile, ray_cluster, send
from tests.experiments.sweeps import fill_disk, table, without_machine, write

from kant.experiments import ray_cluster as runner

pytestmark = [pytest.mark.long, pytest.mark.xdist_group("ray")]

SWEEP = """
profiles = ["fifo", "kant"]
clusters = ["4x8"]
seeds = 4

[[workloads]]
name = "drawn"
generate = "seren"
days = 2
gpus = 32
load = 1.0
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    with ray_cluster() as started:
        yield started


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the sweep, done on this machine in `out`."""
    folder = tmp_path_factory.mktemp("here")
    assert kant("sweep", write(folder, SWEEP), "--out", folder / "out").code == 0
    return folder


def on_ray(cluster: Any, here: Path, out: Path, *more: str) -> Outcome:
    return kant("sweep", here / "sweep.toml", "--out", out, "--ray", cluster.address, *more)


def as_here(out: Path, here: Path) -> None:
    """The table is that of this machine, digest by digest, and each run is kept once."""
    assert without_machine(table(out)).equals(without_machine(table(here / "out")))
    runs = sorted(path.name for path in (out / "runs").iterdir())
    assert runs == sorted(path.name for path in (here / "out" / "runs").iterdir()) and len(runs) == 8 + 1  # the lock


def kept(out: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mtime_ns for path in (out / "runs").glob("*.json")}


def test_the_cluster_leaves_the_folder_of_others_alone(cluster: Any) -> None:
    from ray._common.utils import get_ray_address_file

    node = cluster.head_node
    home = Path(os.environ["RAY_TMPDIR"])
    assert home.name.startswith("kray")
    for path in (node.get_session_dir_path(), node.plasma_store_socket_name, get_ray_address_file(None)):
        assert Path(path).is_relative_to(home), path
    assert len(os.fsencode(node.plasma_store_socket_name)) <= 107, "as long as the name of a socket may be"


def test_a_worker_killed_midway_costs_no_run(cluster: Any, here: Path, tmp_path: Path) -> None:
    killed: list[str] = []

    def kill(busy: dict[int, str]) -> bool:
        for pid, name in busy.items():
            os.kill(pid, signal.SIGKILL)
            killed.append(name)
        return len(killed) >= 2

    with meanwhile(kill):
        found = on_ray(cluster, here, tmp_path / "out")
    assert found.code == 0 and "8 of 8 runs" in found.out, found
    as_here(tmp_path / "out", here)


def test_a_run_that_kills_its_worker_each_time_is_told_and_done_later(
    cluster: Any, here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "RETRIES", 1)
    name, times = "fifo on drawn, cluster 4x8, seed 1", []  # the first: its worker has yet to load what it needs

    def kill(busy: dict[int, str]) -> bool:
        for pid in [pid for pid, run in busy.items() if run == name and pid not in times]:
            os.kill(pid, signal.SIGKILL)
            times.append(pid)
        return len(times) == 2

    with meanwhile(kill):
        found = on_ray(cluster, here, tmp_path / "out")
    assert found.code == 1 and "7 of 8 runs" in found.out, found
    assert f"failed: {name}: lost by the Ray cluster 2 times" in found.out and "kant simulate" in found.out
    before = kept(tmp_path / "out")
    assert on_ray(cluster, here, tmp_path / "out").code == 0
    assert kept(tmp_path / "out").items() > before.items()
    as_here(tmp_path / "out", here)


def test_a_node_cut_off_costs_no_run_and_what_it_does_afterwards_counts_for_nothing(
    cluster: Any, here: Path, tmp_path: Path
) -> None:
    node = cluster.add_node(num_cpus=1, object_store_memory=STORE)
    raylet = node.all_processes["raylet"][0].process.pid
    frozen: list[int] = []

    def freeze(busy: dict[int, str]) -> bool:
        if busy:  # the node is in the middle of a run
            frozen.extend(family(raylet))
            send(frozen, signal.SIGSTOP)
        return bool(busy)

    try:
        with meanwhile(freeze, raylet):
            found = on_ray(cluster, here, tmp_path / "out")
        assert found.code == 0 and "8 of 8 runs" in found.out, found
    finally:
        send(frozen, signal.SIGCONT)
        cluster.remove_node(node, allow_graceful=False)
    as_here(tmp_path / "out", here)


def test_a_full_disk_ends_the_sweep_and_the_cluster_goes_on_from_there(
    cluster: Any, here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        fill_disk(patch)
        found = on_ray(cluster, here, tmp_path / "out")
    assert found.code == 2 and "No space left on device" in found.err and "3 of 8 runs are kept" in found.err
    before = kept(tmp_path / "out")
    assert len(before) == 3 and on_ray(cluster, here, tmp_path / "out").code == 0
    assert kept(tmp_path / "out").items() > before.items()
    as_here(tmp_path / "out", here)


def test_an_interrupted_sweep_keeps_what_is_finished(cluster: Any, here: Path, tmp_path: Path) -> None:
    def interrupt(busy: dict[int, str]) -> bool:
        there = bool(kept(tmp_path / "out")) if (tmp_path / "out" / "runs").exists() else False
        if there and busy:
            os.kill(os.getpid(), signal.SIGINT)
        return there and bool(busy)

    with meanwhile(interrupt):
        found = on_ray(cluster, here, tmp_path / "out")
    assert found.code == 130 and "the same command continues" in found.out, found
    before = kept(tmp_path / "out")
    assert 1 <= len(before) < 8
    assert kant("sweep", here / "sweep.toml", "--out", tmp_path / "out").code == 0  # on this machine, as well
    assert kept(tmp_path / "out").items() > before.items()
    as_here(tmp_path / "out", here)


def test_a_worker_with_other_code_does_nothing(
    cluster: Any, here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "code_digest", lambda *policies: "of another version")
    found = on_ray(cluster, here, tmp_path / "out", "--json")
    assert found.code == 1 and found.json()["finished"] == 0
    assert all("expected the same code of Kant" in entry["error"] for entry in found.json()["failed"])


@pytest.mark.parametrize("address", ["127.0.0.1:1", "rubbish", "127.0.0.1:99999"])
def test_an_address_where_no_cluster_answers_is_refused(here: Path, tmp_path: Path, address: str) -> None:
    found = kant("sweep", here / "sweep.toml", "--out", tmp_path / "out", "--ray", address, "--json")
    assert "a Ray cluster that answers" in found.refusal()


def test_without_the_extra_it_says_what_to_install(here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    found = kant("sweep", here / "sweep.toml", "--out", tmp_path / "out", "--ray", "auto", "--json")
    assert "kant-scheduler[ray]" in found.refusal()
