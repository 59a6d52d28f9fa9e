"""Runs begin in slices: what takes long leaves time for requests, and nothing is lost or begun twice."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.local.up import Up

from kant.local import launch
from kant.local.forks import ForkServer
from kant.local.launch import SLICE, Launcher
from kant.local.record import JobPhase, JobRecord
from kant.local.runs import Spec, SupervisedRun
from kant.local.settings import LocalSettings
from kant.model.submission import Submission
from kant.scheduler.profile import builtin_profile
from kant.testing import make_cluster


class Slow(Launcher):
    """A launcher on a clock of its own, to which a run that begins adds so much."""

    def __init__(self, seconds: float) -> None:
        self.now = 0.0
        self.begun: list[str] = []
        self.seconds = seconds
        settings = LocalSettings(make_cluster(8), builtin_profile("kant"), Path("/nowhere"))
        super().__init__(settings, lambda record, exit: None, lambda: self.now)

    def begin(self, folder: Path, spec: Spec, server: ForkServer) -> SupervisedRun:
        self.now += self.seconds
        self.begun.append(folder.parent.name)
        return SupervisedRun(folder)

    def _watch(self, record: JobRecord, run: SupervisedRun) -> None:
        self.runs[record.id] = run


def planned(launcher: Launcher, jobs: int) -> list[JobRecord]:
    """So many jobs that are ready to begin, each on a node of its own."""
    wish = Submission(command=("true",), workdir="/")
    records = [JobRecord(i, str(i), wish, b"", "ann", 0, JobPhase.WAITING) for i in range(jobs)]
    for record in records:
        launcher.plan(record, [[record.seq, 1, 1, 0, 0, 0, 1]])
    assert launcher.ready() == records
    return records


@given(jobs=st.integers(0, 12), seconds=st.floats(0.001, 0.1), cancelled=st.sets(st.integers(0, 11)))
def test_a_slice_begins_in_order_and_ends_in_time(jobs: int, seconds: float, cancelled: set[int]) -> None:
    launcher = Slow(seconds)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launch, "begin", launcher.begin)
        patch.setattr(launcher, "_spec", lambda record, folder: None)
        records = planned(launcher, jobs)
        gone = {record.id for record in records if record.seq in cancelled and launcher.cancel_start(record)}
        for turn in count():
            began, before = launcher.now, len(launcher.begun)
            assert list(launcher.go()) == []
            assert launcher.now - began < SLICE + seconds, "one run more than the slice has room for, at most"
            assert len(launcher.begun) > before or not launcher.begins_more
            if not launcher.begins_more:
                break
            assert turn < jobs
    assert launcher.begun == [record.id for record in records if record.id not in gone]


def test_what_cannot_begin_is_named_and_the_rest_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    launcher = Slow(0.0)

    def begin(folder: Path, spec: Spec, server: ForkServer) -> SupervisedRun:
        if folder.parent.name == "1":
            raise OSError(28, "No space left on device")
        return launcher.begin(folder, spec, server)

    monkeypatch.setattr(launch, "begin", begin)
    monkeypatch.setattr(launcher, "_spec", lambda record, folder: None)
    records = planned(launcher, 3)
    assert list(launcher.go()) == [(records[1], "No space left on device")]
    assert launcher.begun == ["0", "2"] and "1" not in launcher.holds


def test_a_run_of_an_array_is_begun_in_slices_and_all_of_it_ends_well(tmp_path: Path) -> None:
    def prepare() -> None:
        launch.SLICE = 0.0001

    with Up(tmp_path / "home", cluster="2x16", prepare=prepare) as up:
        first = up.submit("true", gpus=1, array=list(range(60)))
        jobs = [f"{first.partition('_')[0]}_{i}" for i in range(60)]
        assert up.over(*jobs) == ["finished"] * 60
        assert [up.job(job)["job"]["attempt"] for job in jobs] == [1] * 60
