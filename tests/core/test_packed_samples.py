"""Samples that are packed are the samples that were taken."""

from __future__ import annotations

from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kant.metrics.recorder import S_CAPACITY, S_TIME, SAMPLE_WIDTH, Recorder

END = 1 << 60
VALUES = st.sampled_from([0, 1, (1 << 31) - 1, 1 << 31, 1 << 40])
ROWS = st.lists(st.tuples(st.sampled_from([1, 7, 1 << 31, 1 << 40]), *[VALUES] * (SAMPLE_WIDTH - 1), st.booleans()))


@given(ROWS)
def test_columns_are_what_was_taken_wherever_it_is_packed(rows: list[tuple[int, ...]]) -> None:
    recorder, now, taken = Recorder(Mock(pools=(), table=(), now=0, gpus_there=3)), 0, list[list[int]]()
    for span, *values, packs in rows:
        now += span
        taken.append([now, *values])
        recorder.make_room(1)
        recorder.samples[recorder.used] = taken[-1]
        recorder.used += 1
        if packs:
            recorder.pack()
    table = np.array(taken, dtype=np.int64).reshape(-1, SAMPLE_WIDTH)
    for which in range(SAMPLE_WIDTH):
        assert recorder.column(which).tolist() == table[:, which].tolist()
    first = taken[0][S_TIME] if taken else END
    assert recorder.gpu_time_there(END) == 3 * (END - first)


@pytest.mark.parametrize(("value", "each"), [(5, 0), ((1 << 31) - 1, 4), (1 << 31, 8)])
def test_a_packed_column_takes_what_its_values_need(value: int, each: int) -> None:
    """One number where all are equal, else four bytes each, or eight."""
    recorder = Recorder(Mock(pools=(), table=(), now=0, gpus_there=0))
    recorder.samples[:1001, S_CAPACITY] = 5
    recorder.samples[999, S_CAPACITY] = value
    recorder.used = 1001
    recorder.pack()
    (packed,) = recorder._packed
    assert packed[S_CAPACITY].nbytes == (4 if value == 5 else 1000 * each) and recorder.used == 1
