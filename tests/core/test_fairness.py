"""Finish-time fairness is the ratio that its page defines, and quotas in a run do what they say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from kant.model.tenant import QueueConfig
from kant.queueing.preemption.policy import Preemption
from kant.scheduler.profile import builtin_profile
from kant.sim.replay import replay, rerun
from kant.sim.run import RunHooks, simulate
from kant.testing import make_cluster, make_jobs, make_profile
from kant.testing.builders import make_queue
from kant.workload.workload import Workload

HALVES = QueueConfig((make_queue("root"), make_queue("a", 4, parent="root"), make_queue("b", 4, parent="root")))


def of_queues(**columns: Sequence[float]) -> Workload:
    return replace(make_jobs(**columns), queues=("a", "b"))


def two_queues() -> Workload:
    """`a` borrows the whole cluster for 100 s, and `b` comes for its half at 10 s."""
    return of_queues(submit=[0, 0, 10], runtime=[100, 100, 50], gpus=[4, 4, 4], queue=[0, 0, 1])


def test_rho_is_time_spent_over_time_alone_on_the_nominal_gpus() -> None:
    found = simulate(two_queues(), make_cluster(8), make_profile(), queue_config=HALVES).summary
    assert found["by_queue"]["a"]["rho"] == 1.0
    assert found["by_queue"]["b"]["rho"] == pytest.approx((90 + 50) / 50)
    assert found["fairness"] == {"worst": pytest.approx(2.8), "mean": pytest.approx(1.9)}


def test_a_job_larger_than_the_nominal_quota_would_run_slower_alone() -> None:
    jobs = of_queues(submit=[0], runtime=[100], gpus=[8], queue=[0])
    found = simulate(jobs, make_cluster(8), make_profile(), queue_config=HALVES).summary
    assert found["by_queue"]["a"]["rho"] == pytest.approx(0.5)


def test_without_queues_there_is_no_fairness() -> None:
    found = simulate(two_queues(), make_cluster(8), make_profile()).summary
    assert found["fairness"] == {"worst": None, "mean": None}


def test_reclaim_gives_a_queue_its_quota_back() -> None:
    profile = make_profile(preemption=Preemption(reclaim="nominal", min_run_s=0), checkpoint_s=-1)
    found = simulate(two_queues(), make_cluster(8), profile, queue_config=HALVES).summary
    assert found["by_queue"]["b"]["rho"] == 1.0
    assert (found["evictions"], found["lost_gpu_s"]) == (1, 40.0)
    # The victim of `a` ran for 10 s in vain: it waits for the other of its queue or of b, and runs 100 s anew.
    assert found["by_queue"]["a"]["rho"] == pytest.approx((100 + 60 - 10 + 100) / 200, abs=0.06)


def test_a_journal_has_its_queues(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    with path.open("wb") as file:
        then = simulate(
            two_queues(), make_cluster(8), builtin_profile("kant"), queue_config=HALVES, hooks=RunHooks(file.write)
        )
    assert path.read_bytes().splitlines()[1].startswith(b'{"event":"queues"')
    again = replay(path)
    assert again.equal and again.queue_config == HALVES
    assert again.result.summary["fairness"] == then.summary["fairness"]
    other = rerun(again, make_profile("sjf"))
    assert other.summary["fairness"]["worst"] is not None
