"""Every waiting job has one reason, and asking for it changes nothing."""

from __future__ import annotations

import pytest

from kant.cluster.state import ClusterState
from kant.model.decision import Behind, NeverFits, NoFit, Reject, Start
from kant.model.errors import Violation
from kant.model.event import JobStarted, JobSubmitted
from kant.model.job import Demand, Job, PodGroup
from kant.scheduler.cycle import Scheduler
from kant.scheduler.explain import why
from kant.scheduler.profile import builtin_profile, builtin_texts
from kant.workload.cluster_file import read_cluster


def scheduled(profile: str, *gpus: int) -> Scheduler:
    """One node of 8 GPUs, jobs `0`, `1`, … of so many GPUs, and one cycle carried out."""
    state = ClusterState(read_cluster("1x8"))
    scheduler = Scheduler(state, builtin_profile(profile))
    for i, count in enumerate(gpus):
        state.apply(JobSubmitted(0, Job(str(i), 0, (PodGroup(1, Demand(count)),), estimate=1)))
    for decision in scheduler.cycle(0).decisions:
        if isinstance(decision, Start):
            state.apply(JobStarted(0, decision.job, decision.allocation))
    return scheduler


def test_the_head_does_not_fit_and_the_others_stand_behind_it() -> None:
    scheduler = scheduled("fifo", 6, 4, 1, 2)
    assert why(scheduler, "1") == NoFit(group=0, pods=1, fits=0)
    assert why(scheduler, "2") == why(scheduler, "3") == Behind("1")


def test_best_effort_stands_behind_nobody_of_another_shape() -> None:
    scheduler = scheduled("fifo-best-effort", 6, 4, 4, 2)
    assert why(scheduler, "1") == NoFit(group=0, pods=1, fits=0)
    assert why(scheduler, "2") == Behind("1")
    with pytest.raises(Violation, match="does not wait"):
        why(scheduler, "3")


def test_what_can_never_fit_says_so_before_it_is_rejected() -> None:
    state = ClusterState(read_cluster("1x8"))
    scheduler = Scheduler(state, builtin_profile("kant"))
    state.apply(JobSubmitted(0, Job("wide", 0, (PodGroup(2, Demand(8)),))))
    assert why(scheduler, "wide") == NeverFits(group=0, pods=2, fits=1)
    assert scheduler.cycle(0).decisions == [Reject("wide", NeverFits(group=0, pods=2, fits=1))]


@pytest.mark.parametrize("name", [name for name in builtin_texts() if not name.startswith("openb")])
def test_asking_changes_nothing(name: str) -> None:
    asked, silent = scheduled(name, 6, 4, 1, 2, 8), scheduled(name, 6, 4, 1, 2, 8)
    for row in list(asked.state.pending):
        reason = why(asked, asked.state.ids[row])
        assert reason is None or isinstance(reason, NoFit | Behind)
    asked.state.check()
    for scheduler in (asked, silent):
        scheduler.state.apply(JobSubmitted(5, Job("late", 5, (PodGroup(1, Demand(1)),), estimate=1)))
    why(asked, "late")
    ours, theirs = asked.cycle(5), silent.cycle(5)
    assert str(ours) == str(theirs)
