"""`kant sweep`: each run once, whatever happens on the way."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.cli.command import KANT, environment, kant
from tests.experiments.sweeps import SMALL, fill_disk, table, without_machine, write
from tests.patience import PATIENCE_S

from kant.cli.sweep_file import read_sweep
from kant.experiments import pool, store
from kant.experiments.design import Experiment, PlannedRun
from kant.metrics.paired import mean_interval
from kant.workload.cluster_file import read_cluster

pytestmark = pytest.mark.long

Simulate = Callable[[Experiment, PlannedRun, Any, Any], dict[str, Any] | None]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the small sweep, finished in `out`."""
    folder = tmp_path_factory.mktemp("whole")
    assert kant("sweep", write(folder), "--out", folder / "out").code == 0
    return folder


def never(*arguments: object) -> Any:
    raise AssertionError("a run began")


def once_of(monkeypatch: pytest.MonkeyPatch, wrong: Callable[[PlannedRun], object], seed: int = 2) -> None:
    """Let something happen in the process of each fifo run with this seed, before it simulates."""
    simulate: Simulate = pool.simulate

    def run(experiment: Experiment, run: PlannedRun, progress: Any, stop: Any) -> dict[str, Any] | None:
        if run.seed == seed and run.profile == "fifo":
            wrong(run)
        return simulate(experiment, run, progress, stop)

    monkeypatch.setattr(pool, "simulate", run)


def finished_like(folder: Path, out: Path, whole: Path) -> None:
    """The sweep goes on to the table of one that nothing befell, and nothing of it is run twice."""
    kept = {path.name: path.stat().st_mtime_ns for path in (out / "runs").glob("*.json")}
    assert kant("sweep", folder / "sweep.toml", "--out", out).code == 0
    assert without_machine(table(out)).equals(without_machine(table(whole / "out")))
    assert {path.name: path.stat().st_mtime_ns for path in (out / "runs").glob("*.json")}.items() >= kept.items()
    assert len(list((out / "runs").iterdir())) == 8 + 1  # the lock


def test_a_run_is_a_row_and_a_second_start_runs_nothing(whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = table(whole / "out")
    assert rows.height == 8 and rows["key"].n_unique() == 8 and rows.null_count()["wait_s.p90"].item() == 0
    before = (whole / "out" / "runs.parquet").read_bytes()
    monkeypatch.setattr(pool, "forked", never)
    again = kant("sweep", whole / "sweep.toml", "--out", whole / "out", "--json").json()
    assert again["finished"] == 8 and again["failed"] == [] and again["interrupted"] is False
    assert (whole / "out" / "runs.parquet").read_bytes() == before


def test_the_page_and_the_object_have_the_means_of_the_table(whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "forked", never)
    found = kant("sweep", whole / "sweep.toml", "--out", whole / "out", "--json").json()["means"]
    rows = table(whole / "out")
    for entry in found:
        own = rows.filter((rows["profile"] == entry["profile"]) & (rows["workload"] == entry["workload"]))
        values = own["jct_s.mean"].to_list()
        if entry["workload"] == "small.csv":  # the seed draws nothing there: two runs, one sample
            assert len(set(own["digest"])) == 1 and entry["figures"]["jct_s.mean"]["interval"] is None
            values = values[:1]
        mean = mean_interval(values)
        assert entry["runs"] == 2 and entry["figures"]["jct_s.mean"]["samples"] == len(values)
        assert entry["figures"]["jct_s.mean"]["mean"] == pytest.approx(mean.mean)
    page = (whole / "out" / "sweep.html").read_text()
    for word in ("small.csv on 4x8", "drawn on 4x8: difference from fifo", "srtf"):
        assert word in page and word in (whole / "out" / "sweep.md").read_text()


def test_another_profile_text_is_another_run(whole: Path, tmp_path: Path) -> None:
    profile = tmp_path / "mine.toml"
    profile.write_text(kant("profiles", "show", "fifo").out)
    text = 'profiles = ["mine.toml"]\nclusters = ["4x8"]\n[[workloads]]\ntrace = "small.csv"\n'
    (tmp_path / "small.csv").write_bytes((whole / "small.csv").read_bytes())
    (tmp_path / "sweep.toml").write_text(text)
    key = dry(tmp_path, whole)
    assert key == 0
    profile.write_text(profile.read_text() + "# a remark\n")
    assert dry(tmp_path, whole) == 1


def dry(folder: Path, whole: Path) -> int:
    """How many runs of a sweep the finished one has not done."""
    found = kant("sweep", folder / "sweep.toml", "--out", whole / "out", "--dry-run", "--json").json()
    return int(found["to_do"])


def test_the_command_of_a_run_repeats_it(whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    once_of(monkeypatch, lambda run: 1 / 0)
    monkeypatch.chdir(tmp_path)
    found = kant("sweep", whole / "sweep.toml", "--out", tmp_path / "out", "--json").json()
    assert [entry["run"] for entry in found["failed"]] == [
        "fifo on small.csv, cluster 4x8, seed 2",
        "fifo on drawn, cluster 4x8, seed 2",
    ]
    rows = table(whole / "out")
    for entry, workload in zip(found["failed"], ("small.csv", "drawn"), strict=True):
        *before, last = [shlex.split(command)[1:] for command in entry["command"].split(" && ")]
        for words in before:
            assert kant(*words).code == 0
        digest = kant(*last, "--json").json()["digest"]
        same = rows.filter((rows["profile"] == "fifo") & (rows["workload"] == workload) & (rows["seed"] == 2))
        assert same["digest"].item() == digest


def test_a_run_that_fails_stops_no_other_and_is_told(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        once_of(patch, lambda run: 1 / 0)
        found = kant("sweep", write(tmp_path), "--out", tmp_path / "out")
    assert found.code == 1 and "6 of 8 runs" in found.out
    assert "ZeroDivisionError: division by zero" in found.out and "kant simulate" in found.out
    assert "ZeroDivisionError" in (tmp_path / "out" / "sweep.html").read_text()
    finished_like(tmp_path, tmp_path / "out", whole)


def test_a_killed_worker_is_told_and_its_run_done_again(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        once_of(patch, lambda run: os.kill(os.getpid(), signal.SIGKILL))
        found = kant("sweep", write(tmp_path), "--out", tmp_path / "out")
    assert found.code == 1 and "6 of 8 runs" in found.out and "stopped by SIGKILL" in found.out
    finished_like(tmp_path, tmp_path / "out", whole)


def test_an_interrupted_sweep_keeps_what_is_finished(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(run: PlannedRun) -> None:
        os.kill(os.getppid(), signal.SIGINT)
        time.sleep(PATIENCE_S)  # until it is killed

    with monkeypatch.context() as patch:
        once_of(patch, interrupt)
        found = kant("sweep", write(tmp_path), "--out", tmp_path / "out", "--jobs", "1")
    assert found.code == 130 and "the same command continues" in found.out and "of 8 runs are kept" in found.out
    assert table(tmp_path / "out").height == 2  # both of the first seed had ended
    finished_like(tmp_path, tmp_path / "out", whole)


def test_a_full_disk_ends_the_sweep_and_loses_nothing(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        fill_disk(patch)
        found = kant("sweep", write(tmp_path), "--out", tmp_path / "out")
    assert found.code == 2 and "No space left on device" in found.err and "3 of 8 runs are kept" in found.err
    assert not list((tmp_path / "out" / "runs").glob("*.part"))
    finished_like(tmp_path, tmp_path / "out", whole)


def test_a_killed_sweep_goes_on_and_leaves_nobody(whole: Path, tmp_path: Path) -> None:
    text = SMALL.replace("seeds = 2", "seeds = 60")
    runs = tmp_path / "out" / "runs"
    with subprocess.Popen(
        [KANT, "sweep", write(tmp_path, text), "--out", tmp_path / "out"],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment(), start_new_session=True,
    ) as child:  # fmt: skip
        deadline = time.monotonic() + PATIENCE_S
        while len(list(runs.glob("*.json"))) < 5:
            assert child.poll() is None and time.monotonic() < deadline
            time.sleep(0.01)
        child.kill()
    while time.monotonic() < deadline:
        try:
            os.killpg(child.pid, 0)
        except ProcessLookupError:
            break
        time.sleep(0.05)
    else:
        raise AssertionError("a run went on without anybody to hear of it")
    half = len(list(runs.glob("*.json")))
    assert 5 <= half < 240
    write(tmp_path)
    finished_keys = set(table(whole / "out")["key"])
    (tmp_path / "out" / "runs" / f"{min(finished_keys)}.json").write_text('{"key":')  # torn, as by a loss of power
    for path in runs.glob("*.json"):
        if path.stem not in finished_keys:
            path.unlink()
    finished_like_torn(tmp_path, whole)


def finished_like_torn(folder: Path, whole: Path) -> None:
    assert kant("sweep", folder / "sweep.toml", "--out", folder / "out").code == 0
    assert without_machine(table(folder / "out")).equals(without_machine(table(whole / "out")))


def test_two_sweeps_do_not_share_a_folder_at_once(whole: Path) -> None:
    with store.RunStore(whole / "out" / "runs").alone():
        said = kant("sweep", whole / "sweep.toml", "--out", whole / "out", "--json").refusal()
    assert "no other command" in said


def test_parts_of_a_trace_are_the_trace_and_each_repeats_with_its_options(tmp_path: Path) -> None:
    text = 'profiles = ["fifo"]\nclusters = ["4x8"]\nuntil = "1h"\nqueues = "queues.toml"\nfaults = "ills.csv"\n'
    file = write(tmp_path, text.replace("fifo", "kant") + '[[workloads]]\ntrace = "small.csv"\nparts = 3\n')
    kant("trace", "tenants", tmp_path / "small.csv", "--cluster", "4x8", "--out", tmp_path / "queues.toml")
    node = read_cluster("4x8").nodes[0].name
    (tmp_path / "ills.csv").write_text(f"time_s,node,state,gpus,until_s\n60,{node},failed,,\n")
    found = kant("sweep", file, "--out", tmp_path / "out", "--json").json()
    assert found["finished"] == 3
    rows = table(tmp_path / "out")
    assert rows["jobs"].sum() == 60 and rows["part"].to_list() == [0, 1, 2] and rows["node_faults"].min() == 1
    assert max(rows["jobs"]) - min(rows["jobs"]) <= 1
    chosen = read_sweep(file)
    for run, digest in zip(chosen.experiment.runs, rows["digest"], strict=True):
        assert kant(*shlex.split(chosen.command(run))[1:], "--json").json()["digest"] == digest


def test_a_fitted_trace_is_drawn_with_the_seed_of_each_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = 'profiles = ["fifo"]\nclusters = ["4x8"]\nseeds = 2\n[[workloads]]\ngenerate = "fit.json"\njobs = 40\n'
    file = write(tmp_path, text, jobs=400)
    assert kant("trace", "fit", tmp_path / "small.csv", "--out", tmp_path / "fit.json").code == 0
    assert kant("sweep", file, "--out", tmp_path / "out").code == 0
    rows = table(tmp_path / "out")
    assert rows["jobs"].to_list() == [40, 40] and rows["digest"].n_unique() == 2
    monkeypatch.chdir(tmp_path)
    chosen = read_sweep(file)
    draws, simulates = (shlex.split(each)[1:] for each in chosen.command(chosen.experiment.runs[1]).split(" && "))
    assert kant(*draws).code == 0 and kant(*simulates, "--json").json()["digest"] == rows["digest"][1]
    file.write_text(text + "load = 1.0\n")
    assert "for a fitted trace" in kant("sweep", file, "--out", tmp_path / "out").refusal()


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('["fifo", "srtf"]', '["fifo", "fifo"]', "no name twice"),
        ('["fifo", "srtf"]', '["nobody"]', "one of"),
        ('["fifo", "srtf"]', "[]", "at least one"),
        ("seeds = 2", "seeds = 0", "a number of seeds"),
        ("seeds = 2", "seeds = [1, 1]", "none twice"),
        ("seeds = 2", 'metrics = ["colour"]', "figures of a summary"),
        ("seeds = 2", "sedes = 2", "sedes"),
        ('trace = "small.csv"', 'trace = "gone.csv"', "a file that exists"),
        ('trace = "small.csv"', 'trace = "small.csv"\nparts = 61', "61"),
        ('trace = "small.csv"', 'trace = "small.csv"\ndays = 3', "only fields for a trace"),
        ('generate = "seren"', 'generate = "moon"', "one of"),
        ('generate = "seren"', 'generate = "seren"\ntrace = "small.csv"', "either"),
        ("gpus = 32", "gpus = -32", "gpus"),
        ('["4x8"]', '["4by8"]', "NxG"),
        ('["4x8"]', '["4x8"', "TOML"),
    ],
)
def test_a_file_that_is_no_sweep_is_refused_in_one_sentence(tmp_path: Path, old: str, new: str, said: str) -> None:
    text = SMALL.replace(old, new)
    assert text != SMALL
    sentence = kant("sweep", write(tmp_path, text), "--out", tmp_path / "out").refusal()
    assert said in sentence and sentence.startswith(f"kant: {tmp_path}"), "it names the file"
    assert not (tmp_path / "out").exists()


def test_a_record_is_whole_json(whole: Path) -> None:
    for path in (whole / "out" / "runs").glob("*.json"):
        record = json.loads(path.read_text())
        assert record["key"] == path.stem and re.fullmatch("[0-9a-f]{32}", path.stem)
        assert record["summary"]["interrupted"] is False
