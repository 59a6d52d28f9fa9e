"""The first file of tenants: quotas in proportion, summing to the cluster, and readable again."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kant.model.errors import InputError
from kant.model.units import GPU
from kant.testing import make_jobs
from kant.workload.generate import generate
from kant.workload.tenants_draft import apportioned, proportional
from kant.workload.tenants_file import parse_tenants
from kant.workload.tenants_text import text_of


@given(st.lists(st.floats(0, 1e12), min_size=1, max_size=30), st.integers(1, 10_000))
def test_apportioned_parts_sum_to_the_whole_and_keep_the_order(weights: list[float], total: int) -> None:
    parts = apportioned(weights, total)
    assert sum(parts) == total and min(parts) >= (1 if total >= len(weights) else 0)
    ranked = sorted(zip(weights, parts, strict=True))
    assert all(a[1] <= b[1] + 1 for a, b in pairwise(ranked))


def test_quotas_follow_the_gpu_hours_and_the_file_reads_as_it_was_drawn() -> None:
    jobs = generate("seren", gpus=256, load=0.8, days=3, tenants=6, seed=2)
    drawn = proportional(jobs, 256)
    assert [queue.name for queue in drawn.queues] == ["cluster", *(f"vc{i:02d}" for i in range(1, 7))]
    assert sum(quota.nominal for queue in drawn.queues for quota in queue.quotas) == 256 * GPU
    assert parse_tenants("q.toml", text_of(drawn)) == drawn


def test_the_root_has_a_name_of_its_own() -> None:
    jobs = replace(make_jobs(submit=[0], runtime=[9]), queues=("cluster",))
    assert [queue.name for queue in proportional(jobs, 8).queues] == ["cluster-", "cluster"]


def test_a_queue_that_no_file_can_name_is_refused() -> None:
    jobs = replace(make_jobs(submit=[0], runtime=[9]), queues=("a b",))
    with pytest.raises(InputError, match="queue"):
        proportional(jobs, 8)
