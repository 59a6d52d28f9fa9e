"""The space that is open to a job that may have other nodes than the plan said."""

from __future__ import annotations

import numpy as np

from kant.scheduler.open_space import open_space
from kant.testing import Harness, make_cluster, make_job


def test_who_has_found_a_place_and_asks_no_further_leaves_the_snapshot_as_it_was() -> None:
    harness = Harness(make_cluster(8, 8))
    harness.submit(make_job("runs", gpus=8))
    harness.cycle()
    harness.submit(make_job("waits", gpus=8, pods=2))
    harness.cycle()
    state, scheduler = harness.state, harness.scheduler
    freed = state.running[state.rows["runs"]]
    space = open_space(scheduler, harness.now, state.rows["waits"], freed=[freed])
    found = next(space)
    assert (found.devices == 1000).all(), "what is to be freed is open"
    space.close()
    assert np.array_equal(scheduler.snapshot.table, state.table)
