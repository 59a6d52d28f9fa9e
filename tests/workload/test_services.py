"""Inference services: base jobs to the end, burst replicas within them, and a part of the load as asked for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from kant.model.errors import InputError
from kant.model.units import DAY, HOUR, SECOND
from kant.workload.convert import write_workload
from kant.workload.generate import generate
from kant.workload.read import read_workload
from kant.workload.workload import Workload


def drawn(seed: int = 1, services: float = 0.3) -> Workload:
    return generate("philly", gpus=512, load=0.9, days=7, services=services, tenants=5, seed=seed)


def gpu_time(jobs: Workload, rows: np.ndarray) -> float:
    return float((jobs.total_gpus * jobs.runtime)[rows].sum())


@pytest.mark.parametrize("seed", range(5))
def test_services_ask_for_their_part_of_the_load(seed: int) -> None:
    jobs = drawn(seed)
    serving = np.array([name.startswith("service") for name in jobs.ids])
    offered = 512 * 7 * DAY
    assert gpu_time(jobs, serving) == pytest.approx(0.3 * 0.9 * offered, rel=0.03)
    bases = jobs.preemptible == 0
    assert gpu_time(jobs, bases) == pytest.approx(0.7 * 0.3 * 0.9 * offered, rel=0.04)
    assert set(jobs.priority[bases].tolist()) == {100}
    assert np.abs((jobs.submit + jobs.runtime)[bases] - 7 * DAY).max() <= SECOND
    assert len(np.unique(jobs.queue)) <= 5
    assert (np.diff(jobs.submit) >= 0).all()


def test_a_burst_lies_within_the_life_of_its_core_and_looks_like_it() -> None:
    jobs = drawn()
    replicas = np.flatnonzero(jobs.base_job >= 0)
    bases = jobs.base_job[replicas]
    assert len(replicas) > 100 and (jobs.preemptible[bases] == 0).all()
    assert (jobs.submit[bases] < jobs.submit[replicas]).all()
    assert (jobs.submit[replicas] < (jobs.submit + jobs.runtime)[bases]).all()
    for column in (jobs.gpus, jobs.queue, jobs.user):
        assert np.array_equal(column[replicas], column[bases])
    hour = jobs.submit[replicas] // HOUR % 24
    assert np.isin(hour, range(11, 20)).sum() > 1.5 * np.isin(hour, [*range(5), *range(23, 24), 5, 6, 7]).sum()


def test_training_alone_is_drawn_as_before() -> None:
    plain = generate("philly", gpus=512, load=0.9, days=7, seed=1)
    assert (plain.base_job == -1).all() and (plain.preemptible == 1).all()
    assert [name for name in drawn().ids if name.isdecimal()] == [str(i) for i in range(len(plain))][
        : len([name for name in drawn().ids if name.isdecimal()])
    ]


@pytest.mark.parametrize("name", ["mixed.csv", "mixed.csv.gz", "mixed.parquet"])
def test_cores_and_bursts_survive_a_file(name: str, tmp_path: Path) -> None:
    jobs = drawn()
    write_workload(jobs, tmp_path / name)
    again = read_workload(tmp_path / name)
    assert np.array_equal(again.base_job, jobs.base_job)
    assert np.array_equal(again.preemptible, jobs.preemptible)


def test_a_window_without_the_core_has_no_bursts(tmp_path: Path) -> None:
    path = tmp_path / "jobs.csv"
    path.write_text("id,submit_s,runtime_s,gpus,core\nc,0,100,1,\nb,10,5,1,c\nd,20,5,1,\n")
    assert read_workload(path).base_job.tolist() == [-1, 0, -1]
    assert read_workload(path, window=(5 * SECOND, 100 * SECOND)).ids == ["d"]


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ("c,0,9,1,\nb,1,9,1,x\n", "job b, field core: expected the identifier of a job"),
        ("c,0,9,1,\nb,1,9,1,c\na,2,9,1,b\n", "job a, field core: expected a job that is not a burst"),
        ("b,0,9,1,c\nc,1,9,1,\n", "job b, field core: expected a job that is submitted before"),
        ("b,0,9,1,b\n", "job b, field core"),
    ],
)
def test_cores_that_cannot_be_are_refused(rows: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "jobs.csv"
    path.write_text("id,submit_s,runtime_s,gpus,core\n" + rows)
    with pytest.raises(InputError) as caught:
        read_workload(path)
    assert words in str(caught.value)


@pytest.mark.parametrize("arguments", [{"services": 1.0}, {"services": -0.1}, {"services": 0.2}, {"tenants": 0}])
def test_services_without_a_load_are_refused(arguments: dict[str, float]) -> None:
    with pytest.raises(InputError):
        generate("philly", jobs=10, **arguments)  # type: ignore[arg-type]
