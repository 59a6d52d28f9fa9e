"""`kant check` says what a file is."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cli.command import kant

OPENB = (
    "workload,name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,"
    "scheduled_time\n"
)
FILES = {
    "jobs.csv": ("submit_s,runtime_s,gpus\n0,10,1\n5,10,2\n", "a workload of 2 jobs"),
    "pods.csv": (
        OPENB + "a,p0,1000,10,1,1000,,BE,Running,0,5,0\nb,p1,1000,10,1,500,,BE,Running,0,5,0\n",
        "2 workloads of 2 jobs: a, b",
    ),
    "nodes.csv": ("sn,cpu_milli,memory_mib,gpu,model\nn0,1000,10,2,T4\n", "a cluster of 1 nodes with 2 GPUs"),
    "cluster.toml": ("[[nodes]]\ncount = 3\ngpus = 4\n", "a cluster of 3 nodes with 12 GPUs"),
    "mine.toml": (
        '[order]\npolicy = "fifo"\n[discipline]\npolicy = "strict"\n[placement]\npolicy = "fgd"\n',
        "the profile ",
    ),
}


@pytest.mark.parametrize("name", FILES)
def test_it_says_what_a_file_is(tmp_path: Path, name: str) -> None:
    text, expected = FILES[name]
    (tmp_path / name).write_text(text)
    outcome = kant("check", tmp_path / name)
    assert outcome.code == 0, outcome.err
    assert expected in outcome.out


def test_a_trace_without_jobs_is_none(tmp_path: Path) -> None:
    (tmp_path / "empty.csv").write_text("submit_s,runtime_s,gpus\n")
    assert "empty.csv" in kant("check", tmp_path / "empty.csv").refusal()


def test_a_cluster_of_too_many_pools_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    groups = [f'[[nodes]]\ncount = 1\ngpus = 8\nqueues = ["q{i}"]\n' for i in range(63)]
    (tmp_path / "many.toml").write_text("".join(groups))
    (tmp_path / "jobs.csv").write_text(FILES["jobs.csv"][0])
    out = tmp_path / "out"
    outcome = kant("simulate", tmp_path / "jobs.csv", "--cluster", tmp_path / "many.toml", "--out", out)
    assert "62 pools" in outcome.refusal()
    assert not out.exists()
