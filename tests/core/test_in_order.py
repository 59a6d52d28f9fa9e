"""Kernels order integers as NumPy does."""

from __future__ import annotations

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from kant.placement.calendar.in_order import in_order


@example([2, 1, 2, 0] * 9)
@given(st.lists(st.integers(-9, 9) | st.integers(-(1 << 63), (1 << 63) - 1), max_size=99))
def test_equal_keys_keep_their_order(keys: list[int]) -> None:
    found = np.array(keys, dtype=np.int64)
    assert in_order(found).tolist() == np.argsort(found, kind="stable").tolist()
    assert found.tolist() == keys
