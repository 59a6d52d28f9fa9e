"""`Placer.may_fit`: its no is never wrong, and how many Python calls a placement costs."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from types import FrameType

import numba
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core.test_apart import peopled
from tests.core.test_domains import POLICIES, topology

from kant.cluster.snapshot import Snapshot
from kant.cluster.state import ClusterState
from kant.model.decision import NoFit
from kant.model.job import Job
from kant.model.placement import Allocation
from kant.placement.placer import Placer
from kant.testing import make_group, make_job, make_named_policy
from kant.testing.strategies import jobs

EVERY = (*POLICIES, "kant", "spread", "e-spread")


@given(peopled(), st.lists(st.tuples(jobs("j"), st.integers(0, 3)), min_size=1, max_size=8), st.sampled_from(EVERY))
def test_what_may_not_fit_finds_no_place(
    case: tuple[ClusterState, list[Allocation]], steps: list[tuple[Job, int]], policy: str
) -> None:
    """On a trial on which jobs stop, start, and are taken back; for one plain group the answer is exact."""
    state, held = case
    placer = Placer(Snapshot(state), make_named_policy("placement", policy), 0)
    evicted = list(held)
    for job, step in steps:
        if step == 0 and evicted:
            placer.trial.evict(evicted.pop())
        mark = placer.trial.checkpoint()
        shape = state.shapes.of(job)
        before = placer.snapshot.table.copy()
        may, missing = placer.may_fit(shape), placer.missing(shape)
        assert (placer.snapshot.table == before).all(), "nothing is taken"
        fresh = Placer(Snapshot(state), make_named_policy("placement", policy), 0)
        fresh.snapshot.table[:] = before
        assert fresh.may_fit(shape) == may, "what was known before does not matter"
        found = placer.place(shape)
        assert missing == (found.pods - found.fits if isinstance(found, NoFit) else 0)
        placed = not isinstance(found, NoFit)
        assert may or not placed
        if len(shape.parts) == 1 and not shape.cuts and not shape.has_affinity:
            assert may == placed
        if step == 1:
            placer.trial.rollback(mark)


def calls_of(work: Callable[[], object]) -> int:
    """The Python functions that `work` calls; a compiled kernel counts as one."""
    found = 0

    def note(frame: FrameType, event: str, argument: object) -> None:
        nonlocal found
        found += event == "call"

    gc.disable()  # what others want called at a collection is none of its calls
    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
        gc.enable()
    return found - 1  # `work` itself


@pytest.mark.skipif(bool(numba.config.DISABLE_JIT), reason="kernels are counted as one call each")
@pytest.mark.parametrize(
    ("job", "most"),
    [
        (make_job("a", 1), 5),
        (make_job("b", groups=(make_group(1, milli=500),)), 5),
        (make_job("c", 8), 11),
        (make_job("d", 8, 2), 11),
        (make_job("e", 8, 4, within="leaf", within_required=True), 17),
        (make_job("f", groups=(make_group(2, 4), make_group(1, 2))), 26),
    ],
)
def test_a_placement_costs_few_calls(job: Job, most: int) -> None:
    """The route is chosen when the shape comes first."""
    state = ClusterState(topology(8, 8, 8, 8))
    placer = Placer(Snapshot(state), make_named_policy("placement", "kant"), 0)
    shape = state.shapes.of(job)
    for now in range(2):  # load the kernels
        placer.place(shape)
        placer.snapshot.refresh(now)
    assert calls_of(lambda: placer.place(shape)) <= most
    assert calls_of(lambda: placer.may_fit(shape)) <= 8
    assert calls_of(lambda: placer.snapshot.refresh(1)) <= 2
    assert calls_of(lambda: placer.snapshot.refresh(1)) <= 1, "nothing has changed"
