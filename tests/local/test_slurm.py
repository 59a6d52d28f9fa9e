"""A script with `#SBATCH` lines gets the variables that Slurm gives a batch script, each with what is true here."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.command import kant as verb
from tests.local.up import Up, eventually

from kant.cli.slurm import _asked
from kant.cli.srun import SrunUsageError
from kant.local.slurm import NAMES, _of_array


@pytest.fixture(scope="module")
def kant(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    with Up(tmp_path_factory.mktemp("slurm") / "home", "2x4") as found:
        yield found


def queued(kant: Up, folder: Path, *lines: str, options: tuple[str, ...] = ()) -> str:
    """The id of the job of a script."""
    path = folder / "train.sh"
    path.write_text("\n".join(("#!/bin/sh", *lines, "env")) + "\n")
    done = verb("submit", "--home", kant.home, *options, path)
    assert done.code == 0, done
    return done.out.strip()


def variables_of_kant(text: str) -> dict[str, str]:
    return dict(line.split("=", 1) for line in text.splitlines() if line.startswith("KANT_"))


def variables(text: str) -> dict[str, str]:
    """Slurm's variables among those that a job has printed."""
    rows = (line.partition("=") for line in text.splitlines())
    return {name: value for name, _, value in rows if name.startswith(("SLURM_", "SLURMD_"))}


def test_a_job_has_them_all(kant: Up, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SLURM_JOB_ID", "999")  # submitted from inside a job of Slurm
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "7")
    inside = tmp_path / "inside"
    inside.mkdir()
    job = queued(kant, tmp_path, "#SBATCH --gres=gpu:2 -c 3 --mem=2G -D inside -t 60", options=("--queue", "default"))
    assert kant.over(job) == ["finished"]
    found = variables(kant.log(job))
    nodes = found.pop("SLURM_JOB_NODELIST")
    assert nodes == variables_of_kant(kant.log(job))["KANT_NODES"]
    gpus = found.pop("SLURM_JOB_GPUS")
    start, limit = int(found.pop("SLURM_JOB_START_TIME")), int(found.pop("SLURM_JOB_END_TIME"))
    assert start == kant.job(job)["job"]["started"] // 10**6 and limit - start in (3600, 3601)
    assert len(gpus.split(",")) == 2
    assert found == {
        "SLURM_JOB_ID": job, "SLURM_JOBID": job, "SLURM_JOB_NAME": "train.sh", "SLURM_JOB_PARTITION": "default",
        "SLURM_JOB_USER": kant.job(job)["job"]["user"], "SLURM_CLUSTER_NAME": "2x4", "SLURM_NODELIST": nodes,
        "SLURM_JOB_NUM_NODES": "1", "SLURM_NNODES": "1", "SLURMD_NODENAME": nodes, "SLURM_CPUS_ON_NODE": "3",
        "SLURM_JOB_CPUS_PER_NODE": "3", "SLURM_CPUS_PER_TASK": "3", "SLURM_MEM_PER_NODE": "2048", "SLURM_GPUS": "2",
        "SLURM_GPUS_ON_NODE": "2", "SLURM_GPUS_PER_NODE": "2", "SLURM_NTASKS": "1", "SLURM_NPROCS": "1",
        "SLURM_TASKS_PER_NODE": "1",
        "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NODEID": "0", "SLURM_SUBMIT_DIR": str(tmp_path),
        "SLURM_SUBMIT_HOST": socket.gethostname(),
    }  # fmt: skip
    assert set(found) <= NAMES
    assert f"CUDA_VISIBLE_DEVICES={gpus}" in kant.log(job)


def test_an_array_is_counted(kant: Up, tmp_path: Path) -> None:
    array = queued(kant, tmp_path, "#SBATCH --array=4-10:3 -J sweep")
    jobs = [f"{array}_{index}" for index in (4, 7, 10)]
    assert kant.over(*jobs) == ["finished"] * 3
    found = [variables(kant.log(job)) for job in jobs]
    assert [each["SLURM_ARRAY_TASK_ID"] for each in found] == ["4", "7", "10"]
    assert {each["SLURM_ARRAY_JOB_ID"] for each in found} == {array}
    assert len({each["SLURM_JOB_ID"] for each in found}) == 3, "each job of an array has a number of its own"
    of = [each.removeprefix("SLURM_ARRAY_TASK_") for each in found[0] if each.startswith("SLURM_ARRAY_TASK_")]
    assert sorted(of) == ["COUNT", "ID", "MAX", "MIN", "STEP"]
    for name, value in (("COUNT", "3"), ("MIN", "4"), ("MAX", "10"), ("STEP", "3")):
        assert found[1][f"SLURM_ARRAY_TASK_{name}"] == value
    assert {each["SLURM_JOB_NAME"] for each in found} == {"sweep"}


@pytest.mark.parametrize(
    ("indices", "step"), [((1, 3, 5, 6, 7), "1"), ((0, 3, 5), "1"), ((5,), "1"), ((9, 1, 5), "4"), ((0, 1), "1")]
)
def test_the_step_of_an_array_is_1_unless_all_are_as_far_apart(indices: tuple[int, ...], step: str) -> None:
    found = _of_array(indices)
    assert found["SLURM_ARRAY_TASK_STEP"] == step
    assert (found["SLURM_ARRAY_TASK_MIN"], found["SLURM_ARRAY_TASK_MAX"]) == (str(min(indices)), str(max(indices)))


def test_a_gang_on_two_nodes_names_both(kant: Up, tmp_path: Path) -> None:
    job = queued(kant, tmp_path, "#SBATCH --gpus=6")
    assert kant.over(job) == ["finished"]
    found = variables(kant.log(job))
    assert (found["SLURM_JOB_NUM_NODES"], len(found["SLURM_JOB_NODELIST"].split(","))) == ("2", 2)
    assert (found["SLURM_GPUS"], found["SLURM_GPUS_ON_NODE"]) == ("6", "4")
    assert found["SLURM_JOB_CPUS_PER_NODE"].endswith("(x2)"), "cores are not counted: all of each node"


def test_a_job_that_is_started_again_knows_how_often(kant: Up, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    job = queued(kant, tmp_path, "#SBATCH -n 1", "echo count=${SLURM_RESTART_COUNT:-none}", "[ -e go ] || sleep 60")
    assert eventually(lambda: "count=none" in kant.log(job))
    (tmp_path / "go").touch()
    kant.client.post(kant.client.job(job, "requeue"))
    kant.over(job)
    assert "count=1" in kant.log(job)


def test_no_other_job_has_them(kant: Up, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
    job = queued(kant, tmp_path, "#KANT --gpus 1")
    assert kant.over(job) == ["finished"] and variables(kant.log(job)) == {}
    asked = verb("submit", "--slurm", "--home", kant.home, "--", "env")
    assert kant.over(asked.out.strip()) == ["finished"]
    assert variables(kant.log(asked.out.strip()))["SLURM_JOB_NAME"] == "env"


def test_what_is_no_option_of_srun_is_refused() -> None:
    assert _asked(["-n", "4"])[-2:] == ["--tasks", "4"]
    with pytest.raises(SrunUsageError, match="4: expected an option"):
        _asked(["-n2", "4"])
